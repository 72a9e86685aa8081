"""Rounding explains what it can do and nothing more; constants are found with their values."""

import re

import numpy as np
import pytest

import simdformer as sf
from conftest import bfloat16, normal
from right_answers import Numpy
from simdformer import nn
from simdformer.learn.check.rounding import BF16, F16, F32, either_neighbour

idiom = Numpy()


def attend(q, k, v, scale):
    return idiom.softmax(q @ k.swapaxes(-1, -2) * q.dtype.type(scale)) @ v


def first(report):
    return report.diagnosis[0] if report.diagnosis else None


# ---- random rounding -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_a_number_becomes_one_of_its_neighbours_and_on_average_stays(dtype, rng):
    x = normal(rng, 1, 2000, dtype=np.float64) * 10.0 ** rng.integers(-3, 3, 2000)
    many = np.concatenate([either_neighbour(x, dtype, rng) for _ in range(400)])
    np.testing.assert_array_equal(many.astype(dtype).astype(np.float64), many)
    unit = np.spacing(np.abs(x).astype(dtype)).astype(np.float64)
    assert (np.abs(many - x) <= unit).all()
    assert np.abs((many.mean(0) - x) / unit).max() < 0.15
    exact = x.astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(either_neighbour(exact, dtype, rng), exact)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -3.0])
    np.testing.assert_array_equal(either_neighbour(odd, dtype, rng), odd)


# ---- what rounding explains ----------------------------------------------------------------------


@pytest.mark.parametrize("few", [np.float32, np.float16, bfloat16], ids=str)
def test_the_dtype_that_has_come_in_is_named(few, rng):
    q, k, v = (normal(rng, 2, 4, 9, 16, dtype=np.float64) for _ in range(3))
    mine = attend(*(x.astype(few) for x in (q, k, v)), 0.25).astype(few).astype(np.float64)
    report = sf.check(sf.scaled_dot_product_attention, mine, q, k, v)
    assert report.ok
    name = str(np.dtype(few))
    said = f"right to {name}, not to float64: somewhere on the way a {name} comes in"
    assert said in report.remarks


def test_one_coarse_step_is_explained_at_its_place(rng):
    """Softmax alone in float16 between products in float32; a norm whose size is a bfloat16. Right
    where somebody says so, for no array shows it."""
    q, k, v = (normal(rng, 2, 4, 9, 16) for _ in range(3))
    scores = (q @ k.swapaxes(-1, -2) / np.float32(4)).astype(np.float16)
    mine = idiom.softmax(scores.astype(np.float32)) @ v
    assert sf.check(sf.scaled_dot_product_attention, mine, q, k, v).nearly == "float16"
    assert sf.check(sf.scaled_dot_product_attention, mine, q, k, v, dtype="float16").ok
    x, weight = normal(rng, 7, 64), normal(rng, 64)
    size = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)).astype(bfloat16)
    mine = x / size.astype(np.float32) * weight
    assert not sf.check(sf.rms_norm, mine, x, weight, eps=1e-5).ok
    report = sf.check(sf.rms_norm, mine, x, weight, eps=1e-5, dtype=bfloat16)
    assert report.ok
    assert "16, not to float32" in report.remarks[0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda z: z * np.float32(1.004),  # one factor
        lambda z: np.where(np.arange(z.shape[-2])[:, None] == 3, z * np.float32(1.004), z),
        lambda z: np.where(np.arange(z.size).reshape(z.shape) == 31, z + np.float32(0.003), z),
        lambda z: z + np.float32(0.05),
    ],
)
def test_an_error_of_the_size_of_rounding_in_the_wrong_place_is_wrong(wrong, rng):
    x = normal(rng, 4, 9, 16)
    assert not sf.check("relu", wrong(np.maximum(x, 0)), x).ok
    q, k, v = (normal(rng, 4, 9, 16) for _ in range(3))
    right = attend(q, k, v, 0.25)
    assert not sf.check(sf.scaled_dot_product_attention, wrong(right), q, k, v).ok


def test_a_mistake_is_found_behind_rounding(rng):
    """In float32 though the inputs are float64, and wrong besides."""
    x, weight = normal(rng, 7, 64, dtype=np.float64), normal(rng, 64, dtype=np.float64)
    few, w = x.astype(np.float32), weight.astype(np.float32)
    size = np.sqrt((few * few).sum(-1, keepdims=True) / np.float32(63) + np.float32(1e-6))
    report = sf.check(sf.rms_norm, (few / size * w).astype(np.float64), x, weight, eps=1e-6)
    assert not report.ok
    assert first(report).name == "rms_norm.n_minus_one"


def test_tanh_gelu_for_gelu_is_no_rounding(rng):
    x = normal(rng, 6, 50, dtype=np.float64)
    few = x.astype(np.float32)
    mine = few * (1 + np.tanh(np.float32(0.7978845608) * (few + np.float32(0.044715) * few**3))) / 2
    report = sf.check("gelu", mine.astype(np.float64), x)
    assert not report.ok
    assert first(report).name.startswith("gelu.")


# ---- constants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (0.1768, "multiplied by 0.1768, needs 0.176777"),
        (50**-0.5, "divided by the root of the number of positions"),
        (0.2, "divided by 5, needs sqrt(32)"),
        (0.31, "multiplied by 0.31, needs"),
    ],
)
def test_a_scale_is_found_with_its_value(dtype, scale, words, rng):
    q = normal(rng, 2, 9, 32, dtype=dtype)
    k, v = normal(rng, 2, 50, 32, dtype=dtype), normal(rng, 2, 50, 16, dtype=dtype)
    report = sf.check(sf.scaled_dot_product_attention, attend(q, k, v, scale), q, k, v)
    assert not report.ok
    assert words in first(report).title, report


@pytest.mark.parametrize("moved", [-2e-7, 0, 2e-7])
def test_the_last_bits_do_not_decide_how_a_scale_is_spelled(moved, rng):
    """Kernels of another CPU add up in another order; all of that together moves a fitted scale by
    more than its standard error."""
    q = normal(rng, 2, 90, 32)
    k, v = normal(rng, 2, 47, 32), normal(rng, 2, 47, 128)
    mine = attend(q, k, v, 50**-0.5 * (1 + moved))
    report = sf.check(sf.scaled_dot_product_attention, mine, q, k, v)
    assert "divided by sqrt(50), needs sqrt(32)" in first(report).title, report


def test_a_constant_that_was_typed_in_is_called_so(rng):
    q, k, v = (normal(rng, 2, 9, 32) for _ in range(3))
    report = sf.check(sf.scaled_dot_product_attention, attend(q, k, v, 0.1768), q, k, v)
    assert first(report).cause == "0.176777, typed in with 4 decimals."


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("eps", [1e-5, 3e-5, 2e-4])
def test_an_eps_is_found_with_its_value(dtype, eps, rng):
    """Also where the error is smaller than what float32 is usually allowed."""
    x, weight = normal(rng, 9, 64, dtype=dtype), normal(rng, 64, dtype=dtype)
    report = sf.check(sf.rms_norm, idiom.rms_norm(x, weight, eps), x, weight, eps=1e-6)
    assert not report.ok
    assert f"{eps:g}" in first(report).title


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("theta", [10001.0, 12345.0, 250000.0])
def test_a_theta_is_found_with_its_value(dtype, theta, rng):
    x = normal(rng, 2, 40, 16, dtype=dtype)
    report = sf.check(sf.rope, idiom.rope(x, theta), x, layout="half", theta=10000.0)
    assert not report.ok
    assert first(report).title == f"theta is {int(theta):,}, needs 10,000"


def test_a_temperature_and_a_softcap_are_found(rng):
    x = normal(rng, 5, 9)
    report = sf.check(sf.softmax, idiom.softmax(x / np.float32(0.77)), x, temperature=0.7)
    assert first(report).title == "temperature is 0.77, needs 0.7"
    q, k, v = (normal(rng, 2, 9, 16, scale=4) for _ in range(3))
    scores = q @ k.swapaxes(-1, -2) / np.float32(4)
    mine = idiom.softmax(np.float32(30) * np.tanh(scores / np.float32(30))) @ v
    report = sf.check(sf.scaled_dot_product_attention, mine, q, k, v, softcap=50.0)
    assert first(report).title == "softcap is 30, needs 50"


def test_a_constant_rounded_to_few_bits_is_no_other_constant(rng):
    q, k, v = (normal(rng, 2, 9, 32) for _ in range(3))
    few = float(np.float16(32**-0.5))
    report = sf.check(sf.scaled_dot_product_attention, attend(q, k, v, few), q, k, v)
    assert report.nearly == "float16", report
    assert not report.diagnosis


def test_constants_in_a_layer(rng):
    w = [normal(rng, *shape, scale=1 / 8) for shape in ((64, 64), (32, 64), (32, 64), (64, 64))]
    given = {"rope_layout": "half", "q_norm": np.ones(16), "k_norm": np.ones(16)}
    given = {name: np.float32(x) if name.endswith("norm") else x for name, x in given.items()}
    x = normal(rng, 11, 64)
    layers = [
        nn.GroupedQueryAttention(64, 4, 2, *w, **given, theta=theta, norm_eps=eps)
        for theta, eps in ((1e4, 1e-6), (2e4, 1e-6), (1e4, 1e-3))
    ]
    right, turned, blurred = (layer(x, mask="causal") for layer in layers)
    assert sf.check(layers[0], right, x, mask="causal").ok
    report = sf.check(layers[0], turned, x, mask="causal")
    assert first(report).title == "theta is 20,000, needs 10,000"
    assert "eps is 1e-03" in first(sf.check(layers[0], blurred, x, mask="causal")).title


def test_rounding_of_sums_is_no_eps(rng):
    """One long sum after the other, in float32: off by more than pairwise sums, and right."""
    x = normal(rng, 3, 4096)
    total = np.zeros((3, 1), np.float32)
    for i in range(4096):
        total += x[:, i, None] ** 2
    mine = x / np.sqrt(total / np.float32(4096) + np.float32(1e-6))
    assert sf.check(sf.rms_norm, mine, x, eps=1e-6).ok


# ---- figures, and functions ----------------------------------------------------------------------


def test_figures_of_a_printed_page_are_right_to_their_decimals(rng):
    x = normal(rng, 3, 7)
    printed = np.round(idiom.softmax(x), 4)
    report = sf.check(sf.softmax, printed.tolist(), x)
    assert report.ok
    assert "right to the 4 decimals that your numbers have: typed in, or printed?" in report.remarks
    printed[1, 2] += 0.02  # a slip of the pen
    assert not sf.check(sf.softmax, printed.tolist(), x).ok
    assert not sf.check(sf.softmax, np.round(idiom.softmax(x.T).T, 4).tolist(), x).ok


def test_a_function_is_called_twice(rng):
    x, weight = normal(rng, 3, 8), normal(rng, 8)
    assert sf.check(sf.rms_norm, idiom.rms_norm, x, weight, eps=1e-5).ok

    def with_dropout(x, weight, eps):
        return idiom.rms_norm(x, weight, eps) * (rng.random(x.shape) > 0.1) / np.float32(0.9)

    report = sf.check(sf.rms_norm, with_dropout, x, weight, eps=1e-5)
    assert not report.ok
    assert first(report).name == "call.two_answers"
    calls = []

    def that_drifts(x):
        calls.append(0)
        return sf.softmax(x) * (1 + 1e-4 * len(calls))

    for one in (x, x.astype(np.float64)):  # 16 bits, or float32, would explain it
        calls.clear()
        report = sf.check(sf.softmax, that_drifts, one)
        assert (report.ok, report.nearly, report.remarks) == (False, "", ())
        said = re.search(r": ([\d.]+), then ([\d.]+) at", first(report).cause)
        assert said[1] != said[2]
    assert "Dropout is left on" in repr(report)
    assert re.search(r"read: .+, then .+ at \[\d, \d\]\.", first(report).cause)

    def in_place(x, weight, eps):
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
        x *= weight
        return x

    before = x.copy()
    report = sf.check(sf.rms_norm, in_place, x, weight, eps=1e-5)
    assert [mistake.name for mistake in report.diagnosis] == ["call.argument_changed"]
    np.testing.assert_array_equal(x, before)
    wrong = sf.check(sf.rms_norm, lambda x, weight, eps: x * weight, x, weight, eps=1e-5)
    assert first(wrong).name == "rms_norm.not_divided"


def test_the_worst_number_is_told_with_as_many_digits_as_it_takes(rng):
    x, weight = normal(rng, 9, 64), normal(rng, 64)
    report = sf.check(sf.rms_norm, idiom.rms_norm(x, weight, 1e-5), x, weight, eps=1e-6)
    line = next(line for line in repr(report).splitlines() if "needs" in line)
    assert not line.lstrip().startswith("0 of")
    found, needed = line.rpartition(": ")[2].split(", needs ")
    assert found != needed
