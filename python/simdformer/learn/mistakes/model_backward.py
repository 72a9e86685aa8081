"""The way back through a transformer in steps, and what goes wrong between its operations.

The meaning is that of `simdformer.training.step`. Activations are called as in a trace, with _ for
the dot; the gradient of one has d_ in front, that of a weight dw_: d_attn_q (B,L,H,D), dw_wq (O,I).
`forward` has what the model itself says of a layer: the options of its attention and of its RoPE.
`tensors(name, layer)` gives weights, those of norms as they are multiplied.
"""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.activations import gelu
from simdformer.learn.mistakes.backward_activations import (
    gelu_backward,
    rope_backward,
    silu_backward,
    swiglu_backward,
)
from simdformer.learn.mistakes.backward_attention import attention_backward
from simdformer.learn.mistakes.backward_cross_entropy import cross_entropy_backward
from simdformer.learn.mistakes.backward_gather import embedding_backward
from simdformer.learn.mistakes.backward_linear import linear_backward
from simdformer.learn.mistakes.backward_norms import layer_norm_backward, rms_norm_backward
from simdformer.learn.mistakes.model import project, scaled
from simdformer.learn.program import Program, State

__all__ = ["layer_backward", "model_backward"]


# ---- parts ---------------------------------------------------------------------------------------


def norm_back(s: State, dy: Any, x: Any, name: str, layer: int | None = None) -> tuple[Any, ...]:
    """The gradients of x, weight and bias; dy as it is where the model has no such norm"""
    weight = s.tensors(name, layer)
    if weight is None:
        return s.run.array(dy), None, None
    given = {"grad": dy, "x": x, "weight": weight, "eps": s.config.norm_eps}
    if s.config.norm == "layer_norm":
        bias = s.tensors(f"{name}_bias", layer)
        return tuple(s.run(layer_norm_backward, **given, bias=bias).out)
    return *s.run(rms_norm_backward, **given).out, None


def norm_heads_back(s: State, dy: Any, x: Any, name: str) -> tuple[Any, Any]:
    """dy and x (B,L,H,D): over as many heads at a time as the weight is long"""
    weight = s.tensors(name, s.index)
    if weight is None:
        return s.run.array(dy), None
    each = (*x.shape[:2], -1, len(weight))
    dx, dweight, _ = norm_back(s, dy.reshape(each), x.reshape(each), name, s.index)
    return dx.reshape(x.shape), dweight


def linear_back(
    s: State, dy: Any, x: Any, name: str, layer: int | None = None
) -> tuple[Any, Any, Any]:
    """dy (B,L,O) and x (B,L,I) of a weight (O,I): the gradients of x, weight and bias"""
    return tuple(s.run(linear_backward, grad=dy, x=x, weight=s.tensors(name, layer)).out)


def out_back(s: State, dy: Any, x: Any, name: str, norm: str) -> tuple[Any, ...]:
    """Through what leads back to the stream, and the norm behind it where there is one: the
    gradients of x, weight and bias, and of the norm's weight and bias"""
    dnorm = dbias = None
    if s.tensors(norm, s.index) is not None:
        dy, dnorm, dbias = norm_back(s, dy, project(s, x, name, s.index), norm, s.index)
    return *linear_back(s, dy, x, name, s.index), dnorm, dbias


def activated_back(s: State, dy: Any) -> tuple[Any, Any]:
    """The gradients of gate (None where there is none) and up, (B,L,I) each"""
    gate, up = s.mlp_gate, s.mlp_up
    if gate is None and s.config.activation == "silu":
        return None, s.run(silu_backward, grad=dy, x=up).out
    if gate is None:
        return None, s.run(gelu_backward, grad=dy, x=up, approximate="tanh").out
    if s.config.activation == "silu":
        return tuple(s.run(swiglu_backward, grad=dy, gate=gate, up=up).out)
    if s.config.activation == "clamped_swiglu":
        return clamped_back(s, dy)
    d_act = s.run.array(dy) * s.run.array(up)
    d_gate = s.run(gelu_backward, grad=d_act, x=gate, approximate="tanh").out
    return d_gate, s.run.array(dy) * s.run(gelu, x=gate, approximate="tanh").out


def clamped_back(s: State, dy: Any) -> tuple[Any, Any]:
    """swiglu(alpha gate, (up + 1) / alpha) of what is within limits; what is not has none"""
    gate, up = s.run.array(s.mlp_gate), s.run.array(s.mlp_up)
    alpha, limit = s.run.dtype(s.config.swiglu_alpha), s.run.dtype(s.config.swiglu_limit)
    low, within = np.minimum(gate, limit), np.clip(up, -limit, limit)
    made = s.run(swiglu_backward, grad=dy, gate=alpha * low, up=(within + 1) / alpha).out
    return made[0] * alpha * (gate <= limit), made[1] * (np.abs(up) <= limit) / alpha


def attend_back(s: State, dy: Any) -> tuple[Any, ...]:
    """dy (B,L,H,D): the gradients of q and k, turned, and of v, (B,L,H,D) each, and of sinks"""
    names = ("attn_q_rot", "attn_k_rot", "attn_v", "attn_z")
    q, k, v, z = (s.run.array(getattr(s, name)).swapaxes(1, 2) for name in names)
    options = s.forward.options(s.index)
    needs = ("query", "key", "value", *(() if options["sinks"] is None else ("sinks",)))
    given = {"query": q, "key": k, "value": v, "out": z, "lse": s.attn_lse, "needs": needs}
    dy = s.run.array(dy).swapaxes(1, 2)
    made = s.run(attention_backward, grad=dy, **given, **options).out
    return *(d.swapaxes(1, 2) for d in made[:3]), made[4]


def turned_back(s: State, dy: Any) -> Any:
    """dy (B,L,H,D), every head turned back by its position"""
    options = s.forward.rotation(s.index)
    if options is None:
        return s.run.array(dy)
    dy = s.run.array(dy).swapaxes(1, 2)
    return s.run(rope_backward, grad=dy, **options).out.swapaxes(1, 2)


def merged(x: Any) -> Any:
    """(B,L,H,D) -> (B,L,H·D)"""
    return x.reshape(*x.shape[:2], -1)


def split(s: State, x: Any) -> Any:
    """(B,L,H·D) -> (B,L,H,D)"""
    return x.reshape(*x.shape[:2], -1, s.config.head_dim)


# ---- a layer -------------------------------------------------------------------------------------

layer_backward = Program(
    "layer_backward",
    """
    mlp_out: d_mlp_out = scaled(s, array(d_resid_post), config.residual_scale)
    mlp_act:
        d_mlp_act, dw_down, dw_down_bias, dw_mlp_out_norm, dw_mlp_out_norm_bias = out_back(
            s, d_mlp_out, mlp_act, "down", "mlp_out_norm")
    mlp_up: d_mlp_gate, d_mlp_up = activated_back(s, d_mlp_act)
    up: d_mlp_of_up, dw_up, dw_up_bias = linear_back(s, d_mlp_up, mlp_norm, "up", index)
    gate if mlp_gate is not None:
        d_mlp_of_gate, dw_gate, dw_gate_bias = linear_back(s, d_mlp_gate, mlp_norm, "gate", index)
    mlp_norm:
        d_mlp_norm = array(d_mlp_of_up)
        if mlp_gate is not None:
            d_mlp_norm = d_mlp_norm + d_mlp_of_gate
    resid_mid:
        through, dw_mlp_norm, dw_mlp_norm_bias = norm_back(
            s, d_mlp_norm, resid_mid, "mlp_norm", index)
        d_resid_mid = array(d_resid_post) + through
    attn_out: d_attn_out = scaled(s, array(d_resid_mid), config.residual_scale)
    attn_z:
        d_attn_z, dw_wo, dw_bo, dw_attn_out_norm, dw_attn_out_norm_bias = out_back(
            s, d_attn_out, merged(attn_z), "wo", "attn_out_norm")
        d_attn_z = split(s, d_attn_z)
    attn_v: d_attn_q_rot, d_attn_k_rot, d_attn_v, dw_sinks = attend_back(s, d_attn_z)
    attn_q_normed: d_attn_q_normed = turned_back(s, d_attn_q_rot)
    attn_k_normed: d_attn_k_normed = turned_back(s, d_attn_k_rot)
    attn_q: d_attn_q, dw_q_norm = norm_heads_back(s, d_attn_q_normed, attn_q, "q_norm")
    attn_k: d_attn_k, dw_k_norm = norm_heads_back(s, d_attn_k_normed, attn_k, "k_norm")
    wq: d_attn_of_q, dw_wq, dw_bq = linear_back(s, merged(d_attn_q), attn_norm, "wq", index)
    wk: d_attn_of_k, dw_wk, dw_bk = linear_back(s, merged(d_attn_k), attn_norm, "wk", index)
    wv: d_attn_of_v, dw_wv, dw_bv = linear_back(s, merged(d_attn_v), attn_norm, "wv", index)
    attn_norm: d_attn_norm = array(d_attn_of_q) + d_attn_of_k + d_attn_of_v
    resid_pre:
        through, dw_attn_norm, dw_attn_norm_bias = norm_back(
            s, d_attn_norm, resid_pre, "attn_norm", index)
        d_resid_pre = array(d_resid_mid) + through
    """,
    calls=(
        scaled, out_back, activated_back, linear_back, norm_back, merged, split, attend_back,
        turned_back, norm_heads_back,
    ),
)  # fmt: skip

# ---- the whole -----------------------------------------------------------------------------------

model_backward = Program(
    "model_backward",
    """
    logits:
        d_logits = run(
            cross_entropy_backward, logits=logits, labels=labels, softcap=config.logit_softcap,
        ).out
    final_norm:
        head = "embed" if config.tie_embeddings else "lm_head"
        normed = scaled(s, array(final_norm), 1 / config.logit_divisor)
        d_final_norm, dw_lm_head, no_bias = linear_back(s, d_logits, normed, head)
        d_final_norm = scaled(s, d_final_norm, 1 / config.logit_divisor)
    last:
        d_last, dw_final_norm, dw_final_norm_bias = norm_back(
            s, d_final_norm, resid_post, "final_norm")
    layers:
        # from the last to the first of those that are asked for, each with what is known of it
        d_embed = d_last
        for index, program, known in plan:
            given = {"d_resid_post": d_embed, "config": config, "tensors": tensors}
            given["forward"], given["index"] = forward, index
            layer = run(program, **given | known)
            d_embed = getattr(layer, "d_resid_pre", None)
    embed:
        of_rows = scaled(s, array(d_embed), config.embed_scale)
        dw_embed = run(
            embedding_backward, grad=of_rows, ids=ids, num_embeddings=config.vocab_size,
        ).out
    positions if config.positions == "learned":
        dw_pos_embed = run(
            embedding_backward, grad=d_embed, ids=np.broadcast_to(range(ids.shape[1]), ids.shape),
            num_embeddings=config.max_seq_len,
        ).out
    tie if config.tie_embeddings: dw_embed = dw_lm_head + dw_embed
    """,
    calls=(scaled, linear_back, norm_back, cross_entropy_backward, embedding_backward),
)

mistakes(
    """
    layer_backward.resid_mid (08 §10) > The stream splits in two on the way there; on the way back
        both gradients arrive, and are added.

    passing_lost: the gradient that passes by the MLP is lost
        x + mlp(norm(x)) has two ways back; only the one through the norm is taken.
        | ...; d_resid_mid = through
    mlp_lost: the gradient that comes through the MLP is lost
        as above, the other way round: the sum's gradient is handed on and no more.
        | ...; d_resid_mid = array(d_resid_post)
    added_before_norm: the gradient that passes by the MLP is added before the norm's way back
        The stream passes by the norm as well.
        | through, dw_mlp_norm, dw_mlp_norm_bias = norm_back(
        |     s, d_mlp_norm + d_resid_post, resid_mid, "mlp_norm", index)
        | d_resid_mid = through
    passing_twice (rare): the gradient that passes by the MLP is added twice
        Two lines add it.
        | ...; d_resid_mid = d_resid_mid + d_resid_post
    norm_skipped: the way back through the norm before the MLP is left out
        What the MLP's matrices give is the gradient of the norm's output, not of the stream.
        > Take it through the norm's backward first.
        | ...; d_resid_mid = array(d_resid_post) + d_mlp_norm

    layer_backward.resid_pre (08 §10) > The stream splits in two on the way there; on the way back
        both gradients arrive, and are added.

    passing_attention_lost: the gradient that passes by attention is lost
        x + attention(norm(x)) has two ways back; only the one through the norm is taken.
        | ...; d_resid_pre = through
    attention_lost: the gradient that comes through attention is lost
        The sum's gradient is handed on and no more.
        | ...; d_resid_pre = array(d_resid_mid)
    attention_added_before_norm:
        the gradient that passes by attention is added before the norm's way back
        The stream passes by the norm as well.
        | through, dw_attn_norm, dw_attn_norm_bias = norm_back(
        |     s, d_attn_norm + d_resid_mid, resid_pre, "attn_norm", index)
        | d_resid_pre = through
    passing_from_the_end: the gradient that passes by the whole layer is added, not by attention
        The stream behind attention has a gradient of its own by then.
        | ...; d_resid_pre = array(d_resid_post) + through
    attention_norm_skipped: the way back through the norm before attention is left out
        What q, k and v give is the gradient of the norm's output, not of the stream.
        > Take it through the norm's backward first.
        | ...; d_resid_pre = array(d_resid_mid) + d_attn_norm

    layer_backward.mlp_norm (08 §6) > One input, two matrices: their gradients are added.

    of_gate_alone: the gradient of the MLP's input comes through gate alone
        A second = overwrites, or the second product is forgotten.
        | unless(mlp_gate is None); d_mlp_norm = array(d_mlp_of_gate)
    of_up_alone: the gradient of the MLP's input comes through up alone
        as above
        | unless(mlp_gate is None); d_mlp_norm = array(d_mlp_of_up)

    layer_backward.attn_norm (08 §9) > One input, three matrices: their gradients are added.

    of_q_alone: the gradient of attention's input comes through q alone
        Three lines read the same input; those of the other two are missing, or = overwrites.
        | d_attn_norm = array(d_attn_of_q)
    of_v_alone: the gradient of attention's input comes through v alone
        as above
        | d_attn_norm = array(d_attn_of_v)
    q_lost: the part through q is missing in the gradient of attention's input
        as above
        | d_attn_norm = array(d_attn_of_k) + d_attn_of_v
    k_lost: the part through k is missing in the gradient of attention's input
        as above
        | d_attn_norm = array(d_attn_of_q) + d_attn_of_v
    v_lost: the part through v is missing in the gradient of attention's input
        as above
        | d_attn_norm = array(d_attn_of_q) + d_attn_of_k

    layer_backward.attn_z (08 §9) > Undo the merge: (B,L,H·D) -> (B,L,H,D), then swap heads and
        positions.

    heads_not_swapped: the gradient is cut into heads without swapping heads and positions
        reshape(B, H, L, D) reads the numbers in the order in which they lie.
        | ...; shape = d_attn_z.shape
        | d_attn_z = d_attn_z.reshape(shape[0], shape[2], shape[1], shape[3]).swapaxes(1, 2)

    layer_backward.attn_q_normed (08 §7) > Turn the gradients of q and k back by their positions.

    q_not_turned_back: the gradient of q is not turned back by RoPE's way back
        The kernel's gradient is that of q after RoPE.
        | d_attn_q_normed = array(d_attn_q_rot)
    k_not_turned_back: the gradient of k is not turned back by RoPE's way back
        The kernel's gradient is that of k after RoPE.
        attn_k_normed | d_attn_k_normed = array(d_attn_k_rot)

    layer_backward (08 §9) > q and k have norms of their own here: take their gradients
        through them.

    q_norm_skipped: the way back through the norm of q is left out
        It stands between the projection and RoPE.
        attn_q | ...; d_attn_q = array(d_attn_q_normed)
    k_norm_skipped: the way back through the norm of k is left out
        as above
        attn_k | ...; d_attn_k = array(d_attn_k_normed)

    model_backward.last (08 §5) > The final norm stands between the last layer and the head.

    final_norm_skipped: the way back through the final norm is left out
        What the head's matrix gives is the gradient of the norm's output, not of the stream.
        | ...; d_last = array(d_final_norm)

    model_backward.tie (08 §10) > The matrix is used twice, and both gradients are added.

    head_alone: a tied embedding has the head's gradient alone
        A second = overwrites, or the rows are never scattered.
        | dw_embed = dw_lm_head
    rows_alone: a tied embedding has the embedding's gradient alone: the head's is missing
        A second = overwrites, or the head's matrix is a detached copy.
        | pass
    """
)
