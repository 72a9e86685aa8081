"""A program and results to be explained: how it is run, and how near to the results it comes."""

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simdformer.learn.check.compare import TOLERANCE, compare, numbers
from simdformer.learn.check.rounding import BF16, F32, F64
from simdformer.learn.program import Program, Run, Step

__all__ = ["NEAR", "Base", "Problem", "Target", "as_list", "distance", "evaluate"]

NEAR = 100.0  # times what is allowed: rounding may explain this much, more it does not
PROBES = 64  # numbers of an array that are looked at first


@dataclass(frozen=True)
class Problem:
    """A program, what it starts from, and the results to be explained.

    dtype : in which it is computed where exactness counts
    until : on the clock of time.thread_time; afterwards no mistake is tried
    begun : called before each run
    part : those of the program's results that `mine` are
    floor : as for `compare`
    """

    program: Program
    variables: dict[str, Any]
    mine: list[Any]
    dtype: np.dtype[Any] = F64
    until: float = float("inf")
    begun: Callable[[], None] = lambda: None
    part: Callable[[list[Any]], list[Any]] = lambda results: results
    floor: float = 0.0

    def sampled(self, limit: int) -> "Problem":
        """The same for some of the rows, where arrays would be larger than the limit."""
        thin = self.program.thin
        fewer = None if thin is None else thin(self.variables, limit)
        if fewer is None:
            return self
        variables, part = fewer
        kept = part(self.mine[0] if len(self.mine) == 1 else tuple(self.mine))
        return replace(self, variables=variables, mine=as_list(kept))


@dataclass(frozen=True)
class Base:
    """A run from which others differ, and its results; None where it crashes.

    operations : those that may be asked in place of programs
    """

    run: Run
    right: list[Any] | None
    operations: Mapping[Program, Set[str]]

    @classmethod
    def of(cls, run: Run, problem: Problem) -> "Base":
        right = evaluate(run, problem)
        quick = right is not None and run.dtype == problem.dtype == F32
        return cls(run, right, run.tape.operations if quick and run.tape is not None else {})

    def starts(self, steps: Set[str]) -> int:
        """The number of the first step that these change."""
        return 0 if self.run.tape is None else self.run.tape.first_touched(steps)

    def varied(self, replaced: Mapping[str, Step], differing: Set[str]) -> Run:
        """One with these steps, some of which differ."""
        return Run(
            self.run.dtype,
            replaced,
            earlier=self.run.tape,
            differing=differing,
            record=False,
            operations=self.operations,
        )


def as_list(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple | list) else [out]


def distance(mine: list[Any], other: list[Any]) -> float:
    """Root mean square of the differences, relative to the rows of `other`; infinite where only one
    of them is a number."""
    total, count = 0.0, 0
    for a, b in zip(mine, other, strict=True):
        if np.shape(a) != np.shape(b):
            return float("inf")
        with np.errstate(all="ignore"):
            error = compare(a, b, 0.0, F64).relative
            total += float(np.square(error).sum())
        count += error.size
    return float(np.sqrt(total / max(count, 1)))


class Target:
    """Results that many others are compared with; a few numbers are looked at first."""

    def __init__(
        self, results: list[Any], rtol: float, coarsest: np.dtype[Any], floor: float = 0.0
    ) -> None:
        self.results, self.rtol, self.coarsest, self.floor = results, rtol, coarsest, floor
        self.probes = []
        for x in results:
            at = np.unique(np.linspace(0, x.size - 1, min(PROBES, x.size)).astype(int))
            here = compare(x, x, rtol, coarsest, floor=floor)
            allowed = (here.allowed + np.zeros_like(here.error)).ravel()[at]
            self.probes.append((at, numbers(x.ravel()[at]), allowed))

    @property
    def near(self) -> float:
        """Times what is allowed: rounding may explain this much, more it does not."""
        return NEAR * max(1.0, TOLERANCE[BF16] / self.rtol) if self.rtol else NEAR

    def distance(self, other: list[Any], spreads: Any = None) -> float:
        """0 where they are as good as equal; else how many times what is allowed they are off, or
        more than `near`; infinite when shapes differ."""
        if [x.shape for x in self.results] != [x.shape for x in other]:
            return float("inf")
        with np.errstate(all="ignore"):
            for x, (at, values, allowed) in zip(other, self.probes, strict=True):
                there = numbers(x.ravel()[at])
                off = np.abs(there - values) > 2 * self.near * allowed
                if (off | (np.isnan(there) != np.isnan(values))).any() and spreads is None:
                    return 2 * self.near
        return max(
            (
                compare(a, b, self.rtol, self.coarsest, spread, self.floor).excess
                for a, b, spread in zip(
                    self.results, other, spreads or [None] * len(other), strict=True
                )
            ),
            default=0.0,
        )


def evaluate(run: Run, problem: Problem) -> list[Any] | None:
    """The results of a run; None when it crashes on these shapes, or when it is late."""
    if time.thread_time() > problem.until:
        return None
    problem.begun()
    try:
        with np.errstate(all="ignore"):
            given = {name: run.number(x) for name, x in problem.variables.items()}
            out = as_list(run(problem.program, **given).out)
            return [np.asarray(x) for x in problem.part(out)]
    except (ValueError, IndexError, TypeError, ArithmeticError, AttributeError, KeyError):
        return None
