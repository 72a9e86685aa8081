"""Rank 1 waits for rank 0, which is busy; prints how long its naps are, the first and the last."""

import time

from simdformer.parallel import mpi, world

naps, nap = [], time.sleep


def noted(seconds):
    naps.append(seconds)
    nap(seconds)


def main():
    ranks = world()
    mpi.time.sleep = noted
    ranks.broadcast(lambda: nap(1.0) if ranks.rank == 0 else None)
    if ranks.rank == 1:
        print(naps[0], naps[-1])


if __name__ == "__main__":
    main()
