"""What goes wrong in the angles of RoPE: frequencies, positions, too few bits."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.learn.mistakes.rope import (
    align,
    angle,
    cos_sin,
    frequencies,
    inputs,
    own_frequencies,
    position,
    turn,
)
from simdformer.learn.mistakes.rope_frequencies import CACHE, ROPE, THETAS, USUAL
from simdformer.learn.program import State, mistake

# ---- mistakes: frequencies and angles ------------------------------------------------------------


def computed_again(theta: float) -> Callable[[State], None]:
    def own(s: State) -> None:
        s.out = own_frequencies(s, s.dim, float(theta))

    return own


for theta in THETAS:
    mistake(
        "inv_freq.use",
        name=f"ignored_theta_{theta}",
        title=f"inv_freq is ignored: the frequencies are those of theta = {theta:,}",
        cause="The frequencies that were handed over (scaled for a long context, say) are computed "
        "again from theta alone.",
        fix="Use inv_freq as it comes: angle = position * inv_freq.",
        step=ROPE,
        rare=theta not in USUAL,
    )(computed_again(theta))


@mistake(
    "rope.inputs",
    title="rotary_dim is ignored: all elements of a head are turned",
    cause="Some models turn only the first part of each head and leave the rest as it is.",
    fix="Turn x[..., :rotary_dim], with frequencies made for rotary_dim, and append the rest.",
    step=ROPE,
)
def rotary_dim_ignored(s: State) -> None:
    inputs(s)
    if s.inv_freq is None:
        s.turned_dim = s.plain.shape[-1]


@mistake(
    "rope.frequencies",
    title="the exponents are divided by head_dim instead of rotary_dim",
    cause="Where only a part of each head is turned, D in theta ** (-2i/D) is the size of that "
    "part.",
    fix="Write np.arange(0, rotary_dim, 2) / rotary_dim.",
    step=ROPE,
)
def frequencies_of_the_whole_head(s: State) -> None:
    part, s.turned_dim = s.turned_dim, s.plain.shape[-1] if s.inv_freq is None else s.turned_dim
    frequencies(s)
    s.turned_dim, s.inv_freq = part, s.inv_freq[: part // 2]


@mistake(
    "rope.frequencies",
    title="the exponents are divided by the width of all heads instead of head_dim",
    cause="D in theta ** (-2i/D) is the size of one head; with hidden_size only the fastest of "
    "the frequencies are used.",
    fix="Write np.arange(0, head_dim, 2) / head_dim.",
    step=ROPE,
)
def frequencies_of_all_heads(s: State) -> None:
    frequencies(s)
    if s.from_theta and s.plain.ndim > 2:
        width = s.plain.shape[-3] * s.plain.shape[-1]
        theta = 10000.0 if s.theta is None else s.theta
        s.inv_freq = own_frequencies(s, width, theta)[: len(s.inv_freq)]


@mistake(
    "rope.turn",
    title="the last elements of each head are turned instead of the first",
    cause="rotary_dim counts from the front: the elements behind it stay as they are.",
    fix="Turn x[..., :rotary_dim] and append x[..., rotary_dim:].",
    step=ROPE,
    rare=True,
)
def last_part_turned(s: State) -> None:
    s.plain = np.roll(s.plain, s.turned_dim, axis=-1)
    turn(s)
    s.out = np.roll(s.out, -s.turned_dim, axis=-1)


@mistake(
    "rope.angle",
    title="the angles are taken as degrees",
    cause="position * frequency is an angle in radians, which is what np.cos and np.sin want.",
    fix="Leave out np.deg2rad, and the factor pi/180.",
    step=ROPE,
    rare=True,
)
def angles_in_degrees(s: State) -> None:
    angle(s)
    s.angles = np.deg2rad(s.angles)


@mistake(
    "rope.angle",
    title="the angles are multiplied by 2 pi",
    cause="The frequency of RoPE is radians a position, not turns a position.",
    fix="Write angle = position * inv_freq.",
    step=ROPE,
    rare=True,
)
def angles_times_two_pi(s: State) -> None:
    angle(s)
    s.angles = 2 * np.pi * s.angles


@mistake(
    "rope.angle",
    title="the table of angles is transposed",
    cause="np.outer(inv_freq, positions) has a column for each position; as many pairs as "
    "positions, and nothing complains.",
    fix="Write np.outer(positions, inv_freq): a row for each position.",
    step=ROPE,
    rare=True,
)
def angles_transposed(s: State) -> None:
    angle(s)
    if s.angles.shape[-1] == s.angles.shape[-2]:
        s.angles = s.angles.swapaxes(-1, -2)


# ---- mistakes: positions -------------------------------------------------------------------------


def shifted(by: int) -> Callable[[State], None]:
    def other(s: State) -> None:
        position(s)
        s.positions = s.positions + by

    return other


mistake(
    "rope.position",
    name="positions_from_one",
    title="every position is one too high",
    cause="Positions count from 0, not from 1; or the length of the cache was read after the new "
    "token had gone into it.",
    fix="Give the first token of a text position 0, and a new token the number of tokens before "
    "it.",
    step=ROPE,
)(shifted(1))

mistake(
    "rope.position",
    name="positions_one_too_low",
    title="every position is one too low",
    cause="The position of a new token is the number of tokens before it, not the position of the "
    "last one.",
    fix="With a cache of n tokens the next token has position n, not n - 1.",
    step=CACHE,
)(shifted(-1))


@mistake(
    "rope.position",
    title="positions start again at 0: offset or positions are ignored",
    cause="With a cache, the tokens of a call are not the first ones of the text.",
    fix="Add the number of tokens in the cache to np.arange(T), or use the positions that are "
    "given.",
    step=CACHE,
)
def positions_restarted(s: State) -> None:
    s.positions, s.offset = None, 0
    position(s)


@mistake(
    "rope.position",
    title="all tokens have the position of the first one",
    cause="One angle is computed for the whole call, instead of one for each token.",
    fix="Use offset + np.arange(T) as positions.",
    step=ROPE,
)
def one_position_for_all(s: State) -> None:
    position(s)
    s.positions = np.broadcast_to(s.positions[..., :1], s.positions.shape)


@mistake(
    "rope.position",
    title="all sequences have the positions of the first one",
    cause="positions (B, T) has a row for each sequence of the batch; only its first row is used.",
    fix="Look up cos and sin with the whole array: cos[positions] is (B, T, D/2).",
    step=ROPE,
)
def positions_of_the_first_sequence(s: State) -> None:
    position(s)
    if s.positions.ndim == 2:
        s.positions = np.broadcast_to(s.positions[:1], s.positions.shape)


def along(axis: int) -> Callable[[State], None]:
    def other(s: State) -> None:
        if s.plain.ndim < -axis:
            return align(s)
        length = s.plain.shape[axis]
        given = s.positions if s.positions.shape == (length,) else s.offset + np.arange(length)
        angles = given[:, None] * s.inv_freq
        s.angles = angles.reshape(length, *(1,) * (-axis - 2), -1)
        return None

    return other


mistake(
    "rope.align",
    name="positions_over_heads",
    title="positions run over the heads: the angle depends on the head instead of the token",
    cause="The array is laid out (heads, tokens, D) where the code expects (tokens, heads, D), or "
    "the other way round.",
    fix="Positions belong to the axis of the tokens, here the last but one: swap the two axes "
    "before, or give cos and sin the shape (T, 1, D/2) where tokens come first.",
    step=ROPE,
)(along(-3))

mistake(
    "rope.align",
    name="positions_over_batch",
    title="positions run over the batch: the angle depends on the sequence instead of the token",
    cause="The table of angles is laid along the first axis of (B, H, T, D).",
    fix="Positions belong to the axis of the tokens, here the last but one.",
    step=ROPE,
    rare=True,
)(along(-4))


# ---- mistakes: too few bits ----------------------------------------------------------------------

# name: (dtype, up to which every whole number is one of its numbers)
SIXTEEN_BITS = {"float16": (np.float16, 2048), "bfloat16": (ml_dtypes.bfloat16, 256)}


def rounded(x: Any, dtype: Any) -> Any:
    return np.asarray(x).astype(dtype).astype(np.float64)


def positions_in(dtype: Any) -> Callable[[State], None]:
    def other(s: State) -> None:
        position(s)
        s.positions = rounded(s.positions, dtype)

    return other


def frequencies_in(dtype: Any) -> Callable[[State], None]:
    def other(s: State) -> None:
        frequencies(s)
        s.inv_freq = rounded(s.inv_freq, dtype)

    return other


def angles_in(dtype: Any) -> Callable[[State], None]:
    def other(s: State) -> None:
        s.positions, s.inv_freq = rounded(s.positions, dtype), rounded(s.inv_freq, dtype)
        angle(s)
        s.angles = rounded(s.angles, dtype)

    return other


def cos_and_sin_in(dtype: Any) -> Callable[[State], None]:
    def other(s: State) -> None:
        cos_sin(s)
        s.cos, s.sin = (s.run.array(rounded(table, dtype)) for table in (s.cos, s.sin))

    return other


WIDE = "Compute positions, frequencies, angles, cos and sin in float32, whatever dtype x has."

for name, (dtype, exact) in SIXTEEN_BITS.items():
    mistake(
        "rope.position",
        name=f"positions_in_{name}",
        title=f"the positions are rounded to {name}",
        cause=f"{name} knows whole numbers up to {exact:,}; beyond, neighbouring tokens share a "
        "position.",
        fix=WIDE,
        step=ROPE,
        rare=True,
    )(positions_in(dtype))
    mistake(
        "rope.frequencies",
        name=f"frequencies_in_{name}",
        title=f"the frequencies are rounded to {name}",
        cause=f"model.to({name}) rounds the buffer inv_freq too, and each position multiplies the "
        "error.",
        fix=WIDE,
        step=ROPE,
        rare=True,
    )(frequencies_in(dtype))
    mistake(
        "rope.angle",
        name=f"angles_in_{name}",
        title=f"the angles are computed in {name}",
        cause=f"An angle of a hundred radians, rounded to {name}, is off by a good part of a turn.",
        fix=WIDE,
        step=ROPE,
        rare=True,
    )(angles_in(dtype))
    mistake(
        "rope.cos_sin",
        name=f"cos_and_sin_in_{name}",
        title=f"cos and sin are rounded to {name}",
        cause="The tables are kept in the 16 bits of the model instead of in float32.",
        fix=WIDE,
        step=ROPE,
        rare=True,
    )(cos_and_sin_in(dtype))
