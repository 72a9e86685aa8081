"""sentencepiece's models: the tokenizer.model of Llama 2 and its relatives.

The package sentencepiece encodes; decoding is done here, byte by byte, so that a stream and
`decode` give the same and no character is ever split.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simdformer.models.input_file import read_file
from simdformer.text.pieces import (
    PieceReader,
    check_text,
    optional_package,
    told_in_one_line,
)
from simdformer.text.streaming import TextStream

__all__ = ["SentencePieceTokenizer"]

MAX_FILE = 64 << 20  # bytes; Llama 2's has 0.5 MB
SPACE = "\u2581"  # how pieces spell a space


class SentencePieceTokenizer:
    """A `SentencePieceProcessor`; `SentencePieceTokenizer.load(path)` reads a file. `add_bos`:
    whether a text begins with bos when nobody says otherwise."""

    def __init__(self, processor: Any, add_bos: bool = True) -> None:
        self._processor = processor
        ids = range(processor.vocab_size())
        special = {id: processor.id_to_piece(id) for id in ids if processor.is_control(id)}
        self._special = {piece: id for id, piece in special.items()}
        self._skipped = {*special, *(id for id in ids if processor.is_unknown(id))}
        self._pieces = {id: self._bytes_of(id) for id in ids}
        self._add_bos = add_bos and self.bos_id is not None
        # The longest first: of two that match, the longer one is meant.
        names = sorted(map(re.escape, self._special), key=len, reverse=True)
        self._special_pattern = re.compile(f"({'|'.join(names) or '(?!)'})")
        first = processor.encode("a")[:1]
        puts_space = bool(first) and self._pieces[first[0]].startswith(b" ")
        self._begins = {self.bos_id} if puts_space else None

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], add_bos: bool | None = None
    ) -> "SentencePieceTokenizer":
        """Reads a `tokenizer.model`. FileNotFoundError, or CheckpointError for a file that cannot
        be one."""
        package = optional_package("sentencepiece", f"Reading {Path(path)}")
        data = read_file(path, MAX_FILE)
        with told_in_one_line(path, "is no model of sentencepiece"):
            processor = package.SentencePieceProcessor()
            processor.LoadFromSerializedProto(data)
            return cls(processor, add_bos is not False)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def bos_id(self) -> int | None:
        id = int(self._processor.bos_id())
        return id if id >= 0 else None

    @property
    def eos_ids(self) -> tuple[int, ...]:
        id = int(self._processor.eos_id())
        return (id,) if id >= 0 else ()

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        """Ids of a text, bos in front when the model has one, unless `bos=False`; with
        `special=True`, names of control pieces in it ("<s>", "</s>") count as such, and each part
        between them is encoded as a text of its own.

        ValueError for a lone surrogate, which no UTF-8 text has.
        """
        check_text(text)
        if bos and self.bos_id is None:
            raise ValueError("encode: bos is True, but this tokenizer has no bos_id")
        with_bos = self._add_bos if bos is None else bos
        ids = [self.bos_id] if with_bos and self.bos_id is not None else []
        for index, part in enumerate(self._special_pattern.split(text) if special else [text]):
            ids += [self._special[part]] if index % 2 else self._processor.encode(part)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids; `skip_special` leaves out control pieces and the unknown one. Where
        encoding puts a space in front of a text, it is taken away from the beginning, and behind a
        bos.

        Ids past the vocabulary have no text; a negative one is an IndexError.
        """
        stream = TextStream(self._piece_reader(skip_special))
        return "".join([*map(stream.put, ids), stream.flush()])

    def stream(self) -> TextStream:
        """Decodes ids one by one, special pieces left out."""
        return TextStream(self._piece_reader(skip_special=True))

    def _piece_reader(self, skip_special: bool) -> PieceReader:
        return PieceReader(self._pieces, self._skipped if skip_special else (), self._begins)

    def _bytes_of(self, id: int) -> bytes:
        piece = str(self._processor.id_to_piece(id))
        if self._processor.is_byte(id):
            return bytes.fromhex(piece[3:5])  # <0x0A>
        return piece.encode() if id in self._skipped else piece.replace(SPACE, " ").encode()
