"""The ranks on which mpiexec has started a program."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from simdformer.models.communicator import Communicator
from simdformer.mpiexec import RANKS, started, told
from simdformer.parallel.mpi import communicator_of

__all__ = ["EXTRA", "world"]

EXTRA = 'pip install ".[mpi]"'
QUIET = "MPIR_CVAR_SUPPRESS_ABORT_MESSAGE"  # of MPICH: we say ourselves why it ends


def world() -> Communicator:
    """All of them. Where they cannot talk to each other: ImportError or ValueError on the first,
    and on the others a SystemExit that is no failure: Open MPI's mpiexec kills all at the first
    failure, and the first rank has to say why."""
    size = started()
    if size <= 1:
        return Communicator()
    try:
        os.environ.setdefault(QUIET, "1")
        try:
            with ended_by_ctrl_c():
                from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # no mpi4py, or no MPI for it
            why = str(error).partition("\n")[0]
            raise ImportError(
                f"mpiexec started {size} processes, and mpi4py, by which they talk, is missing "
                f"({why}): {EXTRA}"
            ) from None
        if MPI.COMM_WORLD.size != size:
            raise ValueError(
                f"mpiexec started {size} processes, and mpi4py sees {MPI.COMM_WORLD.size}: they "
                f"belong to different MPIs; use the mpiexec of {MPI.get_vendor()[0]}, which mpi4py "
                "loads"
            )
    except (ImportError, ValueError):
        if told(RANKS, 0) > 0:
            raise SystemExit(0) from None
        raise
    return communicator_of(MPI.COMM_WORLD)


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the process meanwhile, where it would raise KeyboardInterrupt otherwise. Ranks
    wait for each other where MPI begins, and Python does not look at signals before it is there:
    one that ends on the way leaves the others waiting for ever, with MPICH's mpiexec."""
    usual = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if usual is not signal.default_int_handler or not is_main:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
