"""Arguments of what is written in Python, read once and refused in the words of the kernels:
`function: argument, what was found, what is needed`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from simdformer import _core

__all__ = [
    "LARGEST",
    "as_array",
    "as_floats",
    "converted",
    "is_real",
    "is_whole",
    "read_float_dtype",
    "read_names",
    "read_several",
    "read_whole",
    "shown",
]

LARGEST = (1 << 63) - 1  # what the kernels count with
FLOATS = tuple(map(np.dtype, (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)))


def shown(value: object) -> str:
    """What somebody passed, in one short line. (An int of more than 4300 digits has no repr.)"""
    try:
        text = repr(value)
    except Exception:  # a stranger's __repr__
        text = f"an object of type {type(value).__name__}"
    return " ".join(text.split())[:120]


def is_whole(value: object, least: int = 1) -> bool:
    """Whether it is an integer >= least; True and False are none."""
    return (
        isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)
    )


def is_real(value: object, least: float = -np.inf) -> bool:
    """Whether it is a finite number >= least, of Python's or numpy's; True and False are none."""
    if isinstance(value, str | bytes) or np.ndim(value) != 0:  # type: ignore[arg-type]
        return False
    x = np.asarray(value)
    return x.dtype.kind in "iuf" and bool(np.isfinite(x)) and bool(x >= least)


def read_whole(function: str, name: str, value: Any, needed: str = "a whole number > 0") -> int:
    """A whole number > 0 that a computer can count to."""
    if not is_whole(value) or value > LARGEST:
        limit = " and < 2**63" if is_whole(value) else ""
        raise ValueError(f"{function}: {name} is {shown(value)}, needs {needed}{limit}")
    return int(value)


def as_array(function: str, name: str, value: Any) -> npt.NDArray[Any]:
    """np.asarray, whose own complaints come under our heading; a tensor of another library is
    viewed where it lies, in bfloat16 too."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        return _core.array_of_tensor(value, function, name)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{function}: {name} cannot be read as an array ({reason})") from None


def converted(x: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """x in another dtype of floats, on all threads (numpy's own takes four times as long on one)"""
    if x.dtype == dtype:
        return x
    made = np.empty(x.shape, dtype)
    _core.convert(x, made)
    return made


def read_float_dtype(function: str, name: str, value: Any) -> np.dtype[Any]:
    """One of the four dtypes that the kernels compute with; torch.bfloat16 is understood."""
    theirs = str(value) if type(value).__module__ == "torch" else ""
    with suppress(TypeError, ValueError, SyntaxError):
        dtype = np.dtype(theirs.rpartition(".")[2] or value)
        if dtype in FLOATS:
            return dtype
    raise TypeError(
        f"{function}: {name} is {shown(value)}, needs float32, float64, float16 or bfloat16"
    )


def as_floats(function: str, name: str, value: Any) -> npt.NDArray[Any]:
    """The same of an array of one of the four dtypes that the kernels compute with."""
    x = as_array(function, name, value)
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{function}: {name} has dtype {x.dtype}, needs float32, float64, float16 or bfloat16; "
            f"convert it: np.asarray({name}, np.float32)"
        )
    return x


def read_several(function: str, name: str, value: Any, needed: str) -> list[Any]:
    """One text or number, or any number of them (None: none), as a list."""
    if value is None:
        return []
    if isinstance(value, str | bytes | int | np.integer):
        return [value]
    if not isinstance(value, Mapping):  # whose keys are names of something else
        with suppress(TypeError):
            return list(value)
    raise TypeError(f"{function}: {name} is {shown(value)}, needs {needed}")


def read_names(function: str, name: str, value: Any, known: Sequence[str]) -> list[str]:
    """One of the known names or several, as a list."""
    needed = f"names out of {', '.join(known)}"
    names = read_several(function, name, value, needed)
    for one in names:
        if not isinstance(one, str) or one not in known:
            raise ValueError(f"{function}: {name} has {shown(one)}, needs {needed}")
    return names
