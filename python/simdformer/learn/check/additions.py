"""Mistakes that others than the package write: they are looked at before they are tried."""

import ast
import builtins
import inspect
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Any

from simdformer.learn.catalogue import CATALOGUE, Variation, variations
from simdformer.learn.check import operation  # noqa: F401  it loads all programs
from simdformer.learn.lines import EVERYWHERE, Lines
from simdformer.learn.program import OPERATIONS, STEPS

__all__ = ["added", "unknown_names"]

IN_EVERY_RUN = {"array", "real", "run", "s", *EVERYWHERE, *dir(builtins)}


def added(text: str, calls: tuple[Any, ...]) -> list[str]:
    """The names of the mistakes of a text, which are in the catalogue from now on."""
    try:
        found = list(variations(text, calls))
    except KeyError as error:
        wrong = error.args[0]
        raise ValueError(
            f"mistakes.add: the step is {wrong!r}, needs one that a program has"
            + nearest(wrong, [*STEPS], ", ".join(STEPS))
        ) from None
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ValueError(f"mistakes.add: a line is {line!r}, needs Python: {error.msg}") from None
    except (ValueError, IndexError) as error:
        raise ValueError(f"mistakes.add: text is no text of mistakes: {error}") from None
    if not found:
        raise ValueError("mistakes.add: text has no mistake, needs a head and at least one below")
    for variation in found:
        refuse(variation)
    for variation in found:
        CATALOGUE.variations[variation.mistake.name] = variation
    return [variation.mistake.name for variation in found]


def refuse(variation: Variation) -> None:
    """A ValueError for a mistake that cannot be tried."""
    name = variation.mistake.name
    if not variation.replaces:
        raise ValueError(f"mistakes.add: {name} has no lines, needs some behind |")
    for full, wrong in variation.replaces.items():
        assert isinstance(wrong, Lines)
        if wrong.read == STEPS[full].read:
            raise ValueError(
                f"mistakes.add: {name} has the lines of {full}, needs others: it changes nothing"
            )
    for full, one in unknown_names(variation):
        program = full.partition(".")[0]
        raise ValueError(
            f"mistakes.add: {name} reads {one!r}, needs a name that a step binds"
            + nearest(one, [*variables(program), *variables("")], "")
        )


def nearest(wrong: str, known: list[str], otherwise: str) -> str:
    close = get_close_matches(wrong, known, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f": {otherwise}" if otherwise else ""


def unknown_names(variation: Variation) -> Iterator[tuple[str, str]]:
    """What lines read that neither they nor any step nor the run has bound, by their steps. (A
    layer's steps may read what the model's have bound.)"""
    replaced = {full: one for full, one in variation.replaces.items() if isinstance(one, Lines)}
    known = {*variables(""), *IN_EVERY_RUN}
    for wrong in replaced.values():
        known |= {*wrong.names, *names(wrong.statements, ast.Store)}
    for full, wrong in replaced.items():
        yield from ((full, x) for x in names(wrong.statements, ast.Load) if x not in known)


def variables(program: str) -> list[str]:
    """What a run of a program binds; "": of any program."""
    found = [
        name
        for step, lines in STEPS.items()
        if program in ("", step.partition(".")[0])
        for name in named_in(lines)
    ]
    for of, spelled in OPERATIONS.items():
        if program in ("", spelled.name):
            called: list[Any] = [of, of.__call__] if isinstance(of, type) else [of]
            found += [name for one in called for name in inspect.signature(one).parameters]
    return found


@cache
def named_in(right: Lines) -> list[str]:
    return [*names(right.statements, (ast.Load, ast.Store))]


def names(statements: list[ast.stmt], context: Any) -> Iterator[str]:
    for one in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(one, ast.Name) and isinstance(one.ctx, context):
            yield one.id
        elif isinstance(one, ast.arg):  # of a function inside
            yield one.arg
