"""reference.backward: every gradient against torch.autograd in float64, and against differences."""

import numpy as np
import pytest
import torch
from mpmath import mp
from torch.nn import functional as F

from conftest import from_torch, to_torch
from simdformer import reference
from simdformer.reference import backward
from simdformer.reference import loss as reference_loss

EPS, IGNORED = 1e-3, -100


@pytest.fixture
def draw(rng):
    return lambda *shape: rng.standard_normal(shape)


def autograd(function, inputs, grad):
    """What torch gives for each of `inputs` when `grad` is the gradient of function(*inputs)."""
    tensors = [to_torch(np.array(x)).requires_grad_() for x in inputs]
    out = function(*tensors)
    outs = out if isinstance(out, tuple) else (out,)
    grads = [to_torch(np.asarray(g)) for g in (grad if isinstance(out, tuple) else (grad,))]
    found = torch.autograd.grad(outs, tensors, grads, allow_unused=True)
    return [None if g is None else from_torch(g) for g in found]


def equal(got, want):
    assert len(got) == len(want)
    for mine, torchs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, torchs, 1e-10, 1e-12)


# ---- linear, embedding ---------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
def test_linear(lead, draw):
    grad, x, w, b = draw(*lead, 3), draw(*lead, 4), draw(3, 4), draw(3)
    equal(backward.linear(grad, x, w), autograd(F.linear, (x, w, b), grad))
    assert backward.linear(grad, x, w, needs=("weight",))[::2] == (None, None)


def test_linear_with_a_list_adds_up_the_gradients_of_x(draw):
    grads, x, weights = [draw(2, 5, 3), draw(2, 5, 2)], draw(2, 5, 4), [draw(3, 4), draw(2, 4)]
    got = backward.linear(grads, x, weights)
    dx, *rest = autograd(lambda x, *w: tuple(F.linear(x, v) for v in w), (x, *weights), grads)
    equal([got.x, *got.weight], [dx, *rest])
    equal(got.bias, [grad.sum((0, 1)) for grad in grads])


def test_what_is_accumulated_is_added_into_the_given_array(draw):
    grad, x, w = draw(5, 3), draw(5, 4), draw(3, 4)
    before = draw(3, 4)
    total = before.copy()
    got = backward.linear(grad, x, w, accumulate={"weight": total})
    assert got.weight is total
    equal([total], [before + backward.linear(grad, x, w).weight])
    rows = draw(7, 3)
    table = rows.copy()
    assert backward.embedding(grad, [1, 1, 6, 0, 1], 7, accumulate=table) is table
    equal([table], [rows + backward.embedding(grad, [1, 1, 6, 0, 1], 7)])


def test_embedding(draw):
    ids, weight, grad = np.array([[1, 3, 1], [0, 1, 3]]), draw(6, 4), draw(2, 3, 4)
    want = autograd(lambda w: F.embedding(torch.tensor(ids), w), (weight,), grad)
    equal([backward.embedding(grad, ids, 6)], want)


# ---- norms, rope, softmax, activations -----------------------------------------------------------


def layer_norm(x, weight=None, bias=None):
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
def test_norms(lead, draw):
    grad, x, w, b = draw(*lead, 8), draw(*lead, 8), draw(8), draw(8)
    rms = lambda x, w=None: F.rms_norm(x, (8,), w, EPS)  # noqa: E731
    equal(backward.rms_norm(grad, x, w, eps=EPS), autograd(rms, (x, w), grad))
    equal(backward.layer_norm(grad, x, w, b, eps=EPS), autograd(layer_norm, (x, w, b), grad))
    alone, no_weight = backward.rms_norm(grad, x, eps=EPS)
    assert no_weight is None
    equal([alone], autograd(rms, (x,), grad))
    assert backward.layer_norm(grad, x, eps=EPS)[1:] == (None, None)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("given", [{"offset": 3}, {"positions": [[4, 0, 9], [1, 1, 2]]}], ids=str)
def test_rope_is_the_transpose_of_the_forward(layout, given, draw):
    options = {"layout": layout, "rotary_dim": 6, "attention_factor": 1.25, "theta": 100.0}
    x, grad = draw(2, 4, 3, 8), draw(2, 4, 3, 8)
    turned = reference.rope(x, **options, **given)
    back = backward.rope(grad, **options, **given)
    np.testing.assert_allclose((turned * grad).sum(), (x * back).sum(), 1e-12)
    pairs = reference.rope(back, **options, **given)[..., :6]  # forwards again: the factor, squared
    equal([pairs], [grad[..., :6] * 1.25**2])
    equal([back[..., 6:]], [grad[..., 6:]])


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax(axis, draw):
    x, grad = draw(3, 4, 6), draw(3, 4, 6)
    p = reference.softmax(x, axis, temperature=0.7)
    got = backward.softmax(grad, p, axis, temperature=0.7)
    equal([got], autograd(lambda x: (x / 0.7).softmax(axis), (x,), grad))
    np.testing.assert_allclose(got.sum(axis), 0, atol=1e-12)
    y = reference_loss.log_softmax(x, axis)
    np.testing.assert_allclose(y, from_torch(to_torch(x).log_softmax(axis)), 1e-12)
    got = backward.log_softmax(grad, y, axis)
    equal([got], autograd(lambda x: x.log_softmax(axis), (x,), grad))


ACTIVATIONS = {
    "silu": (F.silu, {}),
    "relu": (F.relu, {}),
    "gelu": (F.gelu, {}),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, draw):
    torchs, options = ACTIVATIONS[name]
    x = np.concatenate([draw(50) * 3, [0.0, -0.0, 30.0, -30.0, 300.0, -300.0]])
    grad = draw(56)
    equal([getattr(backward, name.split()[0])(grad, x, **options)], autograd(torchs, (x,), grad))


def test_far_out_no_digit_is_lost():
    """1 - tanh² and 1 - sigmoid are 0 in float64 from 20 and 37 on; what they stand for is not."""
    mp.dps = 50

    def gelu(x):
        return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))

    for x in (-6.0, -4.0, 5.0):
        want = float(mp.diff(gelu, x))
        np.testing.assert_allclose(backward.gelu(1.0, x, approximate="tanh"), want, 1e-12)
    for x in (-50.0, -5.0, 40.0):
        want = float(mp.diff(lambda x: x / (1 + mp.exp(-x)), x))
        np.testing.assert_allclose(backward.silu(1.0, x), want, 1e-12)


def test_swiglu(draw):
    grad, gate, up = draw(3, 5), draw(3, 5), draw(3, 5)
    want = autograd(lambda gate, up: F.silu(gate) * up, (gate, up), grad)
    equal(backward.swiglu(grad, gate, up), want)


@pytest.mark.parametrize("axis", [-3, 1, 0])
def test_repeat_kv(axis, draw):
    x = draw(2, 3, 4)
    grad = np.repeat(draw(*x.shape), 3, axis) * draw(*np.repeat(x, 3, axis).shape)
    want = autograd(lambda x: x.repeat_interleave(3, axis), (x,), grad)
    equal([backward.repeat_kv(grad, 3, axis=axis)], want)


# ---- attention -----------------------------------------------------------------------------------

H, K, L, S, D, DV = 4, 2, 5, 7, 6, 3


def torch_attention(visible, scale, softcap):
    """softmax(cap(q kᵀ scale) + mask) v of torch, with sinks; out and lse. What is hidden is -inf
    in a row that sees something and has no part where it sees nothing."""
    visible = torch.tensor(np.array(visible))

    def attend(q, k, v, mask, sinks):
        k, v = (x.repeat_interleave(H // K, -3) for x in (k, v))
        scores = q @ k.mT * scale
        scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
        scores = (scores + mask).masked_fill(~visible, -torch.inf)
        full = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
        return full.softmax(-1)[..., :-1] @ v, full.logsumexp(-1)

    return attend


RULES = {
    "all": {},
    "causal": {"is_causal": True, "causal_offset": 2},
    "window": {"is_causal": True, "causal_offset": 2, "window": 3},
    "chunk": {"is_causal": True, "causal_offset": 2, "chunk": 3},
    "two sides": {"window": (1, 2), "causal_offset": 0},
    "lengths": {"key_starts": [1, 0], "key_lengths": [6, 0]},
    "segments": {"segment_ids": ([0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 2, 2])},
}


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("rule", RULES)
def test_attention(rule, softcap, draw):
    """All of it at once: groups, sinks, an additive mask that is broadcast, the gradient of lse."""
    q, k, v = draw(2, H, L, D), draw(2, K, S, D), draw(2, K, S, DV)
    mask, sinks, of_out, of_lse = draw(H, 1, S), draw(H), draw(2, H, L, DV), draw(2, H, L)
    options = {"scale": 0.3, "softcap": softcap, "sinks": sinks, **RULES[rule]}
    out, lse = reference.scaled_dot_product_attention(q, k, v, mask, return_lse=True, **options)
    needs = ("query", "key", "value", "attn_mask", "sinks")
    got = backward.scaled_dot_product_attention(
        of_out, q, k, v, out, lse, mask, grad_lse=of_lse, needs=needs, **options
    )
    visible = reference.forward.visible_keys((2, H, L, S), **RULES[rule])
    attend = torch_attention(visible, 0.3, softcap)
    equal(got, autograd(attend, (q, k, v, mask, sinks), (of_out, of_lse)))


def test_arrays_that_were_broadcast_get_the_sum(draw):
    q, k, v = draw(3, 2, H, L, D), draw(2, K, S, D), draw(1, 1, K, S, DV)
    grad = draw(3, 2, H, L, DV)
    k = k[None]
    out, lse = reference.scaled_dot_product_attention(q, k, v, return_lse=True)
    got = backward.scaled_dot_product_attention(grad, q, k, v, out, lse)
    attend = torch_attention(np.ones((L, S), bool), D**-0.5, None)
    none = np.full(H, -np.inf)
    plain = lambda q, k, v: attend(q, k, v, torch.zeros(()), to_torch(none))[0]  # noqa: E731
    equal(got[:3], autograd(plain, (q, k, v), grad))


def test_a_single_head_has_no_axis_of_heads(draw):
    q, k, v, grad = draw(L, D), draw(S, D), draw(S, DV), draw(L, DV)
    out, lse = reference.scaled_dot_product_attention(q, k, v, return_lse=True)
    got = backward.scaled_dot_product_attention(grad, q, k, v, out, lse)
    want = autograd(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (q, k, v), grad)
    equal(got[:3], want)


def test_what_is_hidden_has_no_part_not_even_as_nan(draw):
    q, k, v, grad = draw(1, 3, D), draw(1, 5, D), draw(1, 5, DV), draw(1, 3, DV)
    seen = np.array([[True, True, False, False, True], [False] * 5, [True] * 4 + [False]])
    broken_k, broken_v = k.copy(), v.copy()
    broken_k[:, 3], broken_v[:, 4] = np.nan, np.nan
    seen[2, 3] = False
    seen[0, 4] = False

    def gradients(k, v, mask):
        out, lse = reference.scaled_dot_product_attention(q, k, v, mask, return_lse=True)
        return backward.scaled_dot_product_attention(grad, q, k, v, out, lse, mask)

    want = gradients(k, v, seen)
    equal(gradients(broken_k, broken_v, seen)[:3], want[:3])
    assert (want.query[:, 1] == 0).all()  # it sees nothing
    assert (want.key[:, 4] == 0).all()  # nobody sees it
    additive = np.where(seen, 0.0, -np.inf)
    equal(gradients(k, v, additive)[:3], want[:3])


# ---- cross entropy -------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy(reduction, label_smoothing, draw, rng):
    logits, labels = draw(2, 4, 11) * 2, rng.integers(0, 11, (2, 4))
    labels[0, 1] = labels[1, 2] = IGNORED
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    grad = draw(2, 4) if reduction == "none" else np.float64(0.7)

    def torchs(z):
        flat = F.cross_entropy(z.reshape(-1, 11), to_torch(labels).reshape(-1), **options)
        return flat.reshape(2, 4) if reduction == "none" else flat

    got = reference_loss.cross_entropy(logits, labels, **options)
    equal([got], [from_torch(torchs(to_torch(logits)))])
    dz = backward.cross_entropy(logits, labels, grad=grad, **options)
    equal([dz], autograd(torchs, (logits,), grad))
    np.testing.assert_allclose(dz.sum(-1), 0, atol=1e-12)
    _, lse = reference_loss.cross_entropy(logits, labels, return_lse=True, **options)
    equal([backward.cross_entropy(logits, labels, grad=grad, lse=lse, **options)], [dz])


def capped_loss(z, labels, softcap, z_loss):
    z = softcap * torch.tanh(z / softcap)
    rows = F.cross_entropy(z, labels, reduction="none") + z_loss * z.logsumexp(-1) ** 2
    return rows[labels != IGNORED].mean()


def test_softcap_and_z_loss(draw, rng):
    logits, labels = draw(7, 11) * 2, rng.integers(0, 11, 7)
    labels[[1, 4]] = IGNORED
    options = {"softcap": 3.0, "z_loss": 1e-2}
    torchs = lambda z: capped_loss(z, to_torch(labels), **options)  # noqa: E731
    got = reference_loss.cross_entropy(logits, labels, **options)
    equal([got], [from_torch(torchs(to_torch(logits)))])
    equal(
        [backward.cross_entropy(logits, labels, **options)],
        autograd(torchs, (logits,), np.float64(1)),
    )


def test_linear_and_cross_entropy_in_one(draw, rng):
    x, weight, labels = draw(2, 7, 4), draw(11, 4), rng.integers(0, 11, (2, 7))
    labels[0, 2] = IGNORED
    flat = to_torch(labels).reshape(-1)
    torchs = lambda x, w: F.cross_entropy((x @ w.mT).reshape(-1, 11), flat)  # noqa: E731
    got = backward.linear_cross_entropy(x, weight, labels)
    assert got.count == 13
    equal([got.loss], [from_torch(torchs(to_torch(x), to_torch(weight)))])
    equal(got[2:], autograd(torchs, (x, weight), np.float64(1)))
    half = backward.linear_cross_entropy(x, weight, labels, count=26)
    equal([half.loss, half.x, half.weight], [got.loss / 2, got.x / 2, got.weight / 2])


def test_no_label_that_counts_is_no_mean(draw):
    nothing = np.full(3, IGNORED)
    for refused in (
        lambda: reference_loss.cross_entropy(draw(3, 5), nothing),
        lambda: backward.cross_entropy(draw(3, 5), nothing),
        lambda: backward.linear_cross_entropy(draw(3, 4), draw(5, 4), nothing),
    ):
        with pytest.raises(ValueError, match="labels has none that counts"):
            refused()
    assert reference_loss.cross_entropy(draw(3, 5), nothing, reduction="sum") == 0
