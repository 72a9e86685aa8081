"""What goes wrong in norms beside the formula: axes, weight and bias, too few bits."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.learn.catalogue import Mistakes, first, instead, skip, then
from simdformer.learn.mistakes.norms import (
    NORM,
    centre,
    in_both,
    layer_norm,
    mean,
    of_layer_norm,
    rms_norm,
)
from simdformer.learn.program import State, Step
from simdformer.learn.source import statements

# ---- mistakes: axes ------------------------------------------------------------------------------


in_both("inputs", "Use axis=-1, keepdims=True (dim=-1, keepdim=True in PyTorch).")(
    """
    over_tokens: the mean is over the tokens (axis -2), not over each token's own elements
        Every token is measured by itself: the mean runs over the last axis only.
    over_everything: the mean is over the whole array instead of over each token
        x.mean() without an axis makes one number of everything.
    over_first_axis (rare): the mean is over the first axis
        Axis 0 is the batch: the elements of a token are the last axis.
    over_tokens_and_elements (rare): the mean is over tokens and elements together
        Each sequence gets one number; every token needs its own.
    over_batch_and_tokens: the mean is over batch and tokens, for each channel
        That is BatchNorm: one channel of many tokens. Here it is all channels of one token.
    """,
    over_tokens=then(axis=lambda s: -2 if s.h.ndim > 1 else -1),
    over_everything=then(axis=lambda s: None),
    over_first_axis=then(axis=lambda s: 0 if s.h.ndim > 2 else -1),
    over_tokens_and_elements=then(axis=lambda s: (-2, -1) if s.h.ndim > 2 else -1),
    over_batch_and_tokens=then(axis=lambda s: tuple(range(s.h.ndim - 1)) if s.h.ndim > 2 else -1),
)

KEEPDIMS = "Take the mean with keepdims=True (keepdim=True in PyTorch)."

lost_size = then(size=lambda s: s.size[..., 0])

lost_mean = instead(h=lambda s: s.h - mean(s.h, s.axis)[..., 0])


in_both("average", KEEPDIMS)(
    """
    keepdims_lost: keepdims is lost: each element is divided by another token's size
        Without its last axis the column of sizes is spread along the rows; with as many tokens as
        elements nothing complains.
    """,
    keepdims_lost=lost_size,
)

of_layer_norm("centre", KEEPDIMS)(
    """
    keepdims_of_mean_lost: keepdims is lost: from each element another token's mean is subtracted
        Without its last axis the column of means is spread along the rows; with as many tokens as
        elements nothing complains.
    keepdims_lost_twice: keepdims is lost in the mean and in the variance
        as above
    """,
    keepdims_of_mean_lost=lost_mean,
    keepdims_lost_twice={"centre": lost_mean, "average": lost_size},
)

# ---- mistakes: weight and bias -------------------------------------------------------------------


in_both(
    "multiply", "Multiply by the weight, which has one number for each element of the last axis."
)(
    """
    weight_forgotten: the weight is forgotten
        After the division each element is multiplied by its own learnt weight.
    one_plus_weight: multiplied by 1 + weight
        Gemma stores its norm weights minus one; Llama, Qwen, Mistral and MiniMind do not.
    weight_added: the weight is added instead of multiplied
        The weight scales each element; only a bias is added.
    weight_on_tokens (rare): the weight multiplies tokens instead of elements
        weight[:, None] has a number for each row; with as many tokens as elements nothing
        complains.
    """,
    weight_forgotten=skip,
    one_plus_weight=instead(out=lambda s: s.out * (1 + s.w)),
    weight_added=instead(out=lambda s: s.out + s.w),
    weight_on_tokens=instead(out=lambda s: s.out * s.w[:, None]),
)

in_both("square", "Normalise x first, then multiply by the weight.")(
    """
    weight_before_norm (rare): x is multiplied by the weight before it is measured
        The size must be that of x: a weight that is in it already is partly divided out again.
    """,
    weight_before_norm=instead(squares=lambda s: (s.h * s.w) ** 2),
)

of_layer_norm("add", "Multiply by the weight first, then add the bias.")(
    """
    bias_forgotten: the bias is forgotten
        LayerNorm ends with + bias.
    weight_and_bias_swapped: weight and bias are swapped
        Two vectors of the same shape, handed over in the wrong order.
    bias_before_weight: the bias is added before the multiplication
        (h + bias) * weight instead of h * weight + bias.
    """,
    bias_forgotten=skip,
    weight_and_bias_swapped={
        "multiply": instead(out=lambda s: s.out * s.run.array(s.bias)),
        "add": instead(out=lambda s: s.out + s.w),
    },
    bias_before_weight={"multiply": first(out=lambda s: s.out + s.run.array(s.bias)), "add": skip},
)

# ---- mistakes: too few bits ----------------------------------------------------------------------


def rounding(step: Step, dtype: Any) -> Callable[[State], None]:
    """The step, after which every array is rounded to 16 bits."""

    def rounded(s: State) -> None:
        if step is centre:
            s.h = s.h - mean(s.h).astype(dtype).astype(s.run.dtype)
        else:
            step(s)
        for name, value in list(vars(s).items()):
            if isinstance(value, np.ndarray) and value.dtype == np.dtype(s.run.dtype):
                setattr(s, name, value.astype(dtype).astype(s.run.dtype))

    first = step.__name__ == "inputs"
    rounded.lines = [  # type: ignore[attr-defined]
        *statements(step),
        *([f"h = h.astype({np.dtype(dtype)})", "# and so whatever follows"] if first else []),
    ]
    return rounded


for name, dtype, cause in (
    ("float16", np.float16, "The square of 256 is infinite in float16, and small squares vanish."),
    ("bfloat16", ml_dtypes.bfloat16, "bfloat16 keeps 8 bits, and every step rounds again."),
):
    for program in (rms_norm, layer_norm):
        steps = {
            full.partition(".")[2]: rounding(step, dtype) for full, step in program.steps.items()
        }
        Mistakes(program.name, see=NORM[program.name]).add(
            f"in_{name}",
            steps,
            f"computed in {name}",
            cause,
            "Convert x to float32, normalise, and convert the result back.",
            rare=True,
        )
