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

from simdformer.models.communicator import Communicator
from simdformer.types import Array

__all__ = ["GradientTree", "share_of_rank"]

PIECE = 1 << 22  # numbers that ranks exchange at a time


def share_of_rank(micro_batches: int, ranks: Communicator) -> range:
    """The numbers of this rank's micro-batches. ValueError: the tree has no node for them."""
    share, left = divmod(micro_batches, ranks.size)
    if left or share & (share - 1) or not share:
        better = ranks.size * 2 ** max(share.bit_length() - 1, 0)
        raise ValueError(
            f"train: {micro_batches} micro-batches are dealt to {ranks.size} ranks, needs 1, 2, 4, "
            f"8 ... for each; give --micro-batches {better}"
        )
    return range(ranks.rank * share, (ranks.rank + 1) * share)


class GradientTree:
    """Adds up gradients of parameters, one micro-batch after the other. Its memory is that of
    log2(micro-batches) + 1 gradients, kept from step to step."""

    def __init__(self, parameters: Mapping[str, Array]) -> None:
        self.shapes = {name: array.shape for name, array in parameters.items()}
        self.size = sum(array.size for array in parameters.values())
        self.free: list[Array] = []
        self.sums: list[tuple[int, Array]] = []  # how many micro-batches, and their sum

    def add(self, gradients: Mapping[str, Array]) -> None:
        """The gradients of the next micro-batch; parameters without one have zeros."""
        flat = self.free.pop() if self.free else np.empty(self.size, np.float32)
        for name, part in self.named(flat).items():
            given = gradients.get(name)
            part[...] = 0 if given is None else given
        count = 1
        while self.sums and self.sums[-1][0] == count:
            _, before = self.sums.pop()
            before += flat
            self.free.append(flat)
            count, flat = 2 * count, before
        self.sums.append((count, flat))

    def total(self, ranks: Communicator) -> dict[str, Array]:
        """The sum over all micro-batches of all ranks, by name; they are this object's memory, and
        hold until the next `add`."""
        _, flat = self.sums.pop()
        while self.sums:  # only where their number is no power of two
            _, before = self.sums.pop()
            before += flat
            self.free.append(flat)
            flat = before
        for begin in range(0, self.size if ranks.size > 1 else 0, PIECE):
            piece = flat[begin : begin + PIECE]
            piece[...] = ranks.all_reduce(piece, tree=True)
        self.free.append(flat)
        return self.named(flat)

    def named(self, flat: Array) -> dict[str, Array]:
        """The parts of a flat array under the parameters' names."""
        parts, begin = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            parts[name] = flat[begin : begin + size].reshape(shape)
            begin += size
        return parts
