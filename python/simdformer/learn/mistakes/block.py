"""The whole layer of a transformer in steps, and what goes wrong in it.

x (...,L,E); the meaning is that of `nn.TransformerBlock`. What goes wrong inside of its attention,
its MLP and its norms is with those, between them in residuals.py. The variables are called as in
the trace of a model.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.norms import layer_norm, rms_norm
from simdformer.learn.mistakes.sampling import first_tokens
from simdformer.learn.program import OPERATIONS, Program, State


def run_layer(s: State, layer: Any, x: Any, **more: Any) -> Any:
    """A layer in steps, if it is one of `nn`; any other callable as it is."""
    program = OPERATIONS.get(type(layer))
    if program is None:
        return s.run.array(layer(x))
    return s.run(program, **vars(layer) | {"x": x} | more).out


def attended(s: State, x: Any) -> Any:
    if isinstance(s.attention, nn.MultiHeadAttention):
        return run_layer(s, s.attention, x, query=x, key=x, value=x, mask=s.mask)
    return run_layer(s, s.attention, x, mask=s.mask, positions=s.positions)


def normed_first(s: State, x: Any) -> Any:
    return run_layer(s, s.norms[0], x)


def normed_second(s: State, x: Any) -> Any:
    return run_layer(s, s.norms[1], x)


def some_sequences(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """The first sequences; where no token sees a later one, the first tokens."""
    wide = 8 * np.size(variables["x"])  # what lies between the layers is several times as wide as x
    return None if wide <= limit else first_tokens(variables, ["x"], wide, limit)


block = Program(
    "block",
    """
    resid_pre: resid_pre, norms = array(x), (attn_norm, mlp_norm)
    attn_norm: attn_norm = normed_first(s, resid_pre)
    attn_out: attn_out = attended(s, attn_norm)
    resid_mid: resid_mid = resid_pre + attn_out
    mlp_norm: mlp_norm = normed_second(s, resid_mid)
    mlp_out: mlp_out = run_layer(s, mlp, mlp_norm)
    resid_post: resid_post = resid_mid + mlp_out
    result: out = resid_post
    """,
    calls=(normed_first, normed_second, attended, run_layer),
    of=nn.TransformerBlock,
    axes=("position", "channel"),
    thin=some_sequences,
)

OPERATIONS[nn.RMSNorm] = rms_norm
OPERATIONS[nn.LayerNorm] = layer_norm

mistakes(
    """
    block (04 §9) > The order is h = x + attention(attn_norm(x)), then h + mlp(mlp_norm(h)).

    norms_swapped: attn_norm and mlp_norm are swapped
        Two vectors of the same shape; Hugging Face calls them input_layernorm and
        post_attention_layernorm, and the second of these is the one before the MLP.
        attn_norm | attn_norm = normed_second(s, resid_pre)
        mlp_norm | mlp_norm = normed_first(s, resid_mid)
    attn_norm_for_both: attn_norm is used before the MLP as well
        A copied line in which the name of the norm was not changed.
        mlp_norm | mlp_norm = normed_first(s, resid_mid)
    mlp_first (rare): the MLP comes first, attention second
        The two halves of the block stand in the wrong order.
        attn_norm | attn_norm = normed_second(s, resid_pre)
        attn_out | attn_out = run_layer(s, mlp, attn_norm)
        mlp_norm | mlp_norm = normed_first(s, resid_mid)
        mlp_out | mlp_out = attended(s, mlp_norm)
    """
)
