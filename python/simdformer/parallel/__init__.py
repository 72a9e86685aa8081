"""Models on several processes and machines: tensor parallelism over MPI.

    mpiexec -n 4 simdformer run MODEL "Once upon a time"

    from mpi4py import MPI
    model = sf.from_pretrained(path, comm=MPI.COMM_WORLD)       # in a program under mpiexec

mpi4py is imported where ranks are asked for, and not before.
"""

from simdformer.parallel.mpi import MPICommunicator, communicator_of
from simdformer.parallel.world import world

__all__ = ["MPICommunicator", "communicator_of", "world"]
__dir__ = __all__.copy  # what dir() and completion show
