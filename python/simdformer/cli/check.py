"""`simdformer check`: which functions of a file are right, and which mistake the others make."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from simdformer.cli import _shared as shared

if TYPE_CHECKING:
    from simdformer.learn.exercises import Outcome

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "check",
        run,
        help="check the functions that you have written, and name the mistakes in them",
        description="Runs the functions of FILE, as `simdformer learn` makes it, on inputs of many "
        "shapes and compares the results with the right ones. FILE runs in a process of its own. "
        "Exit status: 0 when all functions are right, 1 when not, 2 when FILE cannot be run.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a Python file")
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="N",
        help="how long one function may take (default: 10)",
    )


def run(options: argparse.Namespace) -> int:
    from simdformer.learn import exercises

    if not options.seconds > 0:
        raise ValueError(f"--seconds is {options.seconds:g}, needed is a number > 0")
    width = max(map(len, exercises.EXERCISES))

    def show(outcome: "Outcome") -> None:
        shared.write("\n".join(outcome.lines(width)) + "\n")

    results = exercises.check_file(options.file, seconds=options.seconds, show=show)
    missing = [outcome.name for outcome in results if outcome.status == "missing"]
    if missing:
        shared.write(f"not in the file: {', '.join(missing)}\n")
    shared.write(f"\n{results.summary}\n")
    return 0 if results.ok else 1
