"""The third verdict: more off than the dtypes that took part explain, less than 16 bits would."""

import numpy as np
import pytest
import torch

import simdformer as sf
from conftest import bfloat16, normal
from right_answers import Numpy
from simdformer.learn.check.report import Report

idiom = Numpy()


def softmax_plus(x, addend):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + x.dtype.type(addend))


def verdict(report):
    """From right to wrong: 0, 1, 2."""
    assert not (report.ok and report.nearly)
    return 0 if report.ok else 1 if report.nearly else 2


# What is added to the right answer, as a function of its size: all kinds of error.
ERRORS = {
    "everything": lambda y, rng: rng.standard_normal(y.shape),
    "a factor": lambda y, rng: y,
    "a factor of each row": lambda y, rng: y * rng.uniform(-1, 1, (*y.shape[:-1], 1)),
    "one row": lambda y, rng: y * (np.arange(y.shape[-2])[:, None] == 1),
    "one number": lambda y, rng: np.abs(y).max() * (np.arange(y.size).reshape(y.shape) == 3),
}
CALLS = {
    "softmax": lambda x: ((x,), {}),
    "gelu": lambda x: ((x,), {}),
    "rms_norm": lambda x: ((x,), {"eps": 1e-6}),
    "layer_norm": lambda x: ((x,), {"eps": 1e-5}),
    "rope": lambda x: ((x,), {"layout": "half"}),
    "swiglu": lambda x: ((x, x[..., ::-1].copy()), {}),
    "linear": lambda x: ((x, np.resize(x, (6, x.shape[-1])) / 8), {}),
    "scaled_dot_product_attention": lambda x: ((x, x[::-1].copy(), 1 - x), {"is_causal": True}),
}


SHAPES = [(4, 6), (3, 40), (2, 5, 16)]
LADDERS = [
    pytest.param(name, shape, marks=[pytest.mark.slow] * (shape != SHAPES[0]))
    for name in CALLS
    for shape in SHAPES
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "shape"), LADDERS, ids=str)
def test_a_larger_error_is_never_nearer_to_right(name, shape, rng):
    args, kwargs = CALLS[name](normal(rng, *shape))
    right = np.asarray(getattr(sf.reference, name)(*args, **kwargs))
    for kind, error in ERRORS.items():
        direction = error(right, rng)
        ladder = [
            verdict(
                sf.check(name, (right + 10.0**e * direction).astype(np.float32), *args, **kwargs)
            )
            for e in (-8, -4, -3, -2, -1, 1)
        ]
        assert ladder == sorted(ladder), (kind, ladder)
        assert ladder[0] == 0
        assert ladder[-1] == 2


@pytest.mark.parametrize("shape", [(3, 4), (4, 30), (8, 1024), (2, 3, 50)], ids=str)
def test_a_softmax_with_something_added_below_is_not_right(shape, rng):
    x = normal(rng, *shape)
    found = [verdict(sf.check("softmax", softmax_plus(x, c), x)) for c in (1e-6, 0.01, 0.1, 1, 10)]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[2] > 0


def test_it_says_how_far_off_and_when_it_would_be_right(rng):
    x = normal(rng, 8, 64)
    report = sf.check("softmax", softmax_plus(x, 0.02), x)
    assert not report
    assert report.nearly in ("float16", "bfloat16")
    said = " ".join(repr(report).split())
    assert said.startswith("≈ softmax (8, 64) float32: nearly right: ")
    assert f"right only if this is computed in {report.nearly}" in said
    assert "% off, more than float32 explains" in said
    assert max(map(len, repr(report).splitlines())) <= 80
    assert "#8a6100" in report._repr_html_()
    with pytest.raises(sf.CheckError, match="nearly right"):
        report.raise_if_wrong()


def in_the_middle(x):
    """Float32 but for one step."""
    few = (x - x.max(-1, keepdims=True)).astype(bfloat16).astype(np.float32)
    return np.exp(few) / np.exp(few).sum(-1, keepdims=True)


def test_right_in_16_bits_where_that_is_known(rng):
    """By dtype=, by the array's numbers, by the function itself; not by the size of the error."""
    x = normal(rng, 6, 64)
    assert verdict(sf.check("softmax", in_the_middle(x), x)) == 1
    assert sf.check("softmax", in_the_middle(x), x, dtype="bfloat16").ok
    assert sf.check("softmax", in_the_middle(x), x, dtype=torch.bfloat16).ok
    assert sf.check("softmax", in_the_middle, x).ok
    widened = idiom.softmax(x.astype(bfloat16)).astype(np.float32)
    assert sf.check("softmax", widened, x).ok
    assert verdict(sf.check("softmax", lambda x: softmax_plus(x, 0.02), x)) == 1
    ids, table = np.arange(3), normal(rng, 5, 8)
    assert sf.check("embedding", table[ids].astype(bfloat16), ids, table, dtype=bfloat16).ok


def test_autocast_is_right(rng):
    def attention(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.softmax((q @ k.transpose(-1, -2)).float() / 4, -1) @ v

    def norm(x, eps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (
                torch.rsqrt((x @ x.transpose(-1, -2)).diagonal(0, -1, -2).float() / 32)[..., None]
                * x
            )

    q, k, v = (torch.from_numpy(normal(rng, 2, 3, 9, 16)) for _ in range(3))
    assert sf.check(sf.scaled_dot_product_attention, attention, q, k, v).ok
    assert sf.check(sf.scaled_dot_product_attention, attention(q, k, v).float(), q, k, v).ok
    assert sf.check("rms_norm", norm, torch.from_numpy(normal(rng, 9, 32)), eps=0.0).ok


def test_an_allowance_has_a_cap(rng):
    """In float16 an eps of 1e-8 is 0, and so is the mean of these squares."""
    x = (1e-4 * rng.standard_normal((4, 64))).astype(np.float16)
    for wrong in (100 * rng.standard_normal(x.shape), np.full(x.shape, np.inf)):
        assert not sf.check("rms_norm", wrong.astype(np.float16), x, eps=1e-8).ok
    assert sf.check("rms_norm", sf.rms_norm(x, eps=1e-8), x, eps=1e-8).ok


def test_figures_and_choices():
    scores = [1000.0, 1000.1, 1000.2]
    assert verdict(sf.check("softmax", [0.1, 0.2, 0.7], scores)) == 2
    assert sf.check("softmax", [0.30, 0.33, 0.37], scores).ok
    sharp = np.array([[0, 9.0, 1], [8, 0, 0.5], [1, 0, 7.5]], np.float32)
    assert not sf.check("softmax", np.eye(3, dtype=np.float32)[sharp.argmax(-1)], sharp).ok


def test_a_row_that_is_off_is_not_right(rng):
    x = normal(rng, 6, 64)
    mine = idiom.rms_norm(x, np.float32(1), 1e-6)
    mine[2] *= np.float32(1.03)
    assert not sf.check("rms_norm", mine, x, eps=1e-6).ok


def test_long_rows_hide_an_eps_as_a_plain_sum_does():
    """The rows of the demonstration model's last norm: 1e-6 for 1e-5 is no more than rounding."""
    model = sf.from_pretrained(sf.demo_path())
    _, trace = model.run_with_cache("Once upon a time there was a small fox named Ada.")
    x = trace["resid_post", model.config.num_layers - 1]
    squares = np.add.accumulate(x * x, axis=-1, dtype=np.float32)[:, -1:] / np.float32(x.shape[-1])
    one_by_one = x / np.sqrt(squares + np.float32(1e-5))
    other_eps = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
    right = sf.reference.rms_norm(x, eps=1e-5)
    off = [np.abs(mine - right).max() for mine in (one_by_one, other_eps)]
    assert off[1] < 4 * off[0]
    for mine in (one_by_one, other_eps):
        assert sf.check(sf.rms_norm, mine, x, eps=1e-5).ok
    faint = x * np.float32(1e-3)
    mine = faint / np.sqrt((faint * faint).mean(-1, keepdims=True) + np.float32(1e-6))
    assert "eps is 1e-06" in sf.check(sf.rms_norm, mine, faint, eps=1e-5).diagnosis[0].title


def test_how_far_off_is_told_by_the_whole_array_where_a_row_is_next_to_nothing():
    """As it is judged: a row that is nothing beside the others is not 240 % off."""
    right = np.array([[1.0, -1.0], [1e-4, 1e-4]])
    report = Report(
        False, "softmax", nearly="bfloat16", meant="float32", mine=right + 2.4e-4, right=right
    )
    assert "nearly right: 0.034 % off" in repr(report)
