"""The link between ranks, measured on them."""

import time
from collections.abc import Callable

import numpy as np

from simdformer.models.communicator import Communicator
from simdformer.parallel.plan import FLOAT, Link, rounds_of, sums

__all__ = ["LONG", "measure_link"]

SHORT, LONG = 1 << 10, 1 << 22  # bytes that each rank gives
TIMES = 30  # and fewer sums of more than LONG


def measure_link(ranks: Communicator, nbytes: int = LONG) -> Link:
    """What `predict` asks for, from short arrays that all ranks tell each other and from sums of
    `nbytes`; every rank calls this. The median of many counts, because a model waits for most of
    them."""
    told, added = np.zeros(SHORT, np.uint8), np.zeros(nbytes // FLOAT, np.float32)
    latency = median_time(lambda: ranks.all_gather(told, [told.shape] * ranks.size), TIMES)
    latency /= rounds_of(ranks.size)
    of_sum = sums(1, nbytes, ranks.size)
    times = max(TIMES * LONG // nbytes, 5)
    longer = median_time(lambda: ranks.all_reduce(added, tree=True), times)
    longer -= of_sum.rounds * latency
    return Link(bandwidth=of_sum.sent / max(longer, 1e-9), latency=latency)


def median_time(call: Callable[[], object], times: int) -> float:
    """Seconds of a call, of so many."""
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return float(np.median(samples))
