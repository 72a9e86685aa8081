"""Which experts the tokens of a layer go through, as the model decided it, or the learner where
rounding decides (choices.py)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simdformer.learn.check.compare import finfo, row_size
from simdformer.learn.program import Run

__all__ = ["Decided", "Float64", "Integers"]

Integers = np.ndarray[Any, np.dtype[np.int64]]
Float64 = np.ndarray[Any, np.dtype[np.float64]]
DRIFT = 64.0  # units of a dtype, relative to the row: more than random rounding moves logits by


@dataclass(frozen=True)
class Decided:
    """The experts (B,L,k) that were decided for.

    gap : (B,L), by how much the logits of some others are larger; None: nowhere
    """

    ids: Integers
    gap: Float64 | None = None

    def leaning(self, run: Run, logits: Any) -> Any:
        """What is added to logits (B,L,X) in a run, so that the decision stands: the gap, and where
        a run rounds to few bits, as much as this may move them."""
        towards = np.zeros(logits.shape)
        np.put_along_axis(towards, self.ids, 1.0, axis=-1)
        size = np.zeros(logits.shape[:2]) if self.gap is None else self.gap
        few = np.dtype(run.dtype) if run.rounding is None else run.rounding.dtype
        if run.rounding is not None or few.itemsize == 2:
            size = size + DRIFT * float(finfo(few).eps) * row_size(logits)[..., 0]
        return towards * size[..., None]
