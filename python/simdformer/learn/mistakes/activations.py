"""The activations in steps, and others that are taken for them.

The meaning is that of `reference.silu`, `gelu`, `relu` and `swiglu`.
"""

from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.sampling import some_rows
from simdformer.learn.program import Program
from simdformer.reference.forward import erfc

silu = Program(
    "silu",
    """
    inputs: h = array(x)
    sigmoid: share = 1 / (1 + np.exp(-h))
    product: out = h * share
    """,
    of=functional.silu,
    axes=("position", "channel"),
    thin=some_rows,
)
gelu = Program(
    "gelu",
    """
    inputs: h = array(x)
    normal if approximate == "none": share = array(erfc(-h / real(math.sqrt(2)))) / 2
    bend if approximate == "tanh":
        bent = real(math.sqrt(2 / math.pi)) * (h + real(0.044715) * h**3)
    nearly_normal if approximate == "tanh": share = (1 + np.tanh(bent)) / 2
    product: out = h * share
    """,
    calls=(erfc,),
    of=functional.gelu,
    axes=("position", "channel"),
    thin=some_rows,
)
relu = Program(
    "relu",
    """
    inputs: h = array(x)
    maximum: out = np.maximum(h, 0)
    """,
    of=functional.relu,
    axes=("position", "channel"),
    thin=some_rows,
)
swiglu = Program(
    "swiglu",
    """
    activate:
        g, u = array(gate), array(up)
        act = run(silu, x=g).out
    gated: out = act * u
    """,
    calls=(silu,),
    of=functional.swiglu,
    axes=("position", "channel"),
    thin=some_rows,
)

# ---- mistakes: another function ------------------------------------------------------------------


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


# name: as it is called in a title, the function
FUNCTIONS = {
    "silu": ("silu", "h * sigmoid(h)"),
    "gelu": ("gelu", "h * erfc(-h / math.sqrt(2)) / 2"),
    "gelu_tanh": (
        "gelu in its tanh form",
        "h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))) / 2",
    ),
    "quick_gelu": ("x * sigmoid(1.702 x), the quick gelu,", "h * sigmoid(1.702 * h)"),
    "hardswish": ("hardswish", "h * np.clip(h + 3, 0, 6) / 6"),
    "relu": ("relu", "np.maximum(h, 0)"),
    "leaky_relu": ("leaky relu (slope 0.01)", "np.where(h > 0, h, 0.01 * h)"),
    "relu_squared": ("the square of relu", "np.maximum(h, 0) ** 2"),
    "elu": ("elu", "np.where(h > 0, h, np.expm1(np.minimum(h, 0)))"),
    "softplus": ("softplus", "np.logaddexp(h, 0)"),
    "mish": ("mish", "h * np.tanh(np.logaddexp(h, 0))"),
    "tanh": ("tanh", "np.tanh(h)"),
    "sigmoid": ("sigmoid", "sigmoid(h)"),
    "x_tanh": ("x * tanh(x)", "h * np.tanh(h)"),
    "step": ("a step from 0 to 1", "np.where(h > 0, 1, 0)"),
    "absolute": ("the absolute value", "np.abs(h)"),
}
USUAL = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")
ALIKE = "Activations look alike; the config of a model says which one it was trained with."
SPECIAL = {  # what is not said in general words: cause and fix
    "silu, sigmoid": "silu(x) is x * sigmoid(x): the x in front is missing. "
    "> Multiply the sigmoid by x.",
    "silu, quick_gelu": "x * sigmoid(1.702 x) is an approximation of gelu; silu has no factor "
    "inside. > Write x * sigmoid(x), or x / (1 + exp(-x)).",
    "relu, leaky_relu": "Negative numbers become exactly 0, not a hundredth of themselves. "
    "> Write np.maximum(x, 0).",
}

for op, last, see, fix in (
    ("silu", "product", "02 §7", "x * sigmoid(x), or x / (1 + exp(-x))"),
    ("gelu", "product", "04 §8", "x * Phi(x), Phi the normal distribution"),
    ("relu", "maximum", "04 §8", "np.maximum(x, 0)"),
):
    mistakes(
        f"""
        {op}.{last} ({see})

        not_applied: {op} is not applied: x comes back as it was
            The call of {op} is missing, or its result is not used.
            > Use {fix} (torch.nn.functional.{op}).
            | out = h
        """
    )
    for name, (called, function) in FUNCTIONS.items():
        if name != op and (op, name) != ("gelu", "gelu_tanh"):
            mistakes(
                f"""
                {op}.{last} ({see}) > Use {fix} (torch.nn.functional.{op}).

                {name}_instead ({"" if name in USUAL else "rare"}):
                    {f"this is {called} instead of {op}".replace(", instead", " instead")}
                    {SPECIAL.get(f"{op}, {name}", ALIKE)}
                    | out = array({function})
                """,
                calls=(sigmoid, erfc),
            )
