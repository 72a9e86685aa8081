"""The whole layer of a transformer in steps, and what goes wrong in it.

x (...,L,E); the meaning is that of `nn.TransformerBlock`. What goes wrong inside of its attention,
its MLP and its norms is with those.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.catalogue import Mistakes, instead
from simdformer.learn.mistakes.norms import layer_norm, rms_norm
from simdformer.learn.program import OPERATIONS, Program, State

block = Program("block", of=nn.TransformerBlock, axes=("position", "channel"))

OPERATIONS[nn.RMSNorm] = rms_norm

OPERATIONS[nn.LayerNorm] = layer_norm


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


@block.step
def begin(s: State) -> None:
    s.stream = s.run.array(s.x)


@block.step
def normalise(s: State) -> None:
    s.normed = run_layer(s, s.attn_norm, s.stream)


@block.step
def attend(s: State) -> None:
    s.attn_out = attended(s, s.normed)


@block.step
def add_attention(s: State) -> None:
    s.h = s.stream + s.attn_out


@block.step
def normalise_again(s: State) -> None:
    s.h_normed = run_layer(s, s.mlp_norm, s.h)


@block.step
def feed_forward(s: State) -> None:
    s.mlp_out = run_layer(s, s.mlp, s.h_normed)


@block.step
def add_mlp(s: State) -> None:
    s.out = s.h + s.mlp_out


@block.thin
def some_sequences(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """The first sequences; where no token sees a later one, the first tokens."""
    x, mask, positions = (variables[name] for name in ("x", "mask", "positions"))
    x = np.asarray(x)
    wide = 8 * x.size  # what lies between the layers is several times as wide as x
    if wide <= limit:
        return None
    batch = max(1, limit * len(x) // wide) if x.ndim > 2 else None
    first = slice(0, batch)
    wide //= len(x) // batch if batch else 1
    # What makes tokens see later ones does not show in the first tokens: these are the last resort.
    causal = isinstance(mask, str) and wide > 10 * limit
    tokens = max(2, 10 * limit * x.shape[-2] // wide) if causal else x.shape[-2]

    def take(y: Any) -> Any:
        return (y[first] if batch else y)[..., :tokens, :]

    fewer = variables | {"x": take(x)}
    if np.ndim(positions):
        of_some = np.asarray(positions)[first] if np.ndim(positions) == 2 else np.asarray(positions)
        fewer["positions"] = of_some[..., :tokens]
    if batch and np.ndim(mask) == x.ndim + 1:
        fewer["mask"] = np.asarray(mask)[first]
    return fewer, take


# ---- mistakes ------------------------------------------------------------------------------------

attention_alone, mlp_alone = instead(h=lambda s: s.attn_out), instead(out=lambda s: s.mlp_out)
to_normed = instead(h=lambda s: s.normed + s.attn_out)
to_h_normed = instead(out=lambda s: s.h_normed + s.mlp_out)
no_norm, no_norm_again = instead(normed=lambda s: s.stream), instead(h_normed=lambda s: s.h)
mlp_norm_first = instead(normed=lambda s: run_layer(s, s.mlp_norm, s.stream))
attn_norm_again = instead(h_normed=lambda s: run_layer(s, s.attn_norm, s.h))

Mistakes(
    "block",
    see="04 §9",
    fix="The order is h = x + attention(attn_norm(x)), then h + mlp(mlp_norm(h)).",
)(
    """
    residual_of_attention_forgotten: the residual around attention is forgotten
        h = attention(norm(x)): what x held is lost but for what attention repeats of it.
    residual_of_mlp_forgotten: the residual around the MLP is forgotten
        The result is mlp(norm(h)) alone, without h.
    residuals_forgotten: both residuals are forgotten
        The layers are called one after the other, and nothing is added.
    residual_of_attention_normed: attention's residual is the normalised x instead of x
        x = norm(x) overwrites the stream before it is added: each needs its own name.
    residual_of_mlp_normed: the MLP's residual is the normalised h instead of h
        h = norm(h) overwrites the stream before it is added: each needs its own name.
    residuals_normed: both residuals are the normalised arrays
        x = norm(x) overwrites the stream before it is added: each needs its own name.
    residual_of_mlp_is_x: the MLP's residual is x instead of h
        The MLP's result is added to what came into the block, and attention's is lost on the way.
    residual_twice (rare): x is added a second time at the end
        h holds x already.
    attn_norm_missing: the norm before attention is missing
        attention(x) instead of attention(attn_norm(x)).
    mlp_norm_missing: the norm before the MLP is missing
        mlp(h) instead of mlp(mlp_norm(h)).
    norms_swapped: attn_norm and mlp_norm are swapped
        Two vectors of the same shape; Hugging Face calls them input_layernorm and
        post_attention_layernorm, and the second of these is the one before the MLP.
    attn_norm_for_both: attn_norm is used before the MLP as well
        A copied line in which the name of the norm was not changed.
    mlp_norm_of_x: the norm before the MLP gets x instead of h
        mlp_norm(x): the MLP never sees what attention found (attention and MLP run in parallel).
    mlp_norm_of_attention (rare):
        the norm before the MLP gets attention's result without the residual
        mlp_norm(attention(...)) instead of mlp_norm(h).
    post_norm: the norms come after the additions (post-norm)
        The first transformer normalised after adding: norm(x + attention(x)). Llama's kind
        normalises what the layers read and leaves the stream alone.
    results_normed (rare): the norms are applied to the layers' results
        x + norm(attention(x)) instead of x + attention(norm(x)).
    attention_left_out: attention is left out
        Its result is not used: h is x.
    mlp_left_out: the MLP is left out
        Its result is not used: the block returns h.
    in_parallel: the MLP gets what attention got: attention and MLP run in parallel
        Some models compute both from the same normalised x; Llama's kind computes one after the
        other.
    mlp_first (rare): the MLP comes first, attention second
        The two halves of the block stand in the wrong order.
    """,
    residual_of_attention_forgotten={"add_attention": attention_alone},
    residual_of_mlp_forgotten={"add_mlp": mlp_alone},
    residuals_forgotten={"add_attention": attention_alone, "add_mlp": mlp_alone},
    residual_of_attention_normed={"add_attention": to_normed},
    residual_of_mlp_normed={"add_mlp": to_h_normed},
    residuals_normed={"add_attention": to_normed, "add_mlp": to_h_normed},
    residual_of_mlp_is_x={"add_mlp": instead(out=lambda s: s.stream + s.mlp_out)},
    residual_twice={"add_mlp": instead(out=lambda s: s.stream + s.h + s.mlp_out)},
    attn_norm_missing={"normalise": no_norm},
    mlp_norm_missing={"normalise_again": no_norm_again},
    norms_swapped={"normalise": mlp_norm_first, "normalise_again": attn_norm_again},
    attn_norm_for_both={"normalise_again": attn_norm_again},
    mlp_norm_of_x={
        "normalise_again": instead(h_normed=lambda s: run_layer(s, s.mlp_norm, s.stream))
    },
    mlp_norm_of_attention={
        "normalise_again": instead(h_normed=lambda s: run_layer(s, s.mlp_norm, s.attn_out))
    },
    post_norm={
        "normalise": no_norm,
        "add_attention": instead(h=lambda s: run_layer(s, s.attn_norm, s.stream + s.attn_out)),
        "normalise_again": no_norm_again,
        "add_mlp": instead(out=lambda s: run_layer(s, s.mlp_norm, s.h + s.mlp_out)),
    },
    results_normed={
        "normalise": no_norm,
        "add_attention": instead(h=lambda s: s.stream + run_layer(s, s.attn_norm, s.attn_out)),
        "normalise_again": no_norm_again,
        "add_mlp": instead(out=lambda s: s.h + run_layer(s, s.mlp_norm, s.mlp_out)),
    },
    attention_left_out={"add_attention": instead(h=lambda s: s.stream)},
    mlp_left_out={"add_mlp": instead(out=lambda s: s.h)},
    in_parallel={"feed_forward": instead(mlp_out=lambda s: run_layer(s, s.mlp, s.normed))},
    mlp_first={
        "normalise": mlp_norm_first,
        "attend": instead(attn_out=lambda s: run_layer(s, s.mlp, s.normed)),
        "normalise_again": attn_norm_again,
        "feed_forward": instead(mlp_out=lambda s: attended(s, s.h_normed)),
    },
)
