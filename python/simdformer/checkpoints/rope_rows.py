"""The two orders in which files keep the rows of wq and wk: the pairs that RoPE turns lie half a
head apart (Hugging Face), or beside each other (Meta, llama.cpp)."""

import numpy as np

from simdformer.types import Array

__all__ = ["TURNED", "halves", "neighbours"]

TURNED = ("wq", "wk", "bq", "bk")  # the tensors of a layer whose rows have an order


def halves(rows: Array, head_dim: int) -> Array:
    """Rows (heads * head_dim, ...) of neighbours as halves.

    >>> halves(np.arange(4), 4)
    array([0, 2, 1, 3])
    """
    pairs = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def neighbours(rows: Array, head_dim: int) -> Array:
    """The same back.

    >>> neighbours(halves(np.arange(6), 6), 6)
    array([0, 1, 2, 3, 4, 5])
    """
    pairs = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
