"""Sums of gradients over micro-batches, in one order whatever the number of ranks.

The sums are a binary tree over the micro-batches' numbers:

    0   1   2   3   4   5   6   7
     0+1     2+3     4+5     6+7
         0..3            4..7
                 0..7

Each rank has as many neighbours as its share is: a node of the tree where that is a power of two.
Ranks then go on with the tree among themselves (`Communicator.all_reduce(tree=True)`), so that 1, 2
and 4 ranks add the same numbers in the same order and get the same bits.
"""

from collections.abc import Mapping

import numpy as np

from simdformer import _core
from simdformer.models.communicator import Communicator
from simdformer.types import Array

__all__ = ["PIECE", "GradientTree", "share_of_each", "share_of_rank"]

PIECE = 1 << 22  # numbers that ranks exchange at a time


def share_of_rank(micro_batches: int, ranks: Communicator) -> range:
    """The numbers of this rank's micro-batches. ValueError: the tree has no node for them."""
    share = share_of_each(micro_batches, ranks.size)
    return range(ranks.rank * share, (ranks.rank + 1) * share)


def share_of_each(micro_batches: int, ranks: int) -> int:
    """How many a rank has."""
    share, left = divmod(micro_batches, ranks)
    if left or share & (share - 1) or not share:
        better = ranks * 2 ** max(share.bit_length() - 1, 0)
        raise ValueError(
            f"train: {micro_batches} micro-batches are dealt to {ranks} ranks, needs 1, 2, 4, "
            f"8 ... for each; give --micro-batches {better}"
        )
    return share


class GradientTree:
    """Adds up gradients of parameters, one micro-batch after the other, in the memory that they
    come in: at most log2(micro-batches) + 1 of each are there at a time."""

    def __init__(self, parameters: Mapping[str, Array]) -> None:
        self.shapes = {name: array.shape for name, array in parameters.items()}
        self.sums: list[tuple[int, dict[str, Array]]] = []  # how many micro-batches, and their sum

    def add(self, gradients: Mapping[str, Array]) -> None:
        """The gradients of the next micro-batch, which are changed; parameters without one have
        zeros."""
        count = 1
        own = {
            name: gradients[name] if name in gradients else np.zeros(shape, np.float32)
            for name, shape in self.shapes.items()
        }
        while self.sums and self.sums[-1][0] == count:
            own = self.joined(self.sums.pop()[1], own)
            count *= 2
        self.sums.append((count, own))

    def joined(self, before: dict[str, Array], behind: Mapping[str, Array]) -> dict[str, Array]:
        for name, array in before.items():
            _core.add_to(array, behind[name])
        return before

    def total(self, ranks: Communicator) -> dict[str, Array]:
        """The sum over all micro-batches of all ranks, by name."""
        _, total = self.sums.pop()
        while self.sums:  # only where their number is no power of two
            total = self.joined(self.sums.pop()[1], total)
        return total if ranks.size == 1 else self.exchanged(total, ranks)

    def exchanged(self, total: Mapping[str, Array], ranks: Communicator) -> dict[str, Array]:
        """Over all ranks: as one array, because each message takes its time."""
        flat = np.concatenate([total[name].reshape(-1) for name in self.shapes])
        for begin in range(0, len(flat), PIECE):
            piece = flat[begin : begin + PIECE]
            piece[...] = ranks.all_reduce(piece, tree=True)
        parts, begin = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            parts[name] = flat[begin : begin + size].reshape(shape)
            begin += size
        return parts
