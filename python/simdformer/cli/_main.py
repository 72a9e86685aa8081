"""From a command line to an exit status."""

import argparse
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import simdformer as sf
from simdformer.cli._output import describe
from simdformer.cli._shared import Parser, add_machine
from simdformer.models.communicator import Communicator
from simdformer.mpiexec import started
from simdformer.parallel.world import world
from simdformer.starting import begin

__all__ = ["main"]

FIRST_STEPS = """\
A transformer you can see through: run a model, or watch one attention step.

first steps:
  simdformer demo                           see attention, then a model at work
  simdformer run demo "Once upon a time"    let that model continue a text
  simdformer learn                          write a transformer yourself

`simdformer COMMAND --help` explains a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit status."""
    prepare_streams()
    ranks = Communicator()
    try:
        if started() > 1:
            begin()
            ranks = world()
        if ranks.rank > 0:
            be_silent()
        status = run(arguments, ranks)
        sys.stdout.flush()  # what cannot be written is told here, and not after the end
    except BrokenPipeError:  # `simdformer run ... | head`
        status = failed(ranks, None, 0)
    except KeyboardInterrupt:
        status = failed(ranks, "", 130)
    except (OSError, ValueError, TypeError, LookupError, MemoryError, ImportError) as error:
        status = failed(ranks, f"simdformer: error: {describe(error)}", 2)
    discard_unwritten()
    return status


def failed(ranks: Communicator, message: str | None, status: int) -> int:
    """Says why, if there is something to say: rank 0 where all ranks fail, else the one that does,
    which then ends the others."""
    if not ranks.all_fail():
        if message is not None:
            ranks.complain(message or "interrupted")
        ranks.end(status)
    if message is not None and ranks.rank == 0:
        print(message, file=sys.stderr)
    return status


def be_silent() -> None:
    """Rank 0 speaks for all."""
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def run(arguments: Sequence[str] | None, ranks: Communicator) -> int:
    top = parser()
    options, unknown = top.parse_known_args(arguments)
    asked: Parser = getattr(options, "parser", top)
    if unknown := asked.behind_options(options, unknown):
        what = f"unrecognized arguments: {' '.join(unknown)}"
        asked.error(f"{what} (-- goes before a text that begins with -)")
    if "command" not in options:
        top.print_help()
        return 0
    if ranks.size > 1 and not options.over_ranks:
        raise ValueError(
            f"simdformer {options.name} works alone, found {ranks.size} ranks of mpiexec; over "
            "ranks there are run, chat, generate, eval, bench, plan and train"
        )
    options.ranks = ranks
    if options.threads is not None:
        sf.set_num_threads(options.threads)
    if options.isa is not None:
        sf.set_isa(options.isa)
    begin()
    return int(options.command(options))


def parser() -> Parser:
    top = Parser(
        prog="simdformer",
        usage="simdformer COMMAND ...",
        description=FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"simdformer {sf.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", prog=top.prog)
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):  # in alphabetical order
        if not module.name.startswith("_"):
            import_module(f"simdformer.cli.{module.name}").add(commands)
    for command in commands.choices.values():
        add_machine(command)
    return top


def prepare_streams() -> None:
    """What a terminal cannot show becomes "?", what goes to a closed stream is lost, and what is
    typed but no text is for a command to refuse."""
    if hasattr(sys.stdin, "reconfigure"):  # not where somebody has replaced it
        sys.stdin.reconfigure(errors="surrogateescape")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def discard_unwritten() -> None:
    """What a closed pipe or a full disk has not taken: Python would try again at its end, and
    complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
