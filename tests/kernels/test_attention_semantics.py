"""scaled_dot_product_attention: what was decided about it, sentence by sentence."""

import ml_dtypes
import numpy as np
import pytest

from attention_cases import COARSE, EXTRAS, agree, attention, check, problem
from cases import each
from conftest import normal, same_bits
from simdformer import reference
from simdformer.reference.forward import float64

# ---- rows that see nothing, and numbers that are none --------------------------------------------


def hide_row_2(L, S):
    visible = np.ones((L, S), bool)
    visible[2] = False
    return visible


@each("how", ["bool", "additive", "offset", "key_lengths", "S = 0"])
@each("with_sinks", [False, True])
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
    "window ahead": lambda L: {"causal_offset": 3 - L, "window": (None, 3)},
    "chunk": lambda L: {"is_causal": True, "causal_offset": 11, "chunk": 7, "key_lengths": [11]},
    "key_starts": lambda L: {"key_starts": [7]},
    "key_lengths": lambda L: {"key_lengths": [7]},
    "segment_ids": lambda L: {"segment_ids": (np.zeros(L, int), np.arange(12) // 7)},
}
OLD = ("window", "chunk", "key_starts")  # these hide the first keys, the others the last


@each("how", HIDING)
@each("poison", [np.nan, np.inf, -np.inf])
@each("L", [1, 4, 20])
def test_a_hidden_key_does_not_leak_even_if_it_is_nan(isa, dtype, how, poison, L, rng):
    """A cache may hold garbage past its end."""
    q, k, v = problem(rng, lead=(1,), H=4, K=2, L=L, S=12, D=16, dtype=dtype)
    hidden = np.arange(12) < 7 if how in OLD else np.arange(12) >= 7
    want = attention(q, k, v, **HIDING[how](L), **EXTRAS)
    for poisoned in ((k,), (v,), (k, v)):
        dirty = {id(x): x.copy() for x in (k, v)}
        for x in poisoned:
            dirty[id(x)][..., hidden, :] = poison
        got = attention(q, dirty[id(k)], dirty[id(v)], **HIDING[how](L), **EXTRAS)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(float64(a), float64(b))
        assert same_bits(attention(q, dirty[id(k)], dirty[id(v)], **HIDING[how](L)), want[0])


@each("L", [1, 4, 20])
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


@each("L", [1, 20])
def test_plus_infinity_scores_give_nan_as_in_torch(isa, dtype, L, oracle, rng):
    q, k, v = problem(rng, H=2, K=2, L=L, S=12, D=16, dtype=dtype)
    mask = np.zeros((L, 12), dtype)
    mask[0, 5] = np.inf
    got = float64(attention(q, k, v, mask))
    want = oracle("scaled_dot_product_attention", q, k, v, mask)
    assert (np.isnan(got) == np.isnan(want)).all()
    assert np.isnan(got[:, 0]).all()
    assert np.isfinite(got[:, 1:]).all()


@each("L", [1, 20])
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


@each("L", [1, 20])
def test_a_row_that_an_additive_mask_hides_gives_0_whatever_the_values(isa, dtype, L, rng):
    q, k, v = problem(rng, H=2, K=2, L=L, S=12, D=16, dtype=dtype)
    v[:, 3] = np.nan
    hidden = np.full((L, 12), -np.inf, dtype)
    assert (attention(q, k, v, hidden) == 0).all()


@each("L", [2, 20])
@each("kind", ["bool", "additive"])
def test_one_row_of_a_mask_serves_queries_that_see_different_keys(isa, dtype, L, kind, rng):
    q, k, v = problem(rng, H=2, K=1, L=L, S=L, D=8, dtype=dtype)
    mask = rng.random((1, L)) < 0.8 if kind == "bool" else normal(rng, 1, L, dtype=dtype)
    check(q, k, v, mask, chunk=1)
    check(q, k, v, mask, is_causal=True, window=3)


@each("L", [1, 20])
@each("dtype", [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)])
def test_a_weight_below_the_smallest_normal_number_is_0(isa, dtype, L):
    """Subnormal weights cost time, and show only beside values near the end of the range."""
    q, k, v = np.ones((1, L, 1), dtype), np.full((1, 17, 1), -1, dtype), np.ones((1, 17, 1), dtype)
    k[:, 0] = 0
    v[:, 1:] = ml_dtypes.finfo(dtype).max / 4
    smallest = -np.log(np.finfo(np.float32).tiny)
    assert (attention(q, k, v, scale=smallest + 3) == 1).all()
    assert (attention(q, k, v, scale=smallest - 3) > 1).all()


def test_subnormals_are_kept(isa, dtype, rng):
    """In bfloat16 too: its flushing dot product in hardware does not see the values."""
    q, k, _ = problem(rng, H=2, K=2, L=9, S=1, D=16, dtype=dtype)
    tiny = np.arange(1, 17).astype(dtype) * ml_dtypes.finfo(dtype).smallest_subnormal
    v = np.broadcast_to(tiny, (2, 1, 16))
    for L in (1, 9):
        got = attention(q[:, :L], k, v)
        assert same_bits(got, np.broadcast_to(tiny, (2, L, 16)))


@each("L", [1, 20])
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


@each("axis", ["B", "H", "L", "S"])
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


@pytest.mark.parametrize("L", [1, 3, 70])
def test_a_value_without_columns_gives_an_empty_result_and_right_weights(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=90, D=16, Dv=5, dtype=dtype)
    options = {"is_causal": True, "causal_offset": 90 - L, "window": 40, "key_lengths": [90, 60]}
    want, *extras = attention(q, k, v, **options, **EXTRAS)
    got, *found = attention(q, k, v[..., :0], **options, **EXTRAS)
    assert got.shape == (*want.shape[:-1], 0)
    assert got.dtype == dtype
    for ours, theirs in zip(found, extras, strict=True):
        assert same_bits(ours, theirs)
    assert attention(q[0, 0], k[0, 0], v[0, 0, :, :0]).shape == (L, 0)
    out = np.empty((2, 4, L, 0), dtype)
    assert attention(q, k, v[..., :0], out=out) is out
    plain = reference.scaled_dot_product_attention(q, k, v[..., :0])
    assert attention(q, k, v[..., :0]).shape == plain.shape


# ---- refusals that belong to the semantics -------------------------------------------------------


def test_the_reference_needs_an_offset_for_unequal_lengths_too(rng):
    q, k, v = problem(rng, L=3, S=5)
    with pytest.raises(ValueError, match="causal_offset"):
        reference.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_enable_gqa_false_changes_nothing_where_heads_are_as_many(rng):
    q, k, v = problem(rng, H=2, K=2)
    assert same_bits(attention(q, k, v, enable_gqa=False), attention(q, k, v))
