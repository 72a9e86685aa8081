"""Attention over packed sequences: each text has the bits that it has alone, and knows no other."""

from functools import partial

import numpy as np
import pytest

import simdformer as sf
from attention_cases import EXTRAS, attention, check, problem
from cases import each
from conftest import assert_threads_change_no_bit, normal, same_bits

# Texts of a token, of a few, of several blocks of queries; one without queries, one without keys.
QUERIES = np.array([1, 3, 40, 0, 2, 70])
KEYS = np.array([1, 9, 40, 5, 0, 300])


def ends(lengths):
    return np.cumsum([0, *lengths])


def parts(lengths):
    return [slice(a, b) for a, b in zip(ends(lengths), ends(lengths)[1:], strict=False)]


def packed(rng, dtype, queries=QUERIES, keys=KEYS, lead=()):
    return problem(rng, lead=lead, H=2, K=1, L=sum(queries), S=sum(keys), D=8, Dv=5, dtype=dtype)


@each(
    "how",
    [
        {},
        {"is_causal": True},
        {"window": 5},
        {"window": (20, 3)},
        {"chunk": 7},
        {"is_causal": True, "chunk": 16, "window": 9, "softcap": 2.0},
    ],
)
@each("alignment", [0, 1])
def test_a_segment_has_the_bits_that_it_has_alone(isa, dtype, how, alignment, rng):
    """Everything that is returned, lined up at the first positions or at the last."""
    q, k, v = packed(rng, dtype)
    offsets = alignment * (KEYS - QUERIES)
    where = {} if how == {} else {"causal_offset": offsets}
    got = attention(q, k, v, cu_seqlens=(ends(QUERIES), ends(KEYS)), **where, **how, **EXTRAS)
    hidden = np.ones((QUERIES.sum(), KEYS.sum()), bool)
    for n, (rows, columns) in enumerate(zip(parts(QUERIES), parts(KEYS), strict=True)):
        own = {} if how == {} else {"causal_offset": int(offsets[n])}
        alone = attention(q[:, rows], k[:, columns], v[:, columns], **own, **how, **EXTRAS)
        for a, b in zip(
            alone,
            (got[0][:, rows], *(x[:, rows, columns] for x in got[1:3]), got[3][:, rows]),
            strict=True,
        ):
            assert same_bits(a, np.ascontiguousarray(b))
        hidden[rows, columns] = False
    assert (got[1][:, hidden] == 0).all()
    assert (got[2][:, hidden] == -np.inf).all()


def test_ids_and_cumulative_lengths_say_the_same(isa, dtype, rng):
    q, k, v = packed(rng, dtype)
    names = np.array([4, -1, 0, 99, 2, 7])
    ids = np.repeat(names, QUERIES), np.repeat(names, KEYS)
    want = attention(q, k, v, cu_seqlens=(ends(QUERIES), ends(KEYS)))
    assert same_bits(attention(q, k, v, segment_ids=ids), want)
    # which texts come first, among the keys, is all the same
    order = [5, 0, 3, 1, 2, 4]
    places = np.concatenate([np.arange(KEYS.sum())[parts(KEYS)[n]] for n in order])
    moved = attention(q, k[:, places], v[:, places], segment_ids=(ids[0], ids[1][places]))
    assert same_bits(moved, want)


@each(
    "how",
    [
        {"segment_ids": 0},
        {"is_causal": True},
        {"window": 6, "key_starts": [0, 30], "key_lengths": [100, 77]},
        {"chunk": 9, "is_causal": True, "key_starts": 13},
        {"is_causal": True, "causal_offset": [0, 2], "masked": True, "sinks": True},
    ],
)
def test_each_sequence_of_a_batch_is_packed_its_own_way(isa, dtype, how, rng):
    q, k, v = packed(rng, dtype, [100], [100], lead=(2,))
    ids = np.array([[0] * 3 + [1] * 60 + [2] * 37, [5] * 1 + [1] * 98 + [0] * 1])
    how = {name: x for name, x in how.items() if name != "segment_ids"}
    mask = rng.random((2, 1, 100, 100)) < 0.8 if how.pop("masked", False) else None
    if how.pop("sinks", False):
        how["sinks"] = normal(rng, 2, dtype=dtype)
    check(q, k, v, mask, segment_ids=ids, **how)
    same = ids[..., None, :, None] == ids[..., None, None, :]
    if how == {"is_causal": True}:
        seen = same & sf.causal_mask(100, 100)
        a, b = check(q, k, v, segment_ids=ids, **how), attention(q, k, v, seen)
        np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), atol=3e-2, rtol=3e-2)
    check(q, k, v, mask, segment_ids=ids[0], **how)


def test_what_others_hold_does_not_matter(isa, dtype, rng):
    q, k, v = packed(rng, dtype)
    cu = ends(QUERIES), ends(KEYS)
    want = attention(q, k, v, cu_seqlens=cu)
    for n in (1, 2, 5):
        rows, columns = parts(QUERIES)[n], parts(KEYS)[n]
        dirty = [np.full_like(x, np.nan) for x in (q, k, v)]
        for x, clean, own in zip(dirty, (q, k, v), (rows, columns, columns), strict=True):
            x[:, own] = clean[:, own]
        got = attention(*dirty, cu_seqlens=cu)
        assert same_bits(got[:, rows].copy(), want[:, rows].copy())


def test_threads_change_no_bits(isa, dtype, rng):
    """Large segments on all threads one after the other, small ones side by side."""
    queries = np.array([200, *[7] * 50, 1])
    q, k, v = problem(rng, H=4, K=2, L=551, S=551, D=32, dtype=dtype)
    how = {"cu_seqlens": ends(queries), "is_causal": True, "return_lse": True}
    assert_threads_change_no_bit(partial(attention, q, k, v, **how))


def test_a_query_without_keys_gives_0_or_the_sink(dtype, rng):
    q, k, v = packed(rng, dtype, [4], [4])
    sinks = np.array([1, -2], dtype)
    out, lse = attention(
        q, k, v, segment_ids=([1, 1, 2, 3], [1, 1, 1, 1]), sinks=sinks, return_lse=True
    )
    assert (out[:, 2:] == 0).all()
    assert (out[:, :2] != 0).any(-1).all()
    np.testing.assert_allclose(lse[:, 2:], np.array([[1, 1], [-2, -2]]))


@each("shape", ["two axes", "an axis of one", "a value without columns", "out"])
def test_shapes_of_packed_sequences(dtype, shape, rng):
    q, k, v = packed(rng, dtype)
    cu = ends(QUERIES), ends(KEYS)
    want = attention(q, k, v, cu_seqlens=cu)
    if shape == "two axes":
        assert same_bits(attention(q[0], k[0], v[0], cu_seqlens=cu), want[0])
    elif shape == "an axis of one":
        offsets = KEYS - QUERIES
        a = attention(q, k, v, cu_seqlens=cu, is_causal=True, causal_offset=offsets)
        b = attention(
            q[None], k[None], v[None], cu_seqlens=cu, is_causal=True, causal_offset=offsets
        )
        assert same_bits(a, b[0])
    elif shape == "out":
        merged = np.full((len(q[0]), 2, 5), np.nan, dtype)  # heads side by side
        attention(q, k, v, cu_seqlens=cu, out=merged.swapaxes(0, 1))
        assert same_bits(np.ascontiguousarray(merged.swapaxes(0, 1)), want)
    else:
        out, lse = attention(q, k, v[..., :0], cu_seqlens=cu, return_lse=True)
        assert out.shape == (*q.shape[:-1], 0)
        assert same_bits(lse, attention(q, k, v, cu_seqlens=cu, return_lse=True)[1])


def test_no_queries_and_no_keys(dtype):
    q, k = np.zeros((2, 0, 8), dtype), np.zeros((2, 0, 8), dtype)
    assert attention(q, k, k, cu_seqlens=[0], is_causal=True, causal_offset=[]).shape == q.shape
    assert attention(q, k, k, segment_ids=[]).shape == q.shape
    q = np.ones((2, 3, 8), dtype)
    assert (attention(q, k, k, segment_ids=([0, 0, 1], [])) == 0).all()
    assert (attention(q, k, k, cu_seqlens=([0, 3], [0, 0])) == 0).all()


def test_packed_texts_are_the_rows_of_a_padded_batch(rng):
    lengths = [5, 9, 2]
    q, k, v = problem(rng, H=2, K=2, L=16, S=16, D=8)
    got = attention(q, k, v, cu_seqlens=ends(lengths), is_causal=True)
    padded = np.zeros((3, 3, 2, 9, 8), np.float32)
    for b, rows in enumerate(parts(lengths)):
        for to, x in zip(padded, (q, k, v), strict=True):
            to[b, :, 9 - lengths[b] :] = x[:, rows]
    batch = attention(*padded, is_causal=True, key_starts=9 - np.array(lengths))
    for b, rows in enumerate(parts(lengths)):
        np.testing.assert_allclose(batch[b, :, 9 - lengths[b] :], got[:, rows], atol=1e-6)


def test_segments_that_an_offset_is_missing_for(rng):
    q, k, v = problem(rng, L=4, S=6)
    with pytest.raises(ValueError, match="L = 1 and S = 3 differ in a segment"):
        attention(q, k, v, cu_seqlens=([0, 3, 4], [0, 3, 6]), is_causal=True)
    attention(q, k, v, cu_seqlens=([0, 3, 4], [0, 3, 6]))
