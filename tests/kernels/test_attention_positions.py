"""scaled_dot_product_attention: padding on the left, windows of two sides, chunks, and leading axes
that broadcast. Each beside torch with the mask that says the same, and beside the reference.
"""

from functools import partial

import numpy as np
import pytest
from torch.nn import functional as F

from attention_cases import COARSE, attention, check, exactly, nearly, problem
from cases import each
from conftest import assert_threads_change_no_bit, from_torch, normal, same_bits, to_torch
from simdformer.reference.forward import float64

B = 3
SIZES = [(1, 70), (3, 70), (40, 60), (70, 300)]  # decode, and prefill of one block and of several


def beside_torch(q, k, v, sees, **kwargs):
    """sees(b, i, j) on grids of numbers, as flex_attention's mask_mod. Rows that see nothing are
    NaN there, and 0 here; the reference looks at all other results too."""
    got = check(q, k, v, **kwargs)
    lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3])
    b, i, j = np.ogrid[: max([1, *lead]), : q.shape[-2], : k.shape[-2]]
    mask = np.broadcast_to(sees(b, i, j), (max([1, *lead]), q.shape[-2], k.shape[-2]))[:, None]
    want = F.scaled_dot_product_attention(
        *map(to_torch, (q, k, v, np.ascontiguousarray(mask))), enable_gqa=True
    )
    alive = np.broadcast_to(mask.any(-1)[..., None], got.shape)
    coarse = 4 * COARSE[q.dtype.itemsize]
    np.testing.assert_allclose(
        float64(got)[alive], float64(from_torch(want))[alive], rtol=coarse, atol=coarse
    )
    assert (float64(got)[~alive] == 0).all()
    return got


def batch(rng, dtype, L, S):
    return problem(rng, lead=(B,), H=2, K=1, L=L, S=S, D=8, dtype=dtype)


# ---- padding on the left -------------------------------------------------------------------------

STARTS = np.array([0, 7, 51])


@each("L, S", SIZES)
def test_padding_on_the_left_is_hidden(isa, dtype, L, S, rng):
    q, k, v = batch(rng, dtype, L, S)
    start = STARTS[:, None, None]
    beside_torch(q, k, v, lambda b, i, j: j >= start, key_starts=STARTS)
    beside_torch(
        q, k, v, lambda b, i, j: (j >= start) & (j <= i + S - L),
        is_causal=True, causal_offset=S - L, key_starts=STARTS,
    )  # fmt: skip


@each("L, S", SIZES)
def test_a_sequence_padded_on_the_left_is_what_it_is_alone(isa, dtype, L, S, rng):
    """Whatever lies in the padding, and with the offset of the array: positions are those in it."""
    q, k, v = batch(rng, dtype, L, S)
    for b, start in enumerate(STARTS):
        k[b, :, :start] = v[b, :, :start] = np.nan
    options = {"is_causal": True, "window": 25, "key_starts": STARTS}
    got = attention(q, k, v, causal_offset=S - L, **options)
    for b, start in enumerate(STARTS):
        rows = slice(max(0, start - (S - L)), L)  # the others are padding too
        want = attention(
            q[b, :, rows], k[b, :, start:], v[b, :, start:],
            is_causal=True, window=25, causal_offset=S - L + rows.start - start,
        )  # fmt: skip
        nearly(got[b, :, rows], want)
        assert (got[b, :, : rows.start] == 0).all()


@each("L, S", SIZES)
def test_starts_and_lengths_together_leave_what_lies_between(isa, dtype, L, S, rng):
    q, k, v = batch(rng, dtype, L, S)
    lengths = np.array([60, 55, 40])  # the last ends before it starts
    got = check(q, k, v, key_starts=STARTS, key_lengths=lengths)
    assert (got[2] == 0).all()
    nearly(got[1], attention(q[1], k[1, :, 7:55], v[1, :, 7:55]))
    one = attention(q, k, v, key_starts=7, key_lengths=55)
    nearly(one[1], got[1])


@each("page", [5, 16])
@each("L", [1, 20])
def test_pages_before_the_start_may_be_anything(dtype, page, L, rng):
    q, k, v = batch(rng, dtype, L, 80)
    starts = np.array([0, 33, 77])
    pages = 80 // page
    table = np.arange(3 * pages).reshape(3, pages)
    pools = [
        np.ascontiguousarray(x.reshape(3, 1, pages, page, 8).swapaxes(1, 2)).reshape(-1, 1, page, 8)
        for x in (k, v)
    ]
    table = np.where((np.arange(pages) + 1) * page <= starts[:, None], -9, table)
    got = attention(q, *pools, block_table=table, key_starts=starts)
    nearly(got, attention(q, k, v, key_starts=starts))


# ---- windows -------------------------------------------------------------------------------------


@each("window", [1, 25, 1000])
@each("L, S", SIZES)
def test_a_window_without_causality_looks_both_ways(isa, dtype, window, L, S, rng):
    q, k, v = batch(rng, dtype, L, S)
    for offset in (S - L, -5):
        beside_torch(
            q, k, v, lambda b, i, j, at=offset: np.abs(i + at - j) < window,
            window=window, causal_offset=offset,
        )  # fmt: skip


@each("window", [(0, 0), (3, 0), (0, 20), (5, None), (None, 2), (None, None)])
@each("L, S", SIZES[::2])
def test_a_window_of_two_sides_is_flash_attentions(isa, dtype, window, L, S, rng):
    q, k, v = batch(rng, dtype, L, S)
    left, right = (10**12 if side is None else side for side in window)
    offset = {} if window == (None, None) else {"causal_offset": 45}
    for causal in [{}, {"is_causal": True, "causal_offset": 45}]:
        ahead = 0 if causal else right
        beside_torch(
            q, k, v, lambda b, i, j, ahead=ahead: (j >= i + 45 - left) & (j <= i + 45 + ahead),
            window=window, **offset | causal,
        )  # fmt: skip


def test_windows_that_say_the_same_have_the_same_bits(isa, dtype, rng):
    q, k, v = batch(rng, dtype, 40, 40)
    both = attention(q, k, v, window=9)
    assert same_bits(both, attention(q, k, v, window=(8, 8)))
    assert same_bits(both, attention(q, k, v, window=[8, 8], causal_offset=[0, 0, 0]))
    back = attention(q, k, v, is_causal=True, window=9)
    assert same_bits(back, attention(q, k, v, window=(8, 0)))
    assert same_bits(back, attention(q, k, v, is_causal=True, window=(8, None)))
    assert same_bits(attention(q, k, v, is_causal=True), attention(q, k, v, window=(None, 0)))
    assert same_bits(attention(q, k, v), attention(q, k, v, window=(None, None)))
    # turned around, the left side is the right one
    mirrored = attention(*(x[..., ::-1, :] for x in (q, k, v)), window=(3, 11))
    nearly(mirrored[..., ::-1, :].copy(), attention(q, k, v, window=(11, 3)))


# ---- chunks --------------------------------------------------------------------------------------


@each("chunk", [1, 33, 1000])
@each("L, S", SIZES)
def test_a_chunk_hides_the_others(isa, dtype, chunk, L, S, rng):
    q, k, v = batch(rng, dtype, L, S)
    for offset in (S - L, -5):
        same = lambda b, i, j, at=offset: (i + at) // chunk == j // chunk  # noqa: E731
        beside_torch(q, k, v, same, chunk=chunk, causal_offset=offset)
        beside_torch(
            q, k, v, lambda b, i, j, at=offset, same=same: same(b, i, j) & (j <= i + at),
            chunk=chunk, is_causal=True, causal_offset=offset,
        )  # fmt: skip


@each("L, S", SIZES)
def test_chunks_begin_where_the_text_begins(isa, dtype, L, S, rng):
    """As in transformers, whose chunked masks count from the padding on."""
    q, k, v = batch(rng, dtype, L, S)
    start, at = STARTS[:, None, None], S - L

    def sees(b, i, j):
        return ((i + at - start) // 32 == (j - start) // 32) & (j >= start) & (j <= i + at)

    beside_torch(q, k, v, sees, chunk=32, is_causal=True, causal_offset=at, key_starts=STARTS)
    beside_torch(
        q, k, v, lambda b, i, j: ((i + at) // 32 == j // 32) & (np.abs(i + at - j) < 9),
        chunk=32, window=9, causal_offset=at,
    )  # fmt: skip


# ---- leading axes --------------------------------------------------------------------------------


@each("L", [1, 40])
def test_leading_axes_broadcast_as_numpys(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2, 3), H=4, K=2, L=L, S=25, D=16, dtype=dtype)
    for queries, keys in [
        (np.s_[:1], np.s_[:]), (np.s_[:1, :1], np.s_[:]), (np.s_[:1], np.s_[:, :1]),
        (np.s_[:], np.s_[:1, :1]),
    ]:  # fmt: skip
        few = q[queries], k[keys], v[keys]
        lead = np.broadcast_shapes(few[0].shape[:2], few[1].shape[:2])
        wide = [np.broadcast_to(x, (*lead, *x.shape[2:])).copy() for x in few]
        assert same_bits(check(*few), attention(*wide))
        starts = rng.integers(0, 25, lead)
        assert same_bits(check(*few, key_starts=starts), attention(*wide, key_starts=starts))
    same_keys = [np.broadcast_to(x[:1], x.shape).copy() for x in (q, k)]
    assert same_bits(attention(q[:1], k[:1], v), attention(*same_keys, v))


def test_one_query_is_asked_of_every_sequence_of_a_cache(dtype, rng):
    q, k, v = batch(rng, dtype, 1, 64)
    lengths, mask = np.array([64, 20, 3]), normal(rng, 3, 1, 1, 64)
    got = check(q[:1], k, v, mask, key_lengths=lengths)
    assert got.shape == (3, 2, 1, 8)
    nearly(got[2], attention(q[0], k[2, :, :3], v[2, :, :3], mask[2, :, :, :3]))
    pools = [x.reshape(3, 1, 4, 16, 8).swapaxes(1, 2).reshape(12, 1, 16, 8) for x in (k, v)]
    table = np.arange(12).reshape(3, 4)
    paged = attention(q[:1], *pools, block_table=table, key_lengths=lengths)
    assert same_bits(paged, attention(q[:1], k, v, key_lengths=lengths))
    out = np.empty_like(paged)
    assert attention(q[:1], k, v, key_lengths=lengths, out=out) is out
    assert same_bits(out, paged)


# ---- what holds for all of them ------------------------------------------------------------------


@each(
    "how",
    [
        {"window": 30}, {"window": (7, 100)}, {"chunk": 50}, {"key_starts": [0, 50, 59]},
        {"chunk": 64, "is_causal": True, "key_starts": [0, 9, 20], "key_lengths": [60, 20, 55]},
    ],
)  # fmt: skip
@each("L, S", SIZES)
def test_bits_depend_neither_on_threads_nor_on_company(isa, dtype, how, L, S, rng):
    q, k, v = batch(rng, dtype, L, S)
    where = {} if list(how) == ["key_starts"] else {"causal_offset": S - L}
    want = attention(q, k, v, **where, **how)
    assert_threads_change_no_bit(partial(attention, q, k, v, **where, **how))
    own = {name: x[1] if name.startswith("key") else x for name, x in how.items()}
    assert same_bits(attention(q[1:2], k[1:2], v[1:2], **where, **own), want[1:2])


@pytest.mark.parametrize("name", ["window", "chunk"])
def test_an_offset_is_asked_for_where_lengths_differ(name, rng):
    q, k, v = problem(rng, L=3, S=5)
    with pytest.raises(ValueError, match="at which key query 0 stands"):
        attention(q, k, v, **{name: 2})
    with pytest.raises(ValueError, match="needs a causal_offset"):
        exactly(q, k, v, **{name: 2})
