"""A transformer in steps, one for each name of a trace. What goes wrong in them is in
model_layers.py and model_weights.py.

The meaning is that of `simdformer.models.Transformer`. The variables of a layer are called as in a
trace, with _ for the dot: s.attn_norm, s.attn_q ... s.resid_post. All have a batch axis in front:
s.attn_q (B,L,H,D), s.attn_scores (B,H,L,S), s.mlp_gate (B,L,I), the others (B,L,E). Besides, there
are `config`, `index`, `tensors(name, layer)`, which gives the weights, `embed`, and `came_in`: what
the layer before has left.
"""

from typing import Any

from simdformer.learn.mistakes.activations import silu, swiglu
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
    if config.qk_norm:
        return INPUTS
    return {
        name: tuple(source.replace("_normed", "") for source in sources)
        for name, sources in INPUTS.items()
        if not name.endswith("_normed")
    }


# ---- the whole -----------------------------------------------------------------------------------

model = Program("model")


@model.step
def embed(s: State) -> None:
    """ids (B,L) -> (B,L,E)"""
    s.embed = s.run(embedding, ids=s.ids, weight=s.tensors("embed")).out


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
    s.logits = s.run(linear, x=s.final_norm, weight=s.tensors("lm_head")).out


# ---- attention -----------------------------------------------------------------------------------


@layer.step
def resid_pre(s: State) -> None:
    s.resid_pre = s.run.array(s.came_in)


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
    s.attn_q_normed = norm(s, s.attn_q, s.tensors("q_norm", s.index))


@layer.step
def attn_k_normed(s: State) -> None:
    s.attn_k_normed = norm(s, s.attn_k, s.tensors("k_norm", s.index))


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
    s.attn_out = project(s, merged, "wo", s.index)


@layer.step
def resid_mid(s: State) -> None:
    s.resid_mid = s.run.array(s.resid_pre) + s.run.array(s.attn_out)


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
    s.mlp_silu = s.run(silu, x=s.mlp_gate).out


@layer.step
def mlp_act(s: State) -> None:
    s.mlp_act = s.run(swiglu, gate=s.mlp_gate, up=s.mlp_up).out


@layer.step
def mlp_out(s: State) -> None:
    s.mlp_out = project(s, s.mlp_act, "down", s.index)


@layer.step
def resid_post(s: State) -> None:
    s.resid_post = s.run.array(s.resid_mid) + s.run.array(s.mlp_out)


# ---- parts ---------------------------------------------------------------------------------------

BIASES = {"wq": "bq", "wk": "bk", "wv": "bv", "wo": "bo"}


def norm(s: State, x: Any, weight: Any) -> Any:
    return s.run(rms_norm, x=x, weight=weight, eps=s.config.norm_eps).out


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
    table = s.run(
        rope_frequencies,
        head_dim=config.head_dim,
        theta=config.rope_theta,
        scaling=config.rope_scaling,
    ).out
    only = len(x) == 1  # a batch of one is none: nothing can be mixed up between sequences
    y = s.run(
        rope,
        x=(x[0] if only else x).swapaxes(-3, -2),
        layout=config.rope_layout,
        inv_freq=table.inv_freq,
        attention_factor=table.attention_factor,
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
        }
        | known,
    )
    s.attending = {name: value for name, value in vars(found).items() if name != "run"}
    return found
