"""scaled_dot_product_attention: every option against its oracles, the semantics by the sentence."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import simdformer as sf
from conftest import (
    DTYPES,
    LAYOUTS,
    LENGTHS,
    SIXTEEN_BITS,
    assert_as_accurate_as_torch,
    assert_close,
    from_torch,
    normal,
    relaid,
    remembered,
    repeated,
    same_bits,
    to_torch,
)
from simdformer import reference
from simdformer.reference import float64

attention = sf.scaled_dot_product_attention
# How far two ways to one result may differ, by the size of a number in bytes.
COARSE = {2: 1e-2, 4: 1e-5, 8: 1e-13}


def nearly(a, b):
    """Two ways to one result, which round differently."""
    assert a.dtype == b.dtype
    coarse = COARSE[a.dtype.itemsize]
    np.testing.assert_allclose(float64(a), float64(b), rtol=coarse, atol=coarse)


EXTRAS = {"return_weights": True, "return_scores": True, "return_lse": True}


def problem(rng, *, lead=(), H=2, K=2, L=3, S=3, D=8, Dv=None, dtype=np.float32):
    """query (...,H,L,D), key (...,K,S,D), value (...,K,S,Dv)"""
    shapes = (*lead, H, L, D), (*lead, K, S, D), (*lead, K, S, D if Dv is None else Dv)
    return tuple(normal(rng, *shape, dtype=dtype) for shape in shapes)


def heads_of(x, count):
    """(...,K,S,D) -> (...,H,S,D), and the axis that two-dimensional arrays do without."""
    x = float64(x)
    x = x[None] if x.ndim == 2 else x
    return np.repeat(x, count // max(x.shape[-3], 1), axis=-3)


def magnitudes(q, k, v, weights, scale):
    """What a score and an output are sums of, |q|·|k| scale and weights·|v|; the latter and the
    weights grow with the scores, whose rounding shows after exp."""
    q, k, v = (np.nan_to_num(float64(x), posinf=0, neginf=0) for x in (q, k, v))
    count = 1 if q.ndim == 2 else q.shape[-3]
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else abs(scale)
    scores = np.abs(q) @ np.abs(heads_of(k, count)).swapaxes(-1, -2) * factor
    scores = (
        scores.reshape(weights.shape) if q.ndim == 2 else np.broadcast_to(scores, weights.shape)
    )
    steepness = 1 + scores.max(-1, keepdims=True, initial=0) / 8
    values = np.nan_to_num(weights) @ np.abs(heads_of(v, count))
    values = values.reshape(*weights.shape[:-1], v.shape[-1])
    return scores, steepness * weights, steepness * values


def exactly(q, k, v, mask=None, **kwargs):
    return remembered(reference.scaled_dot_product_attention, q, k, v, mask, **kwargs, **EXTRAS)


def check(q, k, v, mask=None, *, want=None, **kwargs):
    """Compares all the results with the reference; asking for more must not change the first."""
    got, weights, scores, lse = attention(q, k, v, mask, **kwargs, **EXTRAS)
    alone = attention(q, k, v, mask, **kwargs)
    assert same_bits(got, alone), "asking for weights, scores and lse changed the result"
    assert got.dtype == weights.dtype == scores.dtype == q.dtype
    assert lse.dtype == (np.float64 if q.dtype == np.float64 else np.float32)
    want = exactly(q, k, v, mask, **kwargs) if want is None else want
    score_size, weight_size, size = magnitudes(q, k, v, want[1], kwargs.get("scale"))
    score_size = score_size + np.where(np.isfinite(want[2]), np.abs(want[2]), 0)
    op = "scaled_dot_product_attention"
    assert_close(scores, want[2], "scores", scale=score_size)
    assert_close(weights, want[1], op, scale=weight_size)
    lse_size = 1 + np.abs(np.nan_to_num(want[3], neginf=0)) + score_size.max(-1, initial=0)
    assert_close(lse, want[3], "scores", scale=lse_size)
    assert_close(got, want[0], op, scale=size)
    return got


# ---- every length, against both oracles ----------------------------------------------------------


def agree(oracle, q, k, v, mask=None, **kwargs):
    if oracle.name == "reference":
        check(q, k, v, mask, **kwargs)
        return
    got = attention(q, k, v, mask, **kwargs)
    want = oracle("scaled_dot_product_attention", q, k, v, mask, **kwargs)
    weights = exactly(q, k, v, mask, **kwargs)[1]
    size = magnitudes(q, k, v, weights, kwargs.get("scale"))[2]
    assert_close(got, want, "scaled_dot_product_attention", scale=size, slack=oracle.slack)


@pytest.mark.parametrize("S", LENGTHS[1:])
def test_one_query_agrees_with_the_oracle_for_any_number_of_keys(isa, dtype, S, oracle, rng):
    agree(oracle, *problem(rng, lead=(2,), H=4, K=2, L=1, S=S, D=16, dtype=dtype))


@pytest.mark.parametrize("L", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 97])
def test_any_number_of_queries_agrees_with_the_oracle(isa, dtype, L, oracle, rng):
    agree(oracle, *problem(rng, H=2, K=1, L=L, S=37, D=16, dtype=dtype))
    agree(oracle, *problem(rng, H=2, K=2, L=L, S=L, D=8, dtype=dtype), is_causal=True)


@pytest.mark.parametrize("D", [*LENGTHS[1:], 80, 96, 256])
def test_any_head_dim_agrees_with_the_oracle(isa, dtype, D, oracle, rng):
    for L in (1, 9):
        agree(oracle, *problem(rng, H=2, K=1, L=L, S=19, D=D, dtype=dtype))


@pytest.mark.parametrize("Dv", [1, 3, 16, 17, 33, 64, 130])
def test_the_value_may_have_another_head_dim_than_the_key(isa, dtype, Dv, oracle, rng):
    for L in (1, 9):
        agree(oracle, *problem(rng, H=2, K=1, L=L, S=19, D=24, Dv=Dv, dtype=dtype))


@pytest.mark.parametrize("group", [1, 2, 4, 7])
@pytest.mark.parametrize("L", [1, 2, 5, 20])
def test_grouped_queries_agree_with_the_oracle(isa, dtype, group, L, oracle, rng):
    for K in (1, 3):
        agree(oracle, *problem(rng, lead=(2,), H=K * group, K=K, L=L, S=21, D=16, dtype=dtype))


def test_long_sequences(isa, dtype, rng):
    check(*problem(rng, H=4, K=2, L=1, S=3001, D=64, dtype=dtype))
    check(*problem(rng, H=1, K=1, L=300, S=300, D=32, dtype=dtype), is_causal=True)
    q, k, v = problem(rng, H=2, K=1, L=130, S=700, D=32, dtype=dtype)
    check(q, k, v, is_causal=True, causal_offset=570, window=200)


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3), (2, 1, 3)])
def test_any_leading_axes(isa, dtype, lead, oracle, rng):
    agree(oracle, *problem(rng, lead=lead, H=2, K=2, L=5, S=6, D=8, dtype=dtype))


def test_two_and_three_dimensional_inputs(isa, dtype, oracle, rng):
    q, k, v = problem(rng, H=2, K=2, L=5, S=6, D=8, Dv=4, dtype=dtype)
    agree(oracle, q, k, v)
    agree(oracle, q[0], k[0], v[0])
    agree(oracle, q[0], k[0], v[0], normal(rng, 5, 6, dtype=dtype))
    got = check(q[0], k[0], v[0], is_causal=True, causal_offset=1)
    assert got.shape == (5, 4)
    assert same_bits(got, attention(q[:1], k[:1], v[:1], is_causal=True, causal_offset=1)[0])


@pytest.mark.parametrize("lead", [(), (2, 3), (2, 3, 3)])
@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("masked", [False, True])
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


@pytest.mark.parametrize("masked", [False, True])
def test_the_walkthroughs_layer(isa, dtype, masked, rng):
    """The same N, L, H and D through nn.MultiHeadAttention, against the sum of its parts."""
    x = [normal(rng, 10, 11, 27, dtype=dtype) for _ in range(3)]
    w = [normal(rng, 27, 27, dtype=dtype, scale=27**-0.5) for _ in range(4)]
    mask = normal(rng, 11, 11, dtype=dtype) if masked else None
    heads = (
        reference.linear(a, b).reshape(10, 11, 3, 9).swapaxes(1, 2)
        for a, b in zip(x, w, strict=False)
    )
    z = reference.scaled_dot_product_attention(*heads, mask)
    want = reference.linear(z.swapaxes(1, 2).reshape(10, 11, 27), w[3])
    got = sf.nn.MultiHeadAttention(27, 3, *w)(*x, mask)
    assert got.dtype == dtype
    coarse = {2: 3e-2 if dtype == "bfloat16" else 4e-3, 4: 5e-6, 8: 1e-13}[dtype.itemsize]
    np.testing.assert_allclose(float64(got), want, rtol=coarse, atol=coarse)


# ---- scale, softcap, mask, softmax ---------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, -0.5, 4.0])
@pytest.mark.parametrize("L", [1, 9])
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


@pytest.mark.parametrize("L", [1, 7])
def test_masks_of_every_shape_that_broadcasts(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=18, D=16, dtype=dtype)
    for mask in masks(rng, 2, 4, L, 18, dtype):
        check(q, k, v, mask)


def test_masks_agree_with_torch(isa, dtype, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=4, L=7, S=18, D=16, dtype=dtype)
    for mask in masks(rng, 2, 4, 7, 18, dtype):
        if mask.ndim >= 2:
            want = from_torch(F.scaled_dot_product_attention(*map(to_torch, (q, k, v, mask))))
            slack = {2: 4e-2 if dtype not in (np.float16,) else 5e-3, 4: 1e-5, 8: 1e-12}[
                dtype.itemsize
            ]
            np.testing.assert_allclose(
                float64(attention(q, k, v, mask)), want, atol=slack, rtol=slack
            )


@pytest.mark.parametrize("mask_dtype", DTYPES, ids=str)
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


@pytest.mark.parametrize("L", [1, 9])
def test_the_order_is_scale_softcap_mask_softmax(isa, dtype, L, rng):
    q, k, v = problem(rng, H=2, K=1, L=L, S=13, D=16, dtype=dtype)
    mask = normal(rng, L, 13, dtype=np.float32, scale=4)
    check(q, k, v, mask, scale=2.0, softcap=3.0)
    scores = attention(q, k, v, mask, scale=2.0, softcap=3.0, **EXTRAS)[2]
    plain = float64(q) @ float64(k).swapaxes(-1, -2) * 2.0
    want = 3 * np.tanh(plain / 3) + mask
    np.testing.assert_allclose(float64(scores), want, atol=1e-6, rtol=COARSE[dtype.itemsize])


@pytest.mark.parametrize("softcap", [0.5, 20.0, 1000.0])
def test_softcap_bends_large_scores(isa, dtype, softcap, rng):
    for L in (1, 9):
        q, k, v = problem(rng, H=2, K=1, L=L, S=13, D=16, dtype=dtype)
        check(q, k, v, softcap=softcap)
        q = (q * dtype.type(40)).astype(dtype)
        scores = attention(q, k, v, softcap=softcap, **EXTRAS)[2]
        assert (np.abs(scores) <= softcap * (1 + 1e-6)).all()


# ---- causality, windows, lengths, sinks ----------------------------------------------------------


@pytest.mark.parametrize("L", [1, 2, 8, 17, 40])
def test_is_causal_with_equal_lengths_is_torchs(isa, dtype, L, oracle, rng):
    agree(oracle, *problem(rng, lead=(2,), H=4, K=2, L=L, S=L, D=16, dtype=dtype), is_causal=True)


@pytest.mark.parametrize("offset", [-40, -5, -1, 0, 1, 9, 20, 300])
@pytest.mark.parametrize("L", [1, 3, 12])
def test_query_i_sees_keys_up_to_i_plus_the_offset(isa, dtype, offset, L, rng):
    q, k, v = problem(rng, lead=(2,), H=2, K=1, L=L, S=21, D=8, dtype=dtype)
    check(q, k, v, is_causal=True, causal_offset=offset)
    got = attention(q, k, v, is_causal=True, causal_offset=offset, **EXTRAS)
    assert ((got[2] > -np.inf) == sf.causal_mask(L, 21, offset=offset)).all()


@pytest.mark.parametrize("L", [1, 3, 12])
def test_the_offset_may_be_one_a_sequence(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(4,), H=2, K=1, L=L, S=21, D=8, dtype=dtype)
    offsets = np.array([0, 20, -3, 7])
    got = check(q, k, v, is_causal=True, causal_offset=offsets)
    check(q, k, v, is_causal=True, causal_offset=offsets, window=4)
    for b, offset in enumerate(offsets):
        alone = attention(q[b], k[b], v[b], is_causal=True, causal_offset=int(offset))
        nearly(got[b], alone)


@pytest.mark.parametrize("window", [1, 2, 5, 16, 100])
@pytest.mark.parametrize("L", [1, 3, 30])
def test_a_window_hides_what_lies_further_back(isa, dtype, window, L, rng):
    q, k, v = problem(rng, H=2, K=1, L=L, S=33, D=8, dtype=dtype)
    for offset in (33 - L, 0, 60, -2):
        check(q, k, v, is_causal=True, causal_offset=offset, window=window)


@pytest.mark.parametrize("L", [1, 5])
def test_key_lengths_hide_the_padding_of_a_batch(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(5,), H=4, K=2, L=L, S=20, D=8, dtype=dtype)
    lengths = np.array([20, 1, 0, 7, 16])
    got = check(q, k, v, key_lengths=lengths)
    check(q, k, v, is_causal=True, causal_offset=lengths - L, key_lengths=lengths, window=6)
    for b, length in enumerate(lengths):
        alone = attention(q[b], k[b, :, :length], v[b, :, :length])
        nearly(got[b], alone)


@pytest.mark.parametrize("L", [1, 5])
def test_sinks_join_the_denominator_and_the_lse(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=20, D=8, dtype=dtype)
    sinks = np.array([0, 2, -3, 30], dtype)
    check(q, k, v, sinks=sinks)
    # a sink is one more key, whose score is given and whose value is zero
    out, weights, _, lse = attention(q, k, v, sinks=sinks, **EXTRAS)
    plain, _, _, plain_lse = attention(q, k, v, **EXTRAS)
    share = 1 / (1 + np.exp(float64(sinks)[:, None] - plain_lse))
    coarse = COARSE[dtype.itemsize]
    np.testing.assert_allclose(float64(weights).sum(-1), share, rtol=coarse, atol=coarse / 1e4)
    nearly(lse, np.logaddexp(plain_lse, float64(sinks)[:, None]).astype(lse.dtype))
    nearly(out, (float64(plain) * share[..., None]).astype(dtype))


def test_a_sink_of_minus_infinity_is_none(isa, dtype, rng):
    q, k, v = problem(rng, H=2, K=2, L=5, S=9, D=8, dtype=dtype)
    check(q, k, v, sinks=np.full(2, -np.inf, dtype))


@pytest.mark.parametrize("L", [1, 10])
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


# ---- rows that see nothing, and numbers that are none --------------------------------------------


def hide_row_2(L, S):
    visible = np.ones((L, S), bool)
    visible[2] = False
    return visible


@pytest.mark.parametrize("how", ["bool", "additive", "offset", "key_lengths", "S = 0"])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_row_with_no_visible_key_gives_0_weights_0_and_lse_minus_infinity_or_the_sink(
    isa, dtype, how, with_sinks, rng
):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=4, S=9, D=8, dtype=dtype)
    kwargs, dead = {}, np.zeros((2, 4, 4), bool)
    if how == "bool":
        kwargs["attn_mask"] = hide_row_2(4, 9)
        dead[:, :, 2] = True
    elif how == "additive":
        kwargs["attn_mask"] = np.where(hide_row_2(4, 9), 0, -np.inf).astype(dtype)
        dead[:, :, 2] = True
    elif how == "offset":
        kwargs.update(is_causal=True, causal_offset=-2)
        dead[:, :, :2] = True
    elif how == "key_lengths":
        kwargs["key_lengths"] = [9, 0]
        dead[1] = True
    else:
        k, v = k[..., :0, :], v[..., :0, :]
        dead[:] = True
    sinks = normal(rng, 4, dtype=dtype) if with_sinks else None
    out, weights, scores, lse = attention(q, k, v, **kwargs, sinks=sinks, **EXTRAS)
    assert (out[dead] == 0).all()
    assert (weights[dead] == 0).all()
    assert (scores[dead] == -np.inf).all()
    want = (
        np.full((2, 4, 4), -np.inf)
        if sinks is None
        else np.broadcast_to(float64(sinks)[:, None], (2, 4, 4))
    )
    np.testing.assert_allclose(lse[dead], want[dead], rtol=1e-6)
    assert (out[~dead] != 0).any(-1).all()
    check(q, k, v, kwargs.pop("attn_mask", None), **kwargs, sinks=sinks)


HIDING = {
    "bool": lambda L: {"attn_mask": np.arange(12) < 7},
    "causality": lambda L: {"is_causal": True, "causal_offset": 7 - L},
    "window": lambda L: {"is_causal": True, "causal_offset": 11, "window": 5},
    "key_lengths": lambda L: {"key_lengths": [7]},
}


@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("L", [1, 4, 20])
def test_a_hidden_key_does_not_leak_even_if_it_is_nan(isa, dtype, how, poison, L, rng):
    """A cache may hold garbage past its end."""
    q, k, v = problem(rng, lead=(1,), H=4, K=2, L=L, S=12, D=16, dtype=dtype)
    hidden = np.arange(12) < 7 if how == "window" else np.arange(12) >= 7
    want = attention(q, k, v, **HIDING[how](L), **EXTRAS)
    for poisoned in ((k,), (v,), (k, v)):
        dirty = {id(x): x.copy() for x in (k, v)}
        for x in poisoned:
            dirty[id(x)][..., hidden, :] = poison
        got = attention(q, dirty[id(k)], dirty[id(v)], **HIDING[how](L), **EXTRAS)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(float64(a), float64(b))
        assert same_bits(attention(q, dirty[id(k)], dirty[id(v)], **HIDING[how](L)), want[0])


@pytest.mark.parametrize("L", [1, 4, 20])
def test_nan_in_q_k_or_v_that_is_looked_at_stays_nan(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=12, D=16, dtype=dtype)
    bad = q.copy()
    bad[1, 2, 0, 15] = np.nan
    got = float64(attention(bad, k, v))
    assert np.isnan(got[1, 2, 0]).all()
    got[1, 2, 0] = 0
    assert np.isfinite(got).all()

    bad = k.copy()
    bad[1, 1, 11, 3] = np.nan
    got = float64(attention(q, bad, v))
    assert np.isnan(got[1, 2:]).all()
    assert np.isfinite(got[0]).all()
    assert np.isfinite(got[1, :2]).all()

    bad = v.copy()
    bad[0, 1, 5, 3] = np.nan
    got = float64(attention(q, k, bad))
    assert np.isnan(got[0, 2:, :, 3]).all()
    got[0, 2:, :, 3] = 0
    assert np.isfinite(got).all()


@pytest.mark.parametrize("L", [1, 20])
def test_a_nan_that_only_some_queries_see_spoils_only_those(isa, dtype, L, rng):
    q, k, v = problem(rng, H=2, K=1, L=20, S=20, D=16, dtype=dtype)
    k[0, 13, 2] = np.nan
    got = float64(attention(q, k, v, is_causal=True))
    assert np.isnan(got[:, 13:]).all()
    assert np.isfinite(got[:, :13]).all()


@pytest.mark.parametrize("L", [1, 20])
def test_plus_infinity_scores_give_nan_as_in_torch(isa, dtype, L, oracle, rng):
    q, k, v = problem(rng, H=2, K=2, L=L, S=12, D=16, dtype=dtype)
    mask = np.zeros((L, 12), dtype)
    mask[0, 5] = np.inf
    got = float64(attention(q, k, v, mask))
    want = oracle("scaled_dot_product_attention", q, k, v, mask)
    assert (np.isnan(got) == np.isnan(want)).all()
    assert np.isnan(got[:, 0]).all()
    assert np.isfinite(got[:, 1:]).all()


@pytest.mark.parametrize("L", [1, 20])
def test_an_additive_mask_follows_ieee(isa, dtype, L, oracle, rng):
    """NaN - inf is NaN: what an additive mask takes away was looked at. A finite key is gone."""
    q, k, v = problem(rng, H=2, K=2, L=L, S=12, D=16, dtype=dtype)
    mask = np.zeros((L, 12), dtype)
    mask[:, 5] = -np.inf
    agree(oracle, q, k, v, mask)
    shorter = attention(q, np.delete(k, 5, -2), np.delete(v, 5, -2))
    np.testing.assert_allclose(
        float64(attention(q, k, v, mask)), float64(shorter), rtol=1e-2, atol=1e-2
    )
    for dirty in (k, v):  # NaN - inf and 0 NaN
        clean = dirty[:, 5].copy()
        dirty[:, 5] = np.nan
        assert np.isnan(float64(attention(q, k, v, mask))).all()
        assert np.isnan(oracle("scaled_dot_product_attention", q, k, v, mask)).all()
        dirty[:, 5] = clean


@pytest.mark.parametrize("L", [1, 20])
def test_a_row_that_an_additive_mask_hides_gives_0_whatever_the_values(isa, dtype, L, rng):
    q, k, v = problem(rng, H=2, K=2, L=L, S=12, D=16, dtype=dtype)
    v[:, 3] = np.nan
    hidden = np.full((L, 12), -np.inf, dtype)
    assert (attention(q, k, v, hidden) == 0).all()


def test_subnormals_are_kept(isa, dtype, rng):
    """In bfloat16 too: its flushing dot product in hardware does not see the values."""
    q, k, _ = problem(rng, H=2, K=2, L=9, S=1, D=16, dtype=dtype)
    tiny = np.arange(1, 17).astype(dtype) * ml_dtypes.finfo(dtype).smallest_subnormal
    v = np.broadcast_to(tiny, (2, 1, 16))
    for L in (1, 9):
        got = attention(q[:, :L], k, v)
        assert same_bits(got, np.broadcast_to(tiny, (2, L, 16)))


@pytest.mark.parametrize("L", [1, 20])
def test_finite_minus_infinities_down_to_the_lowest_float_are_just_numbers_and_stay_finite(
    isa, dtype, L, rng
):
    q, k, v = problem(rng, H=2, K=2, L=L, S=12, D=16, dtype=dtype)
    limit = np.finfo(np.float64 if dtype == np.float64 else np.float32).min
    for lowest in (-1e4, -1e9, -1e30, limit):
        mask = np.full((L, 12), lowest)
        mask = mask if dtype == np.float64 else mask.astype(np.float32)
        out, weights, scores, lse = attention(q, k, v, mask, **EXTRAS)
        assert all(np.isfinite(float64(x)).all() for x in (out, weights, lse)), lowest
        # scores are returned in the query's dtype, whose range may be smaller
        assert np.isfinite(scores).all() or dtype.itemsize == 2, lowest
        np.testing.assert_allclose(float64(weights).sum(-1), 1, rtol=COARSE[dtype.itemsize])
        lowest_weights = weights
        mask[:, 3:] = 0
        assert (attention(q, k, v, mask, **EXTRAS)[1][..., :3] == 0).all()
    assert same_bits(lowest_weights, np.full_like(lowest_weights, 1 / 12))


def test_scores_far_from_zero_do_not_overflow(isa, dtype, rng):
    q, k, v = problem(rng, H=2, K=2, L=9, S=12, D=16, dtype=dtype)
    mask = np.full((9, 12), 3e4, np.float32)
    big = float64(attention(q, k, v, mask))
    assert np.isfinite(big).all()
    np.testing.assert_allclose(big, float64(attention(q, k, v, -mask)), atol=2e-2)
    out = float64(
        attention((q * dtype.type(100)).astype(dtype), (k * dtype.type(100)).astype(dtype), v)
    )
    assert np.isfinite(out).all()
    nearest = (float64(q) @ float64(k).swapaxes(-1, -2)).argmax(-1)
    np.testing.assert_allclose(
        out, np.take_along_axis(float64(v), nearest[..., None], -2), atol=0.2
    )


# ---- zero sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["B", "H", "L", "S"])
def test_zero_size_arrays_give_an_empty_result_and_no_keys_give_zeros(isa, dtype, axis):
    size = {"B": 2, "H": 4, "L": 3, "S": 5, "Dv": 6} | {axis: 0}
    H, K = (size["H"], size["H"])
    q = np.ones((size["B"], H, size["L"], 8), dtype)
    k, v = (
        np.ones((size["B"], K, size["S"], 8), dtype),
        np.ones((size["B"], K, size["S"], size["Dv"]), dtype),
    )
    out, weights, scores, lse = attention(q, k, v, **EXTRAS)
    assert out.shape == (size["B"], H, size["L"], size["Dv"])
    assert weights.shape == scores.shape == (size["B"], H, size["L"], size["S"])
    assert lse.shape == (size["B"], H, size["L"])
    if axis == "S":
        assert (out == 0).all()
        assert (lse == -np.inf).all()


def test_a_head_dim_of_0_is_an_error(isa, dtype):
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        attention(np.ones((2, 3, 0), dtype), np.ones((2, 4, 0), dtype), np.ones((2, 4, 5), dtype))


# ---- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("L", [1, 5, 40])
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


@pytest.mark.parametrize("L", [1, 9, 70])
def test_rows_of_weights_sum_to_one(isa, dtype, L, rng):
    q, k, v = problem(rng, H=2, K=1, L=L, S=77, D=16, dtype=dtype)
    weights = attention(q, k, v, return_weights=True)[1]
    np.testing.assert_allclose(float64(weights).sum(-1), 1, rtol=COARSE[dtype.itemsize])
    assert (weights >= 0).all()


@pytest.mark.parametrize("L", [1, 9, 70])
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


@pytest.mark.parametrize("L", [1, 3, 20])
def test_grouped_queries_are_repeat_kv_and_multi_head_attention(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=6, K=2, L=L, S=25, D=16, dtype=dtype)
    nearly(attention(q, k, v), attention(q, sf.repeat_kv(k, 3), sf.repeat_kv(v, 3)))


@pytest.mark.parametrize("L", [1, 3, 20])
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
        with sf.num_threads(1):
            want = attention(q, k, v, is_causal=True, causal_offset=S - L, **EXTRAS)
        for threads in (2, 3, 4):
            with sf.num_threads(threads):
                got = attention(q, k, v, is_causal=True, causal_offset=S - L, **EXTRAS)
            assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


# ---- memory and dtypes ---------------------------------------------------------------------------


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("L", [1, 9])
def test_any_strides_of_leading_axes(isa, dtype, memory, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=25, D=16, dtype=dtype)
    want = attention(q, k, v)
    assert same_bits(attention(*(relaid(rng, x, memory) for x in (q, k, v))), want)


@pytest.mark.parametrize("L", [1, 9])
def test_keys_may_be_part_of_a_larger_cache(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=64, D=16, dtype=dtype)
    cache = np.stack([k, v])
    cache[..., 40:, :] = np.nan
    want = attention(q, k[:, :, :40].copy(), v[:, :, :40].copy())
    assert same_bits(attention(q, cache[0][:, :, :40], cache[1][:, :, :40]), want)
    assert same_bits(
        attention(q, *cache, key_lengths=[40, 40]), attention(q, k, v, key_lengths=[40, 40])
    )


@pytest.mark.parametrize("L", [1, 9])
def test_leading_axes_of_key_and_value_may_be_1(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(3, 2), H=4, K=2, L=L, S=25, D=16, dtype=dtype)
    for index in (np.s_[:1], np.s_[:, :1], np.s_[:1, :1]):
        shared_k, shared_v = k[index], v[index]
        want = attention(
            q, np.broadcast_to(shared_k, k.shape).copy(), np.broadcast_to(shared_v, v.shape).copy()
        )
        assert same_bits(attention(q, shared_k, shared_v), want)
        assert same_bits(attention(q, np.broadcast_to(shared_k, k.shape), shared_v), want)


@pytest.mark.parametrize("narrow", SIXTEEN_BITS, ids=str)
@pytest.mark.parametrize("L", [1, 9])
def test_beside_a_float32_query_key_value_and_sinks_may_be_16_bit(isa, narrow, L, rng):
    q, k, v = problem(rng, H=4, K=2, L=L, S=40, D=24)
    k, v, sinks = k.astype(narrow), v.astype(narrow), normal(rng, 4, dtype=narrow)
    assert check(q, k, v).dtype == np.float32  # as exact as float32: nothing is rounded on the way
    check(q, k, v, sinks=sinks)
    check(q, k, v, is_causal=True, causal_offset=40 - L)


@pytest.mark.parametrize("narrow", SIXTEEN_BITS, ids=str)
@pytest.mark.parametrize("L", [1, 9])
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


# ---- refusals that belong to the semantics -------------------------------------------------------


def test_is_causal_with_unequal_lengths_needs_an_offset_and_says_which_there_are(rng):
    q, k, v = problem(rng, L=3, S=5)
    with pytest.raises(ValueError, match=r"causal_offset") as error:
        attention(q, k, v, is_causal=True)
    for word in ("top-left", "bottom-right", "S - L"):
        assert word.replace(" ", "") in str(error.value).replace(" ", "")
    with pytest.raises(ValueError, match="causal_offset"):
        reference.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("kwargs", [{"causal_offset": 2}, {"window": 2}])
def test_causal_offset_and_window_need_is_causal(kwargs, rng):
    with pytest.raises(ValueError, match="is_causal"):
        attention(*problem(rng), **kwargs)


def test_enable_gqa_false_needs_equal_heads(rng):
    q, k, v = problem(rng, H=4, K=2)
    with pytest.raises(ValueError, match="enable_gqa"):
        attention(q, k, v, enable_gqa=False)
    assert same_bits(attention(q[:2], k, v, enable_gqa=False), attention(q[:2], k, v))


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
        kwargs.update(is_causal=True, causal_offset=draw(st.integers(-5, 75), "offset"))
        if len(lead) == 1 and draw(st.booleans(), "an offset a sequence"):
            kwargs["causal_offset"] = rng.integers(-5, 75, lead)
        if draw(st.booleans(), "windowed"):
            kwargs["window"] = draw(st.integers(1, 40), "window")
    if len(lead) == 1 and draw(st.booleans(), "ragged"):
        kwargs["key_lengths"] = rng.integers(0, S + 1, lead)
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
    q, k, v = (relaid(rng, x, draw(st.sampled_from(LAYOUTS))) for x in (q, k, v))
    for name in sf.isas():
        with sf.use_isa(name):
            check(q, k, v, mask, **kwargs)


# ---- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize(("L", "S"), [(1, 300), (65, 65), (65, 200)])
def test_rms_error_is_at_most_one_and_a_half_times_torchs(isa, dtype, L, S, D, rng):
    problems = [
        (problem(rng, lead=(2,), H=4, K=2, L=L, S=S, D=D, dtype=dtype), {})
        for _ in range(6 if L == 1 else 2)
    ]
    assert_as_accurate_as_torch("scaled_dot_product_attention", attention, problems)
    if L == S:
        causal = [(args, {"is_causal": True}) for args, _ in problems]
        assert_as_accurate_as_torch("scaled_dot_product_attention", attention, causal)


@pytest.mark.slow
def test_every_small_length(isa, rng):
    """Every number of queries and keys around the tiles, full and causal."""
    for dtype in DTYPES:
        q, k, v = problem(rng, H=2, K=1, L=35, S=70, D=17, dtype=dtype)
        for L in range(1, 36, 2):
            for S in range(1, 71, 3):
                check(q[:, :L], k[:, :S], v[:, :S])
                check(q[:, :L], k[:, :S], v[:, :S], is_causal=True, causal_offset=S - L)
