"""Tokenizers of Hugging Face checkpoints: tokenizer.json, or vocab.json with merges.txt, and what
tokenizer_config.json says about them.

The package tokenizers encodes; decoding is done here, byte by byte, so that a stream and `decode`
give the same and no character is ever split.
"""

import json
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simdformer.models.checkpoint import CheckpointError
from simdformer.models.input_file import read_file
from simdformer.models.json_file import parse_object, read_object
from simdformer.text.growth import check_growth
from simdformer.text.pieces import (
    PieceReader,
    check_text,
    optional_package,
    told_in_one_line,
)
from simdformer.text.streaming import TextStream
from simdformer.text.vocab_merges import BYTE_OF_CHARACTER, END_OF_TEXT, from_vocab_and_merges

__all__ = ["HuggingFaceTokenizer", "read_tokenizer_config"]

MAX_FILE = 128 << 20  # bytes; Gemma's has 33 MB
BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


class HuggingFaceTokenizer:
    """A `tokenizers.Tokenizer` with what its config says; `HuggingFaceTokenizer.load(path)` reads
    a tokenizer.json or a vocab.json, and the config beside it."""

    def __init__(self, tokenizer: Any, config: Mapping[str, Any] | None = None) -> None:
        config = config or {}
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        added = tokenizer.get_added_tokens_decoder()
        self._pieces, strips = pieces_of(tokenizer)
        self._pieces |= {id: token.content.encode() for id, token in added.items()}

        self._front = ids_in_front(tokenizer)
        bos = named_token(tokenizer, config, "bos_token")
        eos = named_token(tokenizer, config, "eos_token")
        self._bos_id = self._front[0] if bos is None and len(self._front) == 1 else bos
        self._eos_ids = () if eos is None else (eos,)
        add_bos = config.get("add_bos_token")
        if add_bos is True and self._bos_id is None:
            raise ValueError("add_bos_token is true, but there is no bos_token")
        if add_bos is not None:
            self._front = [self._bos_id] if add_bos and self._bos_id is not None else []
        self._special_ids = {id for id, token in added.items() if token.special}
        self._special_ids |= {id for id in (bos, eos) if id is not None}
        self._begins = {self._bos_id} if strips else None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HuggingFaceTokenizer":
        """Reads a `tokenizer.json`, or a `vocab.json` with the `merges.txt` beside it.
        FileNotFoundError, or CheckpointError for files that cannot be read."""
        path = Path(path)
        package = optional_package("tokenizers", f"Reading {path}")
        config = read_tokenizer_config(path.parent)
        if path.name == "vocab.json":
            with told_in_one_line(path):
                tokenizer = from_vocab_and_merges(path, config)
                if tokenizer.token_to_id(END_OF_TEXT) is not None:
                    config = {"eos_token": END_OF_TEXT} | config
                return cls(tokenizer, config)
        data = read_file(path, MAX_FILE)
        with told_in_one_line(path):
            check_growth(parse_object(path, data))
            return cls(package.Tokenizer.from_buffer(data), config)

    @property
    def vocab_size(self) -> int:
        return max(self._pieces, default=-1) + 1

    @property
    def bos_id(self) -> int | None:
        return self._bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self._eos_ids

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        """Ids of a text. In front of them what the files say (`bos=None`), bos_id or nothing; an
        end of text is never put behind them. With `special=True`, special tokens in the text count
        as such.

        ValueError for a lone surrogate, which no UTF-8 text has.
        """
        check_text(text)
        front = self._front if bos is None else []
        if bos:
            if self._bos_id is None:
                raise ValueError("encode: bos is True, but this tokenizer has no bos_id")
            front = [self._bos_id]
        with self._lock, told_in_one_line("encode"):
            self._tokenizer.encode_special_tokens = not special
            return [*front, *self._tokenizer.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids; `skip_special` leaves out the special tokens. Where encoding puts a
        space in front of a text, it is taken away from the beginning, and behind a bos.

        Ids past the vocabulary have no text; a negative one is an IndexError.
        """
        stream = TextStream(self._piece_reader(skip_special))
        return "".join([*map(stream.put, ids), stream.flush()])

    def stream(self) -> TextStream:
        """Decodes ids one by one, special tokens left out."""
        return TextStream(self._piece_reader(skip_special=True))

    def _piece_reader(self, skip_special: bool) -> PieceReader:
        return PieceReader(self._pieces, self._special_ids if skip_special else (), self._begins)


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json, and of special_tokens_map.json what that leaves open; {} when there
    is neither."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).exists():
            config |= read_object(directory / name)
    add_bos = config.get("add_bos_token")
    if not isinstance(add_bos, bool | None):
        raise CheckpointError(
            f"{directory / 'tokenizer_config.json'}: add_bos_token is {add_bos!r}, needed is true "
            "or false"
        )
    return config


def named_token(tokenizer: Any, config: Mapping[str, Any], name: str) -> int | None:
    """The id of the token that the config calls `name`: a string, or an object with `content`."""
    token = config.get(name)
    if isinstance(token, dict):
        token = token.get("content")
    if token is None:
        return None
    id = tokenizer.token_to_id(token) if isinstance(token, str) else None
    if id is None:
        raise ValueError(f"{name} is {token!r} in the config, which is no token of this tokenizer")
    return int(id)


def ids_in_front(tokenizer: Any) -> list[int]:
    """What the post-processor puts in front of a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    starts = range(len(whole) - len(plain) + 1)
    start = next((at for at in starts if whole[at : at + len(plain)] == plain), 0)
    return list(whole[:start])


def pieces_of(tokenizer: Any) -> tuple[dict[int, bytes], bool]:
    """The bytes of every token of the model, and whether encoding puts a space in front of a text
    that decoding takes away. ValueError for a decoder that is none of the two usual kinds."""
    state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
    steps = state.get("decoders", []) if state.get("type") == "Sequence" else [state]
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if [step.get("type") for step in steps] == ["ByteLevel"]:
        return {id: bytes_of_characters(token) for token, id in vocabulary.items()}, False

    replacements: list[tuple[str, str]] = []
    byte_pieces = strips = fused = False
    for step in steps:
        kind = step.get("type")
        if kind == "Replace" and "String" in step["pattern"] and not fused:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace" and not fused:
            replacements.append((step["replacement"], " "))
            strips = step.get("prepend_scheme", "always") != "never"
            fused = True  # nothing may follow that looks at single tokens
        elif kind == "ByteFallback" and not fused:
            byte_pieces = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and (step["content"], step["stop"]) == (" ", 0):
            if step["start"] not in (0, 1):
                raise ValueError(f"decoder Strip takes {step['start']} spaces, needed is 0 or 1")
            strips = strips or step["start"] == 1
        else:
            raise ValueError(
                f"decoder {kind or 'none'} in {[step.get('type') for step in steps]} is not known "
                "here; known are ByteLevel, and Replace, ByteFallback, Fuse, Strip or Metaspace"
            )

    def piece(token: str) -> bytes:
        if byte_pieces and (match := BYTE_PIECE.fullmatch(token)):
            return bytes.fromhex(match[1])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return {id: piece(token) for token, id in vocabulary.items()}, strips


def bytes_of_characters(token: str) -> bytes:
    """A byte-level token spells every byte as one character; others stand for themselves."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()
