"""Which mistakes give this array: the catalogue's variations of a program, tried one after the
other, then two at a time."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from simdformer.learn.catalogue import CATALOGUE, Mistake, Variation
from simdformer.learn.check.compare import finfo, numbers
from simdformer.learn.check.problem import NEAR, Base, Problem, Target, distance, evaluate
from simdformer.learn.check.rounding import F32, F64, Noise
from simdformer.learn.program import Run, Step
from simdformer.learn.slips import factors, slips

__all__ = ["BETTER", "FEW_NUMBERS", "SAMPLE", "WHOLE", "Budget", "Explanation", "Search"]

Explanation = tuple[Mistake, ...]  # one mistake, or two that are made together

SAMPLE = 30_000  # numbers in the largest array of a run: about a millisecond
WHOLE = 1_000_000  # in larger ones, mistakes that reach across the whole array go unrecognised
FEW_NUMBERS, LUCKY = 3, 1e-6  # so few are met by chance: they have to be met so well
EXACTLY = 32.0  # units: two results that are no further apart are the same
FEW = 6  # mistakes that come near, which are looked at closely
SLOW = 0.1  # seconds of a mistake on the sample: it is not tried on the whole array as well
BETTER = 4.0  # times as exact as the right answer, where rounding would explain that as well
ALONG = 1e-2  # of the squares of an error, what a factor may leave
LEAST = (1e-4, 0.1)  # by how much a factor is another one; in 16 bits
INFORMATION = 8  # different numbers that an array must hold to tell one pair from another


@dataclass(frozen=True, eq=False)
class Trial:
    """How far off a mistake is that was made alone, and the number of the step where it begins."""

    variation: Variation
    distance: float
    starts: int


@dataclass
class Budget:
    """The seconds of this thread's work after which no more pairs are tried; the searches of all
    gradients of a call share one."""

    seconds: float = 2.0


@dataclass
class Search:
    """Looks for the variations of a program that give the results.

    problem : the program, and the results
    dtypes : those in which to make the mistakes, the learner's own first
    rtol, coarsest : as for `compare`
    longest : numbers in the longest sum, for what rounding does
    budget : for pairs
    """

    problem: Problem
    dtypes: list[Any]
    rtol: float
    coarsest: np.dtype[Any]
    longest: int = 1
    budget: Budget = field(default_factory=Budget)
    untried: tuple[int, int] = (0, 0)  # how many mistakes of how many there was no time for
    _trials: dict[Any, list[Trial]] = field(default_factory=dict)
    _bases: dict[Any, Base] = field(default_factory=dict)

    @cached_property
    def sample(self) -> Problem:
        return self.problem.sampled(SAMPLE)

    @cached_property
    def whole(self) -> Problem:
        return self.problem.sampled(WHOLE)

    def gives(self, replaced: Mapping[str, Step], variables: dict[str, Any]) -> bool:
        """Whether steps that are in no catalogue give the results, or others of the variables."""
        problem = replace(self.problem, variables=self.problem.variables | variables)
        operations = self.base(self.sample, problem.dtype).operations
        for limit in (SAMPLE, WHOLE):
            run = Run(problem.dtype, replaced, record=False, operations=operations)
            part = problem.sampled(limit)
            out = evaluate(run, part)
            if out is None or self.target(part).distance(out) > 0:
                return False
            if part is problem:
                break
        return True

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
        more exactly than the right answer does. A few numbers would fit by chance."""
        dtype = self.dtypes[0]
        if level.itemsize == 2 and _information(self.problem.mine) < INFORMATION:
            return ()
        tried = sorted(self.trials(self.sample, dtype), key=lambda trial: trial.distance)
        tried = [one for one in tried[:FEW] if one.distance < self.target(self.sample).near]
        return tuple(
            (one.variation.mistake,)
            for one in tried
            if self.is_better(one.variation.replaces)
            and self.fits(self.sample, one.variation.replaces, dtype, level)
        )

    def otherwise_written(self) -> tuple[Explanation, ...]:
        """Every single mistake that gives the results in a program that is right and written in
        another way: a habit of the catalogue."""
        problem, dtype = self.sample, self.dtypes[0]
        base = self.base(problem, dtype)
        if base.right is None:
            return ()
        mine, right = self.target(problem), self.target(replace(problem, mine=base.right))
        found = []
        for habit in (one for one in CATALOGUE.among(base.run.visited) if one.habit):
            run = Run(dtype, habit.replaces, earlier=base.run.tape, differing=habit.steps)
            written = Base.of(run, problem)
            if written.right is None or right.distance(written.right) > 0:
                continue  # for this call it would be a mistake
            for trial in self.trials(problem, dtype):
                one = trial.variation
                if not one.combines_with(habit) or (one.mistake,) in found:
                    continue
                both = {**habit.replaces, **one.replaces}
                out = evaluate(written.varied(both, one.steps), problem)
                if out is None or mine.distance(out) > 0:
                    continue
                if self.fits(self.whole, both, dtype):
                    found.append((one.mistake,))
        return tuple(found)

    def is_better(self, replaced: Mapping[str, Step]) -> bool:
        """Whether steps done otherwise give the results more exactly than those that are right."""
        off = [
            float("inf") if out is None else distance(self.sample.mine, out)
            for out in (
                evaluate(Run(self.problem.dtype, steps, record=False), self.sample)
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

    def _tried(
        self, problem: Problem, dtype: Any, known: list[Variation] | None = None
    ) -> list[Trial]:
        """Those of the catalogue, or others."""
        base = self.base(problem, dtype)
        if base.right is None:
            return []
        mine, right_one = self.target(problem), self.target(replace(problem, mine=base.right))
        if (
            mine.distance(base.right) == 0
        ):  # so do the right steps, if this dtype is all that is wrong
            return []
        found = []
        if known is None:
            known = self.likely_first(CATALOGUE.among(base.run.visited), problem, dtype)
        for number, variation in enumerate(known):
            if variation.habit or (problem is not self.sample and self.is_slow(variation, dtype)):
                continue
            if time.thread_time() > problem.until:
                self.untried = len(known) - number, len(known)
                break
            steps = variation.steps
            out = evaluate(base.varied(variation.replaces, steps), problem)
            if out is not None and right_one.distance(out) > 0:
                found.append(Trial(variation, mine.distance(out), base.starts(steps)))
        return found

    def is_slow(self, variation: Variation, dtype: Any) -> bool:
        """Whether a mistake takes so long on the sample that it would take seconds on the whole: a
        sum of one number after the other, which shows in each row."""
        base, begun = self.base(self.sample, dtype), time.thread_time()
        evaluate(base.varied(variation.replaces, variation.steps), self.sample)
        return time.thread_time() - begun > SLOW

    def likely_first(self, known: list[Variation], problem: Problem, dtype: Any) -> list[Variation]:
        """In the order in which they are to be tried. A long program is judged by its beginning:
        what changes the first position that is wrong, and none before it, is likely; what changes
        one before it is out of the question."""
        beginning = problem.program.beginning
        if beginning is None:
            return known
        variables = beginning.variables(problem.variables)
        short = replace(problem, program=beginning.program, variables=variables)
        base = self.base(short, dtype)
        likely, others = [], []
        for variation in in_turn(known):
            if base.run.visited.isdisjoint(variation.steps):
                likely.append(variation)
            elif base.right is not None:
                out = evaluate(base.varied(variation.replaces, variation.steps), short)
                if time.thread_time() > problem.until:
                    others.append(variation)
                elif out is not None and out[0].shape == base.right[0].shape:
                    at = beginning.first_changed(out[0], base.right[0])
                    if at == beginning.wrong:
                        likely.append(variation)
                    elif at is None or at > beginning.wrong:
                        others.append(variation)
        return likely + others

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

    @cached_property
    def slips(self) -> list[Trial]:
        """Every slip of the program, made alone."""
        problem, dtype = self.sample, self.dtypes[0]
        tape, few = self.base(problem, dtype).run.tape, _information(problem.mine)
        is_constant = few < 2 and sum(map(np.size, problem.mine)) > 1
        is_constant |= not any(np.any(x) for x in problem.mine) or not few  # one 0, one NaN
        if tape is None or is_constant or (few < INFORMATION and self.coarsest.itemsize == 2):
            return []
        return self._tried(problem, dtype, list(slips(tape)))

    @cached_property
    def scaled(self) -> list[Trial]:
        """The parts of its formulas that would give the results if they were multiplied by the
        number that brings them nearest."""
        problem, dtype = self.sample, self.dtypes[0]
        base = self.base(problem, dtype)
        shapes = [np.shape(x) for x in problem.mine]
        if (
            base.right is None
            or base.run.tape is None
            or [np.shape(x) for x in base.right] != shapes
            or _information(problem.mine) < INFORMATION
        ):
            return []
        right, mine = flat(base.right), flat(problem.mine)
        least, found = LEAST[self.coarsest.itemsize == 2], []
        for factor in factors(base.run.tape):
            other = factor.made(1 - factor.neutral)
            out = evaluate(base.varied(other.replaces, other.steps), problem)
            if out is None or [np.shape(x) for x in out] != shapes:
                continue
            slope = (flat(out) - right) * (1 - 2 * factor.neutral)
            off = mine - right
            size = float(slope @ slope)
            if not (np.isfinite(size) and size):
                continue
            times = float(slope @ off) / size
            left = off - times * slope
            if left @ left < ALONG * (off @ off) and abs(times) > least:
                found.append(factor.made(factor.neutral + times))
        return self._tried(problem, dtype, found)

    def slipped(self, kind: str) -> tuple[Explanation, ...]:
        """The slips of a kind that give the results, the most exact ones; of those that are the
        same for all results of the program, the first."""
        tried = self.scaled if kind == "factor" else self.slips
        trials = [one for one in tried if one.variation.slip == kind]
        problem, dtype = replace(self.sample, part=lambda results: results), self.dtypes[0]
        found: list[tuple[float, Explanation, list[Any]]] = []
        same = EXACTLY * float(finfo(dtype).eps)
        for group in self._singles(self.sample, trials, dtype):
            out = evaluate(Run(dtype, group[0].replaces, record=False), problem)
            if out is not None and all(distance(out, other) > same for _, _, other in found):
                off = distance(self.sample.mine, self.sample.part(out))
                found.append((off, group, out))
        least = max(same, BETTER * min((off for off, _, _ in found), default=0.0))
        if _information(self.sample.mine) < FEW_NUMBERS:
            least = min(least, LUCKY)
        return tuple(group for off, group, _ in found if off <= least)

    def pairs(self, slipped: bool = False) -> tuple[Explanation, ...]:
        """Two mistakes at once, those that are made often first. The second is made on what is
        known from making the first alone, so that only what both change is computed."""
        problem, dtype = self.sample, self.dtypes[0]
        least = INFORMATION if self.coarsest.itemsize == 2 else FEW_NUMBERS
        if self.budget.seconds <= 0 or _information(problem.mine) < least:
            return ()
        trials = self.trials(problem, dtype)
        if slipped:
            trials = trials + [one for one in self.slips if one.variation.slip == "usual"]
        begun = time.thread_time()
        until = begun + self.budget.seconds
        mine = self.target(problem)
        right = self.base(problem, dtype)

        @cache
        def with_one(one: Trial) -> Base:
            steps = one.variation.steps
            run = Run(dtype, one.variation.replaces, earlier=right.run.tape, differing=steps)
            return Base.of(run, problem)

        def said(one: Trial, other: Trial) -> Explanation:
            """Another convention is no mistake beside one."""
            both = one.variation.mistake, other.variation.mistake
            return tuple(x for x in both if not x.convention) or both

        # Where one of them nearly gives the array by itself there are no two.
        trials = [trial for trial in trials if trial.distance > 3]
        found: list[Explanation] = []
        near: list[tuple[float, Explanation, dict[str, Step]]] = []
        rareness = 0
        for one, other in _in_order(trials, slipped):
            if time.thread_time() > until:
                break
            rare = one.variation.rare + other.variation.rare
            if found and rare > rareness:
                break
            rareness = rare
            both = {**one.variation.replaces, **other.variation.replaces}
            steps = other.variation.steps
            out = evaluate(with_one(one).varied(both, steps), problem)
            off = mine.near if out is None else mine.distance(out)
            if off == 0 and self.fits(self.whole, both, dtype):
                found.append(said(one, other))
            elif 0 < off < mine.near:
                near.append((off, said(one, other), both))
        self.budget.seconds -= time.thread_time() - begun
        found = without_others(list(dict.fromkeys(found)))
        if not found:
            nearest = sorted(near, key=lambda pair: pair[0])[:3]
            finest = F32 if self.coarsest == F64 else self.coarsest
            found = [
                x
                for _, x, both in nearest
                if self.fits(problem, both, dtype, finest) and self.is_better(both)
            ]
        return tuple(found)

    def base(self, problem: Problem, dtype: Any) -> Base:
        """The run without a mistake."""
        key = id(problem), np.dtype(dtype)
        if key not in self._bases:
            self._bases[key] = Base.of(Run(dtype), replace(problem, until=float("inf")))
        return self._bases[key]

    def target(self, problem: Problem) -> Target:
        return Target(problem.mine, self.rtol, self.coarsest, problem.floor)

    def fits(
        self,
        problem: Problem,
        replaced: Mapping[str, Step],
        dtype: Any,
        level: np.dtype[Any] | None = None,
    ) -> bool:
        """Whether these steps give the results; up to what rounding to `level` changes, if that is
        given."""
        found = problem if level is not None else replace(problem, until=float("inf"))
        out = evaluate(Run(dtype, replaced, record=False), found)
        if out is None:
            return False
        spreads = None
        if level is not None:
            spreads = self.noise(problem, replaced).spreads(level)
            if spreads is None:  # it cannot be computed that exactly
                return False
        return self.target(problem).distance(out, spreads) == 0

    def noise(self, problem: Problem, replaced: Mapping[str, Step]) -> Noise:
        given: dict[str, Any] = {}
        if not replaced:  # whoever is right is told so, however long it takes
            base = self.base(problem, problem.dtype)
            given = {"_exact": base.right, "_steps": base.run.visited, "_tape": base.run.tape}
            problem = replace(problem, until=float("inf"))
        return Noise(
            lambda run: evaluate(run, problem),
            replaced,
            self.longest,
            problem.dtype,
            problem.mine,
            **given,
        )


def flat(results: list[Any]) -> Any:
    return np.concatenate([numbers(x).ravel() for x in results])


def without_others(found: list[Explanation]) -> list[Explanation]:
    """Without those in which another mistake, that alone is named, may stand for one."""

    def said(one: Mistake) -> str:
        known = CATALOGUE.variations.get(one.name)
        return known.unless if known is not None and known.unless else one.name

    names = [frozenset(one.name for one in group) for group in found]
    meant = [frozenset(map(said, group)) for group in found]
    return [
        group
        for group, own, other in zip(found, names, meant, strict=True)
        if other == own or other not in names
    ]


def in_turn(known: list[Variation]) -> list[Variation]:
    """The first mistake of each step, then the second of each, and so on; rare ones last."""
    count: Counter[tuple[bool, str]] = Counter()
    turns = []
    for one in known:
        count[kind := (one.rare, min(one.steps))] += 1
        turns.append((one.rare, count[kind]))
    return [known[i] for i in sorted(range(len(known)), key=turns.__getitem__)]


def _in_order(trials: list[Trial], slipped: bool) -> Iterator[tuple[Trial, Trial]]:
    """All pairs that can be made together: rare ones last, and of both the earlier step first. With
    slips, a mistake and a slip each."""
    pairs = [(a, b) for i, a in enumerate(trials) for b in trials[i + 1 :]]
    pairs.sort(key=lambda pair: pair[0].variation.rare + pair[1].variation.rare)
    for a, b in pairs:
        alike = bool(a.variation.slip) == bool(b.variation.slip)
        if a.variation.combines_with(b.variation) and alike != slipped:
            yield (a, b) if a.starts <= b.starts else (b, a)


def _information(results: list[Any]) -> int:
    values = np.unique(np.concatenate([numbers(x).ravel() for x in results]))
    return int(np.isfinite(values).sum())
