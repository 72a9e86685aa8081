"""vocab.json and merges.txt, as GPT-2 and Qwen2 publish them: byte-level byte-pair encoding.

    vocab.json: {token: id}      merges.txt: two tokens a line, what is joined first comes first

A token spells its bytes as characters, one for each. How a text is cut into parts before the merges
is in no file: it follows from the tokenizer's class.
"""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from simdformer.arguments import shown
from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import read_object, read_text
from simdformer.checkpoints.huggingface_text import TokenizerConfig
from simdformer.text.pieces import check_all_bytes, optional_package

__all__ = [
    "BYTE_OF_CHARACTER",
    "END_OF_TEXT",
    "QWEN2_SPLIT",
    "check_bytes",
    "from_vocab_and_merges",
]

MAX_MERGES_FILE = 64 << 20  # bytes; Qwen2's has 2 MB

# Bytes that Latin-1 can print stand for themselves, the others for the characters from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = sorted(set(range(256)) - set(PRINTABLE))
BYTE_OF_CHARACTER = {chr(byte): byte for byte in PRINTABLE} | {
    chr(0x100 + index): byte for index, byte in enumerate(OTHERS)
}

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT = "<|endoftext|>"  # of both families, where no file says another


def from_vocab_and_merges(vocab_file: Path, config: TokenizerConfig) -> tuple[Any, range]:
    """The `tokenizers.Tokenizer` of a vocab.json and the merges.txt beside it, of the class that
    the tokenizer's config or the model's names; and the ids that the config adds."""
    package = optional_package("tokenizers", f"Reading {vocab_file}")
    family = family_of(vocab_file.parent, config)
    vocabulary = read_vocabulary(vocab_file)
    merges = read_merges(vocab_file.with_name("merges.txt"), vocabulary)
    tokenizer = package.Tokenizer(package.models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.decoder = package.decoders.ByteLevel()
    if family == "qwen2":
        tokenizer.normalizer = package.normalizers.NFC()
        tokenizer.pre_tokenizer = package.pre_tokenizers.Sequence(
            [
                package.pre_tokenizers.Split(package.Regex(QWEN2_SPLIT), behavior="isolated"),
                package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        prefix_space = config.get("add_prefix_space") is True
        tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    if END_OF_TEXT in vocabulary:
        tokenizer.add_special_tokens([END_OF_TEXT])
    with in_file(config.files.get("added_tokens_decoder", vocab_file)):
        add_tokens(tokenizer, config)
    return tokenizer, range(len(vocabulary), tokenizer.get_vocab_size(with_added_tokens=True))


def family_of(directory: Path, config: TokenizerConfig) -> str:
    """How a text is cut: "gpt2" or "qwen2"."""
    name = config.get("tokenizer_class")
    if name is None and (directory / "config.json").exists():
        name = read_object(directory / "config.json").get("model_type")
    family = str(name).lower().removesuffix("fast").removesuffix("tokenizer")
    if family.startswith("qwen"):
        family = "qwen2"  # all of them, up to Qwen3
    if family not in ("gpt2", "qwen2"):
        raise CheckpointError(
            f"vocab.json and merges.txt of the class {name!r}",
            "GPT2Tokenizer or Qwen2Tokenizer as tokenizer_class in tokenizer_config.json; or a "
            "tokenizer.json",
            file=directory,
        )
    return family


def read_vocabulary(file: Path) -> dict[str, int]:
    vocabulary = read_object(file)
    ids = list(vocabulary.values())
    if any(type(id) is not int for id in ids) or sorted(ids) != list(range(len(ids))):
        raise CheckpointError(
            f"{len(ids)} tokens with other ids",
            f"the numbers 0 to {len(ids) - 1}, each once",
            file=file,
            advice="download it again",
        )
    with in_file(file):
        check_bytes(vocabulary)
    return vocabulary


def check_bytes(vocabulary: Mapping[str, int]) -> None:
    """CheckpointError when a byte has no token."""
    check_all_bytes(
        byte for character, byte in BYTE_OF_CHARACTER.items() if character in vocabulary
    )


def read_merges(file: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    lines = read_text(file, MAX_MERGES_FILE).split("\n")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.partition(" ")
        unknown = [token for token in (left, right, left + right) if token not in vocabulary]
        if not space or unknown:
            raise CheckpointError(
                f"{line[:40]!r} in line {number}",
                "two tokens of vocab.json with a space between them whose union is a token too",
                file=file,
                advice="download it again",
            )
        merges.append((left, right))
    return merges


def add_tokens(tokenizer: Any, config: TokenizerConfig) -> None:
    """Adds the config's `added_tokens_decoder`, {"id": {"content": ..., "special": ...}}; each must
    get the id that it says."""
    package = optional_package("tokenizers", "Reading vocab.json")
    entries = config.fields.get("added_tokens_decoder", {})
    flags = ("lstrip", "rstrip", "normalized", "single_word", "special")
    try:
        ordered = sorted((int(id), entry) for id, entry in entries.items())
        tokens = [
            (
                id,
                package.AddedToken(
                    entry["content"], **{flag: entry[flag] for flag in flags if flag in entry}
                ),
            )
            for id, entry in ordered
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"added_tokens_decoder = {shown(entries)} ({error})", "an object of tokens by id"
        ) from None
    # Ids are given in turn; runs of a kind are added together, as each call costs a new search.
    for is_special, run in groupby(tokens, key=lambda pair: bool(pair[1].special)):
        add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
        add([token for _, token in run])
    for id, token in tokens:
        turn = tokenizer.token_to_id(token.content)
        if turn != id:
            raise CheckpointError(
                f"the added token {token.content[:40]!r} with the id {id}",
                f"{turn}, whose turn it is: added tokens follow the vocabulary without gaps",
            )
