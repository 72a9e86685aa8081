"""Tokenizers: text to ids and back. `load(path)` reads one; every format gives an object of the
same few methods."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from simdformer.models.checkpoint import CheckpointError
from simdformer.text.llama2c_tokenizer import Llama2cTokenizer
from simdformer.text.streaming import TextStream
from simdformer.text.tiktoken_tokenizer import TiktokenTokenizer

__all__ = ["Tokenizer", "load"]


@runtime_checkable
class Tokenizer(Protocol):
    """What a language model needs to know of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Ids are 0 to vocab_size - 1."""

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, None when there is none."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a text."""

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        """The ids of a text. `bos`: with bos_id in front (None: as this tokenizer's models are used
        to); `special`: special tokens spelled out in the text count as such. ValueError for a lone
        surrogate."""

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids; U+FFFD where their bytes are no UTF-8, nothing for ids past the
        vocabulary."""

    def stream(self) -> TextStream:
        """Decodes ids one by one: `.put(id)` and `.flush()` give text and never split a
        character."""


def load(path: str | os.PathLike[str]) -> Tokenizer:
    """Reads a tokenizer: a file, or a directory that holds one.

    llama2.c's `.bin` (`tok*.bin` in a directory), and Meta's `tokenizer.model` of Llama 3.

    FileNotFoundError when there is no such path, CheckpointError when what is there cannot be read.
    """
    path = Path(path)
    file = only_tokenizer(path) if path.is_dir() else path
    if file.suffix == ".model":
        return TiktokenTokenizer.load(file)
    return Llama2cTokenizer.load(file)


def only_tokenizer(directory: Path) -> Path:
    """The file of the one tokenizer in a directory."""
    found = sorted([*directory.glob("tok*.bin"), *directory.glob("tokenizer.model")])
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise CheckpointError(
            f"{directory}: needed is one tokenizer (tok*.bin, tokenizer.model), found: {names}; "
            "give the path of one",
            file=directory,
            found=names,
            needed="one tokenizer",
        )
    return found[0]
