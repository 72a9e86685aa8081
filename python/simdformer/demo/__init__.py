"""The demonstration: one attention step, written in numpy and computed by the kernels, a trained
model, and one gradient.

Every line of code that it shows is the code that it runs.
"""

from simdformer.demo.model import load, trained_model
from simdformer.demo.steps import attention_step, gradient_step

__all__ = ["NEXT", "run"]

NEXT = """
make lab           in a checkout: the notebooks in JupyterLab, all of this step by step
simdformer learn   a file of functions to fill in: write the transformer yourself"""


def run(model: str | None = None) -> int:
    """Prints the demonstration, with the checkpoint that the package carries or with another one;
    gives 0, or 1 when a check failed."""
    loaded, tokenizer = load(model)  # before anything is shown: there may be no such model
    right = attention_step()
    right = trained_model(loaded, tokenizer, model) and right
    right = gradient_step() and right
    print(f"\nAll checks agree.\n{NEXT}" if right else "\nA CHECK FAILED: look for ✗ above.")
    return 0 if right else 1
