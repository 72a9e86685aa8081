"""The attention layers of `nn` in steps.

x (...,L,E). MultiHeadAttention and GroupedQueryAttention share most of their steps: project, split
the heads, (normalise and turn them,) attend, merge the heads, project back. What goes wrong in them
is in layer_heads.py and projections.py, and in linear, rms_norm, rope, attention, which they run.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.mistakes.attention import attention
from simdformer.learn.mistakes.linear import linear
from simdformer.learn.mistakes.norms import rms_norm
from simdformer.learn.mistakes.rope import rope
from simdformer.learn.mistakes.split_heads import merge_heads, split_heads
from simdformer.learn.program import Program, State

multi_head_attention = Program(
    "multi_head_attention", of=nn.MultiHeadAttention, axes=("position", "channel")
)
grouped_query_attention = Program(
    "grouped_query_attention", of=nn.GroupedQueryAttention, axes=("position", "channel")
)
# Their parts; those of q_norm, k_norm and RoPE run where the layer has them.
projections = Program("projections")
qk_norm = Program("qk_norm")
qk_rope = Program("qk_rope")
many_heads = Program("many_heads")
projecting_out = Program("projecting_out")


def chosen(s: State, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(s, name) for name in names}


def projected(s: State, x: Any, weight: Any) -> Any:
    return s.run(linear, x=x, weight=weight).out


def as_mask(mask: Any) -> dict[str, Any]:
    return {"is_causal": True} if isinstance(mask, str) else {"attn_mask": mask}


def normalised(s: State, x: Any, weight: Any) -> Any:
    return x if weight is None else s.run(rms_norm, x=x, weight=weight, eps=s.norm_eps).out


def turned(s: State, x: Any) -> Any:
    return s.run(
        rope, x=x, layout=s.rope_layout, positions=s.positions, theta=s.theta, inv_freq=s.inv_freq
    ).out


# ---- steps ---------------------------------------------------------------------------------------


@multi_head_attention.step
def three_inputs(s: State) -> None:
    s.for_q, s.for_k, s.for_v, s.num_kv_heads = s.query, s.key, s.value, s.num_heads


@grouped_query_attention.step
def one_input(s: State) -> None:
    s.for_q = s.for_k = s.for_v = s.x


@grouped_query_attention.step
@multi_head_attention.step
def project(s: State) -> None:
    names = ("for_q", "for_k", "for_v", "wq", "wk", "wv")
    s.q, s.k, s.v = s.run(projections, **chosen(s, names)).out


@grouped_query_attention.step
@multi_head_attention.step
def split(s: State) -> None:
    s.q = s.run(split_heads, x=s.q, num_heads=s.num_heads).out
    s.k = s.run(split_heads, x=s.k, num_heads=s.num_kv_heads).out
    s.v = s.run(split_heads, x=s.v, num_heads=s.num_kv_heads).out


@grouped_query_attention.step_if(lambda s: not (s.q_norm is None and s.k_norm is None))
def normalise(s: State) -> None:
    names = ("q", "k", "v", "q_norm", "k_norm", "norm_eps")
    s.q, s.k, s.v = s.run(qk_norm, **chosen(s, names)).out


@grouped_query_attention.step_if(lambda s: s.rope_layout is not None)
def turn(s: State) -> None:
    names = ("q", "k", "v", "rope_layout", "positions", "theta", "inv_freq")
    s.q, s.k, s.v = s.run(qk_rope, **chosen(s, names)).out


@grouped_query_attention.step
@multi_head_attention.step
def attend(s: State) -> None:
    s.z = s.run(many_heads, **chosen(s, ("q", "k", "v", "mask"))).out


@grouped_query_attention.step
@multi_head_attention.step
def output(s: State) -> None:
    s.out = s.run(projecting_out, **chosen(s, ("z", "wo", "for_q"))).out


# ---- the parts -----------------------------------------------------------------------------------


@projections.step
def project_q(s: State) -> None:
    s.q = projected(s, s.for_q, s.wq)


@projections.step
def project_k(s: State) -> None:
    s.k = projected(s, s.for_k, s.wk)


@projections.step
def project_v(s: State) -> None:
    s.v = projected(s, s.for_v, s.wv)


@qk_norm.step
def normalise_q(s: State) -> None:
    s.q = normalised(s, s.q, s.q_norm)


@qk_norm.step
def normalise_k(s: State) -> None:
    s.k = normalised(s, s.k, s.k_norm)


@qk_rope.step
def turn_q(s: State) -> None:
    s.q = turned(s, s.q)


@qk_rope.step
def turn_k(s: State) -> None:
    s.k = turned(s, s.k)


@projections.step
@qk_rope.step
@qk_norm.step
def heads(s: State) -> None:
    s.out = s.q, s.k, s.v


@many_heads.step
def listen(s: State) -> None:
    s.z = s.run(attention, query=s.q, key=s.k, value=s.v, **as_mask(s.mask)).out


@many_heads.step
def merge(s: State) -> None:
    s.out = s.run(merge_heads, x=s.z).out


@projecting_out.step
def project_out(s: State) -> None:
    s.out = projected(s, s.z, s.wo)


# ---- a part of a large problem -------------------------------------------------------------------


@multi_head_attention.thin
@grouped_query_attention.thin
def some_sequences(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """The first sequences, the first tokens where none sees a later one, some output channels."""
    names = [name for name in ("x", "query", "key", "value") if name in variables]
    shape = np.shape(variables[names[0]])
    wo = variables["wo"]
    wo = wo.unpack() if hasattr(wo, "unpack") else np.asarray(wo)
    work = int(np.prod(shape)) + variables["num_heads"] * int(np.prod(shape[:-1])) * shape[-2]
    if max(work, np.size(wo)) <= limit:
        return None
    batch = min(shape[0], max(1, limit * shape[0] // work)) if len(shape) > 2 else None
    work //= shape[0] // batch if batch else 1
    first = slice(0, batch)
    # What makes tokens see later ones does not show in the first tokens: these are the last resort.
    causal = isinstance(variables["mask"], str) and work > 10 * limit
    tokens = max(2, 10 * limit * shape[-2] // work) if causal else shape[-2]
    channels = slice(None, None, max(1, np.size(wo) // limit))

    def take(x: Any) -> Any:
        x = np.asarray(x)
        return (x[first] if batch and x.ndim == len(shape) else x)[..., :tokens, :]

    fewer = variables | {name: take(variables[name]) for name in names} | {"wo": wo[channels]}
    positions: Any = variables.get("positions")
    mask: Any = variables["mask"]
    if np.ndim(positions):
        of_some = np.asarray(positions)[first] if np.ndim(positions) == 2 else np.asarray(positions)
        fewer["positions"] = of_some[..., :tokens]
    if batch and np.ndim(mask) == len(shape) + 1:
        fewer["mask"] = np.asarray(mask)[first]
    return fewer, lambda out: take(out)[..., channels]
