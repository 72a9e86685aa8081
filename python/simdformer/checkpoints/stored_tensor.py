"""Tensors as they lie in files: numbers with strides, and blocks of few bits."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simdformer.checkpoints.files import InputFile
from simdformer.models.tensors import LazyTensor, QuantizedTensor
from simdformer.quantization.types import quantization_types
from simdformer.types import Array

__all__ = ["BlockTensor", "StoredTensor"]


@dataclass(frozen=True, slots=True)
class StoredTensor(LazyTensor):
    """Numbers in a file, from byte `offset` on. Strides count elements and are not negative.
    Whoever makes one has checked that it lies in the file."""

    file: InputFile
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    @classmethod
    def dense(
        cls,
        file: InputFile,
        name: str,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> "StoredTensor":
        """One whose elements follow each other."""
        strides = [1]
        for length in reversed(shape[1:]):
            strides.append(strides[-1] * length)
        return cls(file, name, offset, shape, dtype, tuple(reversed(strides[: len(shape)])))

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def span(self) -> int:
        """The bytes from the first element to behind the last: what is read."""
        steps = zip(self.shape, self.strides, strict=True)
        return (1 + sum((n - 1) * stride for n, stride in steps)) * self.dtype.itemsize

    @property
    def by_rows(self) -> bool:
        """Whether the first axis is the slowest."""
        return self.strides[:1] >= (max(self.strides, default=0),)

    @property
    def T(self) -> "StoredTensor":
        """The axes the other way round."""
        return replace(self, shape=self.shape[::-1], strides=self.strides[::-1])

    def rows(self, start: int, stop: int) -> "StoredTensor":
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        offset = self.offset + start * self.strides[0] * self.dtype.itemsize
        shape = (stop - start, *self.shape[1:])
        return replace(self, offset=offset, shape=shape)

    def columns(self, start: int, stop: int) -> "StoredTensor":
        rows, _, *others = self.shape
        offset = self.offset + start * self.strides[1] * self.dtype.itemsize
        return replace(self, offset=offset, shape=(rows, stop - start, *others))

    def entry(self, index: int) -> "StoredTensor":
        """One entry of the first axis."""
        one = self.rows(index, index + 1)
        return replace(one, shape=one.shape[1:], strides=one.strides[1:])

    def as_row(self) -> "StoredTensor":
        """A vector as a matrix of one row."""
        return replace(self, shape=(1, *self.shape), strides=(1, *self.strides))

    def _read(self, dtype: np.dtype[Any]) -> Array:
        if self.size == 0 or not self.shape:
            memory = self.file.read_array(self.offset, self.nbytes)
            return np.ndarray(self.shape, self.dtype, buffer=memory).astype(dtype)
        # Along the slowest axis there may be gaps, as in a part, or in every second row.
        slowest = self.strides.index(max(self.strides))
        strides = [stride * self.dtype.itemsize for stride in self.strides]
        each = replace(self, shape=(*self.shape[:slowest], 1, *self.shape[slowest + 1 :]))
        memory, strides[slowest] = self.file.read_pieces(
            self.offset, each.span, strides[slowest], self.shape[slowest]
        )
        array: Array = np.ndarray(self.shape, self.dtype, buffer=memory, strides=strides)
        return array.astype(dtype, copy=False)


@dataclass(frozen=True, slots=True)
class BlockTensor(QuantizedTensor):
    """One in blocks of a type of GGUF: its bytes (..., bytes of a row)."""

    bytes: StoredTensor
    type: str

    @property
    def parts(self) -> tuple[StoredTensor]:
        return (self.bytes,)

    @property
    def shape(self) -> tuple[int, ...]:
        kind = quantization_types()[self.type]
        return (*self.bytes.shape[:-1], self.bytes.shape[-1] // kind.nbytes * kind.block)

    @property
    def span(self) -> int:
        """The bytes in the file."""
        return self.bytes.span

    @property
    def by_rows(self) -> bool:
        return self.bytes.by_rows

    def rows(self, start: int, stop: int) -> "BlockTensor":
        return BlockTensor(self.bytes.rows(start, stop), self.type)

    def columns(self, start: int, stop: int) -> "BlockTensor":
        kind = quantization_types()[self.type]
        first, last = (at // kind.block * kind.nbytes for at in (start, stop))
        return BlockTensor(self.bytes.columns(first, last), self.type)

    def entry(self, index: int) -> "BlockTensor":
        """One entry of the first of several axes."""
        return BlockTensor(self.bytes.entry(index), self.type)

    def as_row(self) -> "BlockTensor":
        """A vector as a matrix of one row."""
        return BlockTensor(self.bytes.as_row(), self.type)

    def blocks(self) -> Array:
        blocks: Array = np.ascontiguousarray(np.asarray(self.bytes))
        return blocks
