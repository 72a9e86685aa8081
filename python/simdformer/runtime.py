"""Which instruction set the kernels use and how many threads: settings of the whole process.

At import the environment is read: `SIMDFORMER_ISA` (a name of `isas()` in any case) and
`SIMDFORMER_NUM_THREADS`, else `OMP_NUM_THREADS`. An empty variable counts as not set.
"""

import operator
import os
import platform
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from typing import Any, Literal, overload

import numpy as np

from simdformer import _core

__all__ = [
    "get_num_threads",
    "isa",
    "isas",
    "num_threads",
    "set_isa",
    "set_num_threads",
    "show_config",
    "use_isa",
]
__dir__ = __all__.copy  # what dir() and completion show

DEFAULT_SOURCE = "the CPUs that the process may use"

# Every name that a build for some machine may hold.
_ISA_NAMES = (
    *("baseline", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"),
    *("neon", "neon_dotprod"),
)


# ---- instruction sets ----------------------------------------------------------------------------


def isas() -> tuple[str, ...]:
    """The instruction sets that this machine can run, slowest first.

    `baseline` (x86-64, SSE2), `avx2` (with FMA and F16C), `avx2_vnni` (that with AVX-VNNI),
    `avx512` (F, BW, CD, DQ, VL), `avx512_vnni` and `avx512_bf16` (that with both, VNNI and
    AVX512-BF16); on aarch64 `neon` and `neon_dotprod`. `show_config()` lists those that were
    compiled as well.

    >>> import simdformer as sf
    >>> sf.isa() in sf.isas()
    True
    """
    return _core.isas()


def isa() -> str:
    """The instruction set in use: the best of `isas()`, unless something else was chosen.

    >>> import simdformer as sf
    >>> with sf.use_isa(sf.isas()[0]):
    ...     sf.isa() == sf.isas()[0]
    True
    """
    return _core.isa()


def set_isa(name: str) -> None:
    """Has every later call, on any thread, use the kernels of one instruction set.

    Results of two instruction sets may differ in their last bits. To choose one before the program
    starts, set the environment variable `SIMDFORMER_ISA`.

    Parameters
    ----------
    name : str
        One of `isas()`, in upper or lower case.

    Raises
    ------
    TypeError
        `name` is not a string.
    ValueError
        `name` is unknown, or this machine or this build does not have it.

    >>> import simdformer as sf
    >>> best = sf.isa()
    >>> sf.set_isa("no such thing")
    Traceback (most recent call last):
    ...
    ValueError: set_isa: name is 'no such thing', needs one of ...
    >>> sf.set_isa(best.upper())
    """
    _core.set_isa(_check_isa("set_isa: name", name))


def use_isa(name: str) -> AbstractContextManager[None]:
    """A context in which the kernels of one instruction set are used, as `set_isa` chooses them.

    The setting is the process's: other threads use that instruction set too, meanwhile. At the end
    the one that was in use before comes back.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.linspace(-1, 1, 5, dtype=np.float32)
    >>> for name in sf.isas():
    ...     with sf.use_isa(name):
    ...         assert np.allclose(sf.relu(x), [0, 0, 0, 0.5, 1])
    """
    return _isa_context(_check_isa("use_isa: name", name))


@contextmanager
def _isa_context(name: str) -> Iterator[None]:
    before = _core.isa()
    _core.set_isa(name)
    try:
        yield
    finally:
        _core.set_isa(before)


def _check_isa(where: str, name: object) -> str:
    """`where` opens the message: the function and the argument, or the environment variable."""
    needed = f"needs one of {_list(isas())}"
    if not isinstance(name, str):
        raise TypeError(f"{where} is of type {type(name).__name__}, {needed}")
    known = name.lower()
    if known in isas():
        return known
    why = ""
    if known in _core.compiled_isas():
        why = ", which this machine cannot run"
    elif known in _ISA_NAMES:
        why = ", which this build does not hold"
    raise ValueError(f"{where} is {name!r}{why}, {needed}")


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)


# ---- threads -------------------------------------------------------------------------------------


def get_num_threads() -> int:
    """The number of threads that a call may use, the calling thread included.

    At import: `SIMDFORMER_NUM_THREADS`, else `OMP_NUM_THREADS`, else the CPUs that the process may
    use (affinity mask, cgroup quota). Small calls use fewer, and a call made while another Python
    thread is in one uses one. Results do not depend on the number of threads.

    >>> import simdformer as sf
    >>> sf.get_num_threads() >= 1
    True
    """
    return _core.get_num_threads()


def set_num_threads(n: int) -> None:
    """Sets the number of threads that a call may use, for the whole process.

    Parameters
    ----------
    n : int
        From 1 (no threads but the caller) to 1024. If the system does not give that many, a call
        uses those that it gets.

    Raises
    ------
    TypeError
        `n` is not an integer.
    ValueError
        `n` is out of range.

    >>> import simdformer as sf
    >>> before = sf.get_num_threads()
    >>> sf.set_num_threads(1)
    >>> sf.get_num_threads()
    1
    >>> sf.set_num_threads(before)
    """
    _core.set_num_threads(_check_num_threads("set_num_threads", n))


def num_threads(n: int) -> AbstractContextManager[None]:
    """A context in which calls use at most `n` threads, as `set_num_threads` sets them.

    The setting is the process's: it is that of other threads too, meanwhile. At the end the number
    from before comes back.

    >>> import simdformer as sf
    >>> with sf.num_threads(1):
    ...     sf.get_num_threads()
    1
    """
    return _threads_context(_check_num_threads("num_threads", n))


@contextmanager
def _threads_context(n: int) -> Iterator[None]:
    before = _core.get_num_threads()
    _core.set_num_threads(n)
    try:
        yield
    finally:
        _core.set_num_threads(before)


class Awake(ContextDecorator):
    """Calls in this context, or in a function that it decorates, follow each other: the threads of
    the pool wait for the next one a third of a millisecond, 30 µs otherwise, before they sleep.
    They give way to whoever wants the CPU. Large arrays, numpy's own too, are made in memory that
    earlier ones have left."""

    def __enter__(self) -> None:
        _core.begin_pass()

    def __exit__(self, *exception: object) -> None:
        _core.end_pass()


awake = Awake()


def keep_memory(owner: object) -> None:
    """While `owner` lives, large arrays are made in memory that earlier ones have left, however
    much that is: a step of training asks the system for nothing that the one before it had."""
    _core.keep_all_results(True)
    weakref.finalize(owner, _core.keep_all_results, False)


def _check_num_threads(function: str, n: Any) -> int:
    needed = f"needs an integer from 1 to {_core.MAX_THREADS}"
    try:
        count = None if isinstance(n, (bool, np.bool_)) else operator.index(n)
    except TypeError:
        count = None
    if count is None:
        raise TypeError(f"{function}: n is of type {type(n).__name__}, {needed}")
    if not 1 <= count <= _core.MAX_THREADS:
        raise ValueError(f"{function}: n is {n}, {needed}")
    return count


# ---- what is there, for people -------------------------------------------------------------------


@overload
def show_config(mode: Literal["stdout"] = "stdout") -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> dict[str, dict[str, Any]]: ...
def show_config(mode: str = "stdout") -> dict[str, dict[str, Any]] | None:
    """Shows versions, instruction sets and threads, like `numpy.show_config`.

    Parameters
    ----------
    mode : {"stdout", "dicts"}
        Print the facts and return None, or return them.

    Raises
    ------
    ValueError
        For another mode.

    >>> import simdformer as sf
    >>> sf.show_config(mode="dicts")["isa"]["in use"] == sf.isa()
    True
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f'show_config: mode is {mode!r}, needs "stdout" or "dicts"')
    threads = get_num_threads()
    build = _core.build_info()
    facts: dict[str, dict[str, Any]] = {
        "simdformer": {"version": build.pop("version")},
        "isa": {
            "in use": isa(),
            "run here": isas(),
            "compiled": _core.compiled_isas(),
        },
        "threads": {
            "in use": threads,
            "set by": _threads_source if threads == _threads_at_import else "the running program",
        },
        "built with": build,
        "running on": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "system": platform.system(),
        },
    }
    if mode == "dicts":
        return facts
    for title, entries in facts.items():
        print(title)
        for name, value in entries.items():
            print(f"  {name:<10}  {_list(value) if isinstance(value, tuple) else value}")
    return None


def threads_are_told() -> bool:
    """Whether somebody has said how many threads compute: the environment, or the program."""
    return _threads_source != DEFAULT_SOURCE or get_num_threads() != _threads_at_import


# ---- at import -----------------------------------------------------------------------------------


def _isa_from_environment() -> None:
    if name := os.environ.get("SIMDFORMER_ISA", "").strip():
        _core.set_isa(_check_isa("simdformer: the environment variable SIMDFORMER_ISA", name))


def _threads_from_environment() -> tuple[int, str]:
    """How many, and who says so."""
    text = os.environ.get("SIMDFORMER_NUM_THREADS", "").strip()
    if text:
        if not (text.isascii() and text.isdecimal() and 1 <= _bounded(text) <= _core.MAX_THREADS):
            raise ValueError(
                f"simdformer: the environment variable SIMDFORMER_NUM_THREADS is {text!r}, "
                f"needs an integer from 1 to {_core.MAX_THREADS}"
            )
        return _bounded(text), "SIMDFORMER_NUM_THREADS"
    # OpenMP allows a list, one number a level of nesting; what is not a number is not ours to judge
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isascii() and first.isdecimal() and _bounded(first) >= 1:
        return min(_bounded(first), _core.MAX_THREADS), "OMP_NUM_THREADS"
    return _core.default_num_threads(), DEFAULT_SOURCE


def _bounded(digits: str) -> int:
    """The number, or a large one: int() refuses thousands of digits with a message of its own."""
    digits = digits.lstrip("0")
    return int(digits[:9] or 0)


def _register_with_threadpoolctl() -> None:
    """Shows our threads to `threadpoolctl.threadpool_limits`.

    Without threadpoolctl, or with one too old to be told of other libraries, nothing is to be done.
    """
    try:
        from threadpoolctl import LibController, register  # type: ignore[import-untyped]
    except ImportError:
        return

    class SimdformerController(LibController):  # type: ignore[misc]
        user_api = "simdformer"
        internal_api = "simdformer"
        filename_prefixes = ("_core",)
        check_symbols = ("simdformer_get_num_threads", "simdformer_set_num_threads")

        def get_num_threads(self) -> int:
            return _core.get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            _core.set_num_threads(num_threads)

        def get_version(self) -> str:
            return str(_core.build_info()["version"])

    register(SimdformerController)


_isa_from_environment()
_threads_at_import, _threads_source = _threads_from_environment()
_core.set_num_threads(_threads_at_import)
_register_with_threadpoolctl()
