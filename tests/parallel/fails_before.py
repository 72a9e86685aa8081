"""A program whose ranks fail before they meet: fails_before.py RANK HOW."""

import sys

from mpi4py import MPI

import simdformer as sf

rank, how = sys.argv[1:]
longest = 16
if rank in ("all", str(MPI.COMM_WORLD.rank)):
    if how == "program":
        raise ZeroDivisionError("a bug")
    longest = "sixteen"
sf.from_pretrained(sf.demo_path(), max_seq_len=longest, comm=MPI.COMM_WORLD)
