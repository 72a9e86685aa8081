"""Rotary position embedding in steps, and what goes wrong in pairing and turning.

x (...,T,D); the meaning is that of `reference.rope`. The angles are computed in float64 whatever
the arithmetic of the run is; cos and sin are rounded to it. What goes wrong in angles and positions
is in rope_angles.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import Mistakes, first, instead, then
from simdformer.learn.mistakes.rope_frequencies import LAYOUT, ROPE, rope_frequencies
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State

rope = Program(
    "rope",
    of=functional.rope,
    axes=("head", "position", "channel"),
    tables={"inv_freq", "positions", "angles"},
)


@rope.step
def inputs(s: State) -> None:
    s.plain = s.run.array(s.x)
    s.turned_dim = s.plain.shape[-1] if s.rotary_dim is None else s.rotary_dim
    # A sample has some of the positions only.
    s.rows = vars(s).get("rows", slice(None))
    s.length = vars(s).get("length", s.plain.shape[-2])


@rope.step_if(lambda s: s.inv_freq is not None)
def given_frequencies(s: State) -> None:
    s.inv_freq = np.asarray(s.inv_freq, np.float64)


@rope.step_if(lambda s: s.inv_freq is None)
def frequencies(s: State) -> None:
    s.inv_freq = own_frequencies(s, s.turned_dim)


def own_frequencies(s: State, dim: int) -> Any:
    theta = 10000.0 if s.theta is None else s.theta
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
def take(s: State) -> None:
    s.a, s.b = s.plain[..., s.first], s.plain[..., s.second]


@rope.step
def turn(s: State) -> None:
    s.turned_a = s.a * s.cos - s.b * s.sin
    s.turned_b = s.b * s.cos + s.a * s.sin


@rope.step
def put(s: State) -> None:
    s.out = s.plain.copy()
    s.out[..., s.first], s.out[..., s.second] = s.turned_a, s.turned_b


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

Mistakes(
    "rope.pairs",
    see=LAYOUT,
    fix="Pair the elements as the layout says. On the same weights the two agree only after the "
    "rows of wq and wk are permuted.",
)(
    """
    layout_swapped: the wrong elements are paired: half and interleaved are swapped
        Hugging Face's checkpoints pair element i with i + D/2, Meta's pair the neighbours 2i and 2i
        + 1; code for the one runs on the other without a word.
    """,
    layout_swapped=first(layout=lambda s: "interleaved" if s.layout == "half" else "half"),
)


def spread(s: State, table: Any) -> tuple[Any, Any]:
    """A table (..., D/2) laid over all D elements in the layout that is not asked for."""
    both = np.concatenate([table, table], -1) if s.layout != "half" else np.repeat(table, 2, -1)
    return both[..., s.first], both[..., s.second]


in_turn = Mistakes(
    "rope.turn", see=ROPE, fix="Write first * cos - second * sin and second * cos + first * sin."
)

in_turn(
    """
    layouts_mixed (03 §10): cos and sin are spread for one layout, the pairs are those of the other
        Next to rotate_half the table is repeated as a whole (c0 c1 ... c0 c1 ...: "half"), next to
        neighbouring pairs each of its elements is repeated (c0 c0 c1 c1 ...).
        > With rotate_half write np.concatenate([table, table], -1), with neighbouring pairs
          np.repeat(table, 2, axis=-1).
    minus_missing: the minus of rotate_half is missing
        rotate_half is (-second, first); without the minus the lengths of the pairs change.
    two_minuses (rare): both lines have a minus
        A rotation has one minus and one plus: (a cos - b sin, b cos + a sin).
    partners_not_swapped (rare):
        rotate_half does not swap the elements of a pair: it only negates one
        (-first, second) instead of (-second, first): each element meets itself, not its partner.
        > rotate_half(x) is np.concatenate([-second, first], -1).
    rotate_half_forgotten: x * cos + x * sin: rotate_half is forgotten
        sin multiplies the partner of an element, not the element itself.
        > Write x * cos + rotate_half(x) * sin.
    turned_in_place: the second line uses the first line's result
        The first elements of the pairs are overwritten before the second ones are computed.
        > Compute both from the old values: keep a copy, or assign both at once.
    not_turned: x is not turned at all
        RoPE is not applied, its result is not used, or every position is 0.
        > Use what rope returns (it does not change x), and give each token its own position.
    turned_twice: x is turned twice
        RoPE is applied to an array that has it already, for instance once before the keys go into
        the cache and again when they are read from it.
        > Apply it once, right after the projection (and the norm of the head, where there is one).
    """,
    layouts_mixed=instead(
        turned_a=lambda s: s.a * spread(s, s.cos)[0] - s.b * spread(s, s.sin)[0],
        turned_b=lambda s: s.b * spread(s, s.cos)[1] + s.a * spread(s, s.sin)[1],
    ),
    minus_missing=then(turned_a=lambda s: s.a * s.cos + s.b * s.sin),
    two_minuses=then(turned_b=lambda s: s.b * s.cos - s.a * s.sin),
    partners_not_swapped=instead(
        turned_a=lambda s: s.a * s.cos - s.a * s.sin, turned_b=lambda s: s.b * s.cos + s.b * s.sin
    ),
    rotate_half_forgotten=instead(
        turned_a=lambda s: s.a * (s.cos + s.sin), turned_b=lambda s: s.b * (s.cos + s.sin)
    ),
    turned_in_place=then(turned_b=lambda s: s.b * s.cos + s.turned_a * s.sin),
    not_turned=instead(turned_a=lambda s: s.a, turned_b=lambda s: s.b),
    turned_twice=then(
        turned_a=lambda s: s.turned_a * s.cos - s.turned_b * s.sin,
        turned_b=lambda s: s.turned_b * s.cos + s.turned_a * s.sin,
    ),
)


def put_back_in_the_other_order(s: State) -> None:
    s.layout = "interleaved" if s.layout == "half" else "half"
    pairs(s)
    put(s)


Mistakes("rope.put", see=LAYOUT)(
    """
    put_back_in_the_other_order: the turned elements are put back in the other layout's order
        The pairs are taken apart in one way and put together in the other: concatenated where they
        should be interleaved, or the other way round.
        > Put the results where the elements came from: out[..., 0::2] and out[..., 1::2] for
          "interleaved", the two halves for "half".
    """,
    put_back_in_the_other_order=put_back_in_the_other_order,
)

# ---- mistakes: the turn --------------------------------------------------------------------------

Mistakes("rope.cos_sin", see=ROPE)(
    """
    turned_backwards: every pair is turned the other way round: sin has the wrong sign
        rotate_half is (-second, first); with (second, -first), a minus on the other line, a
        negative angle or the conjugate of freqs_cis, it turns backwards.
        > Write first * cos - second * sin and second * cos + first * sin.
    cos_and_sin_swapped: cos and sin are swapped
        Two tables of the same shape, handed over or unpacked in the wrong order.
        > Position 0 must not turn at all: its cos is 1 and its sin 0. Look at the first row of
          each.
    attention_factor_ignored: attention_factor is ignored
        The factor of yarn multiplies cos and sin; the frequencies alone are half of the method.
        > Multiply cos and sin by it.
    """,
    turned_backwards=then(sin=lambda s: -s.sin),
    cos_and_sin_swapped=then(cos=lambda s: s.sin, sin=lambda s: s.cos),
    attention_factor_ignored=first(attention_factor=lambda s: 1.0),
)
