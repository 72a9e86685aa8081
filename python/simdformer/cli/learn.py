"""`simdformer learn`: the exercises as a file to begin with."""

import argparse
from pathlib import Path

from simdformer.cli import _output as output
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
            f"`simdformer check {there.filename}` says how far it is, --out writes another one"
        ) from None
    welcome(file)
    return 0


def welcome(file: Path) -> None:
    """What has happened, and what to do next."""
    from simdformer.learn.exercises import EXERCISES
    from simdformer.learn.exercises.results import folded

    def say(text: str) -> None:
        output.write("\n".join(folded(text, hanging="")) + "\n\n")

    names: dict[str, list[str]] = {}
    for exercise in EXERCISES.values():
        names.setdefault(exercise.chapter, []).append(exercise.name)
    first = next(iter(EXERCISES))
    say(
        f"Welcome. {file} holds {len(EXERCISES)} functions without bodies. Together they are a "
        "transformer that writes text. Each says what comes in, what comes out, and in which "
        "shapes; write them in any order, with numpy or PyTorch."
    )
    for chapter, (one, *more) in names.items():
        output.write(f"  {chapter:<19}{one} and {len(more)} more\n")
    output.write("\n")
    say(
        f"Begin with {first}: open {file} in an editor, write your code in place of "
        "`raise NotImplementedError`, and type"
    )
    output.write(f"    simdformer check {file} {first}\n\n")
    say(
        "which says whether it is right, or which mistake it makes. When you are stuck, put --hint "
        "behind it, and --solution when nothing else helps. To look at all of them at once:"
    )
    output.write(f"    simdformer check {file}\n")


def show_list() -> None:
    from simdformer.learn.exercises import EXERCISES
    from simdformer.learn.exercises.results import folded

    chapter = ""
    for exercise in EXERCISES.values():
        if exercise.chapter != chapter:
            print(("\n" if chapter else "") + exercise.chapter)
            chapter = exercise.chapter
        print(*folded(f"  {exercise.signature}"), *folded(f"      {exercise.summary}"), sep="\n")
