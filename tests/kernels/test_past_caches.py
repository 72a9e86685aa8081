"""Outputs that are larger than the caches are stored past them: the same bits, at every address."""

import numpy as np

import simdformer as sf
from cases import each
from conftest import SIXTEEN_BITS

FARTHEST = 32 << 20  # bytes from which on that is so, in rows of 8 KB: cpp/core/work.hpp
WEIGHT = np.linspace(0.5, 2, 20000, dtype=np.float32)

# name: function of (x, out); rows of a last axis
ROW_WISE = {
    "rms_norm": lambda x, out: sf.rms_norm(x, weight(x), eps=1e-6, out=out),
    "rms_norm without weight": lambda x, out: sf.rms_norm(x, eps=1e-6, out=out),
    "layer_norm": lambda x, out: sf.layer_norm(x, weight(x), weight(x), eps=1e-5, out=out),
    "layer_norm without bias": lambda x, out: sf.layer_norm(x, weight(x), eps=1e-5, out=out),
    "softmax": lambda x, out: sf.softmax(x, out=out),
    "softmax, hot": lambda x, out: sf.softmax(x, temperature=2.0, out=out),
    "silu": lambda x, out: sf.silu(x, out=out),
    "swiglu": lambda x, out: sf.swiglu(x, x, out=out),
}


def weight(x):
    return WEIGHT[: x.shape[-1]].astype(np.float64 if x.dtype == np.float64 else np.float32)


def large(length, dtype, item=0):
    """(rows, length) of a few rows over and over, `item` items behind a line of the cache."""
    rows = FARTHEST // (length * dtype.itemsize) + 7
    memory = np.empty(rows * length + 64, dtype)
    start = -memory.ctypes.data % 64 // dtype.itemsize + item
    array = memory[start : start + rows * length].reshape(rows, length)
    some = np.random.default_rng(length).standard_normal((7, length)).astype(dtype)
    for first in range(7):
        array[first::7] = some[first]
    return array


def bits(array):
    return array.view(f"u{array.itemsize}")


def of_few_rows(function, x):
    """Of the first rows alone, which stay in the caches."""
    return bits(function(np.array(x[:7]), np.empty_like(x[:7])))


def assert_repeats(few, out):
    for first in range(7):
        assert (bits(out[first::7]) == few[first]).all()


def test_gives_the_bits_of_few_rows(isa):
    x, out = (large(2054, np.dtype(np.float32), item) for item in (0, 3))
    for function in ROW_WISE.values():
        assert_repeats(of_few_rows(function, x), function(x, out))


@each("length, item", [(2048, 0), (4102, 1), (20000, 1)])
@each("dtype", [np.dtype(np.float64), *SIXTEEN_BITS])
def test_of_every_dtype_and_rows_of_any_length(length, item, dtype):
    x, out = large(length, dtype), large(length, dtype, item)
    for name in ("rms_norm", "softmax", "swiglu"):
        assert_repeats(of_few_rows(ROW_WISE[name], x), ROW_WISE[name](x, out))


@each("name", ["rms_norm", "softmax", "swiglu"])
def test_in_place(name):
    x = large(2054, np.dtype(np.float32), 3)
    few = of_few_rows(ROW_WISE[name], x)
    assert_repeats(few, ROW_WISE[name](x, x))


def test_between_the_rows_nothing_is_touched():
    x = large(2054, np.dtype(np.float32))
    wide = np.full((*x.shape[:-1], x.shape[-1] + 5), 7, np.float32)
    for function in ROW_WISE.values():
        out = wide[..., :-5]
        assert_repeats(of_few_rows(function, x), function(x, out))
        assert (wide[..., -5:] == 7).all()


@each("layout", ["half", "interleaved"])
@each("length, item", [(128, 0), (128, 3), (50, 5)])
def test_rope_puts_rows_together_that_share_lines(isa, layout, length, item):
    x = large(length, np.dtype(np.float32))
    x = x[: len(x) // 7 * 7].reshape(-1, 7, length)  # every head is like the first
    around = np.full(x.size + 64, 7, np.float32)
    start = -around.ctypes.data % 64 // 4 + item
    out = around[start : start + x.size].reshape(x.shape)
    sf.rope(x, layout=layout, out=out)
    assert_repeats(bits(sf.rope(np.array(x[0]), layout=layout)), out.reshape(-1, length))
    assert (around[:start] == 7).all()
    assert (around[start + x.size :] == 7).all()
