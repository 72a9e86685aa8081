"""What goes wrong where positions decide what attention sees: causality, windows, padding."""

import numpy as np

from simdformer.learn.mistakes.attention import causal, per_sequence
from simdformer.learn.program import State, mistake

MASK, CACHE = "01 §3", "03 exercise 3"
PADDING = "Of sequence b, hide the keys j >= key_lengths[b]."

# ---- causality -----------------------------------------------------------------------------------


@mistake(
    "attention.causal",
    title="the causal mask is forgotten",
    cause="Every token sees what comes after it.",
    fix="Hide the keys j > i + offset, or pass is_causal=True.",
    step=MASK,
)
def no_causal(s: State) -> None:
    s.visible = np.full((len(s.i), s.S), True)


@mistake(
    "attention.causal",
    title="the causal mask hides one key too many: a token does not see itself",
    cause="j < i in place of j <= i: triu with k=0 where k=1 is meant.",
    fix="The diagonal is visible: np.tril(np.ones((L, L), bool)).",
    step=MASK,
)
def causal_strict(s: State) -> None:
    s.visible = s.j < s.i + s.offset if s.is_causal else np.full((len(s.i), s.S), True)


@mistake(
    "attention.causal",
    title="the causal mask shows one key too many: the next token",
    cause="j <= i + 1 in place of j <= i: triu with k=2, or positions that are off by one.",
    fix="The diagonal is the last visible key: np.tril(np.ones((L, L), bool)).",
    step=MASK,
)
def causal_loose(s: State) -> None:
    s.visible = s.j <= s.i + s.offset + 1 if s.is_causal else np.full((len(s.i), s.S), True)


@mistake(
    "attention.causal",
    title="the causal mask shows the future and hides the past",
    cause="triu in place of tril, or rows taken for columns.",
    fix="Rows are queries, columns are keys; on and left of the diagonal is visible: np.tril.",
    step=MASK,
)
def causal_reversed(s: State) -> None:
    s.visible = s.j >= s.i + s.offset if s.is_causal else np.full((len(s.i), s.S), True)


@mistake(
    "attention.positions",
    title="the causal mask ignores where the queries stand: the offset is forgotten",
    cause="The first query is taken for the first token, though earlier ones are in the cache.",
    fix="Query i may see the keys j <= i + causal_offset.",
    step=CACHE,
)
def no_causal_offset(s: State) -> None:
    rows = vars(s).get("rows")
    s.i = np.arange(s.L)[:, None] if rows is None else rows[:, None]
    s.L = s.L if rows is None else s.length
    s.j, s.offset = np.arange(s.S), 0


@mistake(
    "attention.causal",
    title="the causal mask is lined up with the last key instead of the given offset",
    cause="Bottom-right alignment, S - L, as in MLX and flash-attn, where another is asked for.",
    fix="Use the offset of the call; torch lines up the first query with the first key, offset 0.",
    step=MASK,
)
def causal_bottom_right(s: State) -> None:
    s.offset = s.S - s.L
    causal(s)


@mistake(
    "attention.causal",
    title="the offset of the causal mask is off by one",
    cause="The first new token stands at the length of the cache, not at its last position.",
    fix="With n tokens in the cache the offset of the next one is n.",
    step=CACHE,
)
def causal_offset_one_less(s: State) -> None:
    s.offset = s.offset - 1 if s.causal_offset is not None else s.offset
    causal(s)


@mistake(
    "attention.window",
    title="the window is forgotten",
    cause="Every earlier token is seen, however far away.",
    fix="Hide the keys j <= i - window as well.",
    step=MASK,
)
def no_window(s: State) -> None:
    pass


@mistake(
    "attention.window",
    title="the window is one key too wide",
    cause="The token itself counts: `window` keys are seen, i - window is not one of them.",
    fix="Show the keys j > i - window.",
    step=MASK,
)
def window_too_wide(s: State) -> None:
    if s.window is not None:
        s.visible = s.visible & (s.j >= s.i + s.offset - s.window)


@mistake(
    "attention.window",
    title="the window is one key too narrow",
    cause="The token itself is not counted twice: `window` keys are seen with it.",
    fix="Show the keys j > i - window.",
    step=MASK,
)
def window_too_narrow(s: State) -> None:
    if s.window is not None:
        s.visible = s.visible & (s.j > s.i + s.offset - s.window + 1)


@mistake(
    "attention.window",
    title="the window looks both ways",
    cause="|i - j| < window without the causal mask shows the future too.",
    fix="Combine both: j <= i and j > i - window.",
    step=MASK,
)
def window_both_ways(s: State) -> None:
    if s.window is not None:
        s.visible = np.abs(s.j - s.i - s.offset) < s.window


@mistake(
    "attention.lengths",
    title="the padding is not hidden: key_lengths is forgotten",
    cause="The shorter sequences of the batch attend to what only fills them up.",
    fix=PADDING,
    step=MASK,
)
def no_key_lengths(s: State) -> None:
    pass


@mistake(
    "attention.lengths",
    title="one key of the padding is seen",
    cause="j <= length in place of j < length: keys are counted from 0.",
    fix=PADDING,
    step=MASK,
)
def one_key_of_padding(s: State) -> None:
    if s.key_lengths is not None:
        s.visible = s.visible & (s.j <= per_sequence(s, s.key_lengths))


@mistake(
    "attention.lengths",
    title="the padding is hidden at the wrong end",
    cause="The sequences are filled up on the right, and the mask hides keys on the left.",
    fix=PADDING,
    step=MASK,
)
def padding_on_the_left(s: State) -> None:
    if s.key_lengths is not None:
        s.visible = s.visible & (s.j >= s.S - per_sequence(s, s.key_lengths))


@mistake(
    "attention.lengths",
    title="all sequences have the length of the first",
    cause="An index 0 on the batch axis.",
    fix=PADDING,
    step=MASK,
)
def length_of_the_first(s: State) -> None:
    if s.key_lengths is not None:
        s.visible = s.visible & (s.j < np.ravel(s.key_lengths)[0])
