"""The whole layer of a transformer in steps, and what goes wrong in it.

x (...,L,E); the meaning is that of `nn.TransformerBlock`. What goes wrong inside of its attention,
its MLP and its norms is with those.
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


def some_sequences(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """The first sequences; where no token sees a later one, the first tokens."""
    wide = 8 * np.size(variables["x"])  # what lies between the layers is several times as wide as x
    return None if wide <= limit else first_tokens(variables, ["x"], wide, limit)


block = Program(
    "block",
    """
    begin: stream = array(x)
    normalise: normed = run_layer(s, attn_norm, stream)
    attend: attn_out = attended(s, normed)
    add_attention: h = stream + attn_out
    normalise_again: h_normed = run_layer(s, mlp_norm, h)
    feed_forward: mlp_out = run_layer(s, mlp, h_normed)
    add_mlp: out = h + mlp_out
    """,
    calls=(attended, run_layer),
    of=nn.TransformerBlock,
    axes=("position", "channel"),
    thin=some_sequences,
)

OPERATIONS[nn.RMSNorm] = rms_norm
OPERATIONS[nn.LayerNorm] = layer_norm

mistakes(
    """
    block (04 §9) > The order is h = x + attention(attn_norm(x)), then h + mlp(mlp_norm(h)).

    residual_of_attention_forgotten: the residual around attention is forgotten
        h = attention(norm(x)): what x held is lost but for what attention repeats of it.
        add_attention | h = attn_out
    residual_of_mlp_forgotten: the residual around the MLP is forgotten
        The result is mlp(norm(h)) alone, without h.
        add_mlp | out = mlp_out
    residuals_forgotten: both residuals are forgotten
        The layers are called one after the other, and nothing is added.
        add_attention | h = attn_out
        add_mlp | out = mlp_out
    residual_of_attention_normed: attention's residual is the normalised x instead of x
        x = norm(x) overwrites the stream before it is added: each needs its own name.
        add_attention | h = normed + attn_out
    residual_of_mlp_normed: the MLP's residual is the normalised h instead of h
        h = norm(h) overwrites the stream before it is added: each needs its own name.
        add_mlp | out = h_normed + mlp_out
    residuals_normed: both residuals are the normalised arrays
        x = norm(x) overwrites the stream before it is added: each needs its own name.
        add_attention | h = normed + attn_out
        add_mlp | out = h_normed + mlp_out
    residual_of_mlp_is_x: the MLP's residual is x instead of h
        The MLP's result is added to what came into the block, and attention's is lost on the way.
        add_mlp | out = stream + mlp_out
    residual_twice (rare): x is added a second time at the end
        h holds x already.
        add_mlp | out = stream + h + mlp_out
    attn_norm_missing: the norm before attention is missing
        attention(x) instead of attention(attn_norm(x)).
        normalise | normed = stream
    mlp_norm_missing: the norm before the MLP is missing
        mlp(h) instead of mlp(mlp_norm(h)).
        normalise_again | h_normed = h
    norms_swapped: attn_norm and mlp_norm are swapped
        Two vectors of the same shape; Hugging Face calls them input_layernorm and
        post_attention_layernorm, and the second of these is the one before the MLP.
        normalise | normed = run_layer(s, mlp_norm, stream)
        normalise_again | h_normed = run_layer(s, attn_norm, h)
    attn_norm_for_both: attn_norm is used before the MLP as well
        A copied line in which the name of the norm was not changed.
        normalise_again | h_normed = run_layer(s, attn_norm, h)
    mlp_norm_of_x: the norm before the MLP gets x instead of h
        mlp_norm(x): the MLP never sees what attention found (attention and MLP run in parallel).
        normalise_again | h_normed = run_layer(s, mlp_norm, stream)
    mlp_norm_of_attention (rare):
        the norm before the MLP gets attention's result without the residual
        mlp_norm(attention(...)) instead of mlp_norm(h).
        normalise_again | h_normed = run_layer(s, mlp_norm, attn_out)
    post_norm: the norms come after the additions (post-norm)
        The first transformer normalised after adding: norm(x + attention(x)). Llama's kind
        normalises what the layers read and leaves the stream alone.
        normalise | normed = stream
        add_attention | h = run_layer(s, attn_norm, stream + attn_out)
        normalise_again | h_normed = h
        add_mlp | out = run_layer(s, mlp_norm, h + mlp_out)
    results_normed (rare): the norms are applied to the layers' results
        x + norm(attention(x)) instead of x + attention(norm(x)).
        normalise | normed = stream
        add_attention | h = stream + run_layer(s, attn_norm, attn_out)
        normalise_again | h_normed = h
        add_mlp | out = h + run_layer(s, mlp_norm, mlp_out)
    attention_left_out: attention is left out
        Its result is not used: h is x.
        add_attention | h = stream
    mlp_left_out: the MLP is left out
        Its result is not used: the block returns h.
        add_mlp | out = h
    in_parallel: the MLP gets what attention got: attention and MLP run in parallel
        Some models compute both from the same normalised x; Llama's kind computes one after the
        other.
        feed_forward | mlp_out = run_layer(s, mlp, normed)
    mlp_first (rare): the MLP comes first, attention second
        The two halves of the block stand in the wrong order.
        normalise | normed = run_layer(s, mlp_norm, stream)
        attend | attn_out = run_layer(s, mlp, normed)
        normalise_again | h_normed = run_layer(s, attn_norm, h)
        feed_forward | mlp_out = attended(s, h_normed)
    """
)
