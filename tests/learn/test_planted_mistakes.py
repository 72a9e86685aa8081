"""Mistakes planted in a whole model: a program of its own in PyTorch, as one writes it who follows
a walkthrough, keeps its activations, and `check_trace` says where it went wrong, and why."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from simdformer.models import ModelConfig, Transformer, weight_shapes

IDS = [1, 14, 15, 9, 2, 6, 5, 35, 8, 9]  # bos is 1
CONFIG = ModelConfig(
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=50,
    max_seq_len=32,
    norm_eps=1e-6,
    rope_theta=1e6,
    rope_layout="half",
    tie_embeddings=False,
    qk_norm=True,
)


def made():
    """A model, and its weights as tensors. As in real ones the stream is small, but for one channel
    of the first token, whose square float16 cannot hold."""
    rng = np.random.default_rng(5)
    weights = {}
    for name, shape in weight_shapes(CONFIG).items():
        scale = 0.02 if name == "embed" else 1.5 / math.sqrt(shape[-1])
        values = rng.standard_normal(shape)
        weights[name] = (1 + values / 4 if "norm" in name else scale * values).astype(np.float32)
    weights["embed"][1, 3] = 300
    return Transformer(CONFIG, weights), {n: torch.from_numpy(w) for n, w in weights.items()}


MODEL, WEIGHTS = made()


def run(*slips, ids=IDS, theta=1e6, eps=1e-6, head_dim=8):
    """The activations of a model with slips in it, under the names of Hugging Face and Meta."""
    seen, layers = {}, list(range(CONFIG.num_layers))
    w = WEIGHTS
    generator = torch.Generator().manual_seed(3)
    if "ids without bos" in slips:
        ids = ids[1:]
    if "layers in another order" in slips:
        layers = [0, 2, 1]
    if "a layer is left out" in slips:
        layers = [0, 2]
    if "the last layer is left out" in slips:
        layers = [0, 1]

    eps = 1e-5 if "eps of llama" in slips else eps
    theta = 1e4 if "theta of llama 2" in slips else theta

    def norm(x, weight):
        if "norm in float16" in slips:
            x, weight = x.half(), weight.half()
            return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight).float()
        if "norm subtracts the mean" in slips:
            x = x - x.mean(-1, keepdim=True)
        if "eps outside of the root" in slips:
            return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps) * weight
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    def rotate(x):
        freqs = theta ** -(torch.arange(0, 8, 2).double() / 8)
        first = 1 if "positions from 1" in slips else 0
        angle = torch.outer(torch.arange(first, first + x.shape[-2]).double(), freqs)
        if "interleaved pairs" in slips:
            cos, sin = (t.repeat_interleave(2, -1) for t in (angle.cos(), angle.sin()))
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        else:
            cos, sin = (torch.cat([t, t], -1) for t in (angle.cos(), angle.sin()))
            turned = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return x * cos.float() + turned * sin.float()

    h = w["embed"][torch.tensor(ids)]
    seen["model.embed_tokens"] = h
    for name, i in enumerate(layers):
        at = f"layers.{name if 'a layer is left out' not in slips else i}."
        n = {key.removeprefix(f"layers.{i}."): x for key, x in w.items() if f"layers.{i}." in key}
        seen[at + "resid_pre"] = h
        x = h if "post-norm" in slips else norm(h, n["attn_norm"])
        seen[at + "input_layernorm"] = x
        q = x @ (n["wq"] if "wq not transposed" in slips else n["wq"].T)
        k, v = x @ n["wk"].T, x @ n["wv"].T
        q, k, v = (t.view(len(ids), -1, 8).transpose(0, 1) for t in (q, k, v))
        seen |= {at + "q_proj": q, at + "k_proj": k}
        if "q_norm forgotten" not in slips:
            q, k = norm(q, n["q_norm"]), norm(k, n["k_norm"])
            seen |= {at + "q_norm": q, at + "k_norm": k}
        q = rotate(q)
        k = k if "k not rotated" in slips else rotate(k)
        v = rotate(v) if "v rotated too" in slips else v
        seen |= {at + "v_proj": v, at + "q_rot": q, at + "k_rot": k}
        many = torch.Tensor.repeat if "heads tiled" in slips else torch.repeat_interleave
        times = (2, 1, 1) if "heads tiled" in slips else (2, 0)
        key, value = many(k, *times), many(v, *times)
        scores = q @ key.transpose(-2, -1)
        if "no scale" not in slips:
            scores = scores / math.sqrt(32 if "scale of the hidden size" in slips else head_dim)
        hidden = 2 if "mask off by one" in slips else 0 if "diagonal hidden" in slips else 1
        if "no mask" not in slips:
            low = torch.full_like(scores[0], torch.finfo(torch.float32).min)
            scores = scores + torch.triu(low, hidden)
        seen[at + "masked_scores"] = scores
        pattern = scores.softmax(-2 if "softmax over queries" in slips else -1)
        seen[at + "attn_weights"] = pattern
        z = (pattern @ value).transpose(0, 1).reshape(len(ids), -1)
        seen[at + "z"] = z
        out = z @ n["wo"].T
        if "dropout left on" in slips:
            keep = torch.rand(out.shape, generator=generator) > 0.1
            out = out * keep / 0.9
        seen[at + "o_proj"] = out
        h = out if "no residual" in slips else h + out
        if "post-norm" in slips:
            h = norm(h, n["attn_norm"])
        seen[at + "resid_mid"] = h
        x = h if "post-norm" in slips else norm(h, n["mlp_norm"])
        seen[at + "post_attention_layernorm"] = x
        gate, up = x @ n["gate"].T, x @ n["up"].T
        if "gate and up swapped" in slips:
            gate, up = up, gate
        seen |= {at + "gate_proj": gate, at + "up_proj": up}
        seen[at + "act"] = (F.gelu(gate) if "gelu for silu" in slips else F.silu(gate)) * up
        h = h + seen[at + "act"] @ n["down"].T
        if "post-norm" in slips:
            h = norm(h, n["mlp_norm"])
        seen[at + "resid_post"] = h
    seen["model.norm"] = h if "no final norm" in slips else norm(h, w["final_norm"])
    seen["logits"] = seen["model.norm"] @ w["embed" if "head tied" in slips else "lm_head"].T
    return seen


# Where each one shows first, and the names that it may be given.
PLANTED = {
    "theta of llama 2": ("attn.q_rot", "rope_frequencies.theta_10000"),
    "eps of llama": ("attn_norm", "rms_norm.eps_1e-05"),
    "eps outside of the root": ("attn_norm", "rms_norm.eps_outside_root"),
    "norm subtracts the mean": ("attn_norm", "rms_norm.mean_subtracted"),
    "interleaved pairs": ("attn.q_rot", "rope.layout_swapped"),
    "positions from 1": ("attn.q_rot", "rope.positions_from_one"),
    "k not rotated": ("attn.k_rot", "rope.not_turned", "layer.scores_of_unturned_keys"),
    "v rotated too": ("attn.v", "layer.v_turned"),
    "q_norm forgotten": ("attn.q_rot", "layer.q_turned_without_norm", "layer.no_qk_norms"),
    "wq not transposed": ("attn.q", "linear.not_transposed", "layer.wq_not_transposed"),
    "heads tiled": ("attn.scores", "attention.heads_tiled"),
    "no scale": ("attn.scores", "attention.no_scale"),
    "scale of the hidden size": ("attn.scores", "attention.scale_by_hidden_size"),
    "no mask": ("attn.scores", "attention.no_causal"),
    "mask off by one": ("attn.scores", "attention.causal_loose"),
    "diagonal hidden": (
        "attn.scores",
        "attention.causal_strict",
        "attention.causal_strict_uniform",
    ),
    "softmax over queries": ("attn.pattern", "attention.softmax_over_queries"),
    "dropout left on": ("attn.out", "array.dropout"),
    "no residual": ("resid_mid", "layer.no_residual_around_attention"),
    "post-norm": ("attn_norm", "layer.no_attn_norm", "layer.post_norm"),
    "gate and up swapped": ("mlp.gate", "layer.up_for_gate", "layer.gate_and_up_swapped"),
    "gelu for silu": ("mlp.act", "silu.gelu_instead"),
    "layers in another order": (
        "layers.1.attn_norm",
        "layer.attn_norm_of_layer_2",
        "layer.layer_2_instead",
    ),
    "a layer is left out": ("layers.2.resid_pre", "layer.left_out"),
    "the last layer is left out": ("final_norm", "layer.left_out"),
    "no final norm": ("final_norm", "model.no_final_norm"),
    "head tied": ("logits", "model.embedding_for_lm_head"),
    "ids without bos": ("embed", "model.without_bos"),
}


def test_the_model_without_slips_is_right():
    assert sf.check_trace(run(), MODEL, IDS).ok
    assert sf.check_trace(hidden_states(run()), MODEL, IDS).ok


@pytest.mark.parametrize("slip", PLANTED)
def test_a_planted_mistake_is_named_where_it_shows_first(slip):
    where, *names = PLANTED[slip]
    report = sf.check_trace(run(slip), MODEL, IDS)
    found = {mistake.name for mistake in report.diagnosis}
    place = report.first_wrong.split()[0]
    assert place in (where, f"layers.0.{where}"), report
    assert found & set(names), report


def hidden_states(seen):
    """What output_hidden_states of Hugging Face gives, and the logits."""
    kept = ("embed_tokens", "resid_post", "model.norm", "logits")
    return {name: x for name, x in seen.items() if name.endswith(kept)}


# What cannot be told from these: attention depends on the difference of two positions; zeros of
# dropout are lost in sums.
NOT_THERE = ("positions from 1", "dropout left on")


@pytest.mark.parametrize("slip", [slip for slip in PLANTED if slip not in NOT_THERE])
def test_what_the_layers_leave_is_enough_to_name_it(slip):
    _, *names = PLANTED[slip]
    report = sf.check_trace(hidden_states(run(slip)), MODEL, IDS)
    assert {mistake.name for mistake in report.diagnosis} & set(names), report


def test_what_cannot_be_named_still_has_its_layer():
    report = sf.check_trace(hidden_states(run("dropout left on")), MODEL, IDS)
    assert report.first_wrong == "layers.0.resid_post"
    assert sf.check_trace(hidden_states(run("positions from 1")), MODEL, IDS).ok


@pytest.mark.parametrize("kept", [dict, hidden_states], ids=["all", "hidden states"])
@pytest.mark.parametrize(
    ("constant", "title"),
    [
        ({"theta": 7e4}, "theta is 70,000, needs 1,000,000"),
        ({"eps": 3e-4}, "eps is 0.0003, needs 1e-06"),
        ({"head_dim": 50}, "the scores are divided by sqrt(50), needs sqrt(8)"),
    ],
    ids=str,
)
def test_a_wrong_constant_is_fitted(constant, title, kept):
    report = sf.check_trace(kept(run(**constant)), MODEL, IDS)
    assert title in [mistake.title for mistake in report.diagnosis], report


def test_an_overflow_has_its_place():
    """In float16 the square of 300 is infinite: the norm of the first token is 0."""
    seen = run("norm in float16")
    assert not seen["layers.0.input_layernorm"][0].any()
    report = sf.check_trace(seen, MODEL, IDS)
    assert report.first_wrong == "layers.0.attn_norm (layers.0.input_layernorm)"
    assert [mistake.name for mistake in report.diagnosis] == ["rms_norm.squares_overflow"], report


@pytest.mark.parametrize("slip", ["theta of llama 2", "interleaved pairs"])
def test_a_name_that_is_overwritten_is_explained_by_what_it_holds(slip):
    """xq = rope(xq): it is called q, and turned wrongly it is neither q nor what it should be."""
    seen = {key.replace("q_rot", "xq"): x for key, x in run(slip).items() if "k_rot" not in key}
    _, *names = PLANTED[slip]
    report = sf.check_trace(seen, MODEL, IDS)
    assert report.first_wrong == "layers.0.attn.q_rot (layers.0.xq)"
    assert {mistake.name for mistake in report.diagnosis} & set(names), report
    right = sf.check_trace({key.replace("q_rot", "xq"): x for key, x in run().items()}, MODEL, IDS)
    assert right.ok
