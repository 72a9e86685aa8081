"""RMSNorm and LayerNorm in steps, and what goes wrong in them.

x (...,n), weight and bias (n,); the meaning is that of `reference.rms_norm` and
`reference.layer_norm`. The two share most of their steps, and most of
their mistakes. What goes wrong in axes, weight, bias and bits is in norm_axes.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import Change, Mistakes, first, instead, skip, then
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State

NORM = {"rms_norm": "02 §4", "layer_norm": "04 §3"}
DIVIDE = "Divide by np.sqrt(mean + eps), or multiply by 1 / np.sqrt(mean + eps)."

rms_norm = Program("rms_norm", of=functional.rms_norm, axes=("position", "channel"))

layer_norm = Program("layer_norm", of=functional.layer_norm, axes=("position", "channel"))


def mean(x: Any, axis: Any = -1) -> Any:
    return np.mean(x, axis=axis, keepdims=True, dtype=x.dtype)


@layer_norm.step
@rms_norm.step
def inputs(s: State) -> None:
    s.h, s.w, s.axis = s.run.array(s.x), s.run.array(s.weight), -1


@layer_norm.step
def centre(s: State) -> None:
    s.h = s.h - mean(s.h, s.axis)


@layer_norm.step
@rms_norm.step
def square(s: State) -> None:
    s.squares = s.h * s.h


@layer_norm.step
@rms_norm.step
def average(s: State) -> None:
    s.size = mean(s.squares, s.axis)


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


def in_both(step: str, fix: str) -> Mistakes:
    """What goes wrong in a step of either norm."""
    return Mistakes(*(f"{norm}.{step}" for norm in NORM), fix=fix, see=tuple(NORM.values()))


def of_rms_norm(step: str, fix: str) -> Mistakes:
    return Mistakes(f"rms_norm.{step}", fix=fix, see=NORM["rms_norm"])


def of_layer_norm(step: str, fix: str) -> Mistakes:
    return Mistakes(f"layer_norm.{step}", fix=fix, see=NORM["layer_norm"])


# ---- mistakes: eps -------------------------------------------------------------------------------

in_eps = in_both("add_eps", "Add eps to the mean of the squares, before the root is taken.")


def matters(s: State, eps: float) -> float:
    """This eps, if it makes a difference to any row, compared with none at all."""
    visible = {8: 1e-9, 4: 1e-4}.get(s.size.itemsize, 5e-3)
    if not (eps > visible * s.size).any():
        raise ValueError("then it is as good as missing")
    return eps


def with_eps(eps: float) -> Change:
    return first(eps=lambda s: matters(s, eps))


def eps_as_a_bound(s: State) -> None:
    if not (s.size < s.eps).any():
        raise ValueError("then it is as good as missing")
    s.size = np.maximum(s.size, s.run.dtype(s.eps))


in_eps(
    """
    no_eps: eps is missing, or much too small
        Where a row is nearly all zeros, nothing keeps the division from blowing it up.
        > Add the eps of the checkpoint's config to the mean of the squares, under the root.
    eps_outside_root: eps is added outside the root
        sqrt(mean) + eps instead of sqrt(mean + eps).
    eps_as_a_bound (rare): eps is a lower bound instead of a summand
        max(mean, eps) changes only the smallest rows; the formula adds eps to every one.
    eps_squared (rare): eps is squared
        eps ** 2 under the root is the eps of a formula that adds it outside.
    """,
    no_eps=skip,
    eps_outside_root={"add_eps": skip, "root": then(size=lambda s: s.size + s.run.dtype(s.eps))},
    eps_as_a_bound=eps_as_a_bound,
    eps_squared=first(eps=lambda s: matters(s, s.eps**2)),
)


for label, value in {
    "1e-03": 1e-3,
    "1e-04": 1e-4,
    "1e-05": 1e-5,
    "1e-06": 1e-6,
    "1.19e-07": 2.0**-23,
    "1e-08": 1e-8,
    "1e-12": 1e-12,
}.items():
    in_eps.add(
        f"eps_{label}",
        with_eps(value),
        f"eps is {label} instead of the one that is asked for",
        "Libraries have their own defaults (PyTorch: 1e-5 in LayerNorm, 1.19e-7 in RMSNorm), "
        "and so do models (Llama 2 and 3: 1e-5; Qwen: 1e-6).",
        "Hand over the eps that the checkpoint's config gives as norm_eps or rms_norm_eps.",
        rare=label not in ("1e-05", "1e-06"),
    )

# ---- mistakes: the size of a row -----------------------------------------------------------------


in_both("average", "Take the mean over the last axis: divide by n.")(
    """
    sum_for_mean: the sum of the squares is used instead of their mean
        That divides by the length of the vector (its L2 norm), sqrt(n) times too much.
    n_minus_one: the squares are averaged over n - 1 instead of n
        torch.std, torch.var and ddof=1 estimate the spread of a population; a norm measures the row
        itself.
        > Divide by n: unbiased=False (correction=0) in PyTorch, ddof=0 in numpy.
    """,
    sum_for_mean=then(size=lambda s: s.size * s.run.dtype(s.h.shape[-1])),
    n_minus_one=then(size=lambda s: s.size * s.run.dtype(s.h.shape[-1] / (s.h.shape[-1] - 1))),
)

in_both("root", DIVIDE)(
    """
    no_root: the square root is missing
        The row is divided by the mean of its squares instead of by the root of it.
    """,
    no_root=skip,
)

in_both("divide", DIVIDE)(
    """
    multiplied_by_root: multiplied by the root instead of divided
        x * rsqrt(y) and x / sqrt(y) are the same; x * sqrt(y) is not.
    not_divided: x is not normalised, only multiplied by the weight
        The division is missing, or its result is not used.
    """,
    multiplied_by_root=instead(out=lambda s: s.h * s.size),
    not_divided=instead(out=lambda s: s.h),
)

in_both("square", "Average x * x, then take the root.")(
    """
    absolute_values (rare): the absolute values are averaged instead of the squares
        The mean of |x| is another measure of size than the root of the mean of x².
    """,
    absolute_values=instead(squares=lambda s: np.broadcast_to(mean(np.abs(s.h)) ** 2, s.h.shape)),
)

of_rms_norm("square", "Divide by the root of the mean of x * x.")(
    """
    mean_then_square (rare): the mean is squared, not the squares averaged
        x.mean() ** 2 instead of (x ** 2).mean().
    standard_deviation: x is divided by its standard deviation
        x.std() measures the distance from the mean; RMSNorm measures the distance from zero.
    """,
    mean_then_square=instead(squares=lambda s: np.broadcast_to(mean(s.h) ** 2, s.h.shape)),
    standard_deviation=instead(squares=lambda s: (s.h - mean(s.h)) ** 2),
)

# ---- mistakes: one norm for the other ------------------------------------------------------------


of_rms_norm("inputs", "Divide x itself by the root of the mean of its squares.")(
    """
    mean_subtracted: the mean is subtracted: this is LayerNorm
        RMSNorm leaves out the mean of LayerNorm (and its bias).
    """,
    mean_subtracted=then(h=lambda s: s.h - mean(s.h)),
)

of_layer_norm("centre", "Divide x - mean by np.sqrt(var + eps).")(
    """
    mean_not_subtracted: the mean is not subtracted: this is RMSNorm
        LayerNorm moves the mean of each row to 0 before it measures its spread.
    squares_not_centred: the mean is subtracted from x, but the squares are those of x itself
        The variance is the mean of (x - mean)², not of x².
    only_variance_centred: the mean is subtracted for the variance only
        x / std(x): both the spread and what is divided by it belong to x - mean.
    """,
    mean_not_subtracted=skip,
    squares_not_centred={"square": instead(squares=lambda s: s.run.array(s.x) ** 2)},
    only_variance_centred={"divide": instead(out=lambda s: s.run.array(s.x) / s.size)},
)
