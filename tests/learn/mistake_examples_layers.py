"""Attention layers and whole layers as learners write them wrong, in PyTorch: x (B, L, E)."""

import math

import numpy as np
import torch
from torch.nn import functional as F

from conftest import normal, to_torch
from mistake_examples import Examples
from simdformer import nn

example = Examples()

B, L, E, H, K = 2, 7, 32, 4, 2
D = E // H


def tensors(*arrays):
    return [to_torch(np.asarray(array)) for array in arrays]


def split(x, heads):
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge(z):
    return z.transpose(1, 2).reshape(z.shape[0], z.shape[2], -1)


def attend(q, k, v, causal=True):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        L, S = scores.shape[-2:]
        scores = scores + torch.full((L, S), -torch.inf, dtype=q.dtype).triu(1)
    return torch.softmax(scores, -1) @ v


def weights(rng, *shapes):
    return [normal(rng, *shape, scale=1 / math.sqrt(shape[-1])) for shape in shapes]


# ---- multi-head attention ------------------------------------------------------------------------


def wrong_heads(name, function, *also):
    """`function` gives the result for (x, wq, wk, wv, wo); causal."""

    @example(name if "." in name else f"projections.{name}", *also)
    def _(rng):
        x = normal(rng, B, L, E)
        w = weights(rng, *[(E, E)] * 4)
        mine = function(*tensors(x, *w))
        return mine, nn.MultiHeadAttention(E, H, *w), (x, x, x), {"mask": "causal"}


def multi_head(x, wq, wk, wv, wo, *, split=split, merge=merge, attend=attend):
    q, k, v = (split(F.linear(x, w), H) for w in (wq, wk, wv))
    return F.linear(merge(attend(q, k, v)), wo)


@example("multi_head_attention.batch_first_forgotten")
def _(rng):
    """PyTorch's own, with its default: positions first."""
    x, w = normal(rng, 3, L, E), weights(rng, *[(E, E)] * 4)
    layer = torch.nn.MultiheadAttention(E, H, bias=False).eval()
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat(tensors(*w[:3])))
        layer.out_proj.weight.copy_(to_torch(w[3]))
        mine = layer(*[to_torch(x)] * 3, need_weights=False)[0]
    return mine, nn.MultiHeadAttention(E, H, *w), (x, x, x), {}


@example("grouped_query_attention.batch_first_forgotten")
def _(rng):
    x, w = normal(rng, 3, L, E), weights(rng, (E, E), (K * D, E), (K * D, E), (E, E))
    layer = nn.GroupedQueryAttention(E, H, K, *w)
    return layer(x.swapaxes(0, 1).copy()).swapaxes(0, 1), layer, (x,), {}


def with_weights(order):
    def function(x, wq, wk, wv, wo):
        given = {"q": wq, "k": wk, "v": wv}
        return multi_head(x, *[given[letter] for letter in order], wo)

    return function


ORDERS = ["qqv", "qkq", "qkk", "qvv", "kkv", "vkv", "kqv", "qvk", "vkq", "kvq", "vqk"]
SAME = {  # in self-attention without RoPE a weight mixed up is an array mixed up
    "qqv": "query_as_key",
    "qkq": "query_as_value",
    "qkk": "key_as_value",
    "qvv": "value_as_key",
    "kqv": "query_and_key_swapped",
    "qvk": "key_and_value_swapped",
}
for order in ORDERS:
    also = [f"attention.{SAME[order]}"] if order in SAME else []
    wrong_heads("weights_" + order, with_weights(order), *also)
for i, name in enumerate(("wq", "wk", "wv", "wo")):

    def one_not_transposed(x, *w, i=i):
        return multi_head(x, *[y.T if i == j else y for j, y in enumerate(w)])

    def one_forgotten(x, *w, i=i):
        return multi_head(x, *[torch.eye(E) if i == j else y for j, y in enumerate(w)])

    part = "projecting_out" if name == "wo" else "projections"
    wrong_heads(f"{part}.{name}_not_transposed", one_not_transposed)
    wrong_heads(f"{part}.{name}_forgotten", one_forgotten)


def changed_heads(name, **changed):
    """With some of its parts changed."""
    wrong_heads(name, lambda x, *w: multi_head(x, *w, **changed))


wrong_heads("linear.not_transposed", lambda x, *w: multi_head(x, *[y.T for y in w]))
wrong_heads(
    "projections.three_not_transposed",
    lambda x, wq, wk, wv, wo: multi_head(x, wq.T, wk.T, wv.T, wo),
)
wrong_heads("projecting_out.residual_added", lambda x, *w: x + multi_head(x, *w))
changed_heads("split_heads.without_transpose", split=lambda y, heads: y.reshape(B, heads, L, D))
wrong_heads(
    "split_heads.as_d_h",
    lambda x, *w: multi_head(
        x, *w, split=lambda y, heads: y.view(B, L, D, heads).permute(0, 3, 1, 2)
    ),
)
changed_heads("merge_heads.no_transpose", merge=lambda z: z.reshape(B, L, E))
changed_heads("merge_heads.interleaved", merge=lambda z: z.permute(0, 2, 3, 1).reshape(B, L, E))
wrong_heads(
    "attention.over_heads",
    lambda x, *w: multi_head(
        x, *w, split=lambda y, heads: y.view(B, L, heads, D), merge=lambda z: z.reshape(B, L, E)
    ),
)
changed_heads("many_heads.one_head", split=lambda y, heads: y[:, None], merge=lambda z: z[:, 0])
changed_heads("many_heads.heads_averaged", merge=lambda z: z.mean(1).repeat(1, 1, H))
changed_heads("attention.no_causal", attend=lambda q, k, v: attend(q, k, v, causal=False))


def wrong_cross(name, order, *also):
    """Three different inputs; `order` says from which of them q, k and v are made."""

    @example(f"projections.{name}", *also)
    def _(rng):
        inputs = [normal(rng, B, L, E) for _ in range(3)]
        w = weights(rng, *[(E, E)] * 4)
        q, k, v = (
            split(F.linear(torch.from_numpy(inputs["qkv".index(letter)]), y), H)
            for letter, y in zip(order, tensors(*w[:3]), strict=True)
        )
        mine = F.linear(merge(attend(q, k, v, causal=False)), torch.from_numpy(w[3]))
        return mine, nn.MultiHeadAttention(E, H, *w), tuple(inputs), {}


wrong_cross("keys_from_query", "qqv")
wrong_cross("values_from_query", "qkq")
wrong_cross("values_from_key", "qkk")
wrong_cross("keys_from_value", "qvv")
wrong_cross("queries_from_key", "kkv")
wrong_cross("self_attention", "qqq")


# ---- grouped-query attention ---------------------------------------------------------------------

EPS = 1e-2


def turn(x, theta=500.0, dim=None):
    """transformers: (..., T, D), half."""
    d = dim or x.shape[-1]
    angle = torch.outer(
        torch.arange(x.shape[-2]).float(), theta ** -(torch.arange(0, d, 2).float() / d)
    )
    angle = angle[:, : x.shape[-1] // 2]
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def norm(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def qwen3(
    x, wq, wk, wv, wo, q_norm, k_norm,
    *, normed=norm, key_normed=None, turn_q=turn, turn_k=turn, on_v=lambda v: v,
):  # fmt: skip
    q, k, v = split(F.linear(x, wq), H), split(F.linear(x, wk), K), split(F.linear(x, wv), K)
    q, k = normed(q, q_norm), (key_normed or normed)(k, k_norm)
    q, k, v = turn_q(q), turn_k(k), on_v(v)
    k, v = (y.repeat_interleave(H // K, 1) for y in (k, v))
    return F.linear(merge(attend(q, k, v)), wo)


def wrong_qwen3(name, function, *also):
    """`function` gives the result for (x, wq, wk, wv, wo, q_norm, k_norm); causal."""

    @example(name, *also)
    def _(rng):
        x = normal(rng, B, L, E)
        w = weights(rng, (E, E), (K * D, E), (K * D, E), (E, E))
        norms = [1 + normal(rng, D, scale=0.5) for _ in range(2)]
        mine = function(*tensors(x, *w, *norms))
        layer = nn.GroupedQueryAttention(
            E, H, K, *w, q_norm=norms[0], k_norm=norms[1], norm_eps=EPS,
            rope_layout="half", theta=500.0,
        )  # fmt: skip
        return mine, layer, (x,), {"mask": "causal"}


def changed_qwen3(name, **changed):
    """With some of its parts changed."""
    wrong_qwen3(name, lambda *a: qwen3(*a, **changed))


def same(x, weight=None):
    return x


changed_qwen3("qk_norm.q_norm_forgotten", normed=same, key_normed=norm)
changed_qwen3("qk_norm.k_norm_forgotten", key_normed=same)
changed_qwen3("grouped_query_attention.norms_forgotten", normed=same)
wrong_qwen3("qk_norm.norms_swapped", lambda *a: qwen3(*a[:5], a[6], a[5]))
wrong_qwen3("qk_norm.q_norm_for_keys", lambda *a: qwen3(*a[:5], a[5], a[5]))
wrong_qwen3("qk_norm.values_normalised", lambda *a: qwen3(*a, on_v=lambda v: norm(v, a[6])))
changed_qwen3("rms_norm.weight_forgotten", normed=lambda x, w: norm(x, torch.ones(D)))
wrong_qwen3(
    "grouped_query_attention.norms_after_rope",
    lambda *a: qwen3(
        *a, normed=same, turn_q=lambda q: norm(turn(q), a[5]), turn_k=lambda k: norm(turn(k), a[6])
    ),
)


def all_heads_normed(x, weight):
    """As before the split: the mean of the squares is that of all heads."""
    size = x.pow(2).mean((1, 3), keepdim=True)
    return x * torch.rsqrt(size + EPS) * weight


changed_qwen3("grouped_query_attention.norms_before_split", normed=all_heads_normed)
changed_qwen3("qk_rope.queries_not_turned", turn_q=same)
changed_qwen3("qk_rope.keys_not_turned", turn_k=same)
wrong_qwen3(
    "rope.not_turned",
    lambda *a: qwen3(*a, turn_q=same, turn_k=same),
    # Only the difference of two positions counts, and here it is always 0.
    "rope.one_position_for_all",
    "rope.positions_over_batch",
)
changed_qwen3("qk_rope.values_turned", on_v=turn)
changed_qwen3(
    "rope_frequencies.theta_10000", turn_q=lambda q: turn(q, 1e4), turn_k=lambda k: turn(k, 1e4)
)
changed_qwen3(
    "qk_rope.frequencies_of_hidden_size",
    turn_q=lambda q: turn(q, dim=E),
    turn_k=lambda k: turn(k, dim=E),
)
wrong_qwen3(
    "rope.positions_over_heads",
    lambda *a: qwen3(
        *a,
        turn_q=lambda q: turn(q.transpose(1, 2)).transpose(1, 2),
        turn_k=lambda k: turn(k.transpose(1, 2)).transpose(1, 2),
    ),
)
wrong_qwen3("projections.weights_qkk", lambda x, wq, wk, wv, *a: qwen3(x, wq, wk, wk, *a))
wrong_qwen3("projections.weights_qvk", lambda x, wq, wk, wv, *a: qwen3(x, wq, wv, wk, *a))


@example("rope.before_split")
def _(rng):
    x = normal(rng, B, L, E)
    w = weights(rng, (E, E), (K * D, E), (K * D, E), (E, E))
    t, wq, wk, wv, wo = tensors(x, *w)
    q, k, v = split(turn(t @ wq.T), H), split(turn(t @ wk.T), K), split(t @ wv.T, K)
    k, v = (y.repeat_interleave(H // K, 1) for y in (k, v))
    layer = nn.GroupedQueryAttention(E, H, K, *w, rope_layout="half", theta=500.0)
    return merge(attend(q, k, v)) @ wo.T, layer, (x,), {"mask": "causal"}
