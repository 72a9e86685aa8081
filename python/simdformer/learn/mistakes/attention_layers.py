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
from simdformer.learn.mistakes.sampling import first_tokens
from simdformer.learn.mistakes.split_heads import merge_heads, split_heads
from simdformer.learn.program import Program, State

# ---- the parts; those of q_norm, k_norm and RoPE run where the layer has them --------------------


def normalised(s: State, x: Any, weight: Any) -> Any:
    return x if weight is None else s.run(rms_norm, x=x, weight=weight, eps=s.norm_eps).out


def turned(s: State, x: Any) -> Any:
    where = {"positions": s.positions, "theta": s.theta, "inv_freq": s.inv_freq}
    return s.run(rope, x=x, layout=s.rope_layout, **where).out


def as_mask(mask: Any) -> dict[str, Any]:
    return {"is_causal": True} if isinstance(mask, str) else {"attn_mask": mask}


projections = Program(
    "projections",
    """
    project_q: q = run(linear, x=x_q, weight=wq).out
    project_k: k = run(linear, x=x_k, weight=wk).out
    project_v: v = run(linear, x=x_v, weight=wv).out
    heads: out = q, k, v
    """,
    calls=(linear,),
)
qk_norm = Program(
    "qk_norm",
    """
    normalise_q: q = normalised(s, q, q_norm)
    normalise_k: k = normalised(s, k, k_norm)
    heads: out = q, k, v
    """,
    calls=(normalised,),
)
qk_rope = Program(
    "qk_rope",
    """
    turn_q: q = turned(s, q)
    turn_k: k = turned(s, k)
    heads: out = q, k, v
    """,
    calls=(turned,),
)
many_heads = Program(
    "many_heads",
    """
    listen: z = run(attention, query=q, key=k, value=v, **as_mask(mask)).out
    merge: out = run(merge_heads, x=z).out
    """,
    calls=(as_mask, attention, merge_heads),
)
projecting_out = Program(
    "projecting_out",
    """
    project_out: out = run(linear, x=z, weight=wo).out
    """,
    calls=(linear,),
)

# ---- the layers ----------------------------------------------------------------------------------


def some_sequences(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """The first sequences, or tokens, and some output channels."""
    names = [name for name in ("x", "query", "key", "value") if name in variables]
    shape = np.shape(variables[names[0]])
    wo = variables["wo"]
    wo = wo.unpack() if hasattr(wo, "unpack") else np.asarray(wo)
    work = int(np.prod(shape)) + variables["num_heads"] * int(np.prod(shape[:-1])) * shape[-2]
    if max(work, np.size(wo)) <= limit:
        return None
    channels = slice(None, None, max(1, np.size(wo) // limit))
    fewer, take = first_tokens({"positions": None} | variables, names, work, limit)
    return fewer | {"wo": wo[channels]}, lambda out: take(out)[..., channels]


PROJECT = """
    project: q, k, v = run(projections, x_q=x_q, x_k=x_k, x_v=x_v, wq=wq, wk=wk, wv=wv).out
    split:
        q = run(split_heads, x=q, num_heads=num_heads).out
        k = run(split_heads, x=k, num_heads=num_kv_heads).out
        v = run(split_heads, x=v, num_heads=num_kv_heads).out
"""
ATTEND = """
    attend: z = run(many_heads, q=q, k=k, v=v, mask=mask).out
    output: out = run(projecting_out, z=z, wo=wo, x=x_q).out
"""
multi_head_attention = Program(
    "multi_head_attention",
    f"""
    three_inputs: x_q, x_k, x_v, num_kv_heads = query, key, value, num_heads
    {PROJECT}
    {ATTEND}
    """,
    calls=(projections, split_heads, many_heads, projecting_out),
    of=nn.MultiHeadAttention,
    axes=("position", "channel"),
    thin=some_sequences,
)
grouped_query_attention = Program(
    "grouped_query_attention",
    f"""
    one_input: x_q = x_k = x_v = x
    {PROJECT}
    normalise if not (q_norm is None and k_norm is None):
        q, k, v = run(qk_norm, q=q, k=k, v=v, q_norm=q_norm, k_norm=k_norm, norm_eps=norm_eps).out
    turn if rope_layout is not None:
        turns = dict(rope_layout=rope_layout, positions=positions, theta=theta, inv_freq=inv_freq)
        q, k, v = run(qk_rope, q=q, k=k, v=v, **turns).out
    {ATTEND}
    """,
    calls=(projections, split_heads, qk_norm, qk_rope, many_heads, projecting_out),
    of=nn.GroupedQueryAttention,
    axes=("position", "channel"),
    thin=some_sequences,
)
