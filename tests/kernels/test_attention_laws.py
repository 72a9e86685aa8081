"""scaled_dot_product_attention: laws, memory, dtypes, calls drawn at random, accuracy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from attention_cases import EXTRAS, attention, check, problem
from cases import each
from conftest import (
    DTYPES,
    LAYOUTS,
    SIXTEEN_BITS,
    assert_as_accurate_as_torch,
    normal,
    relaid,
    same_bits,
)
from simdformer.runtime import awake

# ---- laws ----------------------------------------------------------------------------------------


@each("L", [1, 5, 40])
def test_with_one_key_the_result_is_its_value(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=1, D=16, Dv=21, dtype=dtype)
    want = np.broadcast_to(np.repeat(v, 2, axis=1), (2, 4, L, 21)).copy()
    assert same_bits(attention(q, k, v), want)


def test_out_has_the_same_bits_whether_or_not_extras_are_asked_for(isa, dtype, rng):
    for L in (1, 2, 30):
        q, k, v = problem(rng, H=4, K=2, L=L, S=90, D=16, dtype=dtype)
        whole = attention(q, k, v, is_causal=True, causal_offset=90 - L, **EXTRAS)
        for count in range(8):
            asked = {name: bool(count >> i & 1) for i, name in enumerate(EXTRAS)}
            got = attention(q, k, v, is_causal=True, causal_offset=90 - L, **asked)
            got = got if isinstance(got, tuple) else (got,)
            expected = [
                whole[0],
                *(extra for extra, name in zip(whole[1:], EXTRAS, strict=True) if asked[name]),
            ]
            assert len(got) == len(expected)
            assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True)), asked


@each("L", [1, 3, 20])
def test_heads_and_sequences_do_not_know_each_other(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(3,), H=4, K=4, L=L, S=25, D=16, dtype=dtype)
    whole = attention(q, k, v)
    order = np.array([2, 0, 3, 1])
    assert same_bits(attention(q[:, order], k[:, order], v[:, order]), whole[:, order])
    assert same_bits(attention(q[::-1], k[::-1], v[::-1]), whole[::-1].copy())
    assert same_bits(attention(q[1, 2], k[1, 2], v[1, 2]), whole[1, 2])


def test_nor_on_whether_the_threads_are_kept_awake(isa, dtype, rng):
    """In a forward pass fewer keys are worth a thread, and are asked for ahead."""
    for L, S in [(1, 3), (1, 70), (4, 65), (1, 700)]:
        q, k, v = problem(rng, lead=(2,), H=8, K=4, L=L, S=S, D=32, dtype=dtype)
        want = attention(q, k, v, is_causal=True, causal_offset=S - L)
        for threads in (1, 2, 4):
            with sf.num_threads(threads), awake:
                got = attention(q, k, v, is_causal=True, causal_offset=S - L)
            assert same_bits(got, want)


@each("D", [3, 36, 136])  # rows of less than a line of a cache, and of lines and a half
@each("H", [2, 6])
def test_nor_on_how_keys_lie_that_are_asked_for_ahead(isa, dtype, D, H, rng):
    q, k, v = problem(rng, lead=(2,), H=H, K=2, L=1, S=300, D=D, Dv=D + 4, dtype=dtype)
    want = attention(q, k, v)
    between = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (k, v)]  # heads beside heads
    wide = [np.concatenate([x, x], axis=-1)[..., : x.shape[-1]] for x in (k, v)]
    with awake:
        for key, value in [(k, v), between, wide]:
            assert same_bits(attention(q, key, value), want)


# ---- memory and dtypes ---------------------------------------------------------------------------


@each("heads", [2, 4])
def test_queries_are_read_in_place_or_copied_with_the_same_bits(isa, dtype, heads, rng):
    """Rows that lie evenly are multiplied where they are; unaligned ones and groups are copied."""
    q, k, v = problem(rng, H=heads, K=2, L=40, S=40, D=21, dtype=dtype)
    want = attention(q, k, v, is_causal=True)
    tokens_first = q.swapaxes(0, 1).copy().swapaxes(0, 1)
    backwards = q[:, ::-1].copy()[:, ::-1]
    unaligned = np.frombuffer(b"." + q.tobytes(), dtype, offset=1).reshape(q.shape)
    uneven = np.zeros((heads, 40, 21 * dtype.itemsize + 1), np.uint8)
    uneven[..., :-1] = q.view(np.uint8)
    for laid in (tokens_first, backwards, unaligned, uneven[..., :-1].view(dtype)):
        assert same_bits(laid, q)
        assert same_bits(attention(laid, k, v, is_causal=True), want)


@each("L", [1, 9])
def test_keys_may_be_part_of_a_larger_cache(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=64, D=16, dtype=dtype)
    cache = np.stack([k, v])
    cache[..., 40:, :] = np.nan
    want = attention(q, k[:, :, :40].copy(), v[:, :, :40].copy())
    assert same_bits(attention(q, cache[0][:, :, :40], cache[1][:, :, :40]), want)
    assert same_bits(
        attention(q, *cache, key_lengths=[40, 40]), attention(q, k, v, key_lengths=[40, 40])
    )


@each("L", [1, 9])
def test_leading_axes_of_key_and_value_may_be_1(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(3, 2), H=4, K=2, L=L, S=25, D=16, dtype=dtype)
    for index in (np.s_[:1], np.s_[:, :1], np.s_[:1, :1]):
        shared_k, shared_v = k[index], v[index]
        want = attention(
            q, np.broadcast_to(shared_k, k.shape).copy(), np.broadcast_to(shared_v, v.shape).copy()
        )
        assert same_bits(attention(q, shared_k, shared_v), want)
        assert same_bits(attention(q, np.broadcast_to(shared_k, k.shape), shared_v), want)


@each("narrow", SIXTEEN_BITS)
@each("L", [1, 9])
def test_beside_a_float32_query_key_value_and_sinks_may_be_16_bit(isa, narrow, L, rng):
    q, k, v = problem(rng, H=4, K=2, L=L, S=40, D=24)
    k, v, sinks = k.astype(narrow), v.astype(narrow), normal(rng, 4, dtype=narrow)
    assert check(q, k, v).dtype == np.float32  # as exact as float32: nothing is rounded on the way
    check(q, k, v, sinks=sinks)
    check(q, k, v, is_causal=True, causal_offset=40 - L)


@each("narrow", SIXTEEN_BITS)
@each("L", [1, 9])
def test_beside_a_16_bit_query_key_value_and_sinks_may_be_float32(isa, narrow, L, rng):
    q, k, v = problem(rng, H=4, K=2, L=L, S=40, D=24)
    q, sinks = q.astype(narrow), normal(rng, 4)
    assert check(q, k, v).dtype == narrow
    check(q, k, v, sinks=sinks)
    check(q, k.astype(narrow), v.astype(narrow), sinks=sinks)


# ---- drawn at random -----------------------------------------------------------------------------


@given(data=st.data())
def test_shapes_and_options_drawn_at_random(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 999), "seed"))
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=2), "leading axes"))
    K, group = draw(st.integers(1, 3), "K"), draw(st.integers(1, 4), "H/K")
    L, S = draw(st.integers(0, 20), "L"), draw(st.integers(0, 70), "S")
    dtype = draw(st.sampled_from(DTYPES))
    q, k, v = problem(
        rng,
        lead=lead,
        H=K * group,
        K=K,
        L=L,
        S=S,
        D=draw(st.integers(1, 70), "D"),
        Dv=draw(st.integers(1, 40), "Dv"),
        dtype=dtype,
    )
    kwargs = {}
    if draw(st.booleans(), "causal"):
        kwargs["is_causal"] = True
    if draw(st.booleans(), "windowed"):
        side = st.none() | st.integers(0, 40)
        kwargs["window"] = draw(st.integers(1, 40) | st.tuples(side, side), "window")
    if draw(st.booleans(), "in chunks"):
        kwargs["chunk"] = draw(st.integers(1, 40), "chunk")
    if kwargs.keys() & {"is_causal", "chunk"} or kwargs.get("window", (None,) * 2) != (None, None):
        kwargs["causal_offset"] = draw(st.integers(-5, 75), "offset")
        if len(lead) == 1 and draw(st.booleans(), "an offset a sequence"):
            kwargs["causal_offset"] = rng.integers(-5, 75, lead)
    for name in ("key_starts", "key_lengths"):
        if len(lead) == 1 and draw(st.booleans(), name):
            kwargs[name] = rng.integers(0, S + 1, lead)
    if draw(st.booleans(), "packed"):
        kwargs["segment_ids"] = tuple(np.sort(rng.integers(0, 4, (*lead, n))) for n in (L, S))
    kind = draw(st.sampled_from([None, "bool", "additive"]), "mask")
    mask = None
    if kind is not None:
        axes = [n if draw(st.booleans()) else 1 for n in (*lead, K * group, L, S)]
        axes = axes[draw(st.integers(0, len(axes))) :]
        mask = rng.random(axes) < 0.8 if kind == "bool" else normal(rng, *axes)
        if kind == "additive" and mask.size:
            mask = np.where(rng.random(axes) < 0.1, np.float32(-np.inf), mask)
        mask = np.asarray(mask)
    if draw(st.booleans(), "capped"):
        kwargs["softcap"] = 5.0
    if draw(st.booleans(), "sinks"):
        kwargs["sinks"] = normal(rng, K * group, dtype=dtype)
    if draw(st.booleans(), "scaled"):
        kwargs["scale"] = draw(st.sampled_from([0.0, 0.1, -0.3]))
    if lead and draw(st.booleans(), "one query for all"):
        q = q[:1]
    q, k, v = (relaid(rng, x, draw(st.sampled_from(LAYOUTS))) for x in (q, k, v))
    for name in sf.isas():
        with sf.use_isa(name):
            check(q, k, v, mask, **kwargs)


# ---- accuracy ------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@each("D", [64, 128])
@each("L, S", [(1, 300), (65, 65), (65, 200)])
def test_rms_error_is_at_most_one_and_a_half_times_torchs(isa, dtype, L, S, D, rng):
    problems = [
        (problem(rng, lead=(2,), H=4, K=2, L=L, S=S, D=D, dtype=dtype), {})
        for _ in range(6 if L == 1 else 2)
    ]
    assert_as_accurate_as_torch("scaled_dot_product_attention", attention, problems)
    if L == S:
        causal = [(args, {"is_causal": True}) for args, _ in problems]
        assert_as_accurate_as_torch("scaled_dot_product_attention", attention, causal)
