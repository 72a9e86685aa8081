"""`check` of gradients: what may be given, and what is said. That right ones are right, in whatever
way they are written, is in test_gradients_by_hand."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal, to_torch
from mistake_examples import names
from right_answers import Numpy

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


def softmax_in_place(g, p):
    """Karpathy's: the gradient of the scores in the memory of a copy of the shares'."""
    dx = g * p
    dx -= p * dx.sum(-1, keepdims=True)
    return dx


def softmax(rng):
    return sf.backward.softmax, (normal(rng, 3, 5, 7), Numpy().softmax(normal(rng, 3, 5, 7))), {}


def embedding(rng):
    ids = rng.integers(0, 6, (3, 8))
    return sf.backward.embedding, (normal(rng, 3, 8, 5), ids, 11), {}


def test_a_function_is_called(rng):
    op, args, _ = softmax(rng)
    assert sf.check(op, softmax_in_place, *args)
    report = sf.check(op, lambda g, p: p * g, *args)
    assert [one.name for one in report.diagnosis] == ["softmax_backward.row_sum_missing"]
    assert repr(report).startswith("✗ backward.softmax (3, 5, 7) float32: wrong")


def test_two_mistakes_at_once(rng):
    """The sum along another axis, and the temperature forgotten."""
    op, (g, p), _ = softmax(rng)
    mine = p * (g - (g * p).sum(1, keepdims=True))
    report = sf.check(op, mine, g, p, temperature=0.5)
    assert {one.name for one in report.diagnosis} == {
        "softmax_backward.another_axis",
        "softmax_backward.no_temperature",
    }


def test_what_is_summed_into_an_array_is_not_judged(rng):
    op, args, _ = embedding(rng)
    with pytest.raises(TypeError, match=r"check: accumulate is given, needs a call that adds noth"):
        sf.check(op, np.zeros((11, 5)), *args, accumulate=np.zeros((11, 5), np.float32))


# ---- gradients of several arguments --------------------------------------------------------------


def linear(rng):
    return sf.backward.linear, (normal(rng, 3, 4, 6), normal(rng, 3, 4, 5), normal(rng, 6, 5)), {}


def rms_norm(rng):
    args = normal(rng, 2, 7, 8), normal(rng, 2, 7, 8), normal(rng, 8)
    return sf.backward.rms_norm, args, {"eps": 1e-5}


def swiglu(rng):
    return sf.backward.swiglu, tuple(normal(rng, 4, 9) for _ in range(3)), {}


def test_each_gradient_has_its_verdict(rng):
    op, (g, x, w), kwargs = rms_norm(rng)
    right = op(g, x, w, **kwargs)
    said = "✓ backward.rms_norm: x right, weight right"
    assert repr(sf.check(op, right, g, x, w, **kwargs)).startswith(said)
    h = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5))
    no_sum = right._replace(weight=(g * h).sum(0))
    for mine in (no_sum, tuple(no_sum), list(no_sum), no_sum._asdict()):
        report = sf.check(op, mine, g, x, w, **kwargs)
        assert [(name, one.ok) for name, one in report.parts] == [("x", True), ("weight", False)]
        assert repr(report).startswith(
            "✗ backward.rms_norm: x right, weight wrong\n  weight: shape"
        )
        assert [one.name for one in report.diagnosis] == [
            "rms_norm_backward.weight_sum_of_one_axis"
        ]


def test_one_mistake_of_both_gradients_is_told_once(rng):
    op, (g, x, w), _ = rms_norm(rng)
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True))
    h = x * r
    mine = r * (g * w - h * (g * w * h).mean(-1, keepdims=True)), (g * h).sum((0, 1))
    report = sf.check(op, mine, g, x, w, eps=0.05)
    assert [one.name for one in report.diagnosis] == ["rms_norm_backward.no_eps"]
    text = repr(report)
    assert text.startswith("✗ backward.rms_norm: x wrong, weight wrong")
    assert text.count("➤") == 1
    assert "x wrong, weight wrong" in report._repr_html_()


@pytest.mark.parametrize("rows", [20, 4])
def test_one_factor_of_all_gradients_is_told_once(rows, rng):
    """Though that of a weight alone has another name."""
    x, weight, grad = normal(rng, 4, 5, 9), normal(rng, 7, 9), normal(rng, 4, 5, 7)
    scale = normal(rng, 7)
    for op, args, kwargs in (
        (sf.backward.linear, (grad, x, weight), {}),
        (sf.backward.rms_norm, (grad, normal(rng, 4, 5, 7), scale), {"eps": 1e-6}),
    ):
        right = op(*args, **kwargs)
        report = sf.check(op, tuple(one / np.float32(rows) for one in right), *args, **kwargs)
        assert names(report) == ["gradient.divided"], repr(report)
        assert repr(report).count("➤") == 1
    mine = right._replace(weight=right.weight / np.float32(20))
    assert names(sf.check(op, mine, *args, **kwargs)) == ["rms_norm_backward.weight_averaged"]


def test_two_mistakes_in_two_gradients_stand_below_their_own(rng):
    op, (g, x, w), _ = linear(rng)
    report = sf.check(op, (None, g[-1].T @ x[-1], g.mean((0, 1))), g, x, w)
    text = repr(report)
    assert text.startswith("✗ backward.linear: weight wrong, bias wrong")
    assert text.index("  weight (6, 5)") < text.index("last_sequence_only")
    assert text.index("last_sequence_only") < text.index("  bias (6,)") < text.index("bias_averag")
    assert "not among your gradients, so not checked: x" in " ".join(text.split())


def test_what_cannot_be_a_set_of_gradients(rng):
    op, (g, x, w), kwargs = rms_norm(rng)
    right = op(g, x, w, **kwargs)
    for mine, said in (
        (right.x[0], "mine is no set of gradients"),
        ((None, None), "mine is no set of gradients"),
        ((*right, right.x), "mine is no set of gradients"),
        ({"x": right.x, "u": right.weight}, "mine has 'u', needs one of x, weight; rename it"),
    ):
        with pytest.raises(TypeError, match=said):
            sf.check(op, mine, g, x, w, **kwargs)
    with pytest.raises(TypeError, match="mine has a gradient of weight, needs None"):
        sf.check(op, right, g, x, **kwargs)
    report = sf.check(op, op(g, x, **kwargs).x, g, x, **kwargs)  # the only one there is
    assert report.ok
    assert not report.remarks


def test_one_array_is_the_gradient_of_its_shape(rng):
    op, (g, x, w), _ = linear(rng)
    right = op(g, x, w)
    for name in right._fields:
        mine = getattr(right, name)
        report = sf.check(op, mine, g, x, w)
        assert report.ok
        assert f"{name} right" in repr(report)
        assert not sf.check(op, 2 * mine, g, x, w).ok
    square = (normal(rng, 5, 6), normal(rng, 5, 6), normal(rng, 6, 6))
    assert sf.check(op, op(*square).weight, *square).ok
    op, arrays, _ = swiglu(rng)
    with pytest.raises(TypeError, match=r"may be that of gate or up; pass a dict, {'gate': ...}"):
        sf.check(op, op(*arrays).up, *arrays)


def test_a_list_of_weights_is_judged_as_one(rng):
    x, grads = normal(rng, 2, 7, 8), [normal(rng, 2, 7, 3), normal(rng, 2, 7, 5)]
    weights = [normal(rng, 3, 8), normal(rng, 5, 8)]
    op, given = sf.backward.linear, (grads, x, weights)
    right = op(*given)
    tensors = [*map(to_torch, grads)], to_torch(x), [*map(to_torch, weights)]
    for mine in (right, right._asdict(), op, {"dW": [*map(to_torch, right.weight)]}):
        assert sf.check(op, mine, *given).ok
    assert sf.check(op, right, *tensors).ok
    report = sf.check(op, right._replace(x=op(grads[1], x, weights[1]).x), *given)
    assert [name for name, one in report.parts if not one.ok] == ["x"]
    wrong = {"weight": [one / 14 for one in right.weight]}
    report = sf.check(op, wrong, grad=grads, x=x, weight=weights)
    assert [one.name for one in report.diagnosis] == ["linear_backward.weight_averaged"]
    with pytest.raises(ValueError, match=r"backward\.linear: "):
        sf.check(op, right, grads[::-1], x, weights)


def test_blind_inputs_are_said(rng):
    op, (g, x, w), kwargs = rms_norm(rng)
    ones = np.ones_like(w)
    report = sf.check(op, op(g, x, ones, **kwargs), g, x, ones, **kwargs)
    assert "all numbers of weight are equal" in repr(report)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda r: r._replace(x=-r.x), "the sign is flipped"),
        (lambda r: r._replace(weight=2 * r.weight), "it is multiplied by 2"),
        (lambda r: r._replace(weight=r.weight / 7), "it is divided by 7, the number of positions"),
        (lambda r: r._replace(bias=r.bias / 3), "it is divided by 3, the batch size"),
        (lambda r: r._replace(weight=0 * r.weight), "it is 0 everywhere"),
        (lambda r: r._replace(x=r.weight, weight=r.x), "x and weight are swapped"),
        (lambda r: {"x": r.weight}, "this is weight, not x"),
    ],
)
def test_what_was_done_to_a_whole_gradient_is_named(spoil, said, rng):
    args = normal(rng, 3, 7, 5), normal(rng, 3, 7, 4), normal(rng, 5, 4)
    report = sf.check(sf.backward.linear, spoil(sf.backward.linear(*args)), *args)
    assert [one.title for one in report.diagnosis] == [said], report


def test_a_constant_of_a_gradient_is_fitted(rng):
    g, x, w = normal(rng, 3, 7, 8), normal(rng, 3, 7, 8), normal(rng, 8)
    mine = sf.backward.rms_norm(g, x, w, eps=0.03)
    report = sf.check(sf.backward.rms_norm, mine, g, x, w, eps=1e-5)
    assert report.diagnosis[0].title == "eps is 0.03, needs 1e-05"


# ---- large ones, of which a part is looked at ----------------------------------------------------


def large_linear(rng):
    g, x, w = normal(rng, 2, 200, 300), normal(rng, 2, 200, 300), normal(rng, 300, 300)
    dx, dw, db = sf.backward.linear(g, x, w)
    return "linear", (g, x, w), {}, (dx, dw, db), {
        "linear_backward.weight_transposed": (g @ w.T, dw, db),
        "linear_backward.transposed": (dx, dw.T, db),
        "linear_backward.last_sequence_only": (dx, g[-1].T @ x[-1], db),
        "linear_backward.bias_averaged": (dx, dw, g.mean((0, 1))),
        "linear_backward.output_for_gradient": (dx, np.einsum("bto,bti->oi", x @ w.T, x), db),
    }  # fmt: skip


def large_norm(rng):
    g, x, w = normal(rng, 3, 99, 256), normal(rng, 3, 99, 256), normal(rng, 256)
    dx, dw = sf.backward.rms_norm(g, x, w, eps=1e-6)
    h = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    r = h[..., :1] / x[..., :1]
    return "rms_norm", (g, x, w), {"eps": 1e-6}, (dx, dw), {
        "rms_norm_backward.second_term_missing": (r * g * w, dw),
        "rms_norm_backward.mean_over_rows": (r * (g * w - h * (g * w * h).mean((0, 1))), dw),
        "rms_norm_backward.h_missing_in_weight": (dx, g.sum((0, 1))),
    }  # fmt: skip


def large_rope(rng):
    g = normal(rng, 2, 4, 300, 64)
    options = {"layout": "half", "offset": 5}
    back = {"layout": "half", "positions": -np.arange(300)}
    return "rope", (g,), options, sf.backward.rope(g, **options), {
        "rope_backward.turned_forwards": sf.rope(g, **options),
        "rope_backward.positions_lost": sf.rope(g, **back),
    }  # fmt: skip


def large_swiglu(rng):
    g, gate, up = (normal(rng, 400, 256) for _ in range(3))
    dgate, dup = sf.backward.swiglu(g, gate, up)
    return "swiglu", (g, gate, up), {}, (dgate, dup), {
        "swiglu_backward.up_missing": (dgate / up, dup),
        "swiglu_backward.swapped": (dup, dgate),
    }  # fmt: skip


@pytest.mark.parametrize("case", [large_linear, large_norm, large_rope, large_swiglu])
def test_a_mistake_in_a_large_gradient_is_named(case, rng):
    name, args, options, right, wrong = case(rng)
    op = getattr(sf.backward, name)
    assert sf.check(op, right, *args, **options).ok
    for mistake, mine in wrong.items():
        report = sf.check(op, mine, *args, **options)
        assert [one.name for one in report.diagnosis] == [mistake], report


# ---- terms that leave nothing --------------------------------------------------------------------


def by_pytorch(forward, grad, *inputs):
    """The gradients of all inputs."""
    tensors = [to_torch(x).requires_grad_(True) for x in inputs]
    return torch.autograd.grad(forward(*tensors), tensors, to_torch(grad))


def rms_norm_by_hand(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w


def norm_of_few(rng, width, dtype, scale):
    """grad, x, weight"""
    drawn = normal(rng, 5, width), scale * normal(rng, 5, width), normal(rng, width)
    return tuple(x.astype(dtype) for x in drawn)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_rounding_of_terms_that_cancel_is_right(scale, width, dtype, rng):
    """Of one number nothing is left by the mean, and by rms_norm next to nothing."""
    g, x, w = norm_of_few(rng, width, dtype, scale)
    layer_norm = by_pytorch(lambda x, w, b: F.layer_norm(x, (width,), w, b, 1e-5), g, x, w, w)
    report = sf.check(sf.backward.layer_norm, layer_norm, g, x, w, w, eps=1e-5)
    assert report.ok, report
    rms_norm = by_pytorch(rms_norm_by_hand, g, x, w)
    report = sf.check(sf.backward.rms_norm, rms_norm, g, x, w, eps=1e-5)
    assert report.ok, report
    (softmax,) = by_pytorch(lambda x: torch.softmax(x, -1), g, x)
    shares = torch.softmax(to_torch(x), -1)
    report = sf.check(sf.backward.softmax, softmax, g, shares)
    assert report.ok, report


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_mistakes_are_wrong_where_terms_cancel(dtype, rng):
    """The gradient of a row of one number is 0, or next to it; each of the terms is not."""
    g, x, w = norm_of_few(rng, 1, dtype, 3.0)
    ones, r = np.ones_like(x), np.array(1e-5**-0.5, dtype)
    labels = np.zeros(5, int)
    wrong = [
        sf.check("backward.layer_norm", (r * g * w, None, None), g, x, w, w, eps=1e-5),
        sf.check("backward.layer_norm", (None, g.sum(0), None), g, x, w, w, eps=1e-5),
        sf.check("backward.rms_norm", (g * w / abs(x), None), g, x, w, eps=1e-5),
        sf.check("backward.softmax", g, g, ones),
        sf.check("backward.log_softmax", g, g, 0 * ones),
        sf.check("backward.cross_entropy", ones / 5, x, labels),
    ]
    assert not any(report.ok or report.nearly for report in wrong)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_a_unit_is_right_where_terms_cancel(dtype, rng):
    g, x, _ = norm_of_few(rng, 1, dtype, 3.0)
    off = (ml_dtypes.finfo(dtype).eps * np.ones_like(x)).astype(dtype)
    right = [
        sf.check("backward.softmax", g * off, g, np.ones_like(x)),
        sf.check("backward.log_softmax", g * off, g, np.zeros_like(x)),
        sf.check("backward.cross_entropy", off / 5, x, np.zeros(5, int)),
    ]
    assert all(report.ok for report in right)
