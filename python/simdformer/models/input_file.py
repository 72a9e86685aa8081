"""Files of strangers: only regular ones, read by position into memory of our own, never mapped.

Touching a mapped file that somebody has shortened since kills the process (SIGBUS). A read of such
a file gives fewer bytes than were there before, which is an error like any other.
"""

import math
import os
import stat
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simdformer.models.checkpoint import CheckpointError
from simdformer.types import Array

__all__ = ["InputFile", "StoredTensor", "read_file"]


class InputFile:
    """A regular file that is not empty, open for reading; `size` is its size at that moment.

    FileNotFoundError when there is none, CheckpointError when it is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        # O_NONBLOCK: opening a named pipe must not wait for somebody to write into it.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{self.path}: is not a regular file; give the path of one")
        if status.st_size == 0:
            raise CheckpointError(f"{self.path}: is empty; download or export it again")
        self.size = status.st_size

    def read(self, start: int, count: int) -> bytes:
        """The `count` bytes from byte `start` on, or as many as a file of `size` bytes has."""
        return self.read_array(start, max(0, min(count, self.size - start))).tobytes()

    def read_array(self, start: int, count: int) -> npt.NDArray[np.uint8]:
        """The same as an array of `count` bytes. CheckpointError when the file has become
        shorter."""
        memory = np.empty(count, np.uint8)
        done = 0
        while done < count:  # a call reads 2 GB at most
            try:
                got = os.preadv(self._descriptor, [memory[done:].data], start + done)
            except OSError as error:  # of a disk that fails; the system does not say which file
                raise OSError(error.errno, error.strerror, self.path) from None
            if got == 0:
                size = os.fstat(self._descriptor).st_size
                raise CheckpointError(
                    f"{self.path}: found only {size} of its {self.size} bytes while it was read; "
                    "something else writes to it, try again",
                    file=self.path,
                )
            done += got
        return memory


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a whole file. CheckpointError when it has more than `most`."""
    file = InputFile(path)
    if file.size > most:
        raise CheckpointError(
            f"{file.path}: found {file.size} bytes, needed are at most {most}",
            file=path,
            found=f"{file.size} bytes",
            needed=f"at most {most}",
        )
    return file.read(0, file.size)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, from byte `offset` on: read when `np.asarray` asks for it, and not kept.

    Strides count elements and are not negative. Who makes one has checked that it lies in the file.
    """

    file: InputFile
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    @classmethod
    def dense(
        cls, file: InputFile, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> "StoredTensor":
        """One whose elements follow each other."""
        strides = [1]
        for length in reversed(shape[1:]):
            strides.append(strides[-1] * length)
        return cls(file, offset, shape, dtype, tuple(reversed(strides[: len(shape)])))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def span(self) -> int:
        """The bytes from the first element to behind the last: what is read."""
        steps = zip(self.shape, self.strides, strict=True)
        return (1 + sum((n - 1) * stride for n, stride in steps)) * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> "StoredTensor":
        """The part [start:stop] along the first axis."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        offset = self.offset + start * self.strides[0] * self.dtype.itemsize
        shape = (stop - start, *self.shape[1:])
        return StoredTensor(self.file, offset, shape, self.dtype, self.strides)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(
        self, dtype: np.dtype[Any] | None = None, /, *, copy: bool | None = None
    ) -> Array:
        if copy is False:
            raise ValueError("a tensor in a file cannot be had without a copy")
        memory = self.file.read_array(self.offset, self.span)
        strides = [stride * self.dtype.itemsize for stride in self.strides]
        array: Array = np.ndarray(self.shape, self.dtype, buffer=memory, strides=strides)
        return array.astype(dtype or self.dtype, copy=False)
