"""A part of a large array that still shows what is wrong with it."""

from typing import Any

import numpy as np

__all__ = ["rows_of"]


def rows_of(shape: tuple[int, ...], limit: int) -> tuple[Any, ...] | None:
    """An index that leaves about `limit` numbers of an array (..., n): evenly spaced rows of its
    last leading axis, the first few entries of the ones before it, and the whole last axis.

    None: the array is small enough as it is.

    >>> rows_of((64, 100, 16), 1000)
    (slice(0, 7, None), slice(None, None, 13), slice(None, None, None))
    """
    size = int(np.prod(shape))
    if size <= limit or len(shape) < 2:
        return None
    index: list[Any] = []
    for length in shape[:-2]:
        size //= length
        count = max(1, min(length, limit // (8 * max(size // max(shape[-2], 1), 1))))
        index.append(slice(0, count))
        limit //= count
    kept = max(1, limit // max(shape[-1], 1))
    step = -(-shape[-2] // kept)
    step += step % 2 == 0  # positions that are all even would hide what is rounded
    return (*index, slice(None, None, step), slice(None))
