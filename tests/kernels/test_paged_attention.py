"""Attention over pages: what they hold counts, not which they are, how large, or whose else."""

import numpy as np
import pytest

import simdformer as sf
from attention_cases import nearly
from cases import each
from conftest import normal, same_bits
from simdformer import reference

attention = sf.scaled_dot_product_attention


def pools(rng, *, B, N, H, K, L, D, Dv, page, dtype):
    """A query, pools that hold strangers' pages too, and a table that takes them in no order."""
    query = normal(rng, B, H, L, D, dtype=dtype)
    key = normal(rng, B * N + 3, K, page, D, dtype=dtype)
    value = normal(rng, B * N + 3, K, page, Dv, dtype=dtype)
    table = rng.permutation(B * N + 3)[: B * N].reshape(B, N)
    return query, key, value, table, rng.integers(L, N * page + 1, B)


@each("page", [1, 5, 16, 48])
@each("L", [1, 7, 40])
@each(
    "how",
    [
        {},
        {"is_causal": True},
        {"is_causal": True, "window": 20},
        {"softcap": 2.0},
    ],
)
def test_pages_are_keys_one_behind_the_other(isa, dtype, page, L, how, rng):
    """The bits of the same keys without pages, where the same kernel reads them; what belongs to
    nobody may be anything."""
    B, N = 3, 200 // page
    query, key, value, table, lengths = pools(
        rng, B=B, N=N, H=6, K=2, L=L, D=24, Dv=17, page=page, dtype=dtype
    )
    if "is_causal" in how:
        how = how | {"causal_offset": lengths - L}
    ordered = [
        np.ascontiguousarray(reference.forward.pages_in_order(pool, table)) for pool in (key, value)
    ]
    want = attention(query, *ordered, key_lengths=lengths, **how)

    unused = np.arange(N) * page >= lengths[:, None]
    key[np.setdiff1d(np.arange(len(key)), table[~unused])] = np.nan
    value[np.setdiff1d(np.arange(len(key)), table[~unused])] = np.nan
    table = np.where(unused, -77, table)
    found = attention(query, key, value, block_table=table, key_lengths=lengths, **how)
    if L != 7:  # few queries: without pages they would be dot products
        assert same_bits(found, want)
    nearly(found, want)


@each("L", [1, 3, 40])
@each("Dv", [0, 9])
def test_one_sequence_needs_no_axis(L, Dv, rng):
    query, key, value, table, lengths = pools(
        rng, B=1, N=4, H=4, K=2, L=L, D=24, Dv=Dv, page=16, dtype=np.dtype("float32")
    )
    whole = attention(query, key, value, block_table=table, key_lengths=lengths)
    alone, lse = attention(
        query[0], key, value, block_table=table[0], key_lengths=int(lengths[0]), return_lse=True
    )
    assert same_bits(whole[0], alone)
    assert lse.shape == (4, L)


@each("cut", [2, 3, 17, 32, 68])
def test_a_prompt_may_be_cut_anywhere_into_two_or_more(isa, dtype, cut, rng):
    """Bit by bit: prompts enter a batch in pieces of whatever length there is room for."""
    query, key, value, table, _ = pools(
        rng, B=1, N=5, H=4, K=4, L=70, D=16, Dv=16, page=16, dtype=dtype
    )

    def read(start, stop):
        return attention(
            query[:, :, start:stop], key, value, block_table=table, is_causal=True,
            causal_offset=start, key_lengths=[stop],
        )  # fmt: skip

    assert same_bits(np.concatenate([read(0, cut), read(cut, 70)], 2), read(0, 70))


def test_company_does_not_matter(isa, dtype, rng):
    """Bit by bit: a sequence among others that are shorter and longer, or that share its pages."""
    query, key, value, table, lengths = pools(
        rng, B=5, N=40, H=4, K=2, L=1, D=16, Dv=16, page=32, dtype=dtype
    )
    table[1, :3] = table[0, :3]
    lengths[:2] = 120, 1100
    together = attention(query, key, value, block_table=table, key_lengths=lengths)
    for b in range(5):
        own = slice(b, b + 1)
        alone = attention(query[own], key, value, block_table=table[own], key_lengths=lengths[own])
        assert same_bits(together[own], alone)


def test_weights_scores_and_lse_of_pages(rng):
    query, key, value, table, lengths = pools(
        rng, B=2, N=3, H=4, K=2, L=2, D=16, Dv=8, page=16, dtype=np.dtype("float32")
    )
    wanted = {"return_weights": True, "return_scores": True, "return_lse": True}
    found = attention(query, key, value, block_table=table, key_lengths=lengths, **wanted)
    exact = reference.scaled_dot_product_attention(
        query, key, value, block_table=table, key_lengths=lengths, **wanted
    )
    assert [part.shape for part in found] == [(2, 4, 2, 8), (2, 4, 2, 48), (2, 4, 2, 48), (2, 4, 2)]
    for part, of in zip(found, exact, strict=True):
        np.testing.assert_allclose(part, of, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("page", [16, 5])
def test_a_pool_without_pages_is_not_looked_at(page, rng):
    query = rng.standard_normal((2, 3, 4, 8), dtype=np.float32)
    pool = np.empty((0, 3, page, 8), np.float32)
    z = sf.scaled_dot_product_attention(
        query,
        pool,
        pool,
        is_causal=True,
        causal_offset=0,
        key_lengths=[0, 0],
        block_table=np.zeros((2, 4), np.int64),
    )
    assert (z == 0).all()
