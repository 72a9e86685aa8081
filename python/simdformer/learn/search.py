"""Which mistakes give this array: the catalogue's variations of a program, tried one after the
other, then two at a time."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from simdformer.learn.compare import compare, finfo, numbers, row_size
from simdformer.learn.program import CATALOGUE, Mistake, Program, Run, Step, Variation

__all__ = ["ANSWER", "Explanation", "Problem", "Search", "as_list", "evaluate", "spread"]

Explanation = tuple[Mistake, ...]  # one mistake, or two that are made together

ANSWER = 300_000  # numbers in the largest array of a run: some milliseconds
GLANCE = 30_000  # a run of less than a millisecond
WHOLE = 4_000_000  # in larger ones, a mistake that reaches across the whole array goes unrecognised
NEAR = 100.0  # times what is allowed: rounding may explain this much, more it does not
SAMPLES = 4  # of what rounding does
INFORMATION = 8  # different numbers that an array must hold to tell one pair from another


@dataclass(frozen=True)
class Problem:
    """A program, what it starts from, and the results to be explained."""

    program: Program
    variables: dict[str, Any]
    mine: list[Any]

    def sampled(self, limit: int) -> "Problem":
        """The same for some of the rows, where arrays would be larger than the limit."""
        thin = self.program.thinned
        fewer = None if thin is None else thin(self.variables, limit)
        if fewer is None:
            return self
        variables, part = fewer
        kept = part(self.mine[0] if len(self.mine) == 1 else tuple(self.mine))
        return Problem(self.program, variables, as_list(kept))


@dataclass(frozen=True)
class Trial:
    """What a variation gives: how far off it is, and the tape to try a second one on."""

    variation: Variation
    out: list[Any]
    distance: float
    starts: int


def as_list(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple | list) else [out]


def spread(run: Callable[[Run], list[Any]], replaced: Mapping[str, Step], eps: float) -> Any:
    """How far each row of each result moves when everything is rounded to eps: arrays (..., 1).

    Three to eight times the usual distance: a sum of many numbers is rounded many times.
    """
    exact = run(Run(np.float64, replaced))
    moved = [np.zeros_like(row_size(numbers(x))) for x in exact]
    random = np.random.default_rng(1)
    for _ in range(SAMPLES):
        wobbly = run(Run(np.float64, replaced, rounding=eps, random=random))
        for i, (x, y) in enumerate(zip(exact, wobbly, strict=True)):
            with np.errstate(all="ignore"):
                moved[i] = np.hypot(moved[i], row_size(numbers(y) - numbers(x)))
    times = (3 if eps > 1e-4 else 8) / np.sqrt(SAMPLES)
    return [times * x for x in moved]


@dataclass
class Search:
    """Looks for the variations of a program that give the results.

    dtypes : those in which to make the mistakes, the learner's own first
    rtol, coarsest : as for `compare`
    seconds : after which no more pairs are tried
    """

    dtypes: list[Any]
    rtol: float
    coarsest: np.dtype[Any]
    seconds: float = 1.2

    def __call__(self, problem: Problem) -> tuple[Explanation, ...]:
        small = problem.sampled(ANSWER)
        for dtype in self.dtypes:
            if found := self.singles(small, dtype):
                return found
        largest = max((np.size(x) for x in problem.mine), default=0)
        if small is not problem and largest * len(problem.mine) <= WHOLE:
            whole = problem.sampled(WHOLE)
            if whole is not small and (found := self.singles(whole, self.dtypes[0])):
                return found
        until = time.monotonic() + self.seconds
        if len(np.unique(np.concatenate([numbers(x).ravel() for x in small.mine]))) < INFORMATION:
            return ()
        return self.pairs(small, self.dtypes[0], until)

    def singles(self, problem: Problem, dtype: Any) -> tuple[Explanation, ...]:
        """All mistakes that fit equally well."""
        trials = self.trials(problem, dtype)
        fitting = [trial for trial in trials if trial.distance == 0]
        if not fitting:
            fitting = [
                trial
                for trial in trials
                if trial.distance < NEAR and self.but_for_rounding(problem, trial, dtype)
            ]
        return tuple((trial.variation.mistake,) for trial in fitting)

    def trials(self, problem: Problem, dtype: Any) -> list[Trial]:
        """Every mistake that changes the result, made alone."""
        base = Run(dtype)
        right = evaluate(base, problem)
        if right is None or base.tape is None:
            return []
        found = []
        for variation in CATALOGUE.among(base.visited):
            run = Run(dtype, variation.replaces, earlier=base.tape, differing=variation.steps)
            out = evaluate(run, problem)
            if out is not None and self.distance(right, out) > 0:
                starts = base.tape.first_touched(variation.steps)
                found.append(Trial(variation, out, self.distance(problem.mine, out), starts))
        return found

    def pairs(self, problem: Problem, dtype: Any, until: float) -> tuple[Explanation, ...]:
        """Two mistakes at once, those that are made often first; what the first of the two computes
        is computed once for all others."""
        glance = problem.sampled(GLANCE)
        trials = sorted(self.trials(glance, dtype), key=lambda trial: trial.starts)
        base = Run(dtype)
        evaluate(base, glance)
        found: list[Explanation] = []
        for rare, (i, first) in product(range(3), enumerate(trials)):
            if found and i == 0:
                return tuple(found)
            one = first.variation
            run = Run(dtype, one.replaces, earlier=base.tape, differing=one.steps)
            for second in trials[i + 1 :]:
                other = second.variation
                if one.rare + other.rare != rare or not one.combines_with(other):
                    continue
                if time.monotonic() > until:
                    return tuple(found)
                if min(first.distance, second.distance) < 3:
                    continue
                if run.tape is None:
                    evaluate(run, glance)
                both = {**one.replaces, **other.replaces}
                tries = Run(dtype, both, earlier=run.tape, differing=other.steps)
                out = evaluate(tries, glance)
                if out is None or self.distance(glance.mine, out) > 0:
                    continue
                whole = evaluate(Run(dtype, both), problem) if glance is not problem else out
                if whole is not None and self.distance(problem.mine, whole) == 0:
                    found.append((one.mistake, other.mistake))
        return tuple(found)

    def distance(self, mine: list[Any], other: list[Any], spreads: Any = None) -> float:
        """0 where they are as good as equal; else how many times what is allowed they are off;
        infinite when shapes differ."""
        if [np.shape(x) for x in mine] != [np.shape(x) for x in other]:
            return float("inf")
        return max(
            (
                compare(
                    a, b, self.rtol, self.coarsest, None if spreads is None else spreads[i]
                ).excess
                for i, (a, b) in enumerate(zip(mine, other, strict=True))
            ),
            default=0.0,
        )

    def but_for_rounding(self, problem: Problem, trial: Trial, dtype: Any) -> bool:
        """Whether rounding, in a dtype of so many bits, makes up for the rest of the distance."""
        eps = float(finfo(self.coarsest).eps)
        replaced = trial.variation.replaces
        try:
            spreads = spread(lambda run: evaluate(run, problem) or [], replaced, eps)
        except ValueError:  # it cannot be computed in float64
            return False
        return self.distance(problem.mine, trial.out, spreads) == 0


def evaluate(run: Run, problem: Problem) -> list[Any] | None:
    """The results of a run; None when it is one that crashes on these shapes."""
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(x) for x in as_list(run(problem.program, **problem.variables).out)]
    except (ValueError, IndexError, TypeError, ArithmeticError, AttributeError, KeyError):
        return None
