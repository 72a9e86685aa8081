"""llama2.c's tokenizer files, and byte-pair encoding by score as in sentencepiece.

    int32 max_token_length, then for every id: float32 score, int32 length, that many bytes;
    little-endian

The first 259 ids are fixed: 0 unknown, 1 bos, 2 eos, 3 + b the byte b, spelled "<0x0A>". Encoding
splits a text into characters (one that is no token becomes its bytes) behind a space in front of
the whole, then joins the neighbours whose union is the token of the best score, the leftmost of
equals, until there are none.
"""

import heapq
import math
import operator
import os
import re
import struct
from collections.abc import Iterable

from simdformer.models.checkpoint import CheckpointError
from simdformer.models.input_file import read_file
from simdformer.text.pieces import check_text
from simdformer.text.streaming import TextStream

__all__ = ["Llama2cTokenizer"]

MAX_FILE = 64 << 20  # bytes; the one of Llama 2 has 0.4 MB
BOS, EOS = 1, 2
NUM_SPECIAL = 3
FIRST_BYTE = NUM_SPECIAL
FIRST_PIECE = FIRST_BYTE + 256
SPECIAL = {"<s>": BOS, "</s>": EOS}
SPECIAL_PATTERN = re.compile("(</?s>)")
ENTRY = struct.Struct("<fi")


class Llama2cTokenizer:
    """Pieces (bytes) and scores by id; read from a file with `Llama2cTokenizer.load(path)`.

    >>> pieces = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % byte for byte in range(256)]
    >>> pieces += [b" ", b"h", b"i", b"hi", b" hi"]
    >>> tokenizer = Llama2cTokenizer(pieces, scores=[0.0] * 262 + [-1.0, -2.0])
    >>> tokenizer.encode("hi")
    [1, 263]
    >>> tokenizer.decode([1, 263])
    '<s>hi'
    """

    def __init__(self, pieces: list[bytes], scores: list[float]) -> None:
        if len(pieces) != len(scores):
            raise ValueError(f"tokenizer: {len(pieces)} pieces, but {len(scores)} scores")
        if len(pieces) < FIRST_PIECE:
            raise ValueError(
                f"tokenizer: {len(pieces)} tokens found, needed are at least {FIRST_PIECE} "
                "(special ones and bytes)"
            )
        for byte in range(256):
            if pieces[FIRST_BYTE + byte] != b"<0x%02X>" % byte:
                raise ValueError(
                    f"tokenizer: token {FIRST_BYTE + byte} is {pieces[FIRST_BYTE + byte]!r}, "
                    "needed is "
                    f"{b'<0x%02X>' % byte!r}: ids 3 to 258 stand for the bytes"
                )
        self._scores = scores
        self._bytes = [
            b"<unk>",
            b"<s>",
            b"</s>",
            *(bytes([byte]) for byte in range(256)),
            *pieces[FIRST_PIECE:],
        ]
        self._ids: dict[bytes, int] = {}
        for id in range(FIRST_PIECE, len(pieces)):
            self._ids.setdefault(pieces[id], id)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Llama2cTokenizer":
        """Reads a `tokenizer.bin`. FileNotFoundError, or CheckpointError for a file that cannot be
        one."""
        data = read_file(path, MAX_FILE)
        try:
            return cls(*parse(data))
        except ValueError as error:
            raise CheckpointError(
                f"{os.fspath(path)}: {error}; is this a tokenizer of llama2.c?"
            ) from None

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    @property
    def bos_id(self) -> int:
        return BOS

    @property
    def eos_ids(self) -> tuple[int, ...]:
        # Training texts stand one behind the other, each begun by bos: a new bos ends a text as
        # well.
        return (BOS, EOS)

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        """Ids of a text, bos in front unless `bos=False`; with `special=True`, "<s>" and "</s>" in
        it count as such.

        ValueError for a lone surrogate, which no UTF-8 text has.
        """
        check_text(text)
        ids = [] if bos is False else [BOS]
        # Every other part is a special token. Only the text's beginning gets the space in front.
        for index, part in enumerate(SPECIAL_PATTERN.split(text) if special else [text]):
            if index % 2:
                ids.append(SPECIAL[part])
            elif part:
                ids += self._encode_plain(part if index else " " + part)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids. The space that encoding puts in front of a text is taken away behind a
        bos.

        `skip_special` leaves out "<unk>", "<s>" and "</s>". Ids past the vocabulary have no text; a
        negative one is an IndexError.
        """
        stream = TextStream(self._piece_reader(skip_special))
        return "".join([*map(stream.put, ids), stream.flush()])

    def stream(self) -> TextStream:
        """Decodes ids one by one, special tokens left out."""
        return TextStream(self._piece_reader(skip_special=True))

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        for character in text:
            piece = character.encode()
            known = self._ids.get(piece)
            ids += [FIRST_BYTE + byte for byte in piece] if known is None else [known]
        return self._merge(ids)

    def _merge(self, ids: list[int]) -> list[int]:
        """Joins pairs, best score first. A heap of candidates over a linked list: n log n for n
        characters."""
        before, after = list(range(-1, len(ids) - 1)), [*range(1, len(ids)), -1]
        queue: list[
            tuple[float, int, int, int, int]
        ] = []  # (-score, left, its id, right's id, joined)

        def propose(left: int) -> None:
            right = after[left] if left >= 0 else -1
            if right < 0 or ids[left] < FIRST_PIECE or ids[right] < FIRST_PIECE:
                return
            joined = self._ids.get(self._bytes[ids[left]] + self._bytes[ids[right]])
            if joined is not None:
                heapq.heappush(queue, (-self._scores[joined], left, ids[left], ids[right], joined))

        for left in range(len(ids) - 1):
            propose(left)
        while queue:
            _, left, left_id, right_id, joined = heapq.heappop(queue)
            right = after[left]
            if right < 0 or (ids[left], ids[right]) != (left_id, right_id):
                continue  # one of the two has been joined with another since
            ids[left], ids[right] = joined, -1
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            propose(before[left])
            propose(left)
        return [id for id in ids if id >= 0]

    def _piece_reader(self, skip_special: bool) -> "PieceReader":
        return PieceReader(self._bytes, skip_special)


class PieceReader:
    """id -> bytes, which depend on the id before in one case: the first piece behind a bos loses
    its space."""

    def __init__(self, pieces: list[bytes], skip_special: bool) -> None:
        self._pieces = pieces
        self._skip_special = skip_special
        self._previous = -1

    def __call__(self, id: int) -> bytes:
        id = operator.index(id)
        if id < 0:
            raise IndexError(f"decode: id is {id}, needed is an id >= 0")
        previous, self._previous = self._previous, id
        if id >= len(self._pieces) or (self._skip_special and id < NUM_SPECIAL):
            return b""
        piece = self._pieces[id]
        return (
            piece[1:] if previous == BOS and id >= FIRST_PIECE and piece.startswith(b" ") else piece
        )


def parse(data: bytes) -> tuple[list[bytes], list[float]]:
    """Pieces and scores of a tokenizer file; ValueError in one line when a length does not fit."""
    if len(data) < 4:
        raise ValueError(f"{len(data)} bytes found, needed are at least 4")
    (longest,) = struct.unpack_from("<i", data)
    pieces: list[bytes] = []
    scores: list[float] = []
    at = 4
    while at < len(data):
        if at + ENTRY.size > len(data):
            raise ValueError(
                f"token {len(pieces)} at byte {at}: the file ends in its score and length"
            )
        score, length = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        if not 0 < length <= longest:
            raise ValueError(
                f"token {len(pieces)} at byte {at}: length {length} found, needed is 1 to {longest}"
            )
        if at + length > len(data):
            raise ValueError(
                f"token {len(pieces)} at byte {at}: {length} bytes needed, {len(data) - at} found"
            )
        if not math.isfinite(score):
            raise ValueError(f"token {len(pieces)}: score {score} found, needed is a finite number")
        pieces.append(data[at : at + length])
        scores.append(score)
        at += length
    return pieces, scores
