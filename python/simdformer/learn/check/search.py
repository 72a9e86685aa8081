"""Which mistakes give this array: the catalogue's variations of a program, tried one after the
other, then two at a time."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from simdformer.learn.catalogue import CATALOGUE, Mistake, Variation
from simdformer.learn.check.compare import TOLERANCE, compare, numbers
from simdformer.learn.check.rounding import BF16, F32, F64, Noise
from simdformer.learn.program import Program, Run, Step, Tape

__all__ = [
    "BETTER",
    "SAMPLE",
    "WHOLE",
    "Explanation",
    "Problem",
    "Search",
    "as_list",
    "distance",
    "evaluate",
]

Explanation = tuple[Mistake, ...]  # one mistake, or two that are made together

SAMPLE = 30_000  # numbers in the largest array of a run: about a millisecond
WHOLE = 1_000_000  # in larger ones, mistakes that reach across the whole array go unrecognised
NEAR = 100.0  # times what is allowed: rounding may explain this much, more it does not
FEW = 6  # mistakes that come near, which are looked at closely
BETTER = 4.0  # times as exact as the right answer, where rounding would explain that as well
PROBES = 64  # numbers of an array that are looked at first
INFORMATION = 8  # different numbers that an array must hold to tell one pair from another


@dataclass(frozen=True)
class Problem:
    """A program, what it starts from, and the results to be explained.

    until : on the clock of time.thread_time; afterwards no run is begun
    begun : called before each run
    """

    program: Program
    variables: dict[str, Any]
    mine: list[Any]
    until: float = float("inf")
    begun: Callable[[], None] = lambda: None

    def sampled(self, limit: int) -> "Problem":
        """The same for some of the rows, where arrays would be larger than the limit."""
        thin = self.program.thin
        fewer = None if thin is None else thin(self.variables, limit)
        if fewer is None:
            return self
        variables, part = fewer
        kept = part(self.mine[0] if len(self.mine) == 1 else tuple(self.mine))
        return replace(self, variables=variables, mine=as_list(kept))


@dataclass(frozen=True, eq=False)
class Trial:
    """How far off a mistake is that was made alone, and the number of the step where it begins."""

    variation: Variation
    distance: float
    starts: int


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

    def __init__(self, results: list[Any], rtol: float, coarsest: np.dtype[Any]) -> None:
        self.results, self.rtol, self.coarsest = results, rtol, coarsest
        self.probes = []
        for x in results:
            at = np.unique(np.linspace(0, x.size - 1, min(PROBES, x.size)).astype(int))
            here = compare(x, x, rtol, coarsest)
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
                compare(
                    a, b, self.rtol, self.coarsest, None if spreads is None else spreads[i]
                ).excess
                for i, (a, b) in enumerate(zip(self.results, other, strict=True))
            ),
            default=0.0,
        )


@dataclass
class Search:
    """Looks for the variations of a program that give the results.

    problem : the program, and the results
    dtypes : those in which to make the mistakes, the learner's own first
    rtol, coarsest : as for `compare`
    longest : numbers in the longest sum, for what rounding does
    seconds : of this thread's work, after which no more pairs are tried
    """

    problem: Problem
    dtypes: list[Any]
    rtol: float
    coarsest: np.dtype[Any]
    longest: int = 1
    seconds: float = 2.0
    _trials: dict[Any, list[Trial]] = field(default_factory=dict)

    @cached_property
    def sample(self) -> Problem:
        return self.problem.sampled(SAMPLE)

    @cached_property
    def whole(self) -> Problem:
        return self.problem.sampled(WHOLE)

    def singles(self) -> tuple[Explanation, ...]:
        """Every single mistake that gives the results, up to rounding to the coarsest dtype."""
        for dtype in self.dtypes[::-1]:
            if found := self._singles(self.sample, self.trials(self.sample, dtype), dtype):
                return found
        if self.sample is not self.problem and self.whole is self.problem:
            dtype = self.dtypes[0]
            return self._singles(self.whole, self.trials(self.whole, dtype), dtype)
        return ()

    def nearest(self, level: np.dtype[Any]) -> tuple[Explanation, ...]:
        """Every single mistake that gives the results up to rounding to a coarser dtype, and much
        more exactly than the right answer does."""
        dtype = self.dtypes[0]
        tried = sorted(self.trials(self.sample, dtype), key=lambda trial: trial.distance)
        tried = [one for one in tried[:FEW] if one.distance < self.target(self.sample).near]
        return tuple(
            (one.variation.mistake,)
            for one in tried
            if self.is_better(one.variation.replaces)
            and self.fits(self.sample, one.variation.replaces, dtype, level)
        )

    def is_better(self, replaced: Mapping[str, Step]) -> bool:
        """Whether steps done otherwise give the results more exactly than those that are right."""
        off = [
            float("inf") if out is None else distance(self.sample.mine, out)
            for out in (
                evaluate(Run(np.float64, steps, record=False), self.sample)
                for steps in (replaced, {})
            )
        ]
        return off[0] * BETTER <= off[1]

    def trials(self, problem: Problem, dtype: Any) -> list[Trial]:
        """Every mistake that changes the result, made alone."""
        key = id(problem), np.dtype(dtype)
        if key not in self._trials:
            self._trials[key] = self._tried(problem, dtype)
        return self._trials[key]

    def _tried(self, problem: Problem, dtype: Any) -> list[Trial]:
        base = Run(dtype)
        right = evaluate(base, problem)
        if right is None or base.tape is None:
            return []
        mine, right_one = self.target(problem), self.target(replace(problem, mine=right))
        found = []
        for variation in CATALOGUE.among(base.visited):
            steps = variation.steps
            run = Run(dtype, variation.replaces, earlier=base.tape, differing=steps, record=False)
            out = evaluate(run, problem)
            if out is not None and right_one.distance(out) > 0:
                starts = base.tape.first_touched(steps)
                found.append(Trial(variation, mine.distance(out), starts))
        return found

    def _singles(
        self, problem: Problem, trials: list[Trial], dtype: Any
    ) -> tuple[Explanation, ...]:
        found = [
            trial.variation
            for trial in trials
            if trial.distance == 0 and self.fits(self.whole, trial.variation.replaces, dtype)
        ]
        if not found:
            near = sorted(trials, key=lambda trial: trial.distance)[:FEW]
            found = [
                one.variation
                for one in near
                if 0 < one.distance < NEAR
                and self.fits(problem, one.variation.replaces, dtype, self.coarsest)
            ]
        names = {variation.mistake.name for variation in found}
        return tuple((one.mistake,) for one in found if one.unless not in names)

    def pairs(self) -> tuple[Explanation, ...]:
        """Two mistakes at once, those that are made often first. The second is made on what is
        known from making the first alone, so that only what both change is computed."""
        problem, dtype = self.sample, self.dtypes[0]
        if self.seconds <= 0 or _information(problem.mine) < INFORMATION:
            return ()
        trials = self.trials(problem, dtype)
        until = time.thread_time() + self.seconds
        mine = self.target(problem)
        right = Run(dtype)
        evaluate(right, problem)

        @cache
        def tape(one: Trial) -> Tape | None:
            steps = one.variation.steps
            run = Run(dtype, one.variation.replaces, earlier=right.tape, differing=steps)
            evaluate(run, problem)
            return run.tape

        # Where one of them nearly gives the array by itself there are no two.
        trials = [trial for trial in trials if trial.distance > 3]
        found: list[Explanation] = []
        near: list[tuple[float, Explanation, dict[str, Step]]] = []
        rareness = 0
        for one, other in _in_order(trials):
            if time.thread_time() > until:
                break
            rare = one.variation.rare + other.variation.rare
            if found and rare > rareness:
                break
            rareness = rare
            both = {**one.variation.replaces, **other.variation.replaces}
            steps = other.variation.steps
            out = evaluate(
                Run(dtype, both, earlier=tape(one), differing=steps, record=False), problem
            )
            off = mine.near if out is None else mine.distance(out)
            if off == 0 and self.fits(self.whole, both, dtype):
                found.append((one.variation.mistake, other.variation.mistake))
            elif 0 < off < mine.near:
                near.append((off, (one.variation.mistake, other.variation.mistake), both))
        if not found:
            nearest = sorted(near, key=lambda pair: pair[0])[:3]
            finest = F32 if self.coarsest == F64 else self.coarsest
            found = [x for _, x, both in nearest if self.fits(problem, both, dtype, finest)]
        return tuple(found)

    def target(self, problem: Problem) -> Target:
        return Target(problem.mine, self.rtol, self.coarsest)

    def fits(
        self,
        problem: Problem,
        replaced: Mapping[str, Step],
        dtype: Any,
        level: np.dtype[Any] | None = None,
    ) -> bool:
        """Whether these steps give the results; up to what rounding to `level` changes, if that is
        given."""
        out = evaluate(Run(dtype, replaced, record=False), problem)
        if out is None:
            return False
        spreads = None
        if level is not None:
            spreads = self.noise(problem, replaced).spreads(level)
            if spreads is None:  # it cannot be computed in float64
                return False
        return self.target(problem).distance(out, spreads) == 0

    def noise(self, problem: Problem, replaced: Mapping[str, Step]) -> Noise:
        return Noise(lambda run: evaluate(run, problem), replaced, self.longest)


def _in_order(trials: list[Trial]) -> Iterator[tuple[Trial, Trial]]:
    """All pairs that can be made together: rare ones last, and of both the earlier step first."""
    pairs = [(a, b) for i, a in enumerate(trials) for b in trials[i + 1 :]]
    pairs.sort(key=lambda pair: pair[0].variation.rare + pair[1].variation.rare)
    for a, b in pairs:
        if a.variation.combines_with(b.variation):
            yield (a, b) if a.starts <= b.starts else (b, a)


def _information(results: list[Any]) -> int:
    values = np.unique(np.concatenate([numbers(x).ravel() for x in results]))
    return int(np.isfinite(values).sum())


def evaluate(run: Run, problem: Problem) -> list[Any] | None:
    """The results of a run; None when it crashes on these shapes, or when it is late."""
    if time.thread_time() > problem.until:
        return None
    problem.begun()
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(x) for x in as_list(run(problem.program, **problem.variables).out)]
    except (ValueError, IndexError, TypeError, ArithmeticError, AttributeError, KeyError):
        return None
