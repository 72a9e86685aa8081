"""A transformer in steps, one for each name of a trace. What goes wrong in them is in
model_layers.py and model_weights.py.

The meaning is that of `simdformer.models.Transformer`. The variables of a layer are called as in a
trace, with _ for the dot: s.attn_norm, s.attn_q ... s.resid_post. All have a batch axis in front:
s.attn_q (B,L,H,D), s.attn_scores (B,H,L,S), s.mlp_gate (B,L,I), the others (B,L,E). Besides, there
are `config`, `index`, `tensors(name, layer)`, which gives the weights, `embed`, and `came_in`: what
the layer before has left.
"""

from typing import Any

import numpy as np

from simdformer.learn.mistakes.activations import gelu, silu, swiglu
from simdformer.learn.mistakes.attention import attention
from simdformer.learn.mistakes.gather import embedding
from simdformer.learn.mistakes.linear import linear
from simdformer.learn.mistakes.norms import rms_norm
from simdformer.learn.mistakes.rope import rope
from simdformer.learn.mistakes.rope_frequencies import rope_frequencies
from simdformer.learn.mistakes.split_heads import merge_heads, split_heads
from simdformer.learn.program import Program, State
from simdformer.models.config import ModelConfig

__all__ = ["INPUTS", "layer", "layer_steps", "model", "variable"]

layer = Program("layer")

# What each step of a layer is computed from.
INPUTS = {
    "resid_pre": ("came_in",),
    "attn_norm": ("resid_pre",),
    "attn_q": ("attn_norm",),
    "attn_k": ("attn_norm",),
    "attn_v": ("attn_norm",),
    "attn_q_normed": ("attn_q",),
    "attn_k_normed": ("attn_k",),
    "attn_q_rot": ("attn_q_normed",),
    "attn_k_rot": ("attn_k_normed",),
    "attn_scores_unmasked": ("attn_q_rot", "attn_k_rot"),
    "attn_scores": ("attn_scores_unmasked",),
    "attn_pattern": ("attn_scores",),
    "attn_z": ("attn_pattern", "attn_v"),
    "attn_out": ("attn_z",),
    "resid_mid": ("resid_pre", "attn_out"),
    "mlp_norm": ("resid_mid",),
    "mlp_gate": ("mlp_norm",),
    "mlp_up": ("mlp_norm",),
    "mlp_silu": ("mlp_gate",),
    "mlp_act": ("mlp_gate", "mlp_up"),
    "mlp_out": ("mlp_act",),
    "resid_post": ("resid_mid", "mlp_out"),
}


def variable(name: str) -> str:
    """The variable of a trace's name: layers.3.attn.q_rot is attn_q_rot."""
    return (name.split(".", 2)[-1] if name.startswith("layers.") else name).replace(".", "_")


def layer_steps(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The steps that a layer of such a model has, and what each is computed from."""
    missing = {} if config.qk_norm else {"attn_q_normed": "attn_q", "attn_k_normed": "attn_k"}
    if config.norm_placement == "after":
        missing |= {"attn_norm": "resid_pre", "mlp_norm": "resid_mid"}
    return {
        name: tuple(missing.get(source, source) for source in sources)
        for name, sources in INPUTS.items()
        if name not in missing
    }


# ---- the whole -----------------------------------------------------------------------------------

model = Program("model")


@model.step
def embed(s: State) -> None:
    """ids (B,L) -> (B,L,E)"""
    rows = s.run(embedding, ids=s.ids, weight=s.tensors("embed")).out
    s.embed = scaled(s, rows, s.config.embed_scale)


@model.step
def layers(s: State) -> None:
    """Those layers that are asked for: `plan` has a program and known variables for each."""
    x = s.embed
    for index, program, known in s.plan:
        given = {"came_in": x, "embed": s.embed, "config": s.config, "tensors": s.tensors}
        s.layer = s.run(program, **given | known, index=index)
        x = getattr(s.layer, "resid_post", None)
    s.resid_post = x


@model.step
def final_norm(s: State) -> None:
    s.final_norm = norm(s, s.resid_post, s.tensors("final_norm"))


@model.step
def logits(s: State) -> None:
    """(B,L,E) -> (B,L,V)"""
    s.logits = logits_by(s, s.tensors("lm_head"))


# ---- attention -----------------------------------------------------------------------------------


@layer.step
def resid_pre(s: State) -> None:
    s.resid_pre = s.run.array(s.came_in)
    if s.config.norm_placement == "after":
        s.attn_norm = s.resid_pre


@layer.step
def attn_norm(s: State) -> None:
    s.attn_norm = norm(s, s.resid_pre, s.tensors("attn_norm", s.index))


@layer.step
def attn_q(s: State) -> None:
    s.attn_q = heads(s, s.attn_norm, "wq", s.index)


@layer.step
def attn_k(s: State) -> None:
    s.attn_k = heads(s, s.attn_norm, "wk", s.index)


@layer.step
def attn_v(s: State) -> None:
    s.attn_v = heads(s, s.attn_norm, "wv", s.index)


@layer.step
def attn_q_normed(s: State) -> None:
    s.attn_q_normed = norm_heads(s, s.attn_q, s.tensors("q_norm", s.index))


@layer.step
def attn_k_normed(s: State) -> None:
    s.attn_k_normed = norm_heads(s, s.attn_k, s.tensors("k_norm", s.index))


@layer.step
def attn_q_rot(s: State) -> None:
    s.attn_q_rot = turned(s, s.attn_q_normed if s.config.qk_norm else s.attn_q)


@layer.step
def attn_k_rot(s: State) -> None:
    s.attn_k_rot = turned(s, s.attn_k_normed if s.config.qk_norm else s.attn_k)


@layer.step
def attn_scores_unmasked(s: State) -> None:
    s.attn_scores_unmasked = attend(s, BEFORE_MASK).scores


@layer.step
def attn_scores(s: State) -> None:
    s.attn_scores = attend(s, MASKING, scores=s.attn_scores_unmasked).scores


@layer.step
def attn_pattern(s: State) -> None:
    s.attn_pattern = attend(s, SHARES, scores=s.attn_scores).weights


@layer.step
def attn_z(s: State) -> None:
    found = attend(s, MIXING, scores=s.attn_scores, weights=s.attn_pattern)
    s.attn_z = found.z.swapaxes(1, 2)


@layer.step
def attn_out(s: State) -> None:
    merged = s.run(merge_heads, x=s.attn_z.swapaxes(1, 2)).out
    s.attn_out = added(s, project(s, merged, "wo", s.index), "attn_out_norm")


@layer.step
def resid_mid(s: State) -> None:
    s.resid_mid = s.run.array(s.resid_pre) + s.run.array(s.attn_out)
    if s.config.norm_placement == "after":
        s.mlp_norm = s.resid_mid


# ---- mlp -----------------------------------------------------------------------------------------


@layer.step
def mlp_norm(s: State) -> None:
    s.mlp_norm = norm(s, s.resid_mid, s.tensors("mlp_norm", s.index))


@layer.step
def mlp_gate(s: State) -> None:
    s.mlp_gate = project(s, s.mlp_norm, "gate", s.index)


@layer.step
def mlp_up(s: State) -> None:
    s.mlp_up = project(s, s.mlp_norm, "up", s.index)


@layer.step
def mlp_silu(s: State) -> None:
    s.mlp_silu = activated(s)


@layer.step
def mlp_act(s: State) -> None:
    if s.config.activation == "silu":
        s.mlp_act = s.run(swiglu, gate=s.mlp_gate, up=s.mlp_up).out
    else:
        s.mlp_act = activated(s) * s.run.array(s.mlp_up)


@layer.step
def mlp_out(s: State) -> None:
    s.mlp_out = added(s, project(s, s.mlp_act, "down", s.index), "mlp_out_norm")


@layer.step
def resid_post(s: State) -> None:
    s.resid_post = s.run.array(s.resid_mid) + s.run.array(s.mlp_out)


# ---- parts ---------------------------------------------------------------------------------------

BIASES = {"wq": "bq", "wk": "bk", "wv": "bv", "wo": "bo"}


def norm(s: State, x: Any, weight: Any) -> Any:
    """As it is where the model has no such norm."""
    if weight is None:
        return s.run.array(x)
    return s.run(rms_norm, x=x, weight=weight, eps=s.config.norm_eps).out


def norm_heads(s: State, x: Any, weight: Any) -> Any:
    """x (B,L,H,D) -> (B,L,H,D): over as many heads at a time as the weight is long"""
    if len(weight) == x.shape[-1]:
        return norm(s, x, weight)
    return norm(s, x.reshape(*x.shape[:2], -1, len(weight)), weight).reshape(x.shape)


def added(s: State, x: Any, name: str) -> Any:
    """What is added to the stream: behind its norm and times its factor, where a model has them."""
    return scaled(s, norm(s, x, s.tensors(name, s.index)), s.config.residual_scale)


def activated(s: State) -> Any:
    """(B,L,I) -> (B,L,I)"""
    if s.config.activation == "silu":
        return s.run(silu, x=s.mlp_gate).out
    return s.run(gelu, x=s.mlp_gate, approximate="tanh").out


def logits_by(s: State, weight: Any) -> Any:
    """(B,L,E) through weight (V,E) -> (B,L,V)"""
    product = s.run(linear, x=s.final_norm, weight=weight).out
    product = scaled(s, product, 1 / s.config.logit_divisor)
    cap = s.config.logit_softcap
    return product if cap is None else s.run(softcapping, x=product, softcap=cap).out


# Run where a model has such a factor, such a cap: what goes wrong with it is tried there only.
scaling, softcapping = Program("scaling"), Program("softcapping")


def scaled(s: State, x: Any, factor: float) -> Any:
    return x if factor == 1 else s.run(scaling, x=x, factor=factor).out


@scaling.step
def multiply(s: State) -> None:
    s.out = s.run.array(s.x) * s.run.dtype(s.factor)


@softcapping.step
def cap(s: State) -> None:
    s.out = s.softcap * np.tanh(s.run.array(s.x) / s.run.dtype(s.softcap))


def project(s: State, x: Any, name: str, layer: int) -> Any:
    """x (B,L,I) through a weight of a layer -> (B,L,O)"""
    bias = s.tensors(BIASES[name], layer) if name in BIASES else None
    return s.run(linear, x=x, weight=s.tensors(name, layer), bias=bias).out


def heads(s: State, x: Any, name: str, layer: int) -> Any:
    """x (B,L,E) through wq, wk or wv -> (B,L,H,D)"""
    count = s.config.num_heads if name == "wq" else s.config.num_kv_heads
    return s.run(split_heads, x=project(s, x, name, layer), num_heads=count).out.swapaxes(1, 2)


def turned(s: State, x: Any) -> Any:
    """RoPE: (B,L,H,D) -> (B,L,H,D)"""
    config = s.config
    if config.rope_layers is not None and not config.rope_layers[s.index]:
        return s.run.array(x)
    local = config.local_rope_theta is not None and config.window(s.index) is not None
    table = s.run(
        rope_frequencies,
        head_dim=config.rotary_dim or config.head_dim,
        theta=config.local_rope_theta if local else config.rope_theta,
        scaling=None if local else config.rope_scaling,
    ).out
    only = len(x) == 1  # a batch of one is none: nothing can be mixed up between sequences
    y = s.run(
        rope,
        x=(x[0] if only else x).swapaxes(-3, -2),
        layout=config.rope_layout,
        inv_freq=table.inv_freq,
        attention_factor=table.attention_factor,
        rotary_dim=config.rotary_dim,
    ).out.swapaxes(-3, -2)
    return y[None] if only else y


def part(first: str, last: str) -> Program:
    """The steps of attention from one to another, behind those that look at its inputs."""
    names = list(attention.steps)
    preparation = names[: names.index("attention.dot")]
    chosen = names[names.index(f"attention.{first}") : names.index(f"attention.{last}") + 1]
    some = Program("attention")
    some.steps = {name: attention.steps[name] for name in [*preparation, *chosen]}
    some.defaults, some.conditions = attention.defaults, attention.conditions
    return some


# A trace shows what attention has computed in between.
BEFORE_MASK = part("dot", "cap")
MASKING = part("nothing_hidden", "hide")
SHARES = part("no_sink", "empty")
MIXING = part("weigh", "weigh")


def attend(s: State, some: Program, **known: Any) -> Any:
    """A part of attention, on what the parts before have left."""
    left = vars(s).get("attending", {})
    found = s.run(
        some,
        **left
        | {
            "query": s.attn_q_rot.swapaxes(1, 2),
            "key": s.attn_k_rot.swapaxes(1, 2),
            "value": s.attn_v.swapaxes(1, 2),
            "is_causal": True,
            "window": s.config.window(s.index),
            "scale": s.config.attention_scale,
            "softcap": s.config.attention_softcap,
        }
        | known,
    )
    s.attending = {name: value for name, value in vars(found).items() if name != "run"}
    return found
