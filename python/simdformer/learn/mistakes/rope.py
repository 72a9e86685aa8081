"""Rotary position embedding in steps, and what goes wrong in pairing and turning.

x (...,T,D); the meaning is that of `reference.rope`. The angles are computed in float64 whatever
the arithmetic of the run is; cos and sin are rounded to it. What goes wrong in angles and positions
is in rope_angles.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.rope_frequencies import rope_frequencies
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State


def own_frequencies(s: State, dim: int) -> Any:
    theta = 10000.0 if s.theta is None else s.theta
    return s.run(rope_frequencies, head_dim=dim, theta=theta, scaling=None).out.inv_freq


def some_positions(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    name = "grad" if "grad" in variables else "x"
    x, positions = np.asarray(variables[name]), variables["positions"]
    index = rows_of(x.shape, limit)
    if index is None:
        return None
    fewer = variables | {name: x[index], "rows": index[-2], "length": x.shape[-2]}
    if np.ndim(positions) == 2:
        fewer["positions"] = np.asarray(positions)[index[0]]
    return fewer, lambda out: out[index]


rope = Program(
    "rope",
    """
    inputs:
        plain = array(x)
        turned_dim = plain.shape[-1] if rotary_dim is None else rotary_dim
        # a sample has some of the positions only
        rows = vars(s).get("rows", slice(None))
        length = vars(s).get("length", plain.shape[-2])
    given_frequencies if inv_freq is not None: inv_freq = np.asarray(inv_freq, np.float64)
    frequencies if inv_freq is None: inv_freq = own_frequencies(s, turned_dim)
    position:
        positions = offset + np.arange(length) if positions is None else positions
        positions = np.asarray(positions, np.float64)
    angle: angles = positions[..., None] * inv_freq  # (T, D/2), or (B, T, D/2)
    align:
        angles = angles[..., rows, :]
        if angles.ndim == 3:  # one row of positions for each entry of the first axis of x
            heads = (1,) * (plain.ndim - 3)
            angles = angles.reshape(angles.shape[:1] + heads + angles.shape[1:])
    cos_sin:
        cos = array(np.cos(angles) * attention_factor)
        sin = array(np.sin(angles) * attention_factor)
    pairs:
        halves = slice(0, turned_dim // 2), slice(turned_dim // 2, turned_dim)
        neighbours = slice(0, turned_dim, 2), slice(1, turned_dim, 2)
        first, second = halves if layout == "half" else neighbours
    take: a, b = plain[..., first], plain[..., second]
    turn:
        turned_a = a * cos - b * sin
        turned_b = b * cos + a * sin
    put:
        out = plain.copy()
        out[..., first], out[..., second] = turned_a, turned_b
    """,
    calls=(own_frequencies,),
    of=functional.rope,
    axes=("head", "position", "channel"),
    thin=some_positions,
    tables={"inv_freq", "positions", "angles"},
)


def spread(s: State, table: Any) -> tuple[Any, Any]:
    """A table (..., D/2) laid over all D elements in the layout that is not asked for."""
    both = np.concatenate([table, table], -1) if s.layout != "half" else np.repeat(table, 2, -1)
    return both[..., s.first], both[..., s.second]


mistakes(
    """
    rope.pairs (03 §10) > Pair the elements as the layout says. On the same weights the two agree
        only after the rows of wq and wk are permuted.

    layout_swapped: the wrong elements are paired: half and interleaved are swapped
        Hugging Face's checkpoints pair element i with i + D/2, Meta's pair the neighbours 2i and 2i
        + 1; code for the one runs on the other without a word.
        | ...; first, second = neighbours if layout == "half" else halves

    rope.turn (02 §5) > Write first * cos - second * sin and second * cos + first * sin.

    layouts_mixed (03 §10): cos and sin are spread for one layout, the pairs are those of the other
        Next to rotate_half the table is repeated as a whole (c0 c1 ... c0 c1 ...: "half"), next to
        neighbouring pairs each of its elements is repeated (c0 c0 c1 c1 ...).
        > With rotate_half write np.concatenate([table, table], -1), with neighbouring pairs
          np.repeat(table, 2, axis=-1).
        | turned_a = a * spread(s, cos)[0] - b * spread(s, sin)[0]
        | turned_b = b * spread(s, cos)[1] + a * spread(s, sin)[1]
    minus_missing: the minus of rotate_half is missing
        rotate_half is (-second, first); without the minus the lengths of the pairs change.
        | ...; turned_a = a * cos + b * sin
    two_minuses (rare): both lines have a minus
        A rotation has one minus and one plus: (a cos - b sin, b cos + a sin).
        | ...; turned_b = b * cos - a * sin
    partners_not_swapped (rare):
        rotate_half does not swap the elements of a pair: it only negates one
        (-first, second) instead of (-second, first): each element meets itself, not its partner.
        > rotate_half(x) is np.concatenate([-second, first], -1).
        | turned_a = a * cos - a * sin; turned_b = b * cos + b * sin
    rotate_half_forgotten: x * cos + x * sin: rotate_half is forgotten
        sin multiplies the partner of an element, not the element itself.
        > Write x * cos + rotate_half(x) * sin.
        | turned_a = a * (cos + sin); turned_b = b * (cos + sin)
    turned_in_place: the second line uses the first line's result
        The first elements of the pairs are overwritten before the second ones are computed.
        > Compute both from the old values: keep a copy, or assign both at once.
        | ...; turned_b = b * cos + turned_a * sin
    not_turned: x is not turned at all
        RoPE is not applied, its result is not used, or every position is 0.
        > Use what rope returns (it does not change x), and give each token its own position.
        | turned_a = a; turned_b = b
    turned_twice: x is turned twice
        RoPE is applied to an array that has it already, for instance once before the keys go into
        the cache and again when they are read from it.
        > Apply it once, right after the projection (and the norm of the head, where there is one).
        | ...; turned_a, turned_b = turned_a * cos - turned_b * sin, turned_b * cos + turned_a * sin

    rope.put (03 §10)

    put_back_in_the_other_order: the turned elements are put back in the other layout's order
        The pairs are taken apart in one way and put together in the other: concatenated where they
        should be interleaved, or the other way round.
        > Put the results where the elements came from: out[..., 0::2] and out[..., 1::2] for
          "interleaved", the two halves for "half".
        | first, second = neighbours if layout == "half" else halves; ...

    rope.cos_sin (02 §5)

    turned_backwards (unless rope_backward.turned_forwards):
        every pair is turned the other way round: sin has the wrong sign
        rotate_half is (-second, first); with (second, -first), a minus on the other line, a
        negative angle or the conjugate of freqs_cis, it turns backwards.
        > Write first * cos - second * sin and second * cos + first * sin.
        | ...; sin = -sin
    cos_and_sin_swapped: cos and sin are swapped
        Two tables of the same shape, handed over or unpacked in the wrong order.
        > Position 0 must not turn at all: its cos is 1 and its sin 0. Look at the first row of
          each.
        | ...; cos, sin = sin, cos
    attention_factor_ignored (unless rope_scaling.attention_factor_forgotten):
        attention_factor is ignored
        The factor of yarn multiplies cos and sin; the frequencies alone are half of the method.
        > Multiply cos and sin by it.
        | attention_factor = 1.0; ...
    """,
    calls=(spread,),
)
