"""RMSNorm and LayerNorm in steps, and what goes wrong in them.

x (...,n), weight and bias (n,); the meaning is that of `reference.rms_norm` and
`reference.layer_norm`. The two share most of their steps, and most of
their mistakes. What goes wrong in axes, weight, bias and bits is in norm_axes.py.
"""

from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.sampling import some_rows
from simdformer.learn.program import Program


def mean(x: Any, axis: Any = -1) -> Any:
    return np.mean(x, axis=axis, keepdims=True, dtype=x.dtype)


INPUTS = "    inputs: h, w, axis = array(x), array(weight), -1"
SHARED = """
    square: squares = h * h
    average: size = mean(squares, axis)
    add_eps: size = size + real(eps)
    root: size = np.sqrt(size)
    divide: out = h / size
    multiply: out = out if w is None else out * w
"""
rms_norm = Program(
    "rms_norm",
    INPUTS + SHARED,
    calls=(mean,),
    of=functional.rms_norm,
    axes=("position", "channel"),
    thin=some_rows,
)
layer_norm = Program(
    "layer_norm",
    f"""
{INPUTS}
    centre: h = h - mean(h, axis)
{SHARED}
    add: out = out if bias is None else out + array(bias)
    """,
    calls=(mean,),
    of=functional.layer_norm,
    axes=("position", "channel"),
    thin=some_rows,
)


mistakes(
    """
    rms_norm.add_eps (02 §4), layer_norm.add_eps (04 §3) > Add eps to the mean of the squares,
        before the root is taken.

    no_eps: eps is missing, or much too small
        Where a row is nearly all zeros, nothing keeps the division from blowing it up.
        > Add the eps of the checkpoint's config to the mean of the squares, under the root.
        | pass
    eps_outside_root: eps is added outside the root
        sqrt(mean) + eps instead of sqrt(mean + eps).
        | pass
        root | ...; size = size + real(eps)
    eps_as_a_bound (rare, unless no_eps): eps is a lower bound instead of a summand
        max(mean, eps) changes only the smallest rows; the formula adds eps to every one.
        | size = np.maximum(size, real(eps))
    eps_squared (rare, unless no_eps): eps is squared
        eps ** 2 under the root is the eps of a formula that adds it outside.
        | eps = eps**2; ...

    rms_norm.average (02 §4), layer_norm.average (04 §3) > Take the mean over the last axis: divide
        by n.

    sum_for_mean: the sum of the squares is used instead of their mean
        That divides by the length of the vector (its L2 norm), sqrt(n) times too much.
        | ...; size = size * real(h.shape[-1])
    n_minus_one: the squares are averaged over n - 1 instead of n
        torch.std, torch.var and ddof=1 estimate the spread of a population; a norm measures the row
        itself.
        > Divide by n: unbiased=False (correction=0) in PyTorch, ddof=0 in numpy.
        | ...; size = size * real(h.shape[-1] / (h.shape[-1] - 1))

    rms_norm.root (02 §4), layer_norm.root (04 §3) > Divide by np.sqrt(mean + eps), or multiply by 1
        / np.sqrt(mean + eps).

    no_root: the square root is missing
        The row is divided by the mean of its squares instead of by the root of it.
        | pass

    rms_norm.divide (02 §4), layer_norm.divide (04 §3) > Divide by np.sqrt(mean + eps), or multiply
        by 1 / np.sqrt(mean + eps).

    multiplied_by_root: multiplied by the root instead of divided
        x * rsqrt(y) and x / sqrt(y) are the same; x * sqrt(y) is not.
        | out = h * size
    not_divided: x is not normalised, only multiplied by the weight
        The division is missing, or its result is not used.
        | out = h

    rms_norm.square (02 §4), layer_norm.square (04 §3) > Average x * x, then take the root.

    absolute_values (rare): the absolute values are averaged instead of the squares
        The mean of |x| is another measure of size than the root of the mean of x².
        | squares = np.broadcast_to(mean(np.abs(h)) ** 2, h.shape)

    rms_norm.square (02 §4) > Divide by the root of the mean of x * x.

    mean_then_square (rare): the mean is squared, not the squares averaged
        x.mean() ** 2 instead of (x ** 2).mean().
        | squares = np.broadcast_to(mean(h) ** 2, h.shape)
    standard_deviation: x is divided by its standard deviation
        x.std() measures the distance from the mean; RMSNorm measures the distance from zero.
        | squares = (h - mean(h)) ** 2

    rms_norm.inputs (02 §4) > Divide x itself by the root of the mean of its squares.

    mean_subtracted: the mean is subtracted: this is LayerNorm
        RMSNorm leaves out the mean of LayerNorm (and its bias).
        | ...; h = h - mean(h)

    layer_norm.centre (04 §3) > Divide x - mean by np.sqrt(var + eps).

    mean_not_subtracted: the mean is not subtracted: this is RMSNorm
        LayerNorm moves the mean of each row to 0 before it measures its spread.
        | pass
    squares_not_centred: the mean is subtracted from x, but the squares are those of x itself
        The variance is the mean of (x - mean)², not of x².
        square | squares = array(x) ** 2
    only_variance_centred: the mean is subtracted for the variance only
        x / std(x): both the spread and what is divided by it belong to x - mean.
        divide | out = array(x) / size
    """,
)

for eps in ("1e-03", "1e-04", "1e-05", "1e-06", "1.19e-07", "1e-08", "1e-12"):
    mistakes(
        f"""
        rms_norm.add_eps (02 §4), layer_norm.add_eps (04 §3) > Hand over the eps that the
            checkpoint's config gives as norm_eps or rms_norm_eps.

        eps_{eps} (unless no_eps{"" if eps in ("1e-05", "1e-06") else ", rare"}):
            eps is {eps} instead of the one that is asked for
            Libraries have their own defaults (PyTorch: 1e-5 in LayerNorm, 1.19e-7 in RMSNorm), and
            so do models (Llama 2 and 3: 1e-5; Qwen: 1e-6).
            | eps = {2.0**-23 if eps == "1.19e-07" else float(eps)}; ...
        """,
    )
