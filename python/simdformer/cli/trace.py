"""`simdformer trace`: every activation of a prompt, as a table or as a file."""

import argparse
import sys
from collections.abc import Mapping

import numpy as np

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values
from simdformer.types import Array

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "trace",
        run,
        arguments="MODEL [PROMPT]",
        help="show every activation by name, or write them to a file",
        description="Lets a model read PROMPT and shows name, shape, dtype, root mean square, "
        "least and greatest of each activation (infinities left out), or writes the arrays to a "
        "file for sf.Trace.load or numpy.load.",
        epilog="example: simdformer trace demo 'Once upon a time' --names 'layers.*.resid_*'",
    )
    shared.add_model(parser)
    shared.add_prompt(parser)
    parser.add_argument(
        "--names",
        nargs="+",
        metavar="GLOB",
        help="which ones: layers.0.attn.pattern, 'layers.*.mlp.out', ... (default: all)",
    )
    parser.add_argument(
        "--out",
        type=values.new_file,
        metavar="FILE.npz",
        help="write the arrays, with 'ids', 'tokens' and 'model' beside them",
    )
    shared.add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    prompt = shared.prompt_of(options)
    model = shared.load(options)
    shared.tokenizer_of(model, options)
    _, trace = model.run_with_cache(prompt, options.names)
    if options.out is None:
        for line in table(trace):
            print(line)
        return 0
    trace.save(options.out)
    size = output.memory(trace.nbytes)
    print(f"{options.out}: {output.count(len(trace), 'array')}, {size}", file=sys.stderr)
    return 0


def table(trace: Mapping[str, Array]) -> list[str]:
    rows = [["name", "shape", "dtype", "rms", "min", "max"]]
    for name, array in trace.items():
        numbers = array[~np.isinf(array)].astype(np.float64)
        rms = np.sqrt(np.mean(numbers**2)) if numbers.size else np.nan
        least, greatest = (numbers.min(), numbers.max()) if numbers.size else (np.nan, np.nan)
        shape = "x".join(map(str, array.shape))
        rows.append([name, shape, str(array.dtype)])
        rows[-1] += [f"{number:.4g}" for number in (rms, least, greatest)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if at > 2 else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
