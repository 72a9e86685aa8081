"""The link between ranks, measured on them."""

import math
import time

import numpy as np

from simdformer.models.communicator import Communicator
from simdformer.parallel.plan import Link

__all__ = ["measure_link"]

SHORT, LONG = 1 << 10, 1 << 22  # bytes that each rank gives
TIMES = 30


def measure_link(ranks: Communicator) -> Link:
    """What `predict` asks for, from short and long arrays that all ranks tell each other; every
    rank calls this. The median of many exchanges counts, because a model waits for most of them."""
    rounds = math.ceil(math.log2(ranks.size))
    short = exchange(ranks, SHORT) / rounds
    longer = max(exchange(ranks, LONG) - short * rounds, 1e-9)
    return Link(bandwidth=(ranks.size - 1) * LONG / longer, latency=short)


def exchange(ranks: Communicator, nbytes: int) -> float:
    """Seconds until all have what each has given."""
    own = np.zeros(nbytes, np.uint8)
    samples = []
    for _ in range(TIMES):
        start = time.perf_counter()
        ranks.all_gather(own, [own.shape] * ranks.size)
        samples.append(time.perf_counter() - start)
    return float(np.median(samples))
