"""Calling a function that somebody is still learning to write: whatever it does becomes a sentence.

Used by the process that runs a learner's file and by notebooks alike.
"""

import inspect
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, ModuleType, TracebackType
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from simdformer.learn.check.twice import difference
from simdformer.types import Array

__all__ = ["UNWRITTEN", "Attempt", "Keys", "as_array", "attempt", "kinds_of_arrays", "where"]

UNWRITTEN = "not written yet"
Keys = tuple[tuple[str, ...], ...]  # those of each result that is a dict; () for an array


@dataclass(frozen=True)
class Attempt:
    """What came of one call: arrays, or a complaint (nothing else was wrong then)."""

    results: tuple[Array, ...] = ()
    complaint: str = ""


def attempt(
    function: Callable[..., Any], arguments: tuple[Any, ...], results: Keys, kinds: tuple[str, ...]
) -> Attempt:
    """Calls the function with copies of the arguments, as the first kind of arrays ("torch",
    "numpy") with which it does not raise; it should return as many `results`, dicts where there are
    keys, and the same ones when it is called again."""
    if misfit := takes_other_arguments(function, len(arguments)):
        return Attempt(complaint=misfit)
    first: Attempt | None = None
    for kind in kinds:
        try:
            once = called(function, arguments, results, kind)
            if once.complaint:
                return once
            return two_answers(once, called(function, arguments, results, kind)) or once
        except NotImplementedError as error:
            return Attempt(complaint=unwritten(function, error))
        except (Exception, SystemExit) as error:
            first = first or Attempt(complaint=f"raised {described(error)}{where(error, function)}")
    assert first is not None
    return first


def called(
    function: Callable[..., Any], arguments: tuple[Any, ...], results: Keys, kind: str
) -> Attempt:
    """One call; what the function raises comes through."""
    given = tuple(converted(argument, kind) for argument in arguments)
    returned = function(*given)
    changed = [
        name_of(function, index)
        for index, (mine, right) in enumerate(zip(given, arguments, strict=True))
        if is_changed(mine, right)
    ]
    if changed:
        return Attempt(
            complaint=f"changed its input {' and '.join(changed)}: compute on a copy, because "
            "the caller still needs it (`x += y` writes into x, `x = x + y` does not)"
        )
    complaints = [complaint for one in given if (complaint := getattr(one, "complaint", ""))]
    return Attempt(complaint=complaints[0]) if complaints else understood(returned, results)


def two_answers(one: Attempt, other: Attempt) -> Attempt | None:
    """A complaint where two calls with the same arguments gave different results."""
    if other.complaint:
        return Attempt(complaint=f"the second time it is called, it {other.complaint}")
    if found := difference(one.results, other.results):
        return Attempt(
            complaint=f"gives two answers for one call: {found}. Is dropout on, is something drawn "
            "at random, is np.empty not filled, or is something kept from the call before?"
        )
    return None


def kinds_of_arrays(function: Callable[..., Any], namespace: dict[str, Any]) -> tuple[str, ...]:
    """What a function wants its arrays to be, the likelier first: tensors where it, or a function
    that it calls, names something of torch, or where its file imports torch and it names nothing of
    numpy either; else numpy arrays."""
    named = names_in(function, namespace)
    if "torch" in named or ("numpy" not in named and "torch" in map(home_of, namespace.values())):
        return ("torch", "numpy")
    return ("numpy",)


def names_in(function: Callable[..., Any], namespace: dict[str, Any]) -> set[str]:
    """The packages that a function, and those of its file that it calls, take something from."""
    found: set[str] = set()
    seen: set[int] = set()
    todo: list[Any] = [function]
    while todo:
        one = todo.pop()
        code = getattr(one, "__code__", one)
        if id(code) in seen:
            continue
        seen.add(id(code))
        if not isinstance(code, CodeType):
            found.add(home_of(one))
            continue
        todo += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        todo += [namespace[name] for name in code.co_names if name in namespace]
    return found


def home_of(value: Any) -> str:
    """The package that something comes from."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "").partition(".")[0]


def converted(argument: Any, kind: str) -> Any:
    """A copy of an argument; arrays as the kind asks, inside of dicts and lists too."""
    if isinstance(argument, dict):
        return {name: converted(value, kind) for name, value in argument.items()}
    if isinstance(argument, list):
        return [converted(value, kind) for value in argument]
    if hasattr(argument, "fresh"):
        return argument.fresh(kind)
    if not isinstance(argument, np.ndarray):
        return argument
    return sys.modules["torch"].from_numpy(argument.copy()) if kind == "torch" else argument.copy()


def is_changed(mine: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return any(is_changed(mine.get(name), right[name]) for name in right)
    if isinstance(right, list):
        return len(mine) != len(right) or any(map(is_changed, mine, right))
    if isinstance(right, str | int):
        return bool(mine != right)
    return isinstance(right, np.ndarray) and not np.array_equal(
        np.asarray(mine), right, equal_nan=right.dtype.kind == "f"
    )


def understood(returned: Any, results: Keys) -> Attempt:
    """What was returned, as numpy arrays; a dict as those of its keys."""
    if returned is None:
        return Attempt(complaint="returned None: is there a `return` at its end?")
    count = len(results)
    parts = returned if count > 1 else (returned,)
    if count > 1 and (not isinstance(parts, tuple | list) or len(parts) != count):
        found = f"{len(parts)} results" if isinstance(parts, tuple | list) else kind_of(parts)
        kinds = "results, dicts among them" if any(results) else "arrays"
        return Attempt(complaint=f"returned {found}, needs {count} {kinds}")
    each = []
    for number, (part, keys) in enumerate(zip(parts, results, strict=True), start=1):
        if keys and (not isinstance(part, dict) or part.keys() != set(keys)):
            found = f"keys {', '.join(map(str, part))}" if isinstance(part, dict) else kind_of(part)
            return Attempt(
                complaint=f"result {number} of {count}: returned {found}, needs a dict with the "
                f"keys {', '.join(keys)}"
            )
        each += [part[key] for key in keys] if keys else [part]
    arrays = []
    for part in each:
        try:
            arrays.append(as_array(part))
        except Exception:
            return Attempt(complaint=f"returned {kind_of(part)} that is no array of numbers")
        if arrays[-1].dtype.kind not in "fiub" and arrays[-1].dtype != bfloat16:
            return Attempt(
                complaint=f"returned {kind_of(part)} of {arrays[-1].dtype}, needs real numbers"
            )
    return Attempt(tuple(arrays))


def as_array(part: Any) -> Array:
    if not hasattr(part, "detach"):
        return np.array(part)
    part = part.detach().cpu()  # a tensor, perhaps with a gradient
    if "bfloat16" in str(part.dtype):  # which torch does not hand over
        return np.array(part.float().numpy(), bfloat16)
    return np.array(part.numpy())


# ---- words ---------------------------------------------------------------------------------------


def unwritten(function: Callable[..., Any], error: NotImplementedError) -> str:
    """Whether it is this function that is missing, or one that it calls."""
    frame = frames(error.__traceback__)[-1]
    name = getattr(function, "__name__", "")
    if frame.f_code.co_name in (name, "<module>") or not name:
        return UNWRITTEN
    return f"waits for {frame.f_code.co_name}, which is {UNWRITTEN}"


def takes_other_arguments(function: Callable[..., Any], count: int) -> str:
    """A complaint when it cannot be called with so many arguments."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return ""
    try:
        signature.bind(*range(count))
    except TypeError:
        return f"takes {signature}, needs {count} arguments: keep the first line as it was"
    return ""


def described(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def where(error: BaseException, function: Callable[..., Any] | None = None, file: str = "") -> str:
    """The innermost line of the learner's own code that led to the error."""
    code = getattr(function, "__code__", None)
    file = code.co_filename if code else file
    for frame, line in reversed(lines(error.__traceback__)):
        if frame.f_code.co_filename == file:
            source = linecache.getline(file, line).strip()
            return f"\nline {line}" + (f": {source}" if source else "")
    return ""


def lines(traceback: TracebackType | None) -> list[tuple[Any, int]]:
    found = []
    while traceback is not None:
        found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def frames(traceback: TracebackType | None) -> list[Any]:
    return [frame for frame, _ in lines(traceback)]


def name_of(function: Callable[..., Any], index: int) -> str:
    try:
        return list(inspect.signature(function).parameters)[index]
    except (ValueError, TypeError, IndexError):
        return f"number {index + 1}"


def kind_of(value: Any) -> str:
    name = type(value).__name__
    if hasattr(value, "dtype"):
        return "an array"
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
