"""The whole layer of a transformer in steps, and what goes wrong in it.

x (...,L,E); the meaning is that of `nn.TransformerBlock`. What goes wrong inside of its attention,
its MLP and its norms is with those.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.mistakes.norms import layer_norm, rms_norm
from simdformer.learn.program import OPERATIONS, Program, State, Variation, mistake

BLOCK = "04 §9"

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
def normalise(s: State) -> None:
    s.stream = s.run.array(s.x)
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


# ---- mistakes: residuals -------------------------------------------------------------------------

PRE_NORM = "The order is h = x + attention(attn_norm(x)), then h + mlp(mlp_norm(h))."


def out_of_order(
    *steps: str, title: str, cause: str, rare: bool = False
) -> Callable[[Any], Variation]:
    """Decorator: a mistake in how the parts of the layer are put together."""
    names = [f"block.{step}" for step in steps]
    return mistake(*names, title=title, cause=cause, fix=PRE_NORM, step=BLOCK, rare=rare)


@out_of_order(
    "add_attention",
    title="the residual around attention is forgotten",
    cause="h = attention(norm(x)): what x held is lost but for what attention repeats of it.",
)
def residual_of_attention_forgotten(s: State) -> None:
    s.h = s.attn_out


@out_of_order(
    "add_mlp",
    title="the residual around the MLP is forgotten",
    cause="The result is mlp(norm(h)) alone, without h.",
)
def residual_of_mlp_forgotten(s: State) -> None:
    s.out = s.mlp_out


@out_of_order(
    "add_attention",
    "add_mlp",
    title="both residuals are forgotten",
    cause="The layers are called one after the other, and nothing is added.",
)
class ResidualsForgotten:
    @staticmethod
    def add_attention(s: State) -> None:
        s.h = s.attn_out

    @staticmethod
    def add_mlp(s: State) -> None:
        s.out = s.mlp_out


@out_of_order(
    "add_attention",
    title="attention's residual is the normalised x instead of x",
    cause="x = norm(x) overwrites the stream before it is added: the two need names of their own.",
)
def residual_of_attention_normed(s: State) -> None:
    s.h = s.normed + s.attn_out


@out_of_order(
    "add_mlp",
    title="the MLP's residual is the normalised h instead of h",
    cause="h = norm(h) overwrites the stream before it is added: the two need names of their own.",
)
def residual_of_mlp_normed(s: State) -> None:
    s.out = s.h_normed + s.mlp_out


@out_of_order(
    "add_attention",
    "add_mlp",
    title="both residuals are the normalised arrays",
    cause="x = norm(x) overwrites the stream before it is added: the two need names of their own.",
)
class ResidualsNormed:
    @staticmethod
    def add_attention(s: State) -> None:
        s.h = s.normed + s.attn_out

    @staticmethod
    def add_mlp(s: State) -> None:
        s.out = s.h_normed + s.mlp_out


@out_of_order(
    "add_mlp",
    title="the MLP's residual is x instead of h",
    cause="The MLP's result is added to what came into the block, and attention's is lost on the "
    "way.",
)
def residual_of_mlp_is_x(s: State) -> None:
    s.out = s.stream + s.mlp_out


@out_of_order(
    "add_mlp",
    title="x is added a second time at the end",
    cause="h holds x already.",
    rare=True,
)
def residual_twice(s: State) -> None:
    s.out = s.stream + s.h + s.mlp_out


# ---- mistakes: norms -----------------------------------------------------------------------------


@out_of_order(
    "normalise",
    title="the norm before attention is missing",
    cause="attention(x) instead of attention(attn_norm(x)).",
)
def attn_norm_missing(s: State) -> None:
    s.stream = s.normed = s.run.array(s.x)


@out_of_order(
    "normalise_again",
    title="the norm before the MLP is missing",
    cause="mlp(h) instead of mlp(mlp_norm(h)).",
)
def mlp_norm_missing(s: State) -> None:
    s.h_normed = s.h


@out_of_order(
    "normalise",
    "normalise_again",
    title="attn_norm and mlp_norm are swapped",
    cause="Two vectors of the same shape; Hugging Face calls them input_layernorm and "
    "post_attention_layernorm, and the second of these is the one before the MLP.",
)
class NormsSwapped:
    @staticmethod
    def normalise(s: State) -> None:
        s.stream = s.run.array(s.x)
        s.normed = run_layer(s, s.mlp_norm, s.stream)

    @staticmethod
    def normalise_again(s: State) -> None:
        s.h_normed = run_layer(s, s.attn_norm, s.h)


@out_of_order(
    "normalise_again",
    title="attn_norm is used before the MLP as well",
    cause="A copied line in which the name of the norm was not changed.",
)
def attn_norm_for_both(s: State) -> None:
    s.h_normed = run_layer(s, s.attn_norm, s.h)


@out_of_order(
    "normalise_again",
    title="the norm before the MLP gets x instead of h",
    cause="mlp_norm(x): the MLP never sees what attention found (attention and MLP run in "
    "parallel).",
)
def mlp_norm_of_x(s: State) -> None:
    s.h_normed = run_layer(s, s.mlp_norm, s.stream)


@out_of_order(
    "normalise_again",
    title="the norm before the MLP gets attention's result without the residual",
    cause="mlp_norm(attention(...)) instead of mlp_norm(h).",
    rare=True,
)
def mlp_norm_of_attention(s: State) -> None:
    s.h_normed = run_layer(s, s.mlp_norm, s.attn_out)


@out_of_order(
    "feed_forward",
    title="the MLP gets what attention got: attention and MLP run in parallel",
    cause="Some models compute both from the same normalised x; Llama's kind computes one after "
    "the other.",
)
def in_parallel(s: State) -> None:
    s.mlp_out = run_layer(s, s.mlp, s.normed)


@out_of_order(
    "normalise",
    "add_attention",
    "normalise_again",
    "add_mlp",
    title="the norms come after the additions (post-norm)",
    cause="The first transformer normalised after adding: norm(x + attention(x)). Llama's kind "
    "normalises what the layers read and leaves the stream alone.",
)
class PostNorm:
    @staticmethod
    def normalise(s: State) -> None:
        s.stream = s.normed = s.run.array(s.x)

    @staticmethod
    def add_attention(s: State) -> None:
        s.h = run_layer(s, s.attn_norm, s.stream + s.attn_out)

    @staticmethod
    def normalise_again(s: State) -> None:
        s.h_normed = s.h

    @staticmethod
    def add_mlp(s: State) -> None:
        s.out = run_layer(s, s.mlp_norm, s.h + s.mlp_out)


@out_of_order(
    "normalise",
    "add_attention",
    "normalise_again",
    "add_mlp",
    title="the norms are applied to the layers' results",
    cause="x + norm(attention(x)) instead of x + attention(norm(x)).",
    rare=True,
)
class ResultsNormed:
    @staticmethod
    def normalise(s: State) -> None:
        s.stream = s.normed = s.run.array(s.x)

    @staticmethod
    def add_attention(s: State) -> None:
        s.h = s.stream + run_layer(s, s.attn_norm, s.attn_out)

    @staticmethod
    def normalise_again(s: State) -> None:
        s.h_normed = s.h

    @staticmethod
    def add_mlp(s: State) -> None:
        s.out = s.h + run_layer(s, s.mlp_norm, s.mlp_out)


# ---- mistakes: layers left out or in another order -----------------------------------------------


@out_of_order(
    "add_attention",
    title="attention is left out",
    cause="Its result is not used: h is x.",
)
def attention_left_out(s: State) -> None:
    s.h = s.stream


@out_of_order(
    "add_mlp",
    title="the MLP is left out",
    cause="Its result is not used: the block returns h.",
)
def mlp_left_out(s: State) -> None:
    s.out = s.h


@out_of_order(
    "normalise",
    "attend",
    "normalise_again",
    "feed_forward",
    title="the MLP comes first, attention second",
    cause="The two halves of the block stand in the wrong order.",
    rare=True,
)
class MlpFirst:
    @staticmethod
    def normalise(s: State) -> None:
        s.stream = s.run.array(s.x)
        s.normed = run_layer(s, s.mlp_norm, s.stream)

    @staticmethod
    def attend(s: State) -> None:
        s.attn_out = run_layer(s, s.mlp, s.normed)

    @staticmethod
    def normalise_again(s: State) -> None:
        s.h_normed = run_layer(s, s.attn_norm, s.h)

    @staticmethod
    def feed_forward(s: State) -> None:
        s.mlp_out = attended(s, s.h_normed)
