"""Times that can be compared: contestants by turns, many calls a sample, the best of many samples.

A machine is never quite idle and never of constant speed, so each round gives every contestant one
sample, one after the other; what disturbs one disturbs all. The best sample is what the work costs
when nothing disturbs it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from timeit import Timer
from typing import Any

from simdformer.bench.contestants import Contestant, Way

__all__ = ["Stopwatch", "Times", "compare"]

SHORTEST_SAMPLE = 0.005  # seconds; a clock and a loop cost nothing beside that
FEWEST_ROUNDS = 3
WARM_UP = 0.01  # seconds of calls that are not counted, one at least
LONG = 0.1  # seconds; a call that takes longer does not notice how it began
TRIALS = 3  # samples of each way, before the fastest is taken
ASLEEP = 0.2  # of a CPU: less than that used while we sleep, and no thread of ours is spinning
NAP = 0.02  # seconds; the kernel tells what other threads have used only once a tick, 10 ms at most
PATIENCE = 0.5  # seconds that threads get to stop spinning


@dataclass
class Times:
    """Samples of one way, each in seconds a call."""

    way: Way
    calls: int  # in a sample
    samples: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.samples)


def settle() -> None:
    """Waits until no thread of this process is running.

    Thread pools spin for a while after a call, some for 50 ms, and would take the CPU from whoever
    comes next.
    """
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline:
        cpu, wall = time.process_time(), time.perf_counter()
        time.sleep(NAP)
        if time.process_time() - cpu < ASLEEP * (time.perf_counter() - wall):
            return


@dataclass(frozen=True)
class Stopwatch:
    """Measures with `clock`, a function that gives seconds; `settle` is called before a sample."""

    clock: Callable[[], float] = time.perf_counter
    settle: Callable[[], None] = settle

    def race(self, contestants: Sequence[Contestant], budget: float) -> dict[str, Times]:
        """Times of each contestant by name, within about `budget` seconds, three rounds at least.

        All have as many samples; one that is no peer may have fewer, when it would use up more than
        its share of the time.
        """
        if not contestants:
            return {}
        start = self.clock()
        found = {one.name: self.fastest(one.ways) for one in contestants}
        spent = dict.fromkeys(found, 0.0)
        rounds = 0
        while rounds < FEWEST_ROUNDS or self.clock() - start < budget:
            for one in contestants:
                share = sum(spent.values()) / len(spent)
                if one.peer or rounds < FEWEST_ROUNDS or spent[one.name] <= share:
                    times = found[one.name]
                    before = self.clock()
                    times.samples.append(self.sample(times.way, times.calls))
                    spent[one.name] += self.clock() - before
            rounds += 1
        return found

    def fastest(self, ways: Sequence[Way]) -> Times:
        """The way with the best sample of a few, and how many calls make a sample of it."""
        tried = [Times(way, self.calls(way)) for way in ways]
        if len(tried) > 1:
            for times in tried * TRIALS:
                times.samples.append(self.sample(times.way, times.calls))
            tried.sort(key=lambda times: times.best)
        return Times(tried[0].way, tried[0].calls)

    def calls(self, way: Way) -> int:
        """How many calls take SHORTEST_SAMPLE."""
        calls = 1
        while True:
            seconds = self.sample(way, calls) * calls
            if seconds >= SHORTEST_SAMPLE:
                return calls
            calls = max(2 * calls, int(1.2 * SHORTEST_SAMPLE / max(seconds, 1e-7) * calls))

    def sample(self, way: Way, calls: int) -> float:
        """Seconds a call. Those of the first WARM_UP seconds are not counted: they wake threads and
        the CPU itself, and fill the caches. `timeit` collects no garbage during calls."""
        timer = Timer(way.call, timer=self.clock)
        with way.context():
            self.settle()
            start = self.clock()
            once = timer.timeit(1)
            if calls == 1 and once >= LONG:
                return once
            while self.clock() - start < WARM_UP:
                timer.timeit(1)
            return timer.timeit(calls) / calls


def compare(
    calls: Mapping[str, Callable[[], Any]], budget: float = 1.0, stopwatch: Stopwatch | None = None
) -> dict[str, float]:
    """Seconds of each call by name: by turns, the best of many, within about `budget` seconds.

    >>> from simdformer.bench import compare
    >>> import numpy as np
    >>> x = np.ones(1_000_000, np.float32)
    >>> seconds = compare({"sum": lambda: x.sum(), "dot": lambda: x @ x}, budget=0.1)
    >>> list(seconds), all(time > 0 for time in seconds.values())
    (['sum', 'dot'], True)
    """
    racing = [Contestant(name, (Way(name, call),)) for name, call in calls.items()]
    times = (stopwatch or Stopwatch()).race(racing, budget)
    return {name: one.best for name, one in times.items()}
