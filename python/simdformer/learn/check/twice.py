"""A learner's function in place of its result: called twice, for one call has one answer."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.operation import as_array

__all__ = ["answer"]

TWO_ANSWERS = Mistake(
    "call.two_answers",
    "the function gives two answers for one call",
    "Dropout is left on, something is drawn at random or kept between calls, or np.empty is read.",
    "Switch dropout off (model.eval()), and compute from the arguments alone.",
    "",
)
CHANGED = Mistake(
    "call.argument_changed",
    "the function changes its arguments",
    "x += y, x[...] = y and methods with an underscore write into the array that was handed over.",
    "Compute on a copy: x = x + y makes a new array.",
    "",
)


def answer(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Mistake, ...]]:
    """What the function gives for these arguments, and what is wrong with how it does it."""
    given = [copy.deepcopy((args, dict(kwargs))) for _ in range(2)]
    first, second = (function(*args, **kwargs) for args, kwargs in given)
    found = [] if same(first, second) else [TWO_ANSWERS]
    if not same(given[0], (args, dict(kwargs))):
        found.append(CHANGED)
    return first, tuple(found)


def same(a: Any, b: Any) -> bool:
    """Whether two arrays, or lists or dicts of them, hold the same numbers; other things count as
    the same."""
    if isinstance(a, Mapping):
        return all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    a, b = as_array(a), as_array(b)
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return True
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
