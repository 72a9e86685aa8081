"""A model in parts: what each of several ranks holds of it, and how parts become whole again.

Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053: a rank holds some heads with their rows of wq,
wk, wv and columns of wo, and some columns of the MLP, so that each of attention and MLP is one sum
over ranks; it also holds some experts of a mixture, and rows of embedding and lm_head. Norms,
routers and biases that come behind a sum are everywhere, but only rank 0 adds the biases.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simdformer.functional import embedding
from simdformer.models.communicator import Communicator
from simdformer.models.config import ModelConfig
from simdformer.models.packing import Matrix
from simdformer.models.tensors import AnyTensor, cut
from simdformer.models.weight_table import axis, expert_of, weight_rows
from simdformer.types import Array, DTypeLike

__all__ = ["Part", "Ranks", "Split", "deal", "tensors_of"]

Split = Literal["heads", "kv_heads", "inner", "shared_inner", "vocabulary"]
ROWS = 16  # that are packed together: a cut elsewhere would leave some of them empty
Q_WIDTH, KV_WIDTH, INNER, SHARED_INNER = axis("HD"), axis("KD"), axis("I"), axis("J")
HEADS, VOCABULARY = axis("H"), axis("V")


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank holds: which heads, key/value heads (several ranks may hold the same), columns
    of the MLP and of the shared MLP, rows of the vocabulary, and experts."""

    heads: range
    kv_heads: range
    inner: range
    shared_inner: range
    vocabulary: range
    experts: range

    @classmethod
    def whole(cls, config: ModelConfig) -> "Part":
        """That of a process alone."""
        return cls(
            heads=range(config.num_heads),
            kv_heads=range(config.num_kv_heads),
            inner=range(config.intermediate_size),
            shared_inner=range(config.shared_intermediate_size),
            vocabulary=range(config.vocab_size),
            experts=range(config.num_experts),
        )

    def along(self, axis: str, head_dim: int) -> range | None:
        """What of an axis of a tensor the rank holds; None: all of it."""
        if axis in (Q_WIDTH, KV_WIDTH):
            held = self.heads if axis == Q_WIDTH else self.kv_heads
            return range(held.start * head_dim, held.stop * head_dim)
        dealt = {INNER: self.inner, SHARED_INNER: self.shared_inner}
        return (dealt | {VOCABULARY: self.vocabulary, HEADS: self.heads}).get(axis)


class Ranks:
    """A communicator, and the part of the model that each of its ranks holds."""

    def __init__(self, communicator: Communicator, parts: Sequence[Part]) -> None:
        self.communicator, self.parts = communicator, parts
        self.own = parts[communicator.rank]

    @property
    def size(self) -> int:
        return self.communicator.size

    def place_of_experts(self, ids: Array) -> Array:
        """Where experts stand among those that are here: no place at all where others hold them."""
        return ids - self.own.experts.start if self.size > 1 else ids

    def all_reduce(self, x: Array) -> Array:
        """The sum over what all ranks computed: see `Communicator.all_reduce`."""
        return self.communicator.all_reduce(x)

    def all_gather(self, x: Array, split: Split, axis: int) -> Array:
        """An array of which every rank has its part along an axis, whole."""
        if self.size == 1:
            return x
        axis = range(x.ndim)[axis]
        held: list[range] = [getattr(part, split) for part in self.parts]
        front, back = x.shape[:axis], x.shape[axis + 1 :]
        pieces = self.communicator.all_gather(x, [(*front, len(one), *back) for one in held])
        whole: Array = np.empty((*front, max(one.stop for one in held), *back), x.dtype)
        for one, piece in zip(held, pieces, strict=True):
            whole[(slice(None),) * axis + (slice(one.start, one.stop),)] = piece
        return whole

    def part(self, x: Array, split: Split, axis: int) -> Array:
        """The own part of a whole array."""
        if self.size == 1:
            return x
        held: range = getattr(self.own, split)
        return x[(slice(None),) * range(x.ndim)[axis] + (slice(held.start, held.stop),)]

    def embedding(self, ids: Array, weight: Matrix, dtype: DTypeLike) -> Array:
        """The rows ids (...) of a matrix (V,E) of which every rank has some: (...,E)."""
        if self.size == 1:
            return embedding(ids, weight, dtype=dtype)
        own, vocabulary = self.own.vocabulary, max(part.vocabulary.stop for part in self.parts)
        if outside := ids[(ids < 0) | (ids >= vocabulary)].tolist():
            raise IndexError(
                f"embedding: ids holds {outside[0]}, needs ids from 0 to {vocabulary - 1}"
            )
        here = (ids >= own.start) & (ids < own.stop)
        rows: Array = np.zeros((*ids.shape, weight.shape[1]), dtype)
        rows[here] = embedding(ids[here] - own.start, weight, dtype=dtype)
        return self.all_reduce(rows)


# ---- dealing -------------------------------------------------------------------------------------


def deal(config: ModelConfig, block: Callable[[str], int], size: int) -> list[Part]:
    """The parts of `size` ranks, as even as may be. Quantised matrices are cut between blocks:
    `block(name)` says how many inputs of a matrix stay together, see `block_of`.

    ValueError: there are not as many heads or experts.
    """
    if size == 1:
        return [Part.whole(config)]
    blocks: dict[str, int] = {}
    for name, row in weight_rows(config).items():
        if len(row.axes) == 2:
            blocks[row.axes[1]] = math.lcm(blocks.get(row.axes[1], 1), block(name))
    heads = deal_heads(config, size, blocks[Q_WIDTH])
    if config.num_experts and size > config.num_experts:
        raise ValueError(
            f"model: found {size} ranks, needs at most {config.num_experts}, the experts of a layer"
        )
    inner = pieces(config.intermediate_size, size, blocks.get(INNER, 1))
    shared = pieces(config.shared_intermediate_size, size, blocks.get(SHARED_INNER, 1))
    vocabulary = pieces(config.vocab_size, size)
    experts = evenly(config.num_experts, size)
    return [
        Part(*both, *others)
        for both, *others in zip(heads, inner, shared, vocabulary, experts, strict=True)
    ]


def evenly(count: int, size: int) -> Iterator[range]:
    """`count` things in a row among `size` ranks; the first ones get one more."""
    each, more = divmod(count, size)
    start = 0
    for rank in range(size):
        stop = start + each + (rank < more)
        yield range(start, stop)
        start = stop


def pieces(length: int, size: int, block: int = 1) -> list[range]:
    """An axis, cut at multiples of the block, and of ROWS where that leaves something for all."""
    unit = math.lcm(block, ROWS) if length >= math.lcm(block, ROWS) * size else block
    units = evenly(-(-length // unit), size)
    return [range(min(one.start * unit, length), min(one.stop * unit, length)) for one in units]


def deal_heads(config: ModelConfig, size: int, block: int) -> list[tuple[range, range]]:
    """The heads and key/value heads of each rank: of whole groups, or, where there are fewer than
    ranks, of a piece of one. `block` inputs of wo stay together. ValueError: it cannot be done."""
    for most in range(size, 0, -1):
        if dealt := heads_of(config, most, block):
            if most == size:
                return dealt
            break
    held = f"; wo is quantised in blocks of {block}" if block > 1 else ""
    raise ValueError(
        f"model: found {size} ranks, needs at most {most}: {config.num_heads} heads, in "
        f"{config.num_kv_heads} groups that share keys and values, do not reach further{held}"
    )


def heads_of(config: ModelConfig, size: int, block: int) -> list[tuple[range, range]]:
    """The same; [] where it cannot be done."""
    group = config.num_heads // config.num_kv_heads
    step = math.lcm(block, config.head_dim) // config.head_dim  # heads whose columns stay together
    whole = math.lcm(group, step)
    if config.num_heads % whole == 0 and config.num_heads // whole >= size:
        dealt = [multiplied(one, whole) for one in evenly(config.num_heads // whole, size)]
        return [(one, range(one.start // group, one.stop // group)) for one in dealt]
    shared = list(evenly(size, config.num_kv_heads))  # ranks of each key/value head
    if group % step or not 0 < len(shared[-1]) <= len(shared[0]) <= group // step:
        return []
    return [
        (range(number * group + one.start, number * group + one.stop), range(number, number + 1))
        for number, ranks in enumerate(shared)
        for one in (multiplied(dealt, step) for dealt in evenly(group // step, len(ranks)))
    ]


def multiplied(part: range, by: int) -> range:
    return range(part.start * by, part.stop * by)


def tensors_of(
    part: Part, config: ModelConfig, tensors: Mapping[str, AnyTensor], *, is_first: bool
) -> dict[str, AnyTensor]:
    """What a rank holds, cut out of the whole tensors without reading them."""
    own: dict[str, AnyTensor] = {}
    for name, row in weight_rows(config).items():
        expert = expert_of(name)
        if expert is not None and expert not in part.experts:
            continue
        if row.mark == "once" and not is_first:
            continue
        own[name] = tensors[name]
        for at, along in enumerate(row.axes if row.mark != "whole" else ()):
            held = part.along(along, config.head_dim)
            if held is not None:
                own[name] = cut(own[name], at, held)
    return own


def config_of(part: Part, config: ModelConfig) -> ModelConfig:
    """The config of what a rank holds: its numbers of heads."""
    return replace(config, num_heads=len(part.heads), num_kv_heads=len(part.kv_heads))
