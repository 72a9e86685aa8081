"""`simdformer bench`: how fast the kernels are, beside others and beside the machine's limits."""

import argparse
import json
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from simdformer.cli import _shared as shared

if TYPE_CHECKING:
    from simdformer.bench import Case, Results

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "bench",
        run,
        over_ranks=True,
        help="how fast the kernels are, beside PyTorch, onnxruntime and the machine's limits",
        description="Measures each operation beside PyTorch, onnxruntime and numpy, by turns, on "
        "the same numbers and threads (models beside transformers and llama.cpp); and what this "
        "machine could do at most. A full run takes some minutes and wants an idle machine; Ctrl-C "
        "ends it with what was measured until then. Exit status 1 when a result of ours is wrong. "
        "Under mpiexec: models of random weights on all ranks together, or with --training steps "
        "of training, beside what `simdformer plan` predicts; --only counts there, and no more.",
        epilog="example: simdformer bench --only decode --only 'linear/*/m1' --json times.json",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="cases of that name or group, * matches anything; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="name the cases and their goals")
    parser.add_argument(
        "--models",
        action="store_true",
        help="also whole models of random weights, about 1 billion parameters (10 GB of memory; "
        "a copy for llama.cpp is a file of 3 GB in the folder for temporary files for a while)",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="measure a checkpoint of yours instead: time and memory of loading, then a "
        "GGUF file beside llama.cpp, a directory of Hugging Face's beside transformers, with the "
        "errors of both against float64",
    )
    parser.add_argument(
        "--transformers",
        action="store_true",
        help="also what our attention and `accelerate` bring to such models inside transformers "
        "(6 GB of memory)",
    )
    parser.add_argument(
        "--training",
        nargs="?",
        const="whole",
        choices=("whole", "short"),
        help="instead of all that whole steps of training in float32 and bfloat16, beside PyTorch "
        "with transformers' models (8 GB of memory, minutes a line); short: an eighth of the rows",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="with --training: PyTorch also as torch.compile makes it, minutes a line; where that "
        "fails the reason is printed",
    )
    parser.add_argument(
        "--budget", type=float, default=2.0, metavar="SECONDS", help="for each case (default: 2)"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--markdown", action="store_true", help="the table as Markdown")
    output.add_argument("--json", type=Path, metavar="FILE", help="every number, to a file")
    output.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="the roofline, and tokens a second against texts at once (needs matplotlib)",
    )


def run(options: argparse.Namespace) -> int:
    from simdformer import bench
    from simdformer.bench import report

    if options.compile and options.training is None:
        raise ValueError("--compile is for --training; give that too")
    short = options.training == "short"
    if options.ranks.size > 1 and options.training is not None:
        for case in bench.select(bench.training_cases(short=short), options.only):
            try:
                print(bench.measure_step_over_ranks(options.ranks, case), flush=True)
            except ValueError as error:  # too few rows, on all ranks alike
                print(f"{case.name} skipped: {error}", flush=True)
        return 0
    if options.ranks.size > 1:
        for shape in shapes_of(options.only):
            print(bench.measure_over_ranks(options.ranks, shape), flush=True)
        return 0
    if options.training is not None:
        cases = list(bench.training_cases(short=short, compiled=options.compile))
    elif options.model is not None:
        cases = bench.checkpoint_cases(options.model)
    else:
        cases = bench.all_cases(models=options.models, transformers=options.transformers)
    cases = bench.select(cases, options.only)
    if options.list:
        print("\n".join(listed(case) for case in cases))
        return 0
    check_files(options)

    def progress(results: "Results") -> None:
        if not options.markdown:
            print(report.line(results) if results.results else report.header(results), flush=True)

    results = bench.run(cases, budget=options.budget, progress=progress)
    print(report.markdown(results) if options.markdown else "\n" + report.summary(results))
    if options.json:
        text = json.dumps(results.as_json(), indent=1, allow_nan=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.plot:
        bench.save_plot(results, options.plot)
    if results.interrupted:
        return 130
    return 0 if results.right else 1


def shapes_of(patterns: list[str]) -> list[str]:
    """The shapes of models; without patterns the smallest."""
    from simdformer.bench import SHAPES

    known = list(SHAPES)
    found = [name for name in known if any(fnmatch(name, pattern) for pattern in patterns)]
    if patterns and not found:
        raise ValueError(f"--only names no model, needs one of {', '.join(known)}")
    return found or known[:1]


def listed(case: "Case") -> str:
    return f"{case.name:<34} {', '.join(map(str, case.goals))}".rstrip()


def check_files(options: argparse.Namespace) -> None:
    """Complains before the measuring, not after it."""
    from simdformer.bench.plots import new_axes

    for file in filter(None, (options.json, options.plot)):
        with file.open("a"):  # creates it, and leaves what is in it alone for now
            pass
    if options.plot:
        new_axes(1)
