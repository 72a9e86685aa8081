"""What goes wrong in the angles of RoPE: frequencies, positions, too few bits."""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.rope import own_frequencies
from simdformer.learn.mistakes.rope_frequencies import THETAS, USUAL, rope_frequencies
from simdformer.learn.program import State

for theta in THETAS:
    mistakes(
        f"""
        rope.given_frequencies (02 §5) > Use inv_freq as it comes: angle = position * inv_freq.

        ignored_theta_{theta} ({"" if theta in USUAL else "rare"}):
            inv_freq is ignored: the frequencies are those of theta = {theta:,}
            The frequencies that were handed over (scaled for a long context, say) are computed
            again from theta alone.
            | inv_freq = run(rope_frequencies, head_dim=turned_dim, theta={theta:.1f}).inv_freq
        """,
        calls=(rope_frequencies,),
    )


def merge_heads(x: Any) -> Any:
    """(..., H, L, D) -> (..., L, H·D)"""
    y = x.swapaxes(-3, -2)
    return y.reshape(*y.shape[:-2], -1)


def split_heads(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-3, -2)


def of_all_heads(s: State, heads: int) -> Any:
    """The frequencies of a head that is as wide as all of them, of the same theta."""
    power = np.arange(0, s.turned_dim, 2) / s.turned_dim
    theta = s.inv_freq[1] ** (-1 / power[1])  # IndexError where a head is one pair
    part = s.rotary_dim not in (None, s.plain.shape[-1])
    if part or not np.allclose(s.inv_freq, theta**-power, rtol=1e-6, atol=0):
        raise ValueError("only a part of each head is turned, or the frequencies are scaled")
    width = heads * s.turned_dim
    return theta ** (-np.arange(0, width, 2) / width)


def along(s: State, axis: int) -> Any:
    """The positions, if they run along another axis of x."""
    length = s.plain.shape[axis]
    return s.positions if s.positions.shape == (length,) else s.offset + np.arange(length)


mistakes(
    """
    rope.inputs (02 §5)

    rotary_dim_ignored: rotary_dim is ignored: all elements of a head are turned
        Some models turn only the first part of each head and leave the rest as it is.
        > Turn x[..., :rotary_dim], with frequencies made for rotary_dim, and append the rest.
        | ...; turned_dim = plain.shape[-1] if inv_freq is None else turned_dim

    rope.frequencies (02 §5)

    frequencies_of_the_whole_head: the exponents are divided by head_dim instead of rotary_dim
        Where only a part of each head is turned, D in theta ** (-2i/D) is the size of that part.
        > Write np.arange(0, rotary_dim, 2) / rotary_dim.
        | inv_freq = own_frequencies(s, plain.shape[-1])[: turned_dim // 2]
    frequencies_of_all_heads: the exponents are divided by the width of all heads, not by head_dim
        D in theta ** (-2i/D) is the size of one head; with hidden_size only the fastest of the
        frequencies are used.
        > Write np.arange(0, head_dim, 2) / head_dim.
        | inv_freq = own_frequencies(s, plain.shape[-3] * plain.shape[-1])[: turned_dim // 2]

    before_split: RoPE is applied before the heads are split
        Then the vector of all heads is taken for one: other pairs, other frequencies.
        > Split the heads first, then turn each of them.
        angle | num_heads = plain.shape[-3]; inv_freq = of_all_heads(s, num_heads); ...
        pairs | turned_dim = num_heads * turned_dim; ...
        take | plain = merge_heads(plain); ...
        put | ...; out = split_heads(out, num_heads)

    rope.turn (02 §5)

    last_part_turned (rare): the last elements of each head are turned instead of the first
        rotary_dim counts from the front: the elements behind it stay as they are.
        > Turn x[..., :rotary_dim] and append x[..., rotary_dim:].
        take | plain = np.roll(plain, turned_dim, axis=-1); ...
        put | ...; out = np.roll(out, -turned_dim, axis=-1)

    rope.angle (02 §5) > Write angle = position * inv_freq, in radians.

    angles_in_degrees (rare): the angles are taken as degrees
        position * frequency is an angle in radians, which is what np.cos and np.sin want.
        > Leave out np.deg2rad, and the factor pi/180.
        | ...; angles = np.deg2rad(angles)
    angles_to_degrees: the angles are converted to degrees
        np.rad2deg, or a factor 180/pi: cos and sin take 57 for radians, and turn nine times round.
        > Leave the factor 180/pi out: np.cos and np.sin take radians.
        | ...; angles = np.rad2deg(angles)
    angles_times_two_pi (rare): the angles are multiplied by 2 pi
        The frequency of RoPE is radians a position, not turns a position.
        | ...; angles = 2 * np.pi * angles
    angles_transposed (rare): the table of angles is transposed
        np.outer(inv_freq, positions) has a column for each position; as many pairs as positions,
        and nothing complains.
        > Write np.outer(positions, inv_freq): a row for each position.
        | ...; angles = angles.swapaxes(-1, -2)

    rope.position (02 §5) > Use offset + np.arange(T) as positions.

    positions_from_one (unless rope_backward.positions_one_too_low): every position is one too high
        Positions count from 0, not from 1; or the length of the cache was read after the new token
        had gone into it.
        > Give the first token of a text position 0, a new token the number of tokens before it.
        | ...; positions = positions + 1
    positions_one_too_low (03 exercise 3, unless rope_backward.positions_from_one):
        every position is one too low
        The position of a new token is the number of tokens before it, not the position of the last
        one.
        > With a cache of n tokens the next token has position n, not n - 1.
        | ...; positions = positions - 1
    positions_restarted (03 exercise 3, unless rope_backward.turned_forwards):
        positions start again at 0: offset or positions are ignored
        With a cache, the tokens of a call are not the first ones of the text.
        > Add the number of tokens in the cache to np.arange(T), or use the positions that are
          given.
        | unless(vars(s).get("is_placed")); positions = None; offset = 0; ...
    one_position_for_all: all tokens have the position of the first one
        One angle is computed for the whole call, instead of one for each token.
        | ...; positions = positions * 0 + positions[..., :1]
    positions_of_the_first_sequence: all sequences have the positions of the first one
        positions (B, T) has a row for each sequence of the batch; only its first row is used.
        > Look up cos and sin with the whole array: cos[positions] is (B, T, D/2).
        | ...; positions = positions * 0 + positions[:1, :]

    rope.align (02 §5) > Positions belong to the axis of the tokens, here the last but one: swap the
        two axes before, or give cos and sin the shape (T, 1, D/2) where tokens come first.

    positions_over_heads: positions run over the heads: the angle depends on the head, not the token
        The array is laid out (heads, tokens, D) where the code expects (tokens, heads, D), or the
        other way round.
        | unless(plain.ndim < 3); angles = along(s, -3)[:, None, None] * inv_freq
    positions_over_batch (rare): positions run over the batch: the angle depends on the sequence
        The table of angles is laid along the first axis of (B, H, T, D).
        | unless(plain.ndim < 4); angles = along(s, -4)[:, None, None, None] * inv_freq
    """,
    calls=(along, merge_heads, of_all_heads, own_frequencies, split_heads),
)

for few, exact in (("float16", "2,048"), ("bfloat16", "256")):
    mistakes(
        f"""
        rope (02 §5) > Compute positions, frequencies, angles, cos and sin in float32, whatever x
            has.

        positions_in_{few} (rare): the positions are rounded to {few}
            {few} knows whole numbers up to {exact}; beyond, tokens share a position.
            position | ...; positions = positions.astype({few}).astype(np.float64)
        frequencies_in_{few} (rare): the frequencies are rounded to {few}
            model.to({few}) rounds the buffer inv_freq too; each position adds to the error.
            angle | inv_freq = np.asarray(inv_freq).astype({few}).astype(np.float64); ...
        angles_in_{few} (rare): the angles are computed in {few}
            An angle of a hundred radians, rounded to {few}, is off by a good part of a turn.
            angle | positions = np.asarray(positions).astype({few}).astype(np.float64)
            angle | inv_freq = np.asarray(inv_freq).astype({few}).astype(np.float64)
            angle | ...; angles = angles.astype({few}).astype(np.float64)
        cos_and_sin_in_{few} (rare): cos and sin are rounded to {few}
            The tables are kept in the 16 bits of the model instead of in float32.
            cos_sin | ...; cos = cos.astype({few}).astype(real)
            cos_sin | sin = sin.astype({few}).astype(real)
        """
    )
