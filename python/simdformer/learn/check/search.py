"""Which mistakes give this array: the catalogue's variations of a program, tried one after the
other, then two at a time."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from simdformer.learn.check.compare import compare, finfo, numbers, row_size
from simdformer.learn.program import CATALOGUE, Mistake, Program, Run, Step, Tape, Variation

__all__ = ["SAMPLE", "WHOLE", "Explanation", "Problem", "Search", "as_list", "evaluate", "spread"]

Explanation = tuple[Mistake, ...]  # one mistake, or two that are made together

SAMPLE = 30_000  # numbers in the largest array of a run: about a millisecond
WHOLE = 1_000_000  # in larger ones, mistakes that reach across the whole array go unrecognised
NEAR = 100.0  # times what is allowed: rounding may explain this much, more it does not
SAMPLES = 4  # of what rounding does
PROBES = 64  # numbers of an array that are looked at first
INFORMATION = 8  # different numbers that an array must hold to tell one pair from another


@dataclass(frozen=True)
class Problem:
    """A program, what it starts from, and the results to be explained.

    until : on the clock of time.monotonic; afterwards no run is begun
    """

    program: Program
    variables: dict[str, Any]
    mine: list[Any]
    until: float = float("inf")

    def sampled(self, limit: int) -> "Problem":
        """The same for some of the rows, where arrays would be larger than the limit."""
        thin = self.program.thinned
        fewer = None if thin is None else thin(self.variables, limit)
        if fewer is None:
            return self
        variables, part = fewer
        kept = part(self.mine[0] if len(self.mine) == 1 else tuple(self.mine))
        return Problem(self.program, variables, as_list(kept), self.until)


@dataclass(frozen=True, eq=False)
class Trial:
    """How far off a mistake is that was made alone, and the number of the step where it begins."""

    variation: Variation
    distance: float
    starts: int


def as_list(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple | list) else [out]


def spread(run: Callable[[Run], list[Any]], replaced: Mapping[str, Step], eps: float) -> Any:
    """How far each row of each result moves when everything is rounded to eps: arrays (..., 1).

    Three to eight times the usual distance: a sum of many numbers is rounded many times.
    """
    exact = run(Run(np.float64, replaced, record=False))
    moved = [np.zeros_like(row_size(numbers(x))) for x in exact]
    random = np.random.default_rng(1)
    for _ in range(SAMPLES):
        wobbly = run(Run(np.float64, replaced, record=False, rounding=eps, random=random))
        for i, (x, y) in enumerate(zip(exact, wobbly, strict=True)):
            with np.errstate(all="ignore"):
                moved[i] = np.hypot(moved[i], row_size(numbers(y) - numbers(x)))
    times = (3 if eps > 1e-4 else 8) / np.sqrt(SAMPLES)
    return [times * x for x in moved]


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

    def distance(self, other: list[Any], spreads: Any = None) -> float:
        """0 where they are as good as equal; else how many times what is allowed they are off, or
        more than NEAR; infinite when shapes differ."""
        if [x.shape for x in self.results] != [x.shape for x in other]:
            return float("inf")
        with np.errstate(all="ignore"):
            for x, (at, values, allowed) in zip(other, self.probes, strict=True):
                there = numbers(x.ravel()[at])
                off = np.abs(there - values) > 2 * NEAR * allowed
                if (off | (np.isnan(there) != np.isnan(values))).any() and spreads is None:
                    return 2 * NEAR
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

    dtypes : those in which to make the mistakes, the learner's own first
    rtol, coarsest : as for `compare`
    seconds : of this thread's work, after which no more pairs are tried
    """

    dtypes: list[Any]
    rtol: float
    coarsest: np.dtype[Any]
    seconds: float = 2.0

    def __call__(self, problem: Problem) -> tuple[Explanation, ...]:
        """Everything that fits equally well: one mistake, else two."""
        sample, whole = problem.sampled(SAMPLE), problem.sampled(WHOLE)
        for dtype in reversed(self.dtypes):  # the first one's trials are needed again
            trials = self.trials(sample, dtype)
            if found := self.singles(sample, trials, dtype, whole):
                return found
        if sample is not problem and whole is problem:
            everywhere = self.trials(whole, self.dtypes[0])
            if found := self.singles(whole, everywhere, self.dtypes[0], whole):
                return found
        if self.seconds <= 0 or _information(sample.mine) < INFORMATION:
            return ()
        return self.pairs(sample, trials, self.dtypes[0], whole)

    def trials(self, problem: Problem, dtype: Any) -> list[Trial]:
        """Every mistake that changes the result, made alone."""
        base = Run(dtype)
        right = evaluate(base, problem)
        if right is None or base.tape is None:
            return []
        mine, right_one = self.target(problem.mine), self.target(right)
        found = []
        for variation in CATALOGUE.among(base.visited):
            steps = variation.steps
            run = Run(dtype, variation.replaces, earlier=base.tape, differing=steps, record=False)
            out = evaluate(run, problem)
            if out is not None and right_one.distance(out) > 0:
                starts = base.tape.first_touched(steps)
                found.append(Trial(variation, mine.distance(out), starts))
        return found

    def singles(
        self, problem: Problem, trials: list[Trial], dtype: Any, whole: Problem
    ) -> tuple[Explanation, ...]:
        found = [
            trial.variation
            for trial in trials
            if trial.distance == 0 and self.fits(whole, trial.variation.replaces, dtype)
        ]
        if not found:
            near = [trial.variation for trial in trials if 0 < trial.distance < NEAR]
            found = [one for one in near if self.fits(problem, one.replaces, dtype, rounding=True)]
        return tuple((variation.mistake,) for variation in found)

    def pairs(
        self, problem: Problem, trials: list[Trial], dtype: Any, whole: Problem
    ) -> tuple[Explanation, ...]:
        """Two mistakes at once, those that are made often first. The second is made on what is
        known from making the first alone, so that only what both change is computed."""
        until = time.thread_time() + self.seconds
        mine = self.target(problem.mine)
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
            off = NEAR if out is None else mine.distance(out)
            if off == 0 and self.fits(whole, both, dtype):
                found.append((one.variation.mistake, other.variation.mistake))
            elif 0 < off < NEAR:
                near.append((off, (one.variation.mistake, other.variation.mistake), both))
        if not found:
            nearest = sorted(near, key=lambda pair: pair[0])[:3]
            found = [x for _, x, both in nearest if self.fits(problem, both, dtype, rounding=True)]
        return tuple(found)

    def target(self, results: list[Any]) -> Target:
        return Target(results, self.rtol, self.coarsest)

    def fits(
        self, problem: Problem, replaced: Mapping[str, Step], dtype: Any, rounding: bool = False
    ) -> bool:
        """Whether these steps give the results; with rounding, up to what rounding to so many bits
        changes."""
        out = evaluate(Run(dtype, replaced, record=False), problem)
        if out is None:
            return False
        spreads = None
        if rounding:
            eps = float(finfo(self.coarsest).eps)
            try:
                spreads = spread(lambda run: evaluate(run, problem) or [], replaced, eps)
            except ValueError:  # it cannot be computed in float64
                return False
            if len(spreads) != len(out):  # it is late
                return False
        return self.target(problem.mine).distance(out, spreads) == 0


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
    if time.monotonic() > problem.until:
        return None
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(x) for x in as_list(run(problem.program, **problem.variables).out)]
    except (ValueError, IndexError, TypeError, ArithmeticError, AttributeError, KeyError):
        return None
