"""One thread for numpy's matrix products while mistakes are tried.

A check makes thousands of products of a fraction of a millisecond each. Divided among threads that
have to wait for one another they take a hundred times as long on a machine that is busy.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import Lock

__all__ = ["one_thread"]

PREFIXES, SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")  # as numpy builds name OpenBLAS
_lock = Lock()
_entered: list[int] = []  # how many threads there were when each check that still runs began


@contextmanager
def one_thread() -> Iterator[None]:
    """OpenBLAS with one thread, until the last of those who asked for it is done. Other libraries
    are left alone."""
    if (blas := _openblas()) is None:
        yield
        return
    read, write = blas
    with _lock:
        _entered.append(_entered[0] if _entered else read())
        write(1)
    try:
        yield
    finally:
        with _lock:
            before = _entered.pop()
            if not _entered:
                write(before)


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How many threads numpy's OpenBLAS has, to read and to write; None with another library, or
    where the linker does not look through what numpy has loaded, as on Windows."""
    numpy = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    for prefix in PREFIXES:
        for suffix in SUFFIXES:
            read = getattr(numpy, f"{prefix}_get_num_threads{suffix}", None)
            write = getattr(numpy, f"{prefix}_set_num_threads{suffix}", None)
            if read is not None and write is not None:
                return read, write
    return None
