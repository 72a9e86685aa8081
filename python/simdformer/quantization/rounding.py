"""From floats to the blocks of 32 that have one scale: each number goes to the nearest code.

The scale comes from the largest number of a block alone, as in ggml: these are, bit for bit, the
blocks of `gguf.quants.quantize`. What is better than that, and slower: search.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from simdformer.quantization.blocks import Bytes, Floats

__all__ = ["ROUNDED", "bytes_of", "f16_bytes", "inverse", "join_halves"]


def inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 of what is 0: all codes of such a group are 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scale == 0, np.float32(0), 1 / scale)


def f16_bytes(x: Floats) -> Bytes:
    return np.ascontiguousarray(x, dtype=np.float16).view(np.uint8)


def bytes_of(x: npt.NDArray[Any]) -> Bytes:
    """Whole numbers below 256."""
    return x.astype(np.uint8)


def join_halves(codes: Bytes) -> Bytes:
    """The first half of the codes in the low four bits of the bytes, the second in the high."""
    low, high = np.split(codes, 2, axis=-1)
    return low | high << 4


def high_bits(codes: Bytes) -> Bytes:
    """Bit 4 of every code, as one number of 32 bits."""
    return np.packbits(codes >> 4, axis=-1, bitorder="little")


def largest(x: Floats) -> Floats:
    """The number of each row that lies farthest from zero, with its sign."""
    at = np.abs(x).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(x, at, axis=-1)


def around_zero(x: Floats, half: int) -> tuple[Floats, Bytes]:
    """Codes 0 to 2 half - 1 that stand for -half to half - 1; the largest number becomes -half."""
    scale = largest(x) / np.float32(-half)
    codes = bytes_of(x * inverse(scale) + np.float32(half + 0.5))
    return scale, np.minimum(codes, np.uint8(2 * half - 1))


def from_minimum(x: Floats, top: int) -> tuple[Floats, Floats, Bytes]:
    """Codes 0 to top that stand for the least to the greatest number."""
    least = x.min(axis=-1, keepdims=True)
    scale = (x.max(axis=-1, keepdims=True) - least) / np.float32(top)
    codes = bytes_of((x - least) * inverse(scale) + np.float32(0.5))
    return scale, least, np.minimum(codes, np.uint8(top))


def q8_0(x: Floats) -> Bytes:
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = x * inverse(scale)
    whole = np.floor(np.abs(scaled))
    away = whole + np.floor(2 * (np.abs(scaled) - whole))  # a half goes away from zero
    codes = (np.sign(scaled) * away).astype(np.int8)
    return np.concatenate([f16_bytes(scale), codes.view(np.uint8)], axis=-1)


def q4_0(x: Floats) -> Bytes:
    scale, codes = around_zero(x, 8)
    return np.concatenate([f16_bytes(scale), join_halves(codes)], axis=-1)


def q5_0(x: Floats) -> Bytes:
    scale, codes = around_zero(x, 16)
    return np.concatenate([f16_bytes(scale), high_bits(codes), join_halves(codes & 15)], axis=-1)


def q4_1(x: Floats) -> Bytes:
    scale, least, codes = from_minimum(x, 15)
    return np.concatenate([f16_bytes(scale), f16_bytes(least), join_halves(codes)], axis=-1)


def q5_1(x: Floats) -> Bytes:
    scale, least, codes = from_minimum(x, 31)
    fields = f16_bytes(scale), f16_bytes(least), high_bits(codes), join_halves(codes & 15)
    return np.concatenate(fields, axis=-1)


def mxfp4(x: Floats) -> Bytes:
    """The largest number of a block lies in [4, 8) steps of its power of two; 6 is the last."""
    most = np.abs(x).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        exponent = np.where(most > 0, np.clip(np.floor(np.log2(most)) + 125, 0, 254), 0)
    halves = np.ldexp(np.abs(x), 128 - exponent.astype(np.int32))  # in units of half a step
    between = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)  # 0 1 2 3 4 6 8 12
    magnitude = bytes_of(np.searchsorted(between, halves))
    negative = bytes_of((x < 0) & (magnitude > 0))
    return np.concatenate([bytes_of(exponent), join_halves(magnitude | negative << 3)], axis=-1)


ROUNDED: dict[str, Callable[[Floats], Bytes]] = {
    rounded.__name__: rounded for rounded in (q8_0, q4_0, q4_1, q5_0, q5_1, mxfp4)
}
