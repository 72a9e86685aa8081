"""The two orders in which files keep the rows of wq and wk: the pairs that RoPE turns lie half a
head apart ("half": Hugging Face), or beside each other ("interleaved": Meta, llama.cpp)."""

import numpy as np

from simdformer.types import Array

__all__ = ["TURNED", "in_layout"]

TURNED = ("wq", "wk", "bq", "bk")  # the tensors of a layer whose rows have an order


def in_layout(rows: Array, *, head_dim: int, wanted: str) -> Array:
    """Rows (heads·D, ...) of the other layout in the order in which RoPE of the wanted one finds
    the same pairs.

    >>> in_layout(np.arange(6), head_dim=6, wanted="interleaved")
    array([0, 3, 1, 4, 2, 5])
    >>> in_layout(np.arange(6), head_dim=6, wanted="half")
    array([0, 2, 4, 1, 3, 5])
    """
    pairs = (2, head_dim // 2) if wanted == "interleaved" else (head_dim // 2, 2)
    order = np.arange(len(rows)).reshape(-1, *pairs).swapaxes(1, 2).ravel()
    return rows[order]
