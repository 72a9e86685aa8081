"""rope in both layouts."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from cases import each
from conftest import (
    DTYPES,
    LAYOUTS,
    assert_as_accurate_as_torch,
    assert_close,
    normal,
    relaid,
    same_bits,
)
from simdformer import reference
from simdformer.reference.forward import float64

each_layout = pytest.mark.parametrize("layout", ["half", "interleaved"])
DIMS = [2, 4, 6, 8, 10, 14, 16, 18, 30, 32, 34, 62, 64, 66, 96, 126, 128, 130, 256]


def size_of_pairs(x, layout, rotary_dim=None, attention_factor=1.0):
    """|a| + |b| for every element, the magnitude of what is added up; the rest is copied."""
    size = np.abs(float64(x))
    n = size.shape[-1] if rotary_dim is None else rotary_dim
    first, second = (
        (slice(0, n // 2), slice(n // 2, n))
        if layout == "half"
        else (slice(0, n, 2), slice(1, n, 2))
    )
    size[..., first] = size[..., second] = (size[..., first] + size[..., second]) * abs(
        attention_factor
    )
    return size


@each_layout
@each("dim", DIMS)
def test_agrees_with_the_oracle(isa, dtype, dim, layout, oracle, rng):
    x = normal(rng, 2, 3, 5, dim, dtype=dtype)
    got = sf.rope(x, layout=layout)
    assert got.dtype == dtype
    want = oracle("rope", x, layout=layout)
    # Such code in PyTorch rounds the angle to float32, in 16 bits also cos, sin and both products.
    assert_close(got, want, "rope", scale=size_of_pairs(x, layout), slack=oracle.slack)


@each_layout
def test_position_zero_changes_nothing(isa, dtype, layout, rng):
    x = normal(rng, 3, 1, 20, dtype=dtype)
    assert same_bits(sf.rope(x, layout=layout), x)


@each_layout
def test_offset_is_the_first_position(isa, dtype, layout, rng):
    """With a cache the last positions of a long call are those of a short one with an offset."""
    x = normal(rng, 3, 9, 20, dtype=dtype)
    whole = sf.rope(x, layout=layout)
    for begin in range(9):
        assert same_bits(
            sf.rope(x[:, begin:], layout=layout, offset=begin), whole[:, begin:].copy()
        )
    assert same_bits(sf.rope(x, layout=layout, positions=np.arange(9)), whole)


@each_layout
def test_angles_of_the_call_before_serve_no_other_call(layout, rng):
    """Two calls that differ in what they ask for, or in where it is computed, give one after the
    other what each gives after one of no relation to it."""
    x = normal(rng, 2, 3, 8)
    inv_freq = 1.0 / 10000 ** (np.arange(4) / 4)
    calls = [
        {},
        {"offset": 4},
        {"positions": [4, 5, 6]},
        {"positions": [4, 9, 6]},
        {"positions": [[4, 5, 6], [4, 5, 6]]},
        {"theta": 1e6},
        {"inv_freq": inv_freq},
        {"inv_freq": inv_freq * 2},
        {"attention_factor": 0.5},
        {"rotary_dim": 4},
    ]

    def turn(isa, dtype, kwargs):
        with sf.use_isa(isa):
            return sf.rope(x.astype(dtype), layout=layout, **kwargs)

    every = list(itertools.product(sf.isas(), (np.float32, np.float64), calls))
    alone = []
    for one in every:
        sf.rope(np.ones((1, 2), np.float32), layout=layout)
        alone.append(turn(*one))
    for first in every:
        for other, expected in zip(every, alone, strict=True):
            if first[:2] != other[:2] and first[2] is not other[2]:
                continue
            turn(*first)
            assert same_bits(turn(*other), expected), (first, other)


@each_layout
@each("heads", [(), (3,), (2, 3)])
def test_positions_of_shape_b_t_belong_to_the_first_axis_of_x(isa, dtype, layout, heads, rng):
    x = normal(rng, 4, *heads, 5, 12, dtype=dtype)
    positions = rng.integers(0, 300, (4, 5))
    got = sf.rope(x, layout=layout, positions=positions)
    for b in range(4):
        assert same_bits(got[b], sf.rope(x[b], layout=layout, positions=positions[b]))


@each_layout
def test_the_layouts_differ_by_a_permutation(isa, dtype, layout, rng):
    x = normal(rng, 3, 5, 26, dtype=dtype)
    evens_first = np.r_[0:26:2, 1:26:2]
    turned = sf.rope(x, layout="interleaved", offset=7)
    assert same_bits(
        sf.rope(x[..., evens_first].copy(), layout="half", offset=7),
        turned[..., evens_first].copy(),
    )


@each_layout
@each("memory", LAYOUTS)
def test_the_part_that_is_copied_may_be_of_any_length(isa, dtype, layout, memory, rng):
    """An odd last axis too: head_dim 17 of which 16 are turned, 5 of which 2 are."""
    positions = rng.integers(0, 90, (2, 5))
    widths = (2, 3, 5, 17, 19, 35, 67)
    for rotary_dim, width in itertools.product((2, 4, 6, 10, 16, 18, 34), widths):
        if rotary_dim > width:
            continue
        plain = normal(rng, 2, 3, 5, width, dtype=dtype)
        x = relaid(rng, plain, memory)
        got = sf.rope(x, layout=layout, rotary_dim=rotary_dim, positions=positions)
        want = sf.rope(plain[..., :rotary_dim].copy(), layout=layout, positions=positions)
        assert same_bits(got[..., :rotary_dim].copy(), want), (rotary_dim, width)
        assert same_bits(got[..., rotary_dim:].copy(), plain[..., rotary_dim:].copy())
        ref = reference.rope(plain, layout=layout, rotary_dim=rotary_dim, positions=positions)
        assert_close(got, ref, "rope", scale=size_of_pairs(plain, layout, rotary_dim))
        if x.flags.writeable:
            options = {"layout": layout, "rotary_dim": rotary_dim, "positions": positions}
            assert sf.rope(x, **options, out=x) is x
            assert same_bits(np.ascontiguousarray(x), got), (rotary_dim, width)


@each_layout
@each("position", [10_000, 1_000_000, 2**31, 2**40])
def test_far_positions_are_as_exact_as_near_ones(isa, layout, position, rng):
    """Angles are formed in float64: in float32 the position 1,000,000 is off by 0.03 rad."""
    x = normal(rng, 2, 3, 64)
    got = sf.rope(x, layout=layout, offset=position)
    want = reference.rope(x, layout=layout, offset=position)
    assert_close(got, want, "rope", scale=size_of_pairs(x, layout) * (1 + position * 2e-16 / 1e-7))


@each_layout
def test_a_nan_stays_in_its_pair(isa, dtype, layout, rng):
    x = normal(rng, 3, 5, 20, dtype=dtype)
    x[1, 2, 13] = np.nan
    got = float64(sf.rope(x, layout=layout))
    partner = 3 if layout == "half" else 12
    assert {tuple(at) for at in np.argwhere(np.isnan(got))} == {(1, 2, 13), (1, 2, partner)}


@given(data=st.data())
def test_shapes_and_options_drawn_at_random(data):
    draw = data.draw
    lead = draw(st.lists(st.integers(1, 3), max_size=3), "leading axes")
    steps, half = draw(st.integers(1, 6), "T"), draw(st.integers(1, 40), "D/2")
    rng = np.random.default_rng(draw(st.integers(0, 99), "seed"))
    kwargs = {"layout": draw(st.sampled_from(["half", "interleaved"]))}
    if draw(st.booleans(), "partial"):
        kwargs["rotary_dim"] = 2 * draw(st.integers(1, half), "rotary_dim/2")
    where = draw(st.sampled_from(["nowhere", "offset", "positions", "positions of a batch"]))
    if where == "offset":
        kwargs["offset"] = draw(st.integers(0, 10_000))
    elif where != "nowhere":
        batch = [lead[0]] if where.endswith("batch") and lead else []
        kwargs["positions"] = rng.integers(0, 10_000, (*batch, steps))
    if draw(st.booleans(), "inv_freq"):
        kwargs["inv_freq"] = rng.random(kwargs.get("rotary_dim", 2 * half) // 2)
    elif draw(st.booleans(), "theta"):
        kwargs["theta"] = draw(st.sampled_from([100, 10_000.0, 5e5]))
    kwargs["attention_factor"] = draw(st.sampled_from([1.0, 1.5]))
    rest = draw(st.integers(0, 3), "copied") if "rotary_dim" in kwargs else 0
    dtype = draw(st.sampled_from(DTYPES))
    x = normal(rng, *lead, steps, 2 * half + rest, dtype=dtype)
    want = reference.rope(x, **kwargs)
    x = relaid(rng, x, draw(st.sampled_from(LAYOUTS)))
    scale = size_of_pairs(x, kwargs["layout"], kwargs.get("rotary_dim"), kwargs["attention_factor"])
    # float64 angles of 10,000 are themselves rounded, in the reference too
    slack = 1 + 10_000 if dtype == np.float64 else 1
    for name in sf.isas():
        with sf.use_isa(name):
            assert_close(sf.rope(x, **kwargs), want, "rope", scale=scale, slack=slack)


@each_layout
def test_rms_error_is_at_most_one_and_a_half_times_torchs(isa, dtype, layout, rng):
    problems = [
        ((normal(rng, 4, 50, 64, dtype=dtype),), {"layout": layout, "offset": p})
        for p in (0, 100, 3000)
    ]
    assert_as_accurate_as_torch("rope", sf.rope, problems)
