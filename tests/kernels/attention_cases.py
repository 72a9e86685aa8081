"""Problems for the tests of attention, and how its results are compared with the oracles."""

import math

import numpy as np

import simdformer as sf
from conftest import assert_close, normal, remembered, same_bits
from simdformer import reference
from simdformer.reference.forward import float64

attention = sf.scaled_dot_product_attention
EXTRAS = {"return_weights": True, "return_scores": True, "return_lse": True}
# How far two ways to one result may differ, by the size of a number in bytes.
COARSE = {2: 1e-2, 4: 1e-5, 8: 1e-13}


def nearly(a, b):
    """Two ways to one result, which round differently."""
    assert a.dtype == b.dtype
    coarse = COARSE[a.dtype.itemsize]
    np.testing.assert_allclose(float64(a), float64(b), rtol=coarse, atol=coarse)


def close(a, b, dtype, scale=1.0):
    """Two ways to one result of sums; `scale` is the size of what was added up."""
    coarse = COARSE[np.dtype(dtype).itemsize]
    np.testing.assert_allclose(float64(a), float64(b), rtol=coarse, atol=coarse * scale)


def problem(rng, *, lead=(), H=2, K=2, L=3, S=3, D=8, Dv=None, dtype=np.float32):
    """query (...,H,L,D), key (...,K,S,D), value (...,K,S,Dv)"""
    shapes = (*lead, H, L, D), (*lead, K, S, D), (*lead, K, S, D if Dv is None else Dv)
    return tuple(normal(rng, *shape, dtype=dtype) for shape in shapes)


def heads_of(x, count):
    """(...,K,S,D) -> (...,H,S,D), and the axis that two-dimensional arrays do without."""
    x = float64(x)
    x = x[None] if x.ndim == 2 else x
    return np.repeat(x, count // max(x.shape[-3], 1), axis=-3)


def magnitudes(q, k, v, weights, scale):
    """What a score and an output are sums of, |q|·|k| scale and weights·|v|; the latter and the
    weights grow with the scores, whose rounding shows after exp."""
    q, k, v = (np.nan_to_num(float64(x), posinf=0, neginf=0) for x in (q, k, v))
    count = 1 if q.ndim == 2 else q.shape[-3]
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else abs(scale)
    scores = np.abs(q) @ np.abs(heads_of(k, count)).swapaxes(-1, -2) * factor
    scores = (
        scores.reshape(weights.shape) if q.ndim == 2 else np.broadcast_to(scores, weights.shape)
    )
    steepness = 1 + scores.max(-1, keepdims=True, initial=0) / 8
    values = np.nan_to_num(weights) @ np.abs(heads_of(v, count))
    values = values.reshape(*weights.shape[:-1], v.shape[-1])
    return scores, steepness * weights, steepness * values


def exactly(q, k, v, mask=None, **kwargs):
    return remembered(reference.scaled_dot_product_attention, q, k, v, mask, **kwargs, **EXTRAS)


def check(q, k, v, mask=None, *, want=None, **kwargs):
    """Compares all the results with the reference; asking for more must not change the first."""
    got, weights, scores, lse = attention(q, k, v, mask, **kwargs, **EXTRAS)
    alone = attention(q, k, v, mask, **kwargs)
    assert same_bits(got, alone), "asking for weights, scores and lse changed the result"
    assert got.dtype == weights.dtype == scores.dtype == q.dtype
    assert lse.dtype == (np.float64 if q.dtype == np.float64 else np.float32)
    want = exactly(q, k, v, mask, **kwargs) if want is None else want
    score_size, weight_size, size = magnitudes(q, k, v, want[1], kwargs.get("scale"))
    score_size = score_size + np.where(np.isfinite(want[2]), np.abs(want[2]), 0)
    op = "scaled_dot_product_attention"
    assert_close(scores, want[2], "scores", scale=score_size)
    assert_close(weights, want[1], op, scale=weight_size)
    lse_size = 1 + np.abs(np.nan_to_num(want[3], neginf=0)) + score_size.max(-1, initial=0)
    assert_close(lse, want[3], "scores", scale=lse_size)
    assert_close(got, want[0], op, scale=size)
    return got


def agree(oracle, q, k, v, mask=None, **kwargs):
    if oracle.name == "reference":
        check(q, k, v, mask, **kwargs)
        return
    got = attention(q, k, v, mask, **kwargs)
    want = oracle("scaled_dot_product_attention", q, k, v, mask, **kwargs)
    weights = exactly(q, k, v, mask, **kwargs)[1]
    size = magnitudes(q, k, v, weights, kwargs.get("scale"))[2]
    assert_close(got, want, "scaled_dot_product_attention", scale=size, slack=oracle.slack)
