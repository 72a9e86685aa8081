"""What goes wrong in the masks of attention: those that are given, and how keys are hidden."""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistakes, first, instead, skip, then
from simdformer.learn.mistakes.attention import mask, scale_of
from simdformer.learn.program import State

MASK = "01 §3"
BEFORE = "Set hidden scores to -inf before the softmax: np.where(visible, scores, -np.inf)."


def is_boolean(s: State) -> bool:
    return bool(np.asarray(s.attn_mask).dtype == bool)


def hidden_as(s: State, value: float) -> Any:
    return np.where(s.visible, s.scores, s.run.dtype(value))


def lowered(s: State) -> Any:
    return s.scores + np.where(s.visible, s.run.dtype(0), s.run.dtype(-1e9))


nan_for_nothing = then(
    weights=lambda s: np.where(s.sees, s.weights, s.run.dtype(np.nan)),
    sees=lambda s: np.full((1, 1), True),
)

# ---- the mask that is given ----------------------------------------------------------------------


def mask_inverted(s: State) -> None:
    if is_boolean(s):
        s.visible = s.visible & ~np.asarray(s.attn_mask)
    else:
        s.scores = np.where(np.isneginf(s.run.array(s.attn_mask)), s.scores, s.run.dtype(-np.inf))


def mask_before_scale(s: State) -> None:
    s.attn_mask = s.attn_mask if is_boolean(s) else s.run.array(s.attn_mask) * scale_of(s)
    mask(s)


Mistakes("attention.mask", see=MASK, fix=BEFORE)(
    """
    no_mask: the mask is forgotten
        The scores go into the softmax as they are.
        > Add the mask to the scores, or set hidden ones to -inf.
    mask_transposed: the mask is transposed
        Rows are queries and columns are keys; here it is the other way round.
        > Swap the last two axes of the mask.
    mask_inverted: the mask is inverted: it hides what should be visible
        True means `may attend` here and in torch's attention; masked_fill wants the opposite.
        > Hide where the mask is False: scores.masked_fill(~mask, -inf).
    mask_added_as_numbers: the mask of True and False is added as 1 and 0
        0 hides nothing and 1 is a slightly larger score; hiding takes -inf.
    mask_subtracted: the mask is subtracted
        An additive mask holds -inf where a key is hidden; subtracted, it becomes +inf.
        > Add it.
    mask_multiplied: the scores are multiplied with the mask
        A product with 0 gives a score of 0, which takes its share like any other.
    mask_as_visible: only the sign of the mask counts: its finite numbers are ignored
        An additive mask may hold any numbers, such as the biases of ALiBi.
        > Add the mask to the scores.
    mask_before_scale: the mask is added before the scale, and scaled with the scores
        -inf stays -inf, but finite numbers of the mask shrink by sqrt(D).
        > Scale the scores first, then add the mask.
    first_mask_for_all: all heads and sequences have the mask of the first
        An index 0 on the leading axes of the mask.
        > Let broadcasting line up the mask: (..., H, L, S).
    """,
    no_mask=skip,
    mask_transposed=first(attn_mask=lambda s: np.asarray(s.attn_mask).swapaxes(-1, -2)),
    mask_inverted=mask_inverted,
    mask_added_as_numbers=instead(scores=lambda s: s.scores + s.run.array(s.attn_mask)),
    mask_subtracted=instead(scores=lambda s: s.scores - s.run.array(s.attn_mask)),
    mask_multiplied=instead(scores=lambda s: s.scores * s.run.array(s.attn_mask)),
    mask_as_visible=first(
        attn_mask=lambda s: s.attn_mask if is_boolean(s) else np.asarray(s.attn_mask) >= 0
    ),
    mask_before_scale=mask_before_scale,
    first_mask_for_all=first(
        attn_mask=lambda s: np.reshape(s.attn_mask, (-1, *np.shape(s.attn_mask)[-2:]))[0]
    ),
)

Mistakes("attention.weigh", see=MASK, fix=BEFORE)(
    """
    mask_added_after_softmax: the mask is added to the shares, after the softmax
        The softmax has spent its shares on hidden keys, and -inf times a value is no number.
        > Add the mask to the scores, before the softmax.
    mask_after_softmax: the mask comes after the softmax: the shares no longer sum to one
        The softmax has already given shares to the hidden keys; setting them to 0 loses them.
    hidden_values_leak (03 exercise 3): hidden keys leak: 0 times NaN is NaN
        A share of 0 hides a number, but not a NaN or an infinity; unused cache may hold both.
        > Cut the cache to its length, or set hidden values to 0.
    """,
    mask_added_after_softmax={
        "mask": skip,
        "weigh": first(weights=lambda s: s.weights + s.run.array(s.attn_mask)),
    },
    mask_after_softmax={
        "hide": skip,
        "weigh": first(weights=lambda s: np.where(s.visible, s.weights, s.run.dtype(0))),
    },
    hidden_values_leak=instead(z=lambda s: s.weights @ s.v),
)

# ---- how what is hidden is hidden ----------------------------------------------------------------


def hidden_and_visible_swapped(s: State) -> None:
    if s.visible.all():
        raise ValueError("nothing is hidden")
    s.scores = np.where(s.visible, s.run.dtype(-np.inf), s.scores)


Mistakes("attention.hide", see=MASK, fix=BEFORE)(
    """
    hidden_as_zero: hidden scores are set to 0
        A score of 0 takes its share like any other; tril(scores) does this.
    hidden_as_tiny_number: hidden scores are set to -1e-9, which is nearly 0
        A minus sign in the exponent too many: -1e9 was meant.
    hidden_as_minus_one: hidden scores are set to -1
        A score of -1 still takes a share.
    hidden_as_nan: hidden scores are NaN
        NaN spreads through the sum of the softmax to the whole row.
    hidden_as_plus_infinity: hidden scores are +inf
        inf - inf is NaN; the sign is wrong.
    visible_added (rare): 1 is added to visible scores, 0 to hidden ones
        A mask of ones and zeros is added as it is; it hides nothing.
    zero_times_infinity: 0 times infinity: visible scores become NaN
        (1 - mask) * -inf, or tril(ones) * -inf: 0 * inf is no number.
        > Choose instead of multiplying: np.where(mask, 0, -np.inf), or triu(full(-inf), 1).
    hidden_and_visible_swapped (rare): what should be visible is hidden, and the other way round
        True means `visible`; masked_fill sets the places where its mask is True.
        > Hide where it is False: np.where(visible, scores, -np.inf).
    visible_transposed (rare): visible and hidden are transposed: a key sees its queries
        The axes of the mask are keys, queries; the scores have queries, keys.
        > Swap the last two axes of the mask.
    softcap_after_mask: the softcap comes after the mask: hidden keys get a share
        tanh(-inf) is -1: a hidden score comes out as -softcap, not as -inf.
        > Cap the scores first, then mask them.
    """,
    hidden_as_zero=instead(scores=lambda s: hidden_as(s, 0)),
    hidden_as_tiny_number=instead(scores=lambda s: hidden_as(s, -1e-9)),
    hidden_as_minus_one=instead(scores=lambda s: hidden_as(s, -1)),
    hidden_as_nan=instead(scores=lambda s: hidden_as(s, np.nan)),
    hidden_as_plus_infinity=instead(scores=lambda s: hidden_as(s, np.inf)),
    visible_added=instead(scores=lambda s: s.scores + s.visible.astype(s.run.dtype)),
    zero_times_infinity=instead(
        scores=lambda s: s.scores + (1 - s.visible.astype(s.run.dtype)) * s.run.dtype(-np.inf)
    ),
    hidden_and_visible_swapped=hidden_and_visible_swapped,
    visible_transposed=first(visible=lambda s: s.visible.swapaxes(-1, -2)),
    softcap_after_mask={
        "cap": skip,
        "hide": then(scores=lambda s: s.softcap * np.tanh(s.scores / s.softcap)),
    },
)

Mistakes("attention.hide", see=MASK, fix="Use -inf, and give 0 for a query that sees nothing.")(
    """
    hidden_as_large_number: hidden scores are -1e9: a query that sees no key averages all
        Where every score is -1e9 they are all equal, and the softmax divides the shares evenly.
    hidden_as_lowest_float:
        hidden scores are the lowest float: a query that sees no key averages all
        Where every score is the same they are all equal, and the softmax divides the shares evenly.
    hidden_as_minus_ten_thousand: hidden scores are -10000: a query that sees no key averages all
        Where every score is -10000 they are all equal, and the softmax divides the shares evenly.
    large_number_added: -1e9 is added to hidden scores, and shows where all are hidden
        scores + -1e9 keeps a few digits of the scores: a query that sees no key averages all.
    """,
    hidden_as_large_number=instead(scores=lambda s: hidden_as(s, -1e9)),
    hidden_as_lowest_float=instead(scores=lambda s: hidden_as(s, float(np.finfo(np.float32).min))),
    hidden_as_minus_ten_thousand=instead(scores=lambda s: hidden_as(s, -1e4)),
    large_number_added=instead(scores=lambda s: lowered(s)),
)

Mistakes("attention.empty", see=MASK)(
    """
    nan_where_nothing_is_seen: a query that sees no key gives NaN
        All its scores are -inf: the softmax divides 0 by 0.
        > Give 0 for such a row: np.where(visible.any(-1, keepdims=True), weights, 0).
    """,
    nan_where_nothing_is_seen=nan_for_nothing,
)
