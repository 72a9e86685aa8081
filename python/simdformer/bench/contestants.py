"""Who runs a piece of work: one library's way, or ways, of doing it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from simdformer.types import Array

__all__ = ["Contestant", "Missing", "Way", "optional"]


@dataclass(frozen=True)
class Way:
    """One call that does the work, its inputs and outputs in place.

    `array` makes of what the call returns a numpy array in the shape that the work speaks of; it
    is not timed. `context` is entered around many calls, and is not timed either.
    """

    name: str
    call: Callable[[], Any]
    array: Callable[[Any], Array]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def result(self) -> Array:
        with self.context():
            return self.array(self.call())


@dataclass(frozen=True)
class Contestant:
    """A library. Of its ways the fastest counts, so that it appears at its best.

    `peer`: goals compare with it. Others (numpy, a variant of ours) are there to be looked at.
    """

    name: str
    ways: tuple[Way, ...]
    peer: bool = True


@dataclass(frozen=True)
class Missing:
    """Why a library does not take part."""

    name: str
    why: str


def optional(name: str) -> Any | None:
    """The module of that name, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None
