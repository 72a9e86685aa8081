"""In company: what a short call costs while another process keeps one CPU busy.

Alone, a pool of threads can wait for work by spinning. With others on the machine the thread that
it waits for may not be running at all, and a call of 100 µs takes a slice of the scheduler, 4 ms.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import simdformer as sf
from simdformer.bench import ours, torch_peer
from simdformer.bench.contestants import Contestant, Way
from simdformer.bench.operations import Attention
from simdformer.types import Array

__all__ = ["WORK", "Company", "busy_process", "measure_company"]

WORK = Attention(heads=32, kv_heads=8, queries=1, keys=512, head_dim=128)  # about 100 µs
MOST_MEAN = 2.5  # times the mean alone
MOST_P99 = 1e-3  # seconds
ROUNDS = 3
STARTING = 0.1  # seconds that Python takes to start
SEED = 20240601
# It ends by itself, should nobody be left to end it.
BUSY = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and os.getppid() == parent:
    pass
"""


@dataclass(frozen=True)
class Company:
    """Seconds of each call, alone and beside a busy process."""

    name: str
    alone: Array
    beside: Array

    @property
    def mean_ratio(self) -> float:
        """How many times as long a call takes, on average."""
        return float(self.beside.mean() / self.alone.mean())

    @property
    def p99(self) -> float:
        """One call in a hundred takes longer, beside a busy process."""
        return float(np.quantile(self.beside, 0.99))

    @property
    def p99_alone(self) -> float:
        return float(np.quantile(self.alone, 0.99))

    @property
    def met(self) -> bool:
        return self.mean_ratio <= MOST_MEAN and self.p99 < MOST_P99

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "calls": [len(self.alone), len(self.beside)],
            "mean_alone": float(self.alone.mean()),
            "mean_beside": float(self.beside.mean()),
            "mean_ratio": self.mean_ratio,
            "p99_alone": self.p99_alone,
            "p99_beside": self.p99,
            "met": self.met,
        }


def measure_company(budget: float, clock: Callable[[], float] = time.perf_counter) -> list[Company]:
    """Ours, and PyTorch's when it is installed, within about `budget` seconds each."""
    inputs = WORK.inputs(np.random.default_rng(SEED))
    found = []
    with torch_peer.threads(sf.get_num_threads()):
        for one in (*ours.contestants(WORK, inputs), *torch_peer.contestants(WORK, inputs)[:1]):
            if isinstance(one, Contestant):
                found.append(measure(one.name, one.ways[0], budget, clock))
    return found


def measure(name: str, way: Way, budget: float, clock: Callable[[], float]) -> Company:
    share = budget / (2 * ROUNDS)
    alone, beside = [], []
    with way.context():
        way.call()
        for _ in range(ROUNDS):
            alone.append(calls(way.call, share, clock))
            with busy_process(share + 60):
                beside.append(calls(way.call, share, clock))
    return Company(name, np.concatenate(alone), np.concatenate(beside))


def calls(call: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> Array:
    """How long each took."""
    times = [clock()]
    while times[-1] - times[0] < seconds or len(times) < 2:
        call()
        times.append(clock())
    return np.diff(times)


@contextmanager
def busy_process(longest: float) -> Iterator[int]:
    """A process (its id) that does nothing but run, at most `longest` seconds."""
    arguments = [sys.executable, "-c", BUSY, str(os.getpid()), str(longest)]
    process = subprocess.Popen(arguments)
    try:
        time.sleep(STARTING)
        yield process.pid
    finally:
        process.kill()
        process.wait()
