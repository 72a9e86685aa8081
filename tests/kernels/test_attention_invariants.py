"""scaled_dot_product_attention: invariances, and ways to one result that have to meet."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from attention_cases import COARSE, attention, close, nearly, problem
from cases import each
from conftest import DTYPES, grid, normal, same_bits
from simdformer.reference.forward import float64


@each("L", [1, 2, 9, 40, 130])
def test_rows_do_not_depend_on_what_comes_after_them(isa, dtype, L, rng):
    """Bit by bit, whatever the later tokens are: with other ones, and with garbage."""
    q, k, v = problem(rng, H=4, K=2, L=L, S=L, D=16, dtype=dtype)
    whole = attention(q, k, v, is_causal=True)
    assert same_bits(whole[:, 0], sf.repeat_kv(v, 2)[:, 0]), "the first token sees itself alone"
    for n in sorted({1, L // 2, L - 1} - {0}):
        for poison in (1, 100, np.nan, np.inf):
            changed = [x.copy() for x in (q, k, v)]
            for x in changed:
                x[:, n:] = normal(rng, *x[:, n:].shape, dtype=dtype) * dtype.type(poison)
            assert same_bits(attention(*changed, is_causal=True)[:, :n], whole[:, :n])


@each("chunk", [1, 2, 7, 16, 31, 64])
@each("window", [None, 20])
def test_read_in_pieces_is_read_at_once(isa, dtype, chunk, window, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=70, S=70, D=16, dtype=dtype)
    whole = attention(q, k, v, is_causal=True, window=window)
    pieces = [
        attention(
            q[..., start : start + chunk, :],
            k[..., : start + chunk, :],
            v[..., : start + chunk, :],
            is_causal=True,
            causal_offset=start,
            window=window,
        )
        for start in range(0, 70, chunk)
    ]
    nearly(np.concatenate(pieces, -2), whole)


@given(
    seed=st.integers(0, 9999),
    L=st.integers(1, 12),
    S=st.integers(1, 150),
    D=st.integers(1, 40),
    steepness=st.sampled_from([0.0, 0.1, 1.0, 30.0, 1e4]),
    size=st.sampled_from([1e-30, 1.0, 1e30]),
    dtype=st.sampled_from(DTYPES),
)
def test_a_result_lies_among_the_values(seed, L, S, D, steepness, size, dtype):
    """Attention is a mean: for each channel between the smallest and the largest value."""
    rng = np.random.default_rng(seed)
    q, k, v = problem(rng, H=2, K=1, L=L, S=S, D=D, dtype=dtype)
    if dtype != np.float16:
        v = v * dtype.type(size)
    lowest, highest = float64(v).min(-2, keepdims=True), float64(v).max(-2, keepdims=True)
    slack = COARSE[dtype.itemsize] * np.abs(float64(v)).max()
    for name in sf.isas():
        with sf.use_isa(name):
            got = float64(attention(q, k, v, scale=steepness))
            assert (got >= lowest - slack).all()
            assert (got <= highest + slack).all()


@each("L", [1, 9, 40])
def test_attention_is_linear_in_the_values(isa, dtype, L, rng):
    q, k, v = problem(rng, H=4, K=2, L=L, S=70, D=16, dtype=dtype)
    other = normal(rng, *v.shape, dtype=dtype)
    got = attention(q, k, v)
    assert same_bits(attention(q, k, -v), -got)
    both = (float64(v) + float64(other)).astype(dtype)
    close(attention(q, k, both), float64(got) + float64(attention(q, k, other)), dtype, 2)
    if dtype != np.float16:  # whose small results are subnormal
        assert same_bits(attention(q, k, v * dtype.type(4)), got * dtype.type(4))


@each("L", [1, 9, 40])
def test_only_products_of_queries_keys_and_scale_count(isa, dtype, L, rng):
    q, k, v = problem(rng, H=4, K=2, L=L, S=70, D=16, dtype=dtype)
    want = attention(q, k, v, scale=0.25)
    assert same_bits(attention(-q, -k, v, scale=0.25), want)
    assert same_bits(attention(-q, k, v, scale=-0.25), want)
    assert same_bits(attention(q * dtype.type(4), k, v, scale=0.0625), want)
    assert same_bits(attention(q, k * dtype.type(4), v, scale=0.0625), want)


@each("L", [1, 9, 40])
def test_all_ways_to_hide_a_key_are_one(isa, dtype, L, rng):
    q, k, v = problem(rng, lead=(2,), H=4, K=2, L=L, S=70, D=16, dtype=dtype)
    seen = sf.causal_mask(L, 70, offset=40)
    want = attention(q, k, v, is_causal=True, causal_offset=40)
    nearly(attention(q, k, v, seen), want)
    nearly(attention(q, k, v, np.where(seen, np.float32(0), np.float32(-np.inf))), want)
    nearly(attention(q, k, v, is_causal=True, causal_offset=[40, 40]), want)
    want = attention(q, k[..., :50, :], v[..., :50, :])
    nearly(attention(q, k, v, key_lengths=[50, 50]), want)
    nearly(attention(q, k, v, np.arange(70) < 50), want)
    everything = {"is_causal": True, "causal_offset": 69, "window": 69 + L}
    nearly(attention(q, k, v, **everything), attention(q, k, v))


@each("L", [1, 9, 40])
def test_softmax_does_not_see_what_is_added_to_a_whole_row(isa, dtype, L, rng):
    q, k, v = problem(rng, H=4, K=2, L=L, S=70, D=16, dtype=dtype)
    out, lse = attention(q, k, v, return_lse=True)
    row = normal(rng, 4, L, 1)
    shifted, lse_shifted = attention(q, k, v, row, return_lse=True)
    nearly(shifted, out)
    np.testing.assert_allclose(lse_shifted, lse + row[..., 0], rtol=1e-5, atol=1e-5)


@each("L", [1, 9, 40])
def test_a_sink_is_a_key_whose_value_is_zero(isa, dtype, L, rng):
    q, k, v = problem(rng, H=4, K=4, L=L, S=30, D=16, dtype=dtype)
    sinks = grid(rng, 4, dtype=dtype)
    # the score of one more key, which is zero, comes from an additive mask
    longer_k, longer_v = (np.concatenate([x, np.zeros_like(x[:, :1])], 1) for x in (k, v))
    mask = np.zeros((4, 1, 31), np.float32)
    mask[:, 0, 30] = sinks
    got, got_lse = attention(q, k, v, sinks=sinks, return_lse=True)
    want, want_lse = attention(q, longer_k, longer_v, mask, return_lse=True)
    nearly(got, want)
    np.testing.assert_allclose(got_lse, want_lse, rtol=1e-5, atol=1e-5)


@each("L", [1, 9, 40])
def test_two_parts_of_the_keys_make_the_whole(isa, dtype, L, rng):
    """By their log-sum-exps: this is how attention is spread over machines, and over passes."""
    q, k, v = problem(rng, H=4, K=2, L=L, S=70, D=16, dtype=dtype)
    (a, lse_a), (b, lse_b) = (
        attention(q, k[:, part], v[:, part], return_lse=True)
        for part in (slice(0, 23), slice(23, 70))
    )
    out, lse = attention(q, k, v, return_lse=True)
    together = np.logaddexp(lse_a, lse_b)
    np.testing.assert_allclose(together, lse, rtol=1e-5, atol=1e-5)
    share = np.exp(lse_a - together)[..., None].astype(np.float64)
    close(share * float64(a) + (1 - share) * float64(b), out, dtype)
