"""From floats to the blocks of 256, whose groups of 16 or 32 are fitted: scales (and minimums) are
sought that bring the codes as near to the numbers as possible.

Two rules take turns, from several starts: given scale and minimum each number goes to the nearest
code; given the codes the best scale and minimum are those of least squares. (Lloyd 1957, "Least
squares quantization in PCM", with the codes on a line.) The scales and minimums of a block are then
rounded to small integers themselves, and the codes chosen once more for what became of them.

The relative RMS error on normal numbers, beside that of llama.cpp's own search (b6290): q4_k 7.0 %
(7.1), q5_k 3.5 % (3.6), q6_k 1.7 % (1.8).
"""

from collections.abc import Callable

import numpy as np

from simdformer.quantization.blocks import Bytes, Floats
from simdformer.quantization.rounding import bytes_of, f16_bytes, inverse, join_halves, largest

__all__ = ["SEARCHED"]

TURNS = 3


def dot(a: Floats, b: Floats) -> Floats:
    """The dot product of rows, (n, k) and (n, k) -> (n, 1)."""
    product: Floats = np.einsum("ij,ij->i", a, b)[:, None]
    return product


def nearest(x: Floats, scale: Floats, minimum: Floats | float, first: int, last: int) -> Floats:
    """The codes from first to last for which scale · code - minimum is nearest to x."""
    codes: Floats = np.rint((x + minimum) * inverse(scale))
    return np.clip(codes, first, last, out=codes)


def fit_scale(x: Floats, half: int) -> Floats:
    """The scale of codes -half ... half - 1 for each row: (n, k) -> (n, 1)."""
    most = largest(x)
    best, least = np.zeros_like(most), np.zeros_like(most)
    for start in np.arange(half - 1.5, half + 1.0, 0.5, dtype=np.float32):
        scale = most / -start
        for _ in range(TURNS):
            codes = nearest(x, scale, 0, -half, half - 1)
            product, square = dot(x, codes), dot(codes, codes)
            scale = product * inverse(square)
            error = -scale * product  # less the squares of x, which are always there
            better = error < least
            best, least = np.where(better, scale, best), np.where(better, error, least)
    return best


def fit_line(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Scale and minimum (>= 0) of codes 0 ... top for each row: (n, k) -> (n, 1) twice."""
    lowest, total = np.minimum(x.min(axis=1, keepdims=True), 0), x.sum(axis=1, keepdims=True)
    spread = x.max(axis=1, keepdims=True) - lowest
    count = np.float32(x.shape[1])
    best, best_minimum = np.zeros_like(lowest), -lowest
    least = lowest * (count * lowest - 2 * total)  # all codes 0; less the squares of x, as above
    for start in np.arange(top - 1.0, top + 1.5, 0.5, dtype=np.float32):
        scale, minimum = spread / start, -lowest
        for _ in range(TURNS):
            codes = nearest(x, scale, minimum, 0, top)
            sum_, product, square = (
                codes.sum(axis=1, keepdims=True),
                dot(x, codes),
                dot(codes, codes),
            )
            scale = (count * product - sum_ * total) * inverse(count * square - sum_ * sum_)
            minimum = (scale * sum_ - total) / count
            through_zero = (minimum < 0) | (scale <= 0)
            scale = np.where(through_zero, np.maximum(product, 0) * inverse(square), scale)
            minimum = np.where(through_zero, 0, minimum)
            error = scale * (scale * square - 2 * product)
            error += minimum * (count * minimum - 2 * scale * sum_ + 2 * total)
            better = error < least
            least = np.where(better, error, least)
            best = np.where(better, scale, best)
            best_minimum = np.where(better, minimum, best_minimum)
    return best, best_minimum


def small_integers(x: Floats, top: int) -> tuple[Floats, Floats]:
    """One factor for each row (as f16 holds it) and integers 0 ... top, which multiply to x."""
    factor = f16_of(x.max(axis=1, keepdims=True) / np.float32(top))
    return factor, np.clip(np.rint(x * inverse(factor)), 0, top)


def f16_of(x: Floats) -> Floats:
    return x.astype(np.float16).astype(np.float32)


def with_minimums(x: Floats, top: int) -> tuple[Bytes, Bytes]:
    """Blocks (n, 256) -> their first 16 bytes (two factors; 8 scales and 8 minimums of six bits)
    and their codes."""
    groups = x.reshape(-1, 32)
    scale, minimum = (fitted.reshape(-1, 8) for fitted in fit_line(groups, top))
    d, scales = small_integers(scale, 63)
    dmin, minimums = small_integers(minimum, 63)
    scale = (d * scales).reshape(-1, 1)
    codes = nearest(groups, scale, (dmin * minimums).reshape(-1, 1), 0, top)
    # the minimum that suits the rounded scale
    minimum = (scale * codes - groups).mean(axis=1).reshape(-1, 8)
    minimums = np.clip(np.rint(minimum * inverse(dmin)), 0, 63)
    codes = nearest(groups, scale, (dmin * minimums).reshape(-1, 1), 0, top)
    codes = np.where(scale == 0, 0, codes)
    s, m = bytes_of(scales), bytes_of(minimums)
    packed = [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6]
    packed.append(s[:, 4:] & 15 | (m[:, 4:] & 15) << 4)
    fields = np.concatenate([f16_bytes(d), f16_bytes(dmin), *packed], axis=1)
    return fields, bytes_of(codes).reshape(-1, 256)


def nibbles_of_256(codes: Bytes) -> Bytes:
    return join_halves(codes.reshape(-1, 4, 64)).reshape(-1, 128)


def q4_k(x: Floats) -> Bytes:
    fields, codes = with_minimums(x, 15)
    return np.concatenate([fields, nibbles_of_256(codes)], axis=1)


def q5_k(x: Floats) -> Bytes:
    fields, codes = with_minimums(x, 31)
    high = np.packbits((codes >> 4).reshape(-1, 8, 32), axis=1, bitorder="little")
    return np.concatenate(
        [fields, high.reshape(-1, 32), nibbles_of_256(codes & np.uint8(15))], axis=1
    )


def q6_k(x: Floats) -> Bytes:
    groups = x.reshape(-1, 16)
    fitted = fit_scale(groups, 32).reshape(-1, 16)
    d = f16_of(largest(fitted) / np.float32(-128))
    scales = np.clip(np.rint(fitted * inverse(d)), -128, 127)
    nearest_codes = nearest(groups, (d * scales).reshape(-1, 1), 0, -32, 31)
    codes = bytes_of(nearest_codes + 32).reshape(-1, 256)
    low = join_halves((codes & 15).reshape(-1, 2, 128)).reshape(-1, 128)
    pairs = (codes >> 4).reshape(-1, 2, 4, 32) << np.array([[0], [2], [4], [6]], np.uint8)
    high = np.bitwise_or.reduce(pairs, axis=2).reshape(-1, 64)
    fields = low, high, scales.astype(np.int8).view(np.uint8), f16_bytes(d)
    return np.concatenate(fields, axis=1)


SEARCHED: dict[str, Callable[[Floats], Bytes]] = {
    searched.__name__: searched for searched in (q4_k, q5_k, q6_k)
}
