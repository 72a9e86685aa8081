"""What can be said about a wrong array when no known mistake gives it. Nothing here is a guess:
each sentence is a property of the numbers, tested before it is said."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from simdformer.learn.check.compare import Float64
from simdformer.learn.check.report import numbers_are

__all__ = ["beside_labels", "described", "factor_of", "nice", "order", "places"]

Same = Callable[[Any, Any], bool]
PLURALS = {"query": "queries", "entry": "entries"}
IN_ORDER = ("position", "query", "key")  # what comes after something else


# ---- where ---------------------------------------------------------------------------------------


def places(wrong: Any, axes: tuple[str, ...]) -> str:
    """Which heads, positions, channels are wrong: "heads 4-7 only"; empty when it is all of them.

    wrong : of bool; axes : names of its last axes
    """
    said = []
    for axis, name in enumerate(names_of(axes, wrong.ndim)):
        others = tuple(i for i in range(wrong.ndim) if i != axis)
        bad = np.flatnonzero(wrong.any(axis=others))
        length = wrong.shape[axis]
        if few := _in_each_row(wrong) if axis == wrong.ndim - 1 else "":
            said.append(few)
        elif 0 < len(bad) < length:
            said.append(_subset(bad, length, name))
    return ", ".join(said)


def beside_labels(wrong: Any, labels: Any, axes: tuple[str, ...]) -> str:
    """`places` in the gradient of logits (...,V): what is wrong may hang on the labels (...)."""
    label = np.asarray(labels)[..., None] == np.arange(wrong.shape[-1])
    rows = wrong.any(axis=-1)
    for where, columns in (("the label's column", label), ("all columns but the label's", ~label)):
        if rows.any() and np.array_equal(wrong, columns & rows[..., None]):
            return ", ".join(filter(None, (places(rows, axes[:-1]), where)))
    return places(wrong, axes)


def _in_each_row(wrong: Any) -> str:
    """How many numbers are wrong in a row, if they are few, and others in each."""
    rows = wrong.reshape(-1, wrong.shape[-1])
    rows = rows[rows.any(axis=-1)]
    counts, length = rows.sum(axis=-1), wrong.shape[-1]
    if len(rows) < 2 or counts.max() > length // 2 or counts.max() == rows.any(axis=0).sum():
        return ""
    most = "" if (counts == counts[0]).all() else "at most "
    return f"{most}{counts.max()} of {length} numbers in each row"


def _subset(bad: Any, length: int, name: str) -> str:
    many = plural(name)
    if len(bad) == 1:
        return f"{numbered(name, bad[0])} only"
    if len(bad) == length - 1:
        good = sorted(set(range(length)) - set(bad.tolist()))[0]
        return f"all {many} but {good}" if good or name not in IN_ORDER else f"{many} from 1 on"
    if name in IN_ORDER and np.array_equal(bad, np.arange(bad[0], length)):
        return f"{many} from {bad[0]} on"
    for step, word in ((2, "every other"), (3, "every third"), (4, "every fourth")):
        if len(bad) > 2 and np.array_equal(bad, np.arange(bad[0], length, step)):
            return f"{word} of the {many}, from {bad[0]} on"
    runs = np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1)
    if len(runs) > 4:
        return f"{len(bad)} of {length} {many}"
    few = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{numbered(many, few)} only"


# ---- the names of axes ---------------------------------------------------------------------------


def names_of(axes: tuple[str, ...], ndim: int) -> tuple[str, ...]:
    """What the entries of each axis are called. Without a name they are rows and columns of a
    matrix, and sequences where heads or positions are what comes next."""
    if not axes and ndim == 2:
        return "row", "column"
    unnamed = max(ndim - len(axes), 0)
    named = axes[max(len(axes) - ndim, 0) :]
    names = [f"entry of axis {axis}" for axis in range(unnamed)]
    if unnamed == 1 and named[:1] in (("head",), ("position",)):
        names = ["sequence"]
    return (*names, *named)


def plural(name: str) -> str:
    """ "heads", "entries of axis 0"."""
    word, of, axis = name.partition(" of ")
    return PLURALS.get(word, word + "s") + of + axis


def numbered(name: str, number: Any) -> str:
    """ "head 2", "entry 2 of axis 0"; of several, "heads 2, 3"."""
    word, of, axis = name.partition(" of ")
    return f"{word} {number}{of}{axis}"


# ---- what ----------------------------------------------------------------------------------------


def described(mine: Float64, right: Float64, same: Same, axes: tuple[str, ...]) -> list[str]:
    """Sentences about an array of the right shape. same(a, b): by the measure of the check."""
    if mine.size == 0:
        return []
    if mine.ndim == 0:  # one number tells no more
        words = {"0": mine == 0, "NaN": np.isnan(mine), "infinite": np.isinf(mine)}
        return [f"it is {word}" for word, is_so in words.items() if is_so]
    with np.errstate(all="ignore"):
        for sentences in (_not_numbers, _size, order, _offsets):
            if found := list(sentences(mine, right, same, axes)):
                return found
    return []


def _not_numbers(mine: Float64, right: Float64, same: Same, axes: tuple[str, ...]) -> Iterator[str]:
    for word, broken in (
        ("NaN", np.isnan(mine) & ~np.isnan(right)),
        ("infinite", np.isinf(mine) & ~np.isinf(right)),
    ):
        if not broken.any():
            continue
        where = places(broken, axes)
        rest = np.where(broken, right, mine)
        others = "; the other numbers are right" if same(rest, right) else ""
        if broken.all():
            yield f"every number is {word}"
        else:
            yield (
                f"{numbers_are(int(broken.sum()), mine.size)} {word}"
                + (f": {where}" if where else "")
                + others
            )
    missing = np.isnan(right) & ~np.isnan(mine)
    if missing.any():
        some = numbers_are(int(missing.sum()), mine.size)
        yield f"{some} not NaN, which these inputs give"


def _size(mine: Float64, right: Float64, same: Same, axes: tuple[str, ...]) -> Iterator[str]:
    """A constant, a factor."""
    del axes
    if not mine.any():
        yield "every number is 0"
        return
    if mine.size > 1 and (mine == mine.flat[0]).all():
        yield f"every number is {mine.flat[0]:.4g}"
        return
    factor, a, b = factor_of(mine, right)
    if np.isfinite(factor) and factor != 0 and same(mine, factor * right):
        yield (
            "it is the right answer with the sign flipped"
            if abs(factor + 1) < 1e-3
            else (f"it is the right answer times {nice(factor)}")
        )
        return
    if mine.ndim > 1 and mine.shape[-1] > 2:
        factors = (a * b).sum(-1, keepdims=True) / (a * a).sum(-1, keepdims=True)
        if np.isfinite(factors).all() and factors.all() and same(mine, factors * right):
            yield (
                "each row is the right one times a number of its own, "
                f"{factors.min():.4g} to {factors.max():.4g}: look at what the rows are divided by"
            )


def factor_of(mine: Float64, right: Float64) -> tuple[float, Float64, Float64]:
    """The factor that brings the right answer nearest to mine, and both as they were compared."""
    a, b = np.where(np.isfinite(right), right, 0), np.where(np.isfinite(right), mine, 0)
    scale = np.abs(a).max(initial=0) or 1.0
    a, b = a / scale, b / scale
    return (float((a * b).sum() / (a * a).sum()) if a.any() else float("nan")), a, b


def nice(factor: float) -> str:
    """The number, and what it is a fraction or a root of, if that is a whole number."""
    text, size, sign = f"{factor:.6g}", abs(factor), "-" if factor < 0 else ""
    for value, over in ((size, ""), (1 / size, "1/")):
        whole, square = round(value), round(value * value)
        if 1 < whole < 100_000 and abs(value - whole) < 1e-4 * value:
            return f"{text} = {sign}{over}{whole}" if over else text
        if 1 < square < 100_000 and abs(value * value - square) < 1e-4 * square:
            return f"{text} = {sign}{over}sqrt({square})"
    return text


def order(mine: Float64, right: Float64, same: Same, axes: tuple[str, ...]) -> Iterator[str]:
    """Right numbers in wrong places."""
    names = names_of(axes, mine.ndim)
    for i in range(mine.ndim):
        for j in range(i + 1, mine.ndim):
            if min(mine.shape[i], mine.shape[j]) < 2:
                continue
            one, two = (names[axis].removeprefix("entry of ") for axis in (i, j))
            swapped = right.swapaxes(i, j)
            if mine.shape[i] == mine.shape[j] and same(mine, swapped):
                yield f"it is the right answer transposed: {one} and {two} are swapped"
                return
            if same(mine, swapped.reshape(mine.shape)):
                yield (
                    f"the numbers are right, but {one} and {two} are mixed up: a reshape stands "
                    "where a transpose is needed"
                )
                return
    for axis in range(mine.ndim):
        if mine.shape[axis] > 1 and (order := _permutation(mine, right, axis, same)) is not None:
            yield _say_order(order, names[axis])
            return
    if shift := next(_shifts(mine, right, same, axes), None):
        yield shift


def _permutation(mine: Float64, right: Float64, axis: int, same: Same) -> Any:
    """order, so that mine is right[order] along the axis. Entries may appear more than once, unless
    they are single numbers, which are met by chance, or alike, such as rows of zeros."""
    a = np.moveaxis(mine, axis, 0).reshape(mine.shape[axis], -1)
    b = np.moveaxis(right, axis, 0).reshape(right.shape[axis], -1)
    if len(a) > 4096 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    look = np.random.default_rng(0).standard_normal(a.shape[1])
    a, b = a @ look, b @ look
    ranks = np.argsort(b)
    after = np.clip(np.searchsorted(b[ranks], a), 1, len(b) - 1)
    nearer = np.abs(b[ranks[after - 1]] - a) < np.abs(b[ranks[after]] - a)
    order = ranks[after - nearer]
    index = np.arange(len(order))
    order = np.where(b[order] == b, index, order)  # of those that are alike, the one of its place
    moved = order[order != index]
    met_by_chance = look.size == 1 or any((b == b[i]).sum() > 1 for i in moved)
    if not moved.size or (met_by_chance and len(np.unique(order)) < len(order)):
        return None
    return order if same(mine, np.take(right, order, axis)) else None


def _say_order(order: Any, name: str) -> str:
    n, many = len(order), plural(name)
    index = np.arange(n)
    shift = int(order[0])
    if np.array_equal(order, index[::-1]):
        return f"the {many} are right, but in reverse order"
    if np.array_equal(order, (index + shift) % n):
        by = shift if shift <= n // 2 else shift - n
        return f"the {many} are right, but rolled along by {-by}"
    if len(np.unique(order)) == 1:
        return f"all {many} are {numbered(name, order[0])} of the right answer"
    for step in range(2, n // 2 + 1):
        if n % step == 0 and np.array_equal(order, index.reshape(step, -1).T.ravel()):
            return f"the {many} are right, but interleaved: 0, {n // step}, ... where 0, 1, ... are"
    if len(np.unique(order)) < n:
        return f"every {name} occurs in the right answer, but some more than once: {_few(order)}"
    wrong = np.flatnonzero(order != index)
    if len(wrong) == 2:
        return f"{numbered(many, f'{wrong[0]} and {wrong[1]}')} are swapped"
    return f"the {many} are right, but in another order: {_few(order)}"


def _few(order: Any) -> str:
    return ", ".join(map(str, order[:8])) + (" ..." if len(order) > 8 else "")


def _shifts(mine: Float64, right: Float64, same: Same, axes: tuple[str, ...]) -> Iterator[str]:
    """Moved along an axis, the end fallen off."""
    for axis, name in enumerate(names_of(axes, mine.ndim)):
        n = mine.shape[axis]
        for by in range(1, min(9, n // 2)):
            for a, b, sign in ((mine, right, "late"), (right, mine, "early")):
                a, b = a.swapaxes(0, axis)[by:], b.swapaxes(0, axis)[: n - by]
                if same(a.swapaxes(0, axis), b.swapaxes(0, axis)):
                    places = name if by == 1 else plural(name)
                    yield f"the right numbers stand {by} {places} too {sign}"


def _offsets(mine: Float64, right: Float64, same: Same, axes: tuple[str, ...]) -> Iterator[str]:
    """A number, or a vector, added to the right answer."""
    difference = np.where(np.isfinite(right), mine - right, np.nan)
    if not np.isfinite(difference).any() or mine.size < 3:
        return
    mean = float(np.nanmean(difference))
    if same(mine, right + mean):
        yield f"it is the right answer plus {mean:.4g}"
        return
    if mine.ndim < 2:
        return
    other = tuple(range(mine.ndim - 1))
    if mine.size > 2 * mine.shape[-1] and np.isfinite(difference).all():
        if same(mine, right + difference.mean(axis=other, keepdims=True)):
            yield "the same vector is added to every row: look for a bias"
        elif mine.shape[-1] > 2 and same(mine, right + difference.mean(axis=-1, keepdims=True)):
            name = names_of(axes, mine.ndim)[-1]
            yield f"a number of its own is added to each row, the same for every {name}"
