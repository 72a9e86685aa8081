"""On every rank: loads a model alone, for its logits, and then in parts, counting the bytes read.
Prints what each rank has read, the size of the file, and what its weights take in memory."""

import os
import sys

import numpy as np
from mpi4py import MPI

import simdformer as sf
from same_as_alone import close
from simdformer.checkpoints.files import InputFile

IDS = np.array([7, 0, 29, 12, 12, 45, 101, 50, 3])
read = []


def counted(function):
    def count(self, memory, start, step):
        read.append(memory.size)
        return function(self, memory, start, step)

    return count


def main(path, arithmetic):
    alone = sf.from_pretrained(path, arithmetic=arithmetic)(IDS)
    InputFile._fill = counted(InputFile._fill)
    model = sf.from_pretrained(path, arithmetic=arithmetic, comm=MPI.COMM_WORLD)
    close(model(IDS), alone)
    files = [path] if os.path.isfile(path) else [entry.path for entry in os.scandir(path)]
    every = MPI.COMM_WORLD.gather(sum(read))
    if MPI.COMM_WORLD.rank == 0:
        print(sum(map(os.path.getsize, files)), *every)


if __name__ == "__main__":
    main(*sys.argv[1:])
