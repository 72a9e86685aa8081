"""softmax over any axis, with a temperature."""

import numpy as np

import simdformer as sf
from cases import each
from conftest import (
    LENGTHS,
    assert_as_accurate_as_torch,
    assert_close,
    normal,
    same_bits,
)


@each("length", LENGTHS)
def test_agrees_with_the_oracle(isa, dtype, length, oracle, rng):
    x = normal(rng, 3, length, dtype=dtype, scale=2)
    got = sf.softmax(x)
    assert got.dtype == dtype
    assert_close(got, oracle("softmax", x), "softmax", slack=oracle.slack)


@each("axis", [0, 1, 2, 3, -1, -2, -4])
def test_any_axis(isa, dtype, axis, oracle, rng):
    x = normal(rng, 3, 5, 18, 7, dtype=dtype, scale=2)
    assert_close(sf.softmax(x, axis), oracle("softmax", x, axis), "softmax", slack=oracle.slack)
    assert same_bits(sf.softmax(x, axis=axis), sf.softmax(x, axis))


@each("x_dtype", [np.float32, np.float64])
def test_what_is_below_the_smallest_normal_number_is_subnormal(isa, x_dtype):
    info = np.finfo(x_dtype)
    lowest = np.log(info.smallest_subnormal, dtype=np.float64)
    x = np.linspace(lowest - 3, np.log(info.tiny) + 3, 400).astype(x_dtype)
    x[0] = 0
    want = np.exp(x.astype(np.longdouble))
    got = sf.softmax(x)
    rounding = 2 * info.eps * want + 0.501 * np.longdouble(info.smallest_subnormal)
    assert (np.abs(got.astype(np.longdouble) - want) <= rounding).all()
    assert ((got > 0) & (got < info.tiny)).sum() > 50


def test_a_row_of_minus_infinities_gives_nan_as_torch(isa, dtype, oracle):
    x = np.zeros((3, 19), dtype)
    x[1] = -np.inf
    x[2, 4:] = -np.inf
    got = sf.softmax(x).astype(np.float64)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[2], [0.25] * 4 + [0] * 15)
    assert_close(sf.softmax(x), oracle("softmax", x), "softmax", slack=oracle.slack)


def test_large_scores_do_not_overflow(isa):
    """The corrected numbers of the Qwen3 walkthrough."""
    np.testing.assert_allclose(
        sf.softmax(np.array([1000, 1000.1, 1000.2])), [0.3006, 0.3322, 0.3672], atol=5e-5
    )
    np.testing.assert_allclose(
        sf.softmax(np.array([2.0, 1, 0]), temperature=0.5), [0.867, 0.117, 0.016], atol=5e-4
    )
    np.testing.assert_allclose(
        sf.softmax(np.array([2.1, -0.5, 1.3, 0.8])), [0.557, 0.041, 0.250, 0.152], atol=6e-4
    )


def test_the_lowest_finite_scores_stay_finite(isa, dtype):
    lowest = np.full((1, 5), np.finfo(np.float16).min, dtype)
    np.testing.assert_allclose(sf.softmax(lowest).astype(np.float64), 0.2, rtol=4e-3)
    spread = np.array([[np.finfo(np.float16).min, 0, np.finfo(np.float16).max]], dtype)
    np.testing.assert_array_equal(sf.softmax(spread).astype(np.float64), [[0, 0, 1]])


@each("shape", [(37, 53), (5, 5000)])
def test_a_row_has_the_same_bits_alone_and_among_others(isa, dtype, shape, rng):
    """The maximum of a row is sought while the row before it is computed: whatever that one is."""
    x = normal(rng, *shape, dtype=dtype)
    x[1] += 3
    x[2, 7] = np.nan
    together = sf.softmax(x)
    assert all(same_bits(sf.softmax(x[i]), together[i]) for i in range(len(x)) if i != 2)
    for step in (-1, 2):
        assert same_bits(sf.softmax(x[::step]), together[::step])


@each("length", [1, 2, 4, 64])
def test_equal_scores_have_exactly_equal_weights(isa, dtype, length):
    """Few of them, whose sums are exact: the factor of all exponentials falls out without a
    rounding."""
    assert (sf.softmax(np.full((3, length), -7, dtype)) == 1 / length).all()


@each("scale", [1, 5])
@each("length", [17, 1024])
def test_rms_error_is_at_most_one_and_a_half_times_torchs(isa, dtype, scale, length, rng):
    problems = [((normal(rng, 20, length, dtype=dtype, scale=scale),), {}) for _ in range(8)]
    assert_as_accurate_as_torch("softmax", sf.softmax, problems)
