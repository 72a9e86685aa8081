"""The gradients of linear in steps, and what goes wrong in them.

grad (...,O), x (...,I), weight (O,I); the meaning is that of `reference.backward`.
"""

from typing import Any

import numpy as np

from simdformer import backward
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes import sampling
from simdformer.learn.mistakes.sampling import Thinned, Variables
from simdformer.learn.program import Program

LEAST = 8  # columns


def rows_of(x: Any) -> Any:
    """(..., n) -> (rows, n)"""
    return x.reshape(-1, x.shape[-1])


def some_parts(variables: Variables, limit: int) -> Thinned | None:
    """Some rows, for the gradient of x; else some columns, for the others sum over all rows."""
    grad, x, weight = (np.asarray(variables[name]) for name in ("grad", "x", "weight"))
    if variables["only"] == 0:
        index = sampling.rows_of(max((grad.shape, x.shape), key=np.prod), limit)
        if index is None:
            return None
        return variables | {"grad": grad[index], "x": x[index]}, lambda out: out[index]
    if max(grad.size, x.size) <= limit:
        return None
    count = max(limit * x.shape[-1] // max(x.size, 1), LEAST)
    outputs, inputs = (np.arange(0, n, -(-n // count)) for n in weight.shape)
    places = np.ix_(outputs, inputs)
    fewer = {"grad": grad[..., outputs], "x": x[..., inputs], "weight": weight[places]}

    def part(out: Any) -> Any:
        kept, shape = (
            ((outputs,), weight.shape[:1]) if variables["only"] == 2 else (places, weight.shape)
        )
        return out[(..., *kept)] if out.shape[-len(shape) :] == shape else out

    return variables | fewer, part


linear_backward = Program(
    "linear_backward",
    """
    inputs: dy, h, w = array(grad), array(x), array(weight)
    of_x: dx = dy @ w
    of_weight: dw = rows_of(dy).T @ rows_of(h)
    of_bias: db = rows_of(dy).sum(axis=0)
    give: out = dx, dw, db
    """,
    calls=(rows_of,),
    of=backward.linear,
    axes=("sequence", "row", "channel"),
    thin=some_parts,
)
mistakes(
    """
    linear_backward.of_x (08 §4) > Multiply by the weight (O,I) as it is: dy @ w.

    weight_transposed: dx multiplies by the transposed weight, as the forward does
        y = x @ w.T turns round on the way back: dx = dy @ w; shapes tell only where I != O.
        | dx = dy @ w.T
    forward_again (rare): x stands for dy: this is x @ w
        dx is made of the gradient that comes in; shapes tell only where I != O.
        | unless(dy.shape != h.shape); dx = h @ w
    output_itself (rare): this is the forward's output, x @ w.T
        dx is made of the gradient that comes in; shapes tell only where I != O.
        | unless(dy.shape != h.shape); dx = h @ w.T

    linear_backward.of_weight (08 §4) > Fold all leading axes into rows, then dy.T @ x: (O,I).

    transposed: the weight's gradient is transposed: x.T @ dy
        Books write y = x W; checkpoints hold W as (O,I), and its gradient has the same shape.
        | dw = rows_of(h).T @ rows_of(dy)
    batch_kept: the weight's gradient keeps the batch axis: the sum over it is missing
        swapaxes(-1, -2) @ x multiplies the matrices of a batch one by one: nothing is summed.
        | unless(dy.ndim < 3); dw = dy.swapaxes(-1, -2) @ h
    last_sequence_only: the weight's gradient is that of the last sequence
        A loop that assigns with = where += is meant, or an index -1.
        | unless(dy.ndim < 3 or len(dy) < 2); dw = rows_of(dy[-1]).T @ rows_of(h[-1])
    last_row_only: the weight's gradient is that of the last row
        A loop over rows that assigns with = where += is meant.
        | unless(dy.size == dy.shape[-1]); dw = rows_of(dy)[-1:].T @ rows_of(h)[-1:]
    first_sequence_only (rare): the weight's gradient is that of the first sequence
        An index 0 on the batch axis.
        | unless(dy.ndim < 3 or len(dy) < 2); dw = rows_of(dy[0]).T @ rows_of(h[0])
    weight_averaged: the weight's gradient is divided by the number of rows
        The mean is in the loss already, and so in dy.
        > Sum over all rows; divide nowhere.
        | unless(dy.size == dy.shape[-1]); ...; dw = dw / real(len(rows_of(dy)))
    weight_averaged_over_batch: the weight's gradient is divided by the batch size
        as above
        > Sum over all rows; divide nowhere.
        | unless(dy.ndim < 3 or len(dy) < 2); ...; dw = dw / real(len(dy))
    input_for_gradient (rare): x stands for dy in the weight's gradient
        x.T @ x has the right shape where inputs and outputs are as many.
        | unless(dy.shape != h.shape); dw = rows_of(h).T @ rows_of(h)
    output_for_input (rare): y stands for x in the weight's gradient
        The wrong saved array: the input belongs there, not the output.
        | unless(dy.shape != h.shape); dw = rows_of(dy).T @ rows_of(h @ w.T)
    output_for_gradient (rare): y stands for dy in the weight's gradient
        The wrong saved array: the output has the shape of its gradient.
        | dw = rows_of(h @ w.T).T @ rows_of(h)
    dx_over_dy: the weight's gradient is made of dx: dy was overwritten
        dx was written into dy's memory before dw was computed.
        > Compute dw before dx takes the place of dy.
        | dw = rows_of(dy @ w).T @ rows_of(h)

    linear_backward.of_bias (08 §4) > Sum dy over all axes but the last.

    bias_sum_of_one_axis: the bias's gradient is summed over one axis only
        sum(0) of (B,T,O) leaves (T,O); the bias is added at each position, too.
        | unless(dy.ndim < 3); db = dy.sum(axis=0)
    bias_sum_over_positions: the bias's gradient is summed over the positions only
        sum(-2) of (B,T,O) leaves (B,O): the sum over the batch is missing.
        | unless(dy.ndim < 3); db = dy.sum(axis=-2)
    bias_of_last_sequence: the bias's gradient is that of the last sequence
        A loop that assigns with = where += is meant, or an index -1.
        | unless(dy.ndim < 3 or len(dy) < 2); db = rows_of(dy[-1]).sum(axis=0)
    bias_averaged: the bias's gradient is a mean, not a sum
        The mean is in the loss already, and so in dy.
        | unless(dy.size == dy.shape[-1]); db = rows_of(dy).mean(axis=0)
    bias_largest (rare): the bias's gradient is the largest of each column, not the sum
        max and sum of an axis are written alike.
        | db = rows_of(dy).max(axis=0)
    bias_of_dx: the bias's gradient is made of dx: dy was overwritten
        dx was written into dy's memory before db was computed.
        > Compute db before dx takes the place of dy.
        | db = rows_of(dy @ w).sum(axis=0)
    bias_not_summed: the bias's gradient is dy itself
        The bias was broadcast over all rows; its gradient is the sum over them.
        | db = dy
    bias_sum_along_rows (rare): the bias's gradient is summed along each row
        sum(-1) leaves a number for each row; the bias has one for each output.
        | db = dy.sum(axis=-1)
    bias_of_last_row (rare): the bias's gradient is that of the last row
        A loop that assigns with = where += is meant.
        | db = rows_of(dy)[-1]
    """
)
