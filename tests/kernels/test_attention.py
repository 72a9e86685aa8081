"""scaled_dot_product_attention: every length and every option against its oracles."""

import numpy as np
import pytest

import simdformer as sf
from attention_cases import COARSE, EXTRAS, agree, attention, check, exactly, problem
from cases import each
from conftest import (
    DTYPES,
    LAYOUTS,
    LENGTHS,
    normal,
    relaid,
    repeated,
    same_bits,
)
from simdformer.reference.forward import float64

# ---- every length, against both oracles ----------------------------------------------------------


@each("S", LENGTHS[1:])
def test_one_query_agrees_with_the_oracle_for_any_number_of_keys(isa, dtype, S, oracle, rng):
    agree(oracle, *problem(rng, lead=(2,), H=4, K=2, L=1, S=S, D=16, dtype=dtype))


@each("L", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 97])
def test_any_number_of_queries_agrees_with_the_oracle(isa, dtype, L, oracle, rng):
    agree(oracle, *problem(rng, H=2, K=1, L=L, S=37, D=16, dtype=dtype))
    agree(oracle, *problem(rng, H=2, K=2, L=L, S=L, D=8, dtype=dtype), is_causal=True)


@each("D", [*LENGTHS[1:], 80, 96, 256])
def test_any_head_dim_agrees_with_the_oracle(isa, dtype, D, oracle, rng):
    for L in (1, 9):
        agree(oracle, *problem(rng, H=2, K=1, L=L, S=19, D=D, dtype=dtype))


@each("Dv", [1, 3, 16, 17, 33, 64, 130])
def test_the_value_may_have_another_head_dim_than_the_key(isa, dtype, Dv, oracle, rng):
    for L in (1, 9):
        agree(oracle, *problem(rng, H=2, K=1, L=L, S=19, D=24, Dv=Dv, dtype=dtype))


@each("group", [1, 2, 4, 7])
@each("L", [1, 2, 5, 20])
def test_grouped_queries_agree_with_the_oracle(isa, dtype, group, L, oracle, rng):
    for K in (1, 3):
        agree(oracle, *problem(rng, lead=(2,), H=K * group, K=K, L=L, S=21, D=16, dtype=dtype))


def test_long_sequences(isa, dtype, rng):
    check(*problem(rng, H=4, K=2, L=1, S=3001, D=64, dtype=dtype))
    check(*problem(rng, H=1, K=1, L=300, S=300, D=32, dtype=dtype), is_causal=True)
    q, k, v = problem(rng, H=2, K=1, L=130, S=700, D=32, dtype=dtype)
    check(q, k, v, is_causal=True, causal_offset=570, window=200)


MANY_ROWS = (
    {"is_causal": True},
    {"is_causal": True, "window": 90},
    {"key_lengths": [137]},
)


@each("D", [128, 80])
@each("options", MANY_ROWS)
def test_many_heads_of_many_rows_are_what_each_is_alone(isa, dtype, D, options, rng):
    """Many large blocks of queries pack the keys that they see; a head alone packs them once."""
    q, k, v = problem(rng, lead=(1,), H=16, K=8, L=330, S=330, D=D, dtype=dtype)
    together = attention(q, k, v, **options)
    for head in (0, 7):
        mine = slice(2 * head, 2 * head + 2)
        one = slice(head, head + 1)
        alone = attention(q[:, mine], k[:, one], v[:, one], **options)
        assert same_bits(together[:, mine], alone)


def test_two_and_three_dimensional_inputs(isa, dtype, oracle, rng):
    q, k, v = problem(rng, H=2, K=2, L=5, S=6, D=8, Dv=4, dtype=dtype)
    agree(oracle, q, k, v)
    agree(oracle, q[0], k[0], v[0])
    agree(oracle, q[0], k[0], v[0], normal(rng, 5, 6, dtype=dtype))
    got = check(q[0], k[0], v[0], is_causal=True, causal_offset=1)
    assert got.shape == (5, 4)
    assert same_bits(got, attention(q[:1], k[:1], v[:1], is_causal=True, causal_offset=1)[0])


@each("lead", [(), (2, 3), (2, 3, 3)])
@each("scale", [None, 0.5])
@each("masked", [False, True])
def test_the_walkthroughs_attention(isa, dtype, lead, scale, masked, oracle, rng):
    q, k, v = (normal(rng, *lead, 4, 5, dtype=dtype) for _ in range(3))
    mask = normal(rng, *lead, 4, 4, dtype=dtype) if masked else None
    agree(oracle, q, k, v, mask, scale=scale)


def test_the_walkthroughs_multi_head_attention(isa, dtype, oracle, rng):
    """N=10, L=11, H=3, D=9, heads cut out of (N, L, E) without a copy."""
    q, k, v = (
        normal(rng, 10, 11, 27, dtype=dtype).reshape(10, 11, 3, 9).swapaxes(1, 2) for _ in range(3)
    )
    agree(oracle, q, k, v)
    agree(oracle, q, k, v, normal(rng, 11, 11, dtype=dtype))


# ---- scale, softcap, mask, softmax ---------------------------------------------------------------


@each("scale", [0.0, 0.3, 1.0, -0.5, 4.0])
@each("L", [1, 9])
def test_a_scale_is_taken_as_given(isa, dtype, scale, L, oracle, rng):
    q, k, v = problem(rng, H=2, K=1, L=L, S=13, D=16, dtype=dtype)
    agree(oracle, q, k, v, scale=scale)
    if scale == 0:
        check(q, k, v, scale=0.0, softcap=5.0)


def masks(rng, B, H, L, S, dtype):
    visible = rng.random((B, H, L, S)) < 0.7
    visible[..., 0] = True
    for mask in (visible, normal(rng, B, H, L, S, dtype=dtype)):
        for index in [
            np.s_[:],
            np.s_[:1],
            np.s_[:, :1],
            np.s_[:, :, :1],
            np.s_[:1, :1, :1, :1],
            np.s_[0],
            np.s_[0, 0],
            np.s_[0, 0, :1],
            np.s_[0, 0, 0],
            np.s_[0, 0, :, :1],
        ]:
            yield mask[index]


@each("L", [1, 7])
def test_masks_of_every_shape_that_broadcasts(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=18, D=16, dtype=dtype)
    for mask in masks(rng, 2, 4, L, 18, dtype):
        check(q, k, v, mask)


@each("mask_dtype", DTYPES)
def test_an_additive_mask_may_have_any_float_dtype(isa, dtype, mask_dtype, rng):
    for L in (1, 7):
        q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=18, D=16, dtype=dtype)
        mask = normal(rng, 2, 1, L, 18, dtype=mask_dtype)
        mask[..., 3:5] = -np.inf
        # the mask joins the arithmetic as float32, unless that is float64
        seen = mask if dtype == np.float64 else mask.astype(np.float32)
        check(q, k, v, mask, want=exactly(q, k, v, seen))


def test_a_mask_may_have_any_strides(isa, dtype, rng):
    q, k, v = problem(rng, lead=(2,), H=2, K=2, L=5, S=18, D=16, dtype=dtype)
    for mask in (rng.random((2, 2, 5, 18)) < 0.8, normal(rng, 2, 2, 5, 18)):
        want = attention(q, k, v, mask)
        for memory in LAYOUTS:
            assert same_bits(attention(q, k, v, relaid(rng, mask, memory)), want), memory
        assert same_bits(attention(q, k, v, np.asfortranarray(mask)), want)
        assert same_bits(
            attention(q, k, v, mask[..., ::-1]), attention(q, k, v, mask[..., ::-1].copy())
        )
        assert same_bits(attention(q, k, v, repeated(mask[0], 2)), attention(q, k, v, mask[:1]))


@each("L", [1, 9])
def test_the_order_is_scale_softcap_mask_softmax(isa, dtype, L, rng):
    q, k, v = problem(rng, H=2, K=1, L=L, S=13, D=16, dtype=dtype)
    mask = normal(rng, L, 13, dtype=np.float32, scale=4)
    check(q, k, v, mask, scale=2.0, softcap=3.0)
    scores = attention(q, k, v, mask, scale=2.0, softcap=3.0, **EXTRAS)[2]
    plain = float64(q) @ float64(k).swapaxes(-1, -2) * 2.0
    want = 3 * np.tanh(plain / 3) + mask
    np.testing.assert_allclose(float64(scores), want, atol=1e-6, rtol=COARSE[dtype.itemsize])


@each("softcap", [0.5, 20.0, 1000.0])
def test_softcap_bends_large_scores(isa, dtype, softcap, rng):
    for L in (1, 9):
        q, k, v = problem(rng, H=2, K=1, L=L, S=13, D=16, dtype=dtype)
        check(q, k, v, softcap=softcap)
        q = (q * dtype.type(40)).astype(dtype)
        scores = attention(q, k, v, softcap=softcap, **EXTRAS)[2]
        assert (np.abs(scores) <= softcap * (1 + 1e-6)).all()


# ---- causality, windows, lengths, sinks ----------------------------------------------------------


@each("offset", [-40, -5, -1, 0, 1, 9, 20, 300])
@each("L", [1, 3, 12])
def test_query_i_sees_keys_up_to_i_plus_the_offset(isa, dtype, offset, L, rng):
    q, k, v = problem(rng, lead=(2,), H=2, K=1, L=L, S=21, D=8, dtype=dtype)
    check(q, k, v, is_causal=True, causal_offset=offset)
    got = attention(q, k, v, is_causal=True, causal_offset=offset, **EXTRAS)
    assert ((got[2] > -np.inf) == sf.causal_mask(L, 21, offset=offset)).all()


def test_a_sink_of_minus_infinity_is_none(isa, dtype, rng):
    q, k, v = problem(rng, H=2, K=2, L=5, S=9, D=8, dtype=dtype)
    check(q, k, v, sinks=np.full(2, -np.inf, dtype))


@each("L", [1, 10])
def test_all_options_at_once(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(3,), H=6, K=2, L=L, S=37, D=24, Dv=10, dtype=dtype)
    check(
        q,
        k,
        v,
        rng.random((3, 1, L, 37)) < 0.8,
        is_causal=True,
        causal_offset=[27, 5, 36],
        window=17,
        key_lengths=[37, 9, 30],
        softcap=4.0,
        sinks=normal(rng, 6, dtype=dtype),
        scale=0.4,
    )


@pytest.mark.slow
def test_every_small_length(isa, rng):
    """Every number of queries and keys around the tiles, full and causal."""
    for dtype in DTYPES:
        q, k, v = problem(rng, H=2, K=1, L=35, S=70, D=17, dtype=dtype)
        for L in range(1, 36, 2):
            for S in range(1, 71, 3):
                check(q[:, :L], k[:, :S], v[:, :S])
                check(q[:, :L], k[:, :S], v[:, :S], is_causal=True, causal_offset=S - L)
