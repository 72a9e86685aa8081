"""What a run gives: times, errors, ratios, shares, goals; and the same as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from simdformer.bench.contestants import OURS
from simdformer.bench.machine import Limits, Machine
from simdformer.bench.work import AT_THE_LIMIT, BESIDE_WEIGHTS, LONG, Case, Goal

__all__ = ["SCHEMA", "Loaded", "Measurement", "Result", "Results"]

SCHEMA = 2  # of the JSON; a number that goes up when fields change their meaning


@dataclass(frozen=True)
class Measurement:
    """One contestant in one case. Times in seconds a call; `error` is relative, see `Work`."""

    way: str
    best: float
    median: float
    samples: int
    calls_a_sample: int
    error: float

    @classmethod
    def of(cls, way: str, samples: Sequence[float], error: float, calls: int = 1) -> "Measurement":
        """Samples are in seconds a call; each is the mean of so many calls."""
        return cls(way, min(samples), median(samples), len(samples), calls, error)


@dataclass(frozen=True)
class Loaded:
    """Bytes of a process that has loaded a model, NaN where the system does not tell; and those of
    the model's weights in their files."""

    resident: float
    weights: int


@dataclass(frozen=True)
class Result:
    """One case: measurements by contestant, and why others are missing; what a model that was
    loaded takes of memory."""

    case: Case
    limits: Limits
    measured: Mapping[str, Measurement]
    missing: Mapping[str, str] = field(default_factory=dict)
    loaded: Loaded | None = None

    @property
    def ours(self) -> Measurement | None:
        """None when our result is wrong or there is none: its speed is then of no interest."""
        return self.measured.get(OURS)

    def ratio(self, name: str) -> float:
        """How many times the speed of that contestant ours has; NaN when one is missing."""
        mine, theirs = self.ours, self.measured.get(name)
        return theirs.best / mine.best if mine and theirs else math.nan

    @property
    def share(self) -> float:
        """The share of the nearer limit of the machine."""
        return self.limits.share(self.case.work, self.ours.best) if self.ours else math.nan

    @property
    def goals(self) -> list[Goal]:
        """Those of the case. What is over in less than LONG need not be AT_THE_LIMIT."""
        short = self.ours is not None and self.ours.best < LONG
        return [goal for goal in self.case.goals if not (short and goal == AT_THE_LIMIT)]

    def found(self, goal: Goal) -> float:
        """What came out for a goal, without `otherwise`: a ratio, a share, or seconds. NaN when it
        cannot be told. Peers that were not measured do not count."""
        if self.ours is None:
            return math.nan
        work, seconds = self.case.work, self.ours.best
        match goal.of:
            case "peers":
                ratios = [self.ratio(name) for name in goal.peers if name in self.measured]
                return min(ratios, default=math.nan)
            case "arithmetic":
                return self.limits.arithmetic_share(work, seconds)
            case "read":
                return self.limits.read_share(work, seconds)
            case "memory" if self.loaded:
                return (self.loaded.resident - BESIDE_WEIGHTS) / self.loaded.weights
        return seconds if goal.of == "call" else math.nan

    def possible(self, goal: Goal) -> float:
        """What would come out at the limit of the machine, infinity when that is not known: work in
        float32 has a limit that is known, bfloat16 may have instructions of its own."""
        known = not goal.at_most and self.case.work.dtype == "float32" and 0 < self.share < 1
        return self.found(goal) / self.share if known else math.inf

    def met(self, goal: Goal) -> bool | None:
        """None: it cannot be told."""
        found, other = self.found(goal), self.met(goal.otherwise) if goal.otherwise else None
        enough = found <= goal.least if goal.at_most else found >= goal.least
        return other if math.isnan(found) else enough or bool(other)

    def as_json(self) -> dict[str, Any]:
        work = self.case.work
        return {
            "name": self.case.name,
            "operation": work.operation,
            "sizes": asdict(work),
            "flops": work.flops,
            "bytes": work.nbytes,
            "read_gigabytes_per_second": self.limits.level(work.nbytes).gigabytes_per_second,
            "unit": work.counted_in,
            "contestants": {
                name: {**asdict(one), "speed": work.speed(one.best)}
                for name, one in self.measured.items()
            },
            "missing": dict(self.missing),
            "loaded": self.loaded
            and {**asdict(self.loaded), "resident": if_known(self.loaded.resident)},
            "ratios": {name: self.ratio(name) for name in self.measured if name != OURS}
            if self.ours
            else {},
            "share": self.share if self.ours else None,
            "goals": [self.goal_as_json(goal) for goal in self.goals],
        }

    def goal_as_json(self, goal: Goal) -> dict[str, Any]:
        return {
            "goal": str(goal),
            "least": goal.least,
            "of": goal.of,
            "peers": list(goal.peers),
            "found": if_known(self.found(goal)),
            "met": self.met(goal),
            "possible": if_known(self.possible(goal)),
            "otherwise": self.goal_as_json(goal.otherwise) if goal.otherwise else None,
        }


def if_known(number: float) -> float | None:
    return number if math.isfinite(number) else None


@dataclass
class Results:
    """A run. `interrupted`: it ended before its time, with what was measured until then."""

    machine: Machine
    limits: Limits
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False

    @property
    def right(self) -> bool:
        """Whether all our results were."""
        return all(result.ours is not None for result in self.results)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "machine": asdict(self.machine),
            "limits": {
                "gflops": self.limits.gflops,
                "read": [asdict(level) for level in self.limits.levels],
            },
            "interrupted": self.interrupted,
            "cases": [result.as_json() for result in self.results],
        }
