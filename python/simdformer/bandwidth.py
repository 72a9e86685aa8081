"""How fast this machine reads memory: what generating text can be measured against.

A token is chosen by reading every weight once and doing little with it, so that no program can be
faster than the memory, or the cache where the weights fit into one.
"""

import time

import numpy as np

from simdformer import _core

__all__ = ["read_bandwidth"]

LARGEST = 256 << 20  # bytes: more than the caches of most machines


def read_bandwidth(nbytes: int, seconds: float = 0.1) -> float:
    """Bytes a second that all threads together read of an array of `nbytes` (at most 256 MiB), read
    again and again for about so many seconds; the best time counts.

    >>> read_bandwidth(1 << 20, seconds=0.01) > 1e6
    True
    """
    array = np.ones(max(min(nbytes, LARGEST) // 4, 1), np.float32)
    _core.read_memory(array)
    best, began = np.inf, time.perf_counter()
    while (started := time.perf_counter()) - began < seconds:
        _core.read_memory(array)
        best = min(best, time.perf_counter() - started)
    return float(array.nbytes / best)
