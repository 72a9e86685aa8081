"""`simdformer demo`: one attention step checked line by line, then a trained model."""

import argparse

from simdformer import demo
from simdformer.cli import _shared as shared

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "demo",
        run,
        help="one attention step checked line by line, then a story by a trained model",
        description="Walks through one attention step, numpy beside the kernels, then lets a "
        "trained model write. Exit status 1 when a check fails.",
    )
    shared.add_model(parser, otherwise=f"${demo.VARIABLE}, else {demo.DEFAULT_MODEL}")


def run(options: argparse.Namespace) -> int:
    return demo.run(options.model)
