"""A transformer in steps, one for each name of a trace. What goes wrong in them is in
model_layers.py and model_weights.py.

The meaning is that of `simdformer.models.Transformer`. The variables of a layer are called as in a
trace, with _ for the dot: attn_norm, attn_q ... resid_post. All have a batch axis in front:
attn_q (B,L,H,D), attn_scores (B,H,L,S), mlp_gate (B,L,I), the others (B,L,E). Besides, there
are `config`, `index`, `tensors(name, layer)`, which gives the weights, `embed`, with which the
stream begins, `came_in`: what the layer before has left; and `attends_at_once` where no step of
attention is known or asked for.
"""

from functools import cache
from typing import Any

import numpy as np

from simdformer.attention import scaled_dot_product_attention
from simdformer.learn.mistakes.activations import gelu, silu, swiglu
from simdformer.learn.mistakes.attention import attention
from simdformer.learn.mistakes.clamped_swiglu import clamped_swiglu
from simdformer.learn.mistakes.gather import embedding
from simdformer.learn.mistakes.linear import linear
from simdformer.learn.mistakes.mixture import for_each
from simdformer.learn.mistakes.norms import layer_norm, rms_norm
from simdformer.learn.mistakes.rope import rope
from simdformer.learn.mistakes.rope_frequencies import rope_frequencies
from simdformer.learn.mistakes.split_heads import merge_heads, split_heads
from simdformer.learn.program import Program, State

__all__ = ["ATTENDING", "layer", "model", "variable"]


# ---- parts ---------------------------------------------------------------------------------------

BIASES = {"wq": "bq", "wk": "bk", "wv": "bv", "wo": "bo"}  # the others are called NAME_bias
OF_EXPERTS = ("gate", "up", "down")

# Run where a model has such a factor, such a cap: what goes wrong with it is tried there only.
scaling = Program("scaling", "multiply: out = array(x) * real(factor)")
softcapping = Program("softcapping", "cap: out = softcap * np.tanh(array(x) / real(softcap))")


def norm(s: State, x: Any, name: str, layer: int | None = None) -> Any:
    """As it is where the model has no such norm."""
    weight = s.tensors(name, layer)
    if weight is None:
        return s.run.array(x)
    given = {"x": x, "weight": weight, "eps": s.config.norm_eps}
    if s.config.norm == "layer_norm":
        return s.run(layer_norm, **given, bias=s.tensors(f"{name}_bias", layer)).out
    return s.run(rms_norm, **given).out


def normed_first(s: State, x: Any) -> Any:
    return norm(s, x, "attn_norm", s.index)


def normed_second(s: State, x: Any) -> Any:
    return norm(s, x, "mlp_norm", s.index)


def norm_heads(s: State, x: Any, name: str, layer: int) -> Any:
    """x (B,L,H,D) -> (B,L,H,D): over as many heads at a time as the weight is long"""
    each = (-1, len(s.tensors(name, layer)))
    return norm(s, x.reshape(*x.shape[:2], *each), name, layer).reshape(x.shape)


def scaled(s: State, x: Any, factor: float) -> Any:
    return x if factor == 1 else s.run(scaling, x=x, factor=factor).out


def added(s: State, x: Any, name: str) -> Any:
    """What is added to the stream: behind its norm and times its factor, where a model has them."""
    return scaled(s, norm(s, x, name, s.index), s.config.residual_scale)


def bent(s: State, x: Any) -> Any:
    """(B,L,I) -> (B,L,I), by silu or gelu"""
    if s.config.activation == "silu":
        return s.run(silu, x=x).out
    return s.run(gelu, x=x, approximate="tanh").out


def activated(s: State, gate: Any, up: Any) -> Any:
    """(B,L,I) twice -> (B,L,I); gate is None where the model has none"""
    if gate is None:
        return bent(s, up)
    if s.config.activation == "silu":
        return s.run(swiglu, gate=gate, up=up).out
    if s.config.activation == "clamped_swiglu":
        numbers = {"alpha": s.config.swiglu_alpha, "limit": s.config.swiglu_limit}
        return s.run(clamped_swiglu, gate=gate, up=up, **numbers).out
    return bent(s, gate) * s.run.array(up)


def as_it_is(weight: Any) -> Any:
    return weight


def project(
    s: State, x: Any, name: str, layer: int, change: Any = as_it_is, *, biased: bool = True
) -> Any:
    """x (B,L,I) through a weight of a layer -> (B,L,O); through that of each token's experts, x
    (B,L,I) or (B,L,k,I) -> (B,L,k,O)"""

    def by(expert: int | None, x: Any) -> Any:
        bias = s.tensors(BIASES.get(name, f"{name}_bias"), layer, expert) if biased else None
        weight = change(s.tensors(name, layer, expert))
        return s.run(linear, x=x, weight=weight, bias=bias).out

    mixed = name in OF_EXPERTS and s.config.has_experts(layer)
    return for_each(s, x, by) if mixed else by(None, x)


def heads(s: State, x: Any, name: str, layer: int, *change: Any, **changes: Any) -> Any:
    """x (B,L,E) through wq, wk or wv -> (B,L,H,D)"""
    count = s.config.num_heads if name == "wq" else s.config.num_kv_heads
    projected = project(s, x, name, layer, *change, **changes)
    return s.run(split_heads, x=projected, num_heads=count).out.swapaxes(1, 2)


def turned(s: State, x: Any) -> Any:
    """RoPE: (B,L,H,D) -> (B,L,H,D)"""
    config = s.config
    if not config.turns(s.index):
        return s.run.array(x)
    local = config.local_rope_theta is not None and config.window(s.index) is not None
    table = s.run(
        rope_frequencies,
        head_dim=config.rotary_dim or config.head_dim,
        theta=config.local_rope_theta if local else config.rope_theta,
        scaling=None if local else config.rope_scaling,
        length=x.shape[1],
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


@cache
def part(first: str, last: str) -> Program:
    """The steps of attention from one to another, behind those that look at its inputs."""
    names = list(attention.steps)
    preparation = names[: names.index("attention.dot")]
    chosen = names[names.index(f"attention.{first}") : names.index(f"attention.{last}") + 1]
    some = Program("attention")
    some.steps = {name: attention.steps[name] for name in [*preparation, *chosen]}
    some.defaults, some.conditions = attention.defaults, attention.conditions
    return some


def attend(s: State, first: str, last: str, **known: Any) -> Any:
    """Attention from one of its steps to another, on what those before have left: a trace shows
    what it has computed in between. Where nobody asks for that the kernel does it."""
    given = {
        "query": s.attn_q_rot.swapaxes(1, 2),
        "key": s.attn_k_rot.swapaxes(1, 2),
        "value": s.attn_v.swapaxes(1, 2),
        "is_causal": True,
        "window": s.config.window(s.index),
        "scale": s.config.attention_scale,
        "softcap": s.config.attention_softcap,
        "sinks": s.tensors("sinks", s.index),
    }
    if s.run.operations and s.attends_at_once and BETWEEN.isdisjoint(s.run.replaced):
        if last != "weigh_seen":
            return State(scores=None, weights=None)
        q, k, v = (s.run.array(given.pop(name)) for name in ("query", "key", "value"))
        return State(z=scaled_dot_product_attention(q, k, v, **given))
    found = s.run(part(first, last), **vars(s).get("attending", {}) | given | known)
    s.attending = {name: value for name, value in vars(found).items() if name != "run"}
    return found


def places(s: State, positions: Any) -> Any:
    """What the model has learned of positions (L,), or (B,L) -> (B,L,E)"""
    table = s.run.array(s.tensors("pos_embed"))
    return table[np.broadcast_to(positions, s.ids.shape)]


def logits_by(s: State, weight: Any) -> Any:
    """(B,L,E) through weight (V,E) -> (B,L,V), or of some ids of the vocabulary alone"""
    some = vars(s).get("vocabulary")
    weight = weight if some is None else weight[some]
    product = s.run(linear, x=s.final_norm, weight=weight).out
    product = scaled(s, product, 1 / s.config.logit_divisor)
    cap = s.config.logit_softcap
    return product if cap is None else s.run(softcapping, x=product, softcap=cap).out


# ---- a layer -------------------------------------------------------------------------------------

layer = Program(
    "layer",
    """
    resid_pre:
        resid_pre = array(came_in)
        if config.norm_placement == "after":
            attn_norm = resid_pre
    attn_norm: attn_norm = norm(s, resid_pre, "attn_norm", index)
    attn_q: attn_q = heads(s, attn_norm, "wq", index)
    attn_k: attn_k = heads(s, attn_norm, "wk", index)
    attn_v: attn_v = heads(s, attn_norm, "wv", index)
    attn_q_normed: attn_q_normed = norm_heads(s, attn_q, "q_norm", index)
    attn_k_normed: attn_k_normed = norm_heads(s, attn_k, "k_norm", index)
    attn_q_rot: attn_q_rot = turned(s, attn_q_normed if config.qk_norm else attn_q)
    attn_k_rot: attn_k_rot = turned(s, attn_k_normed if config.qk_norm else attn_k)
    attn_scores_unmasked: attn_scores_unmasked = attend(s, "dot", "cap").scores
    attn_scores:
        attn_scores = attend(s, "nothing_hidden", "hide", scores=attn_scores_unmasked).scores
    attn_pattern: attn_pattern = attend(s, "no_sink", "empty", scores=attn_scores).weights
    attn_z:
        mixed = attend(s, "weigh", "weigh_seen", scores=attn_scores, weights=attn_pattern).z
        attn_z = mixed.swapaxes(1, 2)
    attn_out:
        merged = run(merge_heads, x=attn_z.swapaxes(1, 2)).out
        attn_out = added(s, project(s, merged, "wo", index), "attn_out_norm")
    resid_mid:
        resid_mid = array(resid_pre) + array(attn_out)
        if config.norm_placement == "after":
            mlp_norm = resid_mid
    mlp_norm: mlp_norm = norm(s, resid_mid, "mlp_norm", index)
    mlp_gate: mlp_gate = project(s, mlp_norm, "gate", index)
    mlp_up: mlp_up = project(s, mlp_norm, "up", index)
    mlp_silu: mlp_silu = bent(s, mlp_gate)
    mlp_act: mlp_act = activated(s, mlp_gate, mlp_up)
    mlp_out: mlp_out = added(s, project(s, mlp_act, "down", index), "mlp_out_norm")
    resid_post: resid_post = array(resid_mid) + array(mlp_out)
    """,
    calls=(
        normed_first,
        normed_second,
        norm,
        norm_heads,
        project,
        heads,
        turned,
        attend,
        merge_heads,
        added,
        bent,
        activated,
    ),
)

# The steps between the heads and what they give.
ATTENDING = {
    f"layer.attn_{name}" for name in ("scores_unmasked", "scores", "pattern", "z")
}  # fmt: skip
BETWEEN = ATTENDING | attention.steps.keys()


def variable(name: str) -> str:
    """The variable of a trace's name: layers.3.attn.q_rot is attn_q_rot."""
    return (name.split(".", 2)[-1] if name.startswith("layers.") else name).replace(".", "_")


# ---- the whole -----------------------------------------------------------------------------------

model = Program(
    "model",
    """
    embed:
        # ids (B,L) -> (B,L,E)
        rows = run(embedding, ids=ids, weight=tensors("embed")).out
        embed = scaled(s, rows, config.embed_scale)
    pos_embed: pos_embed = places(s, np.arange(ids.shape[1]))  # (B,L) -> (B,L,E)
    stream if config.positions == "learned": stream = array(embed) + array(pos_embed)
    layers:
        # those that are asked for: plan has a program and known variables for each
        start = vars(s).get("stream", embed)
        x = vars(s).get("begin", start)
        for index, program, known in plan:
            given = {"came_in": x, "embed": start, "config": config, "tensors": tensors}
            given["mlp_gate"] = given["mlp_shared_gate"] = None  # where there is none
            given["num_experts_per_tok"] = config.num_experts_per_tok
            given["normalize"] = config.normalize_expert_weights
            layer = run(program, **given | known, index=index)
            x = getattr(layer, "resid_post", None)
        resid_post = x
    final_norm: final_norm = norm(s, resid_post, "final_norm")
    logits: logits = logits_by(s, tensors("lm_head"))  # (B,L,E) -> (B,L,V)
    """,
    calls=(embedding, scaled, norm, logits_by, places),
)
