"""One array of a learner's, and where it belongs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simdformer.learn.check.compare import TOLERANCE
from simdformer.learn.check.rounding import BF16, F16, F32
from simdformer.learn.trace.places import Place

__all__ = ["Entry", "hidden", "in_few_bits"]

Array = np.ndarray[Any, Any]
PROBES = 500  # numbers that are looked at first
LOW = (
    -9e3
)  # what masks hold at least that are no -inf: the lowest float, -1e9, -1e4; exp of it is 0


@dataclass(frozen=True)
class Entry:
    """One array of a learner's.

    key : what he calls it
    place : the activation that is meant
    """

    key: Any
    place: Place
    array: Array

    @property
    def called(self) -> str:
        """The name in the trace, and the learner's own where it is another one."""
        name = str(self.place)
        return name if self.key == self.place.name else f"{name} ({self.key})"


def in_few_bits(x: Array, name: str) -> Array:
    """The array in the coarsest dtype that holds all its numbers: those of 16 bits are often
    widened before they are looked at. (An embedding is only looked up, whatever follows.)"""
    if x.dtype.kind in "iub":
        return x.astype(np.float64)
    if x.dtype not in TOLERANCE or name == "embed" or np.size(x) < 2:
        return x
    some = np.ravel(x)[:: max(np.size(x) // PROBES, 1)]
    for few in (BF16, F16, F32):
        if TOLERANCE[few] > TOLERANCE[x.dtype] and holds(few, some) and holds(few, x):
            shows_it = np.isfinite(x) & (x != 0)  # zeros and NaN are numbers of every dtype
            return x.astype(few) if shows_it.any() else x
    return x


def holds(few: np.dtype[Any], x: Array) -> bool:
    """Whether a dtype holds all numbers of an array."""
    with np.errstate(all="ignore"):
        same = (x.astype(few).astype(x.dtype) == x) | np.isnan(x.astype(np.float64))
    return bool(same.all())


def hidden(array: Array, right: Array) -> Array:
    """Scores that a mask of -1e9, or of the lowest float, has hidden, as -inf: their share is 0. So
    are those that should not be hidden, unless they are right to be that low."""
    if array.shape != right.shape or array.dtype not in TOLERANCE or not np.isneginf(right).any():
        return array
    low = (array.astype(np.float64) <= LOW) & ((right > LOW / 2) | np.isneginf(right))
    return np.where(low, np.asarray(-np.inf, array.dtype), array)
