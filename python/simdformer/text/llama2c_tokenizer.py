"""llama2.c's tokenizer files, and byte-pair encoding by score as in sentencepiece.

    int32 max_token_length, then for every id: float32 score, int32 length, that many bytes;
    little-endian

The first 259 ids are fixed: 0 unknown, 1 bos, 2 eos, 3 + b the byte b, spelled "<0x0A>". Encoding
puts a space in front of the whole and joins characters by score (scored_merges.py).
"""

import math
import os
import re
import struct

from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import read_file
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.text.scored_merges import ScoredMerges

__all__ = ["Llama2cTokenizer"]

MAX_FILE = 64 << 20  # bytes; the one of Llama 2 has 0.4 MB
BOS, EOS = 1, 2
NUM_SPECIAL = 3
FIRST_BYTE = NUM_SPECIAL
FIRST_PIECE = FIRST_BYTE + 256
SPECIAL = {"<s>": BOS, "</s>": EOS}
SPECIAL_PATTERN = re.compile("(</?s>)")
ENTRY = struct.Struct("<fi")


class Llama2cTokenizer(PieceTokenizer):
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
            raise CheckpointError(
                f"{len(pieces)} tokens", f"at least {FIRST_PIECE} (special ones and bytes)"
            )
        for byte in range(256):
            if pieces[FIRST_BYTE + byte] != b"<0x%02X>" % byte:
                raise CheckpointError(
                    f"{pieces[FIRST_BYTE + byte]!r} as token {FIRST_BYTE + byte}",
                    f"{b'<0x%02X>' % byte!r}: ids 3 to 258 stand for the bytes",
                )
        special = [b"<unk>", b"<s>", b"</s>"]
        byte_pieces = [bytes([byte]) for byte in range(256)]
        ids: dict[bytes, int] = {}
        for id in range(FIRST_PIECE, len(pieces)):
            ids.setdefault(pieces[id], id)
        self.pieces, self.scores = pieces, scores  # by id, as they stand in the file
        self._merges = ScoredMerges(ids, scores, range(FIRST_BYTE, FIRST_PIECE))
        super().__init__(
            dict(enumerate([*special, *byte_pieces, *pieces[FIRST_PIECE:]])),
            bos_id=BOS,
            # Training texts stand one behind the other, each begun by bos: a new bos ends a text as
            # well.
            eos_ids=(BOS, EOS),
            front=[BOS],
            special_ids=range(NUM_SPECIAL),
            begins=[BOS],
            unspaced=range(FIRST_BYTE, FIRST_PIECE) if b" " in ids else (),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Llama2cTokenizer":
        """Reads a `tokenizer.bin`. FileNotFoundError, or CheckpointError for a file that cannot be
        one."""
        data = read_file(path, MAX_FILE)
        with in_file(path, advice="is this a tokenizer of llama2.c?"):
            return cls(*parse(data))

    def _encode(self, text: str, special: bool) -> list[int]:
        """Every text gets a space in front: the whole, and what follows a "<s>" in it."""
        ids: list[int] = []
        begins = True
        for index, part in enumerate(SPECIAL_PATTERN.split(text) if special else [text]):
            if index % 2:
                ids.append(SPECIAL[part])
                begins = SPECIAL[part] == BOS
            elif part:
                ids += self._merges.encode(" " + part if begins else part)
        return ids


def parse(data: bytes) -> tuple[list[bytes], list[float]]:
    """Pieces and scores of a tokenizer file; CheckpointError when a length does not fit."""
    if len(data) < 4:
        raise CheckpointError(f"{len(data)} bytes", "at least 4")
    (longest,) = struct.unpack_from("<i", data)
    pieces: list[bytes] = []
    scores: list[float] = []
    at = 4
    while at < len(data):
        if at + ENTRY.size > len(data):
            raise CheckpointError(
                f"the end of the file in the score and length of token {len(pieces)} at byte {at}"
            )
        score, length = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        if not 0 < length <= longest:
            raise CheckpointError(
                f"the length {length} of token {len(pieces)} at byte {at}", f"1 to {longest}"
            )
        if at + length > len(data):
            raise CheckpointError(
                f"{len(data) - at} bytes of token {len(pieces)} at byte {at}", f"{length}"
            )
        if not math.isfinite(score):
            raise CheckpointError(f"the score {score} of token {len(pieces)}", "a finite number")
        pieces.append(data[at : at + length])
        scores.append(score)
        at += length
    return pieces, scores
