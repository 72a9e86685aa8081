"""What goes wrong where attention hides keys: masks that are given, how keys are hidden, causality,
windows, padding."""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.attention import reach, scale_of


def wider(window: Any, by: int) -> Any:
    """A window with so many keys more on each of its sides."""
    if np.ndim(window) == 0:
        return window + by
    return tuple(None if side is None else side + by for side in window)


mistakes(
    """
    attention.mask (01 §3) > Set hidden scores to -inf before the softmax: np.where(visible, scores,
        -np.inf).

    no_mask: the mask is forgotten
        The scores go into the softmax as they are.
        > Add the mask to the scores, or set hidden ones to -inf.
        | pass
    mask_transposed: the mask is transposed
        Rows are queries and columns are keys; here it is the other way round.
        > Swap the last two axes of the mask.
        | attn_mask = np.asarray(attn_mask).swapaxes(-1, -2); ...
    mask_inverted: the mask is inverted: it hides what should be visible
        True means `may attend` here and in torch's attention; masked_fill wants the opposite.
        > Hide where the mask is False: scores.masked_fill(~mask, -inf).
        | if is_boolean(attn_mask):
        |     visible = visible & ~np.asarray(attn_mask)
        | else:
        |     scores = np.where(np.isneginf(array(attn_mask)), scores, real(-np.inf))
    mask_added_as_numbers: the mask of True and False is added as 1 and 0
        0 hides nothing and 1 is a slightly larger score; hiding takes -inf.
        | scores = scores + array(attn_mask)
    mask_subtracted: the mask is subtracted
        An additive mask holds -inf where a key is hidden; subtracted, it becomes +inf.
        > Add it.
        | scores = scores - array(attn_mask)
    mask_multiplied: the scores are multiplied with the mask
        A product with 0 gives a score of 0, which takes its share like any other.
        | scores = scores * array(attn_mask)
    mask_as_visible: only the sign of the mask counts: its finite numbers are ignored
        An additive mask may hold any numbers, such as the biases of ALiBi.
        > Add the mask to the scores.
        | attn_mask = attn_mask if is_boolean(attn_mask) else np.asarray(attn_mask) >= 0; ...
    mask_before_scale: the mask is added before the scale, and scaled with the scores
        -inf stays -inf, but finite numbers of the mask shrink by sqrt(D).
        > Scale the scores first, then add the mask.
        | attn_mask = attn_mask if is_boolean(attn_mask) else array(attn_mask) * scale_of(s); ...
    first_mask_for_all: all heads and sequences have the mask of the first
        An index 0 on the leading axes of the mask.
        > Let broadcasting line up the mask: (..., H, L, S).
        | attn_mask = np.reshape(attn_mask, (-1, *np.shape(attn_mask)[-2:]))[0]; ...

    attention.weigh (01 §3) > Set hidden scores to -inf before the softmax: np.where(visible,
        scores, -np.inf).

    mask_added_after_softmax: the mask is added to the shares, after the softmax
        The softmax has spent its shares on hidden keys, and -inf times a value is no number.
        > Add the mask to the scores, before the softmax.
        mask | pass
        | weights = weights + array(attn_mask); ...
    mask_after_softmax: the mask comes after the softmax: the shares no longer sum to one
        The softmax has already given shares to the hidden keys; setting them to 0 loses them.
        hide | pass
        | weights = np.where(visible, weights, real(0)); ...

    attention.weigh_seen (03 exercise 3)

    hidden_values_leak: hidden keys leak: 0 times NaN is NaN
        A share of 0 hides a number, but not a NaN or an infinity; unused cache may hold both.
        > Cut the cache to its length, or set hidden values to 0.
        | z = weights @ v

    attention.hide (01 §3) > Set hidden scores to -inf before the softmax: np.where(visible, scores,
        -np.inf).

    hidden_as_zero: hidden scores are set to 0
        A score of 0 takes its share like any other; tril(scores) does this.
        | scores = np.where(visible, scores, real(0))
    hidden_as_tiny_number: hidden scores are set to -1e-9, which is nearly 0
        A minus sign in the exponent too many: -1e9 was meant.
        | scores = np.where(visible, scores, real(-1e-9))
    hidden_as_minus_one: hidden scores are set to -1
        A score of -1 still takes a share.
        | scores = np.where(visible, scores, real(-1))
    hidden_as_nan: hidden scores are NaN
        NaN spreads through the sum of the softmax to the whole row.
        | scores = np.where(visible, scores, real(np.nan))
    hidden_as_plus_infinity: hidden scores are +inf
        inf - inf is NaN; the sign is wrong.
        | scores = np.where(visible, scores, real(np.inf))
    visible_added (rare): 1 is added to visible scores, 0 to hidden ones
        A mask of ones and zeros is added as it is; it hides nothing.
        | scores = scores + visible.astype(real)
    zero_times_infinity: 0 times infinity: visible scores become NaN
        (1 - mask) * -inf, or tril(ones) * -inf: 0 * inf is no number.
        > Choose instead of multiplying: np.where(mask, 0, -np.inf), or triu(full(-inf), 1).
        | scores = scores + (1 - visible.astype(real)) * real(-np.inf)
    hidden_and_visible_swapped (rare): what should be visible is hidden, and the other way round
        True means `visible`; masked_fill sets the places where its mask is True.
        > Hide where it is False: np.where(visible, scores, -np.inf).
        | unless(visible.all()); scores = np.where(visible, real(-np.inf), scores)
    visible_transposed (rare): visible and hidden are transposed: a key sees its queries
        The axes of the mask are keys, queries; the scores have queries, keys.
        > Swap the last two axes of the mask.
        | visible = visible.swapaxes(-1, -2); ...
    softcap_after_mask: the softcap comes after the mask: hidden keys get a share
        tanh(-inf) is -1: a hidden score comes out as -softcap, not as -inf.
        > Cap the scores first, then mask them.
        cap | pass
        | ...; scores = softcap * np.tanh(scores / softcap)

    attention.hide (01 §3) > Use -inf, and give 0 for a query that sees nothing.

    hidden_as_large_number: hidden scores are -1e9: a query that sees no key averages all
        Where every score is -1e9 they are all equal, and the softmax divides the shares evenly.
        | scores = np.where(visible, scores, real(-1e9))
    hidden_as_lowest_float:
        hidden scores are the lowest float: a query that sees no key averages all
        Where every score is the same they are all equal, and the softmax divides the shares evenly.
        | scores = np.where(visible, scores, real(np.finfo(np.float32).min))
    hidden_as_minus_ten_thousand: hidden scores are -10000: a query that sees no key averages all
        Where every score is -10000 they are all equal, and the softmax divides the shares evenly.
        | scores = np.where(visible, scores, real(-1e4))
    large_number_added: -1e9 is added to hidden scores, and shows where all are hidden
        scores + -1e9 keeps a few digits of the scores: a query that sees no key averages all.
        | scores = scores + np.where(visible, real(0), real(-1e9))

    attention.empty (01 §3)

    nan_where_nothing_is_seen: a query that sees no key gives NaN
        All its scores are -inf: the softmax divides 0 by 0.
        > Give 0 for such a row: np.where(visible.any(-1, keepdims=True), weights, 0).
        | ...; weights = np.where(sees, weights, real(np.nan)); sees = np.full((1, 1), True)

    attention.causal (01 §3) > The diagonal is the last visible key: np.tril(np.ones((L, L), bool)).

    no_causal: the causal mask is forgotten
        Every token sees what comes after it.
        > Hide the keys j > i + offset, or pass is_causal=True.
        | pass
    causal_strict: the causal mask hides one key too many: a token does not see itself
        j < i in place of j <= i: triu with k=0 where k=1 is meant.
        | visible = j < i + offset
    causal_strict_nan: the causal mask hides the token itself: the first sees nothing and is NaN
        j < i in place of j <= i: triu with k=0 where k=1 is meant. A row that is -inf everywhere
        has no softmax.
        | visible = j < i + offset; unless(visible.any(axis=-1).all())
        empty | ...; weights = np.where(sees, weights, real(np.nan)); sees = np.full((1, 1), True)
    causal_strict_uniform: the causal mask hides the token itself: the first averages all
        j < i in place of j <= i: triu with k=0 where k=1 is meant. A row that is the same large
        negative number everywhere has equal shares.
        | visible = j < i + offset; unless(visible.any(axis=-1).all())
        hide | scores = np.where(visible, scores, real(-1e9))
    causal_strict_added: the causal mask hides the token itself: the first one sees them all
        j < i in place of j <= i: triu with k=0 where k=1 is meant. -1e9 is added to all scores of
        its row; in float64 that changes none of its shares.
        | visible = j < i + offset; unless(visible.any(axis=-1).all())
        hide | unless(real != np.float64)
        hide | scores = scores + np.where(visible, real(0), real(-1e9))
    causal_strict_ten_thousand: the causal mask hides the token itself: the first one sees them all
        j < i in place of j <= i: triu with k=0 where k=1 is meant. -10000 is added to all scores of
        its row, which changes none of its shares but by rounding.
        | visible = j < i + offset; unless(visible.any(axis=-1).all())
        hide | scores = scores + np.where(visible, real(0), real(-1e4))
    causal_loose: the causal mask shows one key too many: the next token
        j <= i + 1 in place of j <= i: triu with k=2, or positions that are off by one.
        | visible = j <= i + offset + 1
    causal_reversed: the causal mask shows the future and hides the past
        triu in place of tril, or rows taken for columns.
        > Rows are queries, columns are keys; on and left of the diagonal is visible: np.tril.
        | visible = j >= i + offset
    causal_bottom_right: the causal mask is lined up with the last key, not by the given offset
        Bottom-right alignment, S - L, as in MLX and flash-attn, where another is asked for.
        > Use the offset of the call; torch lines up the first query with the first key, offset 0.
        | offset = S - L; ...
    causal_offset_one_less (03 exercise 3): the offset of the causal mask is off by one
        The first new token stands at the length of the cache, not at its last position.
        > With n tokens in the cache the offset of the next one is n.
        | offset = offset if causal_offset is None else offset - 1; ...

    attention.positions (03 exercise 3)

    no_causal_offset: the causal mask forgets where the queries stand, its offset
        The first query is taken for the first token, though earlier ones are in the cache.
        > Query i may see the keys j <= i + causal_offset.
        | ...; offset = 0

    attention.hide (03 exercise 3) > Let a query see the keys in the cache, and its own.

    only_new_keys: only the new keys are seen: those in the cache are left out
        With a cache a query sees all keys up to its own; here only those of this call take part.
        | unless(S == L); visible = visible & (j >= S - L); ...
    first_key_hidden: the first key is hidden
        An index that begins at 1, as in keys[1:].
        > The first key is number 0; everybody after it may see it.
        | visible = visible & (j > 0); ...

    attention.nothing_hidden (01 §3) > Write is_causal=True in the call, if causal is what you mean.

    causal_not_asked_for: the array is causal, the call is not: is_causal=True is missing
        Without is_causal, or a mask, every query sees all keys, later ones too.
        | unless(is_causal or attn_mask is not None or window is not None); visible = j <= i + S - L

    attention.window (01 §3) > Show the keys j > i - window.

    no_window: the window is forgotten
        Every earlier token is seen, however far away.
        > Hide the keys j <= i - window as well.
        | pass
    window_too_wide: the window is one key too wide
        The token itself counts: `window` keys are seen, i - window is not one of them.
        | window = wider(window, 1); ...
    window_too_narrow: the window is one key too narrow
        The token itself is not counted twice: `window` keys are seen with it.
        | window = wider(window, -1); ...
    window_both_ways: the window looks both ways
        |i - j| < window without the causal mask shows the future too.
        > Combine both: j <= i and j > i - window.
        | unless(not is_causal or np.ndim(window) > 0); visible = np.abs(j - i - offset) < window
    window_to_the_left: the window looks back only
        Without is_causal a window has a right side too.
        > Show the keys |i - j| < window, or i - left <= j <= i + right.
        | unless(is_causal); visible = visible & (j >= i + offset - reach(s)[0]) & (j <= i + offset)

    attention.chunk (01 §3) > Show the keys of the query's own chunk: j // c == i // c.

    no_chunk: the chunks are forgotten
        Every earlier token is seen, those of other chunks too.
        | pass
    chunk_as_window: a sliding window in place of chunks
        The last `chunk` keys are seen, wherever a chunk begins.
        | visible = visible & (j > i + offset - chunk)
    chunk_from_the_first_key: the chunks are counted from the padding
        A text that is padded on the left begins behind it, and so does its first chunk.
        > Count positions from key_starts[b].
        | start = 0; ...

    attention.starts (01 §3) > In sequence b, hide the keys j < key_starts[b].

    no_key_starts: the padding on the left is not hidden: key_starts is forgotten
        The shorter sequences of the batch attend to what only fills them up.
        | pass
    one_key_of_left_padding: one key of the padding is seen
        j >= start - 1 in place of j >= start: the last key of the padding stands at start - 1.
        | visible = visible & (j >= per_sequence(s, key_starts) - 1)
    padding_on_the_right: the padding is hidden at the wrong end
        The sequences are filled up on the left, and the mask hides keys on the right.
        | visible = visible & (j < S - per_sequence(s, key_starts))

    attention.segments (01 §3) > Hide the keys of other texts.

    no_segments: texts that are packed together see each other
        The mask knows where a token stands, not which text it belongs to.
        | pass

    attention.packed (01 §3) > Count positions from where a text begins.

    positions_of_the_row: in packed sequences positions are counted through
        Where earlier texts have more keys than queries, a query's place in the row is not its place
        in the text.
        | ...; offset = 0

    attention.lengths (01 §3) > In sequence b, hide the keys j >= key_lengths[b].

    no_key_lengths: the padding is not hidden: key_lengths is forgotten
        The shorter sequences of the batch attend to what only fills them up.
        | pass
    one_key_of_padding: one key of the padding is seen
        j <= length in place of j < length: keys are counted from 0.
        | visible = visible & (j <= per_sequence(s, key_lengths))
    padding_on_the_left: the padding is hidden at the wrong end
        The sequences are filled up on the right, and the mask hides keys on the left.
        | visible = visible & (j >= S - per_sequence(s, key_lengths))
    length_of_the_first: all sequences have the length of the first
        An index 0 on the batch axis.
        | visible = visible & (j < np.ravel(key_lengths)[0])
    """,
    calls=(reach, scale_of, wider),
)

# What becomes of a query that is left without keys: the steps, and words for the title.
WITHOUT_KEYS = {
    "nan": (
        "NaN",
        "...",
        "...; weights = np.where(sees, weights, real(np.nan)); sees = sees | True",
    ),
    "uniform": ("all alike", "scores = np.where(visible, scores, real(-1e9))", "..."),
}
for kind, (word, hide, empty) in WITHOUT_KEYS.items():
    mistakes(
        f"""
        attention.hide (01 §3) > Hide where the mask is False: scores.masked_fill(~mask, -inf).

        inverted_{kind}: the mask is inverted, and rows without keys are {word}
            masked_fill sets the places where its mask is True, and tril is True for what should be
            visible.
            | unless(visible.all()); visible = ~visible; unless(visible.any(axis=-1).all())
            | {hide}
            empty | {empty}

        attention.mask (01 §3) > Hide where the mask is False: scores.masked_fill(~mask, -inf).

        mask_inverted_{kind} (unless inverted_{kind}):
            attn_mask is inverted, and rows without keys are {word}
            True means `may attend` here and in torch's attention; masked_fill wants the opposite.
            | if is_boolean(attn_mask):
            |     visible = visible & ~np.asarray(attn_mask)
            | else:
            |     visible = visible & np.isneginf(array(attn_mask))
            | unless(visible.any(axis=-1).all())
            hide | {hide}
            empty | {empty}
        mask_transposed_{kind}: the mask hides queries, not keys, and their rows are {word}
            A padding mask has an entry for each key: the last axis, (B, 1, 1, S), not (B, 1, S, 1).
            > Put it on the last axis: mask[:, None, None, :].
            | attn_mask = np.asarray(attn_mask).swapaxes(-1, -2); ...
            | visible = visible & ~np.isneginf(scores)
            | unless(visible.any(axis=-1).all())
            hide | {hide}
            empty | {empty}

        attention.lengths (01 §3) > Put the padding on the last axis: mask[:, None, None, :].

        queries_of_padding_{kind}: the padding hides queries, not keys, and their rows are {word}
            A padding mask has an entry for each key: the last axis, (B, 1, 1, S), not (B, 1, S, 1).
            | visible = visible & (i < per_sequence(s, key_lengths))
            | unless(visible.any(axis=-1).all())
            hide | {hide}
            empty | {empty}

        attention.starts (01 §3) > Put the padding on the last axis: mask[:, None, None, :].

        queries_of_left_padding_{kind}:
            the padding hides queries, not keys, and their rows are {word}
            A padding mask has an entry for each key: the last axis, (B, 1, 1, S), not (B, 1, S, 1).
            | visible = visible & (i >= per_sequence(s, key_starts))
            | unless(visible.any(axis=-1).all())
            hide | {hide}
            empty | {empty}
        """
    )
