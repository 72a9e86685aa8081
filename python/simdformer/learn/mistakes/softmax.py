"""Softmax in steps, and what goes wrong in it. x of any shape, along one axis."""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import Mistakes, instead, skip, then
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State

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

lost_maximum = instead(scores=lambda s: s.scores - s.scores.max(axis=s.along))
lost_sum = instead(total=lambda s: s.exponentials.sum(axis=s.along))

Mistakes(
    "softmax.inputs",
    see="01 §1",
    fix="Give the axis whose numbers are to sum to one: the last one, -1, in attention.",
)(
    """
    another_axis: the softmax runs over another axis
        The axis is counted from the wrong end, or the default is not the one that is meant.
    first_axis: the softmax runs over the first axis
        axis=0 is written where the last axis is meant; with a batch in front it is neither.
    no_axis: the softmax runs over the whole array at once
        max() and sum() without an axis work on all numbers.
        > Give max and sum the axis, and keepdims=True.
    """,
    another_axis=then(along=lambda s: -2 if s.along in (-1, s.scores.ndim - 1) else -1),
    first_axis=then(along=lambda s: 0),
    no_axis=then(along=lambda s: None),
)

Mistakes(
    "softmax.shift",
    see="01 §1",
    fix="Subtract each row's own maximum, max(axis=axis, keepdims=True); it changes nothing else.",
)(
    """
    no_shift: the largest score is not subtracted, and exp overflows
        exp(89) does not fit into a float32, nor exp(12) into a float16; inf/inf is NaN.
    shift_by_maximum_of_all: the maximum of the whole array is subtracted, and low rows underflow
        max() without an axis: a row far below the maximum becomes 0/0.
    shift_by_mean: the mean is subtracted instead of the maximum, and exp overflows
        Any shift gives the same shares, but only the maximum keeps every exponent below zero.
    keepdims_of_maximum_lost: the maximum of another row is subtracted: keepdims is lost
        Without keepdims an axis is dropped; broadcasting lines the numbers up with another.
    keepdims_lost_twice: keepdims is lost in the maximum and in the sum
        as above
        > Write max(axis=axis, keepdims=True), and the same for sum.
    """,
    no_shift=skip,
    shift_by_maximum_of_all=instead(scores=lambda s: s.scores - s.scores.max(initial=-np.inf)),
    shift_by_mean=instead(scores=lambda s: s.scores - s.scores.mean(axis=s.along, keepdims=True)),
    keepdims_of_maximum_lost={"shift": lost_maximum},
    keepdims_lost_twice={"shift": lost_maximum, "add_up": lost_sum},
)

Mistakes(
    "softmax.temper", see="04 §6", fix="Divide the scores by the temperature, before the softmax."
)(
    """
    temperature_inverted: the temperature multiplies instead of dividing
        A high temperature should flatten the shares; multiplied, it sharpens them.
    no_temperature: the temperature is forgotten
        The scores go into the softmax as they are.
    temperature_after: the temperature divides the shares, not the scores
        Dividing after the softmax only shrinks the shares; they no longer sum to one.
    negated (01 §1): the sign of the scores is turned round
        exp(-x): the lowest score gets the largest share.
        > Take exp of the scores, not of their negative.
    """,
    temperature_inverted=instead(scores=lambda s: s.scores * s.run.dtype(s.temperature)),
    no_temperature=skip,
    temperature_after={
        "temper": skip,
        "divide": then(out=lambda s: s.out / s.run.dtype(s.temperature)),
    },
    negated=then(scores=lambda s: -s.scores),
)

Mistakes(
    "softmax.exponentiate", see="01 §1", fix="Take exp of the scores before dividing by the sum."
)(
    """
    no_exp: the shifted scores are divided by their sum, without exp
        The shares sum to one, but some are negative, and the top is not preferred.
    only_normalised: the scores themselves are divided by their sum, without exp
        as above
    powers_of_two: powers of 2 are taken instead of powers of e
        exp2 is the faster instruction, but the scores must then be multiplied by log2(e).
        > Use exp, or exp2(scores * 1.442695).
    """,
    no_exp=instead(exponentials=lambda s: s.scores),
    only_normalised={"shift": skip, "exponentiate": instead(exponentials=lambda s: s.scores)},
    powers_of_two=instead(exponentials=lambda s: np.exp2(s.scores)),
)

Mistakes(
    "softmax.divide", see="01 §1", fix="Divide by exponentials.sum(axis=axis, keepdims=True), once."
)(
    """
    log: it is the logarithm of the softmax
        log_softmax is what losses are made of; attention and sampling need the shares.
        > Leave out the logarithm, or take exp of what you have.
    twice: softmax is applied twice
        What goes into it is a softmax already; the second time makes the shares nearly equal.
    not_divided: the exponentials are not divided by their sum
        exp alone makes numbers positive; the shares need one more step.
    keepdims_lost: each number is divided by the sum of another row: keepdims is lost
        Without keepdims an axis is dropped; broadcasting lines the numbers up with another.
    """,
    log=instead(out=lambda s: s.scores - np.log(s.total)),
    twice=then(out=lambda s: np.exp(s.out) / np.exp(s.out).sum(axis=s.along, keepdims=True)),
    not_divided=instead(out=lambda s: s.exponentials),
    keepdims_lost={"add_up": lost_sum},
)
