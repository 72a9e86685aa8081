"""A run in a process of its own: program.py DIRECTORY KILLED_IN KILLED_AT [--resume].

KILLED_IN is where the process kills itself, at the call number KILLED_AT: "step" (the gradients of
a micro-batch), "arrays" (the file is half written), "sync", "rename", or "never".
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

from bigrams import Bigrams
from simdformer.models.communicator import Communicator
from simdformer.mpiexec import started
from simdformer.parallel.world import world
from simdformer.training import checkpoint
from simdformer.training.data import StreamRows
from simdformer.training.options import TrainOptions
from simdformer.training.run import Run

OPTIONS = TrainOptions(
    data=("x",), steps=12, batch_tokens=128, context=16, micro_batches=4, warmup=3, lr=1e-2,
    save_minutes=0.0, every=5,
)  # fmt: skip


def deadly(function, at, before=lambda *_: None):
    """The function; its call number `at` kills the process."""
    calls = 0

    def call(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls == at:
            before(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)

    return call


def main(directory, where, at, *rest):
    ranks = world() if started() > 1 else Communicator()
    ids = np.random.default_rng(5).integers(0, 64, 1000).astype(np.uint16)
    model = Bigrams()
    run = Run(
        model, StreamRows(ids, 16), OPTIONS, Path(directory), {"content of DATA": "same"},
        StreamRows(ids[::-1], 16), ranks,
    )  # fmt: skip
    if where == "step":
        model.loss_and_gradients = deadly(model.loss_and_gradients, at)
    elif where == "arrays":
        half = lambda file, **_: file.write(b"half") and file.flush()  # noqa: E731
        checkpoint.np.savez = deadly(np.savez, at, half)
    elif where == "sync":
        os.fsync = deadly(os.fsync, at)
    elif where == "rename":
        Path.rename = deadly(Path.rename, at)
    run.begin(resume="--resume" in rest)
    for _ in run.steps():
        pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
