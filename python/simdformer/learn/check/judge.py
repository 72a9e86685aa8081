"""`simdformer.check`: is this array right, and if not, which mistake was made?"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.asking import SWAPPED, same_array
from simdformer.learn.check.compare import (
    QUANTIZED,
    TOLERANCE,
    Comparison,
    coarsest,
    compare,
    float_dtypes,
    numbers,
)
from simdformer.learn.check.describe import described, places
from simdformer.learn.check.evidence import Evidence, Verdict, also, is_rounding, rounded
from simdformer.learn.check.operation import Asked, Call, as_array, bind, takes
from simdformer.learn.check.problem import Problem
from simdformer.learn.check.remarks import remarks
from simdformer.learn.check.report import Report, Where
from simdformer.learn.check.rounding import coarser
from simdformer.learn.check.search import Explanation
from simdformer.learn.check.shapes import changes, parts
from simdformer.learn.check.twice import answer, is_coarse
from simdformer.learn.check.whole import done_to_all
from simdformer.types import DTypeLike

__all__ = ["Check", "check"]

LARGE, ROWS = 100_000, 4  # arrays of so many numbers are told apart by so many rows, if they can be


def check(
    op: Any,
    mine: Any,
    *args: Any,
    rtol: float | None = None,
    dtype: DTypeLike | None = None,
    **kwargs: Any,
) -> Report:
    """Is `mine` what this operation gives for these arguments, and if not, which mistake was made?

    Parameters
    ----------
    op : function, str or layer
        An operation of the package (`sf.rope`), a gradient (`sf.backward.rope`), the name of one
        ("rope"), or a layer of `sf.nn`.
    mine : array, a tuple or list of arrays, or a function
        Your result: a numpy array, a list, or a tensor of torch or another library, on the CPU. A
        tuple or list of them where the call has several results (`return_weights=True`, a list of
        weights). A function is called with the same arguments, twice: two answers for one call
        (dropout left on) and changed arguments are mistakes too. Where only 16 bits would make its
        result right, it is called with slightly other arrays, to see whether it computes in them.
    *args, **kwargs
        The arguments of the call that you meant to make: `sf.check(sf.rope, mine, q,
        layout="half")`. They are checked as the operation itself checks them.
    rtol : float, optional
        How large an error may be, relative to the root mean square of its row (what lies along the
        last axis). Without it: 1e-4, where float32 is the coarsest dtype among inputs and `mine`,
        1e-9 for float64, 5e-3 for float16, 4e-2 for bfloat16; 3e-4 beside a quantised weight, where
        `linear` rounds x to 16 bits; and what rounding every step of this call may do, measured.
        An error that rounding to a coarser dtype explains is right, with a remark that names it,
        if float32 is that dtype, or one of 16 bits that takes part; else it is nearly right.
    dtype : dtype, optional
        In which your code computes, where no array shows it, such as bfloat16 under autocast. (It
        is `embedding`'s own argument too.) A function is tried out.

    Returns
    -------
    Report
        True when the result is right, not when it is only nearly right. `.diagnosis` names the
        mistakes that give exactly this array, with cause and fix; it is empty when none of those
        that are known does, and then `.observations` say what can be said. See `Report`.

    Raises
    ------
    TypeError
        op is nothing that can be checked; `mine` holds no numbers, or another number of results
        than the call has; `out` is given.
    ValueError, TypeError, IndexError, BufferError
        What the operation itself raises for these arguments.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
    >>> mine = np.exp(x) / np.exp(x).sum(axis=0, keepdims=True)
    >>> report = sf.check(sf.softmax, mine, x)
    >>> report.ok
    False
    >>> report.diagnosis[0].title
    'the softmax runs over another axis'
    """
    declared = None if dtype is None else np.dtype(dtype)
    if declared is not None and takes(op, "dtype"):
        kwargs["dtype"] = declared
    call = bind(op, args, kwargs)
    impure: tuple[Mistake, ...] = ()
    function = None
    if callable(mine) and not hasattr(mine, "__dlpack__"):
        function = mine
        mine, impure = answer(function, args, kwargs)

    def in_16_bits() -> bool:
        if declared is not None:
            return declared.itemsize == 2
        return function is not None and is_coarse(function, args, kwargs)

    report = Check(call, _results(mine, call), rtol, in_16_bits=cache(in_16_bits)).report()
    if not (report.ok or report.explanations) and function is None and is_swapped(op, call, mine):
        report = replace(report, explanations=((SWAPPED,),), observations=(), nearly="")
    if impure:
        reasons = tuple((mistake,) for mistake in impure)
        report = replace(report, ok=False, explanations=reasons, observations=())
    return report


def is_swapped(op: Any, call: Call, mine: Any) -> bool:
    """Whether the first argument is what the operation gives for the learner's result."""
    if not call.args or call.several or not isinstance(call.args[0], np.ndarray):
        return False
    try:
        other = bind(op, (mine, *call.args[1:]), call.kwargs)
    except (ValueError, TypeError, IndexError, BufferError):
        return False
    dtype = coarsest(float_dtypes([*other.inputs, *call.inputs]))
    return same_array(call.args[0], other.results[0], TOLERANCE[dtype], dtype)


@dataclass(frozen=True)
class Check:
    """One call, or another question, and the learner's results for it.

    until : on the clock of time.thread_time; afterwards no more mistakes are tried
    begun : called before each computation
    in_16_bits : whether the learner computes in them, whatever dtype his arrays have
    """

    call: Asked
    mine: list[Any]
    rtol: float | None
    until: float = float("inf")
    begun: Callable[[], None] = lambda: None
    in_16_bits: Callable[[], bool] = lambda: False

    @np.errstate(all="ignore")  # overflow and NaN are what is looked at here
    def report(self) -> Report:
        right = [np.asarray(x) for x in self.call.right()]
        return replace(self, mine=list(map(_number, self.mine, right))).beside(right)

    def beside(self, right: list[Any]) -> Report:
        """The report of results that may be compared with the right ones."""
        shapes = [(a.shape, b.shape) for a, b in zip(self.mine, right, strict=True)]
        if misshapen := [i for i, (a, b) in enumerate(shapes) if a != b]:
            return self.misshapen(right, misshapen[0])
        verdict = self.verdict(right)
        ok, found = verdict.ok, verdict.found
        worst = max(range(len(found)), key=lambda i: (not found[i].ok, found[i].excess), default=0)
        axes = self.axes(worst)
        where, seen, explanations = None, [], verdict.explanations
        if not ok and not explanations and not verdict.nearly and len(found) == 1:
            explanations = done_to_all(numbers(self.mine[0]), numbers(right[0]), self.same)
        if not ok:
            where = _where(found[worst], self.mine[worst], right[worst], worst, axes)
        if not ok and not explanations and not verdict.nearly:
            seen = self.describe(worst, right[worst])
            if verdict.untried[0]:
                few, many = verdict.untried
                seen.append(f"{few} of {many} known mistakes were not tried: there was no time")
        if not ok and len(found) > 1 and sum(not c.ok for c in found) < len(found):
            good = [str(i) for i, c in enumerate(found) if c.ok]
            seen.append(f"of the {len(found)} results, right: number {', '.join(good)} (from 0)")
        return Report(
            ok=ok,
            name=self.call.name,
            shape=self.mine[worst].shape,
            dtype=str(self.mine[worst].dtype),
            max_abs=max(c.max_abs for c in found),
            max_rel=max(float(c.relative.max(initial=0)) for c in found),
            where=where,
            explanations=explanations,
            remarks=verdict.remarks + remarks(self.call, self.mine, ok),
            observations=tuple(seen),
            nearly=verdict.nearly,
            meant=str(self.coarsest),
            advice=self.call.in_bits.format(verdict.nearly) if verdict.nearly else "",
            axes=axes,
            mine=numbers(self.mine[worst]),
            right=numbers(right[worst]),
        )

    # ---- the measure -----------------------------------------------------------------------------

    @property
    def coarsest(self) -> np.dtype[Any]:
        return coarsest(float_dtypes([*self.call.inputs, *self.mine]))

    @property
    def tolerance(self) -> float:
        if self.rtol is not None:
            return self.rtol
        usual = TOLERANCE[self.coarsest]
        return max(usual, QUANTIZED) if self.call.is_quantized else usual

    def compare(self, mine: list[Any], right: list[Any], spreads: Any = None) -> list[Comparison]:
        return [
            compare(a, b, self.tolerance, self.coarsest, None if spreads is None else spreads[i])
            for i, (a, b) in enumerate(zip(mine, right, strict=True))
        ]

    # ---- right or wrong --------------------------------------------------------------------------

    def verdict(self, right: list[Any]) -> Verdict:
        """What needs the least rounding to be true: see `evidence`."""
        found = self.compare(self.mine, right)
        ok = all(c.ok for c in found)
        if self.call.program is None:
            return Verdict(ok, found)
        evidence = self.evidence(self.mine)
        if self.rtol is not None:
            return Verdict(ok, found, () if ok else self.known(evidence) or self.pairs(evidence))
        if ok:
            return (
                Verdict(True, found) if self.call.is_quantized else evidence.doubted(right, found)
            )
        found = self.compare(self.mine, right, evidence.spreads(right, self.coarsest))
        if all(c.ok for c in found):
            return Verdict(True, found)
        return self.of_wrong(evidence, right, found)

    def of_wrong(self, evidence: Evidence, right: list[Any], found: list[Comparison]) -> Verdict:
        """An error that is larger than those of the dtypes which took part."""
        if (decimals := evidence.decimals(right)) is not None:
            said = f"right to the {decimals} decimals that your numbers have: typed in, or printed?"
            return Verdict(True, found, (), (said,))
        exactly = self.known(evidence)
        if exactly and not all(map(is_rounding, exactly)):
            return Verdict(False, found, exactly)
        pairs: tuple[Explanation, ...] | None = None
        for few in coarser(self.coarsest):
            excused = self.takes_part(few, evidence)
            if not (excused or exactly) and pairs is None:
                pairs = self.pairs(evidence)  # nobody rounds to 16 bits for sure: they come first
            if pairs:
                return Verdict(False, found, pairs)
            known = exactly or evidence.near(few)
            if (excused or not known) and evidence.is_rounding(right, few):
                called = evidence.called(right, few)
                if excused or self.takes_part(called, evidence):
                    said = rounded(called, self.coarsest)
                    return Verdict(True, found, exactly, (said, *(() if exactly else also(known))))
            if known and not exactly:
                return Verdict(False, found, known)
        nearly = evidence.nearly(right, self.coarsest)
        if nearly is not None:
            return Verdict(False, found, exactly, nearly=str(nearly))
        known = exactly or (self.pairs(evidence) if pairs is None else pairs)
        return Verdict(False, found, known, untried=evidence.search.untried)

    def takes_part(self, dtype: np.dtype[Any], evidence: Evidence) -> bool:
        """Whether somebody may compute in a dtype that no argument has: in 32 bits anybody may, in
        16 where it was said, where the learner's function does, or where his numbers are of it."""
        return dtype.itemsize > 2 or evidence.holds(dtype) or self.in_16_bits()

    def evidence(self, mine: list[Any]) -> Evidence:
        assert self.call.program is not None
        own = coarsest(float_dtypes(self.mine))
        inputs = coarsest(float_dtypes(self.call.inputs))
        dtypes = [np.dtype(np.float32), own] if own.itemsize == 2 else [own]
        if own == np.float64 and inputs != np.float64:
            dtypes.append(np.dtype(np.float32))
        problem = Problem(
            self.call.program,
            self.call.variables,
            mine,
            self.call.arithmetic,
            self.until,
            self.begun,
        )
        return Evidence(problem, dtypes, self.tolerance, self.coarsest, self.call.longest)

    def known(self, evidence: Evidence) -> tuple[Explanation, ...]:
        """What explains the array without any other rounding than that of its dtype."""
        return evidence.known()

    def pairs(self, evidence: Evidence) -> tuple[Explanation, ...]:
        return evidence.search.pairs()

    def misshapen(self, right: list[Any], i: int) -> Report:
        """Wrong shapes: what was done to the axes, then what else is wrong."""
        mine, wanted = self.mine[i], right[i].shape

        def same(a: Any, b: Any) -> bool:
            return np.shape(a) == np.shape(b) and self.compare([a], [b])[0].ok

        def explain() -> tuple[Explanation, ...]:
            tries = changes(mine, wanted)
            for known, undone in tries:
                if same(undone, right[i]):
                    return ((known,),)
            for known in parts(mine, right[i], same):
                return ((known,),)
            if self.call.program is None:
                return ()
            if found := self.known(self.evidence(self.mine)):
                return found
            for known, undone in tries:
                others = [*self.mine[:i], undone, *self.mine[i + 1 :]]
                if found := self.known(self.evidence(others)):
                    return tuple((known, *group) for group in found)
            return ()

        return Report(
            ok=False,
            name=self.call.name,
            shape=mine.shape,
            dtype=str(mine.dtype),
            max_abs=float("nan"),
            max_rel=float("nan"),
            explanations=explain(),
            remarks=remarks(self.call, self.mine, False),
            expected=wanted,
        )

    def describe(self, i: int, right: Any) -> list[str]:
        return described(numbers(self.mine[i]), numbers(right), self.same, self.axes(i))

    def same(self, a: Any, b: Any) -> bool:
        """By the measure of the check."""
        if np.shape(a) != np.shape(b):
            return False
        if np.size(a) > LARGE:  # most are told apart by a few rows
            some, others = np.squeeze(a), np.squeeze(b)
            for row in np.linspace(0, len(some) - 1, ROWS if some.ndim > 1 else 0).astype(int):
                if not self.compare([some[row]], [others[row]])[0].ok:
                    return False
        return self.compare([a], [b])[0].ok

    def axes(self, i: int) -> tuple[str, ...]:
        """The names of the axes of result number i."""
        program = self.call.program
        if program is None:
            return ()
        if i == 0 or self.call.name != "scaled_dot_product_attention":
            return program.axes
        return ("head", "query") if self.mine[i].ndim < self.mine[0].ndim else (
            "head", "query", "key"
        )  # fmt: skip


def _results(mine: Any, call: Call) -> list[Any]:
    """The learner's results as arrays, as many as the call has."""
    count = len(call.results)
    if call.name == "rope_frequencies" and not isinstance(mine, tuple | list):
        mine = (mine, call.results[1])  # the frequencies alone will do
    if call.several:
        if not isinstance(mine, tuple | list) or len(mine) != count:
            found = len(mine) if isinstance(mine, tuple | list) else type(mine).__name__
            raise TypeError(
                f"check: mine is {found}, needs a tuple or list of {count} results, in the order "
                f"in which {call.name} gives them"
            )
        return [_array(x) for x in mine]
    if isinstance(mine, tuple) and any(np.ndim(as_array(x)) for x in mine):
        raise TypeError(
            f"check: mine is a tuple of {len(mine)}, needs one array: this call has one result; "
            "pass the part that is meant"
        )
    return [_array(mine)]


def _number(mine: Any, right: Any) -> Any:
    """A result as it is; where a number is right, an array that holds nothing but one is it."""
    return mine.reshape(()) if right.ndim == 0 and mine.shape == (1,) else mine


def _array(mine: Any) -> Any:
    if mine is None:
        raise TypeError("check: mine is None, needs an array; does your function end with return?")
    if mine is ...:
        raise TypeError("check: mine is `...`, needs an array; write your code in its place")
    try:
        x = np.asarray(as_array(mine))
    except ValueError as error:
        raise TypeError(f"check: mine is no array of numbers: {error}") from None
    if x.dtype not in TOLERANCE and x.dtype.kind not in "biufc":
        raise TypeError(
            f"check: mine is {type(mine).__name__} of dtype {x.dtype}, needs an array of numbers"
        )
    if x.dtype.kind == "c":
        raise TypeError(
            "check: mine is complex, needs real numbers; np.stack([z.real, z.imag], axis=-1) "
            "takes pairs apart"
        )
    return x if x.dtype in TOLERANCE or x.dtype == bool else x.astype(np.float64)


def _where(c: Comparison, mine: Any, right: Any, result: int, axes: tuple[str, ...]) -> Where:
    with np.errstate(all="ignore"):
        times = np.where(c.wrong, c.error / c.allowed, 0)
    at = np.unravel_index(np.argmax(times), times.shape)
    wrong = c.wrong.reshape(np.shape(mine))
    index = tuple(int(i) for i in at)[: np.ndim(mine)]
    return Where(
        worst=index,
        mine=float(mine[index]),
        right=float(right[index]),
        text=places(wrong, axes),
        wrong=int(wrong.sum()),
        of=wrong.size,
        result=result,
    )
