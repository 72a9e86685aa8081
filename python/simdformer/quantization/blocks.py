"""What the bytes of a block mean: the specification of every quantised type, in plain numpy.

A row of a weight is cut into blocks of 32 or 256 successive inputs, each as many bytes. Every type
comes down to the same three arrays: small integers (the codes), and a scale and perhaps a minimum
for every 16 or 32 of them,

    value = scale · code - minimum

all exact in float32, but for the last subtraction. Fields lie one after the other as the functions
below cut them; numbers are little-endian, f16 is IEEE's half precision. The formats are ggml's
(ggml-common.h, the structs block_q4_0 to block_iq4_xs), MXFP4 is that of the OCP Microscaling
Formats specification 1.0.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simdformer.quantization.types import quantization_types

__all__ = ["E2M1", "IQ4", "Groups", "dequantize", "read_blocks"]

Bytes = npt.NDArray[np.integer[Any]]  # all of them uint8
Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]

# The numbers that four bits stand for in MXFP4 (twice their value: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and
# the same below zero), and in IQ4_NL and IQ4_XS (the steps of a bell curve).
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


class Groups(NamedTuple):
    """codes (blocks, block), scales and minimums (blocks, groups of a block)."""

    codes: Codes
    scales: Floats
    minimums: Floats | None = None


@np.errstate(all="ignore")
def dequantize(blocks: npt.ArrayLike, type: str, shape: tuple[int, ...]) -> Floats:
    """The values (...,I) that blocks hold, as ggml gives them, bit for bit.

    `blocks` are bytes (uint8), any shape; a row of I inputs takes I / block · nbytes of them.
    """
    codes, scales, minimums = read_blocks(blocks, type)
    values = scales[..., None] * codes.reshape(*scales.shape, -1).astype(np.float32)
    if minimums is not None:
        values -= minimums[..., None]
    return values.reshape(shape)


@np.errstate(all="ignore")
def read_blocks(blocks: npt.ArrayLike, type: str) -> Groups:
    """The integers and floats of all blocks."""
    data = np.ascontiguousarray(blocks, np.uint8).reshape(-1, quantization_types()[type].nbytes)
    return READERS[type](data)


# ---- pieces --------------------------------------------------------------------------------------


def f16(b: Bytes) -> Floats:
    return np.ascontiguousarray(b).view(np.float16).astype(np.float32)


def halves(b: Bytes) -> Bytes:
    """The low four bits of all bytes, then the high ones."""
    return np.concatenate([b & 15, b >> 4], axis=-1)


def bits(b: Bytes) -> Bytes:
    """Bit k of a little-endian number."""
    return np.unpackbits(b.astype(np.uint8), axis=-1, bitorder="little")


def nibbles_of_256(b: Bytes) -> Bytes:
    """128 bytes: each 32 of them hold 32 codes in their low four bits, the next 32 in the high."""
    b = b.reshape(len(b), 4, 32)
    return np.stack([b & 15, b >> 4], axis=2).reshape(len(b), 256)


def pairs_of_256(b: Bytes) -> Bytes:
    """64 bytes: each 32 of them hold 4 times 32 codes of two bits, the lowest bits first."""
    b = b.reshape(len(b), 2, 1, 32)
    return (b >> np.array([[0], [2], [4], [6]], np.uint8) & 3).reshape(len(b), 256)


def bits_of_256(b: Bytes) -> Bytes:
    """32 bytes: bit g of byte i belongs to code 32 g + i."""
    return (b[:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(len(b), 256)


def scales_of_6_bits(s: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes: 8 scales and 8 minimums of six bits each."""
    a, b, c = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1)
    minimums = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1)
    return scales, minimums


def int8(x: npt.NDArray[Any], offset: int = 0) -> Codes:
    return (x.astype(np.int16) - offset).astype(np.int8)


# ---- blocks of 32, with a scale for all ----------------------------------------------------------


def q8_0(b: Bytes) -> Groups:
    return Groups(b[:, 2:].view(np.int8), f16(b[:, :2]))


def q4_0(b: Bytes) -> Groups:
    return Groups(int8(halves(b[:, 2:]), 8), f16(b[:, :2]))


def q4_1(b: Bytes) -> Groups:
    return Groups(int8(halves(b[:, 4:])), f16(b[:, :2]), -f16(b[:, 2:4]))


def q5_0(b: Bytes) -> Groups:
    return Groups(int8(halves(b[:, 6:]) | bits(b[:, 2:6]) << 4, 16), f16(b[:, :2]))


def q5_1(b: Bytes) -> Groups:
    codes = int8(halves(b[:, 8:]) | bits(b[:, 4:8]) << 4)
    return Groups(codes, f16(b[:, :2]), -f16(b[:, 2:4]))


def mxfp4(b: Bytes) -> Groups:
    """The scale is a power of two; codes count halves, hence one more power in the exponent."""
    exponent = b[:, :1].astype(np.int32) - 128
    return Groups(E2M1[halves(b[:, 1:])], np.ldexp(np.float32(1), exponent).astype(np.float32))


def iq4_nl(b: Bytes) -> Groups:
    return Groups(IQ4[halves(b[:, 2:])], f16(b[:, :2]))


# ---- blocks of 256, whose scales are themselves small integers -----------------------------------


def q4_k(b: Bytes) -> Groups:
    scales, minimums = scales_of_6_bits(b[:, 4:16])
    codes = int8(nibbles_of_256(b[:, 16:]))
    return Groups(codes, f16(b[:, :2]) * scales, f16(b[:, 2:4]) * minimums)


def q5_k(b: Bytes) -> Groups:
    scales, minimums = scales_of_6_bits(b[:, 4:16])
    codes = int8(nibbles_of_256(b[:, 48:]) | bits_of_256(b[:, 16:48]) << 4)
    return Groups(codes, f16(b[:, :2]) * scales, f16(b[:, 2:4]) * minimums)


def q6_k(b: Bytes) -> Groups:
    low = halves(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    codes = int8(low | pairs_of_256(b[:, 128:192]) << 4, 32)
    return Groups(codes, f16(b[:, 208:]) * b[:, 192:208].view(np.int8))


def q3_k(b: Bytes) -> Groups:
    """The third bit of a code is inverted: what it adds is 0 where it is set, and -4 elsewhere."""
    codes = int8(pairs_of_256(b[:, 32:96]) | bits_of_256(b[:, :32]) << 2, 4)
    low = halves(b[:, 96:104])
    high = b[:, None, 104:108] >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    scales = int8(low | high.reshape(-1, 16) << 4, 32)
    return Groups(codes, f16(b[:, 108:]) * scales)


def q2_k(b: Bytes) -> Groups:
    small = b[:, :16]
    scales, minimums = f16(b[:, 80:82]) * (small & 15), f16(b[:, 82:84]) * (small >> 4)
    return Groups(int8(pairs_of_256(b[:, 16:80])), scales, minimums)


def iq4_xs(b: Bytes) -> Groups:
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    high = b[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    scales = int8(low | high.reshape(-1, 8) << 4, 32)
    codes = IQ4[halves(b[:, 8:].reshape(-1, 8, 16))].reshape(-1, 256)
    return Groups(codes, f16(b[:, :2]) * scales)


READERS: dict[str, Callable[[Bytes], Groups]] = {
    reader.__name__: reader
    for reader in (
        *(q8_0, q4_0, q4_1, q5_0, q5_1, mxfp4, iq4_nl),
        *(q4_k, q5_k, q6_k, q3_k, q2_k, iq4_xs),
    )
}
