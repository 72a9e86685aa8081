"""`simdformer check`: which functions of a file are right, and which mistake the others make."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values

if TYPE_CHECKING:
    from simdformer.learn.exercises import Outcome, Results

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "check",
        run,
        arguments="FILE [NAME]",
        help="check the functions that you have written, and name the mistakes in them",
        description="Runs the functions of FILE, as `simdformer learn` makes it, on inputs of many "
        "shapes and compares the results with the right ones. FILE runs in a process of its own. "
        "Exit status: 0 when all functions are right, 1 when not, 2 when FILE cannot be run.",
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a Python file, as `simdformer learn` writes it"
    )
    parser.add_argument(
        "function", metavar="NAME", nargs="?", help="the one function to look at (default: all)"
    )
    parser.add_argument(
        "--hint",
        metavar="N",
        nargs="?",
        const=1,
        type=values.whole(1, 3),
        help="how NAME can be written: hint 1, 2 or 3, each says more (default: 1)",
    )
    parser.add_argument("--solution", action="store_true", help="show one way to write NAME")
    parser.add_argument(
        "--seconds",
        type=values.number("a number > 0", lambda seconds: seconds > 0),
        default=10.0,
        metavar="N",
        help="how long one function may take (default: 10)",
    )


def run(options: argparse.Namespace) -> int:
    from simdformer.learn import exercises

    asked = "--hint" if options.hint else "--solution" if options.solution else ""
    if asked and options.function is None:
        raise ValueError(
            f"{asked}: of which function? simdformer check {options.file} NAME {asked}"
        )
    if asked:
        name = exercises.known(options.function)
        return hint(options.file, name, options.hint) if options.hint else solution(name)
    names = None if options.function is None else [options.function]
    width = max(map(len, names or exercises.EXERCISES))

    def show(outcome: "Outcome") -> None:
        output.write("\n".join(outcome.lines(width)) + "\n")

    results = exercises.check_file(options.file, names=names, seconds=options.seconds, show=show)
    missing = [outcome.name for outcome in results if outcome.status == "missing"]
    if missing:
        output.paragraph(f"not in the file: {', '.join(missing)}", hanging="  ")
    if names is None:
        output.write(f"\n{results.summary}\n")
    output.write(next_step(options.file, results, one=names is not None))
    return 0 if results.ok else 1


def next_step(file: Path, results: "Results", *, one: bool) -> str:
    """What to type now."""
    check = f"simdformer check {file}"
    todo = next((outcome for outcome in results if not outcome.ok), None)
    if todo is not None:
        return f"stuck?  {check} {todo.name} --hint\n"
    if one:
        return f"go on:  {check}\n"
    return (
        f"You have written a transformer. Let it write and learn: simdformer learn --run {file}\n"
    )


def hint(file: Path, name: str, number: int) -> int:
    from simdformer.learn import exercises

    hints = exercises.HINTS[name]
    output.write(f"{name}, hint {number} of {len(hints)}\n")
    output.paragraph(f"  {hints[number - 1]}")
    more = f"--hint {number + 1}" if number < len(hints) else "--solution"
    output.write(f"\nmore:   simdformer check {file} {name} {more}\n")
    return 0


def solution(name: str) -> int:
    from simdformer.learn import exercises

    output.write(exercises.solution(name))
    return 0
