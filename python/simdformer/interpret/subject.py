"""What every function here begins with: a model, and the ids and tokens of a text."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simdformer.arguments import as_array, shown
from simdformer.models.observer import Edit
from simdformer.models.progress import Progress
from simdformer.models.trace import Trace
from simdformer.models.transformer import Transformer
from simdformer.types import Array

__all__ = [
    "Subject",
    "Target",
    "check_model",
    "counting_layers",
    "read_model",
    "read_subject",
    "read_target",
    "token_text",
]

Target = str | int


@dataclass(frozen=True)
class Subject:
    """A transformer, one text as ids (L,), and a piece of text for each id (ids without a tokenizer
    are their own text).

    trainable : what has the loss and its gradients, where the model is one that is trained
    """

    function: str
    transformer: Transformer
    tokenizer: Any
    ids: Array
    tokens: list[str]
    trainable: Any = None

    def run(
        self, names: str | Iterable[str], edit: Mapping[str, Edit] | None = None
    ) -> tuple[Array, Trace]:
        """The logits (L,V) and a trace of the text, read behind a progress bar."""
        layers = self.transformer.config.num_layers
        with Progress(f"{self.function}: reading", layers, unit="layer") as progress:
            every = {**counting_layers(progress), **(edit or {})}
            return self.transformer.run_with_cache(self.ids, names, edit=every)

    def run_from(
        self, layer: int, trace: Trace, names: Iterable[str], edit: Mapping[str, Edit]
    ) -> tuple[Array, Trace]:
        """The same from a layer on, of a trace of the text without the edits."""
        layers = self.transformer.config.num_layers - layer
        with Progress(f"{self.function}: reading", layers, unit="layer") as progress:
            every = {**counting_layers(progress), **edit}
            return self.transformer.run_from(layer, trace, names, edit=every)


def counting_layers(progress: Progress, texts: int = 1) -> dict[str, Callable[[Array], None]]:
    """An edit that changes nothing and tells of each layer that is done, for so many texts."""
    return {"layers.*.resid_post": lambda _: progress.advance(texts)}


def check_model(function: str, model: Any) -> None:
    """TypeError for what is no model, the name of one for instance."""
    is_trained = hasattr(model, "loss_and_gradients")
    if not is_trained and not isinstance(getattr(model, "transformer", model), Transformer):
        raise TypeError(
            f"{function}: model is {shown(model)}, needs a model, as from_pretrained gives it"
        )


def read_model(function: str, model: Any) -> Transformer:
    """What computes in a model; one that is trained reads with its weights of now."""
    check_model(function, model)
    reads = model.language_model() if hasattr(model, "loss_and_gradients") else model
    transformer: Transformer = getattr(reads, "transformer", reads)
    return transformer


def read_subject(function: str, model: Any, text: Any) -> Subject:
    """TypeError for what is neither text nor ids, ValueError for no ids, or more than one text."""
    trainable = model if hasattr(model, "loss_and_gradients") else None
    transformer = read_model(function, model)
    tokenizer = getattr(model, "tokenizer", None)
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError(
                f"{function}: text needs a tokenizer, and this model has none; give ids"
            )
        text = tokenizer.encode(text)
    ids = as_array(function, "text", text)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.size == 0:
        raise TypeError(
            f"{function}: text is {ids.dtype} of shape {ids.shape}, needs one text, or its ids "
            "(L,) with L >= 1"
        )
    tokens = [token_text(tokenizer, int(id)) for id in ids]
    return Subject(function, transformer, tokenizer, ids, tokens, trainable)


def token_text(tokenizer: Any, id: int) -> str:
    """The text of one id by itself; the id where there is no tokenizer."""
    return str(id) if tokenizer is None else str(tokenizer.to_str_tokens([id])[0])


def read_target(subject: Subject, name: str, target: Any) -> int:
    """An id of the vocabulary: itself, or the one token that a text is."""
    vocab_size = subject.transformer.config.vocab_size
    if isinstance(target, int | np.integer) and not isinstance(target, bool):
        if not 0 <= target < vocab_size:
            raise IndexError(
                f"{subject.function}: {name} is {target}, needs an id from 0 to {vocab_size - 1}"
            )
        return int(target)
    if not isinstance(target, str):
        raise TypeError(
            f"{subject.function}: {name} is {shown(target)}, needs a token: its text or its id"
        )
    if subject.tokenizer is None:
        raise ValueError(
            f"{subject.function}: {name} is text, and this model has no tokenizer; give an id"
        )
    ids = subject.tokenizer.encode(target, bos=False)
    if len(ids) != 1:
        pieces = [token_text(subject.tokenizer, id) for id in ids]
        raise ValueError(
            f"{subject.function}: {name} {target!r} is {len(ids)} tokens, {pieces}, needs one: "
            "mind the space in front, or give an id"
        )
    return int(ids[0])
