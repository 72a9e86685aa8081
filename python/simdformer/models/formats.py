"""Which of the readers a path gets, and the check that all of them end in."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simdformer.functional import rope_frequencies
from simdformer.models import huggingface, llama2c, meta
from simdformer.models.checkpoint import Checkpoint, CheckpointError
from simdformer.models.weights import check_weights

__all__ = ["FORMATS", "read"]

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | None

FORMATS = ("meta", "huggingface", "minimind", "llama2.c")
NEEDED = (
    "params.json with consolidated.00.pth (Meta), config.json with .safetensors (Hugging Face) or "
    "with a .pth (MiniMind), or a .bin of llama2.c"
)
ZIP = b"PK\x03\x04"
LONGEST_CONTEXT = 1 << 24  # no file proves it by its length


def read(path: Path, format: str | None, config: ConfigSource) -> Checkpoint:
    """See `simdformer.models.read_checkpoint`."""
    if format is not None and format not in FORMATS:
        raise ValueError(f"format is {format!r}, needed is one of {', '.join(FORMATS)}, or None")
    path.stat()  # FileNotFoundError
    if format is None:
        format = only_format(path) if path.is_dir() else format_of_file(path)
    if config is not None and format not in ("huggingface", "minimind"):
        raise CheckpointError(f"{path}: a {format} checkpoint has its config inside, give none")
    if format == "meta":
        checkpoint = meta.read(path if path.is_dir() else path.parent)
    elif format == "huggingface":
        checkpoint = huggingface.read(path, config)
    elif format == "minimind":
        checkpoint = huggingface.read_pth(path, config)
    else:
        checkpoint = llama2c.read(llama2c.find(path) if path.is_dir() else path)
    check(checkpoint)
    return checkpoint


def only_format(directory: Path) -> str:
    """The format of the one checkpoint in a directory."""
    here = {
        "meta": meta.is_here(directory),
        "huggingface": huggingface.is_here(directory),
        "minimind": bool(huggingface.find_pth(directory)),
        "llama2.c": bool(llama2c.candidates(directory)),
    }
    found = [format for format, there in here.items() if there]
    if len(found) > 1:
        raise CheckpointError(
            f"{directory}: found checkpoints of {len(found)} formats; say which one to read: "
            + " or ".join(f'format="{format}"' for format in found),
            file=directory,
            found=", ".join(found),
            needed="one format",
        )
    if not found:
        there = sorted(entry.name for entry in directory.iterdir())
        names = ", ".join(map(repr, there[:8])) + (", ..." if len(there) > 8 else "")
        raise CheckpointError(
            f"{directory}: no checkpoint found among [{names}]; needed is {NEEDED}",
            file=directory,
            found=names,
            needed=NEEDED,
        )
    return found[0]


def format_of_file(file: Path) -> str:
    """By its name, and where names are free by its first bytes."""
    if file.suffix == ".safetensors":
        return "huggingface"
    if file.suffix == ".json":
        raise CheckpointError(f"{file}: is no weights; give the directory that it is in")
    if meta.is_shard(file) and (file.parent / meta.PARAMS).exists():
        return "meta"
    if file.suffix in (".pth", ".pt"):
        return "minimind"
    if file.is_file():
        with file.open("rb") as stream:
            if stream.read(len(ZIP)) == ZIP:
                return "minimind"
    return "llama2.c"


def check(checkpoint: Checkpoint) -> None:
    """That weights and config fit each other, and that the positions can be computed."""
    config, path = checkpoint.config, checkpoint.path
    try:
        check_weights(config, checkpoint.weights)
    except CheckpointError as error:
        raise CheckpointError(
            f"{path}: {error}",
            file=path,
            tensor=error.tensor,
            found=error.found,
            needed=error.needed,
        ) from None
    if config.max_seq_len > LONGEST_CONTEXT:
        raise CheckpointError(
            f"{path}: the config's longest text is {config.max_seq_len}, needed are at most "
            f"{LONGEST_CONTEXT} ids"
        )
    try:
        rope_frequencies(config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: {error}", file=path, found=str(error)) from None
