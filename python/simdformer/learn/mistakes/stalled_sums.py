"""Sums in 16 bits, one number after the other: they stall.

Beside a sum of 256, a bfloat16 has no number between 256 and 258, and adding 1 changes nothing; in
float16 the same happens at 2048. numpy and PyTorch add in 32 bits; a loop of one's own does not.
"""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes


def one_by_one(x: Any, dtype: Any, axis: Any = -1) -> Any:
    """The sum along an axis, rounded to a dtype after every number; the axis stays."""
    added = np.add.accumulate(x.astype(dtype), axis=axis)
    if not np.isfinite(added).all():
        raise ValueError("it overflows, which is another mistake")
    return np.take(added, [-1], axis=axis).astype(x.dtype)


def product_one_by_one(x: Any, weight: Any, dtype: Any) -> Any:
    """x @ weight.T, a product after the other added in a dtype: acc += x[:, i, None] * w[:, i]."""
    x, weight = (array.astype(dtype) for array in (x, weight))
    total = np.zeros((*x.shape[:-1], len(weight)), dtype)
    for i in range(x.shape[-1]):
        total = total + x[..., i, None] * weight[:, i]
    return total


for few in ("float16", "bfloat16"):
    for steps, line in (
        (
            "rms_norm.average (02 §4), layer_norm.average (04 §3)",
            f"size = one_by_one(squares, {few}) / real(squares.shape[-1])",
        ),
        ("softmax.add_up (01 §1)", f"total = one_by_one(exponentials, {few}, along)"),
        (
            "linear.multiply (01 §4)",
            f"products = [product_one_by_one(h, w, {few}).astype(real) for w in weights]",
        ),
    ):
        mistakes(
            f"""
            {steps} > Add in float32, and round the sum.

            sum_stalls_in_{few} (rare):
                the sum stalls: it is made in {few}, one number after the other
                Once it is a few hundred times as large as what is added, adding changes nothing.
                | {line}
            """,
            calls=(one_by_one, product_one_by_one),
        )
