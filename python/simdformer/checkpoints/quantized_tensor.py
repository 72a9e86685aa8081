"""A tensor in a file whose elements are quantised: blocks of few bits."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simdformer.checkpoints.checkpoint import StoredTensor
from simdformer.quantization.types import quantization_types
from simdformer.quantization.weight import QuantizedWeight
from simdformer.types import Array

__all__ = ["QuantizedTensor"]

AT_ONCE = 1 << 20  # elements that are taken out of their blocks at a time


@dataclass(frozen=True, slots=True)
class QuantizedTensor(StoredTensor):
    """Rows of whole blocks of a `type`, one behind the other. `np.asarray` gives their values, and
    `blocks` the bytes as they are; shape, dtype and strides are those of the values."""

    type: str

    @property
    def row_bytes(self) -> int:
        """Of the elements along the last axis."""
        return self.bytes_of(self.shape[-1])

    def bytes_of(self, elements: int) -> int:
        """Of so many that follow each other."""
        kind = quantization_types()[self.type]
        return elements // kind.block * kind.nbytes

    @property
    def span(self) -> int:
        """The bytes in the file."""
        return math.prod(self.shape[:-1]) * self.row_bytes

    @property
    def packed_nbytes(self) -> int:
        """What a matrix takes in memory as a QuantizedWeight."""
        return QuantizedWeight._size_of(self.type, *self.shape)

    def rows(self, start: int, stop: int) -> "QuantizedTensor":
        """The part [start:stop] along the first of several axes."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        offset = self.offset + start * self.bytes_of(self.strides[0])
        return replace(self, offset=offset, shape=(stop - start, *self.shape[1:]))

    def columns(self, start: int, stop: int) -> "QuantizedTensor":
        """The part [start:stop] along the second of two axes: whole blocks."""
        offset = self.offset + self.bytes_of(start)
        return replace(self, offset=offset, shape=(self.shape[0], stop - start))

    def blocks(self) -> npt.NDArray[np.uint8]:
        """The bytes, (..., bytes of a row)."""
        return self._blocks_of(0, math.prod(self.shape[:-1])).reshape(*self.shape[:-1], -1)

    def _blocks_of(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Those of `count` rows, (count, bytes of a row)."""
        step = self.bytes_of(self.strides[-2]) if self.ndim > 1 else self.row_bytes
        at = self.offset + first * step
        memory, step = self.file.read_pieces(at, self.row_bytes, step, count)
        rows = np.ndarray((count, self.row_bytes), np.uint8, buffer=memory, strides=(step, 1))
        return np.ascontiguousarray(rows)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, /, *, copy: bool | None = None
    ) -> Array:
        if copy is False:
            raise ValueError("a tensor in a file cannot be had without a copy")
        values: Array = np.empty(self.shape, dtype or self.dtype)
        table = values.reshape(-1, self.shape[-1])
        step = max(1, AT_ONCE // max(self.shape[-1], 1))
        for start in range(0, len(table), step):
            part = table[start : start + step]
            blocks = self._blocks_of(start, len(part))
            few = QuantizedWeight.from_blocks(blocks, self.type, part.shape)
            part[...] = few.dequantize(part.dtype)
        return values
