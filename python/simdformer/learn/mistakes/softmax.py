"""Softmax in steps, and what goes wrong in it. x of any shape, along one axis."""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State, mistake

softmax = Program("softmax", of=functional.softmax, axes=("row", "column"))


@softmax.step
def inputs(s: State) -> None:
    s.scores = s.run.array(s.x)
    s.along = s.axis


@softmax.step
def temper(s: State) -> None:
    s.scores = s.scores / s.run.dtype(s.temperature)


@softmax.step
def shift(s: State) -> None:
    """Changes nothing but the overflow."""
    s.scores = s.scores - np.max(s.scores, axis=s.along, keepdims=True, initial=-np.inf)


@softmax.step
def exponentiate(s: State) -> None:
    s.exponentials = np.exp(s.scores)


@softmax.step
def add_up(s: State) -> None:
    s.total = s.exponentials.sum(axis=s.along, keepdims=True)


@softmax.step
def divide(s: State) -> None:
    s.out = s.exponentials / s.total


@softmax.thin
def some_rows(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """Some rows, where a row is what lies along the last axis."""
    x = np.asarray(variables["x"])
    last = variables["axis"] in (-1, x.ndim - 1)
    index = rows_of(x.shape, limit) if last else None
    return None if index is None else (variables | {"x": x[index]}, lambda out: out[index])


# ---- mistakes ------------------------------------------------------------------------------------


@mistake(
    "softmax.inputs",
    title="the softmax runs over another axis",
    cause="The axis is counted from the wrong end, or the default is not the one that is meant.",
    fix="Give the axis whose numbers are to sum to one: the last one, -1, in attention.",
    step="01 §1",
)
def another_axis(s: State) -> None:
    inputs(s)
    s.along = -2 if s.along in (-1, s.scores.ndim - 1) else -1


@mistake(
    "softmax.inputs",
    title="the softmax runs over the first axis",
    cause="axis=0 is written where the last axis is meant; with a batch in front it is neither.",
    fix="Give the axis whose numbers are to sum to one: the last one, -1, in attention.",
    step="01 §1",
)
def first_axis(s: State) -> None:
    inputs(s)
    s.along = 0


@mistake(
    "softmax.inputs",
    title="the softmax runs over the whole array at once",
    cause="max() and sum() without an axis work on all numbers.",
    fix="Give max and sum the axis, and keepdims=True.",
    step="01 §1",
)
def no_axis(s: State) -> None:
    inputs(s)
    s.along = None


@mistake(
    "softmax.shift",
    title="the largest score is not subtracted, and exp overflows",
    cause="exp(89) does not fit into a float32, nor exp(12) into a float16; inf/inf is NaN.",
    fix="Subtract the maximum of each row before exp; it changes nothing else.",
    step="01 §1",
)
def no_shift(s: State) -> None:
    pass


@mistake(
    "softmax.shift",
    title="the maximum of the whole array is subtracted, and low rows underflow",
    cause="max() without an axis: a row far below the maximum becomes 0/0.",
    fix="Subtract each row's own maximum: max(axis=axis, keepdims=True).",
    step="01 §1",
)
def shift_by_maximum_of_all(s: State) -> None:
    s.scores = s.scores - s.scores.max(initial=-np.inf)


@mistake(
    "softmax.shift",
    title="the mean is subtracted instead of the maximum, and exp overflows",
    cause="Any shift gives the same shares, but only the maximum keeps every exponent below zero.",
    fix="Subtract the maximum of each row.",
    step="01 §1",
)
def shift_by_mean(s: State) -> None:
    s.scores = s.scores - s.scores.mean(axis=s.along, keepdims=True)


@mistake(
    "softmax.temper",
    title="the temperature multiplies instead of dividing",
    cause="A high temperature should flatten the shares; multiplied, it sharpens them.",
    fix="Divide the scores by the temperature.",
    step="04 §6",
)
def temperature_inverted(s: State) -> None:
    s.scores = s.scores * s.run.dtype(s.temperature)


@mistake(
    "softmax.temper",
    title="the temperature is forgotten",
    cause="The scores go into the softmax as they are.",
    fix="Divide the scores by the temperature first.",
    step="04 §6",
)
def no_temperature(s: State) -> None:
    pass


@mistake(
    "softmax.temper", "softmax.divide",
    title="the temperature divides the shares, not the scores",
    cause="Dividing after the softmax only shrinks the shares; they no longer sum to one.",
    fix="Divide the scores by the temperature before the softmax.",
    step="04 §6",
)  # fmt: skip
class TemperatureAfter:
    @staticmethod
    def temper(s: State) -> None:
        pass

    @staticmethod
    def divide(s: State) -> None:
        s.out = s.exponentials / s.total / s.run.dtype(s.temperature)


@mistake(
    "softmax.divide",
    title="it is the logarithm of the softmax",
    cause="log_softmax is what losses are made of; attention and sampling need the shares.",
    fix="Leave out the logarithm, or take exp of what you have.",
    step="01 §1",
)
def log(s: State) -> None:
    s.out = s.scores - np.log(s.total)


@mistake(
    "softmax.divide",
    title="softmax is applied twice",
    cause="What goes into it is a softmax already, from another place in the code.",
    fix="Apply it once: the second time makes the shares nearly equal.",
    step="01 §1",
)
def twice(s: State) -> None:
    shares = np.exp(s.exponentials / s.total)
    s.out = shares / shares.sum(axis=s.along, keepdims=True)


@mistake(
    "softmax.divide",
    title="the exponentials are not divided by their sum",
    cause="exp alone makes numbers positive; the shares need one more step.",
    fix="Divide by exponentials.sum(axis=axis, keepdims=True).",
    step="01 §1",
)
def not_divided(s: State) -> None:
    s.out = s.exponentials


@mistake(
    "softmax.exponentiate",
    title="the shifted scores are divided by their sum, without exp",
    cause="The shares sum to one, but some are negative, and the top is not preferred.",
    fix="Take exp of the scores before dividing by the sum.",
    step="01 §1",
)
def no_exp(s: State) -> None:
    s.exponentials = s.scores


@mistake(
    "softmax.shift", "softmax.exponentiate",
    title="the scores themselves are divided by their sum, without exp",
    cause="The shares sum to one, but some are negative, and the top is not preferred.",
    fix="Take exp of the scores before dividing by the sum.",
    step="01 §1",
)  # fmt: skip
class OnlyNormalised:
    @staticmethod
    def shift(s: State) -> None:
        pass

    @staticmethod
    def exponentiate(s: State) -> None:
        s.exponentials = s.scores


@mistake(
    "softmax.exponentiate",
    title="powers of 2 are taken instead of powers of e",
    cause="exp2 is the faster instruction, but the scores must then be multiplied by log2(e).",
    fix="Use exp, or exp2(scores * 1.442695).",
    step="01 §1",
)
def powers_of_two(s: State) -> None:
    s.exponentials = np.exp2(s.scores)


@mistake(
    "softmax.temper",
    title="the sign of the scores is turned round",
    cause="exp(-x): the lowest score gets the largest share.",
    fix="Take exp of the scores, not of their negative.",
    step="01 §1",
)
def negated(s: State) -> None:
    temper(s)
    s.scores = -s.scores


@mistake(
    "softmax.add_up", "softmax.divide",
    title="each number is divided by the sum of another axis",
    cause="sum() without keepdims drops an axis; broadcasting lines the sums up with another.",
    fix="Write sum(axis=axis, keepdims=True).",
    step="01 §1",
)  # fmt: skip
class KeepdimsLost:
    @staticmethod
    def add_up(s: State) -> None:
        s.total = s.exponentials.sum(axis=s.along)

    @staticmethod
    def divide(s: State) -> None:
        s.out = s.exponentials / s.total
