"""`check` of attention's gradients: what is right is right, in whatever way it is written."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal, to_torch
from mistake_examples_attention_gradients import gradients
from test_check_backward import DTYPES

forward, backward = sf.scaled_dot_product_attention, sf.backward.scaled_dot_product_attention
B, H, K, L, D = 2, 4, 2, 5, 6
CAUSAL = np.tri(L, dtype=bool)


def by_einsum(g, q, k, v, out, lse):
    """From a softmax of its own; out and lse are not looked at."""
    return tuple(x.astype(g.dtype) for x in gradients(g, q, k, v))


def by_lse(g, q, k, v, out, lse):
    """FlashAttention's, in a loop over heads."""
    dq, dk, dv = (np.zeros_like(x) for x in (q, k, v))
    scale = g.dtype.type(1 / math.sqrt(D))
    for b, h in np.ndindex(B, H):
        j = h * K // H
        p = np.where(CAUSAL, np.exp(q[b, h] @ k[b, j].T * scale - lse[b, h][:, None]), 0)
        ds = p * (g[b, h] @ v[b, j].T - (g[b, h] * out[b, h]).sum(-1)[:, None]) * scale
        dq[b, h] = ds @ k[b, j]
        dk[b, j] += ds.T @ q[b, h]
        dv[b, j] += p.T @ g[b, h]
    return {"value": dv, "query": dq, "key": dk}


def by_torch(g, q, k, v, out, lse):
    q, k, v = (to_torch(x).requires_grad_(True) for x in (q, k, v))
    F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).backward(to_torch(g))
    return q.grad, k.grad, v.grad


def by_torch_in_steps(g, q, k, v, out, lse):
    """As in walkthroughs: masked_fill, softmax, matmul."""
    q, k, v = (to_torch(x).requires_grad_(True) for x in (q, k, v))
    keys, values = (x.repeat_interleave(H // K, 1) for x in (k, v))
    scores = (q @ keys.transpose(-1, -2) / D**0.5).masked_fill(~torch.tensor(CAUSAL), -math.inf)
    (scores.softmax(-1) @ values).backward(to_torch(g))
    return [q.grad, k.grad, v.grad]


IDIOMS = [by_einsum, by_lse, by_torch, by_torch_in_steps]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("mine", IDIOMS, ids=lambda mine: mine.__name__)
def test_right_gradients_are_right(mine, dtype, scale, rng):
    """Queries that are sure of a key, too. PyTorch computes in 16 bits, the others in float32."""
    q = (scale * normal(rng, B, H, L, D)).astype(dtype)
    k, v = (normal(rng, B, K, L, D).astype(dtype) for _ in range(2))
    g = normal(rng, *q.shape).astype(dtype)
    out, lse = forward(q, k, v, is_causal=True, return_lse=True)
    few = np.dtype(dtype).itemsize == 2
    wide = np.float32 if few and mine in (by_einsum, by_lse) else dtype

    def function(*args, **kwargs):
        return mine(*(x.astype(wide) for x in args))

    given = g, q, k, v, out, lse
    with np.errstate(all="ignore"):
        for answer in (function(*given), function):
            report = sf.check(backward, answer, *given, is_causal=True)
            assert report.ok, report


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [4, 7, 10, 11])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("scale", [6, 8])
def test_a_softmax_in_float32_among_16_bits_is_right_where_one_key_takes_all(dtype, seed, scale):
    """As transformers computes attention. What is left of such a row are the roundings of `out`."""
    torch.manual_seed(seed)
    q, k, v, g = (torch.randn(2, 4, 32, 16).to(dtype) for _ in range(4))
    q *= scale
    mine = [x.clone().requires_grad_(True) for x in (q, k, v)]
    weights = (mine[0] @ mine[1].mT / 4).softmax(-1, dtype=torch.float32).to(dtype)
    (weights @ mine[2]).backward(g)
    out, lse = forward(q, k, v, return_lse=True)
    report = sf.check(backward, [x.grad for x in mine], g, q, k, v, out, lse)
    assert report.ok, report


@pytest.mark.parametrize(
    "options",
    [
        {"window": 3, "is_causal": True},
        {"softcap": 1.5, "is_causal": True},
        {"key_lengths": [3, 5]},
        {"segment_ids": np.array([[0, 0, 1, 1, 1]] * B), "is_causal": True},
        {"scale": 0.1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_the_kernels_own_gradients_are_right(options, rng):
    q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
    out, lse = forward(q, k, v, **options, return_lse=True)
    given = g, q, k, v, out, lse
    assert sf.check(backward, backward(*given, **options), *given, **options).ok


def test_masks_and_sinks_have_gradients(rng):
    q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
    bias, sinks = normal(rng, L, L), normal(rng, H)
    out, lse = forward(q, k, v, bias, sinks=sinks, return_lse=True)
    mask, sink = torch.tensor(bias, requires_grad=True), torch.tensor(sinks, requires_grad=True)
    scores = torch.tensor(q) @ torch.tensor(k).mT / D**0.5 + mask
    scores = torch.cat([scores, sink[None, :, None, None].expand(B, H, L, 1)], -1)
    (scores.softmax(-1)[..., :-1] @ torch.tensor(v)).backward(torch.tensor(g))
    mine = {"attn_mask": mask.grad, "sinks": sink.grad}
    given = {"sinks": sinks, "needs": ("attn_mask", "sinks")}
    report = sf.check(backward, mine, g, q, k, v, out, lse, bias, **given)
    assert report.ok, report
    mine["sinks"] = -mine["sinks"]
    report = sf.check(backward, mine, g, q, k, v, out, lse, bias, **given)
    assert [one.name for one in report.diagnosis] == ["attention_backward.sinks_sign"]


def test_of_many_heads_some_are_looked_at(rng):
    """All gradients by their own mistake, at once."""
    q, g = (normal(rng, 4, 16, 128, 32) for _ in range(2))
    k, v = (normal(rng, 4, 4, 128, 32) for _ in range(2))
    out, lse = forward(q, k, v, is_causal=True, return_lse=True)
    right = backward(g, q, k, v, out, lse, is_causal=True)
    mine = right._replace(query=right.query * math.sqrt(32), key=right.key / 4)
    report = sf.check(backward, mine, g, q, k, v, out, lse, is_causal=True)
    assert [(name, one.ok) for name, one in report.parts] == [
        ("query", False), ("key", False), ("value", True)
    ]  # fmt: skip
    assert report.diagnosis[0].name == "attention_backward.scale_missing_in_query"


def test_of_many_scores_some_are_looked_at(rng):
    """Queries for the gradient of query, keys for those of key and value."""
    q, k, v, g = (normal(rng, 1, 2, 160, 16) for _ in range(4))
    op, options = sf.backward.scaled_dot_product_attention, {"is_causal": True}
    out, lse = sf.scaled_dot_product_attention(q, k, v, **options, return_lse=True)
    scores = q @ k.swapaxes(-1, -2) / 4
    p = np.where(np.tri(160, dtype=bool), np.exp(scores - lse[..., None]), np.float32(0))
    ds = p * (g @ v.swapaxes(-1, -2) - (g * out).sum(-1, keepdims=True))
    right = op(g, q, k, v, out, lse, **options)[:3]
    for number, mistake, wrong in (
        (0, "scale_missing_in_query", ds @ k),
        (1, "key_not_transposed", ds @ q / 4),
        (1, "key_itself", ds.swapaxes(-1, -2) @ k / 4),
        (2, "mask_missing", np.exp(scores - lse[..., None]).swapaxes(-1, -2) @ g),
    ):
        mine = [wrong if i == number else x for i, x in enumerate(right)]
        report = sf.check(op, mine, g, q, k, v, out, lse, **options)
        names = [one.name for one in report.diagnosis]
        assert names == [f"attention_backward.{mistake}"], report


@pytest.mark.parametrize(
    ("factor", "name"), [(1.01, "array.in_proportion"), (-1, "gradient.negated")]
)
@pytest.mark.parametrize("wrong", ["query", "key"])
def test_what_would_show_in_a_right_gradient_does_not_explain_a_wrong_one(factor, name, wrong, rng):
    """A scale, or a sign, of the scores' gradient is in query's and in key's."""
    q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
    out, lse = forward(q, k, v, return_lse=True)
    mine = backward(g, q, k, v, out, lse)._asdict()
    mine[wrong] = mine[wrong] * np.float32(factor)
    report = sf.check(backward, mine, g, q, k, v, out, lse)
    assert [one.name for one in report.diagnosis] == [name]
    assert sf.check(backward, {wrong: mine[wrong]}, g, q, k, v, out, lse).diagnosis
