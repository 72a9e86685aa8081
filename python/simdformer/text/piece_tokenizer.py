"""What all tokenizers have in common: what stands in front of a text, and from ids back to text."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from simdformer.text.pieces import PieceReader, check_text
from simdformer.text.streaming import TextStream

__all__ = ["PieceTokenizer"]


class PieceTokenizer(ABC):
    """A tokenizer whose every id stands for some bytes: `pieces`.

    front : the ids that encoding puts in front of a text by default
    special_ids : those that `skip_special` leaves out
    begins : ids behind which a text begins, and with it the space that encoding puts in front of
        one; decoding takes it away. None when encoding puts none
    unspaced : ids of spaces that encoding never puts in front
    files : where the ids come from that are not in the tokenizer's own file
    """

    def __init__(
        self,
        pieces: Mapping[int, bytes],
        *,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        front: Sequence[int],
        special_ids: Collection[int],
        begins: Collection[int | None] | None = None,
        unspaced: Collection[int] = (),
        files: Mapping[int, Path] | None = None,
    ) -> None:
        self._pieces, self._vocab_size = pieces, max(pieces, default=-1) + 1
        self._bos_id, self._eos_ids = bos_id, eos_ids
        self._front = list(front)
        self._special_ids, self._begins, self._unspaced = special_ids, begins, unspaced
        self.files = files or {}

    def __repr__(self) -> str:
        ends = f"bos_id={self.bos_id}, eos_ids={self.eos_ids}"
        return f"{type(self).__name__}(vocab_size={self.vocab_size}, {ends})"

    @property
    def vocab_size(self) -> int:
        """Ids are 0 to vocab_size - 1."""
        return self._vocab_size

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, None when there is none."""
        return self._bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a text."""
        return self._eos_ids

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        """Ids of a text. In front of them what the files say (`bos=None`), bos_id or nothing; an
        end of text is never put behind them. With `special=True`, special tokens spelled out in
        the text count as such.

        ValueError for a lone surrogate, which no UTF-8 text has.
        """
        check_text(text)
        front = self._front if bos is None else []
        if bos:
            if self._bos_id is None:
                raise ValueError("encode: bos is True, but this tokenizer has no bos_id")
            front = [self._bos_id]
        return [*front, *self._encode(text, special)]

    @abstractmethod
    def _encode(self, text: str, special: bool) -> list[int]:
        """The ids of a text that was checked, nothing in front."""

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids; `skip_special` leaves out the special tokens. Where encoding puts a
        space in front of a text, it is taken away again.

        Ids past the vocabulary have no text; a negative one is an IndexError.
        """
        stream = self._stream(self._special_ids if skip_special else ())
        return "".join([*map(stream.put, ids), stream.flush()])

    def to_str_tokens(self, text: str | Iterable[int]) -> list[str]:
        """A text as `encode` cuts it, or ids: the text of each token by itself, spaces and special
        tokens included. A byte that is only a part of a character is spelled \\xe4.

        >>> import simdformer as sf
        >>> sf.from_pretrained(sf.demo_path()).tokenizer.to_str_tokens("a kite")
        ['<|begin_of_text|>', 'a', ' kite']
        """
        ids = self.encode(text) if isinstance(text, str) else text
        return [piece.decode(errors="backslashreplace") for piece in self.to_bytes(ids)]

    def to_bytes(self, ids: Iterable[int]) -> list[bytes]:
        """The bytes of each token by itself, spaces and special tokens included."""
        return [self._pieces.get(operator.index(id), b"") for id in ids]

    def stream(self) -> TextStream:
        """Decodes ids one by one, special tokens left out."""
        return self._stream(self._special_ids)

    def _stream(self, skipped: Collection[int]) -> TextStream:
        return TextStream(PieceReader(self._pieces, skipped, self._begins, self._unspaced))
