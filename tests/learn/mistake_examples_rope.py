"""RoPE as learners write it wrong: with rotate_half and tables, or with complex numbers."""

import ml_dtypes
import numpy as np

import simdformer as sf
from conftest import normal
from mistake_examples import Examples

example = Examples()

T, D = 9, 16
POSITIONS = np.arange(T)
bfloat16 = ml_dtypes.bfloat16


def heads(rng):
    return normal(rng, 2, 4, T, D)


def frequencies(theta=10000.0, dim=D):
    return 1 / theta ** (np.arange(0, dim, 2) / dim)


def rotate_half(x):
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([-b, a], axis=-1)


def with_tables(x, angles):
    """As in transformers: (..., T, D) and (T, D/2)."""
    cos, sin = (np.concatenate([f(angles)] * 2, axis=-1) for f in (np.cos, np.sin))
    return x * cos + rotate_half(x) * sin


def complex_numbers(x):
    return np.ascontiguousarray(x, np.float64).view(np.complex128)


def with_complex_numbers(x, angles):
    """As in Meta's llama: (..., T, D) and (T, D/2)."""
    return (complex_numbers(x) * np.exp(1j * angles)).view(np.float64)


BOTH = {"half": with_tables, "interleaved": with_complex_numbers}


def angles(theta=10000.0, positions=POSITIONS):
    return np.outer(positions, frequencies(theta))


def wrong_angles(name, wrong, layout="half", **meant):
    """A mistake in the angles alone; `wrong` gives them for (T, D/2)."""

    @example(name)
    def _(rng):
        x = heads(rng)
        return (
            BOTH[layout](x, wrong()).astype(np.float32),
            sf.rope,
            (x,),
            meant | {"layout": layout},
        )


def before_split(layout):
    @example("rope.before_split")
    def _(rng):
        x = heads(rng)
        wide = x.swapaxes(-3, -2).reshape(2, T, -1)
        turned = BOTH[layout](wide, np.outer(POSITIONS, frequencies(500.0, 4 * D)))
        mine = turned.reshape(2, T, 4, D).swapaxes(-3, -2).astype(np.float32)
        return mine, sf.rope, (x,), {"layout": layout, "theta": 500.0}


before_split("half")
before_split("interleaved")

# ---- exponents and theta -------------------------------------------------------------------------


def of_frequencies(name, wrong, layout="half", **meant):
    wrong_angles(f"rope_frequencies.{name}", lambda: np.outer(POSITIONS, wrong), layout, **meant)


EVEN = np.arange(0, D, 2)
of_frequencies("exponent_i_over_d", 1 / 10000 ** (np.arange(D // 2) / D))
of_frequencies("exponent_4i_over_d", 1 / 10000 ** (EVEN / (D // 2)), "interleaved")
of_frequencies("exponent_from_one", [10000 ** (-2 * i / D) for i in range(1, D // 2 + 1)])
of_frequencies("exponent_odd", 10000.0 ** (-np.arange(1, D + 1, 2) / D))
of_frequencies("exponent_not_divided", 10000.0**-EVEN)
of_frequencies("exponent_linspace", (1 / 10000) ** np.linspace(0, 1, D // 2), "interleaved")
of_frequencies("power_not_inverted", 500 ** (EVEN / D), theta=500.0)
of_frequencies("power_without_log_theta", np.exp(-EVEN / D))
of_frequencies("power_reversed", frequencies()[::-1], "interleaved")
for theta in (10_000, 100_000, 150_000, 500_000, 1_000_000, 5_000_000, 10_000_000):
    wrong_angles(
        f"rope_frequencies.theta_{theta}",
        lambda theta=theta: angles(theta),
        "half" if theta % 3 else "interleaved",
        theta=25_000.0,
    )
    wrong_angles(
        f"rope.ignored_theta_{theta}",
        lambda theta=theta: angles(theta),
        inv_freq=frequencies(25_000.0) / 8,
    )

# ---- positions -----------------------------------------------------------------------------------

wrong_angles("rope.positions_from_one", lambda: angles(positions=np.arange(1, T + 1)))
wrong_angles(
    "rope.positions_from_one", lambda: angles(positions=np.arange(8, T + 8)), "half", offset=7
)
wrong_angles(
    "rope.positions_one_too_low",
    lambda: angles(positions=30 + np.arange(T)),
    "interleaved",
    positions=31 + np.arange(T),
)
wrong_angles("rope.positions_restarted", angles, "interleaved", offset=12)
wrong_angles("rope.positions_restarted", angles, positions=np.array([4, 5, 6, 7, 0, 1, 2, 3, 8]))
wrong_angles(
    "rope.one_position_for_all", lambda: angles(positions=np.full(T, 20)), "half", offset=20
)
wrong_angles("rope.angles_in_degrees", lambda: np.deg2rad(angles()))
wrong_angles("rope.angles_to_degrees", lambda: np.rad2deg(angles()))
wrong_angles("rope.angles_times_two_pi", lambda: 2 * np.pi * angles(), "interleaved")


@example("rope.positions_of_the_first_sequence")
def _(rng):
    x, positions = heads(rng), rng.integers(0, 50, (2, T))
    mine = with_tables(x, angles(positions=positions[0]))
    return mine, sf.rope, (x,), {"layout": "half", "positions": positions}


def turned(name, wrong, *also, layout="half", shape=(2, 4, T, D), **meant):
    """`wrong` gives the result for x of that shape."""

    @example(f"rope.{name}", *also)
    def _(rng):
        x = normal(rng, *shape)
        return wrong(x), sf.rope, (x,), {"layout": layout} | meant


def both_halves(table):
    return np.concatenate([table] * 2, axis=-1)


COS, SIN = np.cos(angles()), np.sin(angles())
TRANSPOSED = np.outer(frequencies(), np.arange(8))
turned("angles_transposed", lambda x: with_tables(x, TRANSPOSED), shape=(3, 8, 16))
# (B, T, H, D), turned as it should be; check is told that it is (B, H, T, D).
turned(
    "positions_over_heads",
    lambda x: with_complex_numbers(x, angles()[:, None]),
    layout="interleaved",
    shape=(2, T, 4, D),
)
# (T, B, H, D), as libraries that keep time first have it.
turned(
    "positions_over_batch",
    lambda x: with_tables(x, angles()[:, None, None]),
    shape=(T, 2, 4, D),
)


# ---- pairs and the turn --------------------------------------------------------------------------

turned("layout_swapped", lambda x: with_complex_numbers(x, angles()))
turned(
    "layout_swapped",
    lambda x: with_tables(x, angles(500.0)),
    layout="interleaved",
    theta=500.0,
    shape=(T, D),
)


def partners_of_pairs(x):
    partner = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
    return x * both_halves(COS) + partner * both_halves(SIN)


def halves_side_by_side(x):
    z = complex_numbers(x) * np.exp(1j * angles())
    return np.concatenate([z.real, z.imag], axis=-1)


def pairs_side_by_side(x):
    a, b = np.split(with_tables(x, angles()), 2, axis=-1)
    return np.stack([a, b], axis=-1).reshape(x.shape)


turned(
    "layouts_mixed", lambda x: x * np.repeat(COS, 2, -1) + rotate_half(x) * np.repeat(SIN, 2, -1)
)
turned("layouts_mixed", partners_of_pairs, layout="interleaved")
turned("put_back_in_the_other_order", halves_side_by_side, layout="interleaved")
turned("put_back_in_the_other_order", pairs_side_by_side)
wrong_angles("rope.turned_backwards", lambda: -angles(), "interleaved")


turned("turned_backwards", lambda x: x * both_halves(COS) - rotate_half(x) * both_halves(SIN))
turned("cos_and_sin_swapped", lambda x: x * both_halves(SIN) + rotate_half(x) * both_halves(COS))


def halves(name, wrong):
    """`wrong` gives both halves from (first, second, cos, sin)."""

    @example(name)
    def _(rng):
        x = heads(rng)
        a, b = np.split(x, 2, axis=-1)
        mine = np.concatenate(wrong(a, b, np.cos(angles()), np.sin(angles())), axis=-1)
        return mine, sf.rope, (x,), {"layout": "half"}


halves("rope.minus_missing", lambda a, b, c, s: [a * c + b * s, b * c + a * s])
halves("rope.two_minuses", lambda a, b, c, s: [a * c - b * s, b * c - a * s])
halves("rope.partners_not_swapped", lambda a, b, c, s: [a * c - a * s, b * c + b * s])
halves("rope.rotate_half_forgotten", lambda a, b, c, s: [a * c + a * s, b * c + b * s])


def in_place(x):
    mine = x.astype(np.float64)
    mine[..., 0::2] = mine[..., 0::2] * COS - mine[..., 1::2] * SIN
    mine[..., 1::2] = mine[..., 1::2] * COS + mine[..., 0::2] * SIN
    return mine


def first_four(x):
    some = with_tables(x[..., :4], np.outer(POSITIONS, frequencies()[:2]))
    return np.concatenate([some, x[..., 4:]], axis=-1)


def last_four(x):
    some = with_complex_numbers(x[..., 12:], np.outer(POSITIONS, frequencies(dim=4)))
    return np.concatenate([x[..., :12], some], axis=-1)


turned("turned_in_place", in_place, layout="interleaved")
turned(
    "not_turned", lambda x: x, "rope.one_position_for_all", layout="interleaved", theta=500_000.0
)
# One new token beside a cache of 40: whether position 0 or no turn at all, it is the same.
turned("not_turned", lambda x: x.copy(), "rope.positions_restarted", shape=(4, 1, D), offset=40)
turned("turned_twice", lambda x: with_tables(with_tables(x, angles()), angles()).astype("f"))
turned(
    "attention_factor_ignored",
    lambda x: with_tables(x, np.outer(POSITIONS, frequencies() / 4)),
    inv_freq=frequencies() / 4,
    attention_factor=1.1386,
)

# ---- a part of the head only ---------------------------------------------------------------------

turned("rotary_dim_ignored", lambda x: with_tables(x, angles()), rotary_dim=8)
turned("frequencies_of_the_whole_head", first_four, rotary_dim=4)
WIDE = np.outer(POSITIONS, frequencies(dim=64)[:8])  # 4 of 16: the learner's table is made for 64
turned("frequencies_of_all_heads", lambda x: with_tables(x, WIDE))
turned("last_part_turned", last_four, layout="interleaved", rotary_dim=4)

# ---- too few bits --------------------------------------------------------------------------------

FAR = 5000 + np.arange(T)  # neither 16-bit format knows all of these whole numbers
for name, dtype in (("float16", np.float16), ("bfloat16", bfloat16)):
    wrong_angles(
        f"rope.positions_in_{name}",
        lambda dtype=dtype: angles(positions=FAR.astype(dtype).astype(np.float64)),
        offset=5000,
    )
    wrong_angles(
        f"rope.frequencies_in_{name}",
        lambda dtype=dtype: np.outer(100 + POSITIONS, frequencies().astype(dtype).astype(float)),
        "interleaved",
        offset=100,
    )
    wrong_angles(
        f"rope.angles_in_{name}",
        lambda dtype=dtype: np.multiply.outer(
            (40 + POSITIONS).astype(dtype), frequencies().astype(dtype)
        ).astype(np.float64),
        offset=40,
    )

    @example(f"rope.cos_and_sin_in_{name}")
    def _(rng, dtype=dtype):
        x = heads(rng)
        tables = (f(angles()).astype(dtype).astype(np.float32) for f in (np.cos, np.sin))
        cos, sin = (np.concatenate([table] * 2, axis=-1) for table in tables)
        return x * cos + rotate_half(x) * sin, sf.rope, (x,), {"layout": "half"}
