"""The layers against PyTorch, transformers and the formulas of the walkthroughs."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

import simdformer as sf
from cases import each
from conftest import bfloat16, normal, same_bits, to_torch
from simdformer import nn, reference

N, L, H, D = 10, 11, 3, 9  # the sizes of the attention walkthrough
E = H * D

# float32, a few layers of sums of some dozen terms, against float32 in another order of summation
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
CLOSE_64 = {"rtol": 1e-11, "atol": 1e-13}


def close(dtype):
    return CLOSE if dtype == np.float32 else CLOSE_64


def weights(rng, *shapes, dtype=np.float32):
    return [normal(rng, *shape, dtype=dtype, scale=1 / math.sqrt(shape[-1])) for shape in shapes]


def additive_mask(rng, *shape, dtype=np.float32):
    mask = np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape)).astype(dtype)
    mask[..., 0] = 0  # every query sees something
    return mask


@pytest.fixture(params=["arrays", "packed"])
def form(request):
    """Weights as they are, or packed."""
    return sf.pack if request.param == "packed" else np.asarray


# ---- multi-head attention ------------------------------------------------------------------------


def walkthrough(query, key, value, mask, wq, wk, wv, wo, heads=H, kv_heads=H, turn=np.asarray):
    """Attention of the texts, line by line, in float64; `turn` is what positions do to heads."""

    def cut(x, w, count):
        x = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
        return x.reshape(*x.shape[:-1], count, -1).swapaxes(-3, -2)

    q, k, v = turn(cut(query, wq, heads)), turn(cut(key, wk, kv_heads)), cut(value, wv, kv_heads)
    k, v = (y.repeat(heads // kv_heads, axis=-3) for y in (k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + mask
    pattern = np.exp(scores - scores.max(-1, keepdims=True))
    z = (pattern / pattern.sum(-1, keepdims=True)) @ v
    z = z.swapaxes(-3, -2)
    return z.reshape(*z.shape[:-2], -1) @ np.asarray(wo, np.float64).T


CAUSAL = np.triu(np.full((L, L), -np.inf), 1)


@each("batch", [(), (N,), (2, 3), (2, 3, 3)])
@each("mask", [None, "additive", "of each head", "causal", "bool"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_multi_head_attention_is_that_of_the_walkthrough(isa, form, batch, mask, dtype, rng):
    wq, wk, wv, wo = weights(rng, *[(E, E)] * 4, dtype=dtype)
    keys = L if mask == "causal" else 20
    query, key, value = (normal(rng, *batch, n, E, dtype=dtype) for n in (L, keys, keys))
    given, added = mask, None
    if mask == "additive":
        given = added = additive_mask(rng, L, keys, dtype=dtype)
    elif mask == "of each head":
        given = added = additive_mask(rng, *batch, H, L, keys, dtype=dtype)
    elif mask == "causal":
        added = CAUSAL
    elif mask == "bool":
        given = rng.random((L, keys)) < 0.6
        given[:, 0] = True
        added = np.where(given, 0, -np.inf)
    layer = nn.MultiHeadAttention(E, H, form(wq), form(wk), form(wv), form(wo))
    got = layer(query, key, value, given)
    assert got.shape == (*batch, L, E)
    assert got.dtype == dtype
    want = walkthrough(query, key, value, added, wq, wk, wv, wo)
    np.testing.assert_allclose(got, want, **close(dtype))


def test_16_bit_weights_and_activations(form, rng):
    w = weights(rng, *[(E, E)] * 4, dtype=bfloat16)
    x = normal(rng, 2, L, E)
    layer = nn.MultiHeadAttention(E, H, *map(form, w))
    wide = nn.MultiHeadAttention(E, H, *[form(y.astype(np.float32)) for y in w])
    np.testing.assert_allclose(layer(x, x, x), wide(x, x, x), **CLOSE)
    small = x.astype(bfloat16)
    got = layer(small, small, small)
    assert got.dtype == bfloat16
    want = walkthrough(small, small, small, None, *w)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0.05, atol=0.02)


# ---- grouped-query attention ---------------------------------------------------------------------


@each("heads, kv_heads", [(8, 2), (4, 4), (6, 1)])
@each("mask", [None, "causal"])
@each("rotated", [False, True])
def test_grouped_query_attention_is_that_of_the_walkthrough(
    isa, form, heads, kv_heads, mask, rotated, rng
):
    hidden, head_dim = 32, 8  # E is not H·D
    shapes = (
        (heads * head_dim, hidden),
        *[(kv_heads * head_dim, hidden)] * 2,
        (hidden, heads * head_dim),
    )
    w = weights(rng, *shapes, dtype=np.float64)
    x = normal(rng, 2, L, hidden, dtype=np.float64)

    def turn(y):
        return reference.rope(y, layout="interleaved", theta=5e4) if rotated else y

    layer = nn.GroupedQueryAttention(
        hidden, heads, kv_heads, *map(form, w),
        rope_layout="interleaved" if rotated else None, theta=5e4 if rotated else None,
    )  # fmt: skip
    want = walkthrough(x, x, x, CAUSAL if mask else None, *w, heads, kv_heads, turn)
    np.testing.assert_allclose(layer(x, mask), want, **CLOSE_64)
    np.testing.assert_allclose(layer(x[0], mask), want[0], **CLOSE_64)


def test_positions_and_inverse_frequencies_reach_rope(rng):
    w = weights(rng, (32, 32), (16, 32), (16, 32), (32, 32))
    x = normal(rng, 2, 5, 32)
    w = [sf.pack(y) for y in w]  # so that the bits of a row do not depend on the other rows
    half = {"rope_layout": "half"}
    plain = nn.GroupedQueryAttention(32, 4, 2, *w, **half)
    assert same_bits(plain(x, positions=np.arange(5)), plain(x))
    inv_freq = sf.rope_frequencies(8, theta=10000).inv_freq
    assert same_bits(nn.GroupedQueryAttention(32, 4, 2, *w, **half, inv_freq=inv_freq)(x), plain(x))
    # scores depend on distances only: a shift changes nothing, another order does
    np.testing.assert_allclose(plain(x, positions=np.arange(5) + 3), plain(x), rtol=1e-3, atol=1e-5)
    each = plain(x, positions=[[0, 1, 2, 3, 4], [4, 2, 0, 7, 1]])
    assert same_bits(each[0], plain(x[:1])[0])
    assert same_bits(each[1], plain(x[1:], positions=[4, 2, 0, 7, 1])[0])
    assert not np.allclose(each[1], plain(x)[1], atol=1e-3)


# ---- the small layers ----------------------------------------------------------------------------


def test_norms_are_torch_s(rng):
    x, weight, bias = normal(rng, 4, 5, E), normal(rng, E), normal(rng, E)
    want = F.rms_norm(to_torch(x), (E,), to_torch(weight), 1e-5).numpy()
    np.testing.assert_allclose(nn.RMSNorm(weight, 1e-5)(x), want, **CLOSE)
    want = F.layer_norm(to_torch(x), (E,), to_torch(weight), to_torch(bias), 1e-5).numpy()
    np.testing.assert_allclose(nn.LayerNorm(weight, bias, 1e-5)(x), want, **CLOSE)
    want = F.layer_norm(to_torch(x), (E,), to_torch(weight), None, 0.1).numpy()
    np.testing.assert_allclose(nn.LayerNorm(weight, None, eps=0.1)(x), want, **CLOSE)


def test_embedding_and_its_way_back(rng):
    weight, ids = normal(rng, 13, E), rng.integers(0, 13, (2, 5))
    layer = nn.Embedding(weight)
    assert same_bits(layer(ids), weight[ids])
    x = normal(rng, 2, 5, E)
    np.testing.assert_allclose(layer.as_linear(x), reference.linear(x, weight), **CLOSE)
    assert layer.as_linear(x).shape == (2, 5, 13)


# ---- a whole block -------------------------------------------------------------------------------


def randomise(module, rng):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = normal(
                rng, *parameter.shape, dtype=np.float64, scale=1 / math.sqrt(parameter.shape[-1])
            )
            parameter.copy_(torch.from_numpy(values + (1 if "norm" in name else 0)))
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@each("positions", [None, "shifted"])
def test_a_block_is_transformers_decoder_layer(isa, form, architecture, positions, rng):
    kind, layer_type, rotary = {
        "llama": (LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding),
        "qwen3": (Qwen3Config, Qwen3DecoderLayer, Qwen3RotaryEmbedding),
    }[architecture]
    config = kind(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=48, rms_norm_eps=1e-5, num_hidden_layers=1, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 7e3},
    )  # fmt: skip
    module = layer_type(config, 0).double().eval()
    w = randomise(module, rng)
    x = normal(rng, 2, L, 32, dtype=np.float64)
    at = np.arange(L) + (5 if positions else 0)
    with torch.no_grad():
        cos, sin = rotary(config)(torch.from_numpy(x), torch.from_numpy(at)[None])
        causal = torch.triu(torch.full((L, L), float("-inf"), dtype=torch.float64), 1)[None, None]
        want = module(torch.from_numpy(x), attention_mask=causal, position_embeddings=(cos, sin))
        want = (want[0] if isinstance(want, tuple) else want).numpy()

    qk_norms = {}
    if architecture == "qwen3":
        qk_norms = {
            "q_norm": w["self_attn.q_norm.weight"],
            "k_norm": w["self_attn.k_norm.weight"],
            "norm_eps": 1e-5,
        }
    block = nn.TransformerBlock(
        nn.GroupedQueryAttention(
            32, 4, 2, *[form(w[f"self_attn.{name}_proj.weight"]) for name in "qkvo"],
            rope_layout="half", theta=7e3, **qk_norms,
        ),
        nn.MLP(*[form(w[f"mlp.{name}_proj.weight"]) for name in ("gate", "up", "down")]),
        nn.RMSNorm(w["input_layernorm.weight"], 1e-5),
        nn.RMSNorm(w["post_attention_layernorm.weight"], 1e-5),
    )  # fmt: skip
    got = block(x, "causal", at if positions else None)
    # transformers computes its angles in float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_block_takes_any_callables_and_multi_head_attention(rng):
    w = weights(rng, *[(E, E)] * 4, dtype=np.float64)
    x = normal(rng, 2, L, E, dtype=np.float64)
    attention = nn.MultiHeadAttention(E, H, *w)
    norm = nn.LayerNorm(np.ones(E), np.zeros(E), 1e-5)
    block = nn.TransformerBlock(attention, np.tanh, norm, norm)
    h = x + walkthrough(*[reference.layer_norm(x, eps=1e-5)] * 3, CAUSAL, *w)
    want = h + np.tanh(reference.layer_norm(h, eps=1e-5))
    np.testing.assert_allclose(block(x, "causal"), want, **CLOSE_64)


def test_a_block_takes_tensors_bfloat16_too(dtype, rng):
    w = weights(rng, *[(E, E)] * 4, (8, E), (8, E), (E, 8), dtype=dtype)
    x, norm = normal(rng, 2, L, E, dtype=dtype), nn.RMSNorm(np.ones(E, dtype), 1e-5)
    of_tensors, of_arrays = (
        nn.TransformerBlock(nn.MultiHeadAttention(E, H, *w[:4]), nn.MLP(*w[4:]), norm, norm)
        for w in (list(map(to_torch, w)), w)
    )
    assert same_bits(of_tensors(to_torch(x), "causal"), of_arrays(x, "causal"))


def test_layers_say_what_they_are(rng):
    square, wide = np.zeros((6, 6)), np.zeros((8, 6))
    attention = nn.GroupedQueryAttention(6, 3, 1, square, square[:2], square[:2], square)
    assert repr(attention) == (
        "GroupedQueryAttention(hidden_size=6, num_heads=3, num_kv_heads=1, rope_layout=None)"
    )
    assert repr(nn.MultiHeadAttention(6, 3, *[square] * 4)) == (
        "MultiHeadAttention(hidden_size=6, num_heads=3)"
    )
    mlp, norm = nn.MLP(sf.pack(wide), wide, wide.T), nn.RMSNorm(np.zeros(6), 1e-5)
    assert repr(mlp) == "MLP(hidden_size=6, intermediate_size=8)"
    assert repr(norm) == "RMSNorm((6,), eps=1e-05)"
    assert repr(nn.LayerNorm(np.zeros(6), None, 0.1)) == "LayerNorm((6,), eps=0.1)"
    assert repr(nn.Embedding(wide)) == "Embedding(vocab_size=8, hidden_size=6)"
    assert repr(nn.TransformerBlock(attention, mlp, norm, norm)) == (
        f"TransformerBlock({attention!r}, {mlp!r}, {norm!r}, {norm!r})"
    )
