"""Arrays of a wrong shape: what was done to the axes."""

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake, words

__all__ = ["NOT_SUMMED", "Change", "changes", "parts"]

NOT_SUMMED = "shape.not_summed"
FOUND = words(
    """
    shape (01 §2)

    not_summed (08 §4): it is not summed over {over}: {found}, needs {needed}
        {why}
        > Sum over {over}{how}.
    axis_lost: an axis of length 1 is lost: {found}, needs {needed}
        squeeze, an index 0, or a sum without keepdims takes an axis away.
        > Keep the axis: x[0:1], keepdims=True, or reshape.
    axis_of_one: an axis of length 1 is in the way: {found}, needs {needed}
        An axis was added for broadcasting, or for a batch of one, and not taken away again.
        > Take it away: reshape to {needed}.
    heads_not_merged (01 §6): the heads are not merged
        The heads are still an axis of their own.
        > Put the heads behind the positions, then merge: swapaxes(-3, -2).reshape(..., L, E).
    heads_merged (01 §6): the heads are merged already
        The result has the heads beside one another in the last axis.
        > Leave the heads as an axis of their own: (..., H, L, D).
    transposed: {what}
        A transpose too many, or one that is missing.
        > Transpose the result: transpose{order}.
    reshaped: {what}: {found}, needs {needed}
        {why}
        > Reshape the result to {needed}.
    one_of_many: only the {which} {entries} of axis {axis} {are} there, of {length}
        An index on an axis that should stay: of sequences, heads, or positions.
        > Compute all entries of that axis.
    averaged: this is the {name} over axis {axis}
        {name}() over an axis that should stay.
        > Leave that axis alone.
    """
)

SUMMED = {
    False: "Each entry there has a number of its own, where their sum is meant.",
    True: "What was broadcast along an axis, or read once for each entry of it, gets the sum of "
    "their gradients on the way back.",
}  # whether it is a gradient
Change = tuple[Mistake, Any]  # what was done, and the array with that undone


def changes(mine: Any, shape: tuple[int, ...], is_gradient: bool) -> list[Change]:
    """Every way in which an array of this shape may have become `mine`, the simplest first."""
    return [change for change in _all(mine, shape, is_gradient) if change[1].shape == shape]


def said(name: str, mine: Any, shape: tuple[int, ...], **found: Any) -> Mistake:
    return FOUND[f"shape.{name}"].about(found=mine.shape, needed=shape, **found)


def _all(mine: Any, shape: tuple[int, ...], is_gradient: bool) -> Iterator[Change]:
    yield from _summed(mine, shape, SUMMED[is_gradient])
    if mine.size != int(np.prod(shape)):
        return
    if _without_ones(mine.shape) == _without_ones(shape):
        lost = mine.ndim < len(shape)
        yield said("axis_lost" if lost else "axis_of_one", mine, shape), mine.reshape(shape)
    yield from _heads(mine, shape)
    if mine.ndim == len(shape) and mine.ndim <= 5:
        for order in permutations(range(mine.ndim)):
            if order != tuple(range(mine.ndim)) and mine.transpose(order).shape == shape:
                yield _transposed(order), mine.transpose(order)
    yield _reshaped(mine, shape), mine.reshape(shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _summed(mine: Any, shape: tuple[int, ...], why: str) -> Iterator[Change]:
    """With axes that should have been summed: what was broadcast on the way there."""
    if mine.size <= int(np.prod(shape)) or mine.ndim < len(shape) or mine.dtype.kind == "b":
        return
    for lost in combinations(range(mine.ndim), mine.ndim - len(shape)):
        kept = [axis for axis in range(mine.ndim) if axis not in lost]
        pairs = zip(kept, shape, strict=True)
        ones = [axis for axis, length in pairs if length == 1 < mine.shape[axis]]
        found = mine.astype(np.float64).sum(axis=tuple(ones), keepdims=True).sum(axis=lost)
        if found.shape == shape:
            axes = sorted({*ones, *lost})
            over = f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"
            how = ", with keepdims=True" if ones else ""
            yield said("not_summed", mine, shape, over=over, how=how, why=why), found


def _heads(mine: Any, shape: tuple[int, ...]) -> Iterator[Change]:
    """(...,L,E) with heads still in it, and (...,H,L,D) with heads merged."""
    if mine.ndim == len(shape) + 1 and len(shape) >= 2 and mine.shape[:-3] == shape[:-2]:
        merged = FOUND["shape.heads_not_merged"]
        if mine.shape[-2] == shape[-2]:  # (...,H,L,D)
            yield merged, mine.swapaxes(-3, -2).reshape(shape)
        if mine.shape[-3] == shape[-2]:  # (...,L,H,D)
            yield merged, mine.reshape(shape)
    if mine.ndim + 1 == len(shape) and mine.ndim >= 2 and mine.shape[:-2] == shape[:-3]:
        heads, length, dim = shape[-3:]
        if mine.shape[-2:] == (length, heads * dim):
            split = mine.reshape(*shape[:-3], length, heads, dim).swapaxes(-3, -2)
            yield FOUND["shape.heads_merged"], split


def _transposed(order: tuple[int, ...]) -> Mistake:
    moved = [axis for axis, source in enumerate(order) if axis != source]
    names = " and ".join(map(str, moved))
    what = f"axes {names} are swapped" if len(moved) == 2 else "the axes are in another order"
    return FOUND["shape.transposed"].about(what=what, order=order)


def _reshaped(mine: Any, shape: tuple[int, ...]) -> Mistake:
    if mine.ndim < len(shape):
        what = "axes are flattened"
        why = "reshape(-1, ...) merged axes, such as batch and positions."
    else:
        what = "the numbers are right, the axes are not"
        why = "The numbers stand in the right order, but are divided into other axes."
    return said("reshaped", mine, shape, what=what, why=why)


def parts(mine: Any, right: Any, same: Any) -> Iterator[Mistake]:
    """What is known when `mine` is a part of the right answer, with or without the axis."""
    for axis, length in enumerate(right.shape):
        some = np.expand_dims(mine, axis) if mine.ndim + 1 == right.ndim else mine
        if some.ndim != right.ndim or _without(axis, some.shape) != _without(axis, right.shape):
            continue
        count = some.shape[axis]
        of_a_batch = axis == 0 and right.ndim > 2  # some positions are another mistake
        if not 0 < count < length or (count > 1 and not of_a_batch):
            continue
        for which, first in (("first", 0), ("last", length - count)):
            if same(some, np.take(right, range(first, first + count), axis)):
                entries = "entry" if count == 1 else f"{count} entries"
                are = "is" if count == 1 else "are"
                yield FOUND["shape.one_of_many"].about(
                    which=which, entries=entries, axis=axis, are=are, length=length
                )
        for name, over in (("mean", np.mean), ("sum", np.sum)):
            if count == 1 and same(some, over(right, axis=axis, keepdims=True)):
                yield FOUND["shape.averaged"].about(name=name, axis=axis)


def _without(axis: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
