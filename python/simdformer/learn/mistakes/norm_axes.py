"""What goes wrong in norms beside the formula: axes, weight and bias, too few bits."""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.norms import layer_norm, rms_norm
from simdformer.learn.program import State


def in_few_bits(s: State, dtype: Any) -> None:
    """Rounds every array."""
    for name, x in list(vars(s).items()):
        if isinstance(x, np.ndarray) and x.dtype == np.dtype(s.run.dtype):
            setattr(s, name, x.astype(dtype).astype(s.run.dtype))


mistakes(
    """
    rms_norm.inputs (02 §4), layer_norm.inputs (04 §3) > Use axis=-1, keepdims=True (dim=-1,
        keepdim=True in PyTorch).

    over_tokens: the mean is over the tokens (axis -2), not over each token's own elements
        Every token is measured by itself: the mean runs over the last axis only.
        | ...; axis = -2 if h.ndim > 1 else -1
    over_everything: the mean is over the whole array instead of over each token
        x.mean() without an axis makes one number of everything.
        | ...; axis = None
    over_first_axis (rare): the mean is over the first axis
        Axis 0 is the batch: the elements of a token are the last axis.
        | ...; axis = 0 if h.ndim > 2 else -1
    over_tokens_and_elements (rare): the mean is over tokens and elements together
        Each sequence gets one number; every token needs its own.
        | ...; axis = (-2, -1) if h.ndim > 2 else -1
    over_batch_and_tokens: the mean is over batch and tokens, for each channel
        That is BatchNorm: one channel of many tokens. Here it is all channels of one token.
        | ...; axis = tuple(range(h.ndim - 1)) if h.ndim > 2 else -1

    rms_norm.average (02 §4), layer_norm.average (04 §3) > Take the mean with keepdims=True
        (keepdim=True in PyTorch).

    keepdims_lost: keepdims is lost: each element is divided by another token's size
        Without its last axis the column of sizes is spread along the rows; with as many tokens as
        elements nothing complains.
        | ...; size = size[..., 0]

    layer_norm.centre (04 §3) > Take the mean with keepdims=True (keepdim=True in PyTorch).

    keepdims_of_mean_lost: keepdims is lost: from each element another token's mean is subtracted
        Without its last axis the column of means is spread along the rows; with as many tokens as
        elements nothing complains.
        | h = h - mean(h, axis)[..., 0]
    keepdims_lost_twice: keepdims is lost in the mean and in the variance
        as above
        | h = h - mean(h, axis)[..., 0]
        average | ...; size = size[..., 0]
    keepdims_lost_in_both: keepdims is lost: mean and variance of other tokens are taken
        (x - x.mean(-1)) / np.sqrt(x.var(-1) + eps): without their last axis the columns are spread
        along the rows.
        | right, h = h - mean(h, axis), h - mean(h, axis)[..., 0]
        square | squares = right * right
        average | ...; size = size[..., 0]

    rms_norm.multiply (02 §4), layer_norm.multiply (04 §3) > Multiply by the weight, which has one
        number for each element of the last axis.

    weight_forgotten: the weight is forgotten
        After the division each element is multiplied by its own learnt weight.
        | pass
    one_plus_weight: multiplied by 1 + weight
        Gemma stores its norm weights minus one; Llama, Qwen, Mistral and MiniMind do not.
        | out = out * (1 + w)
    weight_twice: multiplied by the weight twice
        A function of PyTorch that was given the weight has multiplied by it already.
        > Multiply by the weight once: F.rms_norm(x, shape, weight), or norm(x) * weight.
        | ...; out = out * w
    weight_added: the weight is added instead of multiplied
        The weight scales each element; only a bias is added.
        | out = out + w
    weight_on_tokens (rare): the weight multiplies tokens instead of elements
        weight[:, None] has a number for each row; with as many tokens as elements nothing
        complains.
        | out = out * w[:, None]

    rms_norm.square (02 §4), layer_norm.square (04 §3) > Normalise x first, then multiply by the
        weight.

    weight_before_norm (rare): x is multiplied by the weight before it is measured
        The size must be that of x: a weight that is in it already is partly divided out again.
        | squares = (h * w) ** 2

    rms_norm.square (02 §4), layer_norm.square (04 §3) > Convert x to float32, normalise, and
        convert the result back.

    squares_overflow: squares overflow in float16, and their rows come out as 0
        The largest number of float16 is 65,504: the square of 256 is infinite, and x / inf is 0.
        | ...; unless((squares <= np.finfo(float16).max).all())
        | squares = np.where(squares > np.finfo(float16).max, real(np.inf), squares)

    layer_norm.add (04 §3) > Multiply by the weight first, then add the bias.

    bias_forgotten: the bias is forgotten
        LayerNorm ends with + bias.
        | pass
    weight_and_bias_swapped: weight and bias are swapped
        Two vectors of the same shape, handed over in the wrong order.
        multiply | out = out * array(bias)
        | out = out + w
    bias_before_weight: the bias is added before the multiplication
        (h + bias) * weight instead of h * weight + bias.
        multiply | out = out + array(bias); ...
        | pass
    """
)

for few, cause in (
    ("float16", "The square of 256 is infinite in float16, and small squares vanish."),
    ("bfloat16", "bfloat16 keeps 8 bits, and every step rounds again."),
):
    for program, see in ((rms_norm, "02 §4"), (layer_norm, "04 §3")):
        wrong = {name.partition(".")[2]: "..." for name in program.steps}
        if program is layer_norm:
            wrong["centre"] = f"h = h - mean(h).astype({few}).astype(real)"
        lines = [f"{step} | {code}; in_few_bits(s, {few})" for step, code in wrong.items()]
        everywhere = "\n                ".join(lines)
        mistakes(
            f"""
            {program.name} ({see}) > Convert x to float32, normalise, and convert the result back.

            in_{few} (rare, unless squares_overflow): computed in {few}
                {cause}
                {everywhere}
            """,
            calls=(in_few_bits,),
        )
