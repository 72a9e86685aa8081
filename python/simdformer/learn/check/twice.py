"""A learner's function in place of its result: called twice, for one call has one answer."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake, words
from simdformer.learn.check.operation import as_array
from simdformer.learn.check.report import told_apart

__all__ = ["answer", "check_takes", "difference", "gives_two", "is_coarse"]

# Steps of the inputs, relatively: less than a unit of float16, and than one of bfloat16; thousands
# of float32.
STEPS = (2.0**-13, 2.0**-9)
UNEVEN = 0.25  # of what a step changes, the next one changes differently

FOUND = words(
    """
    call (-)

    argument_changed: the function changes its arguments
        x += y, x[...] = y and methods with an underscore write into the array that was handed over.
        > Compute on a copy: x = x + y makes a new array.
    two_answers: the function gives two answers for one call
        Dropout is left on, something is drawn at random or kept between calls, or np.empty is read:
        {difference}.
        > Switch dropout off (model.eval()), and compute from the arguments alone.
    """
)


def check_takes(
    function: Callable[..., Any],
    wrapped: Callable[..., Any],
    op: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """A TypeError that says how the function is called, where it cannot be called so. `wrapped`
    calls it, with those of its own arguments first that have a name there."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    if wrapped is not function:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        args, kwargs = bound.args, bound.kwargs
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [*inspect.signature(op).parameters]
        names += [f"number {i}" for i in range(len(names), len(args))]  # of *args
        call = ", ".join([*names[: len(args)], *(f"{name}=" for name in kwargs)])
        raise TypeError(
            f"check: mine takes {shown_signature(signature)}, needs ({call}): it is called with "
            f"the arguments of this call ({error}); let it take them, or give its result"
        ) from None


def shown_signature(signature: inspect.Signature) -> str:
    """Names and defaults, without types."""
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(plain))


def gives_two(found: tuple[Mistake, ...]) -> bool:
    """Whether one call has two answers."""
    return any(one.name == "call.two_answers" for one in found)


def answer(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Mistake, ...]]:
    """What the function gives for these arguments, and what is wrong with how it does it."""
    given = [copy.deepcopy((args, dict(kwargs))) for _ in range(2)]
    first, second = (function(*args, **kwargs) for args, kwargs in given)
    other = difference(first, second)
    found = [FOUND["call.two_answers"].about(difference=other)] if other else []
    if difference(given[0], (args, dict(kwargs))):
        found.append(FOUND["call.argument_changed"])
    return first, tuple(found)


def is_coarse(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether the function computes in 16 bits: then its results go in jumps, where two equal small
    steps of the inputs should change them twice alike."""

    def moved(x: Any, by: float) -> Any:
        if str(getattr(x, "dtype", "")).rpartition(".")[2] not in ("float32", "float64"):
            return x
        near = x * (1 + by * (x > x.mean()))  # not all alike: norms do not see a factor
        return near.astype(x.dtype) if isinstance(near, np.ndarray) else near

    def result(by: float) -> Any:
        named = {name: moved(x, by) for name, x in kwargs.items()}
        out = function(*(moved(x, by) for x in args), **named)
        out = list(out.values()) if isinstance(out, Mapping) else out
        parts = out if isinstance(out, tuple | list) else [out]
        return np.concatenate(
            [np.ravel(as_array(x)).astype(np.float64) for x in parts if x is not None]
        )

    def goes_in_jumps(step: float) -> bool:
        first, second, third = map(result, (0.0, step, 2 * step))
        once, again = second - first, third - second
        change, uneven = (np.nansum(np.abs(x)) for x in (once, again - once))
        return bool(np.isfinite(uneven) and uneven > UNEVEN * max(change, 1e-30))

    try:
        with np.errstate(all="ignore"):
            return any(map(goes_in_jumps, STEPS))
    except Exception:  # what it does with other arrays is not the question
        return False


def difference(a: Any, b: Any) -> str:
    """The first one between two arrays, or lists or dicts of them, in words; other things count as
    the same."""
    if isinstance(a, Mapping):
        return next(filter(None, (difference(a[name], b[name]) for name in a)), "")
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{len(a)} arrays, then {len(b)}"
        return next(filter(None, map(difference, a, b)), "")
    a, b = as_array(a), as_array(b)
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return ""
    if a.shape != b.shape:
        return f"shape {a.shape}, then {b.shape}"
    differs = (a != b) & ((a == a) | (b == b))
    if not differs.any():
        return ""
    at = np.unravel_index(np.argmax(differs), a.shape)
    place = f" at {list(map(int, at))}" if at else ""
    return f"{', then '.join(told_apart(float(a[at]), float(b[at])))}{place}"
