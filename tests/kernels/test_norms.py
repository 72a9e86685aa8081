"""rms_norm and layer_norm over the last axis."""

import numpy as np
import pytest

import simdformer as sf
from cases import each
from conftest import (
    LENGTHS,
    assert_as_accurate_as_torch,
    assert_close,
    normal,
    tolerance,
)
from simdformer import reference

each_norm = pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])


def scale_of(op, x, want, weight=None):
    """LayerNorm subtracts the mean, which costs bits where it is larger than the spread."""
    if op == "rms_norm":
        return np.abs(want)
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        mean = np.abs(x).mean(-1, keepdims=True)
        spread = x.std(-1, keepdims=True)
        size = (np.abs(x - x.mean(-1, keepdims=True)) + mean) / np.where(spread > 0, spread, 1)
    size = size if weight is None else size * np.abs(np.asarray(weight, np.float64))
    return np.maximum(size, np.abs(want))


@each_norm
@each("length", LENGTHS[1:])
def test_agrees_with_the_oracle(isa, dtype, length, oracle, op, rng):
    x = normal(rng, 3, length, dtype=dtype)
    if length == 1:
        x = np.array([[0.5], [-2], [0]], dtype)
    weight, bias = normal(rng, length, dtype=dtype), normal(rng, length, dtype=dtype)
    parameters = (
        [(), (weight,)] if op == "rms_norm" else [(), (weight,), (weight, bias), (None, bias)]
    )
    for extra in parameters:
        got = getattr(sf, op)(x, *extra, eps=1e-5)
        assert got.dtype == dtype
        want = oracle(op, x, *extra, eps=1e-5)
        scale = scale_of(op, x, want, extra[0] if extra else None)
        assert_close(got, want, op, scale=scale, slack=oracle.slack)


@each_norm
@each("eps", [0.0, 1e-12, 1e-5, 1.0])
def test_eps_is_inside_the_root(isa, dtype, op, eps, rng):
    x = normal(rng, 4, 40, dtype=dtype, scale=0.01)
    want = getattr(reference, op)(x, eps=eps)
    assert_close(getattr(sf, op)(x, eps=eps), want, op, scale=scale_of(op, x, want))


@each_norm
def test_zeros_give_zeros_and_without_eps_nan(isa, dtype, op):
    x = np.zeros((2, 21), dtype)
    assert (getattr(sf, op)(x, eps=1e-6) == 0).all()
    assert np.isnan(getattr(sf, op)(x, eps=0.0).astype(np.float64)).all()


def test_layer_norm_subtracts_the_mean_before_it_squares(isa):
    """One pass with mean(x²) - mean(x)² would lose every digit here."""
    for dtype, mean in [(np.float32, 4e3), (np.float64, 1e8)]:
        x = (np.random.default_rng(1).standard_normal((3, 1000)) + mean).astype(dtype)
        want = reference.layer_norm(x, eps=0.0)
        allowed = tolerance("layer_norm", np.dtype(dtype)) * mean
        np.testing.assert_allclose(sf.layer_norm(x, eps=0.0), want, atol=allowed)


def test_the_mean_is_gone_and_the_variance_is_one(isa, dtype, rng):
    x = normal(rng, 6, 257, dtype=dtype, scale=2)
    y = sf.layer_norm(x, eps=0.0).astype(np.float64)
    coarse = tolerance("layer_norm", dtype)
    np.testing.assert_allclose(y.mean(-1), 0, atol=2 * coarse)
    np.testing.assert_allclose(y.var(-1), 1, atol=4 * coarse)
    z = sf.rms_norm(x, eps=0.0).astype(np.float64)
    np.testing.assert_allclose((z * z).mean(-1), 1, atol=4 * coarse)


@each_norm
def test_subnormals_are_kept(isa, op):
    """Rows that small have a mean square of zero, so that eps alone decides: x / sqrt(eps)."""
    x = np.array([[1, -2, 3, -2]], np.float32) * np.finfo(np.float32).smallest_subnormal
    got = getattr(sf, op)(x, eps=1e-6)
    np.testing.assert_allclose(got, x.astype(np.float64) * 1e3, rtol=1e-3)
    assert (got != 0).all()


@each_norm
@each("length", [64, 1000])
def test_rms_error_is_at_most_one_and_a_half_times_torchs(isa, dtype, op, length, rng):
    weight, bias = normal(rng, length, dtype=dtype), normal(rng, length, dtype=dtype)
    extra = (weight,) if op == "rms_norm" else (weight, bias)
    problems = [((normal(rng, 20, length, dtype=dtype), *extra), {"eps": 1e-6}) for _ in range(8)]
    assert_as_accurate_as_torch(op, getattr(sf, op), problems)
