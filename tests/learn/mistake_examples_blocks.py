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

    def attended(self, x):
        """The first half, as it should be."""
        return x + self.attention(self.attn_norm(x))

    def finished(self, h):
        """The second half."""
        return h + self.mlp(self.mlp_norm(h))


def added(f, x):
    return x + f(x)


def parallel(p, x):
    y = p.attn_norm(x)
    return x + p.attention(y) + p.mlp(y)


def mlp_norm_of_attention(p, x):
    found = p.attention(p.attn_norm(x))
    return x + found + p.mlp(p.mlp_norm(found))


def post_norm(p, x):
    return p.mlp_norm(added(p.mlp, p.attn_norm(added(p.attention, x))))


def results_normed(p, x):
    h = x + p.attn_norm(p.attention(x))
    return h + p.mlp_norm(p.mlp(h))


def gate_and_up_swapped(p, x):
    p.w[4], p.w[5] = p.w[5], p.w[4]
    return p.finished(p.attended(x))


def without_eps(p, x):
    def bare(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * weight

    h = x + p.attention(bare(x, p.one))
    return h + p.mlp(bare(h, p.two))


WRONG = {
    "block.no_residual_around_attention": lambda p, x: p.finished(p.attention(p.attn_norm(x))),
    "block.no_residual_around_mlp": lambda p, x: p.mlp(p.mlp_norm(p.attended(x))),
    "block.no_residuals": lambda p, x: p.mlp(p.mlp_norm(p.attention(p.attn_norm(x)))),
    "block.residual_of_normed_around_attention": lambda p, x: p.finished(
        added(p.attention, p.attn_norm(x))
    ),
    "block.residual_of_normed_around_mlp": lambda p, x: added(p.mlp, p.mlp_norm(p.attended(x))),
    "block.residuals_of_normed": lambda p, x: added(
        p.mlp, p.mlp_norm(added(p.attention, p.attn_norm(x)))
    ),
    "block.residual_of_input_around_mlp": lambda p, x: x + p.mlp(p.mlp_norm(p.attended(x))),
    "block.input_added_twice": lambda p, x: x + p.finished(p.attended(x)),
    "block.no_attn_norm": lambda p, x: p.finished(added(p.attention, x)),
    "block.no_mlp_norm": lambda p, x: added(p.mlp, p.attended(x)),
    "block.norms_swapped": lambda p, x: (
        (h := x + p.attention(p.mlp_norm(x))) + p.mlp(p.attn_norm(h))
    ),
    "block.attn_norm_for_both": lambda p, x: (h := p.attended(x)) + p.mlp(p.attn_norm(h)),
    "block.mlp_norm_of_input": lambda p, x: p.attended(x) + p.mlp(p.mlp_norm(x)),
    "block.mlp_norm_of_attention": mlp_norm_of_attention,
    "block.in_parallel": parallel,
    "block.post_norm": post_norm,
    "block.results_normed": results_normed,
    "block.attention_not_added": lambda p, x: p.finished(x),
    "block.mlp_not_added": lambda p, x: p.attended(x),
    "block.mlp_first": lambda p, x: p.attended(p.finished(x)),
    "swiglu.gate_and_up_swapped": gate_and_up_swapped,
    "rms_norm.no_eps": without_eps,
}
for name, code in WRONG.items():

    @example(name)
    def _(rng, code=code):
        parts, x = Parts(rng), normal(rng, B, L, E)
        return code(parts, torch.from_numpy(x)), parts.block, (x,), {"mask": "causal"}


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
