"""Softmax in steps, and what goes wrong in it. x of any shape, along one axis."""

from simdformer import functional
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.sampling import some_rows
from simdformer.learn.program import Program

softmax = Program(
    "softmax",
    """
    inputs: scores, along = array(x), axis
    temper: scores = scores / real(temperature)
    shift:
        # changes nothing but the overflow
        scores = scores - np.max(scores, axis=along, keepdims=True, initial=-np.inf)
    exponentiate: exponentials = np.exp(scores)
    add_up: total = exponentials.sum(axis=along, keepdims=True)
    divide: out = exponentials / total
    """,
    of=functional.softmax,
    axes=("row", "column"),
    thin=some_rows,
)

mistakes(
    """
    softmax.inputs (01 §1) > Give the axis whose numbers are to sum to one: the last one, -1, in
        attention.

    another_axis: the softmax runs over another axis
        The axis is counted from the wrong end, or the default is not the one that is meant.
        | ...; along = -2 if along in (-1, scores.ndim - 1) else -1
    first_axis: the softmax runs over the first axis
        axis=0 is written where the last axis is meant; with a batch in front it is neither.
        | ...; along = 0
    no_axis: the softmax runs over the whole array at once
        max() and sum() without an axis work on all numbers.
        > Give max and sum the axis, and keepdims=True.
        | ...; along = None

    softmax.shift (01 §1) > Subtract each row's own maximum, max(axis=axis, keepdims=True); it
        changes nothing else.

    no_shift: the largest score is not subtracted, and exp overflows
        exp(89) does not fit into a float32, nor exp(12) into a float16; inf/inf is NaN.
        | pass
    shift_by_maximum_of_all: the maximum of the whole array is subtracted, and low rows underflow
        max() without an axis: a row far below the maximum becomes 0/0.
        | scores = scores - scores.max(initial=-np.inf)
    shift_by_mean: the mean is subtracted instead of the maximum, and exp overflows
        Any shift gives the same shares, but only the maximum keeps every exponent below zero.
        | scores = scores - scores.mean(axis=along, keepdims=True)
    keepdims_of_maximum_lost: the maximum of another row is subtracted: keepdims is lost
        Without keepdims an axis is dropped; broadcasting lines the numbers up with another.
        | scores = scores - scores.max(axis=along)
    keepdims_lost_twice: keepdims is lost in the maximum and in the sum
        as above
        > Write max(axis=axis, keepdims=True), and the same for sum.
        | scores = scores - scores.max(axis=along)
        add_up | total = exponentials.sum(axis=along)

    softmax.temper (04 §6) > Divide the scores by the temperature, before the softmax.

    temperature_inverted: the temperature multiplies instead of dividing
        A high temperature should flatten the shares; multiplied, it sharpens them.
        | scores = scores * real(temperature)
    no_temperature: the temperature is forgotten
        The scores go into the softmax as they are.
        | pass
    temperature_after: the temperature divides the shares, not the scores
        Dividing after the softmax only shrinks the shares; they no longer sum to one.
        | pass
        divide | ...; out = out / real(temperature)
    negated (01 §1): the sign of the scores is flipped
        exp(-x): the lowest score gets the largest share.
        > Take exp of the scores, not of their negative.
        | ...; scores = -scores

    softmax.exponentiate (01 §1) > Take exp of the scores before dividing by the sum.

    no_exp: the shifted scores are divided by their sum, without exp
        The shares sum to one, but some are negative, and the top is not preferred.
        | exponentials = scores
    only_normalised: the scores themselves are divided by their sum, without exp
        as above
        shift | pass
        | exponentials = scores
    powers_of_two: powers of 2 are taken instead of powers of e
        exp2 is the faster instruction, but the scores must then be multiplied by log2(e).
        > Use exp, or exp2(scores * 1.442695).
        | exponentials = np.exp2(scores)

    softmax.divide (01 §1) > Divide by exponentials.sum(axis=axis, keepdims=True), once.

    log: it is the logarithm of the softmax
        log_softmax is what losses are made of; attention and sampling need the shares.
        > Leave out the logarithm, or take exp of what you have.
        | out = scores - np.log(total)
    twice: softmax is applied twice
        What goes into it is a softmax already; the second time makes the shares nearly equal.
        | ...; out = np.exp(out) / np.exp(out).sum(axis=along, keepdims=True)
    one_hot: the largest score gets everything: this is argmax, not softmax
        A one at the largest score and zeros elsewhere; softmax leaves a share for all of them.
        > Divide exp of all scores by their sum.
        | out = (scores == scores.max(axis=along, keepdims=True)).astype(real)
    not_divided: the exponentials are not divided by their sum
        exp alone makes numbers positive; the shares need one more step.
        | out = exponentials
    keepdims_lost: each number is divided by the sum of another row: keepdims is lost
        Without keepdims an axis is dropped; broadcasting lines the numbers up with another.
        add_up | total = exponentials.sum(axis=along)
    keepdims_lost_unshifted (unless softmax.no_shift):
        keepdims is lost and no maximum subtracted: another row's sum
        exp(x) / exp(x).sum(axis): without keepdims an axis is dropped, and broadcasting lines the
        numbers up with another.
        > Subtract max(axis=axis, keepdims=True) first, and divide by sum(axis=axis, keepdims=True).
        shift | pass
        add_up | total = exponentials.sum(axis=along)
    """
)
