"""Sums in 16 bits, made in a loop."""

import ml_dtypes
import numpy as np

from conftest import normal
from mistake_examples import Examples
from simdformer import functional as sf

example = Examples()


def added(x):
    """One number after the other, rounded after each."""
    total = np.zeros_like(x[..., :1])
    for i in range(x.shape[-1]):
        total = total + x[..., i : i + 1]
    return total


for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
    # float16 stalls later: at 2048 times what is added.
    many = 1500 if name == "bfloat16" else 12000

    @example(f"rms_norm.sum_stalls_in_{name}")
    def _(rng, dtype=dtype, many=many):
        x = normal(rng, 3, many, dtype=dtype)
        size = added(x * x) / dtype(many)
        return x / np.sqrt(size + dtype(1e-5)), sf.rms_norm, (x,), {"eps": 1e-5}

    @example(f"layer_norm.sum_stalls_in_{name}")
    def _(rng, dtype=dtype, many=many):
        x = normal(rng, 3, many, dtype=dtype)
        h = (x - x.astype(np.float32).mean(-1, keepdims=True)).astype(dtype)
        mine = h / np.sqrt(added(h * h) / dtype(many) + dtype(1e-5))
        weight, bias = np.ones(many, dtype), np.zeros(many, dtype)
        return mine, sf.layer_norm, (x, weight, bias), {"eps": 1e-5}

    @example(f"softmax.sum_stalls_in_{name}")
    def _(rng, dtype=dtype, many=many):
        x = normal(rng, 3, many, dtype=dtype, scale=0.1)
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / added(e), sf.softmax, (x,), {}

    @example(f"linear.sum_stalls_in_{name}")
    def _(rng, dtype=dtype, many=many):
        x, weight = 1 + normal(rng, 3, many, scale=0.1), 1 + normal(rng, 4, many, scale=0.1)
        x, weight, total = x.astype(dtype), weight.astype(dtype), np.zeros((3, 4), dtype)
        for i in range(many):
            total += x[:, i, None] * weight[:, i]
        return total, sf.linear, (x, weight), {}
