"""What is measured: an operation of certain sizes, its inputs, how much work it is, what is right.

A `Work` knows nothing of libraries. Contestants (ours, torch ...) are made from its inputs, and
what they give is compared with `expected`, a sample of the result in float64.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import ml_dtypes
import numpy as np

from simdformer import reference
from simdformer.types import Array

__all__ = [
    "TOLERANCE",
    "Dtype",
    "Inputs",
    "Unit",
    "Work",
    "numpy_dtype",
    "random_array",
    "relative_error",
    "spread",
]

Dtype = Literal["float32", "float16", "bfloat16"]
Unit = Literal["GFLOPS", "GB/s", "tok/s"]
Inputs = Mapping[str, Any]

# An RMS error above this is no rounding. In 16 bits PyTorch rounds the weights of attention too,
# and a sum of many such numbers is good for two digits.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
SAMPLED = 16  # rows, heads or columns looked at in float64: ends, and some between


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of that name; numpy itself knows no bfloat16."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def relative_error(got: Array, expected: Array) -> float:
    """RMS of the differences, relative to the RMS of what is right. NaN when `got` holds one.

    >>> relative_error(np.array([1.0, 2.2]), np.array([1.0, 2.0])) < 0.1
    True
    """
    right = reference.float64(expected)
    off = reference.float64(got) - right
    return float(np.sqrt(np.mean(off * off)) / np.sqrt(np.mean(right * right)))


def spread(count: int) -> Array:
    """Up to SAMPLED indices of `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, SAMPLED).round().astype(np.intp))


@dataclass(frozen=True, kw_only=True)
class Work(ABC):
    """An operation with its sizes. `dtype` is that of activations and result."""

    dtype: Dtype = "float32"

    @property
    def operation(self) -> str:
        """What it is called in tables and JSON."""
        return type(self).__name__

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations that cannot be avoided; an exp, a root, a division is one."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that must be read or written at least once."""

    @property
    @abstractmethod
    def counted_in(self) -> Unit:
        """What its speed is called: by what such work is usually bound."""

    @abstractmethod
    def inputs(self, rng: np.random.Generator) -> Inputs:
        """Random inputs, the same for all contestants."""

    @abstractmethod
    def sample(self, result: Array) -> Array:
        """The part of a result that `expected` speaks of."""

    @abstractmethod
    def expected(self, inputs: Inputs) -> Array:
        """That part in float64."""

    @abstractmethod
    def smaller(self) -> Self:
        """The same work in a size that takes no time: for tests, and for a first look."""

    @property
    def tolerance(self) -> float:
        """The relative error from which on a result is another one, and not a rounding."""
        return TOLERANCE[self.dtype]

    def speed(self, seconds: float) -> float:
        """In what `counted_in` names."""
        return (self.flops if self.counted_in == "GFLOPS" else self.nbytes) / seconds / 1e9

    @property
    def intensity(self) -> float:
        """Floating-point operations a byte: few means bound by memory, many by arithmetic."""
        return self.flops / self.nbytes

    @property
    def itemsize(self) -> int:
        return numpy_dtype(self.dtype).itemsize

    def normal(self, rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
        """Normally distributed numbers in this work's dtype."""
        return random_array(rng, shape, self.dtype, scale)


def random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0
) -> Array:
    numbers: Array = rng.standard_normal(shape, dtype=np.float32)
    numbers *= np.float32(scale)
    return numbers if dtype == "float32" else numbers.astype(numpy_dtype(dtype))
