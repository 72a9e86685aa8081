"""The logit lens: what the model would say if it stopped after a layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from simdformer.arguments import is_whole, read_whole, shown
from simdformer.experts import top_k
from simdformer.functional import softmax
from simdformer.interpret.subject import Subject, read_subject, read_target, token_text
from simdformer.models.observer import Edit
from simdformer.models.progress import Progress
from simdformer.types import Array

__all__ = ["LensCells", "LogitLens", "logit_lens"]

MOST_LOGITS = 2**24  # at a time: 64 MB


@dataclass(frozen=True)
class LogitLens:
    """What `logit_lens` gives. n layers, L positions, k = top.

    layers : list of int
        -1 is the embedding, i the residual stream behind layer i.
    tokens : list of str
        The text.
    ids, probabilities : (n,L,k)
        The likeliest next tokens, the likeliest first.
    words : nested lists (n,L,k) of str
        The same as text.
    target : (L,)
        The id that is followed at each position.
    rank, probability : (n,L)
        Those of the target: rank 0 is the most probable.
    """

    layers: list[int]
    tokens: list[str]
    ids: Array
    probabilities: Array
    words: list[list[list[str]]]
    target: Array
    rank: Array
    probability: Array

    def __repr__(self) -> str:
        """The last position, layer by layer."""
        lines = [f"logit lens behind {self.tokens[-1]!r}"]
        for at, layer in enumerate(self.layers):
            said = ", ".join(
                f"{word!r} {share:.0%}"
                for word, share in zip(
                    self.words[at][-1][:4], self.probabilities[at, -1], strict=False
                )
            )
            where = "embedding" if layer < 0 else f"layer {layer}"
            lines.append(f"  {where:<9}  rank {self.rank[at, -1]:>5}  {said}")
        return "\n".join(lines)


def logit_lens(
    model: Any,
    text: Any,
    *,
    layers: Sequence[int] | None = None,
    target: str | int | None = None,
    top: int = 10,
    edit: Mapping[str, Edit] | None = None,
) -> LogitLens:
    """What the model would say after each layer: the residual stream there through the final norm
    and the lm_head. nostalgebraist 2020, "interpreting GPT: the logit lens".

    Parameters
    ----------
    model : LanguageModel or Transformer
    text : str, or ids (L,)
    layers : numbers, optional
        Behind which layers; -1 is the embedding. None: all of them.
    target : token, optional
        Its text or id: which one to follow through the layers. None: at each position the one that
        the model says in the end.
    top : int
        How many of the likeliest tokens are kept.
    edit : dict of name or glob -> array or function, optional
        Changes activations on their way, see `run_with_cache`.

    Returns
    -------
    LogitLens

    Raises
    ------
    ValueError, TypeError, IndexError
        A layer that does not exist, a target that is not one token, text without a tokenizer.

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> lens = sf.logit_lens(model, "Mia has a red kite. What colour is the kite of Mia? It is")
    >>> lens.words[-1][-1][0], int(lens.rank[-1, -1])
    (' red', 0)
    """
    subject = read_subject("logit_lens", model, text)
    config = subject.transformer.config
    top = min(read_whole("logit_lens", "top", top), config.vocab_size)
    chosen = list(range(-1, config.num_layers)) if layers is None else list(layers)
    for layer in chosen:
        if not is_whole(layer, -1) or layer >= config.num_layers:
            raise ValueError(
                f"logit_lens: a layer is {shown(layer)}, needs numbers from -1 (the "
                f"embedding) to {config.num_layers - 1}"
            )
    chosen = [int(layer) for layer in chosen]
    logits, trace = subject.run([stream_name(layer) for layer in chosen], edit)
    if target is None:
        followed = logits.argmax(-1)
    else:
        followed = np.full(len(subject.ids), read_target(subject, "target", target))
    cells = LensCells(subject, trace, chosen, followed, top)
    cells.fill(range(len(subject.ids)))
    words = [
        [[token_text(subject.tokenizer, int(id)) for id in row] for row in of_layer]
        for of_layer in cells.ids
    ]
    return LogitLens(
        *(chosen, subject.tokens, cells.ids, cells.probabilities),
        *(words, followed, cells.rank, cells.probability),
    )


class LensCells:
    """The lens of a text that has been read, with `followed` (L,) as targets, cell by cell: each is
    a product with the whole last matrix, and is computed where it is asked for.

    known : (n,L) of bool
        What has been computed.
    ids, probabilities, rank, probability
        As of LogitLens; where nothing is known -1, 0, -1 and NaN.
    """

    def __init__(
        self,
        subject: Subject,
        trace: Mapping[str, Array],
        layers: list[int],
        followed: Array,
        top: int,
    ) -> None:
        self.layers, self.followed = layers, followed
        self._subject, self._trace = subject, trace
        shape = (len(layers), len(subject.ids))
        self.known = np.zeros(shape, bool)
        self.ids = np.full((*shape, top), -1, np.int64)
        self.probabilities = np.zeros((*shape, top), np.float32)
        self.rank = np.full(shape, -1, np.int64)
        self.probability = np.full(shape, np.nan, np.float32)

    def tell(self, rows: Any, positions: Any, logits: Array) -> None:
        """The logits (m,V) of m cells."""
        ids, every = top_k(logits, self.ids.shape[-1]), softmax(logits)
        followed = self.followed[positions][:, None]
        at = rows, positions
        self.ids[at], self.probabilities[at] = ids, np.take_along_axis(every, ids, -1)
        self.probability[at] = np.take_along_axis(every, followed, -1)[:, 0]
        self.rank[at] = (logits > np.take_along_axis(logits, followed, -1)).sum(-1)
        self.known[at] = True

    def fill(self, positions: Sequence[int], before: Self | None = None) -> None:
        """Computes what is not known at these positions, one after the other. `before` is the lens
        of another run of the same layers and targets: where a stream is the same, so is the cell.
        """
        at = np.asarray(positions, np.intp)
        streams = self._streams(at)
        if before is not None and before is not self:
            before.fill(positions)
            is_same = (streams == before._streams(at)).all(-1) & ~self.known[:, at]
            rows, columns = np.nonzero(is_same)
            for name in ("ids", "probabilities", "rank", "probability", "known"):
                getattr(self, name)[rows, at[columns]] = getattr(before, name)[rows, at[columns]]
        columns, rows = np.nonzero(~self.known[:, at].T)
        most = max(1, MOST_LOGITS // self._subject.transformer.config.vocab_size)
        with Progress("logit lens", len(rows), unit="cell") as progress:
            for begin in range(0, len(rows), most):
                some = slice(begin, begin + most)
                logits = self._subject.transformer.unembed(streams[rows[some], columns[some]])
                self.tell(rows[some], at[columns[some]], logits)
                progress.advance(len(logits))

    def _streams(self, at: Array) -> Array:
        """(n,m,E)"""
        return np.stack([self._trace[stream_name(layer)][at] for layer in self.layers])


def stream_name(layer: int) -> str:
    return "layers.0.resid_pre" if layer < 0 else f"layers.{layer}.resid_post"
