"""Sums in 16 bits, one number after the other: they stall.

Beside a sum of 256, a bfloat16 has no number between 256 and 258, and adding 1 changes nothing; in
float16 the same happens at 2048. numpy and PyTorch add in 32 bits; a loop of one's own does not.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.learn.catalogue import Mistakes
from simdformer.learn.mistakes.norms import NORM
from simdformer.learn.program import State

CAUSE = "Once it is a few hundred times as large as what is added, adding changes nothing."
FIX = "Add in float32, and round the sum."


def one_by_one(x: Any, dtype: Any, axis: Any = -1) -> Any:
    """The sum along an axis, rounded to a dtype after every number; the axis stays."""
    added = np.add.accumulate(x.astype(dtype), axis=axis)
    if not np.isfinite(added).all():
        raise ValueError("it overflows, which is another mistake")
    return np.take(added, [-1], axis=axis).astype(x.dtype)


def stalled_average(dtype: Any) -> Callable[[State], None]:
    def wrong(s: State) -> None:
        s.size = one_by_one(s.squares, dtype) / s.run.dtype(s.squares.shape[-1])

    return wrong


def stalled_total(dtype: Any) -> Callable[[State], None]:
    def wrong(s: State) -> None:
        s.total = one_by_one(s.exponentials, dtype, s.along)

    return wrong


for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
    title = f"the sum stalls: it is made in {name}, one number after the other"
    for step, wrong, see in (
        ("rms_norm.average", stalled_average(dtype), NORM["rms_norm"]),
        ("layer_norm.average", stalled_average(dtype), NORM["layer_norm"]),
        ("softmax.add_up", stalled_total(dtype), "01 §1"),
    ):
        Mistakes(step, see=see).add(f"sum_stalls_in_{name}", wrong, title, CAUSE, FIX, rare=True)
