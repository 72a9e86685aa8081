"""What goes wrong where positions decide what attention sees: causality, windows, padding."""

import numpy as np

from simdformer.learn.catalogue import Mistakes, first, instead, skip, then
from simdformer.learn.mistakes.attention import per_sequence
from simdformer.learn.mistakes.attention_masks import hidden_as, lowered, nan_for_nothing
from simdformer.learn.program import State

MASK, CACHE = "01 §3", "03 exercise 3"

# ---- causality -----------------------------------------------------------------------------------


def with_blind_rows(s: State) -> None:
    s.visible = s.j < s.i + s.offset
    if s.visible.any(axis=-1).all():
        raise ValueError("each query sees something: see causal_strict")


def lowered_in_float64(s: State) -> None:
    if s.run.dtype != np.float64:
        raise ValueError("then all digits are lost: see causal_strict_uniform")
    s.scores = lowered(s)


Mistakes(
    "attention.causal",
    see=MASK,
    fix="The diagonal is the last visible key: np.tril(np.ones((L, L), bool)).",
)(
    """
    no_causal: the causal mask is forgotten
        Every token sees what comes after it.
        > Hide the keys j > i + offset, or pass is_causal=True.
    causal_strict: the causal mask hides one key too many: a token does not see itself
        j < i in place of j <= i: triu with k=0 where k=1 is meant.
    causal_strict_nan: the causal mask hides the token itself: the first sees nothing and is NaN
        j < i in place of j <= i: triu with k=0 where k=1 is meant. A row that is -inf everywhere
        has no softmax.
    causal_strict_uniform: the causal mask hides the token itself: the first averages all
        j < i in place of j <= i: triu with k=0 where k=1 is meant. A row that is the same large
        negative number everywhere has equal shares.
    causal_strict_added: the causal mask hides the token itself: the first one sees them all
        j < i in place of j <= i: triu with k=0 where k=1 is meant. -1e9 is added to all scores of
        its row; in float64 that changes none of its shares.
    causal_loose: the causal mask shows one key too many: the next token
        j <= i + 1 in place of j <= i: triu with k=2, or positions that are off by one.
    causal_reversed: the causal mask shows the future and hides the past
        triu in place of tril, or rows taken for columns.
        > Rows are queries, columns are keys; on and left of the diagonal is visible: np.tril.
    causal_bottom_right: the causal mask is lined up with the last key, not by the given offset
        Bottom-right alignment, S - L, as in MLX and flash-attn, where another is asked for.
        > Use the offset of the call; torch lines up the first query with the first key, offset 0.
    causal_offset_one_less (03 exercise 3): the offset of the causal mask is off by one
        The first new token stands at the length of the cache, not at its last position.
        > With n tokens in the cache the offset of the next one is n.
    """,
    no_causal=skip,
    causal_strict=instead(visible=lambda s: s.j < s.i + s.offset),
    causal_strict_nan={"causal": with_blind_rows, "empty": nan_for_nothing},
    causal_strict_uniform={
        "causal": with_blind_rows,
        "hide": instead(scores=lambda s: hidden_as(s, -1e9)),
    },
    causal_strict_added={"causal": with_blind_rows, "hide": lowered_in_float64},
    causal_loose=instead(visible=lambda s: s.j <= s.i + s.offset + 1),
    causal_reversed=instead(visible=lambda s: s.j >= s.i + s.offset),
    causal_bottom_right=first(offset=lambda s: s.S - s.L),
    causal_offset_one_less=first(
        offset=lambda s: s.offset if s.causal_offset is None else s.offset - 1
    ),
)


Mistakes("attention.positions", see=CACHE)(
    """
    no_causal_offset: the causal mask forgets where the queries stand, its offset
        The first query is taken for the first token, though earlier ones are in the cache.
        > Query i may see the keys j <= i + causal_offset.
    """,
    no_causal_offset=then(offset=lambda s: 0),
)

# ---- windows and padding -------------------------------------------------------------------------

Mistakes("attention.window", see=MASK, fix="Show the keys j > i - window.")(
    """
    no_window: the window is forgotten
        Every earlier token is seen, however far away.
        > Hide the keys j <= i - window as well.
    window_too_wide: the window is one key too wide
        The token itself counts: `window` keys are seen, i - window is not one of them.
    window_too_narrow: the window is one key too narrow
        The token itself is not counted twice: `window` keys are seen with it.
    window_both_ways: the window looks both ways
        |i - j| < window without the causal mask shows the future too.
        > Combine both: j <= i and j > i - window.
    """,
    no_window=skip,
    window_too_wide=first(window=lambda s: s.window + 1),
    window_too_narrow=first(window=lambda s: s.window - 1),
    window_both_ways=instead(visible=lambda s: np.abs(s.j - s.i - s.offset) < s.window),
)

Mistakes("attention.lengths", see=MASK, fix="Of sequence b, hide the keys j >= key_lengths[b].")(
    """
    no_key_lengths: the padding is not hidden: key_lengths is forgotten
        The shorter sequences of the batch attend to what only fills them up.
    one_key_of_padding: one key of the padding is seen
        j <= length in place of j < length: keys are counted from 0.
    padding_on_the_left: the padding is hidden at the wrong end
        The sequences are filled up on the right, and the mask hides keys on the left.
    length_of_the_first: all sequences have the length of the first
        An index 0 on the batch axis.
    """,
    no_key_lengths=skip,
    one_key_of_padding=instead(
        visible=lambda s: s.visible & (s.j <= per_sequence(s, s.key_lengths))
    ),
    padding_on_the_left=instead(
        visible=lambda s: s.visible & (s.j >= s.S - per_sequence(s, s.key_lengths))
    ),
    length_of_the_first=instead(visible=lambda s: s.visible & (s.j < np.ravel(s.key_lengths)[0])),
)
