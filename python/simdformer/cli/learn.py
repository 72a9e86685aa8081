"""`simdformer learn`: the exercises as a file to begin with."""

import argparse
from collections.abc import Callable
from functools import partial
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
        description="Writes a Python file, or a notebook, with the functions of a transformer, "
        "each with its shapes and without a body. Fill them in, in any order, and let `simdformer "
        "check` say which are right. At last --run lets them write a story and train a model.",
    )
    parser.add_argument(
        "--out",
        type=values.new_file,
        metavar="FILE",
        help="where to write it (default: my_attention.py), a notebook where it ends in .ipynb; "
        "nothing is overwritten",
    )
    parser.add_argument(
        "--run",
        type=values.existing,
        nargs="?",
        const="my_attention.py",
        metavar="FILE",
        help="let the functions of FILE run the demonstration model and write a story, and train a "
        "small model (default: my_attention.py)",
    )
    parser.add_argument(
        "--seconds",
        type=values.number("a number >= 0", lambda seconds: seconds >= 0),
        default=60.0,
        metavar="N",
        help="with --run: how long the functions train a model (default: 60; 0: not at all)",
    )
    parser.add_argument(
        "--list", action="store_true", help="show what there is to write, and write no file"
    )


def run(options: argparse.Namespace) -> int:
    from simdformer.learn import exercises
    from simdformer.learn.exercises.notebook import is_notebook

    if options.list:
        show_list()
        return 0
    if options.run:
        return let_run(options.run, options.seconds)
    try:
        file = exercises.write(options.out or exercises.DEFAULT_FILE)
    except FileExistsError as there:
        how_far = (
            f"`simdformer check {there.filename}` says how far it is"
            if not is_notebook(there.filename)
            else "its cells say how far it is"
        )
        raise ValueError(
            f"{there.filename}: there is such a file already and it stays as it is; {how_far}, "
            "--out writes another one"
        ) from None
    welcome(file)
    return 0


def let_run(file: Path, seconds: float) -> int:
    """0 when the functions compute what the package computes, 1 when something else."""
    from simdformer.learn import exercises

    finales: list[Callable[[], exercises.Story | exercises.Training]]
    finales = [partial(exercises.story, file)]
    if seconds:
        finales.append(partial(exercises.train, file, seconds))
    done, lacking = [], list[exercises.NotRight]()
    for finale in finales:
        try:
            done.append(finale())
        except exercises.NotRight as error:
            lacking.append(error)
        else:
            output.write(f"{done[-1]!r}\n\n")
    if not done:
        raise lacking[0]
    for one in lacking:
        output.paragraph(str(one))
    return 0 if all(finale.ok for finale in done) else 1


def welcome(file: Path) -> None:
    """What has happened, and what to do next."""
    from simdformer.learn.exercises import EXERCISES
    from simdformer.learn.exercises.notebook import is_notebook

    names: dict[str, list[str]] = {}
    for exercise in EXERCISES.values():
        names.setdefault(exercise.chapter, []).append(exercise.name)
    first = next(iter(EXERCISES))
    output.paragraph(
        f"Welcome. {file} holds {len(EXERCISES)} functions without bodies. Together they are a "
        "transformer that writes text, and what trains one. Each says what comes in, what comes "
        "out, and in which shapes; write them in any order, with numpy or PyTorch."
    )
    output.write("\n")
    for chapter, (one, *more) in names.items():
        output.write(f"  {chapter:<19}{one} and {len(more)} more\n")
    output.write("\n")
    if is_notebook(file):
        output.paragraph(
            f"Open it in Jupyter and begin with {first}: write your code in place of `raise "
            "NotImplementedError`, and run the cell below it, which says whether it is right, or "
            "which mistake it makes. Hints and a solution open on a click."
        )
        output.write(f"\n    jupyter lab {file}\n")
        return
    output.paragraph(
        f"Begin with {first}: open {file} in an editor, write your code in place of "
        "`raise NotImplementedError`, and type"
    )
    output.write(f"\n    simdformer check {file} {first}\n\n")
    output.paragraph(
        "which says whether it is right, or which mistake it makes. When you are stuck, put --hint "
        "behind it, and --solution when nothing else helps. To look at all of them at once:"
    )
    output.write(f"\n    simdformer check {file}\n\n")
    output.paragraph("When all are right, let them write a story and train a model:")
    output.write(f"\n    simdformer learn --run {file}\n")


def show_list() -> None:
    from simdformer.learn.exercises import EXERCISES
    from simdformer.learn.exercises.results import folded

    chapter = ""
    for exercise in EXERCISES.values():
        if exercise.chapter != chapter:
            print(("\n" if chapter else "") + exercise.chapter)
            chapter = exercise.chapter
        print(*folded(f"  {exercise.signature}"), *folded(f"      {exercise.summary}"), sep="\n")
