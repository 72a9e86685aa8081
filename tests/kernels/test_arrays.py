"""How arrays come in: strides, alignment, zero sizes, lists, mixtures of dtypes.

Tests run over all operations that take arrays of floats, so that none of them goes its own way.
"""

import copy
import pickle

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import simdformer as sf
from cases import each
from conftest import DTYPES, SIXTEEN_BITS, normal, relaid, same_bits
from operations import (
    MIXING,
    OPERATIONS,
    READS,
    ROW_WISE,
    ROWS,
    SECOND_RESULT,
    WIDTH,
    traced_peak,
)
from simdformer import _core
from simdformer.experts import expert_linear
from subprocesses import run_python

# ---- memory layouts ------------------------------------------------------------------------------


@each("layout", ["unaligned", "transposed", "gaps", "backwards", "readonly"])
def test_any_strides_on_leading_axes_any_alignment_and_read_only(operation, dtype, layout, rng):
    x = normal(rng, 3, ROWS, WIDTH, dtype=dtype)
    laid = relaid(rng, x, layout)
    assert same_bits(laid, x)
    before = laid.tobytes()
    assert same_bits(operation(laid), operation(x))
    assert laid.tobytes() == before


@each("layout", ["transposed", "gaps", "backwards", "repeated"])
@pytest.mark.parametrize("name", [name for name in ROW_WISE if name not in SECOND_RESULT])
def test_leading_strides_cost_no_copy(name, layout, rng):
    row_wise = ROW_WISE[name]
    if layout == "repeated":
        row = normal(rng, 1, WIDTH)
        x = np.broadcast_to(row, (500, ROWS, WIDTH))
        assert x.strides[0] == 0
    else:
        x = relaid(rng, normal(rng, 500, ROWS, WIDTH), layout)
    if row_wise is ROW_WISE["softmax_axis_0"]:
        row_wise = ROW_WISE["softmax"]  # along another axis a copy is what it takes
    out = np.empty(x.shape, x.dtype)
    assert traced_peak(lambda: row_wise(x, out=out)) < x.nbytes // 8
    assert same_bits(out, row_wise(x.copy()))


@pytest.mark.parametrize("name", ROW_WISE)
def test_a_non_unit_last_axis_is_copied_once_inside(name, dtype, rng):
    row_wise, made = ROW_WISE[name], READS.get(name, 1) + (name in SECOND_RESULT)
    every_second = normal(rng, 300, ROWS, 2 * WIDTH, dtype=dtype)[..., ::2]
    backwards = normal(rng, 300, ROWS, WIDTH, dtype=dtype)[..., ::-1]
    across = normal(rng, WIDTH, ROWS, 300, dtype=dtype).T
    out = np.empty((300, ROWS, WIDTH), dtype)
    for x in (every_second, backwards, across):
        assert same_bits(row_wise(x), row_wise(x.copy()))
        copies = traced_peak(lambda x=x: row_wise(x, out=out)) / out.nbytes
        assert 0.9 < copies < (2.1 if name == "softmax_axis_0" else made + 0.1)


@each("part", [np.s_[:, ::2], np.s_[::-1, ::-1], np.s_[:, ::-2], np.s_[::2, 1:], np.s_[::2, :1]])
@each("name", [name for name in OPERATIONS if "rope" not in name])
def test_a_last_axis_of_one_element_may_have_any_stride(name, part, dtype, rng):
    """Column vectors: the stride of their last axis leads nowhere, and says nothing about rows."""
    operation = OPERATIONS[name]
    for wide in (normal(rng, 8, 2, dtype=dtype), normal(rng, 8, 1, dtype=dtype)):
        x = wide[part][:, :1]
        if x.size:
            assert same_bits(operation(x), operation(x.copy()))
        if x.size and name not in MIXING:
            out = np.empty_like(wide)[part][:, :1]
            assert same_bits(operation(x, out=out), operation(x.copy()))
    column = normal(rng, 6, 1, dtype=dtype)[::-1, ::-1]
    assert same_bits(sf.swiglu(column, column), sf.swiglu(column.copy(), column.copy()))
    assert same_bits(sf.pack(column).unpack(), column)


def test_attention_and_linear_take_transposed_views_of_all_operands(dtype, rng):
    """Heads split from one projection, weights that lie the other way round."""
    qkv = normal(rng, 2, 5, 3 * 24, dtype=dtype)  # B, L, (q k v) of 3 heads of 8
    q, k, v = (part.reshape(2, 5, 3, 8).swapaxes(1, 2) for part in np.split(qkv, 3, axis=-1))
    assert not q.flags.c_contiguous
    assert same_bits(
        sf.scaled_dot_product_attention(q, k, v, is_causal=True),
        sf.scaled_dot_product_attention(q.copy(), k.copy(), v.copy(), is_causal=True),
    )
    columns = normal(rng, 5, 9, dtype=dtype)
    x, bias = normal(rng, 4, 5, dtype=dtype), normal(rng, 18, dtype=dtype)[::2]
    assert same_bits(sf.linear(x, columns.T, bias), sf.linear(x, columns.T.copy(), bias.copy()))
    assert same_bits(sf.pack(columns.T).unpack(), columns.T.copy())


@each("shape", [(300, 70), (70, 300), (3, 65, 33), (33, 2, 65), (1, 40), (40, 1)])
@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(bool)], ids=str)
def test_copies_between_any_two_layouts_keep_every_element(shape, dtype, rng):
    """Transpositions go in tiles: their edges are where elements would be lost."""
    x = rng.integers(0, 100, shape[::-1]).astype(dtype).T
    if dtype.kind == "b":  # the only way in for a bool is a mask
        L, S = shape[-2:]
        q, k = np.zeros((L, 1), np.float32), np.zeros((S, 1), np.float32)
        mask = x.reshape(-1, L, S)[0]
        weights = sf.scaled_dot_product_attention(q, k, k, mask, return_weights=True)[1]
        np.testing.assert_array_equal(weights > 0, mask)
        return
    out = np.empty(shape[::-1], dtype).T
    assert sf.relu(x, out=out) is out
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64))


@each("name", OPERATIONS)
def test_64_axes(name, rng):
    x = normal(rng, *(1,) * 62, ROWS, WIDTH)
    plain = x.reshape(ROWS, WIDTH)
    if name == "softmax_axis_0":
        assert same_bits(sf.softmax(x, 62).reshape(plain.shape), sf.softmax(plain, 0))
        return
    got, want = OPERATIONS[name](x), OPERATIONS[name](plain)
    assert got.shape == (1,) * 62 + want.shape
    assert same_bits(got.reshape(want.shape), want)


# ---- zero sizes ----------------------------------------------------------------------------------


@each("shape", [(0, WIDTH), (3, 0, WIDTH), (0, 3, WIDTH), (5, 0, 3, 4, 2)])
def test_zero_size_arrays_give_empty_results(isa, operation, dtype, shape):
    x = np.zeros(shape, dtype)
    if operation is MIXING["linear"]:
        got = sf.linear(x, np.zeros((shape[-1], shape[-1]), dtype))
    else:
        got = operation(x)
    assert got.shape == shape
    assert got.dtype == dtype


def test_zero_size_last_axis(isa, dtype):
    x = np.zeros((3, 0), dtype)
    for name in (name for name in ROW_WISE if "rope" not in name):
        for shape in ((3, 0), (0, 3), (0,)):
            assert ROW_WISE[name](np.zeros(shape, dtype)).shape == shape
    bias = np.arange(4).astype(dtype)
    weight = np.zeros((4, 0), dtype)
    assert same_bits(sf.linear(x, weight, bias), np.tile(bias, (3, 1)))
    assert same_bits(sf.linear(x, sf.pack(weight), bias), np.tile(bias, (3, 1)))
    assert same_bits(sf.linear(x, weight), np.zeros((3, 4), dtype))
    assert sf.linear(np.zeros((3, 5), dtype), np.zeros((0, 5), dtype)).shape == (3, 0)


def test_single_numbers(dtype):
    one = np.array(1.0, dtype)
    for name in ("silu", "gelu", "relu"):
        got = getattr(sf, name)(one)
        assert got.shape == ()
        assert got.dtype == dtype
    assert float(sf.relu(one)) == 1.0
    assert sf.swiglu(one, one).shape == ()


# ---- what else is an array ----------------------------------------------------------------------


def test_lists_and_numbers_go_through_asarray():
    assert same_bits(sf.relu([[1.0, -2.0]]), np.array([[1.0, 0.0]]))
    assert same_bits(sf.relu((1, 2.5)), np.array([1.0, 2.5]))
    assert same_bits(sf.relu(3.0), np.array(3.0))
    assert same_bits(sf.relu(np.float32(-3.0)), np.array(-0.0, np.float32).clip(0))
    assert same_bits(sf.relu([np.float32(1), np.float32(-1)]), np.array([1, 0], np.float32))
    assert sf.embedding([], np.zeros((3, 2))).shape == (0, 2)
    assert sf.embedding([[], []], np.zeros((3, 2))).shape == (2, 0, 2)


def test_subclasses_of_ndarray_are_arrays(tmp_path):
    x = np.arange(-3, 3, dtype=np.float32)
    file = np.memmap(tmp_path / "x", np.float32, "w+", shape=x.shape)
    file[:] = x
    assert same_bits(np.asarray(sf.relu(file)), sf.relu(x))
    assert sf.relu(file).__class__ is np.ndarray
    assert sf.relu(x, out=file) is file
    assert same_bits(np.asarray(file), sf.relu(x))


def test_array_interface_without_dlpack():
    class Old:
        def __array__(self, dtype=None, copy=None):
            return np.array([1.0, -1.0], np.float32)

    assert same_bits(sf.relu(Old()), np.array([1, 0], np.float32))


def test_integers_of_any_kind_as_positions_and_ids(rng):
    x, table = normal(rng, 2, 3, 4), normal(rng, 8, 6)
    want = sf.rope(x, layout="half", positions=np.array([5, 0, 7]))
    for integers in (
        [5, 0, 7],
        *(np.array([5, 0, 7], kind) for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")),
        np.array([7, 0, 5])[::-1],
        np.frombuffer(b"\0" + np.array([5, 0, 7]).tobytes(), np.uint8)[1:].view(np.int64),
    ):
        assert same_bits(sf.rope(x, layout="half", positions=integers), want)
        assert same_bits(sf.embedding(integers, table), table[[5, 0, 7]])


# ---- mixtures of dtypes --------------------------------------------------------------------------


@each("small", SIXTEEN_BITS)
def test_16_bit_parameters_beside_float32_are_as_good_as_their_float32_values(isa, small, rng):
    x, w, b = normal(rng, 5, 16), normal(rng, 16, dtype=small), normal(rng, 16, dtype=small)
    wide = w.astype(np.float32), b.astype(np.float32)
    assert same_bits(sf.rms_norm(x, w, eps=1e-6), sf.rms_norm(x, wide[0], eps=1e-6))
    for pair in ((w, b), (w, wide[1]), (wide[0], b)):
        assert same_bits(sf.layer_norm(x, *pair, eps=1e-6), sf.layer_norm(x, *wide, eps=1e-6))
    matrix = normal(rng, 7, 16, dtype=small)
    bias = normal(rng, 7, dtype=small)
    want = sf.linear(x, matrix.astype(np.float32), bias.astype(np.float32))
    assert same_bits(sf.linear(x, matrix, bias), want)
    q, cache, sinks = normal(rng, 4, 5, 16), normal(rng, 2, 5, 16, dtype=small), w[:4]
    assert same_bits(
        sf.scaled_dot_product_attention(q, cache, cache, sinks=sinks),
        sf.scaled_dot_product_attention(
            q, cache.astype(np.float32), cache.astype(np.float32), sinks=sinks.astype(np.float32)
        ),
    )


@each("small", SIXTEEN_BITS)
def test_float32_parameters_beside_16_bit_give_16_bit_rounded_once(isa, small, rng):
    x, w, b = normal(rng, 5, 16, dtype=small), normal(rng, 16), normal(rng, 16)
    wide = x.astype(np.float32)
    assert same_bits(sf.rms_norm(x, w, eps=1e-6), sf.rms_norm(wide, w, eps=1e-6).astype(small))
    assert same_bits(
        sf.layer_norm(x, w, b, eps=1e-6), sf.layer_norm(wide, w, b, eps=1e-6).astype(small)
    )
    matrix, bias = normal(rng, 7, 16), normal(rng, 7)
    assert same_bits(sf.linear(x, matrix, bias), sf.linear(wide, matrix, bias).astype(small))
    q, kv = normal(rng, 4, 5, 16, dtype=small), normal(rng, 2, 5, 16)
    z, weights, lse = sf.scaled_dot_product_attention(
        q, kv, kv, return_weights=True, return_lse=True
    )
    assert z.dtype == weights.dtype == small
    assert lse.dtype == np.float32
    want = sf.scaled_dot_product_attention(
        q.astype(np.float32), kv, kv, return_weights=True, return_lse=True
    )
    assert same_bits(z, want[0].astype(small))
    assert same_bits(weights, want[1].astype(small))
    assert same_bits(lse, want[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inv_freq_of_any_float_dtype(dtype, rng):
    x = normal(rng, 5, 8)
    inv_freq = np.array([1, 0.5, 0.25, 0.125])  # the same number in every dtype
    want = sf.rope(x, layout="half", inv_freq=inv_freq)
    assert same_bits(sf.rope(x, layout="half", inv_freq=inv_freq.astype(dtype)), want)
    assert same_bits(
        sf.rope(x, layout="half", inv_freq=inv_freq.repeat(3).astype(dtype)[::3]), want
    )


# ---- the rest of a call --------------------------------------------------------------------------


def test_broadcast_sizes_beyond_memory_are_an_error_and_no_crash():
    large = as_strided(np.zeros(4, np.float32), (1 << 45, 4), (0, 4))  # more than can be addressed
    with pytest.raises(MemoryError):
        sf.silu(large)
    with pytest.raises((MemoryError, ValueError)):
        sf.linear(large, np.zeros((1 << 10, 4), np.float32))


def test_the_import_is_lean():
    run_python(
        """
        for name in ("torch", "matplotlib", "tokenizers", "transformers", "jinja2"):
            assert name not in sys.modules, name
        assert "simdformer.text" not in sys.modules
        assert sf.nn.MLP and sf.reference.rope and "from_pretrained" in dir(sf)
        try:
            sf.no_such_name
        except AttributeError as error:
            assert str(error) == "module 'simdformer' has no attribute 'no_such_name'"
        else:
            raise AssertionError
        for name in sf.__all__:
            getattr(sf, name)
        """
    )


# ---- packed weights ------------------------------------------------------------------------------


def test_a_packed_weight_is_a_value(dtype, rng):
    """It describes itself, cannot be changed, and so is its own copy."""
    weight = normal(rng, 17, 5, dtype=dtype)
    packed = sf.pack(weight)
    assert packed.shape == (17, 5)
    assert packed.dtype == dtype
    assert isinstance(packed.dtype, np.dtype)
    assert packed.nbytes >= weight.nbytes
    assert repr(packed) == f"PackedWeight(shape=(17, 5), dtype={dtype})"
    assert copy.copy(packed) is packed
    assert copy.deepcopy([packed])[0] is packed
    weight[:] = 0
    assert packed.unpack().any()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        read = pickle.loads(pickle.dumps(packed, protocol))
        assert isinstance(read, sf.PackedWeight)
        assert same_bits(read.unpack(), packed.unpack())
    with pytest.raises(AttributeError):
        packed.shape = (5, 17)


# ---- objects and lists of strangers --------------------------------------------------------------

USES_OF_A_WEIGHT = {
    "repr": repr,
    "shape": lambda weight: weight.shape,
    "dtype": lambda weight: (weight.dtype, weight.nbytes),
    "unpack": lambda weight: weight.unpack(),
    "pickle": pickle.dumps,
    "linear": lambda weight: sf.linear(np.ones(2, np.float32), weight),
    "linear, a list": lambda weight: sf.linear(np.ones(2, np.float32), [weight]),
    "embedding": lambda weight: sf.embedding([0], weight),
    "expert_linear": lambda weight: expert_linear(np.ones((1, 2), np.float32), [0], [[weight]]),
    "_fill": lambda weight: weight._fill(0, np.ones((1, 2), np.float32)),
}


@each("kind", [sf.PackedWeight, sf.QuantizedWeight])
@each("use", USES_OF_A_WEIGHT)
def test_a_weight_that_was_never_made_is_refused(kind, use):
    """pybind11 hands out raw memory for one."""
    weight = kind.__new__(kind)
    message = f" is of type {kind.__name__} and without contents, needs a whole one; make it with "
    with pytest.raises(TypeError, match=message):
        USES_OF_A_WEIGHT[use](weight)


def test_a_file_that_was_never_opened_is_refused():
    file = _core.OpenFile.__new__(_core.OpenFile)
    for use in (lambda: file.descriptor, lambda: file.read_pieces(np.zeros((1, 1), "u1"), 0, 1)):
        with pytest.raises(TypeError, match="self is of type OpenFile and without contents"):
            use()


class Shortens:
    """Empties the list that it lies in while somebody reads it."""

    def __init__(self, array, items):
        self.array, self.items = array, items

    def __array__(self, dtype=None, copy=None):
        self.items.clear()
        return self.array

    def __index__(self):
        self.items.clear()
        return 2


class ShorteningTensor(Shortens):
    def __dlpack__(self, **options):
        self.items.clear()
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@each("argument", ["weight", "bias", "out"])
@each("kind", [Shortens, ShorteningTensor])
def test_a_list_may_be_shortened_while_it_is_read(argument, kind, rng):
    x, weights, biases = normal(rng, 5, 8), normal(rng, 40, 3, 8), normal(rng, 40, 3)
    wanted = sf.linear(x, list(weights), list(biases))
    outs = [np.empty((5, 3), np.float32) for _ in weights]
    call = {"weight": list(weights), "bias": list(biases), "out": outs}
    items = call[argument]
    if argument == "out":
        kind = ShorteningTensor  # what it hands out is written to
    items[0] = kind(items[0], items)
    del outs
    results = sf.linear(x, **call)
    assert items == []
    for got, want in zip(results[1:], wanted[1:], strict=True):
        assert same_bits(got, want)


def test_a_window_may_be_shortened_while_it_is_read(rng):
    x = normal(rng, 1, 6, 8)
    window = [2, 1]
    window[0] = Shortens(None, window)
    got = sf.scaled_dot_product_attention(x, x, x, window=window)
    assert same_bits(got, sf.scaled_dot_product_attention(x, x, x, window=(2, 1)))
