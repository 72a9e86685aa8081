"""A tokenizer as the keys tokenizer.ggml.* of a GGUF file: what gguf_tokenizer.py reads.

What is written is read back and compared with the tokenizer itself on texts of many kinds, so that
none is written that would cut a text in another way.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.gguf import END_KEYS
from simdformer.checkpoints.gguf_writer import write_gguf
from simdformer.text import gguf_tokenizer
from simdformer.text.gguf_tokenizer import (
    BYTE,
    CONTROL,
    GPT2,
    KEY,
    NORMAL,
    PRES,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Pre,
)
from simdformer.text.huggingface_tokenizer import BYTE_PIECE, HuggingFaceTokenizer
from simdformer.text.llama2c_tokenizer import Llama2cTokenizer
from simdformer.text.sentencepiece_tokenizer import SPACE, SentencePieceTokenizer
from simdformer.text.tiktoken_tokenizer import TiktokenTokenizer
from simdformer.text.tokenizer import Tokenizer
from simdformer.text.vocab_merges import BYTE_OF_CHARACTER

__all__ = ["vocabulary_keys"]

CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
NEVER = -1e9  # the score of what is never joined
TEXTS = (
    "Once upon a time, there was a little girl named Lily. She didn't like it!",
    "  two spaces,\ttabs\n\n\nlines and the end   ",
    "12345 67.89 2^10 = 1024; a_b-c/d\\e @#$%^&*(){}[]<>?!",
    "def f(x):\n    return [x**2 for x in range(10)]  # squares\r\n",
    "Straße, naïve café, ÅNGSTRÖM, Ελληνικά, Русский, עברית, العربية, हिन्दी, ไทย",
    "你好，世界。こんにちは 안녕하세요 🙂👩‍👩‍👧‍👦 e\u0301 ﬁ ½ ⅷ",
    "",
    "I'M I'll we'Ve CAMELcaseWords XMLHttpRequest",
)


def vocabulary_keys(
    tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int], file: Path
) -> dict[str, Any]:
    """The keys of a tokenizer whose model has `vocab_size` ids and ends texts with `eos_ids`
    and with the tokenizer's own. CheckpointError, which names `file`, for one that a GGUF file
    cannot hold."""
    try:
        keys = keys_of(tokenizer)
    except CheckpointError as error:
        error.file = error.file or str(file)
        raise
    tokens, types = keys["tokens"], keys["token_type"]
    for id in range(len(tokens), vocab_size):  # ids that stand for nothing
        tokens.append(f"[PAD{id}]")
        types.append(UNUSED)
    if "scores" in keys:
        scores = [*keys["scores"], *[NEVER] * (len(tokens) - len(keys["scores"]))]
        keys["scores"] = np.array(scores, "<f4")
    keys["token_type"] = np.array(types, "<i4")
    keys["add_bos_token"] = bool(tokenizer.encode(""))
    if tokenizer.bos_id is not None:
        keys["bos_token_id"] = tokenizer.bos_id
    both = dict.fromkeys([*tokenizer.eos_ids, *eos_ids])
    ends = sorted(both, key=lambda id: id == tokenizer.bos_id)  # bos, if at all, last
    keys |= {f"{name}_token_id": id for name, id in zip(END_KEYS, ends, strict=False)}
    named = {KEY + name: value for name, value in keys.items()}
    wrong = cut_otherwise(named, tokenizer)
    if wrong is not None and "scores" in keys:  # Gemma's put no space in front of a text
        named[f"{KEY}add_space_prefix"] = False
        wrong = cut_otherwise(named, tokenizer)
    if wrong is not None:
        raise CheckpointError(
            f"a tokenizer that cuts {wrong[:20]!r} differently from its like in GGUF files",
            "one of the usual kinds",
            file=file,
            advice="leave the tokenizer out with tokenizer=False (--no-tokenizer)",
        )
    return named


def keys_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Kind, tokens, their types, and merges or scores."""
    if isinstance(tokenizer, TiktokenTokenizer):
        return of_ranks(tokenizer)
    if isinstance(tokenizer, Llama2cTokenizer):
        return of_llama2c(tokenizer)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return of_sentencepiece(tokenizer.processor)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return of_json(json.loads(tokenizer.tokenizer.to_str()))
    raise CheckpointError(f"a {type(tokenizer).__name__}", "a tokenizer that GGUF files can hold")


def cut_otherwise(keys: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    """A text that the tokenizer of these keys cuts in another way; None: all are cut alike."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_gguf(path, keys, [])
        again = gguf_tokenizer.load(path)
    return next((text for text in TEXTS if again.encode(text) != tokenizer.encode(text)), None)


# ---- gpt2: byte-level ----------------------------------------------------------------------------


def of_ranks(tokenizer: TiktokenTokenizer) -> dict[str, Any]:
    """Llama 3's: any two tokens side by side become the one that they spell, low ranks first."""
    ranks = tokenizer.ranks
    tokens = [spelled(token) for token in ranks] + list(tokenizer.special)
    return {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tokens,
        "token_type": [NORMAL] * len(ranks) + [CONTROL] * len(tokenizer.special),
        "merges": [
            f"{spelled(left)} {spelled(right)}"
            for token in ranks
            for left, right in halves(ranks, token)
        ],
    }


def spelled(token: bytes) -> str:
    """A byte-level token: every byte as one character."""
    return "".join(map(CHARACTER_OF_BYTE.__getitem__, token))


def halves(ranks: Mapping[bytes, int], token: bytes) -> list[tuple[bytes, bytes]]:
    """Every two tokens that it is made of, those of low rank first."""
    cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
    pairs = [pair for pair in cuts if pair[0] in ranks and pair[1] in ranks]
    return sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def of_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """The keys for the state of a `tokenizers.Tokenizer`."""
    model = state["model"]
    if model.get("type") != "BPE":
        raise CheckpointError(f"a tokenizer of the kind {model.get('type')}", "BPE")
    tokens = {id: token for token, id in model["vocab"].items()}
    types = dict.fromkeys(tokens, NORMAL)
    for added in state["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    ids = range(max(tokens) + 1)
    keys = {
        "tokens": [tokens.get(id, f"[PAD{id}]") for id in ids],
        "token_type": [types.get(id, UNUSED) for id in ids],
    }
    merges = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
    if model.get("byte_fallback"):
        return keys | scored(keys, merges, model.get("unk_token"))
    texts = [" ".join(pair) for pair in merges]
    return keys | {"model": "gpt2", "pre": pre_of(state), "merges": texts}


def pre_of(state: Mapping[str, Any]) -> str:
    """The name of the way in which a text is cut."""
    step = state.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    cuts: list[str] = []
    for one in steps:
        kind = one.get("type")
        if kind == "Split" and "Regex" in one["pattern"] and one["behavior"] == "Isolated":
            cuts.append(one["pattern"]["Regex"])
        elif kind == "Digits" and one["individual_digits"]:
            cuts.append(r"\p{N}")
        elif kind == "ByteLevel" and not one["add_prefix_space"]:
            cuts += [GPT2] if one["use_regex"] else []
        else:
            raise CheckpointError(f"the pre-tokenizer {kind}", "Split, Digits or ByteLevel")
    normalizer = (state.get("normalizer") or {}).get("type")
    whole = bool(state["model"].get("ignore_merges"))
    wanted = Pre(tuple(cuts), whole=whole, compose=normalizer == "NFC")
    for name, pre in PRES.items():
        if pre._replace(bos=False) == wanted and normalizer in (None, "NFC"):
            return name
    raise CheckpointError(
        f"a tokenizer that cuts texts by {' and '.join(cuts)[:200] or 'nothing'}",
        f"a way that has a name in GGUF files: {', '.join(PRES)}",
    )


# ---- llama: by score -----------------------------------------------------------------------------


def scored(
    keys: Mapping[str, Any], merges: Sequence[Sequence[str]], unknown: Any
) -> dict[str, Any]:
    """The keys for merges, with single bytes for what is no token: earlier merges score higher."""
    scores = dict.fromkeys(keys["tokens"], NEVER)
    for rank, (left, right) in reversed(list(enumerate(merges))):
        scores[left + right] = -float(rank)
    types = list(keys["token_type"])
    for id, token in enumerate(keys["tokens"]):
        if token == unknown:
            types[id] = UNKNOWN
        elif BYTE_PIECE.fullmatch(token):
            types[id] = BYTE
    return {
        "model": "llama",
        "token_type": types,
        "scores": [scores[token] for token in keys["tokens"]],
    }


def of_llama2c(tokenizer: Llama2cTokenizer) -> dict[str, Any]:
    tokens = [piece.decode().replace(" ", SPACE) for piece in tokenizer.pieces]
    types = [BYTE if BYTE_PIECE.fullmatch(token) else NORMAL for token in tokens]
    types[:3] = UNKNOWN, CONTROL, CONTROL
    return {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *tokens[3:]],
        "token_type": types,
        "scores": tokenizer.scores,
    }


def of_sentencepiece(processor: Any) -> dict[str, Any]:
    ids = range(processor.vocab_size())

    def type_of(id: int) -> int:
        kinds = (
            (processor.is_unknown, UNKNOWN),
            (processor.is_control, CONTROL),
            (processor.is_byte, BYTE),
            (processor.is_unused, UNUSED),
        )
        return next((type for is_so, type in kinds if is_so(id)), NORMAL)

    return {
        "model": "llama",
        "tokens": [processor.id_to_piece(id) for id in ids],
        "token_type": [type_of(id) for id in ids],
        "scores": [processor.get_score(id) for id in ids],
    }
