"""`check` of the cross entropy and its gradient: what is right is right, in whatever way it is
written."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal, to_torch
from mistake_examples import names
from test_check_backward import DTYPES

IGNORED = -100
LABELS = np.array([[1, 7, 0, 2, 5], [IGNORED, 3, 3, 6, IGNORED], [4, IGNORED, IGNORED, 0, 6]])
N = (LABELS != IGNORED).sum()


def flat(z, y):
    return z.reshape(-1, z.shape[-1]), y.ravel()


def shares(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def one_hot(z, y):
    return np.eye(z.shape[-1], dtype=z.dtype)[np.maximum(y, 0)] * (y >= 0)[..., None]


# ---- the loss ------------------------------------------------------------------------------------


def loss_by_loop(z, y):
    losses = [-np.log(shares(row)[at]) for row, at in zip(*flat(z, y), strict=True) if at >= 0]
    return sum(losses) / len(losses)


def loss_by_einsum(z, y):
    logs = z - np.logaddexp.reduce(z, -1, keepdims=True)
    return -np.einsum("btv,btv->", logs, one_hot(z, y)) / z.dtype.type((y >= 0).sum())


def loss_as_karpathy(z, y):
    """The steps of his exercise."""
    z, y = flat(z, y)
    z, y = z[y >= 0], y[y >= 0]
    counts = np.exp(z - z.max(1, keepdims=True))
    probs = counts * counts.sum(1, keepdims=True) ** -1
    return -np.log(probs)[np.arange(len(y)), y].mean()


def loss_by_torch(z, y):
    return F.cross_entropy(to_torch(z).flatten(0, -2), torch.tensor(y.ravel())).numpy()


# ---- the gradient --------------------------------------------------------------------------------


def gradient_by_loop(z, y):
    dz = np.zeros_like(z)
    for at in np.ndindex(y.shape):
        if y[at] >= 0:
            dz[at] = shares(z[at])
            dz[at][y[at]] -= 1
    return dz / dz.dtype.type((y >= 0).sum())


def gradient_by_one_hot(z, y):
    keep = (y >= 0)[..., None] / z.dtype.type((y >= 0).sum())
    return (shares(z) - one_hot(z, y)) * keep.astype(z.dtype)


def gradient_as_karpathy(z, y):
    """Step by step back through logarithm, quotient, sum, exp and maximum."""
    rows, label = flat(z, y)
    keep = label >= 0
    rows, label, n = rows[keep], label[keep], keep.sum()
    counts = np.exp(rows - rows.max(1, keepdims=True))
    inverse = 1 / counts.sum(1, keepdims=True)
    probs = counts * inverse
    dlogs = np.zeros_like(probs)
    dlogs[np.arange(n), label] = -1.0 / n
    dprobs = dlogs / np.maximum(probs, np.finfo(probs.dtype).tiny)
    dinverse = (counts * dprobs).sum(1, keepdims=True)
    dcounts = inverse * dprobs - dinverse * inverse**2
    drows = dcounts * counts
    drows[np.arange(n), rows.argmax(1)] -= drows.sum(1)  # of the maximum: all but rounding is 0
    dz = np.zeros_like(z.reshape(-1, z.shape[-1]))
    dz[keep] = drows
    return dz.reshape(z.shape)


def gradient_by_torch(z, y):
    z = to_torch(z).requires_grad_(True)
    F.cross_entropy(z.flatten(0, -2), torch.tensor(y.ravel())).backward()
    return z.grad


def gradient_by_expm1(z, y):
    """Without the cancellation of p - 1."""
    logs = z - np.logaddexp.reduce(z, -1, keepdims=True)
    dz = np.where(one_hot(z, y) > 0, np.expm1(logs), np.exp(logs))
    return np.where((y >= 0)[..., None], dz, 0) / z.dtype.type((y >= 0).sum())


LOSSES = [loss_by_loop, loss_by_einsum, loss_as_karpathy, loss_by_torch]
GRADIENTS = [
    gradient_by_loop,
    gradient_by_one_hot,
    gradient_as_karpathy,
    gradient_by_torch,
    gradient_by_expm1,
]


def sure(z):
    """A model that has learned: the label's logit is far above the others in half of the rows."""
    return z + 12 * one_hot(z, np.where(np.arange(5) % 2, LABELS, IGNORED))


@pytest.mark.parametrize("made", [lambda z: z, sure], ids=["new", "sure"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("mine", [*LOSSES, *GRADIENTS], ids=lambda mine: mine.__name__)
def test_right_is_right(mine, dtype, made, rng):
    """In float32 and rounded where the dtype has 16 bits, as an array and by the function."""
    op = sf.cross_entropy if mine in LOSSES else sf.backward.cross_entropy
    z = made(normal(rng, 3, 5, 9).astype(dtype))
    wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype

    def function(z, y):
        return mine(np.asarray(z).astype(wide), y)

    found = np.asarray(function(z, LABELS))
    found = found.astype(dtype) if op is sf.backward.cross_entropy else found
    for given in (found, function, to_torch(found)):
        report = sf.check(op, given, z, LABELS)
        assert report.ok, report


@pytest.mark.parametrize("bits", [torch.float16, torch.bfloat16], ids=str)
def test_pytorch_in_16_bits_is_right(bits, rng):
    """As it is computed there: the loss of 16 bits, and its gradient."""
    z = torch.tensor(normal(rng, 15, 40), dtype=bits, requires_grad=True)
    y = torch.tensor(rng.integers(0, 40, 15))
    loss = F.cross_entropy(z, y)
    loss.backward()
    assert sf.check(sf.cross_entropy, loss.detach(), z.detach(), y).ok
    assert sf.check(sf.backward.cross_entropy, z.grad, z.detach(), y).ok


def test_the_options(rng):
    z = normal(rng, 15, 9)
    y = LABELS.ravel()
    given = torch.tensor(z, requires_grad=True)
    cap = 2 * torch.tanh(given / 2)
    loss = F.cross_entropy(cap, torch.tensor(y), label_smoothing=0.1)
    loss = loss + 0.01 * (torch.logsumexp(cap, -1) ** 2)[torch.tensor(y >= 0)].mean()
    loss.backward()
    options = {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 2.0}
    assert sf.check("cross_entropy", loss.detach(), z, y, **options).ok
    assert sf.check("backward.cross_entropy", given.grad, z, y, **options).ok
    pair = sf.cross_entropy(z, y, reduction="none", return_lse=True)
    assert sf.check("cross_entropy", pair, z, y, reduction="none", return_lse=True).ok


def test_rows_for_the_sum_are_named(rng):
    """Of a sum the shape alone would be explained as well, as of a gradient."""
    z = normal(rng, *LABELS.shape, 9)
    mine = sf.cross_entropy(z, LABELS, reduction="none")
    report = sf.check("cross_entropy", mine, z, LABELS, reduction="sum")
    assert names(report) == ["cross_entropy.not_reduced"], repr(report)
    assert "on the way back" not in repr(report)


@pytest.mark.parametrize(("mine", "said"), [(0.0, "it is 0"), (np.nan, "it is NaN")])
def test_one_number_that_says_nothing_is_not_explained(mine, said, rng):
    z, y = normal(rng, 5, 9), rng.integers(0, 9, 5)
    report = sf.check("cross_entropy", mine, z, y)
    assert report.diagnosis == ()
    assert report.observations == (said,)


def test_smoothing_by_another_convention_is_right_and_said(rng):
    z, y = normal(rng, 6, 9), LABELS.ravel()[:6]
    target = np.where(one_hot(z, y) > 0, 0.9, 0.1 / 8) * (y >= 0)[:, None]
    mine = (shares(z) * (y >= 0)[:, None] - target) / (y >= 0).sum()
    report = sf.check("backward.cross_entropy", mine, z, y, label_smoothing=0.1)
    assert report.ok
    assert "right by another convention" in repr(report)


def test_of_many_rows_some_are_looked_at(rng):
    """The surest row among them: its gradient is next to nothing."""
    z, y = 3 * normal(rng, 2, 300, 200), rng.integers(0, 200, (2, 300))
    z[1, 7, y[1, 7]] = 25
    assert sf.check("backward.cross_entropy", gradient_by_one_hot(z, y), z, y).ok
    wrong = gradient_by_one_hot(z, y) * 300
    report = sf.check("backward.cross_entropy", wrong, z, y)
    assert [one.name for one in report.diagnosis] == ["cross_entropy_backward.divided_by_batch"]


# ---- the loss of linear's result, with its gradients ---------------------------------------------


def by_pytorch(x, weight, labels, dtype, **options):
    x, weight = (torch.tensor(a).to(dtype).requires_grad_() for a in (x, weight))
    z = (x @ weight.T).flatten(0, -2)
    loss = F.cross_entropy(z, torch.tensor(labels).flatten(), ignore_index=IGNORED, **options)
    loss.backward()
    return x.detach(), weight.detach(), {"loss": loss.detach(), "dx": x.grad, "dW": weight.grad}


@pytest.mark.parametrize("is_sure", [False, True], ids=["new", "sure"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_linear_cross_entropy_of_pytorch_is_right(dtype, is_sure, rng):
    """Where the model is sure of its labels, next to nothing is left of the gradients."""
    x, weight = normal(rng, 2, 30, 16), normal(rng, 40, 16) / 4
    labels = rng.integers(0, 40, (2, 30))
    if is_sure:
        x = 0.1 * x + 30 * weight[labels] / np.square(weight[labels]).sum(-1, keepdims=True)
    labels[1, 3:9] = IGNORED
    for options in ({}, {"reduction": "sum"}, {"label_smoothing": 0.1}):
        x_, weight_, mine = by_pytorch(x, weight, labels, dtype, **options)
        report = sf.check("linear_cross_entropy", mine, x_, weight_, labels, **options)
        assert report.ok, report
        assert [name for name, _ in report.parts] == ["loss", "x", "weight"]


def test_what_may_be_given_for_a_loss_with_gradients(rng):
    op, (x, weight) = sf.linear_cross_entropy, (normal(rng, 3, 5, 6), normal(rng, 9, 6))
    right = op(x, weight, LABELS)
    loss, _, dx, dw = right
    for mine in (op, right, right._asdict(), (float(loss), dx, dw), {"loss": loss, "w": dw}):
        report = sf.check(op, mine, x, weight, LABELS)
        assert report.ok, report
        assert "float64" not in repr(report)
    report = sf.check(op, float(loss), x, weight, LABELS)
    assert report.ok
    assert "not checked: x, weight" in repr(report)
    assert sf.check(op, (None, dx, None), x, weight, LABELS, needs=("x",)).ok
    options = {"count": 40, "softcap": 3.0, "z_loss": 1e-3, "ignore_index": 0}
    assert sf.check(op, op(x, weight, LABELS % 9, **options), x, weight, LABELS % 9, **options).ok


def test_mistakes_of_the_loss_and_of_linear_are_named(rng):
    op, (x, weight) = sf.linear_cross_entropy, (normal(rng, 3, 5, 6), normal(rng, 9, 6))
    right = op(x, weight, LABELS)
    factor = N / LABELS.size
    mine = {"loss": right.loss * factor, "x": right.x * factor, "weight": right.weight * factor}
    text = repr(sf.check(op, mine, x, weight, LABELS))
    assert "cross_entropy.divided_by_all" in text
    assert text.count("cross_entropy_backward.divided_by_all") == 1  # of x and weight, said once
    z = x @ weight.T
    dz = sf.backward.cross_entropy(z, LABELS) + one_hot(z, LABELS) / N
    report = sf.check(op, {"x": (dz @ weight).astype(np.float32)}, x, weight, LABELS)
    assert [one.name for one in report.diagnosis] == ["cross_entropy_backward.target_missing"]
    report = sf.check(op, {"loss": right.loss, "weight": right.weight.T}, x, weight, LABELS)
    assert [one.name for one in report.diagnosis] == ["linear_backward.transposed"]


def test_of_many_rows_of_linear_some_are_looked_at(rng):
    x, weight = normal(rng, 2, 200, 16), normal(rng, 500, 16)
    labels = rng.integers(0, 500, (2, 200))
    right = sf.linear_cross_entropy(x, weight, labels, needs=("x",))
    mine = {"x": right.x * 200}
    report = sf.check("linear_cross_entropy", mine, x, weight, labels)
    assert [one.name for one in report.diagnosis] == ["cross_entropy_backward.divided_by_batch"]
    assert sf.check("linear_cross_entropy", right, x, weight, labels, needs=("x",)).ok
