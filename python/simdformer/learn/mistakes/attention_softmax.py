"""What goes wrong in the softmax of attention, and in what is handed out besides."""

import math

import ml_dtypes
import numpy as np

from simdformer.learn.mistakes.attention import empty, over, results
from simdformer.learn.program import State, mistake

SOFTMAX = "01 §1"
LAST_AXIS = "Take the softmax over the last axis of the scores."

# ---- softmax -------------------------------------------------------------------------------------


@mistake(
    "attention.softmax",
    title="the softmax runs over the queries, not over the keys",
    cause="Another axis: the columns sum to one, while each query should give away one in total.",
    fix=LAST_AXIS,
    step=SOFTMAX,
)
def softmax_over_queries(s: State) -> None:
    over(s, -2)


@mistake(
    "attention.softmax",
    title="the softmax runs over the heads",
    cause="dim=1 is the axis of the heads once they are split.",
    fix=LAST_AXIS,
    step=SOFTMAX,
)
def softmax_over_heads(s: State) -> None:
    over(s, -3)


@mistake(
    "attention.softmax",
    title="the softmax runs over the first axis",
    cause="axis=0 is the batch, or the heads.",
    fix=LAST_AXIS,
    step=SOFTMAX,
    rare=True,
)
def softmax_over_first_axis(s: State) -> None:
    over(s, 0 if not s.no_heads else -2)


@mistake(
    "attention.softmax",
    title="the softmax runs over all scores at once",
    cause="max() and sum() without an axis.",
    fix="Give both axis=-1, keepdims=True.",
    step=SOFTMAX,
    rare=True,
)
def softmax_over_everything(s: State) -> None:
    over(s, None)


@mistake(
    "attention.softmax",
    title="exp overflows, because the largest score is not subtracted",
    cause="exp(89) does not fit into a float32, nor exp(12) into a float16; inf/inf is NaN.",
    fix="Subtract the maximum of each row before exp; it changes nothing else.",
    step=SOFTMAX,
)
def no_shift(s: State) -> None:
    exponentials = np.exp(s.scores)
    total = exponentials.sum(axis=-1, keepdims=True) + np.exp(s.sink)
    s.weights, s.lse = exponentials / total, np.log(total)[..., 0]


@mistake(
    "attention.softmax",
    title="there is no softmax",
    cause="The scores themselves average the values.",
    fix="Turn the scores into shares first: softmax over the last axis.",
    step=SOFTMAX,
)
def no_softmax(s: State) -> None:
    over(s, -1)
    s.weights = s.scores


@mistake(
    "attention.softmax",
    title="the exponentials are not divided by their sum",
    cause="exp alone makes numbers positive; shares also sum to one.",
    fix="Divide by the sum over the last axis, keepdims=True.",
    step=SOFTMAX,
)
def not_divided(s: State) -> None:
    over(s, -1)
    s.weights = np.exp(s.scores - s.scores.max(axis=-1, keepdims=True))


@mistake(
    "attention.softmax",
    title="softmax is applied twice",
    cause="The shares go through softmax again: they become nearly equal.",
    fix="Apply it once.",
    step=SOFTMAX,
)
def softmax_twice(s: State) -> None:
    over(s, -1)
    again = np.exp(s.weights)
    s.weights = again / again.sum(axis=-1, keepdims=True)


@mistake(
    "attention.softmax",
    title="the logarithm of the shares is taken",
    cause="log_softmax is what losses are made of; attention needs the shares.",
    fix="Use softmax.",
    step=SOFTMAX,
    rare=True,
)
def log_softmax(s: State) -> None:
    over(s, -1)
    s.weights = np.log(s.weights)


@mistake(
    "attention.softmax",
    title="powers of 2 are taken instead of powers of e",
    cause="exp2 is the faster instruction, but the scores must then be multiplied by log2(e).",
    fix="Use exp, or exp2(scores * 1.442695).",
    step=SOFTMAX,
    rare=True,
)
def powers_of_two(s: State) -> None:
    s.scores = s.scores * s.run.dtype(math.log(2))
    over(s, -1)


def rounded_softmax(name: str, dtype: type) -> None:
    @mistake(
        "attention.softmax",
        name=f"softmax_in_{name}",
        title=f"the softmax is computed in {name}",
        cause=f"Scores rounded to {name} lose their last digits before exp makes them large.",
        fix="Take the softmax in float32, and round the result if you must.",
        step=SOFTMAX,
        rare=True,
    )
    def rounded(s: State) -> None:
        s.scores = s.scores.astype(dtype).astype(s.run.dtype)
        over(s, -1)
        s.weights = s.weights.astype(dtype).astype(s.run.dtype)


rounded_softmax("float16", np.float16)
rounded_softmax("bfloat16", ml_dtypes.bfloat16)


@mistake(
    "attention.sink",
    title="the sinks are forgotten",
    cause="A sink is one more score of each head: it takes a share, and adds no value.",
    fix="Add exp(sink - maximum) to the denominator.",
    step=SOFTMAX,
)
def no_sinks(s: State) -> None:
    s.sink = s.run.array(-np.inf).reshape(1, 1, 1)


@mistake(
    "attention.softmax",
    title="the sink is added to the denominator as it is, without exp",
    cause="A sink is a score; the denominator adds up exponentials.",
    fix="Add exp(sink - maximum) to the denominator.",
    step=SOFTMAX,
)
def sink_without_exp(s: State) -> None:
    over(s, -1)
    highest = s.scores.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(s.scores - highest)
    added = 0 if s.sinks is None else s.sink
    s.weights = exponentials / (exponentials.sum(axis=-1, keepdims=True) + added)


# ---- results -------------------------------------------------------------------------------------


@mistake(
    "attention.results",
    title="the shares come before the output",
    cause="The order of the results is output, weights, scores, lse.",
    fix="Give the output first.",
    step="01 §2",
)
def results_swapped(s: State) -> None:
    results(s)
    if isinstance(s.out, tuple):
        s.out = (s.out[1], s.out[0], *s.out[2:])


@mistake(
    "attention.hide",
    "attention.empty",
    "attention.softmax",
    title="the scores are handed out before the mask",
    cause="Scores are what goes into the softmax: scaled, and -inf where hidden.",
    fix="Hand them out after masking.",
    step="01 §3",
)
class ScoresBeforeMask:
    @staticmethod
    def hide(s: State) -> None:
        s.plain = s.scores
        s.scores = np.where(s.visible, s.scores, s.run.dtype(-np.inf))

    @staticmethod
    def softmax(s: State) -> None:
        over(s, -1)

    @staticmethod
    def empty(s: State) -> None:
        empty(s)
        s.scores = s.plain


@mistake(
    "attention.softmax",
    title="the lse lacks the maximum that was subtracted",
    cause="log(sum(exp(scores - maximum))) is smaller than the lse by the maximum.",
    fix="Add the maximum of the row again.",
    step=SOFTMAX,
)
def lse_without_maximum(s: State) -> None:
    over(s, -1)
    s.lse = s.lse - s.scores.max(axis=-1, initial=-np.inf)
