"""A call and the learner's results for it: are they right, and if not, which mistake was made?"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake, words
from simdformer.learn.check.compare import (
    QUANTIZED,
    TOLERANCE,
    Comparison,
    coarsest,
    compare,
    float_dtypes,
    numbers,
)
from simdformer.learn.check.constants import is_factor
from simdformer.learn.check.describe import beside_labels, described, factor_of, nice, order, places
from simdformer.learn.check.evidence import Evidence, Verdict, also, is_rounding, rounded
from simdformer.learn.check.inputs import labels_of, of_other_labels, read_in_memory
from simdformer.learn.check.operation import Asked
from simdformer.learn.check.problem import Problem
from simdformer.learn.check.remarks import remarks
from simdformer.learn.check.report import Report, Where
from simdformer.learn.check.rounding import F64, coarser
from simdformer.learn.check.search import FEW_NUMBERS, Budget, Explanation
from simdformer.learn.check.shapes import NOT_SUMMED, changes, parts
from simdformer.learn.check.whole import done_to_all

__all__ = ["Check"]

FLOAT32_NUMBERS = (
    "right to float32, not to float64: a number among the arguments, such as a learning rate, has "
    "become a float32 on the way"
)
FOUND = words(
    """
    gradient (-)

    applied_twice: the whole step is done twice: its result went through the same formula again
        The gradient that came in had gone through this operation already.
        > Call the backward once for each forward.

    array (-)

    in_proportion: it is {times} times the right one
        One factor too many or too few: a mean over another number of rows, a scale, a learning
        rate.
        > Look for a number that multiplies or divides all of it.
    in_another_order: {order}
        What is computed is right; an index, a reshape or a transpose puts it elsewhere.
        > Look at the last lines: where each number is written.
    """
)
LARGE, ROWS = 100_000, 4  # arrays of so many numbers are told apart by so many rows, if they can be


@dataclass(frozen=True)
class Check:
    """One call, or another question, and the learner's results for it.

    until : on the clock of time.thread_time; afterwards no more mistakes are tried
    begun : called before each computation
    in_16_bits : whether the learner computes in them, whatever dtype his arrays have
    budget : for pairs of mistakes, shared by the gradients of a call
    typed : whether the results have a dtype; Python's numbers have none
    """

    call: Asked
    mine: list[Any]
    rtol: float | None
    until: float = float("inf")
    begun: Callable[[], None] = lambda: None
    in_16_bits: Callable[[], bool] = lambda: False
    budget: Budget = field(default_factory=Budget)
    typed: bool = True

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
        if not ok and not verdict.nearly and len(found) == 1 and not self.is_meant(explanations):
            explanations = self.done_to_one(right) or explanations
        if not ok:
            given = self.call.variables
            of_logits = np.shape(given.get("logits", 0.0)) == np.shape(right[worst]) != ()
            labels = given.get("labels") if of_logits else None
            where = _where(found[worst], self.mine[worst], right[worst], worst, axes, labels)
        if not ok and not explanations and not verdict.nearly:
            seen = self.describe(worst, right[worst])
            if verdict.untried[0]:
                few, many = verdict.untried
                seen.append(f"{few} of {many} known mistakes were not tried: there was no time")
        if not ok and len(found) > 1 and sum(not c.ok for c in found) < len(found):
            good = [str(i) for i, c in enumerate(found) if c.ok]
            some = f"number {good[0]} is" if len(good) == 1 else f"numbers {', '.join(good)} are"
            seen.append(f"of the {len(found)} results {some} right (counted from 0)")
        return Report(
            ok=ok,
            name=self.call.name,
            shape=self.mine[worst].shape,
            dtype=str(self.mine[worst].dtype),
            max_abs=max(c.max_abs for c in found),
            max_rel=max(float(c.relative.max(initial=0)) for c in found),
            where=where,
            explanations=explanations,
            remarks=verdict.remarks + self.remarks(ok),
            observations=tuple(seen),
            nearly=verdict.nearly,
            meant=str(self.coarsest),
            advice=self.call.in_bits.format(verdict.nearly) if verdict.nearly else "",
            axes=axes,
            mine=numbers(self.mine[worst]),
            right=numbers(right[worst]),
        )

    def remarks(self, ok: bool) -> tuple[str, ...]:
        return remarks(self.call, self.mine, self.typed, ok)

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
            compare(a, b, self.tolerance, self.coarsest, spread, self.call.floor)
            for a, b, spread in zip(mine, right, spreads or [None] * len(mine), strict=True)
        ]

    # ---- right or wrong --------------------------------------------------------------------------

    def verdict(self, right: list[Any]) -> Verdict:
        """What needs the least rounding to be true: see `evidence`. What another convention gives
        is right."""
        found = self.believed(right)
        for group in () if found.ok else found.explanations:
            if all(one.convention for one in group):
                return Verdict(True, found.found, (), tuple(map(by_convention, group)))
        return found

    def believed(self, right: list[Any]) -> Verdict:
        found = self.compare(self.mine, right)
        ok = all(c.ok for c in found)
        if self.call.program is None:
            return Verdict(ok, found)
        evidence = self.evidence(self.mine)
        if self.rtol is not None:
            known = () if ok else self.known(evidence, right) or self.others(evidence, right)
            return Verdict(ok, found, known)
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
        if evidence.is_rounding_of_numbers(right):
            return Verdict(True, found, (), (FLOAT32_NUMBERS,))
        exactly = self.known(evidence, right)
        if exactly and not all(map(is_rounding, exactly)):
            return Verdict(False, found, exactly)
        pairs: tuple[Explanation, ...] | None = None
        for few in coarser(self.coarsest):
            excused = self.takes_part(few, evidence)
            if not (excused or exactly) and pairs is None:
                # Nobody rounds to 16 bits for sure: they come first.
                pairs = self.others(evidence, right)
            if pairs:
                return Verdict(False, found, pairs)
            known = exactly or (evidence.near(few) if excused else ())
            # Where neither this dtype nor a coarser one takes part, rounding to it is no excuse.
            counts = any(self.takes_part(one, evidence) for one in (few, *coarser(few)))
            if counts and (excused or not known) and evidence.is_rounding(right, few):
                called = evidence.called(right, few)
                if excused or self.takes_part(called, evidence):
                    said = rounded(called, self.coarsest)
                    return Verdict(True, found, exactly, (said, *(() if exactly else also(known))))
            if known and not exactly:
                return Verdict(False, found, known)
        nearly = evidence.nearly(right, self.coarsest)
        if nearly is not None:
            return Verdict(False, found, exactly, nearly=str(nearly))
        known = exactly or (self.others(evidence, right) if pairs is None else pairs)
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
            self.call.asked,
            mine,
            self.call.arithmetic,
            self.until,
            self.begun,
            self.call.part,
            self.call.floor,
        )
        return Evidence(
            problem, dtypes, self.tolerance, self.coarsest, self.call.longest, self.budget
        )

    def known(self, evidence: Evidence, right: list[Any] | None = None) -> tuple[Explanation, ...]:
        """What explains the array without any other rounding than that of its dtype. right: where
        it has the right shape."""
        return evidence.known(slips=self.call.is_formula and not self.done_to_one(right))

    def others(self, evidence: Evidence, right: list[Any]) -> tuple[Explanation, ...]:
        """Two mistakes, where one of the catalogue or one slip does not explain the array."""
        if not self.call.is_formula:
            return evidence.search.pairs()
        if self.done_to_one(right):
            return ()
        again = np.shape(self.call.variables.get("grad", 0.0)) == np.shape(right[0])
        if again and evidence.search.gives({}, {"grad": right[0]}):
            return ((FOUND["gradient.applied_twice"],),)
        search = evidence.search
        if view := read_in_memory(self.call.variables, lambda given: search.gives({}, given)):
            return ((view,),)
        return (
            self.with_other_labels(evidence)
            or search.pairs()
            or search.slipped("many")
            or self.in_proportion(right)
            or search.slipped("factor")
            or search.pairs(slipped=True)
            or self.in_another_order(right)
        )

    def by_itself(self, right: Any) -> tuple[Explanation, ...]:
        """What was done to a single result, whatever it was computed by."""
        return self.done_to_one([right]) or self.in_proportion([right])

    def in_proportion(self, right: list[Any]) -> tuple[Explanation, ...]:
        """A single result that is some number times the right one."""
        if len(right) != 1 or np.size(right[0]) < FEW_NUMBERS:
            return ()
        mine, whole = numbers(self.mine[0]), numbers(right[0])
        factor = factor_of(mine, whole)[0]
        if not (np.isfinite(factor) and factor and self.same(mine, factor * whole)):
            return ()
        return ((FOUND["array.in_proportion"].about(times=nice(factor)),),)

    def in_another_order(self, right: list[Any]) -> tuple[Explanation, ...]:
        """The right numbers of a single result in wrong places."""
        if len(right) > 1:
            return ()
        said = order(numbers(self.mine[0]), numbers(right[0]), self.same, self.axes(0))
        return tuple((FOUND["array.in_another_order"].about(order=one),) for one in said)

    def with_other_labels(self, evidence: Evidence) -> tuple[Explanation, ...]:
        """Labels that a gradient shows, and another mistake beside them. The first position of each
        sequence may have one that stands nowhere in the call."""
        given, problem = self.call.variables, evidence.problem
        if "labels" not in given or (found := labels_of(given, self.mine[0])) is None:
            return ()
        other = of_other_labels(problem.program.name, given, found)
        if other is None:
            return ()
        if evidence.search.gives(other.replaces, {}):
            return ((other,),)
        relabelled = replace(problem, variables=problem.variables | {"labels": found})
        search = replace(evidence, problem=relabelled).search
        beside = search.singles() or self.in_proportion(search.base(relabelled, F64).right or [])
        return tuple((other, *group) for group in beside)

    def done_to_one(self, right: list[Any] | None) -> tuple[Explanation, ...]:
        """What was done to the whole of a single result."""
        if right is None or len(right) > 1:
            return ()
        return done_to_all(numbers(self.mine[0]), numbers(right[0]), self.same, self.call.sizes)

    def has_made(self, group: Explanation, results: list[Any] | None = None) -> bool:
        """Whether mistakes give the results, or what was done to the whole of them does."""
        if self.call.program is None:
            return False
        if results is None and not any(one.replaces for one in group):
            return group in self.done_to_one([np.asarray(x) for x in self.call.right()])
        replaced = {name: step for one in group for name, step in one.replaces.items()}
        search = self.evidence(self.mine if results is None else results).search
        return search.fits(search.sample, replaced, search.dtypes[0])

    def agrees_with(self, group: Explanation, right: Any) -> bool:
        """Whether mistakes give the result, or leave what is right as it is."""
        return self.has_made(group) or self.has_made(group, [right])

    def misshapen(self, right: list[Any], i: int) -> Report:
        """Wrong shapes: what was done to the axes, then what else is wrong."""
        mine, wanted = self.mine[i], right[i].shape

        def same(a: Any, b: Any) -> bool:
            return np.shape(a) == np.shape(b) and self.compare([a], [b])[0].ok

        def explain() -> tuple[Explanation, ...]:
            tries = changes(mine, wanted, self.call.floor > 0)
            for known, undone in tries:
                if same(undone, right[i]):
                    is_gradient = self.call.floor or known.name == NOT_SUMMED
                    asks = is_gradient and self.call.program is not None
                    of_step = self.known(self.evidence(self.mine)) if asks else ()
                    return of_step or ((known,),)
            for known in parts(mine, right[i], same):
                return ((known,),)
            if self.call.program is None:
                return ()
            evidence = self.evidence(self.mine)
            if found := self.known(evidence):
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
            remarks=self.remarks(False),
            expected=wanted,
        )

    def is_meant(self, known: tuple[Explanation, ...]) -> bool:
        """Whether the catalogue's words are the best: not of a factor, nor of an array of zeros,
        which many mistakes give that multiply by 0."""
        if not numbers(self.mine[0]).any():
            return any(one.name.endswith("_zero") for group in known for one in group)
        return not all(map(is_factor, known))

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


def by_convention(one: Mistake) -> str:
    return f"right by another convention: {one.title}. {one.cause}"


def _number(mine: Any, right: Any) -> Any:
    """A result as it is; where a number is right, an array that holds nothing but one is it."""
    return mine.reshape(()) if right.ndim == 0 and mine.shape == (1,) else mine


def _where(
    c: Comparison, mine: Any, right: Any, result: int, axes: tuple[str, ...], labels: Any
) -> Where:
    with np.errstate(all="ignore"):
        times = np.where(c.wrong, c.error / c.allowed, 0)
    at = np.unravel_index(np.argmax(times), times.shape)
    wrong = c.wrong.reshape(np.shape(mine))
    index = tuple(int(i) for i in at)[: np.ndim(mine)]
    return Where(
        worst=index,
        mine=float(mine[index]),
        right=float(right[index]),
        text=places(wrong, axes) if labels is None else beside_labels(wrong, labels, axes),
        wrong=int(wrong.sum()),
        of=wrong.size,
        result=result,
    )
