"""What goes wrong in the softmax of attention, and in what is handed out besides."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.learn.catalogue import Mistakes, first, skip, then
from simdformer.learn.mistakes.attention import over
from simdformer.learn.program import State

SOFTMAX = "01 §1"


def sum_of(x: Any) -> Any:
    return x.sum(axis=-1, keepdims=True)


def totals(s: State) -> Any:
    return sum_of(np.exp(s.scores - s.scores.max(axis=-1, keepdims=True)))


# ---- softmax -------------------------------------------------------------------------------------

in_softmax = Mistakes(
    "attention.softmax", see=SOFTMAX, fix="Take the softmax over the last axis of the scores, once."
)


def no_shift(s: State) -> None:
    exponentials = np.exp(s.scores)
    total = exponentials.sum(axis=-1, keepdims=True) + np.exp(s.sink)
    s.weights, s.lse = exponentials / total, np.log(total)[..., 0]


def sink_without_exp(s: State) -> None:
    over(s, -1)
    exponentials = np.exp(s.scores - s.scores.max(axis=-1, keepdims=True))
    s.weights = exponentials / (sum_of(exponentials) + (0 if s.sinks is None else s.sink))


in_softmax(
    """
    softmax_over_queries: the softmax runs over the queries, not over the keys
        Another axis: the columns sum to one, while each query should give away one in total.
    softmax_over_heads: the softmax runs over the heads
        dim=1 is the axis of the heads once they are split.
    softmax_over_first_axis (rare): the softmax runs over the first axis
        axis=0 is the batch, or the heads.
    softmax_over_everything (rare): the softmax runs over all scores at once
        max() and sum() without an axis.
        > Give both axis=-1, keepdims=True.
    no_shift: exp overflows, because the largest score is not subtracted
        exp(89) does not fit into a float32, nor exp(12) into a float16; inf/inf is NaN.
        > Subtract the maximum of each row before exp; it changes nothing else.
    no_softmax: there is no softmax
        The scores themselves average the values.
        > Turn the scores into shares first: softmax over the last axis.
    not_divided: the exponentials are not divided by their sum
        exp alone makes numbers positive; shares also sum to one.
        > Divide by the sum over the last axis, keepdims=True.
    softmax_keepdims_lost: keepdims is lost: the exponentials are divided by another query's sum
        Without its last axis the column of sums is spread along the rows; with as many queries as
        keys nothing complains.
        > Write sum(axis=-1, keepdims=True).
    softmax_twice: softmax is applied twice
        The shares go through softmax again: they become nearly equal.
    log_softmax (rare): the logarithm of the shares is taken
        log_softmax is what losses are made of; attention needs the shares.
    powers_of_two (rare): powers of 2 are taken instead of powers of e
        exp2 is the faster instruction, but the scores must then be multiplied by log2(e).
        > Use exp, or exp2(scores * 1.442695).
    sink_without_exp: the sink is added to the denominator as it is, without exp
        A sink is a score; the denominator adds up exponentials.
        > Add exp(sink - maximum) to the denominator.
    lse_without_maximum: the lse lacks the maximum that was subtracted
        log(sum(exp(scores - maximum))) is smaller than the lse by the maximum.
        > Add the maximum of the row again.
    """,
    softmax_over_queries=first(axis=lambda s: -2),
    softmax_over_heads=first(axis=lambda s: -3),
    softmax_over_first_axis=first(axis=lambda s: -2 if s.no_heads else 0),
    softmax_over_everything=first(axis=lambda s: None),
    no_shift=no_shift,
    no_softmax=then(weights=lambda s: s.scores),
    not_divided=then(weights=lambda s: np.exp(s.scores - s.scores.max(axis=-1, keepdims=True))),
    softmax_keepdims_lost=then(weights=lambda s: s.weights * totals(s) / totals(s)[..., 0]),
    softmax_twice=then(weights=lambda s: np.exp(s.weights) / sum_of(np.exp(s.weights))),
    log_softmax=then(weights=lambda s: np.log(s.weights)),
    powers_of_two=first(scores=lambda s: s.scores * s.run.dtype(math.log(2))),
    sink_without_exp=sink_without_exp,
    lse_without_maximum=then(lse=lambda s: s.lse - s.scores.max(axis=-1, initial=-np.inf)),
)


for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):

    def rounded(s: State, dtype: Any = dtype) -> None:
        s.scores = s.scores.astype(dtype).astype(s.run.dtype)
        over(s, -1)
        s.weights = s.weights.astype(dtype).astype(s.run.dtype)

    in_softmax.add(
        f"softmax_in_{name}",
        rounded,
        f"the softmax is computed in {name}",
        f"Scores rounded to {name} lose their last digits before exp makes them large.",
        "Take the softmax in float32, and round the result if you must.",
        rare=True,
    )

Mistakes("attention.sink", see=SOFTMAX)(
    """
    no_sinks: the sinks are forgotten
        A sink is one more score of each head: it takes a share, and adds no value.
        > Add exp(sink - maximum) to the denominator.
    """,
    no_sinks=skip,
)

# ---- results -------------------------------------------------------------------------------------

Mistakes("attention.results", see="01 §2")(
    """
    results_swapped: the shares come before the output
        The order of the results is output, weights, scores, lse.
        > Give the output first.
    scores_before_mask (01 §3): the scores are handed out before the mask
        Scores are what goes into the softmax: scaled, and -inf where hidden.
        > Hand them out after masking.
    """,
    results_swapped=then(
        out=lambda s: (s.out[1], s.out[0], *s.out[2:]) if isinstance(s.out, tuple) else s.out
    ),
    scores_before_mask={
        "hide": first(plain=lambda s: s.scores),
        "results": first(scores=lambda s: s.plain),
    },
)
