"""Wrong results as learners get them, beside the mistakes that `check` has to find in them.

Each example is the call that was meant, and what wrong code, written without the package, gave for
it. What it is registered under is all that may be said of it: these mistakes, and no others.

    @example("rope.turned_twice")
    def _(rng):
        x = normal(rng, 2, 9, 16)
        return turn(turn(x)), sf.rope, (x,), {"layout": "half"}
"""

from collections.abc import Callable
from typing import Any

__all__ = ["Examples", "names", "reads_well"]

Made = tuple[Any, Any, tuple[Any, ...], dict[str, Any]]  # mine, op, args, kwargs


class Examples(dict[str, tuple[tuple[str, ...], Callable[[Any], Made]]]):
    """By the name of the first mistake; a second example of a mistake gets a number behind it."""

    def __call__(self, *mistakes: str) -> Callable[[Any], Any]:
        def register(make: Callable[[Any], Made]) -> Callable[[Any], Made]:
            name, count = mistakes[0], 2
            while name in self:
                name, count = f"{mistakes[0]} {count}", count + 1
            self[name] = mistakes, make
            return make

        return register


def names(report: Any) -> list[str]:
    return [mistake.name for mistake in report.diagnosis]


def reads_well(report: Any) -> None:
    """Lines of a terminal; each mistake in one of them, then why."""
    lines = repr(report).splitlines()
    assert max(map(len, lines)) <= 80, report
    for mistake in report.diagnosis:
        assert lines[lines.index(f"  ➤ {mistake.title}") + 1].startswith("    why: "), report
