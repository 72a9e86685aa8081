"""Whole layers as learners put them together wrong, in PyTorch: x (B, L, E); and embeddings."""

import math

import numpy as np
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal
from mistake_examples import Examples
from mistake_examples_layers import (
    EPS,
    B,
    D,
    E,
    H,
    K,
    L,
    attend,
    merge,
    norm,
    split,
    tensors,
    weights,
)
from simdformer import nn

example = Examples()


# ---- the whole layer -----------------------------------------------------------------------------


class Parts:
    """A layer's parts as functions of tensors, and as the block of `nn`."""

    def __init__(self, rng, dtype=np.float32):
        shapes = (E, E), (K * D, E), (K * D, E), (E, E), (48, E), (48, E), (E, 48)
        w = [x.astype(dtype) for x in weights(rng, *shapes)]
        one, two = ((1 + normal(rng, E, scale=0.5)).astype(dtype) for _ in range(2))
        self.block = nn.TransformerBlock(
            nn.GroupedQueryAttention(E, H, K, *w[:4]), nn.MLP(*w[4:]),
            nn.RMSNorm(one, EPS), nn.RMSNorm(two, EPS),
        )  # fmt: skip
        self.w, (self.one, self.two) = tensors(*w), tensors(one, two)

    def attention(self, x):
        q, k, v = (split(F.linear(x, w), n) for w, n in zip(self.w, (H, K, K), strict=False))
        k, v = (y.repeat_interleave(H // K, 1) for y in (k, v))
        return F.linear(merge(attend(q, k, v)), self.w[3])

    def mlp(self, x):
        gate, up, down = self.w[4:]
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def attn_norm(self, x):
        return norm(x, self.one)

    def mlp_norm(self, x):
        return norm(x, self.two)


def wrong_block(name):
    """The decorated function gives the result for (parts, x)."""

    def register(function):
        @example(f"block.{name}" if "." not in name else name)
        def _(rng):
            parts, x = Parts(rng), normal(rng, B, L, E)
            mine = function(parts, torch.from_numpy(x))
            return mine, parts.block, (x,), {"mask": "causal"}

    return register


@wrong_block("no_residual_around_attention")
def _(p, x):
    h = p.attention(p.attn_norm(x))
    return h + p.mlp(p.mlp_norm(h))


@wrong_block("no_residual_around_mlp")
def _(p, x):
    h = x + p.attention(p.attn_norm(x))
    return p.mlp(p.mlp_norm(h))


@wrong_block("no_residuals")
def _(p, x):
    return p.mlp(p.mlp_norm(p.attention(p.attn_norm(x))))


@wrong_block("residual_of_normed_around_attention")
def _(p, x):
    x = p.attn_norm(x)
    x = x + p.attention(x)
    return x + p.mlp(p.mlp_norm(x))


@wrong_block("residual_of_normed_around_mlp")
def _(p, x):
    h = x + p.attention(p.attn_norm(x))
    h = p.mlp_norm(h)
    return h + p.mlp(h)


@wrong_block("residuals_of_normed")
def _(p, x):
    x = p.attn_norm(x)
    x = x + p.attention(x)
    x = p.mlp_norm(x)
    return x + p.mlp(x)


@wrong_block("residual_of_input_around_mlp")
def _(p, x):
    h = x + p.attention(p.attn_norm(x))
    return x + p.mlp(p.mlp_norm(h))


@wrong_block("input_added_twice")
def _(p, x):
    h = x + p.attention(p.attn_norm(x))
    return x + h + p.mlp(p.mlp_norm(h))


@wrong_block("no_attn_norm")
def _(p, x):
    h = x + p.attention(x)
    return h + p.mlp(p.mlp_norm(h))


@wrong_block("no_mlp_norm")
def _(p, x):
    h = x + p.attention(p.attn_norm(x))
    return h + p.mlp(h)


@wrong_block("norms_swapped")
def _(p, x):
    h = x + p.attention(p.mlp_norm(x))
    return h + p.mlp(p.attn_norm(h))


@wrong_block("attn_norm_for_both")
def _(p, x):
    h = x + p.attention(p.attn_norm(x))
    return h + p.mlp(p.attn_norm(h))


@wrong_block("mlp_norm_of_input")
def _(p, x):
    h = x + p.attention(p.attn_norm(x))
    return h + p.mlp(p.mlp_norm(x))


@wrong_block("mlp_norm_of_attention")
def _(p, x):
    found = p.attention(p.attn_norm(x))
    return x + found + p.mlp(p.mlp_norm(found))


@wrong_block("in_parallel")
def _(p, x):
    y = p.attn_norm(x)
    return x + p.attention(y) + p.mlp(y)


@wrong_block("post_norm")
def _(p, x):
    h = p.attn_norm(x + p.attention(x))
    return p.mlp_norm(h + p.mlp(h))


@wrong_block("results_normed")
def _(p, x):
    h = x + p.attn_norm(p.attention(x))
    return h + p.mlp_norm(p.mlp(h))


@wrong_block("attention_not_added")
def _(p, x):
    return x + p.mlp(p.mlp_norm(x))


@wrong_block("mlp_not_added")
def _(p, x):
    return x + p.attention(p.attn_norm(x))


@wrong_block("mlp_first")
def _(p, x):
    h = x + p.mlp(p.mlp_norm(x))
    return h + p.attention(p.attn_norm(h))


@wrong_block("swiglu.gate_and_up_swapped")
def _(p, x):
    p.w[4], p.w[5] = p.w[5], p.w[4]
    h = x + p.attention(p.attn_norm(x))
    return h + p.mlp(p.mlp_norm(h))


@wrong_block("rms_norm.no_eps")
def _(p, x):
    def bare(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * weight

    h = x + p.attention(bare(x, p.one))
    return h + p.mlp(bare(h, p.two))


# ---- embedding -----------------------------------------------------------------------------------


@example("embedding.rows_of_positions")
def _(rng):
    table, ids = normal(rng, 50, 16), rng.integers(0, 50, (2, 9))
    return np.stack([table[:9]] * 2), nn.Embedding(table), (ids,), {}


@example("embedding.sines_added")
def _(rng):
    table, ids = normal(rng, 50, 16), rng.integers(0, 50, (2, 9))
    position = torch.arange(9).unsqueeze(1)
    div = torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
    pe = torch.zeros(9, 16)
    pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div), torch.cos(position * div)
    mine = torch.from_numpy(table)[torch.from_numpy(ids)] + pe
    return mine, sf.embedding, (ids, table), {}
