"""Whole models that are right, as people write them: none of their activations is called wrong,
whatever they are called and in whatever dtype they are computed."""

import math
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from learners import learner
from test_check_trace import CONFIGS, IDS, made

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
HIDDEN = {
    "-inf": lambda dtype: -math.inf,
    "-1e9": lambda dtype: -1e9 if dtype != torch.float16 else -3e4,
    "lowest": lambda dtype: torch.finfo(dtype).min,
}


def meta(weights, ids, dtype, hidden, wide):
    """Llama in Meta's idiom. xq and xk are overwritten when they are turned, scores when they are
    masked and again by the softmax, h by each layer. wide: norms and softmax in float32."""
    config = CONFIGS["llama"]
    w = {name: torch.from_numpy(x).to(dtype) for name, x in weights.items()}
    eps, heads, kv_heads = config.norm_eps, config.num_heads, config.num_kv_heads
    length, inner = len(ids), torch.float32 if wide else dtype
    seen = {}

    def norm(x, weight):
        y = x.to(inner)
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(dtype) * weight

    freqs = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2).double() / 4)
    angles = torch.outer(torch.arange(length).double(), freqs)
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)[:, None]

    def turned(x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2).to(dtype)

    h = w["embed"][torch.tensor(ids)]
    seen["tok_embeddings"] = h
    mask = torch.full((length, length), HIDDEN[hidden](dtype), dtype=dtype).triu(1)
    for layer in range(config.num_layers):
        at = f"layers.{layer}."
        x = norm(h, w[at + "attn_norm"])
        seen[at + "x_norm"] = x
        xq, xk, xv = (x @ w[at + name].T for name in ("wq", "wk", "wv"))
        xq, xk, xv = (
            t.view(length, n, -1)
            for t, n in zip((xq, xk, xv), (heads, kv_heads, kv_heads), strict=True)
        )
        xq, xk = turned(xq), turned(xk)
        seen |= {at + "xq": xq, at + "xk": xk, at + "xv": xv}
        keys, values = (t.repeat_interleave(heads // kv_heads, 1).transpose(0, 1) for t in (xk, xv))
        scores = xq.transpose(0, 1) @ keys.transpose(1, 2) / math.sqrt(config.head_dim) + mask
        seen[at + "masked_scores"] = scores
        scores = F.softmax(scores.to(inner), dim=-1).to(dtype)
        seen[at + "scores"] = scores
        output = (scores @ values).transpose(0, 1).reshape(length, -1)
        seen[at + "attention_output"] = output  # of the heads, before wo
        h = h + output @ w[at + "wo"].T
        seen[at + "h"] = h
        x = norm(h, w[at + "mlp_norm"])
        gate = F.silu(x @ w[at + "gate"].T)
        seen |= {at + "ffn_norm": x, at + "gate": gate}
        h = h + (gate * (x @ w[at + "up"].T)) @ w[at + "down"].T
        seen[at + "out"] = h
    seen["norm"] = norm(h, w["final_norm"])
    seen["output"] = seen["norm"] @ w["lm_head"].T
    return seen


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wide", [True, False], ids=["float32 inside", "one dtype"])
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_right_model_with_overwritten_names_is_right(dtype, hidden, wide):
    model, weights = made("llama")
    seen = meta(weights, IDS, dtype, hidden, wide)
    report = sf.check_trace(seen, model, IDS)
    assert report.ok, report
    assert len(report.checked) == len(seen)
    assert not report.unknown
    said = " ".join(repr(report).split())
    assert (
        "note: what you call 'layers.0.xq' is layers.0.attn.q_rot, and so in layers 1 to 2" in said
    )
    assert "what you call 'layers.2.scores' is layers.2.attn.pattern" in report.remarks


@pytest.mark.parametrize("back", [False, True], ids=["kept", "cast back"])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_logits_alone_are_right_in_every_dtype(dtype, back):
    model, weights = made("llama")
    logits = meta(weights, IDS, dtype, "-inf", wide=True)["output"]
    report = sf.check_trace({"logits": logits.float() if back else logits}, model, IDS)
    assert report.ok, report


@pytest.mark.parametrize("name", ["qwen3", "mistral", "llama3.1"])
@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"], ids=str)
def test_a_numpy_model_in_16_bits_is_right_without_its_stream(name, dtype):
    """Only what lies inside of the layers: each step has a gap behind it."""
    model, weights = made(name)
    mine = learner(CONFIGS[name], weights, IDS, dtype=np.dtype(dtype))
    some = {n: x for n, x in mine.items() if n.endswith(("attn.z", "mlp.act", "logits"))}
    report = sf.check_trace(some, model, IDS)
    assert report.ok, report


def test_unknown_names_of_many_layers_take_one_line():
    model, weights = made("llama")
    mine = learner(CONFIGS["llama"], weights, IDS)
    for layer in range(3):
        mine[f"layers.{layer}.dropout"] = 0.0
    mine |= {"layers.0.lost": 1, "layers.2.lost": 1, "loss": 2}
    report = sf.check_trace(mine, model, IDS)
    said = " ".join(repr(report).split())
    assert len(report.unknown) == 6
    assert said.count("unknown name") == 3
    assert re.search(r"'layers.0.dropout' \(do you mean [^)]*\), and so in layers 1 to 2 \?", said)
    assert re.search(r"'layers.0.lost'[^?]*\?\), and so in layer 2 \?", said)


def test_an_array_that_is_another_one_is_a_mistake_where_what_follows_is_wrong():
    model, weights = made("llama")
    for slip, name in (("k not rotated", "attn.k_rot"), ("no mask", "attn.scores")):
        mine = learner(CONFIGS["llama"], weights, IDS, slip)
        assert sf.check_trace(mine, model, IDS).first_wrong == f"layers.0.{name}"
        mine = {f"layers.0.{name}": mine[f"layers.0.{name}"]}
        assert not sf.check_trace(mine, model, IDS).ok
    right = learner(CONFIGS["llama"], weights, IDS)
    right["layers.1.attn.k_rot"] = right["layers.1.attn.k"]  # only noted down too early
    report = sf.check_trace(right, model, IDS)
    assert report.ok
    assert report.remarks == ("what you call 'layers.1.attn.k_rot' is layers.1.attn.k",)
