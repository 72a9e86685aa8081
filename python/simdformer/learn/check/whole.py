"""What was done to the right array as a whole, whatever the operation: dropout, a part left out,
and, to a gradient, a factor."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake, words
from simdformer.learn.check.compare import Float64
from simdformer.learn.check.describe import factor_of
from simdformer.learn.check.report import numbers_are

__all__ = ["done_to_all", "no_numbers"]

ENOUGH = 16  # numbers, fewer of which show no share of zeros
CERTAIN = 4.0  # standard errors of a share

FIRST_ONLY = {
    "0": "The result was made with np.zeros, and only its first entry is filled",
    "copies of it": "The first one was computed and broadcast",
}
FOUND = words(
    """
    array (-)

    dropout: dropout is left on, with p = {p:.2g}
        {share:.0%} of the numbers are exactly 0, the others {factor:.4g} times the right ones,
        which is 1/(1-p).
        > Switch dropout off where nothing is learned: model.eval(), or dropout_p=0.
    broken_off: it is 0 from {name} {kept} on
        {kept} of {count} are computed: a loop ends too early, a block is left out, or a kernel has
        a limit.
        > Compute all of them.
    first_sequence_only (01 §2): only the first sequence is computed: the others are {what}
        {why}: a loop that runs once, or an index 0.
        > Compute every entry of the first axis.

    gradient (-)

    not_finite: {some} {word}{rest}
        0 / 0, inf - inf or 0 * inf: a row that sees nothing, the logarithm of 0, exp of a large
        number. One NaN spreads to all that is summed with it.
        > Select with np.where before it is summed: a product with 0 keeps NaN.
    left_out: {name} {few} of axis {axis} {are} 0, the others are right
        Taken for padding, hidden by a mask, or beyond the end of a loop: what went into the forward
        gets a gradient.
        > Leave out only what the forward left out.
    zero: it is 0 everywhere
        Nothing comes back: detach() or no_grad cut the way, or the array is never filled.
        > Write what is computed into the result.
    negated: the sign is flipped
        The gradient points uphill, and the optimizer subtracts it: a minus is in it already, or a
        difference was taken the other way round.
        > Turn the sign.
    multiplied_by_root: it is multiplied by sqrt({size}), {name}
        A scale of another operation, or one that is in it already.
        > Leave out the factor.
    divided_by_root: it is divided by sqrt({size}), {name}
        as above
        > Leave out the factor.
    multiplied: it is multiplied by {size}{of}
        {why}
        > Leave out the factor {size}.
    divided: it is divided by {size}{of}
        The mean is in the loss already, and so in the gradient that comes in.
        > Sum; do not divide by {size}.
    """
)
TWICE = "It was added twice, or a sum stands where the mean is meant."
SUMMED = "A sum stands where the mean is meant, or the factor is in the loss already."


def done_to_all(
    mine: Float64,
    right: Float64,
    same: Callable[[Any, Any], bool],
    sizes: Mapping[str, int] | None = None,
) -> tuple[tuple[Mistake, ...], ...]:
    """Explanations of an array of the right shape. same(a, b): by the measure of the check. sizes:
    the lengths that a gradient may have been divided by; None of other results."""
    with np.errstate(all="ignore"):
        found = [*_dropout(mine, right, same), *_first_sequence(mine, right, same)]
        found += [] if found else _broken_off(mine, right, same)
        if sizes is not None:
            found += [] if found else _left_out(mine, right, same)
            found += no_numbers(mine, right, same) or _factor(mine, right, same, sizes)
    return tuple((mistake,) for mistake in found)


def _dropout(mine: Float64, right: Float64, same: Callable[[Any, Any], bool]) -> Iterator[Mistake]:
    """Elements are exactly 0, or the right ones times 1/(1-p), p the share of the zeros."""
    if not (np.isfinite(mine).all() and np.isfinite(right).all()):
        return
    there = right != 0
    kept = there & (mine != 0)
    if there.sum() < ENOUGH or not kept.any() or (kept == there).all():
        return
    factor = float((mine * right)[kept].sum() / np.square(right[kept]).sum())
    p = 1 - 1 / factor if factor > 1 else 0.0
    share = 1 - kept.sum() / there.sum()
    likely = abs(share - p) <= CERTAIN * np.sqrt(p * (1 - p) / there.sum())
    if likely and p > 0 and same(mine, np.where(kept, factor * right, 0)):
        yield FOUND["array.dropout"].about(p=p, share=share, factor=factor)


def _broken_off(
    mine: Float64, right: Float64, same: Callable[[Any, Any], bool]
) -> Iterator[Mistake]:
    """Nothing is computed from some place on."""
    for axis, name in ((-1, "column"), (-2, "row"), (0, "entry"))[: mine.ndim]:
        count = mine.shape[axis]
        others = tuple(i for i in range(mine.ndim) if i != axis % mine.ndim)
        filled = np.flatnonzero((mine != 0).any(axis=others))
        kept = int(filled[-1]) + 1 if filled.size else 0
        first = (*(slice(None),) * (axis % mine.ndim), slice(kept))
        lost = (right != 0).any(axis=others)[kept:]
        if 0 < kept < count and lost.all() and same(mine[first], right[first]):
            yield FOUND["array.broken_off"].about(name=name, kept=kept, count=count)
            return


def no_numbers(
    mine: Float64, right: Float64, same: Callable[[Any, Any], bool]
) -> tuple[Mistake, ...]:
    """What a gradient shows that is 0, or not finite in places and right in the others."""
    if right.any() and not mine.any():
        return (FOUND["gradient.zero"],)
    broken = ~np.isfinite(mine) & np.isfinite(right)
    if broken.any() and same(np.where(broken, right, mine), right):
        word = "NaN" if np.isnan(mine[broken]).all() else "infinite or NaN"
        some, rest = numbers_are(int(broken.sum()), mine.size), ", the others are right"
        some, rest = ("every number is", "") if broken.all() else (some, rest)
        return (FOUND["gradient.not_finite"].about(some=some, word=word, rest=rest),)
    return ()


def _left_out(mine: Float64, right: Float64, same: Callable[[Any, Any], bool]) -> Iterator[Mistake]:
    """Some entries of an axis are 0, the others right."""
    for axis, name in enumerate(("entry", "row", "column")[-mine.ndim :] if mine.ndim < 4 else ()):
        others = tuple(i for i in range(mine.ndim) if i != axis)
        lost = ~(mine != 0).any(axis=others) & (right != 0).any(axis=others)
        kept = np.flatnonzero(~lost)
        if lost.any() and kept.size and same(mine.take(kept, axis), right.take(kept, axis)):
            which = np.flatnonzero(lost)
            few = ", ".join(map(str, which[:4])) + (", ..." if which.size > 4 else "")
            are = "is" if which.size == 1 else "are"
            yield FOUND["gradient.left_out"].about(name=name, few=few, axis=axis, are=are)
            return


def _first_sequence(
    mine: Float64, right: Float64, same: Callable[[Any, Any], bool]
) -> Iterator[Mistake]:
    if mine.ndim < 3 or len(mine) < 2 or not same(mine[:1], right[:1]):
        return
    for what, others in (("0", 0 * mine[1:]), ("copies of it", 0 * mine[1:] + mine[:1])):
        if np.array_equal(mine[1:], others):
            yield FOUND["array.first_sequence_only"].about(what=what, why=FIRST_ONLY[what])


def _factor(
    mine: Float64, right: Float64, same: Callable[[Any, Any], bool], sizes: Mapping[str, int]
) -> Iterator[Mistake]:
    """A gradient that is a simple number times the right one."""
    factor = factor_of(mine, right)[0]
    if not (np.isfinite(factor) and factor and right.any() and same(mine, factor * right)):
        return
    if same(mine, -right):
        yield FOUND["gradient.negated"]
    lengths = {size: name for name, size in sizes.items() if size > 1}
    for size, name in lengths.items():
        for what, root in (("multiplied", size**0.5), ("divided", size**-0.5)):
            if size not in (4, 16) and same(mine, root * right):
                yield FOUND[f"gradient.{what}_by_root"].about(size=size, name=name)
    for size, name in {2: "", **lengths}.items():
        of = f", {name}" if name else ""
        if same(mine, size * right):
            why = TWICE if size == 2 else SUMMED
            yield FOUND["gradient.multiplied"].about(size=size, of=of, why=why)
        if same(mine, right / size):
            yield FOUND["gradient.divided"].about(size=size, of=of)
