"""Meta's tokenizer.model of Llama 3, in tiktoken's format: byte-pair encoding by rank.

    one line for every token, in the order of ids: its bytes in base64, a space, its rank (= its id)

256 special tokens follow the last rank; the file does not hold them. The file is checked here, line
by line, and tiktoken gets a dictionary: its own loader caches files by path.
"""

import base64
import binascii
import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import read_file
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.text.pieces import check_all_bytes, optional_package

__all__ = ["SPLIT", "TiktokenTokenizer"]

# How Llama 3 cuts a text into the parts that are encoded one by one.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NUM_SPECIAL = 256
NAMED = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "<|eot_id|>",
}
ENDS = ("<|end_of_text|>", "<|eot_id|>")

# Llama 3 cuts a text as well where it gets too long for the regular expression: after so many
# characters, and after so many that are all white space or all not.
LONGEST_PORTION = 400_000
LONG_RUN = re.compile(r"\s{25000}(?=\s)|\S{25000}(?=\S)")

MAX_FILE = 64 << 20  # bytes; Llama 3's has 2 MB
MAX_TOKENS = 1 << 20
MAX_TOKEN_SIZE = 1024  # bytes; Llama 3's longest has 128
LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (0|[1-9][0-9]{0,8})")


class TiktokenTokenizer(PieceTokenizer):
    """Tokens (bytes) by id, behind them Llama 3's special ones; `TiktokenTokenizer.load(path)`
    reads a file. Only `encode` needs the package tiktoken.

    >>> tokenizer = TiktokenTokenizer([bytes([byte]) for byte in range(256)] + [b"hi"])
    >>> tokenizer.encode("hi!")
    [257, 256, 33]
    >>> tokenizer.decode([257, 256, 33])
    '<|begin_of_text|>hi!'
    """

    def __init__(self, tokens: list[bytes]) -> None:
        ranks = {token: rank for rank, token in enumerate(tokens)}
        if len(ranks) != len(tokens):
            raise CheckpointError(f"{len(tokens) - len(ranks)} tokens twice", "each once")
        check_all_bytes(byte for byte in range(256) if bytes([byte]) in ranks)
        self.ranks = ranks
        self.special = {
            name: len(tokens) + index for index, name in enumerate(special_token_names())
        }
        bos = self.special["<|begin_of_text|>"]
        super().__init__(
            dict(enumerate([*tokens, *(name.encode() for name in self.special)])),
            bos_id=bos,
            eos_ids=tuple(self.special[name] for name in ENDS),
            front=[bos],
            special_ids=range(len(tokens), len(tokens) + NUM_SPECIAL),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "TiktokenTokenizer":
        """Reads a `tokenizer.model`. FileNotFoundError, or CheckpointError for a file that cannot
        be one."""
        data = read_file(path, MAX_FILE)
        with in_file(path, advice="download the file again"):
            return cls(parse(data))

    @cached_property
    def _encoding(self) -> Any:
        tiktoken = optional_package("tiktoken", "Encoding text with this tokenizer.model")
        return tiktoken.Encoding(
            "simdformer",
            pat_str=SPLIT,
            mergeable_ranks=self.ranks,
            special_tokens=self.special,
        )

    def _encode(self, text: str, special: bool) -> list[int]:
        allowed, ids = set(self.special) if special else set(), []
        for portion in portions(text):
            ids += self._encoding.encode(portion, allowed_special=allowed, disallowed_special=())
        return ids


def special_token_names() -> list[str]:
    """Llama 3's, in the order of ids: five have names, the others are reserved and numbered."""
    unnamed = [index for index in range(NUM_SPECIAL) if index not in NAMED]
    reserved = {
        index: f"<|reserved_special_token_{number}|>" for number, index in enumerate(unnamed)
    }
    return [(NAMED | reserved)[index] for index in range(NUM_SPECIAL)]


def portions(text: str) -> Iterator[str]:
    """The parts of a long text that are encoded one by one; a short one is one part."""
    for start in range(0, len(text), LONGEST_PORTION):
        portion = text[start : start + LONGEST_PORTION]
        begin = 0
        for run in LONG_RUN.finditer(portion):
            yield portion[begin : run.end()]
            begin = run.end()
        yield portion[begin:]


def parse(data: bytes) -> list[bytes]:
    """The tokens of a file by id; CheckpointError that names the line in the file."""
    lines = data.removesuffix(b"\n").split(b"\n")
    if len(lines) > MAX_TOKENS:
        raise CheckpointError(f"{len(lines)} lines", f"at most {MAX_TOKENS}")
    tokens: list[bytes] = []
    first_line: dict[bytes, int] = {}
    for number, line in enumerate(lines, start=1):
        match = LINE.fullmatch(line)
        if match is None:
            shown = line[:40] + (b"..." if len(line) > 40 else b"")
            raise CheckpointError(
                f"{shown!r} in line {number}", "a token in base64, a space, its rank"
            )
        if int(match[2]) != number - 1:
            raise CheckpointError(
                f"rank {int(match[2])} in line {number}",
                f"{number - 1}: ranks count up from 0 without gaps",
            )
        try:
            token = base64.b64decode(match[1], validate=True)
        except binascii.Error as error:
            raise CheckpointError(
                f"a token in line {number} that is not base64 ({error})", "base64"
            ) from None
        if len(token) > MAX_TOKEN_SIZE:
            raise CheckpointError(
                f"a token of {len(token)} bytes in line {number}", f"at most {MAX_TOKEN_SIZE}"
            )
        if first_line.setdefault(token, number) != number:
            raise CheckpointError(
                f"the token {token!r} in line {number} and in line {first_line[token]}",
                "each token once",
            )
        tokens.append(token)
    return tokens
