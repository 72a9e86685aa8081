"""What the tests of the benchmark share: its cases, results made up, a clock that obeys."""

from dataclasses import replace

import numpy as np

from simdformer import bench
from simdformer.bench import stopwatch
from simdformer.bench.contestants import OURS, Contestant, Way

CASES = {case.name: case for case in bench.all_cases(models=True, transformers=True)}
LIMITS = bench.Limits(
    400.0,
    (
        bench.Level("L2", 2 << 20, 200.0),
        bench.Level("L3", 32 << 20, 100.0),
        bench.Level("memory", None, 40.0),
    ),
)
MACHINE = bench.Machine("a CPU", "avx2", 2, 1 << 20, 32 << 20, {"simdformer": "0"})


def smaller(case):
    return replace(case, work=case.work.smaller())


def hurry(monkeypatch):
    """Times of a real clock that nobody will look at: no waiting, and samples of a few calls."""
    for name in ("SHORTEST_SAMPLE", "WARM_UP", "PATIENCE"):
        monkeypatch.setattr(stopwatch, name, 1e-5)


class FakeTime:
    """A clock that only calls move."""

    def __init__(self):
        self.now = 100.0
        self.log = []
        self.settled = 0

    def clock(self):
        return self.now

    def settle(self):
        self.settled += 1

    def stopwatch(self):
        return bench.Stopwatch(self.clock, self.settle)

    def way(self, name, *seconds):
        """Calls of it take these times by turns."""
        turns = iter(seconds * 1_000_000)

        def call():
            self.log.append(name)
            self.now += next(turns)

        return Way(name, call, lambda result: np.zeros(1))

    def contestant(self, name, *seconds, **options):
        return Contestant(name, (self.way(name, *seconds),), **options)


def measured(best, error=1e-7):
    return bench.Measurement("way", best, 2 * best, 5, 1, error)


def a_result(goals=(), name="linear/x", work=None, **best):
    names = {"mine": OURS}
    work = work or bench.Linear(rows=8, width_in=500, width_out=250)  # 2 MFLOP, 524 kB
    case = bench.Case(name, work, tuple(goals))
    found = {names.get(name, name): measured(seconds) for name, seconds in best.items()}
    return bench.Result(case, LIMITS, found)
