"""What rounding to a coarser dtype can do to a result: the operation's own steps are run again and
again, and everything that they leave is rounded to that dtype, up or down at random (Monte Carlo
arithmetic: Parker, "Monte Carlo arithmetic", 1997).

A number that the dtype has stays as it is; one between two of its numbers becomes either, the
nearer one more often. So an error has the size that it has at this step of this call: more where
numbers nearly cancel, where exp makes scores large, where a position multiplies a frequency.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.learn.check.compare import Float64, finfo, numbers, row_size
from simdformer.learn.program import Run, Step, Tape

__all__ = ["BF16", "F16", "F32", "F64", "Noise", "RandomRounding", "coarser"]

F64, F32, F16 = np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)

SAMPLES = 6  # of what rounding does
MORE = 24  # in 16 bits, as long as the right answer does not reach a number with fewer
FIRST, HOPELESS = 1, 30.0  # after so many, nothing is hoped for who is so many times too far off
# How many times the usual distance a number may be off. Among a million numbers with normal errors
# one is 4.9 times; the rest is for estimates made from six samples.
TIMES = 10.0
LONG_SUM = 2.0  # times sqrt(n): a sum of n numbers, one after the other, rounds n times
ENLARGED = 2**8  # times, where rounding to the dtype of the arithmetic is measured
NOTICED = 0.02  # of the usual error; what is off by less is not off
NUMBERS = "numbers"
ALIKE = 0.2  # of the places that rounding one step reaches, an error has to be in so many
# How much of the squares of an error a factor for each row may explain where no step brings one
# in; and what may be left of them where all rows have the same: rounding never makes that.
SYSTEMATIC, SAME = 0.9, 1e-3


def coarser(dtype: np.dtype[Any]) -> list[np.dtype[Any]]:
    """The dtypes that may come in where this one is meant, the finest first."""
    return {F64: [F32, F16, BF16], F32: [F16, BF16], F16: [BF16]}.get(dtype, [])


@dataclass
class RandomRounding:
    """Rounds everything that a run computes to a dtype, up or down at random.

    only : the full name of the one step whose results are rounded; NUMBERS are the numbers among
        the arguments; None is all of them, and the inputs are off by half a unit too, which is what
        sums in another order do
    times : how many times as much, a power of two
    """

    dtype: np.dtype[Any]
    random: np.random.Generator
    only: str | None = None
    times: int = 1

    def of_number(self, x: Any) -> Any:
        """A number among the arguments, or one that is made of them."""
        if self.only != NUMBERS or not isinstance(x, float):
            return x
        return float(either_neighbour(np.asarray(x, np.float64), self.dtype, self.random))

    def of_input(self, x: Any) -> Any:
        if self.only is not None:
            return x
        if hasattr(x, "beside"):  # a matrix that stays where it lies
            return x.beside(self.of_input)
        unit = float(finfo(self.dtype).eps) / 2 * self.times
        off = x * (1 + unit * self.random.uniform(-1, 1, np.shape(x)))
        return off.astype(x.dtype, copy=False)

    def of_result(self, step: str, x: Any, table: bool) -> Any:
        if self.only not in (None, step):
            return x
        if isinstance(x, list | tuple):
            items = [self.of_result(step, item, table) for item in x]
            return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
        if not isinstance(x, np.ndarray) or x.dtype not in (F64, F32):
            return x
        few = F32 if table and self.dtype in (F16, BF16) else self.dtype
        return either_neighbour(numbers(x), few, self.random, self.times).astype(x.dtype)


def either_neighbour(
    x: Float64, dtype: np.dtype[Any], random: np.random.Generator, times: int = 1
) -> Float64:
    """Each number as one of the two numbers of a dtype that it lies between; none overflows.
    `times`: those of a dtype whose numbers are so many times as far apart."""
    if dtype == F64:
        return x * (1 + 2.0**-52 * random.integers(-1, 2, x.shape))
    dropped = 52 - int(finfo(dtype).nmant) + times.bit_length() - 1
    bits = np.ascontiguousarray(x).reshape(x.shape).view(np.int64)
    noise = random.integers(0, 1 << dropped, x.shape)
    rounded: Float64 = ((bits + noise) & -(1 << dropped)).view(np.float64)
    if dtype == F16:  # its smallest numbers are all as far apart
        tiny = float(finfo(dtype).smallest_subnormal)
        small = np.abs(x) < float(finfo(dtype).tiny)
        rounded = np.where(small, tiny * np.floor(x / tiny + random.random(x.shape)), rounded)
    return rounded


Evaluate = Callable[[Run], list[Any] | None]


@dataclass
class Noise:
    """What rounding may do to the results of a program.

    evaluate : runs it
    replaced : steps that are done otherwise
    longest : numbers in the longest sum
    dtype : of the arithmetic. In float32 rounding to float32 is measured many times as large as it
        is: so small an error grows in proportion
    mine : results that are to be explained; where the first sample leaves no hope of that, there
        are no more
    """

    evaluate: Evaluate
    replaced: Mapping[str, Step] = field(default_factory=dict)
    longest: int = 1
    dtype: np.dtype[Any] = F64
    mine: list[Any] | None = None
    _exact: list[Any] | None = None
    _steps: Set[str] = frozenset()
    _tape: Tape | None = None
    _spreads: dict[np.dtype[Any], list[Float64] | None] = field(default_factory=dict)

    def exact(self) -> list[Any] | None:
        """The results without rounding."""
        if self._exact is None:
            run = Run(self.dtype, self.replaced)
            self._exact, self._steps, self._tape = self.evaluate(run), run.visited, run.tape
        return self._exact

    def spreads(self, dtype: np.dtype[Any]) -> list[Float64] | None:
        """How far each number of each result may be off; None if it cannot be computed."""
        if dtype not in self._spreads:
            self._spreads[dtype] = self._measured(dtype)
        return self._spreads[dtype]

    def times(self, dtype: np.dtype[Any]) -> float:
        """How many times the usual distance is allowed; long sums are made in 32 bits."""
        return TIMES if dtype.itemsize == 2 else max(TIMES, LONG_SUM * self.longest**0.5)

    def of_numbers(self, dtype: np.dtype[Any]) -> list[Float64] | None:
        """The same where nothing but the numbers among the arguments are of that dtype, a learning
        rate or eps, and what is made of them."""
        return self._measured(dtype, NUMBERS)

    def _measured(self, dtype: np.dtype[Any], only: str | None = None) -> list[Float64] | None:
        exact, random = self.exact(), np.random.default_rng(1)
        if exact is None:
            return None
        squares = [np.zeros(np.shape(x)) for x in exact]
        enlarged = ENLARGED if dtype == self.dtype == F32 else 1
        allowed: list[Float64] = []
        for made in range(1, MORE + 1):
            rounding = RandomRounding(dtype, random, only, enlarged)
            moved = self.evaluate(Run(self.dtype, self.replaced, record=False, rounding=rounding))
            if moved is None:
                return None
            for total, x, y in zip(squares, exact, moved, strict=True):
                total += np.square(_difference(x, y) / enlarged)
            now = [
                self._allowed(x, total / made, dtype, only is None)
                for x, total in zip(exact, squares, strict=True)
            ]
            # What a few samples allow stands: more of them are there for what those have spared.
            allowed = list(map(np.maximum, allowed, now)) if made > SAMPLES else now
            if made == FIRST and self._is_hopeless(exact, allowed):
                break
            enough = dtype.itemsize > 2 or self.replaced or not self._is_off(exact, allowed)
            if made >= SAMPLES and enough:
                break
        return allowed

    def _allowed(self, exact: Any, squares: Float64, dtype: np.dtype[Any], stored: bool) -> Float64:
        """From the mean squares of what rounding does to a result. `stored`: it is rounded too."""
        usual = np.atleast_1d(np.sqrt(squares))
        usual = np.maximum(usual, row_size(usual))
        unit = float(finfo(dtype).eps) / 2
        own = stored * unit * np.nan_to_num(np.abs(np.atleast_1d(numbers(exact))), posinf=0.0)
        allowed: Float64 = self.times(dtype) * np.maximum(usual, own)
        return allowed

    def _is_hopeless(self, exact: list[Any], allowed: list[Float64]) -> bool:
        """Whether the results are so far off that more samples change nothing. One may spare a row
        in which numbers cancel: what it does to the worst row counts for all."""

        def of_all(most: Float64, x: Any) -> Float64:
            size = row_size(np.atleast_1d(numbers(x)))
            size = np.where(size == 0, 1, size)
            return HOPELESS * np.max(most / size, initial=0) * size

        return self._is_off(exact, [of_all(*both) for both in zip(allowed, exact, strict=True)])

    def _is_off(self, exact: list[Any], allowed: list[Float64]) -> bool:
        """Whether a number of the results to be explained is further off than that."""
        if self.mine is None or [np.shape(x) for x in exact] != [np.shape(x) for x in self.mine]:
            return False
        for x, y, most in zip(exact, self.mine, allowed, strict=True):
            off = np.abs(_difference(x, y))
            if (np.isfinite(off) & (off > most)).any():
                return True
        return False

    def usual(self, mine: list[Any], dtype: np.dtype[Any]) -> float:
        """How many times the usual distance numbers are off, as a root mean square."""
        spreads, exact = self.spreads(dtype), self.exact()
        total, count = 0.0, 1
        for x, y, spread in zip(mine, exact or [], spreads or [], strict=True):
            off = np.atleast_1d(_difference(y, x))
            times = off[spread > 0] / spread[spread > 0]
            total, count = total + float(np.square(times).sum()), count + times.size
        return float(self.times(dtype) * (total / count) ** 0.5)

    # ---- whether an error looks like one of rounding ---------------------------------------------

    def like(self, mine: list[Any], dtype: np.dtype[Any]) -> bool:
        """Whether the errors stand where rounding any one of the steps puts them, and are no
        factor that none of them brings in."""
        shape = self._shape(mine, dtype)
        if shape.is_one_factor:
            return False
        return any(shape.is_like(other) for other in self._of_single_steps(dtype))

    def _shape(self, results: list[Any], dtype: np.dtype[Any]) -> "Shape":
        """How the errors of results are distributed."""
        spreads, exact = self.spreads(dtype), self.exact()
        assert exact is not None
        assert spreads is not None
        usual = [spread / self.times(dtype) for spread in spreads]
        return Shape.of(results, exact, usual)

    def _of_single_steps(self, dtype: np.dtype[Any]) -> Iterator["Shape"]:
        random = np.random.default_rng(2)
        for step in sorted(self._steps):
            run = Run(
                self.dtype,
                self.replaced,
                earlier=self._tape,
                differing={step},
                record=False,
                rounding=RandomRounding(dtype, random, only=step),
            )
            moved = self.evaluate(run)
            if moved is not None and (shape := self._shape(moved, dtype)).reach > 0:
                yield shape


@dataclass(frozen=True)
class Shape:
    """How an error is distributed.

    rows : how many there are
    reach : the share of numbers that are off
    factor, row_factor : the share of its squares that one factor explains, or one for each row
    """

    rows: int
    reach: float
    factor: float
    row_factor: float

    @classmethod
    def of(cls, moved: list[Any], exact: list[Any], usual: list[Float64]) -> "Shape":
        """usual : the error that rounding makes of each number as a rule"""
        rows, errors, reached = [], [], []
        for x, y, spread in zip(exact, moved, usual, strict=True):
            x = np.atleast_1d(numbers(x))
            size = row_size(x)
            size = np.where(size == 0, 1, size)
            rows.append(np.nan_to_num(x / size, posinf=0.0, neginf=0.0).reshape(-1, x.shape[-1]))
            error = np.atleast_1d(_difference(x, numbers(y).reshape(x.shape))) / size
            error = np.where(np.isfinite(error), error, 0)
            errors.append(error.reshape(-1, x.shape[-1]))
            reached.append((np.abs(error) * size > NOTICED * spread).ravel())
        off = np.concatenate([np.abs(e).ravel() for e in errors])
        squares = max(float(np.square(off).sum()), np.finfo(float).tiny)
        along = sum(float((e * r).sum()) for e, r in zip(errors, rows, strict=True))
        length = sum(float((r * r).sum()) for r in rows) or 1.0
        by_row = sum(
            float((np.square((e * r).sum(-1)) / np.maximum((r * r).sum(-1), 1e-300)).sum())
            for e, r in zip(errors, rows, strict=True)
        )
        reach = float(np.concatenate(reached).mean()) if off.size else 0.0
        count = sum(map(len, rows))
        return cls(count, reach, along * along / length / squares, by_row / squares)

    @property
    def is_one_factor(self) -> bool:
        return self.rows > 1 and self.factor > 1 - SAME

    def is_like(self, other: "Shape") -> bool:
        return (
            self.reach >= ALIKE * other.reach
            and not self.is_one_factor
            and (self.row_factor < SYSTEMATIC or other.row_factor > SYSTEMATIC / 2)
        )


def _difference(x: Any, y: Any) -> Float64:
    with np.errstate(all="ignore"):
        x, y = numbers(x), numbers(y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        found: Float64 = np.where(same, 0, y - x)
    return np.where(np.isnan(found), np.inf, found)
