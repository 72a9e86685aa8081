"""Whether a gradient is right: up to rounding on all the way through the model.

Some are nothing but rounding: a bias of keys adds the same to all scores of a query, where there is
no RoPE, and has a gradient of 0.
"""

from typing import Any

import numpy as np

from simdformer.learn.check.compare import TOLERANCE, compare, finfo, numbers, row_size
from simdformer.learn.check.rounding import F32
from simdformer.learn.gradients.steps import WEIGHT, BackwardSteps, Gradients
from simdformer.learn.trace.axes import View
from simdformer.training.model import TrainableModel

__all__ = ["FLOOR", "Measure", "dtype_of", "norm", "tolerance"]

FLOOR = 0.2  # as for gradients of operations: rows of rare ids are next to nothing beside others
# Times what is usual for one operation, because errors of all that comes before add up; 16 bits
# have a wide measure already.
ADDED_UP, IN_16_BITS = 20.0, 5.0
RUNS = 3  # with weights that are rounded otherwise
OFTEN = 20.0  # times what these differ by: activations are rounded too, twice check/rounding.py's


def dtype_of(mine: Any) -> np.dtype[Any]:
    """In which a gradient may be off: float32 at least, as the model computes."""
    known = mine.dtype in TOLERANCE and TOLERANCE[mine.dtype] > TOLERANCE[F32]
    return np.dtype(mine.dtype) if known else F32


def tolerance(dtype: np.dtype[Any]) -> float:
    return TOLERANCE[dtype] * (IN_16_BITS if dtype.itemsize == 2 else ADDED_UP)


def norm(x: Any) -> float:
    return float(np.linalg.norm(numbers(x).ravel()))


class Measure:
    """Compares gradients with those of a model."""

    def __init__(self, steps: BackwardSteps) -> None:
        self.steps = steps
        self._rounded: dict[float, list[Gradients]] = {}

    def is_right(self, name: str, mine: Any, view: View, right: Gradients | None = None) -> bool:
        """Whether an array is the gradient of that name, in its axes; of another pass where one is
        given."""
        dtype = dtype_of(mine)
        wanted = view.take((right or self.steps.right)[name])
        if mine.shape != wanted.shape:
            return False
        if compare(mine, wanted, tolerance(dtype), dtype, floor=FLOOR).ok:
            return True
        spread = view.take(np.broadcast_to(self.spread(name, dtype), self.steps.right[name].shape))
        return compare(mine, wanted, tolerance(dtype), dtype, spread, FLOOR).ok

    def spread(self, name: str, dtype: np.dtype[Any]) -> Any:
        """How far weights that are rounded otherwise take each row of a gradient."""
        right = numbers(self.steps.right[name])
        moved = [row_size(numbers(run[name]) - right) for run in self.rounded(dtype)]
        return np.maximum(OFTEN * np.max(moved, axis=0), self.of_sum(name, dtype))

    def of_sum(self, name: str, dtype: np.dtype[Any]) -> Any:
        """What rounding of its summands does to the gradient of a bias, which they may leave."""
        summands = self.steps.right.get(self.steps.made_of(name))
        is_bias = name.endswith((*(f".b{of}" for of in "qkvo"), "_bias"))
        if summands is None or not is_bias or not name.startswith(WEIGHT):
            return 0.0
        sums = np.abs(numbers(summands)).reshape(-1, self.steps.right[name].size).sum(axis=0)
        return TOLERANCE[dtype] * row_size(sums)

    def rounded(self, dtype: np.dtype[Any]) -> list[Gradients]:
        """The gradients of models whose weights are off by up to half a unit, at random."""
        unit = float(finfo(dtype).eps)
        if unit not in self._rounded:
            self._rounded[unit] = [self.nearby(unit, seed) for seed in range(RUNS)]
        return self._rounded[unit]

    def nearby(self, unit: float, seed: int) -> Gradients:
        model, rng = self.steps.model, np.random.default_rng(seed)
        weights = {
            name: w * (1 + np.float32(unit) * (rng.random(w.shape, np.float32) - np.float32(0.5)))
            for name, w in model.weights.items()
        }
        return self.steps.passed(TrainableModel(model.config, weights), self.steps.labels)[2]
