"""What goes wrong in norms beside the formula: axes, weight and bias, too few bits."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.learn.mistakes.norms import (
    NORM,
    average,
    centre,
    in_both,
    layer_norm,
    mean,
    multiply,
    rms_norm,
)
from simdformer.learn.program import State, mistake

# ---- mistakes: axes ------------------------------------------------------------------------------


def over(axes: Callable[[Any], Any]) -> type:
    """Mean and variance over other axes than the last one."""

    def centre(s: State) -> None:
        s.h = s.h - mean(s.h, axes(s.h))

    def average(s: State) -> None:
        s.size = mean(s.squares, axes(s.squares))

    return type("Over", (), {"centre": staticmethod(centre), "average": staticmethod(average)})


AXES: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "over_tokens": (
        lambda x: -2 if x.ndim > 1 else -1,
        "over the tokens (axis -2) instead of over each token's own elements",
        "Every token is measured by itself: the mean runs over the last axis only.",
    ),
    "over_everything": (
        lambda x: None,
        "over the whole array instead of over each token",
        "x.mean() without an axis makes one number of everything.",
    ),
    "over_first_axis": (
        lambda x: 0 if x.ndim > 2 else -1,
        "over the first axis",
        "Axis 0 is the batch: the elements of a token are the last axis.",
    ),
    "over_tokens_and_elements": (
        lambda x: (-2, -1) if x.ndim > 2 else -1,
        "over tokens and elements together",
        "Each sequence gets one number; every token needs its own.",
    ),
    "over_batch_and_tokens": (
        lambda x: tuple(range(x.ndim - 1)) if x.ndim > 2 else -1,
        "over batch and tokens, for each channel",
        "That is BatchNorm: one channel of many tokens. Here it is all channels of one token.",
    ),
}

for name, (axes, title, cause) in AXES.items():
    fix = "Use axis=-1, keepdims=True (dim=-1, keepdim=True in PyTorch)."
    wrong = over(axes)
    for norm, steps in {"rms_norm": ["average"], "layer_norm": ["centre", "average"]}.items():
        mistake(
            *[f"{norm}.{step}" for step in steps],
            name=name,
            title=f"the mean is taken {title}",
            cause=cause,
            fix=fix,
            step=NORM[norm],
            rare=name.startswith(("over_first", "over_tokens_and")),
        )(wrong)


@in_both(
    "average",
    title="keepdims is lost: each element is divided by another token's size",
    cause="Without its last axis the column of sizes is spread along the rows; with as many tokens "
    "as elements nothing complains.",
    fix="Take the mean with keepdims=True (keepdim=True in PyTorch).",
)
def keepdims_lost(s: State) -> None:
    average(s)
    lost = s.size[..., 0]
    if lost.ndim and lost.shape[-1] == s.h.shape[-1]:
        s.size = lost


# ---- mistakes: weight and bias -------------------------------------------------------------------


@in_both(
    "multiply",
    title="the weight is forgotten",
    cause="After the division each element is multiplied by its own learnt weight.",
    fix="Multiply by the weight, which has one number for each element of the last axis.",
)
def weight_forgotten(s: State) -> None:
    pass


@in_both(
    "multiply",
    title="multiplied by 1 + weight",
    cause="Gemma stores its norm weights minus one; Llama, Qwen, Mistral and MiniMind do not.",
    fix="Multiply by the weight itself.",
)
def one_plus_weight(s: State) -> None:
    s.out = s.out if s.w is None else s.out * (1 + s.w)


@in_both(
    "multiply",
    title="the weight is added instead of multiplied",
    cause="The weight scales each element; only a bias is added.",
    fix="Multiply by the weight.",
)
def weight_added(s: State) -> None:
    s.out = s.out if s.w is None else s.out + s.w


@in_both(
    "square",
    title="x is multiplied by the weight before it is measured",
    cause="The size must be that of x: a weight that is in it already is partly divided out again.",
    fix="Normalise x first, then multiply by the weight.",
    rare=True,
)
def weight_before_norm(s: State) -> None:
    h = s.h if s.w is None else s.h * s.w
    s.squares = h * h


@in_both(
    "multiply",
    title="the weight multiplies tokens instead of elements",
    cause="weight[:, None] has a number for each row; with as many tokens as elements nothing "
    "complains.",
    fix="Leave the weight as it is, (n,): it belongs to the last axis.",
    rare=True,
)
def weight_on_tokens(s: State) -> None:
    if s.w is None or s.out.ndim < 2 or s.w.shape[-1] != s.out.shape[-2]:
        return multiply(s)
    s.out = s.out * s.w[:, None]
    return None


@mistake(
    "layer_norm.add",
    title="the bias is forgotten",
    cause="LayerNorm ends with + bias.",
    fix="Add the bias after the multiplication by the weight.",
    step=NORM["layer_norm"],
)
def bias_forgotten(s: State) -> None:
    pass


@mistake(
    "layer_norm.multiply",
    "layer_norm.add",
    title="weight and bias are swapped",
    cause="Two vectors of the same shape, handed over in the wrong order.",
    fix="Multiply by the weight, then add the bias.",
    step=NORM["layer_norm"],
)
class WeightAndBiasSwapped:
    @staticmethod
    def multiply(s: State) -> None:
        s.out = s.out if s.bias is None else s.out * s.run.array(s.bias)

    @staticmethod
    def add(s: State) -> None:
        s.out = s.out if s.w is None else s.out + s.w


@mistake(
    "layer_norm.multiply",
    "layer_norm.add",
    title="the bias is added before the multiplication",
    cause="(h + bias) * weight instead of h * weight + bias.",
    fix="Multiply by the weight first, then add the bias.",
    step=NORM["layer_norm"],
)
class BiasBeforeWeight:
    @staticmethod
    def multiply(s: State) -> None:
        s.out = s.out if s.bias is None else s.out + s.run.array(s.bias)

    @staticmethod
    def add(s: State) -> None:
        s.out = s.out if s.w is None else s.out * s.w


# ---- mistakes: too few bits ----------------------------------------------------------------------


def rounding(step: Callable[[State], None], dtype: Any) -> Callable[[State], None]:
    """The step, after which every array is rounded to 16 bits."""

    def rounded(s: State) -> None:
        if step is centre:
            s.h = s.h - mean(s.h).astype(dtype).astype(s.run.dtype)
        else:
            step(s)
        for name, value in list(vars(s).items()):
            if isinstance(value, np.ndarray) and value.dtype == np.dtype(s.run.dtype):
                setattr(s, name, value.astype(dtype).astype(s.run.dtype))

    return rounded


for name, dtype, cause in (
    ("float16", np.float16, "The square of 256 is infinite in float16, and small squares vanish."),
    ("bfloat16", ml_dtypes.bfloat16, "bfloat16 keeps 8 bits, and every step rounds again."),
):
    for program in (rms_norm, layer_norm):
        own = {
            full.partition(".")[2]: rounding(step, dtype) for full, step in program.steps.items()
        }
        mistake(
            *program.steps,
            name=f"in_{name}",
            title=f"computed in {name}",
            cause=cause,
            fix="Convert x to float32, normalise, and convert the result back.",
            step=NORM[program.name],
            rare=True,
        )(type("Rounded", (), own))
