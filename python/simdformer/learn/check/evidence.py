"""What speaks for the right answer and what for a mistake, and which of them is believed.

Everything is measured by the rounding that it needs to be true. A result may be right to float64,
or right if somewhere on the way there is a float32, a float16, a bfloat16; it may be what a mistake
gives, to one of these. What needs the least is believed, and of two that need as much the right
answer. So rounding is no excuse where a mistake explains the array better, and a mistake no charge
where rounding explains it as well.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from simdformer.learn.check.compare import (
    Comparison,
    Float64,
    compare,
    finfo,
    numbers,
    row_size,
    whole_size,
)
from simdformer.learn.check.constants import Fit, fits
from simdformer.learn.check.problem import Problem, as_list
from simdformer.learn.check.rounding import F32, F64, Noise, coarser
from simdformer.learn.check.search import Budget, Explanation, Search
from simdformer.learn.program import Run, State

__all__ = ["Evidence", "Verdict", "also", "is_rounding", "rounded"]

MEASURED = 100_000  # numbers in the largest array of a run; of more, a sample is measured
# Units of the dtype, relative to the row: an error as small as this needs no explanation.
NOTHING = 8.0
MUCH = 2.5  # times the usual error of rounding: one of a coarser dtype is more likely
# Of the size of a row, or of the whole array if that is more: rounding in 16 bits excuses no larger
# error where it takes part, and where it does not, none larger is called nearly right.
MOST, NEARLY = 0.5, 0.1
BITS = 16  # a number that 1 / 16 of its power of two divides shows no dtype


@dataclass(frozen=True)
class Verdict:
    """Right or wrong, how far off, why, and what else is to be said.

    nearly : the dtype in which it would be right, though none of what is known of is of that dtype
    untried : how many mistakes of how many there was no time for
    """

    ok: bool
    found: list[Comparison]
    explanations: tuple[Explanation, ...] = ()
    remarks: tuple[str, ...] = ()
    untried: tuple[int, int] = (0, 0)
    nearly: str = ""


@dataclass(frozen=True)
class Evidence:
    """The results of a program, and what explains them.

    problem : the program, and the results
    dtypes : in which mistakes are made, the learner's own first
    tolerance, coarsest : as for `compare`
    longest : numbers in the longest sum
    budget : for pairs of mistakes
    """

    problem: Problem
    dtypes: list[Any]
    tolerance: float
    coarsest: np.dtype[Any]
    longest: int
    budget: Budget = field(default_factory=Budget)

    @cached_property
    def search(self) -> Search:
        return Search(
            self.problem, self.dtypes, self.tolerance, self.coarsest, self.longest, self.budget
        )

    # ---- for the right answer --------------------------------------------------------------------

    @cached_property
    def small(self) -> Problem:
        """The problem, or a sample of it, on which rounding is measured."""
        small = self.problem.sampled(MEASURED)
        return small if small is self.problem else self.search.sample

    @cached_property
    def noise(self) -> Noise:
        return self.search.noise(self.small, {})

    def spreads(self, right: list[Any], dtype: np.dtype[Any]) -> list[Float64] | None:
        """How far rounding to a dtype may take each number. A large problem is looked at in
        a sample, whose most sensitive row stands for all. In 16 bits it is bounded: an eps that
        becomes 0 there would excuse everything. Where terms cancel, their own size counts, not
        what is left of them."""
        found = self.unbounded(right, dtype)
        if found is not None and dtype.itemsize == 2:
            found = [np.minimum(one, MOST * sizes(x)) for one, x in zip(found, right, strict=True)]
        if found is None or self.problem.program.terms is None:
            return found
        return [np.maximum(one, x) for one, x in zip(found, self.of_terms(dtype), strict=True)]

    def of_terms(self, dtype: np.dtype[Any]) -> list[Any]:
        """How far rounding of the terms that are subtracted may move each number."""
        terms, s = self.problem.program.terms, self.last
        assert terms is not None
        s.unit = self.noise.times(dtype) * float(finfo(dtype).eps) / 2
        sizes = self.problem.part(as_list(terms.value(s)))
        return [0.0 if size is None else np.atleast_1d(s.unit * size) for size in sizes]

    @cached_property
    def last(self) -> State:
        """The last variables of the program."""
        last: State = Run(F64)(self.problem.program, **self.problem.variables)
        return last

    def unbounded(self, right: list[Any], dtype: np.dtype[Any]) -> list[Float64] | None:
        moved = self.noise.spreads(dtype)
        if moved is None or self.small is self.problem:
            return moved
        found = []
        for x, sample, spread in zip(right, self.noise.exact() or [], moved, strict=True):
            x, unit = np.atleast_1d(numbers(x)), float(finfo(dtype).eps)
            size = self.counted(np.atleast_1d(numbers(sample)))
            most = float(np.max(row_size(spread) / np.where(size == 0, 1, size), initial=0))
            found.append(self.counted(x) * most + NOTHING * unit * np.nan_to_num(np.abs(x)))
        return found

    def counted(self, x: Float64) -> Float64:
        """The size of each row, that of rows which are next to nothing as `compare` counts it."""
        size = row_size(x)
        counted: Float64 = np.maximum(size, self.problem.floor * whole_size(size))
        return counted

    def is_rounding(self, right: list[Any], dtype: np.dtype[Any]) -> bool:
        """Whether rounding to a coarser dtype explains the results: the size of the error and its
        place. Rounding that leaves nothing of a row explains nothing."""
        off = [
            compare(mine, x, 0.0, self.coarsest)
            for mine, x in zip(self.problem.mine, right, strict=True)
        ]
        unit = NOTHING * float(finfo(self.coarsest).eps)
        nothing = [unit * sizes(x) for x in right]  # what is left of 0 in the finest dtype
        if any((c.error > np.maximum(c.size, x)).any() for c, x in zip(off, nothing, strict=True)):
            return False
        spreads = self.spreads(right, dtype)
        return (
            spreads is not None
            and all(
                (c.error <= np.maximum(most, x)).all()
                for c, most, x in zip(off, spreads, nothing, strict=True)
            )
            and self.noise.like(self.small.mine, dtype)
        )

    def is_rounding_of_numbers(self, right: list[Any]) -> bool:
        """Whether nothing but numbers among the arguments, a learning rate or betas, are float32
        between arrays of float64."""
        if self.coarsest != F64 or self.small is not self.problem:
            return False
        spreads = self.noise.of_numbers(F32)
        return spreads is not None and all(
            (compare(mine, x, self.tolerance, F64, spread).ok)
            for mine, x, spread in zip(self.problem.mine, right, spreads, strict=True)
        )

    def nearly(self, right: list[Any], dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """The finest coarser dtype, of 16 bits, whose rounding is as large as the error. Where the
        error stands does not count: a larger one of the same kind is never nearer to right."""
        off = [
            compare(mine, x, 0.0, self.coarsest)
            for mine, x in zip(self.problem.mine, right, strict=True)
        ]
        if any((c.error > NEARLY * sizes(x)).any() for c, x in zip(off, right, strict=True)):
            return None
        for few in coarser(dtype):
            spreads = self.spreads(right, few) if few.itemsize == 2 else None
            if spreads is not None and all(
                (c.error <= most).all() for c, most in zip(off, spreads, strict=True)
            ):
                return few
        return None

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """Whether all numbers of the results are numbers of a dtype, and not just because they are
        short: a computation in few bits, widened."""
        for x in self.problem.mine:
            values = x[np.isfinite(x.astype(np.float64))]
            if (values.astype(dtype).astype(x.dtype) != values).any():
                return False
        parts = np.frexp(np.concatenate([numbers(x).ravel() for x in self.problem.mine]))[0]
        parts = parts[np.isfinite(parts) & (parts != 0)] * BITS
        return parts.size > 0 and bool((parts != np.round(parts)).mean() >= 0.5)

    def called(self, right: list[Any], dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype that has come in, where rounding to this one would be enough: one whose numbers
        all of them are, or the next one if the error is much larger than this one makes it."""
        possible = [dtype, *(few for few in coarser(dtype) if self.is_rounding(right, few))]
        for few in possible:
            if all((x.astype(few).astype(x.dtype) == x).all() for x in self.problem.mine):
                return few
        usual = (few for few in possible if self.noise.usual(self.small.mine, few) < MUCH)
        return next(usual, possible[-1])

    def decimals(self, right: list[Any]) -> int | None:
        """How many decimals all numbers have, where that is all that is wrong with them."""
        mine = [numbers(x) for x in self.problem.mine]
        if any(x.dtype.itemsize == 2 for x in self.problem.mine):
            return None
        if all((np.round(x, 1) == x).all() for x in mine):
            return None  # 0 and 1 are no figures that somebody rounded
        for decimals in range(2, 7):
            typed = [np.round(x, decimals) for x in mine]
            if all(np.allclose(x, y, 1e-7, 1e-9) for x, y in zip(mine, typed, strict=True)):
                half = 0.5001 * 10.0**-decimals
                off = (np.abs(x - numbers(y)) for x, y in zip(mine, right, strict=True))
                return decimals if all((x <= half).all() for x in off) else None
        return None

    # ---- against it ------------------------------------------------------------------------------

    def known(self, slips: bool = False) -> tuple[Explanation, ...]:
        """What gives the array, up to rounding to the coarsest dtype that took part."""
        search = self.search
        return (
            search.singles()
            or search.otherwise_written()
            or (search.slipped("usual") if slips else ())
            or self.constants(self.coarsest)
        )

    def near(self, level: np.dtype[Any]) -> tuple[Explanation, ...]:
        """What gives the array up to rounding to a dtype, and better than the right answer."""
        return self.search.nearest(level) or self.constants(level)

    def constants(self, level: np.dtype[Any]) -> tuple[Explanation, ...]:
        """A constant of another value, which rounding has not given it."""
        return tuple(
            fit.explanation
            for fit in self.fitted
            if self.search.fits(self.search.sample, fit.replaces, F64, level)
        )

    @cached_property
    def fitted(self) -> list[Fit]:
        return [fit for fit in fits(self.search.sample) if fit.rounded_to is None]

    # ---- both ------------------------------------------------------------------------------------

    def doubted(self, right: list[Any], found: list[Comparison]) -> Verdict:
        """An error within what is usual: right, unless it is more than rounding makes of this call,
        and a mistake explains it."""
        fine = Verdict(True, found)
        unit = float(finfo(self.coarsest).eps)
        if all((c.error <= NOTHING * unit * c.size).all() for c in found):
            return fine
        sample = self.search.sample
        noise = self.search.noise(sample, {})
        exact, allowed = noise.exact(), noise.spreads(self.coarsest)
        if exact is None or allowed is None:
            return fine
        off = [compare(a, b, 0.0, self.coarsest) for a, b in zip(sample.mine, exact, strict=True)]
        if all((c.error <= most).all() for c, most in zip(off, allowed, strict=True)):
            return fine
        rtol = max(
            float(np.max(most / np.where(c.size == 0, 1, c.size), initial=0))
            for c, most in zip(off, allowed, strict=True)
        )
        closer = replace(self, dtypes=[F64], tolerance=rtol)
        if rtol >= self.tolerance or not (known := closer.near(self.coarsest)):
            return fine
        seen = [
            compare(a, b, rtol, self.coarsest)
            for a, b in zip(self.problem.mine, right, strict=True)
        ]
        return fine if all(c.ok for c in seen) else Verdict(False, seen, known)


def sizes(x: Any) -> Float64:
    """The size of each row, or of the whole array where that is more."""
    size = row_size(np.atleast_1d(numbers(x)))
    of_rows: Float64 = np.maximum(size, whole_size(size))
    return of_rows


def is_rounding(known: Explanation) -> bool:
    """Whether what is named is a rounding by itself: norms, softmax, angles in too few bits."""
    return all(mistake.name.endswith(("in_float16", "in_bfloat16")) for mistake in known)


def rounded(few: np.dtype[Any], meant: np.dtype[Any]) -> str:
    return f"right to {few}, not to {meant}: somewhere on the way a {few} comes in"


def also(known: tuple[Explanation, ...]) -> tuple[str, ...]:
    """What would explain as well what rounding explains."""
    return tuple(
        "this would explain it as well: " + " and ".join(mistake.title for mistake in group)
        for group in known
    )
