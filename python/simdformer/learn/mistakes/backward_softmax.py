"""The gradients of softmax and log_softmax in steps, and what goes wrong in them.

grad and output of any shape, along one axis; the meaning is that of `reference.backward`.
"""

from simdformer import backward
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.sampling import some_rows
from simdformer.learn.program import Program

softmax_backward = Program(
    "softmax_backward",
    """
    inputs: dp, p, along = array(grad), array(output), axis
    weigh: weighed = p * dp
    add_up: total = weighed.sum(axis=along, keepdims=True)
    subtract: dx = dp - total
    multiply: dx = p * dx
    temper if temperature != 1: dx = dx / real(temperature)
    give: out = dx
    """,
    of=backward.softmax,
    axes=("row", "column"),
    thin=some_rows,
    terms="p * (np.abs(dp) + np.abs(weighed).sum(axis=along, keepdims=True)) / temperature",
)
log_softmax_backward = Program(
    "log_softmax_backward",
    """
    inputs: dy, along = array(grad), axis
    shares: p = np.exp(array(output))
    add_up: total = dy.sum(axis=along, keepdims=True)
    subtract: dx = dy - p * total
    give: out = dx
    """,
    of=backward.log_softmax,
    axes=("row", "column"),
    thin=some_rows,
    terms="np.abs(dy) + p * np.abs(dy).sum(axis=along, keepdims=True)",
)

mistakes(
    """
    softmax_backward.weigh (08 §8) > Sum p * dy along the row: p * (dy - sum(p * dy)).

    sum_of_grad: the sum is that of dy, not of p * dy
        The row sum of the wrong array: dy has to be weighed by the shares.
        | weighed = dp
    sum_of_shares (rare): the sum is that of p, not of p * dy
        The row sum of the wrong array: the shares always sum to 1.
        | weighed = p

    softmax_backward.add_up (08 §8), log_softmax_backward.add_up (08 §8) > Sum along the axis of the
        softmax, with keepdims=True.

    mean_for_sum: the mean along the row is subtracted instead of the sum
        The sum of the Jacobian's row is no mean.
        | ...; total = total / real(p.shape[-1] if along is None else p.shape[along])
    another_axis: the sum runs over another axis
        The axis is counted from the wrong end, or the default is not the one that is meant.
        | along = -2 if along in (-1, p.ndim - 1) else -1; ...
    first_axis (unless another_axis): the sum runs over the first axis
        axis=0 is written where the last axis is meant.
        | unless(p.ndim < 3); along = 0; ...
    sum_of_all: the sum runs over the whole array
        sum() without an axis works on all numbers.
        | along = None; ...
    keepdims_lost: the sum of another row is subtracted: keepdims is lost
        Without keepdims an axis is dropped; broadcasting lines the numbers up with another.
        | ...; total = total.squeeze(along)

    softmax_backward.add_up (08 §8) > Sum p * dy along the row.

    largest_for_sum (rare): the largest p * dy of the row is subtracted, not the sum
        max and sum of an axis are written alike.
        | total = weighed.max(axis=along, keepdims=True)

    softmax_backward.subtract (08 §8) > Subtract the row sum from dy: p * (dy - sum(p * dy)).

    row_sum_missing: the row sum is missing: this is p * dy
        Every share depends on every score: raising one lowers all others.
        | dx = dp
    of_sigmoid: this is p * (1 - p) * dy, the derivative of a sigmoid
        It is the diagonal of the Jacobian only; the other shares move as well.
        | dx = (1 - p) * dp
    first_term_missing: dy is missing in front: this is -p * sum(p * dy)
        The Jacobian is diag(p) - p pᵀ: both terms.
        | dx = -total
    row_sum_added: the row sum is added instead of subtracted
        The Jacobian is diag(p) - p pᵀ.
        | dx = dp + total
    negated: the sign is flipped: p * (sum - dy)
        The two terms of the bracket are swapped.
        | dx = total - dp

    softmax_backward.multiply (08 §8) > Multiply the bracket by p.

    shares_missing: the factor p in front is missing
        Both terms of the Jacobian have it: p_i (1 at i = j, minus p_j).
        | pass
    shares_pulled_out (rare): p stands outside of the sum: p * (dy - p * sum(dy))
        Each dy is weighed by its own share: p cannot be pulled out of the sum.
        | dx = p * (dp - p * dp.sum(axis=along, keepdims=True))
    row_sum_outside (rare): p multiplies dy only: p * dy - sum(p * dy)
        The brackets: p * (dy - sum).
        | dx = weighed - total
    shares_squared (rare): p multiplies twice
        p is in the sum and in front, and nowhere else.
        | dx = p * p * dx

    softmax_backward.inputs (08 §8) > The second argument of the backward is the softmax's output.

    softmax_again: softmax is applied to the shares once more
        The function took the output for scores.
        | ...; p = np.exp(p) / np.exp(p).sum(axis=along, keepdims=True)

    softmax_backward.temper (08 §8) > Divide by the temperature, as the forward divides the scores.

    no_temperature: the temperature is missing
        The last link of the chain rule: the scores were divided by it.
        | pass
    temperature_multiplied: it is multiplied by the temperature instead of divided
        The scores were divided by it, so the gradient is too.
        | dx = dx * real(temperature)
    temperature_twice: it is divided by the temperature twice
        The chain rule has it once.
        | ...; dx = dx / real(temperature)

    softmax_backward.give (08 §8) > softmax: p * (dy - sum(p * dy)).

    of_cross_entropy: this is p - dy: dy stands for the target of a cross entropy
        p - target is the gradient of the loss; here any dy comes in.
        | out = p - dp

    of_log_softmax: this is log_softmax's gradient
        dy - p * sum(dy) belongs to the logarithm of the softmax.
        | out = dp - p * dp.sum(axis=along, keepdims=True)

    log_softmax_backward.shares (08 §8) > The output is a logarithm: p is exp of it.

    output_for_shares: the output, a logarithm, stands for the shares
        exp is missing.
        | p = array(output)
    softmax_again (rare): softmax is applied to the output's exponentials again
        exp of the output sums to one already.
        | p = np.exp(array(output)); p = np.exp(p) / np.exp(p).sum(axis=along, keepdims=True)

    log_softmax_backward.subtract (08 §8) > dy - p * sum(dy).

    sum_missing: the sum is missing: this is dy - p
        p is multiplied by the sum of the row of dy.
        | dx = dy - p
    sum_of_weighed: the sum is that of p * dy, as for softmax
        log_softmax sums dy as it is.
        | dx = dy - p * (p * dy).sum(axis=along, keepdims=True)
    of_diagonal: this is dy * (1 - p): the diagonal only
        Every number of a row depends on every score.
        | dx = dy * (1 - p)
    shares_missing: p is missing: the sum is subtracted as it is
        The derivative of log sum exp is the softmax.
        | dx = dy - total
    sum_added: the second term is added instead of subtracted
        y = x - log sum exp x has a minus.
        | dx = dy + p * total
    of_cross_entropy: this is p - dy: dy stands for the target of a cross entropy
        p - target is the gradient of the loss; here any dy comes in.
        | dx = p - dy
    of_softmax: this is softmax's gradient
        p * (dy - sum(p * dy)) belongs to the shares themselves.
        | dx = p * (dy - (p * dy).sum(axis=along, keepdims=True))
    shares_in_front: p multiplies both terms: p * (dy - sum(dy))
        dy stands without it: y = x - log sum exp x.
        | dx = p * (dy - total)
    passed_through: the gradient is passed through
        The second term, p * sum(dy), is missing.
        | dx = dy
    """
)
