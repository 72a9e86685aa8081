"""`sf.explore`: a text and a model, to change by hand in a notebook."""

from typing import Any

from simdformer.interpret.explorer.exploration import Exploration
from simdformer.interpret.page.look import MOST_TOKENS

__all__ = ["explore"]


def explore(
    model: Any,
    text: Any,
    other: Any = None,
    *,
    against: str | int | None = None,
    target: str | int | None = None,
    max_tokens: int = MOST_TOKENS,
) -> Any:  # an Explorer, whose module needs anywidget
    """The page of `look` in a notebook, where it answers: type in the text, append a token, take
    away a head, an MLP or a position by a click, or put what another text has in its place.
    Whatever is shown now is shown beside what it was before.

    Parameters
    ----------
    model : LanguageModel, Transformer or TrainableModel
        A TrainableModel is shown with its weights of the moment in which the text is read, and with
        what its loss asks of each head and MLP; it takes no edits. Its text is words where it is
        told a tokenizer (`model.tokenizer = ...`), else ids.
    text : str, or ids (L,)
    other : str, or ids, optional
        A second text, from which activations can be taken where it has as many tokens.
    against, target, max_tokens
        As of `look`.

    Returns
    -------
    Explorer
        A widget. Its traitlets can be read, set and observed: `text`, `other`, `edits`, `layer`,
        `head`, `position`; `trace` is that of the changed run. `edits` is a list of dicts:
        {"part": "head" or "position", "layer": 5, "at": 0, "value": "zero"}, or {"part": "mlp",
        "layer": 5, "value": "mean"}; a value is "zero", "mean" (over the positions of the text) or
        "other" (what the second text has there). A head is changed in attn.z, an MLP in mlp.out, a
        position in the residual stream in front of the layer. `.append(token)`, `.sample()`;
        `.code()` gives the Python that computes what is shown; `.save("page.html")` a file.
        `.update(log)` shows the curve of a run that goes on, and the model that is trained with its
        weights of now; `.watch(directory)` the curve of one in another process.

    Raises
    ------
    ImportError
        The package anywidget is missing.
    ValueError, TypeError
        As of `look`.
    """
    try:
        from simdformer.interpret.explorer.widget import Explorer
    except ImportError as error:
        raise ImportError(
            f"explore: a widget needs the package anywidget ({error}); pip install "
            "simdformer[notebook], or use look, which needs nothing"
        ) from None
    return Explorer(
        Exploration(model, text, other, target=target, against=against, max_tokens=max_tokens)
    )
