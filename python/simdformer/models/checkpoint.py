"""What every reader gives back, how a file is opened, and which reader a path gets.

A file is hostile until proven otherwise: its size is known before anything is mapped, nothing in it
is executed.
"""

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simdformer.models.config import ModelConfig
from simdformer.types import Array

__all__ = ["Checkpoint", "CheckpointError", "map_file", "read_checkpoint"]


class CheckpointError(ValueError):
    """A file that is no good checkpoint or tokenizer; says where, what is found, what is needed."""


@dataclass(frozen=True)
class Checkpoint:
    """What a reader found: the config, and every tensor under the names of `weight_shapes`."""

    path: Path
    format: str
    config: ModelConfig
    weights: dict[str, Array]


def map_file(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """The bytes of a regular file, read-only and memory-mapped; it must not shrink meanwhile.

    FileNotFoundError when there is none, CheckpointError when it is something else.
    """
    # O_NONBLOCK: opening a named pipe must not wait for somebody to write into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{os.fspath(path)}: is not a regular file; give the path of one")
        if status.st_size == 0:
            raise CheckpointError(f"{os.fspath(path)}: is empty; download or export it again")
        return np.frombuffer(
            mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ), np.uint8
        )
    finally:
        os.close(descriptor)


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads the checkpoint at `path`: a file, or a directory that holds one.

    Formats: llama2.c `.bin` (legacy and version 1). FileNotFoundError when there is no such path,
    CheckpointError when what is there cannot be read.
    """
    from simdformer.models import llama2c  # the readers import this module

    path = Path(path)
    return llama2c.read(llama2c.find(path) if path.is_dir() else path)
