"""The small checkpoint that the package carries, and the text that it learned: `corpus.py`."""

from pathlib import Path

__all__ = ["demo_path"]

FILES = ("params.json", "consolidated.00.pth", "tokenizer.model")


def demo_path() -> Path:
    """The directory of the demonstration checkpoint, for `simdformer.from_pretrained`.

    A Llama of 1.4 million parameters in Meta's format, trained by this project
    (`python -m simdformer.demo.train`) on simple English that the project writes itself: stories,
    facts to look up, lists to repeat, small sums. Texts may be 256 ids long. FileNotFoundError when
    the installation lacks a file of it.

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> model.config.num_layers, model.config.num_heads, model.config.num_kv_heads
    (6, 4, 2)
    """
    directory = Path(__file__).parent / "demo"
    missing = [name for name in FILES if not (directory / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{directory}: the demonstration checkpoint lacks {', '.join(missing)}; install "
            "simdformer again, or make one: python -m simdformer.demo.train DIRECTORY"
        )
    return directory
