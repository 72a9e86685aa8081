"""`simdformer learn`: the exercises as a file to begin with."""

import argparse

from simdformer.cli import _shared as shared
from simdformer.cli import _values as values

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "learn",
        run,
        help="write a transformer yourself: a file of functions to fill in",
        description="Writes a Python file with the functions of a transformer, each with its "
        "shapes and without a body. Fill them in, in any order, and let `simdformer check` say "
        "which are right.",
    )
    parser.add_argument(
        "--out",
        type=values.new_file,
        metavar="FILE",
        help="where to write it (default: my_attention.py); nothing is overwritten",
    )
    parser.add_argument(
        "--list", action="store_true", help="show what there is to write, and write no file"
    )


def run(options: argparse.Namespace) -> int:
    from simdformer.learn import exercises

    if options.list:
        show_list()
        return 0
    try:
        file = exercises.write(options.out or exercises.DEFAULT_FILE)
    except FileExistsError as there:
        raise ValueError(
            f"{there.filename}: there is such a file already and it stays as it is; "
            "give another name with --out"
        ) from None
    print(f"{file}: {len(exercises.EXERCISES)} functions to write. Fill in one, then run")
    print(f"    simdformer check {file}")
    return 0


def show_list() -> None:
    from simdformer.learn.exercises import EXERCISES

    chapter = ""
    for exercise in EXERCISES.values():
        if exercise.chapter != chapter:
            print(("\n" if chapter else "") + exercise.chapter)
            chapter = exercise.chapter
        print(f"  {exercise.signature}\n      {exercise.summary}")
