"""What every reader gives back, and what a format is.

A file is hostile until proven otherwise: its size is known before anything is allocated, nothing in
it is executed.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from simdformer.checkpoints.files import InputFile
from simdformer.models.config import ModelConfig
from simdformer.models.packing import Tensor
from simdformer.types import Array

__all__ = ["Checkpoint", "ConfigSource", "Format", "StoredTemplate", "StoredTensor"]

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | None


@dataclass(frozen=True)
class Checkpoint:
    """What a reader found: the config, every tensor under the names of `weight_shapes` (they fit
    the config), and the ids that end a text where a file says so. `path` is what the weights were
    read from, `metadata` what else that file says, by key, where it says more."""

    path: Path
    format: "Format"
    config: ModelConfig
    weights: Mapping[str, Tensor]
    eos_ids: tuple[int, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Reader(Protocol):
    """read(path, config) gives the checkpoint at a path."""

    def __call__(self, path: Path, config: ConfigSource, /) -> Checkpoint: ...


@dataclass(frozen=True, kw_only=True, repr=False)
class Format:
    """One way in which checkpoints are stored: everything that differs from one to the next.

    name
        What `format=` calls it.
    files
        The files that make one, for people.
    found_in(directory)
        Whether a directory holds one.
    has_file(file)
        Whether a file is one, or a part of one.
    read(path, config)
        The checkpoint at that file or in that directory.
    takes_config
        Whether `read` takes a config that does not lie beside the weights.
    tokenizer_files(checkpoint)
        The files beside it that may hold its tokenizer, the likeliest first.
    whole_vocabulary
        Whether its tokenizers have as many tokens as the model; others may have fewer (a padded
        vocabulary).
    chat_template(checkpoint)
        The template of conversations that it has with it.
    llama3_chat
        Whether models with Llama 3's tokenizer were trained on Llama 3's conversations, which no
        file says.
    """

    name: str
    files: str
    found_in: Callable[[Path], bool]
    has_file: Callable[[Path], bool]
    read: Reader
    takes_config: bool = False
    tokenizer_files: Callable[[Checkpoint], list[Path]]
    whole_vocabulary: bool = False
    chat_template: "Callable[[Checkpoint], StoredTemplate | None]" = lambda checkpoint: None
    llama3_chat: bool = False

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class StoredTemplate:
    """A chat template in jinja's language as `file` has it, and its bos_token, eos_token, ... by
    name."""

    text: str
    file: Path
    tokens: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, from byte `offset` on: read when `np.asarray` asks for it, and not kept.

    `name` is what the file calls it. Strides count elements and are not negative. Who makes one has
    checked that it lies in the file.
    """

    file: InputFile
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    @classmethod
    def dense(
        cls,
        file: InputFile,
        name: str,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> "StoredTensor":
        """One whose elements follow each other."""
        strides = [1]
        for length in reversed(shape[1:]):
            strides.append(strides[-1] * length)
        return cls(file, name, offset, shape, dtype, tuple(reversed(strides[: len(shape)])))

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

    @property
    def by_rows(self) -> bool:
        """Whether rows lie one behind the other: the first axis is the slowest."""
        return self.strides[:1] >= (max(self.strides, default=0),)

    @property
    def T(self) -> "StoredTensor":
        """The axes the other way round."""
        return replace(self, shape=self.shape[::-1], strides=self.strides[::-1])

    def rows(self, start: int, stop: int) -> "StoredTensor":
        """The part [start:stop] along the first axis."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        offset = self.offset + start * self.strides[0] * self.dtype.itemsize
        shape = (stop - start, *self.shape[1:])
        return replace(self, offset=offset, shape=shape)

    def columns(self, start: int, stop: int) -> "StoredTensor":
        """The part [start:stop] along the second axis."""
        rows, _, *others = self.shape
        offset = self.offset + start * self.strides[1] * self.dtype.itemsize
        return replace(self, offset=offset, shape=(rows, stop - start, *others))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(
        self, dtype: np.dtype[Any] | None = None, /, *, copy: bool | None = None
    ) -> Array:
        if copy is False:
            raise ValueError("a tensor in a file cannot be had without a copy")
        if self.size == 0 or not self.shape:
            memory = self.file.read_array(self.offset, self.nbytes)
            return np.ndarray(self.shape, self.dtype, buffer=memory).astype(dtype or self.dtype)
        # Along the slowest axis there may be gaps: of a part, or of every second row.
        slowest = self.strides.index(max(self.strides))
        strides = [stride * self.dtype.itemsize for stride in self.strides]
        each = replace(self, shape=(*self.shape[:slowest], 1, *self.shape[slowest + 1 :]))
        memory, strides[slowest] = self.file.read_pieces(
            self.offset, each.span, strides[slowest], self.shape[slowest]
        )
        array: Array = np.ndarray(self.shape, self.dtype, buffer=memory, strides=strides)
        return array.astype(dtype or self.dtype, copy=False)
