"""Rotary position embedding in steps, and what goes wrong in pairing and turning.

x (...,T,D); the meaning is that of `reference.rope`. The angles are computed in float64 whatever
the arithmetic of the run is; cos and sin are rounded to it. What goes wrong in angles and positions
is in rope_angles.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.mistakes.rope_frequencies import LAYOUT, ROPE, rope_frequencies
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State, mistake

rope = Program(
    "rope",
    of=functional.rope,
    axes=("head", "position", "channel"),
    tables={"inv_freq", "positions", "angles"},
)

TURNED = "Write first * cos - second * sin and second * cos + first * sin."


@rope.step
def inputs(s: State) -> None:
    s.plain = s.run.array(s.x)
    s.turned_dim = s.plain.shape[-1] if s.rotary_dim is None else s.rotary_dim
    # A sample has some of the positions only.
    s.rows = vars(s).get("rows", slice(None))
    s.length = vars(s).get("length", s.plain.shape[-2])


@rope.step
def frequencies(s: State) -> None:
    s.from_theta = s.inv_freq is None
    if s.inv_freq is not None:
        s.inv_freq = s.run(given, inv_freq=s.inv_freq, dim=s.turned_dim).out
    else:
        s.inv_freq = own_frequencies(s, s.turned_dim, 10000.0 if s.theta is None else s.theta)


def own_frequencies(s: State, dim: int, theta: float) -> Any:
    return s.run(rope_frequencies, head_dim=dim, theta=theta, scaling=None).inv_freq


@rope.step
def position(s: State) -> None:
    if s.positions is None:
        s.positions = s.offset + np.arange(s.length)
    s.positions = np.asarray(s.positions, np.float64)


@rope.step
def angle(s: State) -> None:
    """(T, D/2), or (B, T, D/2)"""
    s.angles = s.positions[..., None] * s.inv_freq


@rope.step
def align(s: State) -> None:
    s.angles = s.angles[..., s.rows, :]
    if s.angles.ndim == 3:  # one row of positions for each entry of the first axis of x
        heads = (1,) * (s.plain.ndim - 3)
        s.angles = s.angles.reshape(s.angles.shape[:1] + heads + s.angles.shape[1:])


@rope.step
def cos_sin(s: State) -> None:
    s.cos = s.run.array(np.cos(s.angles) * s.attention_factor)
    s.sin = s.run.array(np.sin(s.angles) * s.attention_factor)


@rope.step
def pairs(s: State) -> None:
    half = s.turned_dim // 2
    if s.layout == "half":
        s.first, s.second = slice(0, half), slice(half, s.turned_dim)
    else:
        s.first, s.second = slice(0, s.turned_dim, 2), slice(1, s.turned_dim, 2)


@rope.step
def turn(s: State) -> None:
    a, b = s.plain[..., s.first], s.plain[..., s.second]
    s.out = s.plain.copy()
    s.out[..., s.first] = a * s.cos - b * s.sin
    s.out[..., s.second] = b * s.cos + a * s.sin


given = Program("inv_freq", tables={"out"})


@given.step
def use(s: State) -> None:
    s.out = np.asarray(s.inv_freq, np.float64)


@rope.thin
def some_positions(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    x, positions = np.asarray(variables["x"]), variables["positions"]
    index = rows_of(x.shape, limit)
    if index is None:
        return None
    fewer = dict(variables, x=x[index], rows=index[-2], length=x.shape[-2])
    if np.ndim(positions) == 2:
        fewer["positions"] = np.asarray(positions)[index[0]]
    return fewer, lambda out: out[index]


# ---- mistakes: pairs -----------------------------------------------------------------------------


@mistake(
    "rope.pairs",
    title="the wrong elements are paired: half and interleaved are swapped",
    cause="Hugging Face's checkpoints pair element i with i + D/2, Meta's pair the neighbours 2i "
    "and 2i + 1; code for the one runs on the other without a word.",
    fix="Pair the elements as the layout says. On the same weights the two agree only after the "
    "rows of wq and wk are permuted.",
    step=LAYOUT,
)
def layout_swapped(s: State) -> None:
    s.layout = "interleaved" if s.layout == "half" else "half"
    pairs(s)


def spread(s: State, table: Any) -> tuple[Any, Any]:
    """A table (..., D/2) laid over all D elements in the layout that is not asked for."""
    both = np.concatenate([table, table], -1) if s.layout != "half" else np.repeat(table, 2, -1)
    return both[..., s.first], both[..., s.second]


@mistake(
    "rope.turn",
    title="cos and sin are spread for one layout, the elements are paired for the other",
    cause='Next to rotate_half the table is repeated as a whole (c0 c1 ... c0 c1 ...: "half"), '
    "next to neighbouring pairs each of its elements is repeated (c0 c0 c1 c1 ...); the two were "
    "mixed.",
    fix="With rotate_half write np.concatenate([table, table], -1), with neighbouring pairs "
    "np.repeat(table, 2, axis=-1).",
    step=LAYOUT,
)
def layouts_mixed(s: State) -> None:
    a, b = s.plain[..., s.first], s.plain[..., s.second]
    (cos_a, cos_b), (sin_a, sin_b) = spread(s, s.cos), spread(s, s.sin)
    s.out = s.plain.copy()
    s.out[..., s.first] = a * cos_a - b * sin_a
    s.out[..., s.second] = b * cos_b + a * sin_b


@mistake(
    "rope.turn",
    title="the turned elements are put back in the other layout's order",
    cause="The pairs are taken apart in one way and put together in the other: concatenated where "
    "they should be interleaved, or the other way round.",
    fix="Put the results where the elements came from: out[..., 0::2] and out[..., 1::2] for "
    '"interleaved", the two halves for "half".',
    step=LAYOUT,
)
def put_back_in_the_other_order(s: State) -> None:
    turn(s)
    right, (first, second) = s.out, (s.first, s.second)
    layout_swapped.replaces["rope.pairs"](s)
    s.out = right.copy()
    s.out[..., s.first], s.out[..., s.second] = right[..., first], right[..., second]


# ---- mistakes: the turn --------------------------------------------------------------------------


@mistake(
    "rope.cos_sin",
    title="every pair is turned the other way round: sin has the wrong sign",
    cause="rotate_half is (-second, first); with (second, -first), a minus on the other line, a "
    "negative angle or the conjugate of freqs_cis, it turns backwards.",
    fix=TURNED,
    step=ROPE,
)
def turned_backwards(s: State) -> None:
    cos_sin(s)
    s.sin = -s.sin


@mistake(
    "rope.cos_sin",
    title="cos and sin are swapped",
    cause="Two tables of the same shape, handed over or unpacked in the wrong order.",
    fix="Position 0 must not turn at all: its cos is 1 and its sin 0. Look at the first row of "
    "each.",
    step=ROPE,
)
def cos_and_sin_swapped(s: State) -> None:
    cos_sin(s)
    s.cos, s.sin = s.sin, s.cos


@mistake(
    "rope.turn",
    title="the minus of rotate_half is missing",
    cause="rotate_half is (-second, first); without the minus the lengths of the pairs change.",
    fix=TURNED,
    step=ROPE,
)
def minus_missing(s: State) -> None:
    a, b = s.plain[..., s.first], s.plain[..., s.second]
    s.out = s.plain.copy()
    s.out[..., s.first] = a * s.cos + b * s.sin
    s.out[..., s.second] = b * s.cos + a * s.sin


@mistake(
    "rope.turn",
    title="both lines have a minus",
    cause="A rotation has one minus and one plus: (a cos - b sin, b cos + a sin).",
    fix=TURNED,
    step=ROPE,
    rare=True,
)
def two_minuses(s: State) -> None:
    a, b = s.plain[..., s.first], s.plain[..., s.second]
    s.out = s.plain.copy()
    s.out[..., s.first] = a * s.cos - b * s.sin
    s.out[..., s.second] = b * s.cos - a * s.sin


@mistake(
    "rope.turn",
    title="rotate_half does not swap the elements of a pair: it only negates one",
    cause="(-first, second) instead of (-second, first): each element meets itself, not its "
    "partner.",
    fix="rotate_half(x) is np.concatenate([-second, first], -1).",
    step=ROPE,
    rare=True,
)
def partners_not_swapped(s: State) -> None:
    a, b = s.plain[..., s.first], s.plain[..., s.second]
    s.out = s.plain.copy()
    s.out[..., s.first] = a * s.cos - a * s.sin
    s.out[..., s.second] = b * s.cos + b * s.sin


@mistake(
    "rope.turn",
    title="x * cos + x * sin: rotate_half is forgotten",
    cause="sin multiplies the partner of an element, not the element itself.",
    fix="Write x * cos + rotate_half(x) * sin.",
    step=ROPE,
)
def rotate_half_forgotten(s: State) -> None:
    a, b = s.plain[..., s.first], s.plain[..., s.second]
    s.out = s.plain.copy()
    s.out[..., s.first] = a * (s.cos + s.sin)
    s.out[..., s.second] = b * (s.cos + s.sin)


@mistake(
    "rope.turn",
    title="the second line uses the first line's result",
    cause="The first elements of the pairs are overwritten before the second ones are computed.",
    fix="Compute both from the old values: keep a copy, or assign both at once.",
    step=ROPE,
)
def turned_in_place(s: State) -> None:
    a, b = s.plain[..., s.first], s.plain[..., s.second]
    s.out = s.plain.copy()
    s.out[..., s.first] = a * s.cos - b * s.sin
    s.out[..., s.second] = b * s.cos + s.out[..., s.first] * s.sin


@mistake(
    "rope.turn",
    title="x is not turned at all",
    cause="RoPE is not applied, its result is not used, or every position is 0.",
    fix="Use what rope returns (it does not change x), and give each token its own position.",
    step=ROPE,
)
def not_turned(s: State) -> None:
    s.out = s.plain.copy()


@mistake(
    "rope.turn",
    title="x is turned twice",
    cause="RoPE is applied to an array that has it already, for instance once before the keys go "
    "into the cache and again when they are read from it.",
    fix="Apply it once, right after the projection (and the norm of the head, where there is one).",
    step=ROPE,
)
def turned_twice(s: State) -> None:
    turn(s)
    s.plain = s.out
    turn(s)


@mistake(
    "rope.cos_sin",
    title="attention_factor is ignored",
    cause="The factor of yarn multiplies cos and sin; the frequencies alone are half of the "
    "method.",
    fix="Multiply cos and sin by it.",
    step=ROPE,
)
def attention_factor_ignored(s: State) -> None:
    s.attention_factor = 1.0
    cos_sin(s)
