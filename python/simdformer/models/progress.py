"""A progress bar for what takes longer than a second, drawn by tqdm where it is installed."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Progress", "watched"]

QUIET_SECONDS = 1.0


class Progress:
    """Counts bytes, or what `unit` says:
    `with Progress("loading", total) as bar: bar.advance(n)`."""

    def __init__(self, what: str, total: int, unit: str = "B") -> None:
        self.what, self.total, self.done, self.unit = what, total, 0, unit
        self.start = time.monotonic()
        self.bar: Any = None
        self.may_draw = True

    def advance(self, count: int, note: str = "") -> None:
        """`count` more are being worked on; the bar ends in the note."""
        self.done += count
        watcher = WATCHER.get()
        if watcher is not None:
            watcher(self)
        elif self.bar is not None:
            if note:
                self.bar.set_postfix_str(note, refresh=False)
            self.bar.update(count)
        elif self.may_draw and time.monotonic() - self.start > QUIET_SECONDS:
            self.may_draw = False
            self.bar = self.draw()

    def draw(self) -> Any:
        try:
            with warnings.catch_warnings():  # tqdm asks for widgets in a notebook without them
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
        except ImportError:
            return None
        return tqdm(
            desc=self.what,
            total=self.total,
            initial=self.done,
            unit=self.unit,
            unit_scale=self.unit == "B",
            leave=False,
            disable=None,  # draws nothing into files and pipes
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def clear(self) -> None:
        """Makes room for a line of text; the bar comes back when it advances."""
        if self.bar is not None:
            self.bar.clear()

    def close(self) -> None:
        """Takes the bar away."""
        if self.bar is not None:
            self.bar.close()


WATCHER: ContextVar[Callable[[Progress], None] | None] = ContextVar("WATCHER", default=None)


@contextmanager
def watched(watcher: Callable[[Progress], None]) -> Iterator[None]:
    """Inside, no bar is drawn: `watcher(bar)` is called each time that one advances, and what it
    raises ends the work."""
    token = WATCHER.set(watcher)
    try:
        yield
    finally:
        WATCHER.reset(token)
