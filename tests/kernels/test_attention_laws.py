"""scaled_dot_product_attention: laws, memory, dtypes, calls drawn at random, accuracy."""

from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from attention_cases import COARSE, EXTRAS, attention, check, nearly, problem
from cases import each
from conftest import (
    DTYPES,
    LAYOUTS,
    SIXTEEN_BITS,
    assert_as_accurate_as_torch,
    assert_threads_change_no_bit,
    normal,
    relaid,
    same_bits,
)
from simdformer.reference.forward import float64
from simdformer.runtime import awake

# ---- laws ----------------------------------------------------------------------------------------


@each("L", [1, 5, 40])
def test_with_one_key_the_result_is_its_value(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=1, D=16, Dv=21, dtype=dtype)
    want = np.broadcast_to(np.repeat(v, 2, axis=1), (2, 4, L, 21)).copy()
    assert same_bits(attention(q, k, v), want)


def test_with_equal_values_the_result_is_that_value(isa, dtype, rng):
    q, k, v = problem(rng, H=2, K=2, L=9, S=50, D=16, dtype=dtype)
    v[:] = v[:, :1]
    np.testing.assert_allclose(
        float64(attention(q, k, v)),
        np.broadcast_to(float64(v[:, :1]), q.shape),
        rtol=8e-3 if dtype.itemsize == 2 else 3e-6,
    )


@each("L", [1, 9, 70])
def test_rows_of_weights_sum_to_one(isa, dtype, L, rng):
    q, k, v = problem(rng, H=2, K=1, L=L, S=77, D=16, dtype=dtype)
    weights = attention(q, k, v, return_weights=True)[1]
    np.testing.assert_allclose(float64(weights).sum(-1), 1, rtol=COARSE[dtype.itemsize])
    assert (weights >= 0).all()


@each("L", [1, 9, 70])
def test_what_is_returned_is_what_was_computed(isa, dtype, L, rng):
    """weights = exp(scores - lse), and they give the result."""
    q, k, v = problem(rng, H=2, K=2, L=L, S=77, D=16, dtype=dtype)
    out, weights, scores, lse = attention(q, k, v, is_causal=True, causal_offset=77 - L, **EXTRAS)
    coarse = COARSE[dtype.itemsize]
    # a rounding of a 16-bit score, as large as 8 here, is a factor of the weight
    factor = np.exp(float64(scores) - lse[..., None])
    np.testing.assert_allclose(float64(weights), factor, rtol=2 * coarse, atol=1e-30)
    nearly((float64(weights) @ float64(v)).astype(dtype), out)


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


def test_the_past_does_not_depend_on_the_future(isa, dtype, rng):
    q, k, v = problem(rng, H=2, K=1, L=40, S=40, D=16, dtype=dtype)
    whole = attention(q, k, v, is_causal=True)
    for n in (1, 2, 7, 16, 33, 39):
        prefix = attention(q[:, :n], k[:, :n], v[:, :n], is_causal=True)
        nearly(prefix, whole[:, :n])
        last = attention(q[:, n - 1 : n], k[:, :n], v[:, :n], is_causal=True, causal_offset=n - 1)
        nearly(last, whole[:, n - 1 : n])


@each("L", [1, 3, 20])
def test_grouped_queries_are_repeat_kv_and_multi_head_attention(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=6, K=2, L=L, S=25, D=16, dtype=dtype)
    nearly(attention(q, k, v), attention(q, sf.repeat_kv(k, 3), sf.repeat_kv(v, 3)))


@each("L", [1, 3, 20])
def test_heads_and_sequences_do_not_know_each_other(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(3,), H=4, K=4, L=L, S=25, D=16, dtype=dtype)
    whole = attention(q, k, v)
    order = np.array([2, 0, 3, 1])
    assert same_bits(attention(q[:, order], k[:, order], v[:, order]), whole[:, order])
    assert same_bits(attention(q[::-1], k[::-1], v[::-1]), whole[::-1].copy())
    assert same_bits(attention(q[1, 2], k[1, 2], v[1, 2]), whole[1, 2])


def test_the_order_of_the_keys_does_not_matter(isa, dtype, rng):
    q, k, v = problem(rng, H=2, K=2, L=9, S=45, D=16, dtype=dtype)
    order = rng.permutation(45)
    nearly(attention(q, k[:, order], v[:, order]), attention(q, k, v))


def test_the_result_does_not_depend_on_the_number_of_threads(isa, dtype, rng):
    for L, S in [(1, 2000), (5, 600), (150, 150)]:
        q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=S, D=32, dtype=dtype)
        how = {"is_causal": True, "causal_offset": S - L, **EXTRAS}
        assert_threads_change_no_bit(partial(attention, q, k, v, **how))


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


@each("memory", LAYOUTS)
@each("L", [1, 9])
def test_any_strides_of_leading_axes(isa, dtype, memory, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=25, D=16, dtype=dtype)
    want = attention(q, k, v)
    assert same_bits(attention(*(relaid(rng, x, memory) for x in (q, k, v))), want)


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


def test_out_is_returned_and_holds_the_result(isa, dtype, rng):
    for L in (1, 9):
        q, k, v = problem(rng, H=4, K=2, L=L, S=40, D=24, Dv=16, dtype=dtype)
        want = attention(q, k, v)
        out = np.full_like(want, np.nan)
        assert attention(q, k, v, out=out) is out
        assert same_bits(out, want)
        merged = np.full(
            (L, 4, 16), np.nan, dtype
        )  # heads side by side, as the output projection wants them
        got = attention(q, k, v, out=merged.swapaxes(0, 1), return_lse=True)
        assert same_bits(np.ascontiguousarray(merged.swapaxes(0, 1)), want)
        assert len(got) == 2


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
