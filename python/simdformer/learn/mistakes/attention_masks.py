"""What goes wrong in the masks of attention: those that are given, and how keys are hidden."""

from typing import Any

import numpy as np

from simdformer.learn.mistakes.attention import weigh
from simdformer.learn.program import State, mistake

MASK = "01 §3"
BEFORE = "Set hidden scores to -inf before the softmax: np.where(visible, scores, -np.inf)."
INFINITY = "Use -inf, and give 0 for a query that sees nothing."


def has_mask(s: State, kind: type) -> bool:
    return s.attn_mask is not None and (np.asarray(s.attn_mask).dtype == bool) == (kind is bool)


def hidden_as(s: State, value: Any) -> None:
    s.scores = np.where(s.visible, s.scores, s.run.dtype(value))


# ---- the mask that is given ----------------------------------------------------------------------


@mistake(
    "attention.mask",
    title="the mask is forgotten",
    cause="The scores go into the softmax as they are.",
    fix="Add the mask to the scores, or set hidden ones to -inf.",
    step=MASK,
)
def no_mask(s: State) -> None:
    pass


@mistake(
    "attention.mask",
    title="the mask is transposed",
    cause="Rows are queries and columns are keys; here it is the other way round.",
    fix="Swap the last two axes of the mask.",
    step=MASK,
)
def mask_transposed(s: State) -> None:
    if has_mask(s, bool):
        s.visible = s.visible & np.asarray(s.attn_mask).swapaxes(-1, -2)
    elif s.attn_mask is not None:
        s.scores = s.scores + s.run.array(s.attn_mask).swapaxes(-1, -2)


@mistake(
    "attention.mask",
    title="the mask is inverted: it hides what should be visible",
    cause="True means `may attend` here and in torch's attention; masked_fill wants the opposite.",
    fix="Hide where the mask is False: scores.masked_fill(~mask, -inf).",
    step=MASK,
)
def mask_inverted(s: State) -> None:
    if has_mask(s, bool):
        s.visible = s.visible & ~np.asarray(s.attn_mask)
    elif s.attn_mask is not None:
        s.scores = np.where(np.isneginf(s.run.array(s.attn_mask)), s.scores, s.run.dtype(-np.inf))


@mistake(
    "attention.mask",
    title="the mask of True and False is added as 1 and 0",
    cause="0 hides nothing and 1 is a slightly larger score; hiding takes -inf.",
    fix=BEFORE,
    step=MASK,
)
def mask_added_as_numbers(s: State) -> None:
    if s.attn_mask is not None:
        s.scores = s.scores + s.run.array(s.attn_mask)


@mistake(
    "attention.mask",
    title="the mask is subtracted",
    cause="An additive mask holds -inf where a key is hidden; subtracted, it becomes +inf.",
    fix="Add it.",
    step=MASK,
)
def mask_subtracted(s: State) -> None:
    if s.attn_mask is not None:
        s.scores = s.scores - s.run.array(s.attn_mask)


@mistake(
    "attention.mask",
    title="the scores are multiplied with the mask",
    cause="A product with 0 gives a score of 0, which takes its share like any other.",
    fix=BEFORE,
    step=MASK,
)
def mask_multiplied(s: State) -> None:
    if s.attn_mask is not None:
        s.scores = s.scores * s.run.array(s.attn_mask)


@mistake(
    "attention.mask",
    title="only the sign of the mask counts: its finite numbers are ignored",
    cause="An additive mask may hold any numbers, such as the biases of ALiBi.",
    fix="Add the mask to the scores.",
    step=MASK,
)
def mask_as_visible(s: State) -> None:
    if has_mask(s, float):
        hidden = s.run.array(s.attn_mask) < 0
        s.scores = np.where(hidden, s.run.dtype(-np.inf), s.scores)
    elif s.attn_mask is not None:
        s.visible = s.visible & np.asarray(s.attn_mask)


@mistake(
    "attention.scale",
    "attention.mask",
    title="the mask is added before the scale, and scaled with the scores",
    cause="-inf stays -inf, but finite numbers of the mask shrink by sqrt(D).",
    fix="Scale the scores first, then add the mask.",
    step=MASK,
)
class MaskBeforeScale:
    @staticmethod
    def scale(s: State) -> None:
        s.factor = s.run.dtype(s.q.shape[-1] ** -0.5 if s.scale is None else s.scale)
        s.scores = s.scores * s.factor

    @staticmethod
    def mask(s: State) -> None:
        if has_mask(s, bool):
            s.visible = s.visible & np.asarray(s.attn_mask)
        elif s.attn_mask is not None:
            s.scores = s.scores + s.run.array(s.attn_mask) * s.factor


@mistake(
    "attention.mask",
    "attention.weigh",
    title="the mask is added to the shares, after the softmax",
    cause="The softmax has spent its shares on hidden keys, and -inf times a value is no number.",
    fix="Add the mask to the scores, before the softmax.",
    step=MASK,
)
class MaskAddedAfterSoftmax:
    @staticmethod
    def mask(s: State) -> None:
        pass

    @staticmethod
    def weigh(s: State) -> None:
        if s.attn_mask is not None:
            s.weights = s.weights + s.run.array(s.attn_mask)
        weigh(s)


@mistake(
    "attention.mask",
    title="all heads and sequences have the mask of the first",
    cause="An index 0 on the leading axes of the mask.",
    fix="Let broadcasting line up the mask: (..., H, L, S).",
    step=MASK,
)
def first_mask_for_all(s: State) -> None:
    if s.attn_mask is None:
        return
    first = np.asarray(s.attn_mask)
    first = first.reshape(-1, *first.shape[-2:])[0]
    if first.dtype == bool:
        s.visible = s.visible & first
    else:
        s.scores = s.scores + s.run.array(first)


# ---- how what is hidden is hidden ----------------------------------------------------------------


@mistake(
    "attention.hide",
    "attention.weigh",
    title="the mask comes after the softmax: the shares no longer sum to one",
    cause="The softmax has already given shares to the hidden keys; setting them to 0 loses them.",
    fix=BEFORE,
    step=MASK,
)
class MaskAfterSoftmax:
    @staticmethod
    def hide(s: State) -> None:
        pass

    @staticmethod
    def weigh(s: State) -> None:
        s.weights = np.where(s.visible, s.weights, s.run.dtype(0))
        weigh(s)


def hidden_by(own: str, value: float, title: str, cause: str, fix: str = BEFORE) -> None:
    @mistake("attention.hide", name=own, title=title, cause=cause, fix=fix, step=MASK)
    def hide(s: State) -> None:
        hidden_as(s, value)


hidden_by(
    "hidden_as_zero",
    0.0,
    "hidden scores are set to 0",
    "A score of 0 takes its share like any other; tril(scores) does this.",
)
hidden_by(
    "hidden_as_tiny_number",
    -1e-9,
    "hidden scores are set to -1e-9, which is nearly 0",
    "A minus sign in the exponent too many: -1e9 was meant.",
)
hidden_by(
    "hidden_as_minus_one",
    -1.0,
    "hidden scores are set to -1",
    "A score of -1 still takes a share.",
)
hidden_by(
    "hidden_as_large_number",
    -1e9,
    "hidden scores are a large negative number, and a query that sees no key averages all of them",
    "Where every score is -1e9 they are all equal, and the softmax divides the shares evenly.",
    INFINITY,
)
hidden_by(
    "hidden_as_lowest_float",
    float(np.finfo(np.float32).min),
    "hidden scores are the lowest float, and a query that sees no key averages all of them",
    "Where all scores are the same the softmax divides the shares evenly.",
    INFINITY,
)
hidden_by(
    "hidden_as_minus_ten_thousand",
    -1e4,
    "hidden scores are -10000, and a query that sees no key averages all of them",
    "Where every score is -10000 they are all equal, and the softmax divides the shares evenly.",
    INFINITY,
)
hidden_by(
    "hidden_as_nan",
    float("nan"),
    "hidden scores are NaN",
    "NaN spreads through the sum of the softmax to the whole row.",
)
hidden_by(
    "hidden_as_plus_infinity",
    float("inf"),
    "hidden scores are +inf",
    "inf - inf is NaN; the sign is wrong.",
)


@mistake(
    "attention.hide",
    title="a large negative number is added to hidden scores, and shows where all are hidden",
    cause="scores + -1e9 keeps a few digits of the scores: a query that sees no key averages all.",
    fix=INFINITY,
    step=MASK,
)
def large_number_added(s: State) -> None:
    s.scores = s.scores + np.where(s.visible, s.run.dtype(0), s.run.dtype(-1e9))


@mistake(
    "attention.hide",
    title="1 is added to visible scores, 0 to hidden ones",
    cause="A mask of ones and zeros is added as it is; it hides nothing.",
    fix=BEFORE,
    step=MASK,
    rare=True,
)
def visible_added(s: State) -> None:
    s.scores = s.scores + s.visible.astype(s.run.dtype)


@mistake(
    "attention.hide",
    title="0 times infinity: visible scores become NaN",
    cause="(1 - mask) * -inf, or tril(ones) * -inf: 0 * inf is no number.",
    fix="Choose instead of multiplying: np.where(mask, 0, -np.inf), or triu(full(-inf), 1).",
    step=MASK,
)
def zero_times_infinity(s: State) -> None:
    s.scores = s.scores + (1 - s.visible.astype(s.run.dtype)) * s.run.dtype(-np.inf)


@mistake(
    "attention.hide",
    title="what should be visible is hidden, and the other way round",
    cause="True means `visible`; masked_fill sets the places where its mask is True.",
    fix="Hide where it is False: np.where(visible, scores, -np.inf).",
    step=MASK,
    rare=True,
)
def hidden_and_visible_swapped(s: State) -> None:
    if s.visible.all():
        raise ValueError("nothing is hidden")
    s.scores = np.where(s.visible, s.run.dtype(-np.inf), s.scores)


@mistake(
    "attention.hide",
    title="visible and hidden are transposed: a key sees its queries",
    cause="The axes of the mask are keys, queries; the scores have queries, keys.",
    fix="Swap the last two axes of the mask.",
    step=MASK,
    rare=True,
)
def visible_transposed(s: State) -> None:
    s.scores = np.where(s.visible.swapaxes(-1, -2), s.scores, s.run.dtype(-np.inf))


@mistake(
    "attention.cap",
    "attention.hide",
    title="the softcap comes after the mask: hidden keys get a share",
    cause="tanh(-inf) is -1: a hidden score comes out as -softcap, not as -inf.",
    fix="Cap the scores first, then mask them.",
    step=MASK,
)
class SoftcapAfterMask:
    @staticmethod
    def cap(s: State) -> None:
        pass

    @staticmethod
    def hide(s: State) -> None:
        hidden_as(s, -np.inf)
        if s.softcap is not None:
            s.scores = s.softcap * np.tanh(s.scores / s.softcap)


@mistake(
    "attention.empty",
    title="a query that sees no key gives NaN",
    cause="All its scores are -inf: the softmax divides 0 by 0.",
    fix="Give 0 for such a row: np.where(visible.any(-1, keepdims=True), weights, 0).",
    step=MASK,
)
def nan_where_nothing_is_seen(s: State) -> None:
    s.sees = np.full((1, 1), True)
    s.weights = np.where((s.scores != -np.inf).any(-1, keepdims=True), s.weights, np.nan)
    s.weights = s.weights.astype(s.run.dtype)


@mistake(
    "attention.weigh",
    title="hidden keys leak: 0 times NaN is NaN",
    cause="A share of 0 hides a number, but not a NaN or an infinity; unused cache may hold both.",
    fix="Cut the cache to its length, or set hidden values to 0.",
    step="03 exercise 3",
)
def hidden_values_leak(s: State) -> None:
    s.z = s.weights @ s.v
