"""How well a model predicts a text: the negative log-likelihood of each token, and perplexity."""

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from simdformer.arguments import read_whole
from simdformer.models.progress import Progress
from simdformer.models.transformer import Transformer
from simdformer.types import Array

__all__ = ["Losses", "Perplexity", "perplexity", "token_losses"]

CHUNK = 256  # ids whose logits are held at a time
DARKEST = 10.0  # nats


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean loss in nats; `error` is its standard error, taking the losses of `count`
    tokens for independent."""

    value: float
    error: float
    count: int


class Losses(np.ndarray[Any, np.dtype[np.float64]]):
    """Losses (L-1,) of the `tokens` that they belong to, those of a text but its first. Jupyter
    shows the tokens, the darker the less the model expected them. What is computed from it is an
    array like any other."""

    tokens: list[str] | None = None

    @classmethod
    def of(cls, losses: Array, tokens: Sequence[str]) -> Self:
        labelled = losses.view(cls)
        labelled.tokens = list(tokens)
        return labelled

    def __array_wrap__(self, array: Array, *_: Any, **__: Any) -> Any:
        return np.asarray(array)[()]

    def _repr_html_(self) -> str | None:
        """The tokens with their losses; None for a part of them, which is shown as an array."""
        if self.tokens is None:
            return None
        spans = [
            f'<span title="{loss:.3f} nats, probability {math.exp(-loss):.2g}" style="background:'
            f'rgba(208,72,40,{min(loss / DARKEST, 1) * 0.7:.2f})">{html.escape(token)}</span>'
            for token, loss in zip(self.tokens, self.tolist(), strict=True)
        ]
        mean = (
            f"<div>{len(spans)} tokens, {float(np.mean(self)):.3f} nats each</div>" if spans else ""
        )
        return (
            f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(spans)}</div>{mean}'
        )


def token_losses(model: Transformer, ids: Sequence[int], progress: Progress | None = None) -> Array:
    """-log p(ids[i + 1] | ids[:i + 1]) in nats: (L-1,) float64. Logits are held of CHUNK ids at a
    time; a cache holds what was read. `progress` is told how many were."""
    if len(ids) > (most := model.config.max_seq_len):
        raise ValueError(
            f"loss: text has {len(ids)} ids, needs at most max_seq_len = {most}; read a "
            "longer one in windows, as `simdformer eval` does"
        )
    losses = np.empty(max(len(ids) - 1, 0))
    cache = model.new_cache(max(len(ids), 1))
    for begin in range(0, len(losses), CHUNK):
        read = np.asarray(ids[begin : min(begin + CHUNK, len(losses))])
        logits = model(read, cache).astype(np.float64)
        following = np.asarray(ids[begin + 1 : begin + 1 + len(read)])
        own = np.take_along_axis(logits, following[:, None], -1)[:, 0]
        most = logits.max(-1)
        total = np.log(np.exp(logits - most[:, None]).sum(-1))
        losses[begin : begin + len(read)] = total + most - own
        if progress is not None:
            progress.advance(len(read))
    return losses


def windows(length: int, size: int, stride: int, first: int = 1) -> Iterator[tuple[int, int, int]]:
    """Pieces of a text: (begin, end, first token whose loss counts), each token counted once.

    >>> list(windows(10, 6, 3))
    [(0, 6, 1), (3, 9, 6), (6, 10, 9)]
    """
    counted = first
    for begin in range(0, length, stride):
        end = min(begin + size, length)
        if end > counted:
            yield begin, end, counted
        counted = max(counted, end)
        if end == length:
            return


def perplexity(
    model: Transformer,
    ids: Sequence[int],
    *,
    window: int | None = None,
    stride: int | None = None,
    bos_id: int | None = None,
) -> Perplexity:
    """The perplexity of a text of any length, read in windows that overlap.

    window : int, optional
        Ids that are read at a time; None: max_seq_len.
    stride : int, optional
        By how much a window is further than the one before; None: half a window. Every token is
        counted once, with at least window - stride tokens before it.
    bos_id : int, optional
        What stands in front of every window, where the model is used to it.

    ValueError: fewer than two ids, a window longer than max_seq_len, a stride that is not shorter
    than the window.
    """
    front = [] if bos_id is None else [bos_id]
    most = model.config.max_seq_len
    size = read_whole("perplexity", "window", most if window is None else window)
    step = read_whole("perplexity", "stride", max(size // 2, 1) if stride is None else stride)
    if size > most:
        raise ValueError(
            f"perplexity: window is {size}, needs at most max_seq_len = {most}; load the model "
            "with a larger max_seq_len"
        )
    if step >= size:
        raise ValueError(
            f"perplexity: stride is {step}, needs less than the window of {size}, so that "
            "every token has one before it"
        )
    text = list(ids[1:]) if front and list(ids[:1]) == front else list(ids)
    if len(front) + len(text) < 2:
        raise ValueError(f"perplexity: the text has {len(ids)} ids, needs at least two")
    losses = []
    pieces = list(windows(len(text), size - len(front), step, 1 - len(front)))
    to_read = sum(len(front) + end - begin - 1 for begin, end, _ in pieces)
    with Progress("eval", to_read, unit="token") as progress:
        for begin, end, counted in pieces:
            found = token_losses(model, [*front, *text[begin:end]], progress)
            losses.append(found[len(front) + counted - 1 - begin :])
    every = np.concatenate(losses)
    mean = float(every.mean())
    error = float(every.std(ddof=1)) / math.sqrt(len(every)) if len(every) > 1 else math.nan
    value = math.exp(min(mean, 700.0))  # more is more than float64 holds
    return Perplexity(value, value * error, len(every))
