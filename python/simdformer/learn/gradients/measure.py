"""Whether a gradient is right: up to rounding on all the way through the model.

Some are nothing but rounding: a bias of keys adds the same to all scores of a query, where there is
no RoPE, and has a gradient of 0.
"""

from typing import Any

import numpy as np

from simdformer.learn.check.compare import TOLERANCE, compare, finfo, is_near, numbers, row_size
from simdformer.learn.check.rounding import F32
from simdformer.learn.gradients.steps import WEIGHT, BackwardSteps, Gradients
from simdformer.learn.trace.axes import View
from simdformer.training.model import TrainableModel

__all__ = ["FLOOR", "Measure", "dtype_of", "norm", "tolerance"]

FLOOR = 0.2  # as for gradients of operations: rows of rare ids are next to nothing beside others
# Times what is usual for one operation, because errors of all that comes before add up; 16 bits
# have a wide measure already.
ADDED_UP, IN_16_BITS = 20.0, 5.0
RUNS = 3  # with weights that are rounded otherwise; one, where that leaves no hope
HOPELESS = 30.0  # times what one of them allows
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
        self._rounded: dict[tuple[float, int], Gradients] = {}

    def is_right(self, name: str, mine: Any, view: View, right: Gradients | None = None) -> bool:
        """Whether an array is the gradient of that name, in its axes; of another pass where one is
        given."""
        dtype = dtype_of(mine)
        wanted = view.take((right or self.steps.right)[name])
        if mine.shape != wanted.shape:
            return False
        if is_near(mine, wanted, tolerance(dtype), FLOOR):
            return True
        if (found := compare(mine, wanted, tolerance(dtype), dtype, floor=FLOOR)).ok:
            return True
        for runs in (1, RUNS):
            spread = self.spread(name, dtype, runs)
            spread = view.take(np.broadcast_to(spread, self.steps.right[name].shape))
            allowed = np.maximum(found.allowed, spread)
            if (found.error > HOPELESS * allowed).any():
                return False
        return bool((found.error <= allowed).all())

    def spread(self, name: str, dtype: np.dtype[Any], runs: int) -> Any:
        """How far weights that are rounded otherwise, in so many runs, take each row of it."""
        right = numbers(self.steps.right[name])
        moved = [row_size(numbers(self.rounded(dtype, seed)[name]) - right) for seed in range(runs)]
        return np.maximum(OFTEN * np.max(moved, axis=0), self.of_sum(name, dtype))

    def of_sum(self, name: str, dtype: np.dtype[Any]) -> Any:
        """What rounding of its summands does to the gradient of a bias, which they may leave."""
        summands = self.steps.right.get(self.steps.made_of(name))
        is_bias = name.endswith((*(f".b{of}" for of in "qkvo"), "_bias"))
        if summands is None or not is_bias or not name.startswith(WEIGHT):
            return 0.0
        sums = np.abs(numbers(summands)).reshape(-1, self.steps.right[name].size).sum(axis=0)
        return TOLERANCE[dtype] * row_size(sums)

    def rounded(self, dtype: np.dtype[Any], seed: int) -> Gradients:
        """The gradients of a model whose weights are off by up to half a unit, at random."""
        unit = float(finfo(dtype).eps)
        if (unit, seed) not in self._rounded:
            self._rounded[unit, seed] = self.nearby(unit, seed)
        return self._rounded[unit, seed]

    def nearby(self, unit: float, seed: int) -> Gradients:
        model, rng = self.steps.model, np.random.default_rng(seed)
        weights = {
            name: w * (1 + np.float32(unit) * (rng.random(w.shape, np.float32) - np.float32(0.5)))
            for name, w in model.weights.items()
        }
        return self.steps.passed(TrainableModel(model.config, weights), self.steps.labels)[2]
