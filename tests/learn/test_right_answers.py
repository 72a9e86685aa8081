"""Nobody who is right is told that he is wrong: all operations, eleven idioms, four dtypes."""

import numpy as np
import pytest

import simdformer as sf
from conftest import DTYPES, normal
from right_answers import IDIOMS
from simdformer import nn

SIZES = (8, 2, 500000.0, 1e-5)  # heads, KV heads, theta, eps


def attention(rng, dtype):
    q = normal(rng, 2, 4, 9, 16, dtype=dtype)
    k, v = (normal(rng, 2, 2, 9, 16, dtype=dtype) for _ in range(2))
    call = sf.scaled_dot_product_attention, (q, k, v), {"is_causal": True}
    return "attention", (q, k, v), (), call


def layer(rng, dtype):
    width, inner = 64, 96
    shapes = {
        "wq": (width, width), "wk": (width // 4, width), "wv": (width // 4, width),
        "wo": (width, width), "gate": (inner, width), "up": (inner, width), "down": (width, inner),
    }  # fmt: skip
    w = {
        name: normal(rng, *shape, dtype=dtype, scale=shape[1] ** -0.5)
        for name, shape in shapes.items()
    }
    w |= {name: normal(rng, width, dtype=dtype) for name in ("attn_norm", "mlp_norm")}
    heads, kv_heads, theta, eps = SIZES
    block = nn.TransformerBlock(
        nn.GroupedQueryAttention(
            width, heads, kv_heads, *(w[name] for name in ("wq", "wk", "wv", "wo")),
            rope_layout="half", theta=theta,
        ),
        nn.MLP(w["gate"], w["up"], w["down"]),
        nn.RMSNorm(w["attn_norm"], eps),
        nn.RMSNorm(w["mlp_norm"], eps),
    )  # fmt: skip
    x = normal(rng, 2, 7, width, dtype=dtype)
    return "layer", (x, w), (SIZES,), (block, (x,), {"mask": "causal"})


def rms_norm(rng, dtype):
    x, weight = normal(rng, 3, 5, 48, dtype=dtype), normal(rng, 48, dtype=dtype)
    return "rms_norm", (x, weight), (1e-6,), (sf.rms_norm, (x, weight), {"eps": 1e-6})


def rope(rng, dtype):
    x = normal(rng, 2, 3, 40, 16, dtype=dtype)
    return "rope", (x,), (10000.0,), (sf.rope, (x,), {"layout": "half", "theta": 10000.0})


def rope_frequencies(rng, dtype):
    return "rope_frequencies", (), (64, 5e5), (sf.rope_frequencies, (64,), {"theta": 5e5})


def softmax(rng, dtype):
    x = normal(rng, 4, 6, 30, dtype=dtype, scale=3)
    return "softmax", (x,), (), (sf.softmax, (x,), {})


def swiglu(rng, dtype):
    gate, up = normal(rng, 5, 200, dtype=dtype, scale=3), normal(rng, 5, 200, dtype=dtype)
    return "swiglu", (gate, up), (), (sf.swiglu, (gate, up), {})


def linear(rng, dtype):
    x, weight = normal(rng, 3, 7, 64, dtype=dtype), normal(rng, 24, 64, dtype=dtype)
    bias = normal(rng, 24, dtype=dtype)
    return "linear", (x, weight, bias), (), (sf.linear, (x, weight, bias), {})


def embedding(rng, dtype):
    ids, weight = rng.integers(0, 50, (2, 9)), normal(rng, 50, 32, dtype=dtype)
    return "embedding", (ids, weight), (), (sf.embedding, (ids, weight), {})


OPERATIONS = [
    attention, layer, rms_norm, rope, rope_frequencies, softmax, swiglu, linear, embedding
]  # fmt: skip


def converted(x, idiom):
    return {n: idiom.to(v) for n, v in x.items()} if isinstance(x, dict) else idiom.to(x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_what_is_right_is_right(operation, dtype, idiom, rng):
    name, arrays, others, (op, args, kwargs) = operation(rng, np.dtype(dtype))
    with np.errstate(all="ignore"):
        mine = getattr(idiom, name)(*(converted(x, idiom) for x in arrays), *others)
    report = sf.check(op, idiom.back(mine, np.dtype(dtype)), *args, **kwargs)
    assert report.ok, report
