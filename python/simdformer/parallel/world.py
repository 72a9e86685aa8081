"""The ranks on which mpiexec has started a program."""

import os

from simdformer.models.communicator import Communicator
from simdformer.parallel.mpi import communicator_of

__all__ = ["EXTRA", "started", "world"]

EXTRA = 'pip install ".[mpi]"'
# How MPICH, Intel MPI and Slurm, Open MPI, and MVAPICH tell a process, before it has asked for MPI.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
QUIET = "MPIR_CVAR_SUPPRESS_ABORT_MESSAGE"  # of MPICH: we say ourselves why it ends


def started() -> int:
    """How many processes mpiexec has started; 1 without it."""
    return told(SIZES, 1)


def told(names: tuple[str, ...], otherwise: int) -> int:
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal()), otherwise)


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
