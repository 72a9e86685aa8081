"""Tokenizers: text to ids and back. `load(path)` reads one; every format gives an object of the
same few methods."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from simdformer.checkpoints import gguf
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.files import InputFile
from simdformer.checkpoints.gguf_file import MAGIC
from simdformer.checkpoints.huggingface_text import read_tokenizer_config
from simdformer.text import gguf_tokenizer
from simdformer.text.huggingface_tokenizer import HuggingFaceTokenizer
from simdformer.text.llama2c_tokenizer import Llama2cTokenizer
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.text.sentencepiece_tokenizer import SentencePieceTokenizer
from simdformer.text.streaming import TextStream
from simdformer.text.tiktoken_tokenizer import TiktokenTokenizer

__all__ = ["Tokenizer", "load"]
__dir__ = __all__.copy  # what dir() and completion show

TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\n")


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

    def to_str_tokens(self, text: str | Iterable[int]) -> list[str]:
        """A text, or its ids, as the text of each token by itself."""

    def stream(self) -> TextStream:
        """Decodes ids one by one: `.put(id)` and `.flush()` give text and never split a
        character."""


def load(path: str | os.PathLike[str]) -> PieceTokenizer:
    """Reads a tokenizer: a file, or a directory that holds one.

    tokenizer.json              Hugging Face; bos_token, eos_token, add_bos_token are taken from the
                                tokenizer_config.json beside it
    vocab.json with merges.txt  the same for GPT-2 and Qwen2, where there is no tokenizer.json
    tokenizer.model             Llama 3 (tiktoken's format) and Llama 2 (sentencepiece)
    tok*.bin                    llama2.c
    *.gguf                      llama.cpp, from the metadata (where no other file is a tokenizer)

    A file's format is known by its name or its first bytes. FileNotFoundError when there is no such
    path, CheckpointError when what is there cannot be read, ImportError when that takes a package
    that is not installed.
    """
    path = Path(path)
    file = only_tokenizer(path) if path.is_dir() else path
    if file.name == "merges.txt":
        file = file.with_name("vocab.json")
    if file.suffix == ".json":
        return HuggingFaceTokenizer.load(file)
    if file.suffix == ".bin":
        return Llama2cTokenizer.load(file)
    beginning = InputFile(file).read(0, 1024)
    if file.suffix == ".gguf" or beginning.startswith(MAGIC):
        return gguf_tokenizer.load(file)
    if beginning.startswith(b"{"):
        return HuggingFaceTokenizer.load(file)
    if beginning.startswith(b"\n"):  # the first field of sentencepiece's message: a piece
        add_bos = read_tokenizer_config(file.parent).switch("add_bos_token")
        return SentencePieceTokenizer.load(file, add_bos)
    if file.suffix == ".model" or TIKTOKEN_LINE.match(beginning):
        return TiktokenTokenizer.load(file)
    return Llama2cTokenizer.load(file)


def only_tokenizer(directory: Path) -> Path:
    """The file of the one tokenizer in a directory."""
    there = {entry.name for entry in directory.iterdir()}
    found = sorted(file.name for file in directory.glob("tok*.bin"))
    if "tokenizer.model" in there and not is_same_as_json(directory, there):
        found.append("tokenizer.model")
    if "tokenizer.json" in there:
        found.append("tokenizer.json")
    elif {"vocab.json", "merges.txt"} <= there:
        found.append("vocab.json")
    found = found or [file.name for file in gguf.candidates(directory)]
    if len(found) != 1:
        raise CheckpointError(
            f"the tokenizers {', '.join(found) or 'none'}",
            "one (tokenizer.json, vocab.json with merges.txt, tokenizer.model, tok*.bin or .gguf)",
            file=directory,
            advice="give the path of one",
        )
    return directory / found[0]


def is_same_as_json(directory: Path, there: set[str]) -> bool:
    """Whether tokenizer.model is sentencepiece's and a tokenizer.json made of it lies beside it, as
    in Hugging Face's directories of Llama 2 and Mistral."""
    beginning = InputFile(directory / "tokenizer.model").read(0, 1)
    return "tokenizer.json" in there and beginning == b"\n"
