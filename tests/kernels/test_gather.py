"""embedding, repeat_kv and causal_mask: they move numbers and compute none."""

import contextlib
import threading

import numpy as np
import pytest

import simdformer as sf
from cases import each
from conftest import DTYPES, SIXTEEN_BITS, bfloat16, normal, same_bits
from simdformer import _core, reference


@each("shape", [(), (1,), (7,), (2, 3), (0,), (2, 0, 3)])
@each("width", [0, 1, 5, 64, 129])
def test_embedding_takes_the_rows(dtype, shape, width, rng):
    weight = normal(rng, 11, width, dtype=dtype)
    ids = rng.integers(0, 11, shape)
    got = sf.embedding(ids, weight)
    assert same_bits(got, weight[ids])
    np.testing.assert_array_equal(got.astype(np.float64), reference.embedding(ids, weight))


@each("weight_dtype", SIXTEEN_BITS)
def test_embedding_widens_to_the_dtype_asked_for(isa, weight_dtype, rng):
    weight, ids = normal(rng, 11, 37, dtype=weight_dtype), [[1, 10], [0, 1]]
    assert same_bits(sf.embedding(ids, weight, dtype=np.float32), weight[ids].astype(np.float32))
    assert same_bits(sf.embedding(ids, weight, dtype="float32"), weight[ids].astype(np.float32))
    narrowed = sf.embedding(ids, weight.astype(np.float32), dtype=weight_dtype)
    assert same_bits(narrowed, weight[ids])


@each("bad, where", [(11, (0, 2)), (-1, (1, 0)), (1 << 40, (1, 1))])
def test_ids_out_of_range_negative_too_name_the_id_and_its_position(bad, where, rng):
    ids = np.zeros((2, 3), np.int64)
    ids[where] = bad
    for embedding in (sf.embedding, reference.embedding):
        with pytest.raises(IndexError, match="embedding") as error:
            embedding(ids, normal(rng, 11, 4))
        assert str(bad) in str(error.value)
        assert str(where) in str(error.value) or all(str(i) in str(error.value) for i in where)


def test_embedding_of_an_empty_table_has_no_valid_id(rng):
    assert sf.embedding(np.zeros(0, int), np.zeros((0, 4), np.float32)).shape == (0, 4)
    with pytest.raises(IndexError):
        sf.embedding([0], np.zeros((0, 4), np.float32))


@each("n", [1, 2, 4, 7])
@each("shape", [(3, 5, 4), (2, 3, 5, 4), (2, 2, 1, 5, 3), (3, 0, 4)])
def test_repeat_kv_repeats_each_head_in_place(dtype, n, shape, rng):
    x = normal(rng, *shape, dtype=dtype)
    got = sf.repeat_kv(x, n)
    assert same_bits(got, np.repeat(x, n, axis=-3))
    assert got.shape[-3] == n * shape[-3]
    np.testing.assert_array_equal(got.astype(np.float64), reference.repeat_kv(x, n))


@each("axis", [0, 1, 2, 3, -1, -2])
def test_repeat_kv_along_any_axis(axis, rng):
    """MiniMind keeps (B,S,K,D): axis -2 there."""
    x = normal(rng, 2, 3, 4, 5)
    assert same_bits(sf.repeat_kv(x, 3, axis=axis), np.repeat(x, 3, axis=axis))


@each("L", [0, 1, 2, 5, 17])
@each("S", [0, 1, 4, 17])
@each("offset", [-3, 0, 2, 30])
def test_causal_mask_lets_query_i_see_keys_up_to_i_plus_offset(L, S, offset):
    want = np.array([[j <= i + offset for j in range(S)] for i in range(L)], bool).reshape(L, S)
    assert same_bits(sf.causal_mask(L, S, offset=offset), want)
    assert same_bits(reference.causal_mask(L, S, offset=offset), want)


@each("mask_dtype", [*DTYPES, "bfloat16", "float32", float])
def test_causal_mask_in_a_float_dtype_is_additive(mask_dtype):
    resolved = bfloat16 if str(mask_dtype) == "bfloat16" else np.dtype(mask_dtype)
    got = sf.causal_mask(3, 3, dtype=mask_dtype)
    assert got.dtype == resolved
    want = [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]]
    np.testing.assert_array_equal(got.astype(np.float64), want)


def test_causal_mask_with_unequal_lengths_needs_an_offset():
    for causal_mask in (sf.causal_mask, reference.causal_mask):
        with pytest.raises(ValueError, match="offset"):
            causal_mask(3, 5)
        assert causal_mask(4, 4).sum() == 10


def test_ids_under_the_result_or_changed_meanwhile_stay_those_that_were_checked(rng):
    """Both would make the kernel read far outside the table."""
    table = np.full((2, 6), -1e300)  # as ids, its bits lie far outside
    memory = np.zeros((4, 6))
    ids = memory.view(np.int64).reshape(-1)[:4]
    ids[:] = [1, 0, 1, 0]
    assert (sf.embedding(ids, table, out=memory) == -1e300).all()

    table, ids = normal(rng, 50, 64), rng.integers(0, 50, 20_000)
    done = threading.Event()

    def change():
        while not done.is_set():
            ids[:] = 1 << 50
            ids[:] = 7

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(200):
            with contextlib.suppress(IndexError):
                sf.embedding(ids, table)
    finally:
        done.set()
        other.join()


def test_positions_under_the_result_stay_those_that_were_given(rng):
    memory = np.zeros((4, 6))
    positions = memory.view(np.int64).reshape(-1)[:4]
    positions[:] = [3, 1, 2, 9]
    x = normal(rng, 4, 6, dtype=np.float64)
    want = sf.rope(x, layout="half", positions=positions.copy())
    assert same_bits(sf.rope(x, layout="half", positions=positions, out=memory), want)


# ---- of packed weights ---------------------------------------------------------------------------


@each("width", [0, 1, 5, 64, 257])
def test_embedding_finds_the_rows_of_a_packed_weight(isa, dtype, width, rng):
    weight, ids = normal(rng, 37, width, dtype=dtype), rng.integers(0, 37, (3, 5))
    packed = sf.pack(weight)
    assert same_bits(sf.embedding(ids, packed), weight[ids])
    wide = sf.embedding(ids, packed, dtype="float64")
    np.testing.assert_array_equal(wide, weight[ids].astype(np.float64))
    with pytest.raises(IndexError, match="ids holds 37 at"):
        sf.embedding([[0, 37]], packed)


@each("first", [0, 16, 32])
def test_a_weight_is_packed_in_pieces_of_any_dtype(dtype, first, rng):
    weight = normal(rng, 37, 70, dtype=np.float16)
    packed = sf.PackedWeight._empty(37, 70, dtype)
    packed._fill(first, weight[first:])
    packed._fill(0, weight[:first])
    assert same_bits(packed.unpack(), weight.astype(dtype))


@each("kind", ["q8_0", "q6_k", "q5_k", "q3_k", "q2_k", "mxfp4"])
def test_a_weight_of_few_bits_is_filled_in_pieces_in_any_order(kind, rng):
    """Pieces end within the 64 rows whose words lie side by side."""
    rows, inputs = 150, 512 if kind.endswith("k") else 352
    blocks = sf.QuantizedWeight._empty(kind, rows, inputs).blocks()
    blocks[:] = rng.integers(0, 64, blocks.shape)
    weight = sf.QuantizedWeight._empty(kind, rows, inputs)
    for first, last in ((112, 150), (16, 80), (80, 112), (0, 16)):
        weight._fill(first, blocks[first:last])
    assert same_bits(weight.blocks(), blocks)
    whole = sf.QuantizedWeight.from_blocks(blocks.tobytes(), kind, (rows, inputs))
    x = normal(rng, 3, inputs)
    assert same_bits(sf.linear(x, weight), sf.linear(x, whole))


@each("first, count", [(8, 16), (0, 15), (48, 1), (-16, 16), (32, 16)])
def test_pieces_that_are_no_whole_panels_are_refused(first, count, rng):
    packed = sf.PackedWeight._empty(37, 8, "float32")
    with pytest.raises(ValueError, match="needs whole panels of 16 of 37 rows"):
        packed._fill(first, np.zeros((count, 8), np.float32))
    few = sf.QuantizedWeight._empty("q8_0", 37, 32)
    with pytest.raises(ValueError, match="needs whole panels of 16 of 37 rows"):
        few._fill(first, np.zeros((count, 34), np.uint8))


# ---- what a cache takes in -----------------------------------------------------------------------


@each("wanted", DTYPES)
def test_converting_is_what_numpy_does(isa, dtype, wanted, rng):
    x = normal(rng, 2, 70, 3, 129, dtype=dtype).swapaxes(1, 2)
    room = np.zeros((2, 3, 80, 129), wanted)
    _core.convert(x, room[:, :, 5:75])
    assert same_bits(room[:, :, 5:75], x.astype(wanted))
    assert not room[:, :, :5].any()
    assert not room[:, :, 75:].any()
    _core.convert(x[..., ::2], room[:, :, 5:75, ::2])
    assert same_bits(room[:, :, 5:75, ::2], x[..., ::2].astype(wanted))
