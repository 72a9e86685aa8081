"""sentencepiece's models: the tokenizer.model of Llama 2 and its relatives.

The package sentencepiece encodes; decoding is done here, byte by byte, so that a stream and
`decode` give the same and no character is ever split.
"""

import os
from pathlib import Path
from typing import Any

from simdformer.checkpoints.files import read_file
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.text.pieces import as_checkpoint_error, optional_package, pattern_of

__all__ = ["SPACE", "SentencePieceTokenizer"]

MAX_FILE = 64 << 20  # bytes; Llama 2's has 0.5 MB
SPACE = "\u2581"  # how pieces spell a space


class SentencePieceTokenizer(PieceTokenizer):
    """A `SentencePieceProcessor`; `SentencePieceTokenizer.load(path)` reads a file. `add_bos`:
    whether a text begins with bos by default."""

    def __init__(self, processor: Any, add_bos: bool = True) -> None:
        self.processor = processor
        ids = range(processor.vocab_size())
        special = {id: processor.id_to_piece(id) for id in ids if processor.is_control(id)}
        self._special = {piece: id for id, piece in special.items()}
        skipped = {*special, *(id for id in ids if processor.is_unknown(id))}
        pieces = {id: bytes_of(processor, id, id in skipped) for id in ids}
        self._special_pattern = pattern_of(self._special)
        bos, eos = (id if id >= 0 else None for id in (processor.bos_id(), processor.eos_id()))
        first = processor.encode("a")[:1]
        puts_space = bool(first) and pieces[first[0]].startswith(b" ")
        super().__init__(
            pieces,
            bos_id=bos,
            eos_ids=() if eos is None else (eos,),
            front=[bos] if add_bos and bos is not None else [],
            special_ids=skipped,
            begins=special.keys() if puts_space else None,
        )

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], add_bos: bool | None = None
    ) -> "SentencePieceTokenizer":
        """Reads a `tokenizer.model`. FileNotFoundError, or CheckpointError for a file that cannot
        be one."""
        package = optional_package("sentencepiece", f"Reading {Path(path)}")
        data = read_file(path, MAX_FILE)
        with as_checkpoint_error(path, "something other than a sentencepiece model"):
            processor = package.SentencePieceProcessor()
            processor.LoadFromSerializedProto(data)
            return cls(processor, add_bos is not False)

    def _encode(self, text: str, special: bool) -> list[int]:
        """Each part between control pieces ("<s>", "</s>") is encoded as a text of its own."""
        ids: list[int] = []
        for index, part in enumerate(self._special_pattern.split(text) if special else [text]):
            ids += [self._special[part]] if index % 2 else self.processor.encode(part)
        return ids


def bytes_of(processor: Any, id: int, is_special: bool) -> bytes:
    piece = str(processor.id_to_piece(id))
    if processor.is_byte(id):
        return bytes.fromhex(piece[3:5])  # <0x0A>
    return piece.encode() if is_special else piece.replace(SPACE, " ").encode()
