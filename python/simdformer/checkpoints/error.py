"""The one error of all readers: where, what was found, what is needed, what to do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from simdformer.models.tensors import LazyTensor

__all__ = ["CheckpointError", "file_name", "in_file", "misfit"]


class CheckpointError(ValueError):
    """A file that is no good checkpoint or tokenizer.

    Its message is composed of its parts, which are attributes too (None where there is none):

        FILE: tensor NAME: found FOUND, needs NEEDED; ADVICE

    Code that looks into the middle of a file need not know its name: `in_file` adds it further out.
    """

    def __init__(
        self,
        found: str,
        needed: str | None = None,
        *,
        file: str | os.PathLike[str] | None = None,
        tensor: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(found)
        self.file = None if file is None else os.fspath(file)
        self.tensor, self.found, self.needed, self.advice = tensor, found, needed, advice

    def __str__(self) -> str:
        where = [] if self.file is None else [self.file]
        if self.tensor is not None:
            where.append(f"tensor {self.tensor[:120]!r}")
        what = f"found {self.found}"
        if self.needed is not None:
            what += f", needs {self.needed}"
        if self.advice is not None:
            what += f"; {self.advice}"
        return ": ".join([*where, what])


@contextmanager
def in_file(
    file: str | os.PathLike[str], *, needed: str | None = None, advice: str | None = None
) -> Iterator[None]:
    """An error from inside is about this file, and gets these words where it has none yet."""
    try:
        yield
    except CheckpointError as error:
        if error.file is None:
            error.file = os.fspath(file)
            error.needed = error.needed or needed
            error.advice = error.advice or advice
        raise


def misfit(tensor: LazyTensor, found: str, needed: str) -> CheckpointError:
    """That a tensor of a file is not as others or the config need it."""
    return CheckpointError(found, needed, file=tensor.path, tensor=tensor.name)


def file_name(path: str | os.PathLike[str]) -> str:
    """The last part of a path, for messages that have named its directory."""
    return os.path.basename(os.fspath(path))
