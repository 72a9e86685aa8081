"""Prints how many threads each rank computes with; all have one instruction set."""

import sys

from mpi4py import MPI

import simdformer as sf
from simdformer.parallel import communicator_of

if MPI.COMM_WORLD.rank == 1:
    sf.set_isa(sf.isas()[0])  # as on an older machine
communicator_of(MPI.COMM_WORLD)
every = MPI.COMM_WORLD.gather((sf.get_num_threads(), sf.isa()))
if MPI.COMM_WORLD.rank == 0:
    assert len({isa for _, isa in every}) == 1, every
    print(*(threads for threads, _ in every))
sys.stdout.flush()
