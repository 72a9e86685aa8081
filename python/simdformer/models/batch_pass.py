"""One forward pass over many texts at once: a few new ids of each, whose pages are in one cache."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simdformer.functional import RopeFrequencies
from simdformer.models.forward_pass import Attending, ByLength, Integers, by_length
from simdformer.models.observer import See, unseen
from simdformer.models.paged_cache import PagedKVCache, PagedSequence, write_spans
from simdformer.types import Array

__all__ = ["BatchPass", "Piece"]


class Piece(NamedTuple):
    """New ids of a sequence. `shared`: later texts may begin with the pages that they fill.
    `one_by_one`: each attends for itself, with the bits of an id that is read alone."""

    sequence: PagedSequence
    ids: Sequence[int]
    shared: bool = True
    one_by_one: bool = False


class BatchPass:
    """The new ids of several sequences, one behind the other: `ids` (1,T) at `positions` (1,T).

    What a sequence gets are the same bits in any company. `answers` (rows,) says which of the T
    want logits, the last of each piece or all of one that is read one by one, and `parts` which of
    those rows belong to each piece, in the order given.
    """

    start = None  # at the embeddings

    def __init__(self, cache: PagedKVCache, pieces: Sequence[Piece]) -> None:
        alone = [piece.one_by_one or len(piece.ids) == 1 for piece in pieces]
        order = sorted(range(len(pieces)), key=lambda at: not alone[at])
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
        self._starts, self._ends = starts, ends
        long = [piece.sequence.long for piece in self.pieces]
        self._long = long[0] if len(set(long)) == 1 else np.repeat(long, counts)[None]

        wanted: list[Integers] = []
        rows = 0
        self.parts = [slice(0)] * len(pieces)
        for at, piece, end in zip(order, self.pieces, ends, strict=True):
            own = len(piece.ids) if piece.one_by_one else 1
            wanted.append(np.arange(end - own, end))
            self.parts[at] = slice(rows, rows + own)
            rows += own
        self.answers: Integers = np.concatenate(wanted)

        widest = max(len(piece.sequence.pages) for piece in self.pieces)
        table: Integers = np.zeros((len(pieces), widest), np.int64)
        for row, piece in zip(table, self.pieces, strict=True):
            row[: len(piece.sequence.pages)] = piece.sequence.pages
        self._table: Integers = table[np.repeat(np.arange(len(pieces)), counts)]  # of every id
        self._alone = sum(alone)  # so many pieces, the first, attend id by id
        self._ids_alone = n = int(ends[self._alone - 1]) if self._alone else 0
        pages, self._slots = np.divmod(self.positions[0, :n], cache.page_size)
        self._pages: Integers = self._table[np.arange(n), pages]
        self._spans = [
            list(piece.sequence.spans(len(piece.ids))) for piece in self.pieces[self._alone :]
        ]

    def at(self, layer: int | None = None) -> See:
        """Nobody looks on."""
        return unseen

    def by_length(self, rotated: Callable[[RopeFrequencies], Array], tables: ByLength) -> Array:
        """rotated(table) (1,T,H,D), each id by the table for the length of its text."""
        return by_length(self._long, rotated, tables)

    def attending(self, layer: int, q: Array, k: Array, v: Array, z: Array) -> Iterator[Attending]:
        """Writes k and v (1,T,K,D) into the pages; then who attends together, q and z (1,T,H,D)."""
        keys, values = self.cache.key_pages(layer), self.cache.value_pages(layer)
        n = self._ids_alone
        if n:
            keys[self._pages, :, self._slots] = k[0, :n]
            values[self._pages, :, self._slots] = v[0, :n]
            positions = self.positions[0, :n]
            yield Attending(
                q[0, :n, :, None],
                keys,
                values,
                positions,
                z[0, :n, :, None],
                self._table[:n],
                positions + 1,
            )
        for at, spans in enumerate(self._spans, self._alone):
            first, end = self._ends[at - 1] if at else 0, self._ends[at]
            write_spans(keys, spans, k[0, first:end].swapaxes(0, 1))
            write_spans(values, spans, v[0, first:end].swapaxes(0, 1))
            yield Attending(
                q[0, first:end].swapaxes(0, 1),
                keys,
                values,
                int(self._starts[at]),
                z[0, first:end].swapaxes(0, 1),
                self._table[first],
                int(self._starts[at] + end - first),
            )

    def advance(self) -> None:
        """Counts the new positions of all sequences as filled."""
        for piece in self.pieces:
            piece.sequence.advance(piece.ids, shared=piece.shared)
