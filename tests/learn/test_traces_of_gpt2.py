"""GPT-2 as people write it, in two idioms, right and with mistakes in it: `check_trace` calls the
right ones right in every dtype, and says of the others where they went wrong, and why."""

import math
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
import tiny_models
from checkpoints import GPT2, tiny_config
from conftest import bfloat16
from simdformer.models import Transformer, weight_shapes

IDS = [4, 14, 15, 9, 2, 6, 5, 35, 8, 9]
CONFIG = tiny_config(
    num_kv_heads=4, intermediate_size=64, vocab_size=50, max_seq_len=40, rope_layout="half", **GPT2
)


def made(dtype=np.float32):
    """A model, and its weights. As in the real one the stream is small at first."""
    rng = np.random.default_rng(5)
    weights = {}
    for name, shape in weight_shapes(CONFIG).items():
        values = rng.standard_normal(shape)
        if "embed" in name:
            values *= 0.02
        elif len(shape) == 2:
            values *= 1.5 / math.sqrt(shape[-1])
        else:
            values = values / 4 + name.endswith("norm")
        weights[name] = values.astype(dtype).astype(np.float32)
    return Transformer(CONFIG, weights), weights


def under_its_own_names(weights):
    """Matrices (in, out), q, k and v in one."""
    own = {"wte": weights["embed"], "wpe": weights["pos_embed"]}
    own |= {"ln_f.weight": weights["final_norm"], "ln_f.bias": weights["final_norm_bias"]}
    for i in range(CONFIG.num_layers):
        w = {name: weights[f"layers.{i}.{name}"] for name in LAYER}
        at = f"h.{i}."
        for norm, theirs in (("attn_norm", "ln_1"), ("mlp_norm", "ln_2")):
            own |= {f"{at}{theirs}.weight": w[norm], f"{at}{theirs}.bias": w[f"{norm}_bias"]}
        own[at + "attn.c_attn.weight"] = np.concatenate([w["wq"], w["wk"], w["wv"]]).T
        own[at + "attn.c_attn.bias"] = np.concatenate([w["bq"], w["bk"], w["bv"]])
        own |= {at + "attn.c_proj.weight": w["wo"].T, at + "attn.c_proj.bias": w["bo"]}
        own |= {at + "mlp.c_fc.weight": w["up"].T, at + "mlp.c_fc.bias": w["up_bias"]}
        own |= {at + "mlp.c_proj.weight": w["down"].T, at + "mlp.c_proj.bias": w["down_bias"]}
    return own


LAYER = [name.removeprefix("layers.0.") for name in weight_shapes(CONFIG) if "layers.0." in name]
MODEL, MADE = made()
OWN = under_its_own_names(MADE)


def tensors(own):
    return {name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in own.items()}


DTYPES = [  # in `make test` one of 32 bits and one of 16
    "float32",
    "bfloat16",
    pytest.param("float64", marks=pytest.mark.slow),
    pytest.param("float16", marks=pytest.mark.slow),
]


def nano(*slips, own=OWN, dtype=torch.float32):
    """In the idiom of nanoGPT and Hugging Face, with slips in it."""
    w = {name: tensor.to(dtype) for name, tensor in tensors(own).items()}
    seen, length, heads = {}, len(IDS), CONFIG.num_heads
    eps = 1e-6 if "eps of llama" in slips else 1e-5

    def norm(x, name):
        weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        if "norms without bias" in slips:
            bias = None
        if "the mean stays" in slips:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight + bias
        if "spread of a sample" in slips:
            centred = x - x.mean(-1, keepdim=True)
            return centred / torch.sqrt(x.var(-1, keepdim=True) + eps) * weight + bias
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def conv(x, name):
        weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        if "c_proj not transposed" in slips and name.endswith("attn.c_proj"):
            weight = weight.T
        bias = 0 if f"{name.split('.', 2)[2]} without bias" in slips else bias
        return x @ weight + bias

    ids = torch.tensor(IDS)
    positions = torch.arange(length) + ("positions from 1" in slips)
    positions = ids if "positions of the ids" in slips else positions
    seen["wte"], seen["wpe"] = w["wte"][ids], w["wpe"][positions]
    x = seen["wte"] if "positions forgotten" in slips else seen["wte"] + seen["wpe"]
    seen["drop"] = x
    for i in range(CONFIG.num_layers):
        at = f"h.{i}."
        y = norm(x, at + "ln_1")
        seen[at + "ln_1"] = y
        fused = conv(y, at + "attn.c_attn")
        if "split head by head" in slips:
            q, k, v = fused.view(length, heads, 3, -1).transpose(0, 1).unbind(2)
        else:
            q, k, v = (t.view(length, heads, -1).transpose(0, 1) for t in fused.chunk(3, -1))
        if "split as k, q, v" in slips:
            q, k = k, q
        seen |= {at + "attn.q": q, at + "attn.k": k, at + "attn.v": v}
        att = q @ k.transpose(-2, -1) / (1 if "no scale" in slips else math.sqrt(k.shape[-1]))
        if "no mask" not in slips:
            att = att.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        seen[at + "scores"] = att
        seen[at + "att"] = att.softmax(-1)
        z = (seen[at + "att"] @ v).transpose(0, 1).reshape(length, -1)
        seen[at + "z"] = z
        out = conv(z, at + "attn.c_proj")
        seen[at + "attn.c_proj"] = out
        x = (y if "residual of the norm" in slips else x) + out
        seen[at + "resid_mid"] = x
        y = norm(x, at + ("ln_1" if "ln_1 for ln_2" in slips else "ln_2"))
        seen[at + "ln_2"] = y
        inner = conv(y, at + "mlp.c_fc")
        seen[at + "mlp.c_fc"] = inner
        form = "none" if "exact gelu" in slips else "tanh"
        act = F.silu(inner) if "silu" in slips else F.gelu(inner, approximate=form)
        seen[at + "mlp.act"] = act
        out = conv(act, at + "mlp.c_proj")
        seen[at + "mlp.c_proj"] = out
        x = x + out
        seen[f"h.{i}"] = x
    seen["ln_f"] = x if "no final norm" in slips else norm(x, "ln_f")
    seen["lm_head"] = seen["ln_f"] @ w["wte"].T
    return {name: t if name.startswith("h.") else t[None] for name, t in seen.items()}


def lens(own, dtype):
    """In the idiom of TransformerLens, in numpy: a matrix for each head, names of its hooks."""
    w = {name: array.astype(dtype) for name, array in own.items()}
    seen, length, heads, size = {}, len(IDS), CONFIG.num_heads, CONFIG.head_dim

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + np.asarray(1e-5, dtype))
        return (x / scale) * w[f"{name}.weight"] + w[f"{name}.bias"]

    seen["hook_embed"], seen["hook_pos_embed"] = w["wte"][IDS], w["wpe"][:length]
    x = seen["hook_embed"] + seen["hook_pos_embed"]
    for i in range(CONFIG.num_layers):
        at = f"blocks.{i}."
        seen[at + "hook_resid_pre"] = x
        y = seen[at + "ln1.hook_normalized"] = norm(x, f"h.{i}.ln_1")
        fused, bias = (w[f"h.{i}.attn.c_attn.{name}"] for name in ("weight", "bias"))
        q, k, v = (
            np.stack([y @ part[:, h] + of_part[h] for h in range(heads)])
            for part, of_part in zip(
                fused.reshape(-1, 3, heads, size).transpose(1, 0, 2, 3),
                bias.reshape(3, heads, size),
                strict=True,
            )
        )
        for name, t in (("q", q), ("k", k), ("v", v)):
            seen[f"{at}attn.hook_{name}"] = t.swapaxes(0, 1)
        scores = q @ k.swapaxes(1, 2) / np.asarray(math.sqrt(size), dtype)
        scores = np.where(np.tri(length, dtype=bool), scores, np.asarray(-1e4, dtype))
        seen[at + "attn.hook_attn_scores"] = scores
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares = shares / shares.sum(-1, keepdims=True)
        seen[at + "attn.hook_pattern"] = shares
        z = (shares @ v).swapaxes(0, 1)
        seen[at + "attn.hook_z"] = z
        wo = w[f"h.{i}.attn.c_proj.weight"].reshape(heads, size, -1)
        out = sum((z[:, h] @ wo[h] for h in range(heads)), w[f"h.{i}.attn.c_proj.bias"])
        seen[at + "hook_attn_out"] = out
        x = x + out
        seen[at + "hook_resid_mid"] = x
        y = seen[at + "ln2.hook_normalized"] = norm(x, f"h.{i}.ln_2")
        pre = y @ w[f"h.{i}.mlp.c_fc.weight"] + w[f"h.{i}.mlp.c_fc.bias"]
        cube = np.asarray(0.044715, dtype) * pre * pre * pre
        bent = np.tanh(np.asarray(math.sqrt(2 / math.pi), dtype) * (pre + cube))
        post = np.asarray(0.5, dtype) * pre * (1 + bent)
        seen |= {at + "mlp.hook_pre": pre, at + "mlp.hook_post": post}
        out = post @ w[f"h.{i}.mlp.c_proj.weight"] + w[f"h.{i}.mlp.c_proj.bias"]
        x = x + out
        seen |= {at + "hook_mlp_out": out, at + "hook_resid_post": x}
    seen["ln_final.hook_normalized"] = norm(x, "ln_f")
    seen["hook_logits"] = seen["ln_final.hook_normalized"] @ w["wte"].T
    return {name: np.asarray(x, dtype) for name, x in seen.items()}


def what_layers_leave(seen):
    kept = ("wte", "drop", "h.0", "h.1", "h.2", "resid_post", "lm_head", "hook_logits")
    return {name: x for name, x in seen.items() if name.endswith(kept)}


@pytest.mark.parametrize("kind", DTYPES)
def test_a_right_gpt2_is_right_in_every_dtype_and_idiom(kind):
    few = np.dtype(bfloat16 if kind == "bfloat16" else kind)
    model, weights = made(few)
    own = under_its_own_names(weights)
    for seen in (nano(own=own, dtype=getattr(torch, kind)), lens(own, few)):
        for some in (seen, what_layers_leave(seen), {"logits": [*seen.values()][-1]}):
            report = sf.check_trace(some, model, IDS)
            assert report.ok, report
            assert not report.unknown
            assert len(report.checked) == len(some)


# Where each one shows first, and the names that it may be given.
PLANTED = {
    "positions forgotten": ("layers.0.resid_pre", "model.no_positions"),
    "positions from 1": ("pos_embed", "model.positions_from_one"),
    "positions of the ids": ("pos_embed", "model.positions_of_ids"),
    "the mean stays": ("attn_norm", "layer_norm.mean_not_subtracted"),
    "norms without bias": ("attn_norm", "layer_norm.bias_forgotten"),
    "eps of llama": ("attn_norm", "layer_norm.eps_1e-06"),
    "spread of a sample": ("attn_norm", "layer_norm.n_minus_one"),
    "split as k, q, v": ("attn.q", "layer.wk_for_wq", "attention.query_and_key_swapped"),
    "split head by head": ("attn.q", "layer.q_by_head", "layer.qkv_by_head"),
    "attn.c_attn without bias": ("attn.q", "linear.no_bias", "layer.no_bias_of_qkv"),
    "no scale": ("attn.scores", "attention.no_scale"),
    "no mask": ("attn.pattern", "attention.no_causal"),
    "c_proj not transposed": ("attn.out", "linear.not_transposed", "layer.wo_not_transposed"),
    "attn.c_proj without bias": ("attn.out", "linear.no_bias", "layer.no_bias_of_wo"),
    "residual of the norm": ("resid_mid", "layer.residual_of_normed_around_attention"),
    "ln_1 for ln_2": ("mlp_norm", "layer.attn_norm_for_mlp_norm"),
    "mlp.c_fc without bias": ("mlp.up", "linear.no_bias", "layer.no_bias_of_up"),
    "exact gelu": ("mlp.act", "gelu.other_form"),
    "silu": ("mlp.act", "gelu.silu_instead"),
    "mlp.c_proj without bias": ("mlp.out", "linear.no_bias", "layer.no_bias_of_down"),
    "no final norm": ("final_norm", "model.no_final_norm"),
}


def test_an_exact_gelu_is_named_where_other_channels_hide_it():
    """In its row it is off by less than another order of sums may be."""
    weights = dict(MADE)
    weights["layers.1.up_bias"] = MADE["layers.1.up_bias"] + 40 * (np.arange(64) % 8 == 0)
    model = Transformer(CONFIG, {n: w.astype(np.float32) for n, w in weights.items()})
    up = model.run_with_cache(IDS)[1]["layers.1.mlp.up"]
    for form, names in (("none", ["gelu.other_form"]), ("tanh", [])):
        act = F.gelu(torch.from_numpy(up), approximate=form).numpy()
        mine = {"h.1.mlp.c_fc": up, "h.1.mlp.act": act}
        report = sf.check_trace(mine, model, IDS)
        assert [mistake.name for mistake in report.diagnosis] == names, report
        assert report.ok == (form == "tanh")
    exact, tanh = (F.gelu(torch.from_numpy(up), approximate=form) for form in ("none", "tanh"))
    sf.testing.assert_close(exact, tanh)  # or nothing is shown


def test_centred_weights_of_transformer_lens_are_told():
    _, trace = MODEL.run_with_cache(IDS)
    embed = trace["embed"] - trace["embed"].mean(-1, keepdims=True)
    report = sf.check_trace({"hook_embed": embed}, MODEL, IDS)
    assert [mistake.name for mistake in report.diagnosis] == ["model.centred"]
    assert "from_pretrained_no_processing" in repr(report)


def test_hooks_on_the_modules_of_transformers(tmp_path):
    """c_attn gives q, k and v side by side."""
    theirs = tiny_models.make("gpt2")
    theirs.save_pretrained(tmp_path)
    model = sf.from_pretrained(tmp_path)
    kept = re.compile(r"transformer\..*(ln_1|c_attn|c_fc|act)")
    seen = tiny_models.watched(theirs, kept.fullmatch)
    tiny_models.logits(theirs, IDS)
    report = sf.check_trace(seen, model, IDS)
    assert report.ok, report
    assert not report.unknown
    assert [n for n in report.checked if n.startswith("layers.1.")] == [
        f"layers.1.{name}"
        for name in ("attn_norm", "attn.q", "attn.k", "attn.v", "mlp.up", "mlp.act")
    ]
