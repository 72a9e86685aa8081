"""linear with plain and packed weights, lists of weights, bias and mixed dtypes."""

import os
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from cases import each
from conftest import (
    DTYPES,
    LAYOUTS,
    LENGTHS,
    SIXTEEN_BITS,
    assert_as_accurate_as_torch,
    assert_close,
    normal,
    relaid,
    repeated,
    same_bits,
)
from simdformer import reference
from simdformer.reference.forward import float64
from subprocesses import run_python

# Around 64 rows, up to which a plain weight is not repacked, panels of 16 columns, 256 inputs.
ROWS = [0, 1, 2, 3, 5, 9, 16, 24, 63, 64, 65]
MANY = 70  # rows, for which it is
COLUMNS = [1, 2, 15, 16, 17, 31, 32, 33, 64, 65]
DEPTHS = [0, 1, 2, 3, 255, 256, 257, 511, 513, 600]
each_form = each("form", [np.asarray, sf.pack])


def added_up(x, weight, bias=None):
    """|x|·|w| + |b|: the magnitude of what a result is the sum of."""
    size = np.abs(float64(x)) @ np.abs(float64(weight)).T
    return size if bias is None else size + np.abs(float64(bias))


@pytest.mark.sampled(2)
@each_form
@each("rows", ROWS)
def test_agrees_with_the_oracle_for_any_number_of_rows(isa, dtype, rows, form, oracle, rng):
    for inner, outer in [(40, 37), (300, 70)]:
        x, weight = normal(rng, rows, inner, dtype=dtype), normal(rng, outer, inner, dtype=dtype)
        bias = normal(rng, outer, dtype=dtype)
        got = sf.linear(x, form(weight), bias)
        assert got.dtype == dtype
        want = oracle("linear", x, weight, bias)
        assert_close(got, want, "linear", scale=added_up(x, weight, bias), slack=oracle.slack)


@each_form
@each("outer", COLUMNS)
def test_agrees_with_the_oracle_for_any_number_of_columns(isa, dtype, outer, form, oracle, rng):
    for rows in (1, 7, 26, MANY):
        x, weight = normal(rng, rows, 33, dtype=dtype), normal(rng, outer, 33, dtype=dtype)
        want = oracle("linear", x, weight)
        got = sf.linear(x, form(weight))
        assert_close(got, want, "linear", scale=added_up(x, weight), slack=oracle.slack)


@pytest.mark.sampled(2)
@each_form
@each("inner", sorted({*DEPTHS, *LENGTHS}))
def test_agrees_with_the_oracle_for_any_depth(isa, dtype, inner, form, oracle, rng):
    for rows in (1, 3, 26, MANY):
        x, weight = normal(rng, rows, inner, dtype=dtype), normal(rng, 19, inner, dtype=dtype)
        bias = normal(rng, 19, dtype=dtype)
        want = oracle("linear", x, weight, bias)
        got = sf.linear(x, form(weight), bias)
        assert_close(got, want, "linear", scale=added_up(x, weight, bias), slack=oracle.slack)


@each("inner", [5, 64, 257, 700])
def test_a_row_has_the_same_bits_alone_and_among_others(isa, dtype, inner, rng):
    """Batch invariance: a token's result does not depend on which tokens are computed with it."""
    x, weight = normal(rng, 65, inner, dtype=dtype), sf.pack(normal(rng, 50, inner, dtype=dtype))
    alone = np.stack([sf.linear(row, weight) for row in x])
    for rows in (1, 2, 5, 6, 7, 23, 24, 25, 64, 65):
        assert same_bits(sf.linear(x[:rows], weight), alone[:rows]), f"{rows} rows"
    assert same_bits(sf.linear(x[40:47], weight), alone[40:47])


@each("weights", [ml_dtypes.bfloat16, np.float16])
def test_rows_have_the_same_bits_whether_16_bit_weights_are_widened_for_them_or_not(
    isa, weights, rng
):
    """Few rows decode them in registers; from how many on it pays to widen them first, each
    instruction set knows."""
    x, weight = normal(rng, 1030, 300), sf.pack(normal(rng, 50, 300, dtype=weights))
    together = sf.linear(x, weight)
    for rows in (1, 23, 24, 127, 128, 255, 256, 600):
        assert same_bits(sf.linear(x[:rows], weight), together[:rows]), f"{rows} rows"


@each("inner", [5, 64, 257, 700, 1800])
def test_with_a_plain_weight_up_to_64_rows_have_the_same_bits_and_so_have_more(
    isa, dtype, inner, rng
):
    """Few rows are dot products on the weight as it lies; for more it is repacked on the way."""
    x, weight = normal(rng, 130, inner, dtype=dtype), normal(rng, 50, inner, dtype=dtype)
    alone = np.stack([sf.linear(row, weight) for row in x[:64]])
    together = sf.linear(x, weight)
    for rows in (*range(1, 18), 23, 24, 25, 32, 63, 64):
        assert same_bits(sf.linear(x[:rows], weight), alone[:rows]), f"{rows} rows"
    for rows in (65, 70, 127, 128):
        assert same_bits(sf.linear(x[:rows], weight), together[:rows]), f"{rows} rows"


@each_form
@each("rows", [30, MANY])
def test_a_column_has_the_same_bits_alone_and_among_others(isa, dtype, form, rows, rng):
    x, weight = normal(rng, rows, 70, dtype=dtype), normal(rng, 67, 70, dtype=dtype)
    whole = sf.linear(x, form(weight))
    for begin, end in [(0, 1), (0, 16), (3, 20), (16, 48), (66, 67)]:
        assert same_bits(sf.linear(x, form(weight[begin:end].copy())), whole[:, begin:end].copy())


@each("shape", [(1, 1), (16, 2), (17, 3), (33, 256), (5, 301), (0, 4), (4, 0)])
def test_pack_and_unpack_give_back_every_bit(isa, dtype, shape, rng):
    weight = normal(rng, *shape, dtype=dtype)
    if weight.size:
        weight.flat[0] = np.nan
        weight.flat[-1] = np.finfo(np.float16).smallest_subnormal
    packed = sf.pack(weight)
    assert packed.shape == shape
    assert packed.dtype == dtype
    assert packed.nbytes >= weight.nbytes
    assert same_bits(packed.unpack(), weight)


def test_a_packed_weight_does_not_follow_its_source(isa, dtype, rng):
    x, weight = normal(rng, 3, 20, dtype=dtype), normal(rng, 9, 20, dtype=dtype)
    packed = sf.pack(weight)
    before = sf.linear(x, packed)
    weight[:] = 0
    assert same_bits(sf.linear(x, packed), before)


def test_a_pickled_weight_is_portable_between_instruction_sets(dtype, rng):
    x, weight = normal(rng, 30, 70, dtype=dtype), normal(rng, 37, 70, dtype=dtype)
    pickles = {}
    for name in sf.isas():
        with sf.use_isa(name):
            pickles[name] = pickle.dumps(sf.pack(weight))
    assert len(set(pickles.values())) == 1
    for name in sf.isas():
        with sf.use_isa(name):
            read = pickle.loads(pickles[sf.isas()[0]])
            assert same_bits(read.unpack(), weight)
            assert same_bits(sf.linear(x, read), sf.linear(x, sf.pack(weight)))


@each_form
@each("rows", [1, 5, MANY])
def test_a_list_of_weights_gives_a_list_of_the_same_results(isa, dtype, form, rows, rng):
    x = normal(rng, 2, rows, 48, dtype=dtype)
    weights = [normal(rng, n, 48, dtype=dtype) for n in (32, 8, 17, 0)]
    biases = [normal(rng, 32, dtype=dtype), None, normal(rng, 17, dtype=dtype), None]
    got = sf.linear(x, [form(w) for w in weights], biases)
    assert isinstance(got, list)
    for result, weight, bias in zip(got, weights, biases, strict=True):
        assert same_bits(result, sf.linear(x, form(weight), bias))
    for result, weight in zip(sf.linear(x, [form(w) for w in weights]), weights, strict=True):
        assert same_bits(result, sf.linear(x, form(weight)))
    outs = [np.full((2, rows, w.shape[0]), np.nan, dtype) for w in weights]
    back = sf.linear(x, [form(w) for w in weights], biases, out=outs)
    for out, given_back, result in zip(outs, back, got, strict=True):
        assert given_back is out
        assert same_bits(out, result)


@each_form
@each("narrow", SIXTEEN_BITS)
@each("rows", [1, 4, MANY])
def test_a_float32_out_takes_the_sums_of_16_bit_products(isa, form, narrow, rows, rng):
    x, weight, bias = (
        normal(rng, *shape, dtype=narrow) for shape in ((rows, 300), (41, 300), (41,))
    )
    for b in (bias, None):
        out = np.full((rows, 41), np.nan, np.float32)
        assert sf.linear(x, form(weight), b, out=out) is out
        assert same_bits(out.astype(narrow), sf.linear(x, form(weight), b))
        assert (out != out.astype(narrow)).mean() > 0.5
    with pytest.raises(TypeError, match="out has dtype float64, needs"):
        sf.linear(x, form(weight), out=np.empty((rows, 41)))


@each_form
@each("narrow", SIXTEEN_BITS)
@each("rows", [1, 4, MANY])
def test_beside_a_float32_x_parameters_may_be_16_bit(isa, form, narrow, rows, rng):
    x, weight, bias = normal(rng, rows, 300), normal(rng, 41, 300, dtype=narrow), normal(rng, 41)
    for b in (bias, bias.astype(narrow), None):
        got = sf.linear(x, form(weight), b)
        assert got.dtype == np.float32
        want = reference.linear(x, weight, b)
        assert_close(
            got, want, "linear", scale=added_up(x, weight, b)
        )  # activations are not rounded on the way


@each_form
@each("narrow", SIXTEEN_BITS)
@each("rows", [1, 4, MANY])
def test_beside_a_16_bit_x_parameters_may_be_float32(isa, form, narrow, rows, rng):
    x, weight, bias = normal(rng, rows, 300, dtype=narrow), normal(rng, 41, 300), normal(rng, 41)
    for w in (weight, weight.astype(narrow)):
        for b in (bias, bias.astype(narrow), None):
            got = sf.linear(x, form(w), b)
            assert got.dtype == narrow
            # half a unit of the 16-bit result, and the sum's error relative to what was added up
            want = reference.linear(x, w, b)
            allowed = added_up(x, w, b) * 4 * 2**-23 + np.abs(want) * np.exp2(
                -11.0 if narrow == np.float16 else -8.0
            )
            assert (np.abs(float64(got) - want) <= allowed).all()


def test_16_bit_accumulates_in_float32(isa):
    """In 16 bits 2048 + 1 is 2048 and the sum would stop there."""
    for dtype in SIXTEEN_BITS:
        for rows in (1, 30, MANY):
            x, weight = np.ones((rows, 4096), dtype), np.ones((3, 4096), dtype)
            assert (float64(sf.linear(x, weight)) == 4096).all()
            assert (float64(sf.linear(x, sf.pack(weight))) == 4096).all()


@each_form
@each("rows", [1, 4, MANY])
def test_subnormals_are_kept(isa, dtype, form, rows):
    """But by the dot product of AVX512-BF16, which packed weights use: to it they are zero."""
    x = np.eye(rows, MANY).astype(dtype)
    weight = (
        np.tile(np.arange(1, MANY + 1).astype(dtype), (17, 1))
        * ml_dtypes.finfo(dtype).smallest_subnormal
    )
    want = np.repeat(weight[:1, :rows].T, 17, axis=1)
    if isa == "avx512_bf16" and dtype == ml_dtypes.bfloat16 and form is sf.pack:
        want[:] = 0
    assert same_bits(sf.linear(x, form(weight)), want)


@each_form
@each("rows", [30, MANY])
def test_nan_and_infinity_reach_their_row_and_column_and_no_other(isa, dtype, form, rows, rng):
    x, weight = normal(rng, rows, 40, dtype=dtype), normal(rng, 37, 40, dtype=dtype)
    x[3, 39], weight[17, 0] = np.nan, np.inf
    got = float64(sf.linear(x, form(weight)))
    assert np.isnan(got[3]).all()
    assert np.isinf(np.delete(got[:, 17], 3)).all()
    assert np.isfinite(np.delete(np.delete(got, 3, 0), 17, 1)).all()


@each_form
def test_rows_that_are_one_row_in_memory(isa, dtype, form, rng):
    x, weight = normal(rng, 40, dtype=dtype), normal(rng, 17, 40, dtype=dtype)
    want = sf.linear(x, form(weight))
    assert all(same_bits(row, want) for row in sf.linear(repeated(x, 5), form(weight)))
    many = sf.linear(np.tile(x, (MANY, 1)), form(weight))
    assert same_bits(sf.linear(repeated(x, MANY), form(weight)), many)
    tall = repeated(weight[0], 20)
    assert same_bits(sf.linear(x, form(tall)), np.tile(want[:1], 20))


@given(data=st.data())
def test_shapes_and_options_drawn_at_random(data):
    draw = data.draw
    lead = draw(st.lists(st.integers(0, 9), max_size=3), "leading axes")
    inner, outer = draw(st.integers(0, 520), "I"), draw(st.integers(0, 70), "O")
    dtype = draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 99), "seed"))
    x, weight = normal(rng, *lead, inner, dtype=dtype), normal(rng, outer, inner, dtype=dtype)
    bias = normal(rng, outer, dtype=dtype) if draw(st.booleans(), "bias") else None
    want = reference.linear(x, weight, bias)
    x, weight = (relaid(rng, a, draw(st.sampled_from(LAYOUTS))) for a in (x, weight))
    form = sf.pack if draw(st.booleans(), "packed") else np.asarray
    for name in sf.isas():
        with sf.use_isa(name):
            assert_close(
                sf.linear(x, form(weight), bias), want, "linear", scale=added_up(x, weight, bias)
            )


@each_form
@each("rows, inner", [(1, 256), (1, 1024), (64, 256), (64, 1024)])
def test_rms_error_is_at_most_one_and_a_half_times_torchs(isa, dtype, form, rows, inner, rng):
    """PyTorch's rows are those of a matrix product: one alone is a dot product of dozens of partial
    sums on some CPUs, and four times as exact there as the same row among others."""
    problems = [
        ((normal(rng, 64, inner, dtype=dtype), normal(rng, 96, inner, dtype=dtype)), {})
        for _ in range(3)
    ]

    def ours(x, weight):
        weight = form(weight)
        parts = [sf.linear(x[first : first + rows], weight) for first in range(0, len(x), rows)]
        return np.concatenate(parts)

    assert_as_accurate_as_torch("linear", ours, problems)


@pytest.mark.slow
@each_form
def test_every_small_shape(isa, form, rng):
    """Every number of rows and columns up to two blocks, at depths around the block."""
    for dtype in DTYPES:
        for inner in (1, 7, 16, 255, 257):
            x, weight = normal(rng, 27, inner, dtype=dtype), normal(rng, 34, inner, dtype=dtype)
            want, size = reference.linear(x, weight), added_up(x, weight)
            for outer in range(1, 35):
                w = form(weight[:outer])
                for rows in range(1, 28):
                    got = sf.linear(x[:rows], w)
                    assert_close(got, want[:rows, :outer], "linear", scale=size[:rows, :outer])


# ---- where packed weights lie --------------------------------------------------------------------


def test_weights_that_share_a_block_of_memory_come_and_go_one_by_one(rng):
    """Some are dropped, and others made, between those that stay."""
    plain = [normal(rng, 16 * size, 300, dtype="float32") for size in range(4, 40, 3)]
    kept = {}
    for turn in range(300):
        at = int(rng.integers(len(plain)))
        kept.pop(int(rng.integers(len(plain))), None)
        kept[at] = sf.pack(plain[at])
        if turn % 50 == 0:
            assert all(same_bits(weight.unpack(), plain[at]) for at, weight in kept.items())
    assert all(same_bits(weight.unpack(), plain[at]) for at, weight in kept.items())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer keeps what is freed"
)
def test_a_weight_that_is_dropped_gives_its_memory_back_beside_others_that_stay():
    code = """
    import gc

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    plain = np.ones((512, 512), np.float32)  # 1 MB
    before = resident()
    kept = [sf.pack(plain) for _ in range(100)]
    full = resident() - before
    del kept[:50], kept[1:]  # one stays, in the middle
    gc.collect()
    print(full > 90e6, resident() - before < 12e6)
    """
    assert run_python(code) == "True True"
