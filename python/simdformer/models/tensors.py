"""What the weights of a model come from: arrays, quantised weights, and tensors in files, which are
read when somebody asks for them."""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from simdformer.functional import QuantizedWeight
from simdformer.quantization.types import quantization_types
from simdformer.types import Array

__all__ = [
    "AnyTensor",
    "CompositeTensor",
    "JoinedTensor",
    "LazyTensor",
    "Quantized",
    "QuantizedTensor",
    "Tensor",
    "bits_of",
    "block_of",
    "cut",
    "kind_of",
]

AT_ONCE = 1 << 20  # numbers that are taken out of their blocks at a time
SLICE = 64  # a QuantizedWeight holds a multiple of so many rows
GROUPS = re.compile(r"int(\d)_g(\d+)")  # a kind of quantised weight that is no type of GGUF's


@runtime_checkable
class Tensor(Protocol):
    """An ndarray, or what becomes one when `np.asarray` asks."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def nbytes(self) -> int: ...
    def __array__(self) -> Array: ...


class LazyTensor(ABC):
    """A tensor in a file: `np.asarray` reads it, and nothing is kept. `name` is what the file at
    `path` calls it."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...
        @property
        def path(self) -> str: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> np.dtype[Any]: ...

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array that `np.asarray` gives."""
        return self.size * self.dtype.itemsize

    @property
    def by_rows(self) -> bool:
        """Whether rows lie one behind the other in the file, so that a few are read quickly."""
        return False

    def rows(self, start: int, stop: int) -> Tensor:
        """The part [start:stop] along the first axis."""
        part: Array = np.asarray(self)[start:stop]
        return part

    def columns(self, start: int, stop: int) -> Tensor:
        """The part [start:stop] along the second axis; whole blocks of what is quantised."""
        part: Array = np.asarray(self)[:, start:stop]
        return part

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(
        self, dtype: np.dtype[Any] | None = None, /, *, copy: bool | None = None
    ) -> Array:
        if copy is False:
            raise ValueError("a tensor in a file cannot be had without a copy")
        return self._read(self.dtype if dtype is None else np.dtype(dtype))

    @abstractmethod
    def _read(self, dtype: np.dtype[Any]) -> Array:
        """The values as a new array."""


class CompositeTensor(LazyTensor):
    """One that is made of others, its `parts`: the first of them has its name, file and dtype."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def parts(self) -> tuple[Any, ...]: ...

    @property
    def name(self) -> str:
        return str(self.parts[0].name)

    @property
    def path(self) -> str:
        return str(self.parts[0].path)

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.parts[0].dtype
        return found


class QuantizedTensor(CompositeTensor):
    """One whose numbers have few bits; its dtype and `np.asarray` are those of their values."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def type(self) -> str: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    @property
    def packed_nbytes(self) -> int:
        """What the matrix takes in memory as a QuantizedWeight."""
        outputs, inputs = self.shape
        if self.type in quantization_types():
            return QuantizedWeight._size_of(self.type, outputs, inputs)
        return -(-outputs // SLICE) * SLICE * int(inputs * bits_of(self.type)) // 8

    def blocks(self) -> Array:
        """The bytes (..., bytes of a row) as GGUF has them, where it has the type."""
        raise ValueError(f"blocks: {self.name!r} is of type {self.type}, which GGUF does not have")

    def quantized(self) -> QuantizedWeight:
        """The same numbers as a QuantizedWeight, a row for each row along the last axis."""
        shape = math.prod(self.shape[:-1]), self.shape[-1]
        return QuantizedWeight.from_blocks(self.blocks(), self.type, shape)

    def _read(self, dtype: np.dtype[Any]) -> Array:
        step = len(self)
        if self.by_rows and self.ndim > 1:
            step = max(1, AT_ONCE * len(self) // max(self.size, 1))
        values: Array = np.empty(self.shape, dtype)
        for start in range(0, len(self), max(step, 1)):
            part: Any = self if step == len(self) else self.rows(start, start + step)
            values[start : start + step] = part.quantized().dequantize(dtype).reshape(part.shape)
        return values


Quantized = QuantizedWeight | QuantizedTensor
AnyTensor = Tensor | QuantizedWeight


@dataclass(frozen=True, slots=True)
class JoinedTensor(CompositeTensor):
    """Several tensors as one: side by side along `axis`, or each an entry of a new first axis
    (None)."""

    parts: tuple[Any, ...]
    axis: int | None = 0

    @property
    def shape(self) -> tuple[int, ...]:
        first = tuple(self.parts[0].shape)
        if self.axis is None:
            return len(self.parts), *first
        length = sum(part.shape[self.axis] for part in self.parts)
        return (*first[: self.axis], length, *first[self.axis + 1 :])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def by_rows(self) -> bool:
        return all(part.by_rows for part in self.parts)

    def rows(self, start: int, stop: int) -> "JoinedTensor":
        return self._piece(0, start, stop)

    def columns(self, start: int, stop: int) -> "JoinedTensor":
        return self._piece(1, start, stop)

    def _piece(self, axis: int, start: int, stop: int) -> "JoinedTensor":
        if self.axis is None and axis == 0:
            return JoinedTensor(self.parts[start:stop], None)
        along = axis if self.axis is not None else axis - 1
        if self.axis != axis:
            pieces = [cut(part, along, range(start, stop)) for part in self.parts]
            return JoinedTensor(tuple(pieces), self.axis)
        found, first = [], 0  # the place in all that is the part's first
        for part in self.parts:
            last = first + part.shape[axis]
            if start < last and first < stop:
                inside = range(max(start, first) - first, min(stop, last) - first)
                found.append(cut(part, axis, inside))
            first = last
        return JoinedTensor(tuple(found), axis)

    def _read(self, dtype: np.dtype[Any]) -> Array:
        whole: Array = np.empty(self.shape, dtype)
        start = 0
        for part in self.parts:
            stop = start + (1 if self.axis is None else part.shape[self.axis])
            place = (slice(None),) * (self.axis or 0) + (slice(start, stop),)
            whole[place] = part
            start = stop
        return whole


# ---- of any of them ------------------------------------------------------------------------------


def kind_of(tensor: AnyTensor) -> str:
    """What its numbers are: "float32", or "q4_k" where they are quantised."""
    return tensor.type if isinstance(tensor, Quantized) else str(tensor.dtype)


def block_of(kind: str) -> int:
    """How many inputs of a matrix of this kind stay together when it is cut: a block, where it is
    quantised."""
    if known := quantization_types().get(kind):
        return known.block
    groups = GROUPS.fullmatch(kind)
    return int(groups[2]) if groups else 1


def bits_of(kind: str) -> float:
    """The bits of a number of this kind; groups have scales and minimums, as those of AWQ and
    GPTQ."""
    if known := quantization_types().get(kind):
        return known.bits_per_weight
    if groups := GROUPS.fullmatch(kind):
        return int(groups[1]) + 64 / int(groups[2])
    return 8.0 * np.dtype(kind).itemsize


def cut(tensor: Any, axis: int, part: range) -> Any:
    """The part of a tensor along its first or second axis; nothing is read yet."""
    if len(part) == tensor.shape[axis]:
        return tensor
    if not part:
        return np.empty([0 if at == axis else n for at, n in enumerate(tensor.shape)], tensor.dtype)
    if isinstance(tensor, QuantizedWeight):
        return cut_weight(tensor, axis, part)
    if isinstance(tensor, LazyTensor):
        return (tensor.columns if axis else tensor.rows)(part.start, part.stop)
    return tensor[:, part.start : part.stop] if axis else tensor[part.start : part.stop]


def cut_weight(weight: QuantizedWeight, axis: int, part: range) -> QuantizedWeight:
    """Whole rows, or whole blocks of each row."""

    def piece(x: Array) -> Array:
        """A piece of (O, n), whose columns stand for the inputs in equal shares."""
        if axis == 0:
            return x[part.start : part.stop]
        share = part.start * x.shape[1], part.stop * x.shape[1]
        return x[:, share[0] // weight.shape[1] : share[1] // weight.shape[1]]

    if (kind := quantization_types().get(weight.type)) is None:
        minimums = weight.minimums
        return QuantizedWeight.from_groups(
            piece(weight.codes),
            piece(weight.scales),
            minimums=None if minimums is None else piece(minimums),
        )
    blocks = piece(weight.blocks())
    return QuantizedWeight.from_blocks(
        blocks, kind.name, (len(blocks), len(part) if axis else weight.shape[1])
    )
