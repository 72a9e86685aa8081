"""Tokenizers in GGUF files: the keys tokenizer.ggml.* hold tokens, their types, scores or merges.

Two of ggml's kinds are read: "gpt2", byte-level byte-pair encoding, where `pre` names the regular
expressions that cut a text into parts first; and "llama", sentencepiece's encoding by score.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simdformer.arguments import shown
from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.gguf import END_KEYS, id_of
from simdformer.checkpoints.gguf_file import StoredArray, read_gguf
from simdformer.checkpoints.huggingface_text import TokenizerConfig
from simdformer.checkpoints.names import require
from simdformer.text import tiktoken_tokenizer, vocab_merges
from simdformer.text.huggingface_tokenizer import BYTE_PIECE, HuggingFaceTokenizer
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.text.pieces import (
    as_checkpoint_error,
    check_all_bytes,
    optional_package,
    pattern_of,
)
from simdformer.text.scored_merges import ScoredMerges
from simdformer.text.sentencepiece_tokenizer import SPACE

__all__ = ["ScoredGGUFTokenizer", "load"]

KEY = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens

# Tokens that end a turn, which older files do not name as such.
ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>"),
    *("<|endoftext|>", "<|end_of_text|>"),
)


class Pre(NamedTuple):
    """How a text is cut into parts: by one expression after the other. Whether parts that are
    tokens as a whole are not taken apart, bos stands in front when no key says otherwise, and
    characters are composed first (NFC)."""

    cuts: tuple[str, ...]
    whole: bool = False
    bos: bool = False
    compose: bool = False


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OF_LLAMA3 = Pre((tiktoken_tokenizer.SPLIT,), whole=True, bos=True)
OF_QWEN2 = Pre((vocab_merges.QWEN2_SPLIT,), compose=True)
PRES = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), OF_LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), OF_QWEN2),
    "tekken": Pre((TEKKEN,), whole=True, bos=True),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo"), Pre((GPT2,))),
    **dict.fromkeys(("smollm", "refact", "starcoder"), Pre((r"\p{N}", GPT2))),  # refact: Granite 3
    **dict.fromkeys(("dbrx", "smaug-bpe"), Pre((tiktoken_tokenizer.SPLIT,))),  # OLMo 2, SmolLM3
    "gpt-4o": Pre((GPT4O,)),  # Phi-4-mini, gpt-oss
    "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and their types by id, and the other keys."""

    tokens: list[str]
    types: npt.NDArray[Any]
    metadata: Mapping[str, Any]

    def of_type(self, *types: int) -> dict[str, int]:
        return {self.tokens[id]: id for id in np.flatnonzero(np.isin(self.types, types)).tolist()}

    def switch(self, name: str, otherwise: bool) -> bool:
        value = self.metadata.get(KEY + name, otherwise)
        require(isinstance(value, bool), KEY + name, value, "true or false")
        return bool(value)

    def id(self, name: str) -> int | None:
        """The id of the token that is called bos, eos, ..."""
        return id_of(self.metadata, name, len(self.tokens))

    def ends(self) -> list[int]:
        """The ids that end a text."""
        special = self.of_type(CONTROL, USER_DEFINED)
        ids = [*map(self.id, END_KEYS), *map(special.get, ENDS)]
        return list(dict.fromkeys(id for id in ids if id is not None))


def load(path: Path) -> PieceTokenizer:
    """The tokenizer in a GGUF file."""
    metadata = read_gguf(path).metadata
    with in_file(path):
        vocabulary = read_vocabulary(metadata)
        kind = metadata.get(f"{KEY}model")
        if kind == "llama":
            return ScoredGGUFTokenizer(vocabulary)
        if kind != "gpt2":
            raise CheckpointError(f"{KEY}model = {shown(kind)}", "gpt2 or llama")
    with as_checkpoint_error(path):
        return byte_level(vocabulary, path)


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    tokens = array(metadata, "tokens").texts()
    if not tokens:
        raise CheckpointError(f"no token in {KEY}tokens", "at least one")
    types = np.full(len(tokens), NORMAL)
    if f"{KEY}token_type" in metadata:
        types = array(metadata, "token_type").numbers()
    if len(types) != len(tokens):
        found = f"{len(types)} elements of {KEY}token_type"
        raise CheckpointError(found, f"{len(tokens)}, as there are tokens")
    return Vocabulary(tokens, types, metadata)


def array(metadata: Mapping[str, Any], name: str) -> StoredArray:
    value = metadata.get(KEY + name)
    if not isinstance(value, StoredArray):
        raise CheckpointError(f"{KEY}{name} = {shown(value)}", "an array")
    return value


# ---- gpt2 ----------------------------------------------------------------------------------------


def byte_level(vocabulary: Vocabulary, path: Path) -> HuggingFaceTokenizer:
    name = vocabulary.metadata.get(f"{KEY}pre")
    if not isinstance(name, str) or name not in PRES:
        raise CheckpointError(
            f"{KEY}pre = {shown(name)}, and with it no way to cut a text that is known here",
            f"one of {', '.join(PRES)}",
            advice="give a tokenizer.json with tokenizer=",
        )
    package, pre = optional_package("tokenizers", f"The tokenizer in {path}"), PRES[name]
    model = package.models.BPE(
        vocab=ids_of(vocabulary.tokens), merges=merges_of(vocabulary), ignore_merges=pre.whole
    )
    tokenizer = package.Tokenizer(model)
    steps = [package.pre_tokenizers.Split(package.Regex(cut), "isolated") for cut in pre.cuts]
    steps.append(package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Sequence(steps)
    tokenizer.decoder = package.decoders.ByteLevel()
    if pre.compose:
        tokenizer.normalizer = package.normalizers.NFC()
    added = [
        package.AddedToken(token, normalized=False, special=False)
        for token in vocabulary.of_type(USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    tokenizer.add_special_tokens(list(vocabulary.of_type(CONTROL)))
    bos = vocabulary.id("bos")
    fields = {
        "bos_token": None if bos is None else vocabulary.tokens[bos],
        "add_bos_token": vocabulary.switch("add_bos_token", pre.bos and bos is not None),
    }
    config = TokenizerConfig(fields, dict.fromkeys(fields, path))
    ids = range(len(vocabulary.tokens))
    return HuggingFaceTokenizer(tokenizer, config, path, eos_ids=vocabulary.ends(), ids=ids)


def ids_of(tokens: list[str]) -> dict[str, int]:
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        (token, _), *_ = Counter(tokens).most_common(1)
        raise CheckpointError(f"the token {token[:40]!r} twice", "each once")
    vocab_merges.check_bytes(ids)
    return ids


def merges_of(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Pairs of tokens with a space between them, which is not the first character."""
    texts = array(vocabulary.metadata, "merges").texts()
    merges = [(text[:at], text[at + 1 :]) for text in texts if (at := text.find(" ", 1)) > 0]
    if len(merges) != len(texts):
        other = next(text for text in texts if text.find(" ", 1) < 0)
        raise CheckpointError(
            f"{other[:40]!r} in {KEY}merges", "two tokens with a space between them"
        )
    return merges


# ---- llama ---------------------------------------------------------------------------------------


class ScoredGGUFTokenizer(PieceTokenizer):
    """Tokens with scores. What stands between control tokens is encoded as a text of its own, with
    a space in front."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens, size = vocabulary.tokens, len(vocabulary.tokens)
        scores = array(vocabulary.metadata, "scores").numbers().astype(float)
        if len(scores) != size or not np.isfinite(scores).all():
            found = f"{len(scores)} elements of {KEY}scores, {np.isfinite(scores).sum()} finite"
            raise CheckpointError(found, f"{size} finite ones, as there are tokens")
        byte_ids = {
            int(match[1], 16): id
            for token, id in vocabulary.of_type(BYTE).items()
            if (match := BYTE_PIECE.fullmatch(token))
        }
        check_all_bytes(byte_ids)
        pieces = {id: token.replace(SPACE, " ").encode() for id, token in enumerate(tokens)}
        control, defined = vocabulary.of_type(CONTROL), vocabulary.of_type(USER_DEFINED)
        self._apart = control | defined
        pieces |= {id: token.encode() for token, id in self._apart.items()}
        pieces |= {id: bytes([byte]) for byte, id in byte_ids.items()}
        self._cut, self._cut_special = pattern_of(defined), pattern_of(self._apart)
        joinable: dict[bytes, int] = {}
        for id in vocabulary.of_type(NORMAL, UNUSED).values():
            joinable.setdefault(pieces[id], id)
        self._merges = ScoredMerges(
            joinable, scores.tolist(), [byte_ids[byte] for byte in range(256)]
        )
        self._spaced = vocabulary.switch("add_space_prefix", True)
        bos = vocabulary.id("bos")
        add_bos = vocabulary.switch("add_bos_token", True)
        unknown = vocabulary.of_type(UNKNOWN).values()
        super().__init__(
            pieces,
            bos_id=bos,
            eos_ids=tuple(vocabulary.ends()),
            front=[bos] if add_bos and bos is not None else [],
            special_ids={*control.values(), *unknown},
            begins=[*self._apart.values()] if self._spaced else None,
            unspaced=byte_ids.values() if b" " in joinable else (),
        )

    def _encode(self, text: str, special: bool) -> list[int]:
        ids: list[int] = []
        cut, space = self._cut_special if special else self._cut, " " if self._spaced else ""
        for index, part in enumerate(cut.split(text)):
            if index % 2:
                ids.append(self._apart[part])
            elif part:
                ids += self._merges.encode(space + part.replace(SPACE, " "))
        return ids
