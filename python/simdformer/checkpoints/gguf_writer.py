"""Writes GGUF files, version 3: metadata by key, and tensors that are made piece by piece, so that
no more than a piece of one is in memory. A file appears under its name when it is whole.

Until then it is a hidden part of it, locked by who writes it. A process that is killed has no time
to take its part away, but its lock is gone: who writes that file next takes the part away.
"""

import errno
import fcntl
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

import numpy as np

from simdformer.checkpoints.gguf_file import (
    ARRAY,
    BOOL,
    FLOATS,
    MAGIC,
    QUANTIZED,
    SCALARS,
    STRING,
    U32,
    U64,
    StoredArray,
)
from simdformer.quantization.types import quantization_types
from simdformer.types import Array

__all__ = ["NewTensor", "write_gguf"]

VERSION, ALIGNMENT = 3, 32
KINDS = {dtype: kind for kind, dtype in SCALARS.items() if kind != BOOL} | {np.dtype(bool): BOOL}
NUMBERS = {name: number for number, name in QUANTIZED.items()}
NUMBERS |= dict(zip(("f32", "f16", "bf16"), FLOATS, strict=True))


@dataclass(frozen=True)
class NewTensor:
    """A tensor to be written: `pieces` gives the bytes of its rows, a part at a time."""

    name: str
    shape: tuple[int, ...]
    type: str
    pieces: Callable[[], Iterator[Array]]

    @property
    def nbytes(self) -> int:
        if self.type in quantization_types():
            kind = quantization_types()[self.type]
            return math.prod(self.shape) // kind.block * kind.nbytes
        return math.prod(self.shape) * FLOATS[NUMBERS[self.type]].itemsize


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> int:
    """Writes a file, and gives its size. Values are bool, int, float (in 32 bits), str, lists of
    str, arrays of numbers, or arrays of another file.

    OSError when the disk does not have the room, or takes no more; nothing is left behind then, nor
    of an earlier process that was killed while it wrote this file."""
    remove_abandoned(path)
    head = header(metadata, tensors)
    size = len(head) + sum(padded(tensor.nbytes) for tensor in tensors)
    free = shutil.disk_usage(path.parent).free
    if size > free:
        why = f"{size} bytes are needed, {free} are free: {os.strerror(errno.ENOSPC)}"
        raise OSError(errno.ENOSPC, why, str(path))
    partial = path.with_name(f".{path.name}.{token_hex(4)}.part")
    try:
        with locked(partial) as file:
            file.write(head)
            for tensor in tensors:
                write_tensor(file, tensor)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)  # locked until then: it is not abandoned
    except OSError as error:
        named = error.filename not in (None, str(partial))
        partial.unlink(missing_ok=True)
        raise error if named else OSError(error.errno, error.strerror, str(path)) from None
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return size


def locked(partial: Path) -> IO[bytes]:
    """A new file, locked as long as it is open. (Where files cannot be locked it is not, and is
    never taken for abandoned.)"""
    while True:
        file = partial.open("xb")
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process took it for abandoned before the lock was there


def remove_abandoned(path: Path) -> None:
    """Removes the parts of this file that nobody writes any more."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]+\.part", re.DOTALL)
    for partial in path.parent.iterdir():
        if name.fullmatch(partial.name) and stat.S_ISREG(partial.lstat().st_mode):
            with suppress(OSError), partial.open("r+b") as file:  # of another user, or locked
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                partial.unlink()


def write_tensor(file: IO[bytes], tensor: NewTensor) -> None:
    written = 0
    for piece in tensor.pieces():
        file.write(np.ascontiguousarray(piece).view(np.uint8).data)
        written += piece.nbytes
    if written != tensor.nbytes:
        raise RuntimeError(f"{tensor.name}: {written} bytes were made of {tensor.nbytes}")
    file.write(bytes(padded(written) - written))


# ---- the header ----------------------------------------------------------------------------------


def header(metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> bytes:
    parts = [MAGIC, U32.pack(VERSION), U64.pack(len(tensors)), U64.pack(len(metadata))]
    for key, value in metadata.items():
        parts += [text_bytes(key), value_bytes(value)]
    offset = 0
    for tensor in tensors:
        parts += [text_bytes(tensor.name), U32.pack(len(tensor.shape))]
        parts += [U64.pack(length) for length in reversed(tensor.shape)]
        parts += [U32.pack(NUMBERS[tensor.type]), U64.pack(offset)]
        offset += padded(tensor.nbytes)
    head = b"".join(parts)
    return head + bytes(padded(len(head)) - len(head))


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def text_bytes(text: str) -> bytes:
    data = text.encode()
    return U64.pack(len(data)) + data


def value_bytes(value: Any) -> bytes:
    """The type of a value, and the value."""
    if isinstance(value, bool):
        return U32.pack(BOOL) + bytes([value])
    if isinstance(value, int):
        return scalar(value, "<u4" if 0 <= value < 1 << 32 else "<i8")
    if isinstance(value, float):
        return scalar(value, "<f4")
    if isinstance(value, str):
        return U32.pack(STRING) + text_bytes(value)
    if isinstance(value, StoredArray):
        data = value.file.read(value.start, value.nbytes)
        return array(value.kind, value.count, data)
    if isinstance(value, np.ndarray):
        return array(KINDS[value.dtype], len(value), value.tobytes())
    return array(STRING, len(value), b"".join(map(text_bytes, value)))


def scalar(value: float, kind: str) -> bytes:
    return U32.pack(KINDS[np.dtype(kind)]) + np.array(value, kind).tobytes()


def array(kind: int, count: int, data: bytes) -> bytes:
    return U32.pack(ARRAY) + U32.pack(kind) + U64.pack(count) + data
