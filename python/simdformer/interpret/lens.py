"""The logit lens: what the model would say if it stopped after a layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simdformer.arguments import is_whole, read_whole, shown
from simdformer.functional import softmax
from simdformer.interpret.subject import Subject, read_subject, read_target, token_text
from simdformer.models.observer import Edit
from simdformer.models.progress import Progress
from simdformer.types import Array

__all__ = ["LogitLens", "lens_of", "logit_lens"]


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
    return lens_of(subject, trace, chosen, followed, top)


def lens_of(
    subject: Subject,
    trace: Mapping[str, Array],
    layers: list[int],
    followed: Array,
    top: int,
    known: tuple[Mapping[str, Array], LogitLens] | None = None,
) -> LogitLens:
    """The lens of a text that has been read, with `followed` (L,) as targets. `known` are another
    trace and its lens, of the same layers and targets: where a stream is the same, so is its lens.
    """
    shape = (len(layers), len(subject.ids))
    ids, shares = np.empty((*shape, top), np.int64), np.empty((*shape, top), np.float32)
    rank, probability = np.empty(shape, np.int64), np.empty(shape, np.float32)
    with Progress("logit lens", len(layers), unit="layer") as progress:
        for at, layer in enumerate(layers):
            stream = trace[stream_name(layer)]
            if known is not None and np.array_equal(stream, known[0][stream_name(layer)]):
                ids[at], shares[at] = known[1].ids[at], known[1].probabilities[at]
                rank[at], probability[at] = known[1].rank[at], known[1].probability[at]
                progress.advance(1)
                continue
            said = subject.transformer.unembed(stream)
            every = softmax(said)
            ids[at] = top_k(said, top)
            shares[at] = np.take_along_axis(every, ids[at], -1)
            probability[at] = np.take_along_axis(every, followed[:, None], -1)[:, 0]
            own = np.take_along_axis(said, followed[:, None], -1)
            rank[at] = (said > own).sum(-1)
            progress.advance(1)
    words = [[[token_text(subject.tokenizer, int(id)) for id in row] for row in one] for one in ids]
    return LogitLens(layers, subject.tokens, ids, shares, words, followed, rank, probability)


def stream_name(layer: int) -> str:
    return "layers.0.resid_pre" if layer < 0 else f"layers.{layer}.resid_post"


def top_k(logits: Array, count: int) -> Array:
    """The ids of the largest logits of each row, the largest first."""
    few = np.argpartition(logits, -count, axis=-1)[..., -count:]
    order = np.take_along_axis(logits, few, -1).argsort(-1)[..., ::-1]
    return np.take_along_axis(few, order, -1)
