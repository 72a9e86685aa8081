"""Attention, heads, positions, layers: what each exercise is called with, and the right call.

Inputs are made from a seed of their own for each exercise, in several shapes. They are chosen so
that the usual mistakes are far larger than the rounding of float32: L differs from S, H from D,
norm weights from 1; what is normed is as small as the root of eps, some positions are far out, and
somewhere the scores are large, the scale is 0 and a query sees nothing.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

import simdformer as sf
from simdformer import nn
from simdformer.learn.exercises.exercise import Case, Draw, Question, exercise, same
from simdformer.learn.mistakes.cache import cache
from simdformer.learn.mistakes.split_heads import merge_heads as merge
from simdformer.learn.mistakes.split_heads import split_heads as split
from simdformer.types import Array

__all__: list[str] = []


def additive(visible: Array) -> Array:
    return np.where(visible, 0.0, -np.inf).astype(np.float32)


# ---- attention -----------------------------------------------------------------------------------


@exercise("1. Attention")
def softmax(draw: Draw) -> Iterator[Case]:
    for x, axis, special in (
        (draw(5), -1, ""),
        (draw(3, 4), -1, ""),
        (draw(3, 4), 0, ""),
        (draw(2, 3, 4), 1, ""),
        (draw(3, 4, scale=300.0), -1, "numbers of about 300"),
        (additive(np.tri(4, dtype=bool)), -1, "0 and -inf"),
    ):
        yield same(sf.softmax, x, axis, special=special)


@exercise("1. Attention")
def causal_mask(draw: Draw) -> Iterator[Case]:
    for L, S in ((4, 4), (1, 1), (2, 5), (1, 6)):
        asked = Question(sf.causal_mask, (L, S), {"offset": S - L, "dtype": np.float32})
        yield Case((L, S), (asked,))


@exercise("1. Attention")
def scaled_dot_product_attention(draw: Draw) -> Iterator[Case]:
    for batch, L, S, mask, scale, size in (
        ((), 4, 4, None, None, 1.0),
        ((2, 3), 4, 4, None, None, 1.0),
        ((), 4, 6, None, None, 1.0),
        ((), 4, 4, None, 0.5, 1.0),
        ((), 4, 4, None, 0.0, 1.0),
        ((2,), 4, 4, "causal", None, 1.0),
        ((2, 2), 3, 5, "causal", 0.5, 1.0),
        ((), 4, 6, "numbers", None, 1.0),
        ((), 4, 4, "causal", None, 30.0),
        ((), 4, 4, "sees nothing", None, 1.0),
    ):
        q, k = draw(*batch, 3, L, 5, scale=size), draw(*batch, 3, S, 5, scale=size)
        v = draw(*batch, 3, S, 7)
        visible = np.tri(L, S, S - L, dtype=bool)
        added = None
        if mask == "numbers":
            added = draw(L, S)
        elif mask is not None:
            visible[1:2] &= mask != "sees nothing"
            added = additive(visible)
        asked = Question(sf.scaled_dot_product_attention, (q, k, v, added), {"scale": scale})
        special = {"sees nothing": "query 1 sees nothing", "numbers": "a mask of numbers"}
        note = "large scores" if size > 1 else special.get(mask or "", mask or "")
        yield Case((q, k, v, added, scale), (asked,), note)


# ---- heads ---------------------------------------------------------------------------------------


@exercise("2. Heads")
def linear(draw: Draw) -> Iterator[Case]:
    for batch, bias in (((), None), ((4,), None), ((4,), draw(3)), ((2, 3), draw(3))):
        yield same(sf.linear, draw(*batch, 5), draw.matrix(3, 5), bias)
    yield same(sf.linear, draw(4, 5), draw.matrix(5, 5), None)


@exercise("2. Heads")
def split_heads(draw: Draw) -> Iterator[Case]:
    for batch, L, H, D in (((), 4, 3, 5), ((2,), 4, 3, 5), ((2, 3), 1, 2, 4), ((), 4, 4, 4)):
        yield same(split, draw(*batch, L, H * D), H)


@exercise("2. Heads")
def merge_heads(draw: Draw) -> Iterator[Case]:
    for batch, L, H, D in (((), 4, 3, 5), ((2,), 4, 3, 5), ((2, 3), 1, 2, 4), ((), 4, 4, 4)):
        yield same(merge, draw(*batch, H, L, D))


@exercise("2. Heads")
def multi_head_attention(draw: Draw) -> Iterator[Case]:
    for batch, L, S, H, D, causal in (
        ((2,), 5, 5, 3, 4, False),
        ((), 5, 5, 3, 4, True),
        ((2, 2), 4, 6, 2, 5, True),
        ((3,), 11, 11, 3, 9, True),
    ):
        weights = [draw.matrix(H * D, H * D) for _ in range(4)]
        x, memory = draw(*batch, L, H * D), draw(*batch, S, H * D)
        if L == S:
            memory = x
        mask = additive(np.tri(L, S, S - L, dtype=bool)) if causal else None
        layer = nn.MultiHeadAttention(H * D, H, *weights)
        asked = Question(layer, (x, memory, memory, mask))
        yield Case((x, memory, memory, H, *weights, mask), (asked,))


@exercise("2. Heads")
def repeat_kv(draw: Draw) -> Iterator[Case]:
    for batch, K, n in (((), 2, 3), ((2,), 3, 2), ((2, 3), 2, 1), ((), 1, 4)):
        yield same(sf.repeat_kv, draw(*batch, K, 4, 5), n)


# ---- positions -----------------------------------------------------------------------------------


@exercise("3. Positions")
def rope_frequencies(draw: Draw) -> Iterator[Case]:
    for head_dim, theta in ((8, 10000.0), (128, 500000.0), (64, 1000000.0)):
        asked = Question(sf.rope_frequencies, (head_dim,), {"theta": theta})
        yield Case((head_dim, theta), (asked,))


def rope(draw: Draw, layout: str) -> Iterator[Case]:
    for batch, D, positions, theta in (
        ((), 8, np.arange(5), 10000.0),
        ((2, 3), 6, np.arange(5), 500000.0),
        ((), 8, np.array([7]), 10000.0),
        ((2,), 8, np.array([3, 1, 4, 1, 5]), 10000.0),
        ((), 8, np.array([100, 500, 1000]), 10000.0),
    ):
        x = draw(*batch, len(positions), D)
        asked = Question(sf.rope, (x,), {"layout": layout, "positions": positions, "theta": theta})
        yield Case((x, positions, theta), (asked,))


@exercise("3. Positions")
def rope_interleaved(draw: Draw) -> Iterator[Case]:
    return rope(draw, "interleaved")


@exercise("3. Positions")
def rope_half(draw: Draw) -> Iterator[Case]:
    return rope(draw, "half")


# ---- layers --------------------------------------------------------------------------------------


@exercise("4. Layers")
def embedding(draw: Draw) -> Iterator[Case]:
    for ids in (np.array([3, 0, 6, 3]), np.array(5), np.array([[1, 2, 3], [4, 5, 6]])):
        yield same(sf.embedding, ids, draw(7, 4))


# leading axes, size of the numbers, eps: it counts where it is as large as their squares
NORMED = (((4,), 1.0, 1e-6), ((4,), 1e-3, 1e-6), ((2, 3), 3e-3, 1e-5), ((4,), 0.02, 1e-3))


@exercise("4. Layers")
def rms_norm(draw: Draw) -> Iterator[Case]:
    for batch, size, eps in NORMED:
        x, weight = draw(*batch, 6, scale=size), draw(6, scale=0.5, around=1.0)
        yield Case((x, weight, eps), (Question(sf.rms_norm, (x, weight), {"eps": eps}),))


@exercise("4. Layers")
def layer_norm(draw: Draw) -> Iterator[Case]:
    for batch, size, eps in NORMED:
        x = draw(*batch, 6, scale=size, around=size)
        weight, bias = draw(6, scale=0.5, around=1.0), draw(6)
        asked = Question(sf.layer_norm, (x, weight, bias), {"eps": eps})
        yield Case((x, weight, bias, eps), (asked,))


@exercise("4. Layers")
def silu(draw: Draw) -> Iterator[Case]:
    yield same(sf.silu, draw(6))
    yield same(sf.silu, draw(2, 3, 4))
    wide = np.array([-1000, -90, -1, 0, 1, 90, 1000], np.float32)
    yield same(sf.silu, wide, special="numbers up to 1000")


@exercise("4. Layers")
def mlp(draw: Draw) -> Iterator[Case]:
    for batch in ((), (4,), (2, 3)):
        x = draw(*batch, 6)
        weights = draw.matrix(10, 6), draw.matrix(10, 6), draw.matrix(6, 10)
        yield Case((x, *weights), (Question(nn.MLP(*weights), (x,)),))


# ---- a whole layer -------------------------------------------------------------------------------


def attention_weights(draw: Draw, E: int, H: int, K: int, D: int) -> dict[str, Any]:
    shapes = {"wq": (H * D, E), "wk": (K * D, E), "wv": (K * D, E), "wo": (E, H * D)}
    return {name: draw.matrix(*shape) for name, shape in shapes.items()}


SIZES = (  # leading axes, L, E, H, K, D, theta
    ((), 5, 12, 4, 2, 6, 10000.0),
    ((2,), 5, 12, 6, 2, 4, 500000.0),
    ((2,), 5, 12, 3, 1, 4, 10000.0),
    ((), 1, 12, 3, 3, 4, 10000.0),
)


@exercise("5. A whole layer")
def grouped_query_attention(draw: Draw) -> Iterator[Case]:
    for batch, L, E, H, K, D, theta in SIZES:
        weights = attention_weights(draw, E, H, K, D)
        layer = nn.GroupedQueryAttention(E, H, K, **weights, rope_layout="half", theta=theta)
        x = draw(*batch, L, E)
        asked = Question(layer, (x,), {"mask": "causal"})
        yield Case((x, H, K, *weights.values(), theta), (asked,))


@exercise("5. A whole layer")
def transformer_block(draw: Draw) -> Iterator[Case]:
    for (batch, L, E, H, K, D, theta), eps in zip(SIZES, (1e-6, 1e-5, 1e-2, 1e-6), strict=True):
        size = 2 * np.float32(eps**0.5)  # of x and of what the attention adds: eps counts in both
        attention = attention_weights(draw, E, H, K, D)
        attention["wo"] = size * attention["wo"]
        norms = [draw(E, scale=0.5, around=1.0) for _ in range(2)]
        gated = [draw.matrix(10, E), draw.matrix(10, E), draw.matrix(E, 10)]
        weights = {"attn_norm": norms[0], **attention, "mlp_norm": norms[1]}
        weights |= dict(zip(("gate", "up", "down"), gated, strict=True))
        block = nn.TransformerBlock(
            nn.GroupedQueryAttention(E, H, K, **attention, rope_layout="half", theta=theta),
            nn.MLP(*gated),
            *(nn.RMSNorm(weight, eps) for weight in norms),
        )
        x = draw(*batch, L, E, scale=float(size))
        asked = Question(block, (x,), {"mask": "causal"})
        yield Case((x, weights, H, K, eps, theta), (asked,))


@exercise("5. A whole layer")
def attend_with_cache(draw: Draw) -> Iterator[Case]:
    for H, L, P, D in ((2, 4, 0, 5), (2, 1, 4, 5), (3, 2, 5, 4)):
        q, k, v = draw(H, L, D), draw(H, L, D), draw(H, L, D)
        old_k, old_v = draw(H, P, D), draw(H, P, D)
        keys, values = np.concatenate([old_k, k], -2), np.concatenate([old_v, v], -2)
        causal = {"is_causal": True, "causal_offset": P}
        asked = (
            Question(sf.scaled_dot_product_attention, (q, keys, values), causal),
            Question(cache, (old_k, k)),
            Question(cache, (old_v, v)),
        )
        yield Case((q, k, v, old_k, old_v), asked)
