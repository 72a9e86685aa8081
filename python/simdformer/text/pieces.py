"""What the tokenizers share: the check of a text, from ids to bytes, and packages that may be
missing or fail."""

import operator
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from simdformer.checkpoints.error import CheckpointError

__all__ = [
    "PieceReader",
    "as_checkpoint_error",
    "check_all_bytes",
    "check_text",
    "optional_package",
    "pattern_of",
]


def check_text(text: str) -> None:
    """ValueError for a lone surrogate, which no UTF-8 text has; TypeError for what is no text."""
    if not isinstance(text, str):
        raise TypeError(f"encode: text is {type(text).__name__}, needs str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"encode: text[{error.start}] is the lone surrogate {text[error.start]!r}, which has "
            "no UTF-8; decode the text properly, or remove it"
        ) from None


def check_all_bytes(known: Iterable[int]) -> None:
    """CheckpointError when a byte is not among those that have a token."""
    missing = sorted(set(range(256)).difference(known))
    if missing:
        raise CheckpointError(
            f"no tokens for {len(missing)} of the 256 single bytes, the first is byte {missing[0]}",
            "all of them, because any text may need them",
        )


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Finds tokens in a text: the longer one of two that match."""
    names = sorted(map(re.escape, filter(None, tokens)), key=len, reverse=True)
    return re.compile(f"({'|'.join(names) or '(?!)'})")


class PieceReader:
    """id -> bytes, for a `TextStream`. Ids without a piece have none; a negative one is an
    IndexError.

    skipped : ids that give nothing
    begins : ids behind which a text begins, where the space that encoding put there is taken away;
        None when encoding puts none. A reader begins with the beginning of a text.
    unspaced : ids of spaces that encoding never puts there
    """

    def __init__(
        self,
        pieces: Mapping[int, bytes],
        skipped: Collection[int] = (),
        begins: Collection[int | None] | None = None,
        unspaced: Collection[int] = (),
    ) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._begins = None if begins is None else {None, *begins}
        self._unspaced = unspaced
        self._previous: int | None = None

    def __call__(self, id: int) -> bytes:
        id = operator.index(id)
        if id < 0:
            raise IndexError(f"decode: id is {id}, needs an id >= 0")
        previous, self._previous = self._previous, id
        if id in self._skipped:
            return b""
        piece = self._pieces.get(id, b"")
        if self._begins is not None and previous in self._begins and id not in self._unspaced:
            return piece.removeprefix(b" ")
        return piece


def optional_package(name: str, what: str) -> Any:
    """A package that only some tokenizers need. ImportError tells how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{what} needs the package {name!r} ({error}): pip install simdformer[models]",
            name=name,
        ) from None


@contextmanager
def as_checkpoint_error(file: str | os.PathLike[str], what: str = "") -> Iterator[None]:
    """Whatever goes wrong inside becomes a CheckpointError of that file: what, and the rest in
    brackets. A panic of a package in Rust is no Exception, only a BaseException."""
    try:
        yield
    except CheckpointError as error:
        error.file = error.file or os.fspath(file)
        raise
    except (ImportError, OSError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        message = (" ".join(str(error).split()) or type(error).__name__)[:300]
        raise CheckpointError(f"{what} ({message})" if what else message, file=file) from None
