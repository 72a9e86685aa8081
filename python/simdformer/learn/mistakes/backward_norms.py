"""The gradients of RMSNorm and LayerNorm in steps, and what goes wrong in them.

grad, x (...,n), weight and bias (n,); the meaning is that of `reference.backward`. The two share
most of their steps, and most of their mistakes.
"""

from typing import Any

import numpy as np

from simdformer import backward
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.backward_linear import rows_of
from simdformer.learn.mistakes.norms import mean
from simdformer.learn.mistakes.sampling import Thinned, Variables, some_rows
from simdformer.learn.program import Program

WEIGHTED = """
    root: r = 1 / np.sqrt(mean(h * h) + real(eps))
    normalize: h = h * r
    weigh: g = dy if w is None else dy * w
    project: share = mean(g * h)
    subtract: dx = g - h * share
"""


def some_positions(variables: Variables, limit: int) -> Thinned | None:
    """Some rows, for the gradient of x; those of the parameters are sums over all of them."""
    return None if variables["only"] else some_rows(variables, limit)


# h is a difference too, of terms as large as `moved`; its rounding reaches x and weight.
TERMS_OF_LAYER_NORM = """(
    r * (np.abs(g) + mean(np.abs(g)) + moved(x, r, unit) * np.abs(share)
    + np.abs(h) * mean(np.abs(g) * moved(x, r, unit))),
    None if w is None else rows_of(np.abs(dy) * moved(x, r, unit)).sum(axis=0), None
)"""
MOST = 0.1  # of the normalised x, whose size is 1: rounding of its terms excuses no more


def moved(x: Any, r: Any, unit: float) -> Any:
    """How large the terms of the normalised x are: x and its mean, in units of their spread."""
    size = np.abs(x.astype(np.float64))
    return np.minimum(r * (size + mean(size)), MOST / unit)


rms_norm_backward = Program(
    "rms_norm_backward",
    f"""
    inputs: dy, h, w = array(grad), array(x), array(weight)
{WEIGHTED}
    of_x: dx = r * dx
    of_weight: dw = None if w is None else rows_of(dy * h).sum(axis=0)
    give: out = dx, dw
    """,
    calls=(mean, rows_of),
    of=backward.rms_norm,
    axes=("position", "channel"),
    thin=some_positions,
    terms="np.abs(r) * (np.abs(g) + np.abs(h) * mean(np.abs(g * h))), None",
)
layer_norm_backward = Program(
    "layer_norm_backward",
    f"""
    inputs: dy, h, w = array(grad), array(x), array(weight)
    centre: h = h - mean(h)
{WEIGHTED}
    subtract_mean: dx = dx - mean(g)
    of_x: dx = r * dx
    of_weight: dw = None if w is None else rows_of(dy * h).sum(axis=0)
    of_bias: db = None if bias is None else rows_of(dy).sum(axis=0)
    give: out = dx, dw, db
    """,
    calls=(mean, rows_of, moved),
    of=backward.layer_norm,
    axes=("position", "channel"),
    thin=some_positions,
    terms=TERMS_OF_LAYER_NORM,
)

mistakes(
    """
    rms_norm_backward.root (08 §5), layer_norm_backward.root (08 §5) > Use the forward's r: 1 /
        sqrt(mean of squares + eps).

    no_eps: eps is missing in 1 / sqrt(mean + eps)
        The backward needs the same root as the forward.
        | r = 1 / np.sqrt(mean(h * h))
    eps_outside_root (rare, unless no_eps): eps is added outside the root
        sqrt(mean) + eps instead of sqrt(mean + eps).
        | r = 1 / (np.sqrt(mean(h * h)) + real(eps))
    n_minus_one: the squares are averaged over n - 1 instead of n
        ddof=1, and torch.std and var by default, estimate the spread of a population.
        | n = real(h.shape[-1]); r = 1 / np.sqrt(mean(h * h) * n / (n - 1) + real(eps))

    rms_norm_backward.weigh (08 §5), layer_norm_backward.weigh (08 §5) > Begin with g = dy * weight;
        the formula of dx is made of g.

    weight_missing: the weight is missing in x's gradient
        y = h * weight: the way back to h multiplies by the weight first.
        | unless(w is None); g = dy
    offset_missing: 1 is missing in the weight: Gemma multiplies by 1 + weight
        The forward adds 1 to the stored weight, and its backward has to do so too.
        > Multiply dy by what the forward multiplied by.
        | unless(w is None); g = dy * (w - 1)
    offset_added: 1 is added to a weight that has it already
        Gemma's 1 + weight was handed over; the offset belongs there once.
        > Multiply dy by what the forward multiplied by.
        | unless(w is None); g = dy * (w + 1)

    rms_norm_backward.project (08 §5), layer_norm_backward.project (08 §5) > The second term is
        h * mean(g * h), the mean over the last axis of each row.

    sum_for_mean: the second term has the sum over the row instead of the mean
        The 1/n comes from the mean of squares in the forward.
        | ...; share = share * real(h.shape[-1])
    mean_over_rows: the mean of the second term runs over the rows, not along each
        Batch norm's axes: every row is normalised by itself.
        | share = (g * h).mean(axis=tuple(range(g.ndim - 1)), keepdims=True)
    mean_over_first_axis (rare, unless mean_over_rows):
        the mean of the second term runs over the first axis
        axis=0 where the last axis is meant.
        | share = (g * h).mean(axis=0, keepdims=True)
    mean_over_positions (rare): the mean of the second term runs over the positions
        axis=1 of (B,T,n) where the last axis is meant.
        | unless(h.ndim < 3); share = (g * h).mean(axis=-2, keepdims=True)
    mean_over_all: the mean of the second term runs over the whole array
        mean() without an axis works on all numbers.
        | share = (g * h).mean(keepdims=True)
    keepdims_lost: the second term of another row is subtracted: keepdims is lost
        Without keepdims an axis is dropped; broadcasting lines the numbers up with another.
        | ...; share = share[..., 0]
    weight_missing_in_mean: the weight is missing in the second term
        mean(dy * h) for mean(g * h): dy went into the mean without its weight.
        | unless(w is None); share = mean(dy * h)
    share_doubled (rare): the second term is twice as large
        The 2 of the square's derivative and the ½ of the root's cancel.
        | ...; share = 2 * share
    h_missing_in_mean (rare): the second term has mean(g) instead of mean(g * h)
        The derivative of the root is made of the product.
        | share = mean(g)

    rms_norm_backward.subtract (08 §5), layer_norm_backward.subtract (08 §5) > dx is made of
        g - h * mean(g * h).

    second_term_missing: the second term is missing: 1/root is taken for a constant
        r depends on every number of the row, and so each of them has a part in every output.
        | dx = g
    first_term_missing (rare): the first term is missing: this is -r * h * mean(g * h)
        The derivative of the root alone; x also stands before it.
        | dx = -h * share
    second_term_added: the second term is added instead of subtracted
        The derivative of 1 / sqrt has a minus.
        | dx = g + h * share
    weight_twice: the second term is multiplied by the weight once more
        The weight is in g; h stands without it.
        | unless(w is None); dx = g - w * h * share
    weight_pulled_out: the weight stands outside: w * (dy - h * mean(dy * h))
        It cannot be pulled out of the mean.
        | unless(w is None); dx = w * (dy - h * mean(dy * h))
    x_for_h: x stands for the normalised x in the second term
        A factor r is missing there.
        | dx = g - array(x) * share
    r_twice: the second term has r once too often
        x * r**3 is h * r * r: one of them is in h already.
        | dx = g - h * r * share
    h_missing (rare): the normalised x is missing in the second term
        The mean is subtracted as it is.
        | dx = g - share

    rms_norm_backward.subtract (08 §5) > Only layer_norm centres: rms_norm has no mean(g).

    of_layer_norm: this is layer_norm's gradient: mean(g) is subtracted as well
        RMSNorm subtracts no mean on the way there, and none on the way back.
        | ...; dx = dx - mean(g)

    rms_norm_backward.normalize (08 §5) > RMSNorm subtracts no mean: that is LayerNorm.

    length_instead (rare): the root is that of the sum of squares: the length of the row
        These are the right gradients of x / |x|: the mean over n is missing.
        root | r = 1 / np.sqrt((h * h).sum(axis=-1, keepdims=True) + real(eps))
        project | share = (g * h).sum(axis=-1, keepdims=True)
        | h = h * r
    layer_norm_instead: this is the gradient of layer_norm
        These are the right gradients of another norm.
        root | centred = h - mean(h); r = 1 / np.sqrt(mean(centred * centred) + real(eps))
        | h = centred * r
        subtract | dx = g - h * share - mean(g)

    layer_norm_backward.centre (08 §5) > Subtract the mean of each row, there and back.

    rms_norm_instead: this is the gradient of rms_norm: nothing is centred
        These are the right gradients of another norm.
        | pass
        subtract_mean | pass
    batch_norm_instead: this is the gradient of batch norm: mean and root are those of a column
        These are the right gradients of another norm.
        | h = h - rows_of(h).mean(axis=0)
        root | r = 1 / np.sqrt(rows_of(h * h).mean(axis=0) + real(eps))
        project | share = rows_of(g * h).mean(axis=0)
        subtract_mean | dx = dx - rows_of(g).mean(axis=0)

    rms_norm_backward.of_x (08 §5), layer_norm_backward.of_x (08 §5) > Multiply all of it by r.

    r_missing: the factor r is missing in x's gradient
        y = x * r: everything is multiplied by r on the way back.
        | pass
    residual_added (rare): dy itself is added to x's gradient
        The residual goes around the norm; its gradient is added behind it, where the paths meet.
        | dx = r * dx + dy
    divided_by_r: x's gradient is divided by r instead of multiplied
        r is 1 / root: divide by the root, or multiply by r.
        | dx = dx / r

    rms_norm_backward.of_weight (08 §5), layer_norm_backward.of_weight (08 §5) > Sum dy * h over
        all rows, h the normalised x.

    h_missing_in_weight: the normalised x is missing in the weight's gradient
        That is the gradient of a bias.
        | dw = rows_of(dy).sum(axis=0)
    x_for_h_in_weight: the weight's gradient is made of x instead of the normalised x
        y = h * weight: what stands beside the weight is h.
        | dw = rows_of(dy * array(x)).sum(axis=0)
    g_in_weight: the weight itself is in the weight's gradient
        g = dy * weight belongs to x; the weight takes dy.
        | unless(w is None); dw = rows_of(g * h).sum(axis=0)
    weight_not_summed: the weight's gradient is not summed over the rows
        The weight was broadcast over all rows; its gradient is the sum over them.
        | unless(w is None); dw = dy * h
    weight_sum_of_one_axis: the weight's gradient is summed over one axis only
        sum(0) of (B,T,n) leaves (T,n).
        | unless(w is None or h.ndim < 3); dw = (dy * h).sum(axis=0)
    weight_sum_over_positions: the weight's gradient is summed over the positions only
        sum(-2) of (B,T,n) leaves (B,n): the sum over the batch is missing.
        | unless(w is None or h.ndim < 3); dw = (dy * h).sum(axis=-2)
    weight_of_last_sequence: the weight's gradient is that of the last sequence
        A loop that assigns with = where += is meant, or an index -1.
        | unless(w is None or h.ndim < 3 or len(h) < 2); dw = rows_of((dy * h)[-1]).sum(axis=0)
    weight_of_first_sequence (rare): the weight's gradient is that of the first sequence
        An index 0 on the batch axis.
        | unless(w is None or h.ndim < 3 or len(h) < 2); dw = rows_of((dy * h)[0]).sum(axis=0)
    weight_of_last_row (rare): the weight's gradient is that of the last row
        A loop that assigns with = where += is meant.
        | unless(w is None or h.size == h.shape[-1]); dw = rows_of(dy * h)[-1]
    weight_averaged: the weight's gradient is a mean over the rows
        The mean is in the loss already, and so in dy.
        | unless(w is None or h.size == h.shape[-1]); dw = rows_of(dy * h).mean(axis=0)
    weight_largest (rare): the weight's gradient is the largest of each column, not the sum
        max and sum of an axis are written alike.
        | unless(w is None or h.size == h.shape[-1]); dw = rows_of(dy * h).max(axis=0)
    weight_zero: the weight's gradient is zero
        A kernel or layer that leaves it out: the weight never learns.
        | unless(w is None); dw = 0 * w

    layer_norm_backward.project (08 §5) > The second term is h * mean(g * h).

    x_for_h_in_mean: x stands for the normalised x in the mean of the second term
        g * x is not g * h: a factor r is missing.
        | share = mean(g * array(x))

    layer_norm_backward.of_x (08 §5) > Multiply all of it by r.

    r_on_first_term: r multiplies the first term only
        The brackets: r * (g - h * share).
        | dx = r * g - h * share

    layer_norm_backward.of_weight (08 §5) > Centre first: h is (x - mean) * r.

    weight_uncentred: the weight's gradient is made of x * r, without the mean subtracted
        h is (x - mean) * r.
        | dw = rows_of(dy * array(x) * r).sum(axis=0)

    centred_for_h_in_weight: the weight's gradient is made of x - mean: the factor r is missing
        h is (x - mean) * r.
        | dw = rows_of(dy * (array(x) - mean(array(x)))).sum(axis=0)

    layer_norm_backward.subtract_mean (08 §5) > dx = r * (g - mean(g) - h * mean(g * h)).

    mean_missing: mean(g) is not subtracted: the mean is taken for a constant
        Every number of a row moves the row's mean.
        | pass
    mean_added (rare): mean(g) is added instead of subtracted
        x - mean(x) has a minus, there and back.
        | dx = dx + mean(g)
    mean_of_dy: mean(dy) is subtracted instead of mean(g)
        The weight is missing in that mean.
        | unless(w is None); dx = dx - mean(dy)
    weight_pulled_out_of_both: the weight stands outside of both means
        w * r * (dy - mean(dy) - h * mean(dy * h)): it cannot be pulled out of a mean.
        | unless(w is None); dx = w * (dy - mean(dy) - h * mean(dy * h))
    sum_of_g: the sum of g is subtracted instead of mean(g)
        The 1/n comes from the mean in the forward.
        | dx = dx - mean(g) * real(h.shape[-1])
    sums_for_means: both means are sums
        1/n stands before both: the forward has two means.
        project | ...; share = share * real(h.shape[-1])
        | dx = dx - mean(g) * real(h.shape[-1])
    mean_over_rows_of_g: mean(g) runs over the rows, not along each
        Batch norm's axes: every row is normalised by itself.
        | dx = dx - g.mean(axis=tuple(range(g.ndim - 1)), keepdims=True)
    batch_norm: both means run over the rows: this is batch norm's gradient
        as above
        project | share = (g * h).mean(axis=tuple(range(g.ndim - 1)), keepdims=True)
        | dx = dx - g.mean(axis=tuple(range(g.ndim - 1)), keepdims=True)
    both_missing: both means are missing: mean and root are taken for constants
        Both depend on every number of the row.
        subtract | dx = g
        | pass

    layer_norm_backward.of_bias (08 §5) > Sum dy over all axes but the last.

    bias_with_weight: the bias's gradient is multiplied by the weight
        The bias is added behind the weight: its gradient is the sum of dy.
        | unless(w is None); db = rows_of(g).sum(axis=0)
    bias_sum_of_one_axis: the bias's gradient is summed over one axis only
        sum(0) of (B,T,n) leaves (T,n).
        | unless(bias is None or dy.ndim < 3); db = dy.sum(axis=0)
    bias_sum_over_positions: the bias's gradient is summed over the positions only
        sum(-2) of (B,T,n) leaves (B,n): the sum over the batch is missing.
        | unless(bias is None or dy.ndim < 3); db = dy.sum(axis=-2)
    bias_of_last_sequence: the bias's gradient is that of the last sequence
        A loop that assigns with = where += is meant, or an index -1.
        | unless(bias is None or dy.ndim < 3 or len(dy) < 2); db = rows_of(dy[-1]).sum(axis=0)
    bias_averaged: the bias's gradient is a mean over the rows
        The mean is in the loss already, and so in dy.
        | unless(bias is None or dy.size == dy.shape[-1]); db = rows_of(dy).mean(axis=0)
    bias_largest (rare): the bias's gradient is the largest of each column, not the sum
        max and sum of an axis are written alike.
        | unless(bias is None or dy.size == dy.shape[-1]); db = rows_of(dy).max(axis=0)
    bias_not_summed: the bias's gradient is not summed over the rows
        The bias was broadcast over all rows; its gradient is the sum over them.
        | unless(bias is None); db = dy
    """
)
