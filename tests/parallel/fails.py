"""simdformer's command line on ranks of which one fails: fails.py RANK WHERE ERROR ARGUMENTS..."""

import sys

from simdformer import cli
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.files import InputFile
from simdformer.models import Transformer
from simdformer.mpiexec import RANKS, told

ERRORS = {
    "damaged": CheckpointError("damage", "none", file="model-2.safetensors"),
    "memory": MemoryError("no memory for 5 GB"),
    "bug": ZeroDivisionError("a bug"),
    "interrupted": KeyboardInterrupt(),
}
PLACES = {"reading": (InputFile, "_fill"), "mlp": (Transformer, "mlp")}


def break_down(where, error):
    """From its tenth call on a function fails."""
    owner, name = PLACES[where]
    function, calls = getattr(owner, name), []

    def broken(*arguments):
        calls.append(1)
        if len(calls) > 9:
            raise error
        return function(*arguments)

    setattr(owner, name, broken)


if __name__ == "__main__":
    rank, where, error, *arguments = sys.argv[1:]
    if rank in ("all", str(told(RANKS, 0))):
        break_down(where, ERRORS[error])
    sys.exit(cli.main(arguments))
