"""Tokenizers of Hugging Face checkpoints: tokenizer.json, or vocab.json with merges.txt, and what
tokenizer_config.json says about them.

The package tokenizers encodes; decoding is done here, byte by byte, so that a stream and `decode`
give the same and no character is ever split.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.files import parse_object, read_file
from simdformer.checkpoints.huggingface_text import TokenizerConfig, read_tokenizer_config
from simdformer.text.growth import check_growth
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.text.pieces import as_checkpoint_error, optional_package
from simdformer.text.vocab_merges import BYTE_OF_CHARACTER, END_OF_TEXT, from_vocab_and_merges

__all__ = ["HuggingFaceTokenizer"]

MAX_FILE = 128 << 20  # bytes; Gemma's has 33 MB
BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


class HuggingFaceTokenizer(PieceTokenizer):
    """A `tokenizers.Tokenizer` with what its config says; `HuggingFaceTokenizer.load(path)` reads
    a tokenizer.json or a vocab.json, and the config beside it. `eos_ids`: what ends a text, beside
    the config's eos_token; `ids`: those of its model, without what was added, where they are
    known."""

    def __init__(
        self,
        tokenizer: Any,
        config: TokenizerConfig,
        file: Path,
        files: Mapping[int, Path] | None = None,
        eos_ids: Collection[int] = (),
        ids: Collection[int] | None = None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer, self._file = tokenizer, file
        self._lock = threading.Lock()
        added = tokenizer.get_added_tokens_decoder()
        piece, strips = decoding(tokenizer)
        if ids is None:
            ids = frozenset(tokenizer.get_vocab(with_added_tokens=False).values())
        spelled = {id: token.content.encode() for id, token in added.items()}
        pieces = Pieces(ids, lambda id: piece(tokenizer.id_to_token(id)), spelled)

        front = ids_in_front(tokenizer)
        bos = named_token(tokenizer, config, "bos_token")
        eos = named_token(tokenizer, config, "eos_token")
        bos_id = front[0] if bos is None and len(front) == 1 else bos
        add_bos = config.switch("add_bos_token")
        if add_bos and bos_id is None:
            raise config.wrong("add_bos_token", "false where there is no bos_token")
        if add_bos is not None:
            front = [bos_id] if add_bos and bos_id is not None else []
        special_ids = {id for id, token in added.items() if token.special}
        special_ids |= {id for id in (bos, eos, *eos_ids) if id is not None}
        begins = {bos_id, *parts_begin_behind(tokenizer, pieces)} if strips else None
        super().__init__(
            pieces,
            bos_id=bos_id,
            eos_ids=(*eos_ids,) if eos is None else (eos, *eos_ids),
            front=front,
            special_ids=special_ids,
            begins=begins,
            files=files,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HuggingFaceTokenizer":
        """Reads a `tokenizer.json`, or a `vocab.json` with the `merges.txt` beside it.
        FileNotFoundError, or CheckpointError for files that cannot be read."""
        path = Path(path)
        package = optional_package("tokenizers", f"Reading {path}")
        config = read_tokenizer_config(path.parent)
        if path.name == "vocab.json":
            with as_checkpoint_error(path):
                tokenizer, added = from_vocab_and_merges(path, config)
                if tokenizer.token_to_id(END_OF_TEXT) is not None:
                    config = config.or_else("eos_token", END_OF_TEXT)
                files = dict.fromkeys(added, config.files.get("added_tokens_decoder", path))
                return cls(tokenizer, config, path, files)
        data = read_file(path, MAX_FILE)
        with as_checkpoint_error(path):
            state = parse_object(data)
            check_growth(state)
            tokenizer = package.Tokenizer.from_buffer(data)
            check_ids(state, tokenizer)
            return cls(tokenizer, config, path)

    def _encode(self, text: str, special: bool) -> list[int]:
        with self._lock, as_checkpoint_error(self._file, "a text that it cannot encode"):
            self.tokenizer.encode_special_tokens = not special
            return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def check_ids(state: Mapping[str, Any], tokenizer: Any) -> None:
    """CheckpointError for a token whose id is not the one that the file gives it: the package
    counts added tokens on from its vocabulary, whatever the file says."""
    for token in state.get("added_tokens") or []:
        id, content = token["id"], token["content"]
        found = tokenizer.token_to_id(content)
        if found != id:
            raise CheckpointError(
                f"the added token {content[:40]!r} with the id {id}",
                f"{found}, the next one: added tokens follow the vocabulary without gaps",
            )


def named_token(tokenizer: Any, config: TokenizerConfig, name: str) -> int | None:
    """The id of the token that the config calls `name`."""
    text = config.token(name)
    if text is None:
        return None
    id = tokenizer.token_to_id(text)
    if id is None:
        raise config.wrong(name, "a token of this tokenizer")
    return int(id)


def parts_begin_behind(tokenizer: Any, pieces: Mapping[int, bytes]) -> list[int]:
    """The special tokens behind which encoding begins a text anew, with a space in front."""
    tokenizer.encode_special_tokens = False
    begins = []
    for id, token in tokenizer.get_added_tokens_decoder().items():
        ids = tokenizer.encode(token.content + "a", add_special_tokens=False).ids
        if len(ids) > 1 and ids[0] == id and pieces[ids[1]].startswith(b" "):
            begins.append(id)
    return begins


def ids_in_front(tokenizer: Any) -> list[int]:
    """What the post-processor puts in front of a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    starts = range(len(whole) - len(plain) + 1)
    start = next((at for at in starts if whole[at : at + len(plain)] == plain), 0)
    return list(whole[:start])


class Pieces(Mapping[int, bytes]):
    """The bytes of every token by id: what `piece` makes of one of `ids` when somebody asks for it,
    since most of a vocabulary is in no text; `added` ones stand above these."""

    def __init__(
        self, ids: Collection[int], piece: Callable[[int], bytes], added: Mapping[int, bytes]
    ) -> None:
        self._ids, self._piece, self._added = ids, piece, added

    def __getitem__(self, id: int) -> bytes:
        if id in self._added:
            return self._added[id]
        if id not in self._ids:
            raise KeyError(id)
        return self._piece(id)

    def __iter__(self) -> Iterator[int]:
        return iter({*self._ids, *self._added})

    def __len__(self) -> int:
        return len({*self._ids, *self._added})


def decoding(tokenizer: Any) -> tuple[Callable[[str], bytes], bool]:
    """What makes the bytes of a token of the model, and whether encoding puts a space in front of a
    text that decoding takes away. CheckpointError for a decoder that is none of the two usual
    kinds."""
    state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
    steps = state.get("decoders", []) if state.get("type") == "Sequence" else [state]
    if [step.get("type") for step in steps] == ["ByteLevel"]:
        return bytes_of_characters, False

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
                raise CheckpointError(
                    f"a decoder Strip that takes {step['start']} spaces", "one that takes 0 or 1"
                )
            strips = strips or step["start"] == 1
        else:
            raise CheckpointError(
                f"decoder {kind or 'none'} in {[step.get('type') for step in steps]}",
                "ByteLevel, or Replace, ByteFallback, Fuse, Strip or Metaspace",
            )

    def piece(token: str) -> bytes:
        if byte_pieces and (match := BYTE_PIECE.fullmatch(token)):
            return bytes.fromhex(match[1])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return piece, strips


def bytes_of_characters(token: str) -> bytes:
    """A byte-level token spells every byte as one character; others stand for themselves."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()
