"""The formats of checkpoints, and which of them a path gets.

A new format is a file beside this one that makes a `Format`, and a line in FORMATS.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simdformer.checkpoints.checkpoint import Checkpoint, Format
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.gguf import GGUF
from simdformer.checkpoints.huggingface import HUGGINGFACE
from simdformer.checkpoints.llama2c import LLAMA2C
from simdformer.checkpoints.meta import META
from simdformer.checkpoints.minimind import MINIMIND
from simdformer.checkpoints.peft import CONFIG as ADAPTER_CONFIG

__all__ = ["FORMATS", "read_checkpoint"]

FORMATS = (META, HUGGINGFACE, GGUF, MINIMIND, LLAMA2C)  # a file is the first's that knows it


def read_checkpoint(
    path: str | os.PathLike[str],
    format: str | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Reads the checkpoint at `path`: a file, or a directory that holds one.

    Parameters
    ----------
    path : path
    format : {None, "meta", "huggingface", "gguf", "minimind", "llama2.c"}
        None: found out; needed where one directory holds several.

        meta          a directory with params.json and consolidated.00.pth, consolidated.01.pth, ...
        huggingface   a directory with config.json and .safetensors files (and their index), or one
                      .safetensors file with its config.json beside it
        gguf          a .gguf file of llama.cpp, or NAME-00001-of-00002.gguf with all other parts
        minimind      a .pth file, a state dict under Hugging Face's names, with its config.json
                      beside it or in `config`
        llama2.c      a .bin file, legacy or version 1
    config : path or dict, optional
        What config.json would say, of a huggingface or minimind checkpoint.

    The weights stay in the file until `np.asarray` asks for one, which reads it. Raises
    FileNotFoundError when there is no such path, CheckpointError (a ValueError) when what is there
    is damaged, cannot be read, or when weights and config do not fit each other.
    """
    path = Path(path)
    chosen = None if format is None else named(format)
    path.stat()  # FileNotFoundError
    if chosen is None:
        chosen = format_in(path) if path.is_dir() else format_of(path)
    if config is not None and not chosen.takes_config:
        raise CheckpointError(
            "a config given", f"none: a {chosen.name} checkpoint has its config inside", file=path
        )
    return chosen.read(path, config)


def named(name: str) -> Format:
    """The format of that name."""
    for format in FORMATS:
        if format.name == name:
            return format
    known = ", ".join(format.name for format in FORMATS)
    raise ValueError(f"format is {name!r}, needs one of {known}, or None")


def format_in(directory: Path) -> Format:
    """The format of the one checkpoint in a directory."""
    found = [format for format in FORMATS if format.found_in(directory)]
    if len(found) > 1:
        raise CheckpointError(
            f"checkpoints of {len(found)} formats",
            "one",
            file=directory,
            advice="say which one to read: "
            + " or ".join(f'format="{format.name}"' for format in found),
        )
    if not found and (directory / ADAPTER_CONFIG).exists():
        raise CheckpointError(
            "an adapter alone",
            "a model",
            file=directory,
            advice="give the model that it was made for, and this as its adapter",
        )
    if not found:
        there = sorted(entry.name for entry in directory.iterdir())
        names = ", ".join(map(repr, there[:8])) + (", ..." if len(there) > 8 else "")
        raise CheckpointError(
            f"no checkpoint among [{names}]",
            ", or ".join(format.files for format in FORMATS),
            file=directory,
        )
    return found[0]


def format_of(file: Path) -> Format:
    """The format of a file."""
    if file.suffix == ".json":
        raise CheckpointError(
            "no weights", "a file with some", file=file, advice="give the directory that it is in"
        )
    return next(format for format in FORMATS if format.has_file(file))
