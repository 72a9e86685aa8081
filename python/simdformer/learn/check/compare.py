"""When one array is as good as another: row by row, measured by the size of the row.

A row is what lies along the last axis. Its numbers may be off by a small part of their root mean
square, small enough for the coarsest dtype that took part. NaN and infinities have to be where they
should be, unless a number is too large for the dtype that it is in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from simdformer.arguments import is_real, shown

__all__ = [
    "QUANTIZED",
    "TOLERANCE",
    "Comparison",
    "coarsest",
    "compare",
    "finfo",
    "float_dtypes",
    "is_near",
    "numbers",
    "read_rtol",
    "row_size",
    "whole_size",
]

finfo: Callable[[Any], Any] = ml_dtypes.finfo  # it knows bfloat16 too

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

# What a sum in another order, or one more rounding of an activation on the way, may change: some
# hundred units in the last place where there are many bits, ten where there are few.
TOLERANCE = {
    np.dtype(np.float64): 1e-9,
    np.dtype(np.float32): 1e-4,
    np.dtype(np.float16): 5e-3,
    np.dtype(ml_dtypes.bfloat16): 4e-2,
}
# Beside a quantised weight x has 16 bits: 2e-5 to 5e-5 of a row, and some times that at its worst.
QUANTIZED = 3e-4


def float_dtypes(arrays: Any) -> list[np.dtype[Any]]:
    """The float dtypes among those of some arrays; numbers and ids have none."""
    return [x.dtype for x in arrays if isinstance(x, np.ndarray) and x.dtype in TOLERANCE]


def coarsest(dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    return max(dtypes, key=lambda dtype: TOLERANCE[dtype], default=np.dtype(np.float64))


def read_rtol(function: str, rtol: Any) -> float | None:
    """How large an error may be; None where nothing is said."""
    if rtol is None:
        return None
    if not is_real(rtol, 0):
        raise ValueError(f"{function}: rtol is {shown(rtol)}, needs a finite number >= 0")
    return float(rtol)


def numbers(x: Any) -> Float64:
    """As float64, whatever comes in."""
    return np.asarray(x).astype(np.float64)


def row_size(x: Float64) -> Float64:
    """Root mean square of the finite numbers of each row, keeping the axis; no overflow on the way.

    (..., n) -> (..., 1); one number is its own row.
    """
    x = np.abs(x[None] if x.ndim == 0 else x)
    finite = np.isfinite(x)
    x = np.where(finite, x, 0)
    largest = x.max(axis=-1, keepdims=True, initial=0)
    x = x / np.where(largest == 0, 1, largest)
    count = np.maximum(finite.sum(axis=-1, keepdims=True), 1)
    size: Float64 = largest * np.sqrt((x * x).sum(axis=-1, keepdims=True) / count)
    return size


def whole_size(size: Float64) -> float:
    """Root mean square of the sizes of all rows."""
    return float(np.sqrt(np.mean(np.square(size)))) if size.size else 0.0


@dataclass(frozen=True)
class Comparison:
    """Two arrays of one shape, number by number."""

    error: Float64  # absolute; inf where one is NaN and the other is not
    size: Float64  # of the rows of the right one, (..., 1)
    allowed: Float64  # how large the error may be, (..., 1)

    @property
    def wrong(self) -> Bool:
        return self.error > self.allowed

    @property
    def ok(self) -> bool:
        return not self.wrong.any()

    @property
    def max_abs(self) -> float:
        return float(self.error.max(initial=0))

    @property
    def relative(self) -> Float64:
        """To the size of the row; infinite where a row should be zero and is not."""
        with np.errstate(all="ignore"):
            return np.where(self.error == 0, 0, self.error / self.size)

    @property
    def excess(self) -> float:
        """How many times what is allowed the worst number is off."""
        with np.errstate(all="ignore"):
            times = np.where(self.error <= self.allowed, 0, self.error / self.allowed)
        return float(times.max(initial=0))


def is_near(mine: Any, right: Any, rtol: float, floor: float = 0.0) -> bool:
    """Whether two large arrays of one float dtype are as good as equal, in a few passes of their
    own arithmetic. False tells nothing: `compare` looks more closely."""
    if mine.dtype != right.dtype or mine.dtype.itemsize < 4 or mine.ndim == 0 or not mine.size:
        return False
    with np.errstate(all="ignore"):
        squares = np.einsum("...i,...i->...", right, right) / right.shape[-1]
        size = np.sqrt(np.maximum(squares, floor**2 * squares.mean()))
        off = np.abs(mine - right).max(axis=-1)
        return bool((off <= 0.99 * rtol * size).all())


def compare(
    mine: npt.NDArray[Any],
    right: npt.NDArray[Any],
    rtol: float,
    dtype: np.dtype[Any],
    spread: Float64 | None = None,
    floor: float = 0.0,
) -> Comparison:
    """mine and right (...); dtype is the coarsest that took part.

    spread (..., 1): how far rounding alone may take each row, where that is known.
    floor: a row counts for at least so much of the whole array's size.
    """
    found, wanted = np.atleast_1d(numbers(mine)), np.atleast_1d(numbers(right))
    with np.errstate(all="ignore"):
        error = np.abs(found - wanted)
        largest = float(finfo(dtype).max)
        too_large = (np.abs(wanted) > largest * (1 - TOLERANCE[dtype])) & np.isinf(found)
        too_large &= np.sign(found) == np.sign(wanted)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | too_large
        error = np.where(same, 0, np.where(np.isnan(error), np.inf, error))
    size = row_size(wanted)
    size = np.maximum(size, floor * whole_size(size)) if floor else size
    allowed = rtol * size + float(finfo(dtype).smallest_subnormal)
    if spread is not None:
        allowed = np.maximum(allowed, spread)
    return Comparison(error, size, allowed)
