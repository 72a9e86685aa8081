"""What goes wrong in the angles of RoPE: frequencies, positions, too few bits."""

from typing import Any

import ml_dtypes
import numpy as np

from simdformer.learn.catalogue import Change, Mistakes, first, instead, then
from simdformer.learn.mistakes.rope import align, own_frequencies
from simdformer.learn.mistakes.rope_frequencies import ROPE, THETAS, USUAL, rope_frequencies
from simdformer.learn.program import State, Step

# ---- frequencies and angles ----------------------------------------------------------------------

in_given = Mistakes(
    "rope.given_frequencies", see=ROPE, fix="Use inv_freq as it comes: angle = position * inv_freq."
)


def of_theta(theta: float) -> Change:
    return instead(
        inv_freq=lambda s: s.run(rope_frequencies, head_dim=s.turned_dim, theta=theta).inv_freq
    )


for theta in THETAS:
    in_given.add(
        f"ignored_theta_{theta}",
        of_theta(float(theta)),
        f"inv_freq is ignored: the frequencies are those of theta = {theta:,}",
        "The frequencies that were handed over (scaled for a long context, say) are computed "
        "again from theta alone.",
        rare=theta not in USUAL,
    )

Mistakes("rope.inputs", see=ROPE)(
    """
    rotary_dim_ignored: rotary_dim is ignored: all elements of a head are turned
        Some models turn only the first part of each head and leave the rest as it is.
        > Turn x[..., :rotary_dim], with frequencies made for rotary_dim, and append the rest.
    """,
    rotary_dim_ignored=then(
        turned_dim=lambda s: s.plain.shape[-1] if s.inv_freq is None else s.turned_dim
    ),
)

Mistakes("rope.frequencies", see=ROPE)(
    """
    frequencies_of_the_whole_head: the exponents are divided by head_dim instead of rotary_dim
        Where only a part of each head is turned, D in theta ** (-2i/D) is the size of that part.
        > Write np.arange(0, rotary_dim, 2) / rotary_dim.
    frequencies_of_all_heads: the exponents are divided by the width of all heads, not by head_dim
        D in theta ** (-2i/D) is the size of one head; with hidden_size only the fastest of the
        frequencies are used.
        > Write np.arange(0, head_dim, 2) / head_dim.
    """,
    frequencies_of_the_whole_head=instead(
        inv_freq=lambda s: own_frequencies(s, s.plain.shape[-1])[: s.turned_dim // 2]
    ),
    frequencies_of_all_heads=instead(
        inv_freq=lambda s: own_frequencies(s, s.plain.shape[-3] * s.plain.shape[-1])[
            : s.turned_dim // 2
        ]
    ),
)

Mistakes("rope.turn", see=ROPE)(
    """
    last_part_turned (rare): the last elements of each head are turned instead of the first
        rotary_dim counts from the front: the elements behind it stay as they are.
        > Turn x[..., :rotary_dim] and append x[..., rotary_dim:].
    """,
    last_part_turned={
        "take": first(plain=lambda s: np.roll(s.plain, s.turned_dim, axis=-1)),
        "put": then(out=lambda s: np.roll(s.out, -s.turned_dim, axis=-1)),
    },
)

Mistakes("rope.angle", see=ROPE, fix="Write angle = position * inv_freq, in radians.")(
    """
    angles_in_degrees (rare): the angles are taken as degrees
        position * frequency is an angle in radians, which is what np.cos and np.sin want.
        > Leave out np.deg2rad, and the factor pi/180.
    angles_times_two_pi (rare): the angles are multiplied by 2 pi
        The frequency of RoPE is radians a position, not turns a position.
    angles_transposed (rare): the table of angles is transposed
        np.outer(inv_freq, positions) has a column for each position; as many pairs as positions,
        and nothing complains.
        > Write np.outer(positions, inv_freq): a row for each position.
    """,
    angles_in_degrees=then(angles=lambda s: np.deg2rad(s.angles)),
    angles_times_two_pi=then(angles=lambda s: 2 * np.pi * s.angles),
    angles_transposed=then(angles=lambda s: s.angles.swapaxes(-1, -2)),
)

# ---- positions -----------------------------------------------------------------------------------

Mistakes("rope.position", see=ROPE, fix="Use offset + np.arange(T) as positions.")(
    """
    positions_from_one: every position is one too high
        Positions count from 0, not from 1; or the length of the cache was read after the new token
        had gone into it.
        > Give the first token of a text position 0, a new token the number of tokens before it.
    positions_one_too_low (03 exercise 3): every position is one too low
        The position of a new token is the number of tokens before it, not the position of the last
        one.
        > With a cache of n tokens the next token has position n, not n - 1.
    positions_restarted (03 exercise 3): positions start again at 0: offset or positions are ignored
        With a cache, the tokens of a call are not the first ones of the text.
        > Add the number of tokens in the cache to np.arange(T), or use the positions that are
          given.
    one_position_for_all: all tokens have the position of the first one
        One angle is computed for the whole call, instead of one for each token.
    positions_of_the_first_sequence: all sequences have the positions of the first one
        positions (B, T) has a row for each sequence of the batch; only its first row is used.
        > Look up cos and sin with the whole array: cos[positions] is (B, T, D/2).
    """,
    positions_from_one=then(positions=lambda s: s.positions + 1),
    positions_one_too_low=then(positions=lambda s: s.positions - 1),
    positions_restarted=first(positions=lambda s: None, offset=lambda s: 0),
    one_position_for_all=then(positions=lambda s: s.positions * 0 + s.positions[..., :1]),
    positions_of_the_first_sequence=then(positions=lambda s: s.positions * 0 + s.positions[:1, :]),
)


def along(axis: int) -> Step:
    def other(s: State) -> None:
        if s.plain.ndim < -axis:
            align(s)
            return
        length = s.plain.shape[axis]
        given = s.positions if s.positions.shape == (length,) else s.offset + np.arange(length)
        angles = given[:, None] * s.inv_freq
        s.angles = angles.reshape(length, *(1,) * (-axis - 2), -1)

    return other


Mistakes(
    "rope.align",
    see=ROPE,
    fix="Positions belong to the axis of the tokens, here the last but one: swap the two axes "
    "before, or give cos and sin the shape (T, 1, D/2) where tokens come first.",
)(
    """
    positions_over_heads: positions run over the heads: the angle depends on the head, not the token
        The array is laid out (heads, tokens, D) where the code expects (tokens, heads, D), or the
        other way round.
    positions_over_batch (rare): positions run over the batch: the angle depends on the sequence
        The table of angles is laid along the first axis of (B, H, T, D).
    """,
    positions_over_heads=along(-3),
    positions_over_batch=along(-4),
)

# ---- too few bits --------------------------------------------------------------------------------


def rounded(name: str, dtype: Any) -> dict[str, Any]:
    """The variable of this name as it is in so few bits."""
    return {name: lambda s: np.asarray(getattr(s, name)).astype(dtype).astype(np.float64)}


def too_few_bits(dtype: Any, exact: int) -> None:
    """exact : up to which every whole number is one of its numbers"""
    few = np.dtype(dtype).name
    positions, frequencies = rounded("positions", dtype), rounded("inv_freq", dtype)
    tables = then(
        cos=lambda s: s.cos.astype(dtype).astype(s.run.dtype),
        sin=lambda s: s.sin.astype(dtype).astype(s.run.dtype),
    )
    for name, wrong, title, cause in (
        (
            "positions",
            {"position": then(**positions)},
            f"the positions are rounded to {few}",
            f"{few} knows whole numbers up to {exact:,}; beyond, tokens share a position.",
        ),
        (
            "frequencies",
            {"angle": first(**frequencies)},
            f"the frequencies are rounded to {few}",
            f"model.to({few}) rounds the buffer inv_freq too; each position adds to the error.",
        ),
        (
            "angles",
            {"angle": Change(positions | frequencies, True, rounded("angles", dtype))},
            f"the angles are computed in {few}",
            f"An angle of a hundred radians, rounded to {few}, is off by a good part of a turn.",
        ),
        (
            "cos_and_sin",
            {"cos_sin": tables},
            f"cos and sin are rounded to {few}",
            "The tables are kept in the 16 bits of the model instead of in float32.",
        ),
    ):
        fix = "Compute positions, frequencies, angles, cos and sin in float32, whatever x has."
        Mistakes("rope", see=ROPE).add(f"{name}_in_{few}", wrong, title, cause, fix, rare=True)


too_few_bits(np.float16, 2048)
too_few_bits(ml_dtypes.bfloat16, 256)
