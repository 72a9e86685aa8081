"""Files that are either as before or whole, whatever ends the process, and hashes of them."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

__all__ = [
    "hash_of_file",
    "hash_of_json",
    "sync",
    "sync_directory",
    "write_text",
    "write_whole",
]

PIECE = 1 << 24  # bytes of a file that are hashed at a time


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """What `write` writes into the file that it is given comes to `path` in one moment. OSError,
    which names `path`: the disk is full, and what was there before still is."""
    beside = path.with_name(f".{path.name}.unfinished")
    try:
        with beside.open("wb") as file:
            write(file)
            sync(file)
        beside.replace(path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """The same for text, in UTF-8."""
    write_whole(path, lambda file: file.write(text.encode()))


def sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """The names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_of_file(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def hash_of_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
