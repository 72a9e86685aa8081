"""What was done to the right array as a whole, whatever the operation: dropout, a part left out."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.compare import Float64

__all__ = ["done_to_all"]

ENOUGH = 16  # numbers, fewer of which show no share of zeros
CERTAIN = 4.0  # standard errors of a share

LOOP = "a loop that runs once, or an index 0."
FIRST_ONLY = {
    "the others are 0": "The result was made with np.zeros, and only its first entry is filled: ",
    "the others are copies of it": "The first one was computed and broadcast: ",
}


def done_to_all(
    mine: Float64, right: Float64, same: Callable[[Any, Any], bool]
) -> tuple[tuple[Mistake, ...], ...]:
    """Explanations of an array of the right shape. same(a, b): by the measure of the check."""
    with np.errstate(all="ignore"):
        found = [*_dropout(mine, right, same), *_first_sequence(mine, right, same)]
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
        yield Mistake(
            "array.dropout",
            f"dropout is left on, with p = {p:.2g}",
            f"{share:.0%} of the numbers are exactly 0, the others {factor:.4g} times the right "
            "ones, which is 1/(1-p).",
            "Switch dropout off where nothing is learned: model.eval(), or dropout_p=0.",
            "",
        )


def _first_sequence(
    mine: Float64, right: Float64, same: Callable[[Any, Any], bool]
) -> Iterator[Mistake]:
    if mine.ndim < 3 or len(mine) < 2 or not same(mine[:1], right[:1]):
        return
    for what, others in (("0", 0 * mine[1:]), ("copies of it", 0 * mine[1:] + mine[:1])):
        if np.array_equal(mine[1:], others):
            rest = f"the others are {what}"
            yield Mistake(
                "array.first_sequence_only",
                f"only the first sequence is computed: {rest}",
                FIRST_ONLY[rest] + LOOP,
                "Compute every entry of the first axis.",
                "01 §2",
            )
