"""The bytes of quantised blocks: what they mean is what the gguf package reads, what is written is
what it writes, and where scales are searched for, the error is at most llama.cpp's."""

import gguf
import numpy as np
import pytest

from conftest import same_bits
from simdformer import quantize, reference
from simdformer.quantization.blocks import read_blocks
from simdformer.quantization.types import quantization_types

TYPES = quantization_types()
WRITABLE = [name for name, kind in TYPES.items() if kind.writable]
SEARCHED = ["q4_k", "q5_k", "q6_k"]
ROUNDED = [name for name in WRITABLE if name not in SEARCHED]

# Where the half-precision numbers of a block stand; random bits there would be NaN now and then.
HALVES = {
    **dict.fromkeys(["q8_0", "q4_0", "q5_0", "iq4_nl", "iq4_xs"], (0,)),
    **dict.fromkeys(["q4_1", "q5_1", "q4_k", "q5_k"], (0, 2)),
    "q6_k": (208,),
    "q3_k": (108,),
    "q2_k": (80, 82),
    "mxfp4": (),
}


def random_blocks(rng, name, count):
    """Blocks of random bits, whose halves are finite: tiny, large, of either sign."""
    blocks = rng.integers(0, 256, (count, TYPES[name].nbytes), dtype=np.uint8)
    for at in HALVES[name]:
        half = rng.integers(0, 0x7C00, count) | rng.integers(0, 2, count) << 15
        blocks[:, at : at + 2] = half.astype("<u2").view(np.uint8).reshape(-1, 2)
    return blocks


def shapes_of_weights(rng, rows, columns):
    """Numbers as weights are: bell-shaped, with long tails, even, off zero, with outliers."""
    shape = (rows, columns)
    normal = rng.standard_normal(shape)
    return {
        "normal": 0.02 * normal,
        "tails": rng.standard_t(5, shape),
        "laplace": rng.laplace(size=shape),
        "uniform": rng.uniform(-1, 1, shape),
        "shifted": normal + 0.7,
        "outliers": normal * np.where(rng.random(shape) < 0.005, 10, 1),
    }


def relative_error(values, weight):
    return np.sqrt(np.mean((values - weight) ** 2) / np.mean(weight**2))


@pytest.mark.parametrize("name", TYPES)
def test_the_table_of_types_is_ggmls(name):
    ours = TYPES[name]
    theirs = gguf.GGMLQuantizationType[name.upper()]
    assert gguf.GGML_QUANT_SIZES[theirs] == (ours.block, ours.nbytes)
    assert ours.name == name
    assert ours.bits_per_weight == 8 * ours.nbytes / ours.block


@pytest.mark.parametrize("name", TYPES)
def test_dequantize_gives_the_bits_of_gguf(name, rng):
    kind = TYPES[name]
    blocks = random_blocks(rng, name, 3000)
    shape = (30, 100 * kind.block)
    values = reference.forward.dequantize(blocks, name, shape)
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name.upper()])
    assert same_bits(values, expected.reshape(shape))

    codes, scales, minimums = read_blocks(blocks, name)
    assert codes.shape == (3000, kind.block)
    assert scales.shape == (3000, kind.block // kind.group)
    assert (minimums is not None) == kind.has_minimum


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_blocks_are_the_bytes_of_gguf(name, rng):
    kinds = [*shapes_of_weights(rng, 16, 1024).values(), np.zeros((2, 1024))]
    kinds.append(np.round(4 * rng.standard_normal((8, 1024))))  # many halves between two codes
    for weight in kinds:
        x = weight.astype(np.float32)
        expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name.upper()])
        assert same_bits(quantize(x, name).blocks(), expected)


# Relative RMS error of llama.cpp's quantisers (release b6290, quantize_row_*_ref) on these numbers,
# and what ours may have: what it has, and a little.
LLAMA_CPP = {
    "normal": {"q4_k": 0.07129, "q5_k": 0.03611, "q6_k": 0.01775},
    "tails": {"q4_k": 0.08300, "q5_k": 0.04204, "q6_k": 0.02148},
    "laplace": {"q4_k": 0.08449, "q5_k": 0.04280, "q6_k": 0.02169},
    "uniform": {"q4_k": 0.05457, "q5_k": 0.02761, "q6_k": 0.01323},
    "shifted": {"q4_k": 0.05822, "q5_k": 0.02937, "q6_k": 0.01719},
    "outliers": {"q4_k": 0.08655, "q5_k": 0.04355, "q6_k": 0.02478},
}
OURS = {
    "normal": {"q4_k": 0.0705, "q5_k": 0.0349, "q6_k": 0.0167},
    "tails": {"q4_k": 0.0823, "q5_k": 0.0408, "q6_k": 0.0204},
    "laplace": {"q4_k": 0.0831, "q5_k": 0.0412, "q6_k": 0.0205},
    "uniform": {"q4_k": 0.0540, "q5_k": 0.0267, "q6_k": 0.0125},
    "shifted": {"q4_k": 0.0574, "q5_k": 0.0284, "q6_k": 0.0161},
    "outliers": {"q4_k": 0.0855, "q5_k": 0.0425, "q6_k": 0.0241},
}


@pytest.mark.parametrize("name", SEARCHED)
def test_searched_blocks_err_no_more_than_those_of_llama_cpp(name, rng):
    for shape, weight in shapes_of_weights(rng, 128, 2048).items():
        values = quantize(weight.astype(np.float32), name).dequantize()
        most = OURS[shape][name]
        assert relative_error(values, weight) <= most < LLAMA_CPP[shape][name], shape


@pytest.mark.parametrize("name", SEARCHED)
def test_hardly_any_other_scale_of_a_group_serves_better(name, rng):
    """What is minimised is the sum of (value - weight)^2. With the factors and minimums as they are
    all integers are tried as scales here, each with the codes nearest to the numbers."""
    kind, x = TYPES[name], rng.standard_normal((16, 256)).astype(np.float32)
    blocks = quantize(x, name).blocks()
    codes, scales, minimums = read_blocks(blocks, name)
    groups = x.reshape(16, -1, kind.group).astype(np.float64)
    step = blocks[:, 208:210] if name == "q6_k" else blocks[:, :2]
    factor = np.ascontiguousarray(step).view(np.float16).astype(np.float64)
    low, high = (-32, 31) if name == "q6_k" else (0, 2 ** (5 if name == "q5_k" else 4) - 1)
    shift = 0 if minimums is None else minimums[..., None].astype(np.float64)

    def loss(scale, codes):
        return ((scale * codes - shift - groups) ** 2).sum(axis=-1)

    ours = loss(scales[..., None], codes.reshape(groups.shape))
    least = ours.copy()
    for integer in range(-128, 128) if name == "q6_k" else range(64):
        scale = (integer * factor)[..., None]
        inverse = 1 / np.where(scale == 0, np.inf, scale)
        near = np.clip(np.rint((groups + shift) * inverse), low, high)
        least = np.minimum(least, loss(scale, near))
    assert ours.sum() <= 1.02 * least.sum()


@pytest.mark.parametrize("name", SEARCHED)
def test_searched_blocks_take_what_is_out_of_the_ordinary(name):
    ramp = np.linspace(-1, 1, 256, dtype=np.float32)
    rows = [ramp * 0, ramp * 0 + 3, ramp * 0 - 3, np.abs(ramp) + 5, ramp * 1e-20, ramp * 6e4]
    rows += [np.where(ramp == 1, ramp, 0), -np.abs(ramp)]
    x = np.stack(rows).astype(np.float32)
    for row, given in zip(quantize(x, name).dequantize(), x, strict=True):
        assert np.abs(row - given).max() <= 0.15 * np.abs(given).max() + 1e-20
