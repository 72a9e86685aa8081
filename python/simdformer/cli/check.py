"""`simdformer check`: which functions of a file are right, and which mistake the others make."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values

if TYPE_CHECKING:
    from simdformer.learn.exercises import Outcome

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "check",
        run,
        arguments="FILE",
        help="check the functions that you have written, and name the mistakes in them",
        description="Runs the functions of FILE, as `simdformer learn` makes it, on inputs of many "
        "shapes and compares the results with the right ones. FILE runs in a process of its own. "
        "Exit status: 0 when all functions are right, 1 when not, 2 when FILE cannot be run.",
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a Python file, as `simdformer learn` writes it"
    )
    parser.add_argument(
        "--seconds",
        type=values.number("a number > 0", lambda seconds: seconds > 0),
        default=10.0,
        metavar="N",
        help="how long one function may take (default: 10)",
    )


def run(options: argparse.Namespace) -> int:
    from simdformer.learn import exercises

    width = max(map(len, exercises.EXERCISES))

    def show(outcome: "Outcome") -> None:
        output.write("\n".join(outcome.lines(width)) + "\n")

    results = exercises.check_file(options.file, seconds=options.seconds, show=show)
    missing = [outcome.name for outcome in results if outcome.status == "missing"]
    if missing:
        output.write(f"not in the file: {', '.join(missing)}\n")
    output.write(f"\n{results.summary}\n")
    return 0 if results.ok else 1
