"""silu, gelu, relu and swiglu against float64 and PyTorch; what a model adds, against numpy."""

import ml_dtypes
import numpy as np
import pytest

import simdformer as sf
from cases import each
from conftest import (
    DTYPES,
    LENGTHS,
    SIXTEEN_BITS,
    assert_as_accurate_as_torch,
    assert_close,
    normal,
    same_bits,
)
from simdformer import reference
from simdformer.models.activations import added
from simdformer.reference.forward import float64

CALLS = {
    "silu": ("silu", {}),
    "gelu": ("gelu", {}),
    "gelu tanh": ("gelu", {"approximate": "tanh"}),
    "relu": ("relu", {}),
    "swiglu": ("swiglu", {}),
}


@pytest.fixture(params=CALLS.values(), ids=CALLS.keys())
def call(request):
    return request.param


def arguments(op, x):
    """swiglu takes a second array of the same shape."""
    return (x, np.flip(x).copy()) if op == "swiglu" else (x,)


def scale_of(op, args):
    return np.abs(float64(args[0])) if op == "gelu" else None


@each("length", LENGTHS)
def test_agrees_with_the_oracle(isa, dtype, length, call, oracle, rng):
    op, kwargs = call
    args = arguments(op, normal(rng, 3, length, dtype=dtype, scale=3))
    got = getattr(sf, op)(*args, **kwargs)
    assert got.dtype == dtype
    want = oracle(op, *args, **kwargs)
    assert_close(got, want, op, scale=scale_of(op, args), slack=oracle.slack)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
def test_every_16_bit_number(isa, dtype, call):
    op, kwargs = call
    everything = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    args = arguments(op, everything)
    want = getattr(reference, op)(*args, **kwargs)
    assert_close(getattr(sf, op)(*args, **kwargs), want, op, scale=scale_of(op, args))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_whole_range_of_exponents(isa, dtype, call):
    op, kwargs = call
    info = np.finfo(dtype)
    powers = np.exp2(np.linspace(np.log2(info.tiny), np.log2(info.max) - 1, 4001)).astype(dtype)
    around_zero = np.linspace(-110, 110, 4001).astype(dtype)
    args = arguments(op, np.concatenate([powers, -powers, around_zero]))
    if op == "swiglu":
        args = (
            args[0],
            np.resize(normal(np.random.default_rng(3), 1009, dtype=dtype), args[0].shape),
        )
    want = getattr(reference, op)(*args, **kwargs)
    assert_close(getattr(sf, op)(*args, **kwargs), want, op, scale=scale_of(op, args))


def test_nan_stays_nan_and_infinities_have_their_limits(isa, dtype):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    for name in ("silu", "gelu"):
        got = getattr(sf, name)(x).astype(np.float64)
        np.testing.assert_array_equal(got, [np.nan, np.inf, np.nan, 0, 0], err_msg=name)
        assert list(np.signbit(got[3:])) == [False, True], name
    got = sf.gelu(x, approximate="tanh").astype(np.float64)
    np.testing.assert_array_equal(got, [np.nan, np.inf, np.nan, 0, 0])
    np.testing.assert_array_equal(sf.relu(x).astype(np.float64), [np.nan, np.inf, 0, 0, 0])
    one = np.ones(5, dtype)
    np.testing.assert_array_equal(float64(sf.swiglu(x, one)), float64(sf.silu(x)))
    assert np.isnan(sf.swiglu(one, x)[0].astype(np.float64))


def test_subnormals_are_kept(isa, dtype):
    info = ml_dtypes.finfo(dtype)
    tiny = np.array([4, -4, 6, 100], dtype) * info.smallest_subnormal
    assert (tiny.astype(np.float64) != 0).all()
    np.testing.assert_array_equal(sf.relu(tiny), np.maximum(tiny, dtype.type(0)))
    np.testing.assert_array_equal(sf.silu(tiny).astype(np.float64), tiny.astype(np.float64) / 2)
    np.testing.assert_array_equal(sf.gelu(tiny).astype(np.float64), tiny.astype(np.float64) / 2)


def test_a_value_does_not_depend_on_where_it_stands_in_the_array(isa, dtype, call, rng):
    """Vector body and tail are the same expression: move the data through two vectors and more."""
    op, kwargs = call
    data = normal(rng, 9, dtype=dtype, scale=4)
    alone = getattr(sf, op)(*arguments(op, data), **kwargs)
    for before in range(2 * 64 + 2):
        moved = normal(rng, before + 9 + before % 5, dtype=dtype)
        args = [moved.copy() for _ in arguments(op, data)]
        for arg, values in zip(args, arguments(op, data), strict=True):
            arg[before : before + 9] = values
        got = getattr(sf, op)(*args, **kwargs)[before : before + 9]
        assert same_bits(got, alone), f"differs after {before} elements"


def test_long_rows_and_many_axes(isa, call, rng):
    """Long rows are cut into pieces, short ones are taken together: nobody may notice."""
    op, kwargs = call
    flat = normal(rng, 6 * 35_001)
    args = arguments(op, flat)
    want = getattr(sf, op)(*args, **kwargs)
    for shape in [(2, 3, 35_001), (35_001, 6), (35_001, 3, 2), (1, 6 * 35_001, 1)]:
        got = getattr(sf, op)(*(arg.reshape(shape) for arg in args), **kwargs)
        assert same_bits(got.reshape(-1), want), shape


def test_gate_and_up_may_lie_differently_in_memory(isa, dtype, rng):
    both = normal(rng, 5, 2, 33, dtype=dtype)  # one projection that holds gate and up side by side
    gate, up = both[:, 0], both[:, 1]
    assert same_bits(sf.swiglu(gate, up), sf.swiglu(gate.copy(), up.copy()))
    assert same_bits(sf.swiglu(gate[::-1], up), sf.swiglu(gate[::-1].copy(), up.copy()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each("scale", [1, 6])
def test_rms_error_is_at_most_one_and_a_half_times_torchs(isa, dtype, call, scale, rng):
    op, kwargs = call
    problems = [
        (arguments(op, normal(rng, 4, 1000, dtype=dtype, scale=scale)), kwargs) for _ in range(4)
    ]
    if op == "relu":
        assert all(same_bits(sf.relu(x), np.maximum(x, dtype.type(0))) for (x,), _ in problems)
        return
    assert_as_accurate_as_torch(op, getattr(sf, op), problems)


# ---- what a model adds to its residual stream ----------------------------------------------------


@each("length", [1, 7, 64, 1000, 40000])
def test_sums_are_those_of_numpy(isa, dtype, length, rng):
    x, y = (normal(rng, 3, length, dtype=dtype, scale=4) for _ in range(2))
    assert same_bits(added(x, y), x + y)
    assert same_bits(added(x[:, ::-2], y[:, ::-2]), x[:, ::-2] + y[:, ::-2])
    assert same_bits(added(x.T, y.T), x.T + y.T)


def test_sums_of_what_is_not_alike_are_too(rng):
    x, y = normal(rng, 3, 8), normal(rng, 8, dtype=np.float64)
    assert same_bits(added(x, y), x + y)
    assert same_bits(added(x, x[:1]), x + x[:1])
