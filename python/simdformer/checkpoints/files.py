"""Files of strangers: only regular ones, read by position into memory of our own, never mapped.

Touching a mapped file that somebody has shortened since kills the process (SIGBUS). A read of such
a file gives fewer bytes than were there before, which is an error like any other.
"""

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simdformer import _core
from simdformer.checkpoints.error import CheckpointError, in_file

__all__ = [
    "KINDS",
    "InputFile",
    "begins_with",
    "only",
    "parse_object",
    "read_file",
    "read_object",
    "read_text",
]

MAX_JSON = 16 << 20  # bytes; the index of the largest published checkpoint has about 1 MB
GAP = 512  # bytes: as many take longer to read than another read takes to begin
MAX_DIGITS = 30  # of a number in JSON: sizes have 64 bits, so 20 of them
KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
KINDS |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")


class InputFile:
    """A regular file that is not empty, open for reading; `size` is its size at that moment.

    FileNotFoundError when there is none, CheckpointError when it is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._open = _core.OpenFile(path)
        status = os.fstat(self._open.descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise CheckpointError(kind, "a regular file", file=path)
        if status.st_size == 0:
            raise CheckpointError("an empty file", file=path, advice="download or export it again")
        self.size = status.st_size

    def read(self, start: int, count: int) -> bytes:
        """The `count` bytes from byte `start` on, or as many as a file of `size` bytes has."""
        return self.read_array(start, max(0, min(count, self.size - start))).tobytes()

    def read_array(self, start: int, count: int) -> npt.NDArray[np.uint8]:
        """The same as an array of `count` bytes. CheckpointError when the file has become
        shorter."""
        memory = np.empty(count, np.uint8)
        self._fill(memory[None], start, 0)
        return memory

    def read_pieces(
        self, start: int, length: int, step: int, count: int
    ) -> tuple[npt.NDArray[np.uint8], int]:
        """`count` pieces of `length` bytes that begin every `step` bytes, and how many bytes apart
        they begin in the array: what lies between them is not read where it is much."""
        if length > 0 and step - length < GAP:
            return self.read_array(start, (count - 1) * step + length), step
        memory = np.empty((count, length), np.uint8)
        self._fill(memory, start, step)
        return memory, length

    def _fill(self, memory: npt.NDArray[np.uint8], start: int, step: int) -> None:
        """The rows of memory, one every `step` bytes."""
        try:
            got = self._open.read_pieces(memory, start, step)
        except OSError as error:  # of a disk that fails; the system does not say which file
            raise OSError(error.errno, error.strerror, self.path) from None
        if got < memory.size:
            size = os.fstat(self._open.descriptor).st_size
            raise CheckpointError(
                f"only {size} of its {self.size} bytes while it was read",
                file=self.path,
                advice="something else writes to it, try again",
            )


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a whole file. CheckpointError when it has more than `most`."""
    file = InputFile(path)
    if file.size > most:
        raise CheckpointError(f"{file.size} bytes", f"at most {most}", file=path)
    return file.read(0, file.size)


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """A whole file of UTF-8. CheckpointError when it is none, or has more than `most` bytes."""
    data = read_file(path, most)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"bytes that are not UTF-8 ({error})", "text in UTF-8", file=path
        ) from None


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether there is a file whose first bytes are these."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(magic)) == magic


def only(directory: Path, what: str, names: Sequence[str], needed: str) -> str:
    """The one name that was found in a directory. CheckpointError lists them when there are more,
    or none."""
    if len(names) != 1:
        listed = ", ".join(names[:8]) or "none"
        raise CheckpointError(
            f"{len(names)} {what} ({listed})",
            needed,
            file=directory,
            advice="give the path of one",
        )
    return names[0]


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file. CheckpointError when it is something else, or far too large."""
    text = read_file(path, MAX_JSON)
    with in_file(path):
        return parse_object(text)


def parse_object(text: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8. A key that appears twice is an error: two readers would disagree."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key appears twice")
        return result

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def sane_int(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise ValueError(f"a number of {len(digits)} digits")
        return int(digits)

    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=no_constant,
            parse_int=sane_int,
        )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"no JSON object ({error})", "a JSON object", advice="download it again"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"a JSON {type(value).__name__}", "a JSON object")
    return value
