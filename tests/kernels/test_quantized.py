"""Quantised weights: nothing of what they hold is lost, and `linear` gives what their values give:
the same bits for every number of rows and threads, and on every instruction set that has FMA."""

import copy
import pickle

import numpy as np
import pytest

import simdformer as sf
from conftest import SIXTEEN_BITS, bfloat16, normal, rms_error, same_bits
from simdformer import nn, reference
from simdformer.quantization.blocks import read_blocks
from test_quantized_blocks import HALVES, TYPES, random_blocks, relative_error

WRITABLE = [name for name, kind in TYPES.items() if kind.writable]
FMA = [name for name in sf.isas() if name != "baseline"]


def some_blocks(rng, name, outputs, inputs):
    """Blocks whose values are of the size of weights: scales near 0.01."""
    blocks = random_blocks(rng, name, outputs * inputs // TYPES[name].block)
    for at in HALVES[name]:
        scale = rng.normal(0, 0.01, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    if name == "mxfp4":
        blocks[:, 0] = rng.integers(118, 124, len(blocks))
    return blocks.reshape(outputs, -1)


def random_weight(rng, name, outputs, inputs):
    """A weight of random blocks, and its values."""
    blocks = some_blocks(rng, name, outputs, inputs)
    weight = sf.QuantizedWeight.from_blocks(blocks, name, (outputs, inputs))
    return weight, reference.forward.dequantize(blocks, name, (outputs, inputs))


def inputs_of(name):
    """Whole spans of 256, and, where blocks are of 32, some blocks more."""
    return 512 if TYPES[name].block == 256 else 512 + 5 * 32


def as_integers(x):
    """x (..., I) as `linear` takes it: 16-bit integers with a scale for every 32."""
    blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float32)
    most = np.abs(blocks).max(axis=-1, keepdims=True)
    codes = np.rint(blocks * (np.float32(32512) / most))
    return (codes.astype(np.float64) * (most / np.float32(32512))).reshape(x.shape)


# ---- what it holds -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_blocks_go_in_and_come_out_bit_for_bit(name, rng):
    shape = 35, inputs_of(name)
    kind = TYPES[name]
    blocks = random_blocks(rng, name, 35 * shape[1] // kind.block).reshape(35, -1)
    weight = sf.QuantizedWeight.from_blocks(blocks.tobytes(), name, shape)
    assert same_bits(weight.blocks(), blocks)
    assert (weight.shape, weight.type, weight.error) == (shape, name, None)
    assert weight.bits_per_weight == kind.bits_per_weight
    assert weight.nbytes >= blocks.nbytes

    codes, scales, minimums = reference_groups(blocks, name, shape)
    assert same_bits(weight.codes, codes)
    assert same_bits(weight.scales, scales)
    assert (weight.minimums is None) if minimums is None else same_bits(weight.minimums, minimums)
    with np.errstate(all="ignore"):
        assert same_bits(weight.dequantize(), reference.forward.dequantize(blocks, name, shape))


def reference_groups(blocks, name, shape):
    codes, scales, minimums = read_blocks(blocks, name)
    rows = shape[0], -1
    return (
        codes.reshape(shape),
        scales.reshape(rows),
        minimums if minimums is None else minimums.reshape(rows),
    )


@pytest.mark.parametrize("name", WRITABLE)
def test_quantize_says_how_much_is_lost(name, rng):
    weight = normal(rng, 70, 1024, dtype=np.float32, scale=0.02)
    for given in (weight, weight.astype(np.float64), weight.astype(bfloat16), weight[:, ::-1]):
        quantised = sf.quantize(given, name.upper())
        exact = given.astype(np.float64)
        lost = relative_error(quantised.dequantize(np.float64), exact)
        assert quantised.error == pytest.approx(lost, rel=1e-4)
        assert lost < 0.13


@pytest.mark.parametrize("name", WRITABLE)
def test_quantize_gives_the_same_bits_on_every_instruction_set_and_however_it_is_cut(name, rng):
    weight = normal(rng, 70, 768)
    weight[3] = 0
    weight[5] *= 1e-6
    expected = sf.quantize(weight, name)
    with sf.num_threads(1):
        alone = sf.quantize(weight, name)
    assert same_bits(alone.blocks(), expected.blocks())
    assert alone.error == expected.error
    assert same_bits(sf.quantize(weight[9:26, 256:512].copy(), name).blocks(), part_of(expected))
    for isa in sf.isas():
        with sf.use_isa(isa):
            here = sf.quantize(weight, name)
            assert same_bits(here.blocks(), expected.blocks()), isa
            assert here.error == expected.error


def part_of(weight):
    """The blocks of rows 9 to 25, inputs 256 to 511."""
    kind = TYPES[weight.type]
    width = 256 // kind.block * kind.nbytes
    return weight.blocks()[9:26, width : 2 * width]


@pytest.mark.parametrize("name", WRITABLE)
def test_the_error_of_the_smallest_and_largest_numbers_is_measured(name, rng):
    scales = (1e-3, 1e4) if name != "mxfp4" else (1e-36, 1e36)
    weight = normal(rng, 4, 256, dtype=np.float64)
    for scale in scales:
        quantised = sf.quantize(weight * scale, name)
        lost = relative_error(quantised.dequantize(np.float64) / scale, weight)
        assert quantised.error == pytest.approx(lost, rel=1e-3)
    assert sf.quantize(np.full((1, 256), 1e-30), "q8_0").error == 1  # no float16 is so small
    for rows in (0, 2):
        assert sf.quantize(np.zeros((rows, 256)), name).error == 0


def test_dequantize_in_every_dtype(rng, dtype):
    weight, values = random_weight(rng, "q4_k", 3, 512)
    assert same_bits(weight.dequantize(dtype), values.astype(dtype))
    assert same_bits(weight.unpack(), values)


def test_a_pickle_and_a_copy_are_the_weight_itself(rng):
    weight = sf.quantize(normal(rng, 5, 256), "q5_k")
    again = pickle.loads(pickle.dumps(weight))
    assert same_bits(again.blocks(), weight.blocks())
    assert (again.type, again.shape, again.error) == (weight.type, weight.shape, weight.error)
    assert copy.copy(weight) is weight
    assert copy.deepcopy(weight) is weight
    assert repr(weight) == "QuantizedWeight(shape=(5, 256), type='q5_k', error=0.034)"
    assert sf.pack(weight) is weight


# ---- from groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("most", [15, 255])
def test_groups_of_integers_as_awq_gptq_mlx_and_onnx_have_them(group, most, rng):
    codes = rng.integers(0, most + 1, (70, 640))
    codes[0, 0] = most
    scales = normal(rng, 70, 640 // group, scale=0.01)
    zeros = rng.integers(0, most + 1, scales.shape)
    minimums = normal(rng, *scales.shape, scale=0.1)
    x = normal(rng, 3, 640)

    def spread(a):
        return np.repeat(a.astype(np.float32), group, axis=1)

    products = spread(scales) * codes.astype(np.float32)
    for extra, values in (
        ({}, products),
        ({"zeros": zeros}, products - spread(scales) * spread(zeros)),
        ({"minimums": minimums}, products - spread(minimums)),
    ):
        weight = sf.QuantizedWeight.from_groups(codes, scales, **extra)
        assert weight.type == f"int{4 if most == 15 else 8}_g{group}"
        assert weight.bits_per_weight == (4 if most == 15 else 8) + 32 * (1 + bool(extra)) / group
        assert same_bits(weight.codes, codes.astype(np.uint8))
        assert same_bits(weight.scales, scales)
        assert same_bits(weight.dequantize(), values)
        assert same_bits(pickle.loads(pickle.dumps(weight)).dequantize(), values)
        y, exact = sf.linear(x, weight), as_integers(x) @ values.T.astype(np.float64)
        assert rms_error(y, exact) < 2e-6 * np.sqrt(np.mean((as_integers(x) @ products.T) ** 2))
        assert same_bits(sf.linear(x, weight, arithmetic="float32"), sf.linear(x, sf.pack(values)))


# ---- linear --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_linear_is_the_product_with_the_values(name, every_isa, rng):
    outputs, inputs = 83, inputs_of(name)
    weight, values = random_weight(rng, name, outputs, inputs)
    bias = normal(rng, outputs)
    packed = sf.pack(values)
    x = normal(rng, 18, inputs)
    x[:, 5] *= 20  # a channel far larger than the others
    exact = reference.linear(x, values, bias)
    size = np.sqrt(np.mean(exact**2))

    y = sf.linear(x, weight, bias)
    assert rms_error(y, exact) < 1e-4 * size
    by_integers = (
        as_integers(x) @ values.T.astype(np.float64) + bias
    )  # what it says that it computes
    assert rms_error(y, by_integers) < 2e-6 * size
    assert rms_error(reference.linear(x, weight, bias), exact) < 1e-12 * size

    # by float32 it is, to the bit, the product with the packed values
    floats = sf.linear(x, weight, bias, arithmetic="float32")
    assert same_bits(floats, sf.linear(x, packed, bias))

    # a row gives the same bits alone and among others, whichever way codes are read for so many
    for rows in (1, 2, 3, 4, 5, 6, 7, 11, 13, 15, 16, 17):
        assert same_bits(sf.linear(x[:rows], weight, bias), y[:rows]), rows
        alone = sf.linear(x[:rows], weight, bias, arithmetic="float32")
        assert same_bits(alone, floats[:rows]), rows
    with sf.num_threads(1):
        assert same_bits(sf.linear(x, weight, bias), y)


@pytest.mark.skipif(len(FMA) < 2, reason="one instruction set with FMA here")
@pytest.mark.parametrize("name", TYPES)
def test_the_bits_are_the_same_on_every_instruction_set_with_fma(name, rng):
    weight, _ = random_weight(rng, name, 64, inputs_of(name))
    x = normal(rng, 17, inputs_of(name))
    results = []
    for isa in FMA:
        with sf.use_isa(isa):
            results.append(sf.linear(x, weight))
    assert all(same_bits(y, results[0]) for y in results)


def test_many_rows_and_outputs_shared_among_threads(every_isa, rng):
    weight, values = random_weight(rng, "q4_k", 300, 768)
    x = normal(rng, 600, 768)
    y = sf.linear(x, weight)
    assert rms_error(y, reference.linear(x, values)) < 1e-4 * np.sqrt(np.mean(y**2))
    for rows in (slice(0, 1), slice(70, 90), slice(599, 600)):
        assert same_bits(sf.linear(x[rows], weight), y[rows])


@pytest.mark.parametrize("x_dtype", SIXTEEN_BITS, ids=str)
def test_linear_on_16_bit_x_rounds_once(x_dtype, every_isa, rng):
    weight, _ = random_weight(rng, "q8_0", 40, 160)
    x = normal(rng, 5, 160, dtype=x_dtype)
    for arithmetic in ("int16", "float32"):
        wide = sf.linear(x.astype(np.float32), weight, arithmetic=arithmetic)
        assert same_bits(sf.linear(x, weight, arithmetic=arithmetic), wide.astype(x_dtype))


def test_lists_mix_weights_of_every_kind(rng):
    values = normal(rng, 24, 256)
    weights = [values, sf.pack(values), sf.quantize(values, "q8_0"), sf.quantize(values, "q4_k")]
    weights.append(values.astype(bfloat16))
    x, bias = normal(rng, 2, 3, 256), normal(rng, 24)
    biases = [None, bias, bias, None, None]
    for arithmetic in ("int16", "float32"):
        together = sf.linear(x, weights, biases, arithmetic=arithmetic)
        for y, weight, b in zip(together, weights, biases, strict=True):
            assert same_bits(y, sf.linear(x, weight, b, arithmetic=arithmetic))
    out = np.empty((2, 3, 24), np.float32)
    assert sf.linear(x, weights[2], out=out) is out
    assert same_bits(out, sf.linear(x, weights[2]))


def test_a_row_with_nan_or_infinity_is_nan_and_the_others_are_not(every_isa, rng):
    weight, _ = random_weight(rng, "q4_0", 64, 96)
    x = normal(rng, 4, 96)
    expected = sf.linear(x, weight)
    for bad in (np.nan, np.inf, -np.inf):
        spoilt = x.copy()
        spoilt[1, 40] = bad
        y = sf.linear(spoilt, weight)
        assert np.isnan(y[1]).all()
        assert same_bits(y[[0, 2, 3]], expected[[0, 2, 3]])


def test_tiny_and_huge_inputs_keep_their_precision(every_isa, rng):
    weight, values = random_weight(rng, "q8_0", 64, 64)
    x = normal(rng, 3, 64)
    for scale in (1e-30, 1e30):
        y = sf.linear(x * np.float32(scale), weight)
        assert rms_error(y / scale, reference.linear(x, values)) < 1e-4 * np.sqrt(
            np.mean(reference.linear(x, values) ** 2)
        )
    assert same_bits(sf.linear(x * np.float32(1e-36), weight), np.zeros((3, 64), np.float32))
    assert same_bits(sf.linear(x * 0, weight), np.zeros((3, 64), np.float32))


def test_nothing_in_or_out(rng):
    empty = sf.QuantizedWeight.from_blocks(b"", "q4_0", (0, 32))
    assert sf.linear(np.zeros((2, 32), np.float32), empty).shape == (2, 0)
    assert (empty.blocks().shape, empty.dequantize().shape) == ((0, 18), (0, 32))
    no_inputs = sf.QuantizedWeight.from_blocks(b"", "q4_k", (3, 0))
    for arithmetic in ("int16", "float32"):
        y = sf.linear(np.zeros((2, 0), np.float32), no_inputs, np.ones(3, np.float32))
        assert same_bits(y, np.ones((2, 3), np.float32)), arithmetic
    weight, _ = random_weight(rng, "q4_0", 5, 32)
    assert sf.linear(np.zeros((0, 32), np.float32), weight).shape == (0, 5)


# ---- embedding and layers ------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_embedding_looks_up_the_values(name, rng, dtype):
    weight, values = random_weight(rng, name, 50, inputs_of(name))
    ids = rng.integers(0, 50, (2, 7))
    assert same_bits(sf.embedding(ids, weight), values[ids])
    assert same_bits(sf.embedding(ids, weight, dtype=dtype), values[ids].astype(dtype))
    with pytest.raises(IndexError, match=r"ids holds 50 at \[1\], needs ids from 0 to 49"):
        sf.embedding([3, 50], weight)


def test_layers_take_quantised_weights(rng):
    def both(*shape):
        quantised = sf.quantize(normal(rng, *shape, scale=0.1), "q8_0")
        return quantised, quantised.dequantize()

    x = normal(rng, 5, 64)
    wq, wk, wv, wo = (both(*shape) for shape in ((64, 64), (32, 64), (32, 64), (64, 64)))
    gate, up, down = both(96, 64), both(96, 64), both(64, 96)
    embed = both(50, 64)

    def layers(kind):
        heads = nn.GroupedQueryAttention(
            64, 4, 2, wq[kind], wk[kind], wv[kind], wo[kind], rope_layout="half"
        )
        yield heads(x, mask="causal")
        yield nn.MultiHeadAttention(64, 4, wq[kind], wq[kind], wq[kind], wo[kind])(x, x, x)
        yield nn.MLP(gate[kind], up[kind], down[kind])(x)
        yield nn.Embedding(embed[kind])([3, 1])
        yield nn.Embedding(embed[kind]).as_linear(x)

    for quantised, plain in zip(layers(0), layers(1), strict=True):
        assert rms_error(quantised, plain) < 1e-4 * np.sqrt(np.mean(plain**2))


def test_check_allows_what_16_bits_of_x_lose(rng):
    weight, _ = random_weight(rng, "q4_k", 40, 512)
    x = normal(rng, 7, 512)
    x[:, 3] *= 30
    assert sf.check(sf.linear, sf.linear(x, weight), x, weight)
    assert sf.check(sf.linear, x @ weight.dequantize().T, x, weight)
    assert not sf.check(sf.linear, sf.linear(x, weight) * np.float32(1.002), x, weight)
