"""What a process knows of the mpiexec that started it, before it has asked for MPI.

Its ranks wait for each other wherever they meet first, `from_pretrained(comm=)` for instance. One
that fails on the way there would leave the others waiting for ever: from `import simdformer` on an
uncaught exception ends all of them.
"""

import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any, NoReturn

__all__ = [
    "EACH_RANK",
    "FAILED",
    "INTERRUPTED",
    "RANKS",
    "end_all",
    "end_all_on_errors",
    "started",
    "told",
]

# How MPICH, Intel MPI and Slurm, Open MPI, and MVAPICH tell a process.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
FAILED, INTERRUPTED = 1, 130
LAST_WORDS = 0.1  # seconds until what was said last has left this process
EACH_RANK = 0.2  # seconds that a rank waits for each before it, so that of several only one speaks


def started() -> int:
    """How many processes mpiexec has started; 1 without it."""
    return told(SIZES, 1)


def told(names: tuple[str, ...], otherwise: int) -> int:
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal()), otherwise)


def end_all_on_errors() -> None:
    """Has an uncaught exception end all ranks, where there are several; a hook of the program's own
    stays."""
    if started() > 1 and sys.excepthook is sys.__excepthook__:
        sys.excepthook = hook


def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    # Before MPI is there, and after it has gone, nobody can be told. Open MPI's mpiexec ends the
    # others by itself; so does MPICH's where a signal ends this one, Ctrl-C for instance.
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        sys.__excepthook__(kind, error, trace)
        return
    rank, size = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    time.sleep(EACH_RANK * rank)
    text = "".join(traceback.format_exception(kind, error, trace)).rstrip()
    print(f"rank {rank} of {size}: {text}", file=sys.stderr)
    end_all(mpi.COMM_WORLD, INTERRUPTED if issubclass(kind, KeyboardInterrupt) else FAILED)


def end_all(comm: Any, status: int) -> NoReturn:
    """Ends all ranks at once, with what they have said."""
    for stream in (sys.stdout, sys.__stderr__):
        if stream is not None:
            stream.flush()
    time.sleep(LAST_WORDS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI would say that it was asked to do so
    comm.Abort(status)
    raise SystemExit(status)
