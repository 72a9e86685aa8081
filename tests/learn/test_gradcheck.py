"""sf.gradcheck: right gradients of every operation are right, wrong ones wrong, and said how."""

import numpy as np
import pytest

import simdformer as sf
from simdformer import reference
from simdformer.reference import backward

EPS = 1e-3


@pytest.fixture
def draw(rng):
    return lambda *shape: rng.standard_normal(shape)


def attend(q, k, v):
    return reference.scaled_dot_product_attention(q, k, v, is_causal=True)


def attend_backward(grad, q, k, v):
    out, lse = reference.scaled_dot_product_attention(q, k, v, is_causal=True, return_lse=True)
    return backward.scaled_dot_product_attention(grad, q, k, v, out, lse, is_causal=True)[:3]


RIGHT = {
    "linear": (sf.linear, backward.linear, [(2, 5, 4), (3, 4), (3,)]),
    "rms_norm": (
        lambda x, w: sf.rms_norm(x, w, eps=EPS),
        lambda grad, x, w: backward.rms_norm(grad, x, w, eps=EPS),
        [(3, 8), (8,)],
    ),
    "layer_norm": (
        lambda x, w, b: sf.layer_norm(x, w, b, eps=EPS),
        lambda grad, *given: backward.layer_norm(grad, *given, eps=EPS),
        [(3, 8), (8,), (8,)],
    ),
    "rope": (
        lambda x: sf.rope(x, layout="half", offset=3),
        lambda grad, x: backward.rope(grad, layout="half", offset=3),
        [(2, 3, 8)],
    ),
    "softmax": (sf.softmax, lambda grad, x: backward.softmax(grad, sf.softmax(x)), [(3, 6)]),
    "silu": (sf.silu, backward.silu, [(4, 5)]),
    "gelu": (sf.gelu, backward.gelu, [(4, 5)]),
    "swiglu": (sf.swiglu, backward.swiglu, [(4, 5), (4, 5)]),
    "attention": (attend, attend_backward, [(4, 5, 6), (2, 5, 6), (2, 5, 3)]),
}


def call_of_linear(grad, x, w, b):
    return backward.linear(grad, x, w)


@pytest.mark.parametrize("name", RIGHT)
def test_right_gradients_are_right(name, draw):
    f, gradient, shapes = RIGHT[name]
    gradient = call_of_linear if name == "linear" else gradient
    report = sf.gradcheck(f, gradient, *(draw(*shape) for shape in shapes))
    assert report.ok, report
    assert len(report.inputs) == len(shapes)
    assert max(one.error for one in report.inputs) < 1e-8
    report.raise_if_wrong()


def test_what_is_wrong_is_said(draw):
    x, w = draw(3, 8), draw(8)

    def norm(x, w):
        return sf.rms_norm(x, w, eps=EPS)

    def constant(grad, x, w):
        dx, dw = backward.rms_norm(grad, x, w, eps=EPS)
        return dx, dw / 8

    report = sf.gradcheck(norm, constant, x, w)
    assert not report
    right, wrong = report.inputs
    assert (right.name, right.ok) == ("x", True)
    assert (wrong.name, wrong.message) == ("w", "is 0.125 times the right one")
    with pytest.raises(sf.CheckError, match=r"✗ w +is 0\.125 times the right one"):
        report.raise_if_wrong()


def test_wrong_numbers_are_located(draw):
    ids = np.array([1, 3, 1])

    def pick(weight):
        return sf.embedding(ids, weight)

    def overwritten(grad, weight):
        total = np.zeros_like(weight)
        total[ids] = grad
        return total

    (found,) = sf.gradcheck(pick, overwritten, draw(5, 4)).inputs
    assert "4 of 20 numbers are wrong, the first at [1, 0]" in found.message
    assert "needs" in found.message


def test_shapes_none_and_what_is_not_finite(draw):
    x, w = draw(5, 4), draw(3, 4)
    right = lambda grad, x, w: (grad @ w, grad.T @ x)  # noqa: E731
    assert sf.gradcheck(sf.linear, right, x, w)
    shape = sf.gradcheck(sf.linear, lambda g, x, w: (g @ w, x.T @ g), x, w).inputs[1]
    assert shape.message == "has shape (4, 3), needs (3, 4), that of the input"
    none = sf.gradcheck(sf.linear, lambda g, x, w: (g @ w, None), x, w).inputs[1]
    assert none.message == "is None, but the output depends on this input"
    nan = sf.gradcheck(sf.linear, lambda g, x, w: (g @ w * np.nan, g.T @ x), x, w).inputs[0]
    assert nan.message == "20 of 20 numbers are not finite"


def test_integers_have_no_gradient(draw):
    ids, weight = np.array([[1, 3], [1, 0]]), draw(5, 4)
    report = sf.gradcheck(
        sf.embedding,
        lambda grad, ids, weight: (None, backward.embedding(grad, ids, 5)),
        ids,
        weight,
    )
    assert report.ok
    assert [one.name for one in report.inputs] == ["weight"]


def test_several_outputs(draw):
    def both(x):
        return np.sin(x), x * x

    report = sf.gradcheck(both, lambda g, x: g[0] * np.cos(x) + 2 * x * g[1], draw(4))
    assert report.ok


X = np.array([[1.0, -2.0], [3.0, 0.5]])
SAID = {
    "not 0": (lambda x: 0 * x, lambda g, x: 3 * g, "is not 0, the right one is"),
    "not 0, a sum of 1": (sf.softmax, lambda g, x: g, ""),
    "0": (lambda x: 3 * x, lambda g, x: 0 * g, "is 0, the right one is not"),
    "0, but for rounding": (
        lambda x: sf.softmax(x).sum(),
        lambda g, x: x,
        "is not 0, the right one is",
    ),
    "small": (lambda x: 1e-13 * x, lambda g, x: 5e-13 * g, "is 5 times the right one"),
    "one number": (
        lambda x: x**2,
        lambda g, x: 2 * x * g + (x > 2),
        "1 of 4 numbers is wrong, the first at [1, 0]",
    ),
    "float32": (
        lambda x: (x / 3).astype(np.float32).astype(np.float64) ** 2,
        lambda g, x: 2 * x * g / 9,
        "f is not smooth here, and differences tell no more: is there a float32 inside of it",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_a_wrong_gradient(name):
    f, gradient, said = SAID[name]
    (found,) = sf.gradcheck(f, gradient, X).inputs
    assert not found.ok
    assert said in found.message


def test_a_gradient_of_0_and_one_without_numbers():
    (found,) = sf.gradcheck(lambda x: sf.softmax(x).sum(), lambda g, x: 0 * x, X).inputs
    assert (found.ok, found.message) == (True, "is 0, as it should be")
    (found,) = sf.gradcheck(lambda x: x, lambda g, x: g, X[:0]).inputs
    assert (found.ok, found.message) == (True, "has no numbers, so nothing was compared")


@pytest.mark.parametrize(
    ("f", "x", "where"),
    [
        (lambda x: np.where(x > 0, x**2, np.nan), X, r"at these inputs \(1 of 4 numbers\)"),
        (lambda x: x * np.nan, X, r"at these inputs \(4 of 4 numbers\)"),
        (lambda x: np.where(x > 0, x, np.inf), np.array([1, 1e-6]), "next to these inputs"),
    ],
)
def test_what_has_no_differences_is_not_ticked(f, x, where):
    with pytest.raises(ValueError, match=f"gradcheck: f gives NaN or infinity {where}"):
        sf.gradcheck(f, lambda g, x: 17 * g * x, x)


def test_refusals(draw):
    with pytest.raises(TypeError, match="gradcheck: f gives float32 for inputs of float64, needs"):
        sf.gradcheck(lambda x: x.astype(np.float32) ** 2, lambda g, x: 2 * x * g, draw(3, 5))
    with pytest.raises(ValueError, match="gradcheck: no input is float64"):
        sf.gradcheck(np.sum, lambda g, x: g, np.arange(3))
    with pytest.raises(ValueError, match="gradcheck: seed is -1, needs a whole number >= 0"):
        sf.gradcheck(np.sin, lambda g, x: g, draw(3), seed=-1)
    with pytest.raises(TypeError, match=r"gradcheck: inputs\[0\] has dtype float32, needs float64"):
        sf.gradcheck(sf.silu, backward.silu, draw(3).astype(np.float32))
    with pytest.raises(ValueError, match="gradcheck: backward gives 1 gradient, needs 2"):
        sf.gradcheck(sf.linear, lambda g, x, w: g @ w, draw(5, 4), draw(3, 4))
