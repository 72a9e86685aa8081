"""One forward pass over many texts at once: a few new ids of each, whose pages are in one cache."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simdformer.models.forward_pass import Attending, Integers
from simdformer.models.observer import See, unseen
from simdformer.models.paged_cache import PagedKVCache, PagedSequence
from simdformer.types import Array

__all__ = ["BatchPass", "Piece"]


class Piece(NamedTuple):
    """New ids of a sequence; whether later texts may share the pages that they fill."""

    sequence: PagedSequence
    ids: Sequence[int]
    shared: bool = True


class BatchPass:
    """The new ids of several sequences, one behind the other: `ids` (1,T) at `positions` (1,T).

    Sequences with a single new id stand first and attend together; the others each for themselves.
    What a sequence gets are the same bits in any company. `last` (sequences,) says which of the T
    is the last of each, in the order given.
    """

    def __init__(self, cache: PagedKVCache, pieces: Sequence[Piece]) -> None:
        order = sorted(range(len(pieces)), key=lambda at: len(pieces[at].ids) > 1)
        self.cache = cache
        self.pieces = [pieces[at] for at in order]
        for piece in self.pieces:
            piece.sequence.reserve(len(piece.ids))
        starts = np.array([piece.sequence.length for piece in self.pieces])
        counts = np.array([len(piece.ids) for piece in self.pieces])
        ends = np.cumsum(counts)
        self.ids: Integers = np.concatenate([piece.ids for piece in self.pieces])[None]
        offsets = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        self.positions: Integers = (np.repeat(starts, counts) + offsets)[None]
        self.last: Integers = np.empty(len(pieces), np.int64)
        self.last[order] = ends - 1

        self._single = int((counts == 1).sum())
        self._starts, self._lengths, self._ends = starts, starts + counts, ends
        widest = max(len(piece.sequence.pages) for piece in self.pieces)
        self._table: Integers = np.zeros((len(pieces), widest), np.int64)
        for row, piece in zip(self._table, self.pieces, strict=True):
            row[: len(piece.sequence.pages)] = piece.sequence.pages
        rows = np.repeat(np.arange(len(pieces)), counts)
        size = cache.page_size
        self._pages: Integers = self._table[rows, self.positions[0] // size]
        self._slots: Integers = self.positions[0] % size

    def at(self, layer: int | None = None) -> See:
        """Nobody looks on."""
        return unseen

    def attending(self, layer: int, q: Array, k: Array, v: Array, z: Array) -> Iterator[Attending]:
        """Writes k and v (1,T,K,D) into the pages; then who attends together, q and z (1,T,H,D)."""
        keys, values = self.cache.key_pages(layer), self.cache.value_pages(layer)
        keys[self._pages, :, self._slots] = k[0]
        values[self._pages, :, self._slots] = v[0]
        n = self._single
        if n:
            yield Attending(
                q[0, :n, :, None], keys, values, self._starts[:n], z[0, :n, :, None],
                self._table[:n], self._lengths[:n],
            )  # fmt: skip
        for at in range(n, len(self.pieces)):
            part = slice(self._ends[at - 1] if at else 0, self._ends[at])
            yield Attending(
                q[0, part].swapaxes(0, 1), keys, values, int(self._starts[at]),
                z[0, part].swapaxes(0, 1), self._table[at], int(self._lengths[at]),
            )  # fmt: skip

    def advance(self) -> None:
        """Counts the new positions of all sequences as filled."""
        for sequence, ids, shared in self.pieces:
            sequence.advance(ids, shared=shared)
