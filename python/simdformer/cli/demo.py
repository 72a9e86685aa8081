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
        arguments="[MODEL]",
        help="one attention step checked line by line, then a trained model that answers",
        description="Walks through one attention step, numpy beside the kernels, then lets a "
        "trained model answer, write, and show where it looks, and ends with one gradient. Exit "
        "status 1 when a check fails.",
    )
    shared.add_model(parser, otherwise="demo")


def run(options: argparse.Namespace) -> int:
    return demo.run(options.model)
