"""Calling a function that somebody is still learning to write: whatever it does becomes a sentence.

Used by the process that runs a learner's file and by notebooks alike.
"""

import inspect
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from simdformer.types import Array

__all__ = ["UNWRITTEN", "Attempt", "attempt", "kinds_of_arrays", "where"]

UNWRITTEN = "not written yet"


@dataclass(frozen=True)
class Attempt:
    """What came of one call: arrays, or a complaint (nothing else was wrong then)."""

    results: tuple[Array, ...] = ()
    complaint: str = ""


def attempt(
    function: Callable[..., Any], arguments: tuple[Any, ...], results: int, kinds: tuple[str, ...]
) -> Attempt:
    """Calls the function with copies of the arguments, as the first kind of arrays ("torch",
    "numpy") with which it does not raise; it should return so many `results`."""
    first: Attempt | None = None
    for kind in kinds:
        given = tuple(converted(argument, kind) for argument in arguments)
        try:
            returned = function(*given)
        except NotImplementedError as error:
            return Attempt(complaint=unwritten(function, error))
        except (Exception, SystemExit) as error:
            first = first or Attempt(complaint=f"raised {described(error)}{where(error, function)}")
            continue
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
        return understood(returned, results)
    assert first is not None
    return first


def kinds_of_arrays(namespace: dict[str, Any]) -> tuple[str, ...]:
    """What a file wants its arrays to be: tensors where it imports torch, else numpy arrays."""
    torch = sys.modules.get("torch")
    uses_torch = torch is not None and any(
        value is torch
        or (isinstance(value, ModuleType) and value.__name__.startswith("torch."))
        or getattr(value, "__module__", "") == "torch"
        for value in namespace.values()
    )
    return ("torch", "numpy") if uses_torch else ("numpy",)


def converted(argument: Any, kind: str) -> Any:
    """A copy of an argument; arrays as the kind asks, inside of dicts too."""
    if isinstance(argument, dict):
        return {name: converted(value, kind) for name, value in argument.items()}
    if not isinstance(argument, np.ndarray):
        return argument
    return sys.modules["torch"].from_numpy(argument.copy()) if kind == "torch" else argument.copy()


def is_changed(mine: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return any(is_changed(mine[name], right[name]) for name in right if name in mine)
    return isinstance(right, np.ndarray) and not np.array_equal(
        np.asarray(mine), right, equal_nan=right.dtype.kind == "f"
    )


def understood(returned: Any, results: int) -> Attempt:
    """What was returned, as numpy arrays."""
    if returned is None:
        return Attempt(complaint="returned None: is there a `return` at its end?")
    parts = returned if results > 1 else (returned,)
    if results > 1 and (not isinstance(parts, tuple | list) or len(parts) != results):
        found = f"{len(parts)} results" if isinstance(parts, tuple | list) else kind_of(parts)
        return Attempt(complaint=f"returned {found}, needed are {results} arrays")
    arrays = []
    for part in parts:
        try:
            arrays.append(as_array(part))
        except Exception as error:
            return Attempt(complaint=f"returned {kind_of(part)}, which is no array: {error}")
        if arrays[-1].dtype.kind not in "fiub" and arrays[-1].dtype.name != "bfloat16":
            return Attempt(
                complaint=f"returned {kind_of(part)} of {arrays[-1].dtype}, needed are numbers"
            )
    return Attempt(tuple(arrays))


def as_array(part: Any) -> Array:
    if hasattr(part, "detach"):  # a tensor, perhaps with a gradient or of bfloat16
        part = part.detach().cpu()
        part = part.float() if "bfloat16" in str(part.dtype) else part
        return np.array(part.numpy())
    return np.array(part)


# ---- words ---------------------------------------------------------------------------------------


def unwritten(function: Callable[..., Any], error: NotImplementedError) -> str:
    """Whether it is this function that is missing, or one that it calls."""
    frame = frames(error.__traceback__)[-1]
    name = getattr(function, "__name__", "")
    if frame.f_code.co_name in (name, "<module>") or not name:
        return UNWRITTEN
    return f"waits for {frame.f_code.co_name}, which is {UNWRITTEN}"


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
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def file_name(path: str | Path) -> str:
    return Path(path).name
