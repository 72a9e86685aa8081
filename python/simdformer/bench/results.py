"""What a run gives: times, errors, ratios, shares, goals; and the same as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from simdformer.bench.contestants import OURS
from simdformer.bench.machine import Limits, Machine
from simdformer.bench.work import AT_THE_LIMIT, BESIDE_WEIGHTS, LONG, Case, Goal

__all__ = [
    "SCHEMA",
    "GoalReached",
    "Loaded",
    "Measurement",
    "Result",
    "Results",
]

SCHEMA = 1  # of the JSON; a number that goes up when fields change their meaning


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
class GoalReached:
    """What came out for a goal: a ratio, a share, or seconds. NaN when it could not be told.

    `possible`: what would come out at the limit of the machine, infinity when that is not known.
    `otherwise`: the same for what would do as well.
    """

    goal: Goal
    found: float
    possible: float = math.inf
    otherwise: "GoalReached | None" = None

    @property
    def known(self) -> bool:
        return not math.isnan(self.found) or bool(self.otherwise and self.otherwise.known)

    @property
    def met(self) -> bool:
        if self.otherwise and self.otherwise.met:
            return True
        if self.goal.at_most:
            return self.found <= self.goal.least
        return self.found >= self.goal.least

    @property
    def out_of_reach(self) -> bool:
        """Whether nobody could meet the goal on this machine, and nothing else would do."""
        short = self.known and not self.met and self.possible < self.goal.least
        return short and self.otherwise is None

    def as_json(self) -> dict[str, Any]:
        return {
            "goal": str(self.goal),
            "least": self.goal.least,
            "of": self.goal.of,
            "peers": list(self.goal.peers),
            "found": None if math.isnan(self.found) else self.found,
            "met": self.met if self.known else None,
            "possible": self.possible if math.isfinite(self.possible) else None,
            "otherwise": self.otherwise.as_json() if self.otherwise else None,
        }


@dataclass(frozen=True)
class Loaded:
    """What loading a model costs besides time.

    reading: seconds that reading its file into new memory takes. first_token: seconds until there
    is one, those of loading among them. resident: bytes of the process when the model is loaded,
    NaN where the system does not tell. weights: their bytes in the file.
    """

    reading: float
    first_token: float
    resident: float
    weights: int

    def as_json(self) -> dict[str, Any]:
        resident = None if math.isnan(self.resident) else self.resident
        return {**asdict(self), "resident": resident}


@dataclass(frozen=True)
class Result:
    """One case: measurements by contestant, and why others are missing. `skipped`: why it could not
    be measured at all. `loaded`: what loading costs, in a case that loads a model.
    """

    case: Case
    limits: Limits
    measured: Mapping[str, Measurement]
    missing: Mapping[str, str] = field(default_factory=dict)
    skipped: str = ""
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

    def reached(self, goal: Goal) -> GoalReached:
        """A goal against the better of two peers is one against those that were measured.

        float32 work has a limit that is known; bfloat16 may have instructions of its own.
        """
        found, possible = math.nan, math.inf
        if self.ours is not None:
            work, seconds = self.case.work, self.ours.best
            match goal.of:
                case "peers":
                    ratios = [self.ratio(name) for name in goal.peers if name in self.measured]
                    found = min(ratios, default=math.nan)
                case "arithmetic":
                    found = self.limits.arithmetic_share(work, seconds)
                case "read":
                    found = self.limits.read_share(work, seconds)
                case "call":
                    found = seconds
                case "reading" if self.loaded:
                    found = seconds / self.loaded.reading
                case "memory" if self.loaded:
                    found = (self.loaded.resident - BESIDE_WEIGHTS) / self.loaded.weights
            if not goal.at_most and work.dtype == "float32" and 0 < self.share < 1:
                possible = found / self.share
        otherwise = self.reached(goal.otherwise) if goal.otherwise else None
        return GoalReached(goal, found, possible, otherwise)

    @property
    def goals(self) -> list[GoalReached]:
        """What is over in less than LONG need not be AT_THE_LIMIT."""
        short = self.ours is not None and self.ours.best < LONG
        asked = (goal for goal in self.case.goals if not (short and goal == AT_THE_LIMIT))
        return [self.reached(goal) for goal in asked]

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
            "skipped": self.skipped or None,
            "loaded": self.loaded.as_json() if self.loaded else None,
            "ratios": {name: self.ratio(name) for name in self.measured if name != OURS}
            if self.ours
            else {},
            "share": self.share if self.ours else None,
            "goals": [goal.as_json() for goal in self.goals],
        }


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
        return all(result.ours is not None or result.skipped for result in self.results)

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
