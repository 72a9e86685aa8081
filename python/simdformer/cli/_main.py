"""From a command line to an exit status."""

import argparse
import contextlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import simdformer as sf
from simdformer.cli._shared import describe

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit status."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            AttributeError
        ):  # a replaced stream; what a terminal cannot show becomes "?"
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    options = parser().parse_args(arguments)
    try:
        use_machine(options)
        return int(options.command(options))
    except BrokenPipeError:  # `simdformer run ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except (OSError, ValueError, TypeError, LookupError, MemoryError, ImportError) as error:
        print(f"simdformer: error: {describe(error)}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="simdformer",
        description="A transformer you can see through: run a model, or watch one attention step.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):  # in alphabetical order
        if not module.name.startswith("_"):
            import_module(f"simdformer.cli.{module.name}").add(commands)
    return top


def use_machine(options: argparse.Namespace) -> None:
    if options.threads is not None:
        sf.set_num_threads(options.threads)
    if options.isa is not None:
        sf.set_isa(options.isa)
