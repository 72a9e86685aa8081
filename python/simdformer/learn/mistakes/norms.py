"""RMSNorm and LayerNorm in steps, and what goes wrong in them.

x (...,n), weight and bias (n,); the meaning is that of `reference.rms_norm` and
`reference.layer_norm`. The two share most of their steps, and most of
their mistakes. What goes wrong in axes, weight, bias and bits is in norm_axes.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State, mistake

NORM = {"rms_norm": "02 §4", "layer_norm": "04 §3"}

rms_norm = Program("rms_norm", of=functional.rms_norm, axes=("position", "channel"))
layer_norm = Program("layer_norm", of=functional.layer_norm, axes=("position", "channel"))


def mean(x: Any, axis: Any = -1) -> Any:
    return np.mean(x, axis=axis, keepdims=True, dtype=x.dtype)


@layer_norm.step
@rms_norm.step
def inputs(s: State) -> None:
    s.h, s.w = s.run.array(s.x), s.run.array(s.weight)


@layer_norm.step
def centre(s: State) -> None:
    s.h = s.h - mean(s.h)


@layer_norm.step
@rms_norm.step
def square(s: State) -> None:
    s.squares = s.h * s.h


@layer_norm.step
@rms_norm.step
def average(s: State) -> None:
    s.size = mean(s.squares)


@layer_norm.step
@rms_norm.step
def add_eps(s: State) -> None:
    s.size = s.size + s.run.dtype(s.eps)


@layer_norm.step
@rms_norm.step
def root(s: State) -> None:
    s.size = np.sqrt(s.size)


@layer_norm.step
@rms_norm.step
def divide(s: State) -> None:
    s.out = s.h / s.size


@layer_norm.step
@rms_norm.step
def multiply(s: State) -> None:
    s.out = s.out if s.w is None else s.out * s.w


@layer_norm.step
def add(s: State) -> None:
    s.out = s.out if s.bias is None else s.out + s.run.array(s.bias)


@layer_norm.thin
@rms_norm.thin
def some_rows(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    x = np.asarray(variables["x"])
    index = rows_of(x.shape, limit)
    return None if index is None else (dict(variables, x=x[index]), lambda out: out[index])


def in_both(*steps: str, **words: Any) -> Callable[[Any], None]:
    """Decorator: a mistake that is made in either norm."""

    def register(wrong: Any) -> None:
        for norm in ("rms_norm", "layer_norm"):
            full = [f"{norm}.{step}" for step in steps]
            mistake(*full, **words, step=NORM[norm])(wrong)

    return register


# ---- mistakes: eps -------------------------------------------------------------------------------


def matters(s: State, eps: float) -> bool:
    """Whether this eps makes a difference to any row, compared with none at all."""
    visible = {8: 1e-9, 4: 1e-4}.get(s.size.itemsize, 5e-3)
    return bool((eps > visible * s.size).any())


@in_both(
    "add_eps",
    title="eps is missing, or much too small",
    cause="Where a row is nearly all zeros, nothing keeps the division from blowing it up.",
    fix="Add the eps of the checkpoint's config to the mean of the squares, under the root.",
)
def no_eps(s: State) -> None:
    pass


@in_both(
    "add_eps",
    "root",
    title="eps is added outside the root",
    cause="sqrt(mean) + eps instead of sqrt(mean + eps).",
    fix="Add eps to the mean of the squares before the root is taken.",
)
class EpsOutsideRoot:
    @staticmethod
    def add_eps(s: State) -> None:
        pass

    @staticmethod
    def root(s: State) -> None:
        s.size = np.sqrt(s.size) + s.run.dtype(s.eps)


@in_both(
    "add_eps",
    title="eps is a lower bound instead of a summand",
    cause="max(mean, eps) changes only the smallest rows; the formula adds eps to every one.",
    fix="Write mean + eps.",
    rare=True,
)
def eps_as_a_bound(s: State) -> None:
    if (s.size < s.eps).any():
        s.size = np.maximum(s.size, s.run.dtype(s.eps))
    else:  # as if it were missing
        add_eps(s)


def with_eps(eps: float | None) -> Callable[[State], None]:
    """Another eps, or the square of the right one; unless it is as good as none."""

    def other(s: State) -> None:
        wrong = s.eps**2 if eps is None else eps
        s.size = s.size + s.run.dtype(wrong if matters(s, wrong) else s.eps)

    return other


in_both(
    "add_eps",
    name="eps_squared",
    title="eps is squared",
    cause="eps ** 2 under the root is the eps of a formula that adds it outside.",
    fix="Add eps itself to the mean of the squares.",
    rare=True,
)(with_eps(None))

for label in ("1e-03", "1e-04", "1e-05", "1e-06", "1.19e-07", "1e-08", "1e-12"):
    value = 2.0**-23 if label == "1.19e-07" else float(label)
    in_both(
        "add_eps",
        name=f"eps_{label}",
        title=f"eps is {label} instead of the one that is asked for",
        cause="Libraries have their own defaults (PyTorch: 1e-5 in LayerNorm, 1.19e-7 in RMSNorm), "
        "and so do models (Llama 2 and 3: 1e-5; Qwen: 1e-6).",
        fix="Hand over the eps that the checkpoint's config gives as norm_eps or rms_norm_eps.",
        rare=label not in ("1e-05", "1e-06"),
    )(with_eps(value))


# ---- mistakes: the size of a row -----------------------------------------------------------------


@in_both(
    "average",
    title="the sum of the squares is used instead of their mean",
    cause="That divides by the length of the vector (its L2 norm), sqrt(n) times too much.",
    fix="Take the mean over the last axis.",
)
def sum_for_mean(s: State) -> None:
    s.size = np.sum(s.squares, axis=-1, keepdims=True, dtype=s.squares.dtype)


@in_both(
    "average",
    title="the squares are averaged over n - 1 instead of n",
    cause="torch.std, torch.var and ddof=1 estimate the spread of a population; a norm measures "
    "the row itself.",
    fix="Divide by n: unbiased=False (correction=0) in PyTorch, ddof=0 in numpy.",
)
def n_minus_one(s: State) -> None:
    n = s.squares.shape[-1]
    s.size = np.sum(s.squares, axis=-1, keepdims=True, dtype=s.squares.dtype) / s.run.dtype(n - 1)


@in_both(
    "root",
    title="the square root is missing",
    cause="The row is divided by the mean of its squares instead of by the root of it.",
    fix="Divide by np.sqrt(mean + eps), or multiply by its reciprocal.",
)
def no_root(s: State) -> None:
    pass


@in_both(
    "divide",
    title="multiplied by the root instead of divided",
    cause="x * rsqrt(y) and x / sqrt(y) are the same; x * sqrt(y) is not.",
    fix="Divide by np.sqrt(mean + eps), or multiply by 1 / np.sqrt(mean + eps).",
)
def multiplied_by_root(s: State) -> None:
    s.out = s.h * s.size


@in_both(
    "divide",
    title="x is not normalised, only multiplied by the weight",
    cause="The division is missing, or its result is not used.",
    fix="Divide x by np.sqrt(mean + eps) first.",
)
def not_divided(s: State) -> None:
    s.out = s.h


@in_both(
    "square",
    title="the absolute values are averaged instead of the squares",
    cause="The mean of |x| is another measure of size than the root of the mean of x².",
    fix="Average x * x, then take the root.",
    rare=True,
)
def absolute_values(s: State) -> None:
    s.squares = np.broadcast_to(mean(np.abs(s.h)) ** 2, s.h.shape)


@mistake(
    "rms_norm.square",
    title="the mean is squared, not the squares averaged",
    cause="x.mean() ** 2 instead of (x ** 2).mean().",
    fix="Square first, then take the mean.",
    step=NORM["rms_norm"],
    rare=True,
)
def mean_then_square(s: State) -> None:
    s.squares = np.broadcast_to(mean(s.h) ** 2, s.h.shape)


# ---- mistakes: one norm for the other ------------------------------------------------------------


@mistake(
    "rms_norm.inputs",
    title="the mean is subtracted: this is LayerNorm",
    cause="RMSNorm leaves out the mean of LayerNorm (and its bias).",
    fix="Divide x itself by the root of the mean of its squares.",
    step=NORM["rms_norm"],
)
def mean_subtracted(s: State) -> None:
    inputs(s)
    s.h = s.h - mean(s.h)


@mistake(
    "rms_norm.square",
    title="x is divided by its standard deviation",
    cause="x.std() measures the distance from the mean; RMSNorm measures the distance from zero.",
    fix="Divide by the root of the mean of x * x.",
    step=NORM["rms_norm"],
)
def standard_deviation(s: State) -> None:
    s.squares = (s.h - mean(s.h)) ** 2


@mistake(
    "layer_norm.centre",
    title="the mean is not subtracted: this is RMSNorm",
    cause="LayerNorm moves the mean of each row to 0 before it measures its spread.",
    fix="Subtract the mean over the last axis from x first.",
    step=NORM["layer_norm"],
)
def mean_not_subtracted(s: State) -> None:
    pass


@mistake(
    "layer_norm.centre",
    "layer_norm.square",
    title="the mean is subtracted from x, but the squares are those of x itself",
    cause="The variance is the mean of (x - mean)², not of x².",
    fix="Square what is left after the mean is subtracted.",
    step=NORM["layer_norm"],
)
class SquaresNotCentred:
    @staticmethod
    def centre(s: State) -> None:
        s.plain, s.h = s.h, s.h - mean(s.h)

    @staticmethod
    def square(s: State) -> None:
        s.squares = s.plain * s.plain


@mistake(
    "layer_norm.square",
    "layer_norm.divide",
    title="the mean is subtracted for the variance only",
    cause="x / std(x): both the spread and what is divided by it belong to x - mean.",
    fix="Divide x - mean by np.sqrt(var + eps).",
    step=NORM["layer_norm"],
)
class OnlyVarianceCentred:
    @staticmethod
    def square(s: State) -> None:
        s.squares = s.h * s.h

    @staticmethod
    def divide(s: State) -> None:
        s.out = s.run.array(s.x) / s.size
