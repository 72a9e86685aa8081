"""What every reader gives back, and which reader a path gets.

A file is hostile until proven otherwise: its size is known before anything is allocated, nothing in
it is executed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from simdformer.models.config import ModelConfig

__all__ = ["Checkpoint", "CheckpointError", "Tensor", "read_checkpoint"]


class CheckpointError(ValueError):
    """A file that is no good checkpoint or tokenizer; says where, what is found, what is needed.

    `file`, `tensor`, `found` and `needed` hold the parts of the message where the reader knows
    them, else None.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | os.PathLike[str] | None = None,
        tensor: str | None = None,
        found: str | None = None,
        needed: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file, self.tensor, self.found, self.needed = file, tensor, found, needed


class Tensor(Protocol):
    """An ndarray, or what becomes one when `np.asarray` asks (a tensor in a file)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def nbytes(self) -> int: ...
    def __array__(self) -> npt.NDArray[Any]: ...


@dataclass(frozen=True)
class Checkpoint:
    """What a reader found: the config, every tensor under the names of `weight_shapes`, and the ids
    that end a text where a file says so. `path` is what the weights were read from."""

    path: Path
    format: str
    config: ModelConfig
    weights: Mapping[str, Tensor]
    eos_ids: tuple[int, ...] = ()


def read_checkpoint(
    path: str | os.PathLike[str],
    format: str | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Reads the checkpoint at `path`: a file, or a directory that holds one.

    Parameters
    ----------
    path : path
    format : {None, "meta", "huggingface", "minimind", "llama2.c"}
        None: found out; needed where one directory holds several.

        meta          a directory with params.json and consolidated.00.pth, consolidated.01.pth, ...
        huggingface   a directory with config.json and .safetensors files (and their index), or one
                      .safetensors file with its config.json beside it
        minimind      a .pth file, a state dict under Hugging Face's names, with its config.json
                      beside it or in `config`
        llama2.c      a .bin file, legacy or version 1
    config : path or dict, optional
        What config.json would say, of a huggingface or minimind checkpoint.

    The weights stay in the file until `np.asarray` asks for one, which reads it. Raises
    FileNotFoundError when there is no such path, CheckpointError (a ValueError) when what is there
    is damaged, cannot be read, or when weights and config do not fit each other.
    """
    from simdformer.models import formats  # the readers import this module

    return formats.read(Path(path), format, config)
