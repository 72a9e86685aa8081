"""How much longer the steps of a tokenizer.json can make a text.

Sixty replacements of "a" by "aa" fill any memory, and a process that runs out of memory inside the
package tokenizers is gone without an exception. So the steps are looked at before it sees them.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

from simdformer.checkpoints.error import CheckpointError

__all__ = ["check_growth"]

MAX_STEPS = 64  # published files have up to ten
# Times as many bytes in the worst case; published files come to three thousand, nearly all of it
# for one character of Unicode (U+FDFA) that stands for eighteen and may do so twice.
MAX_GROWTH = 5000
MAX_DECODED_GROWTH = 4  # of each token of the vocabulary; published files shrink them
MAX_ADDED = 256 << 20  # bytes of the added tokens after normalization
SAME = "Split Digits Punctuation Whitespace WhitespaceSplit Strip StripAccents Fuse ByteFallback"
GROWTH = {"NFD": 3, "NFC": 3, "NFKD": 11, "NFKC": 11, "ByteLevel": 2, "Lowercase": 2}
GROWTH |= dict.fromkeys(SAME.split(), 1)
UNKNOWN = 4  # of other steps; the longest UTF-8 of a character


def check_growth(state: Mapping[str, Any]) -> None:
    """CheckpointError for a tokenizer.json whose steps could make a text endlessly longer."""
    before = steps_of(state, "normalizer", "normalizers")
    growth = math.prod(map(growth_of, before))
    before += steps_of(state, "pre_tokenizer", "pretokenizers")
    behind = steps_of(state, "post_processor", "processors")
    decoder = steps_of(state, "decoder", "decoders")
    for name, steps, most in (
        ("normalizer and pre_tokenizer", before, MAX_GROWTH),
        ("post_processor", behind, MAX_GROWTH),
        ("decoder", decoder, MAX_DECODED_GROWTH),
    ):
        if len(steps) > MAX_STEPS:
            raise CheckpointError(f"{len(steps)} steps in {name}", f"at most {MAX_STEPS}")
        if (worst := math.prod(map(growth_of, steps))) > most:
            raise CheckpointError(
                f"steps in {name} that can make a text {worst:.3g} times as long",
                f"at most {most} times",
            )
    added = state.get("added_tokens") or []
    if sum(map(normalized_bytes, added)) * growth > MAX_ADDED:
        raise CheckpointError(
            "added_tokens that the normalizer can make longer than memory", "shorter ones"
        )


def steps_of(state: Mapping[str, Any], name: str, plural: str) -> list[Mapping[str, Any]]:
    """The steps of one stage, sequences of sequences laid out flat."""
    steps: list[Mapping[str, Any]] = []
    waiting = [state.get(name)]
    while waiting:
        step = waiting.pop()
        if step is None:
            continue
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise CheckpointError(f"a step in {name} without a type", "one that has it")
        if step["type"] != "Sequence":
            steps.append(step)
        elif isinstance(inner := step.get(plural), list):
            waiting += inner
        else:
            raise CheckpointError(f"a Sequence in {name} without {plural}", "one that has them")
    return steps


def growth_of(step: Mapping[str, Any]) -> float:
    """The most bytes that one step makes of one byte."""
    kind = step["type"]
    if kind == "Replace":
        pattern, content = step.get("pattern"), size(step.get("content"))
        found = size(pattern.get("String")) if isinstance(pattern, dict) else 0
        # A regular expression, and an empty string, match between any two characters.
        return max(1.0, content / found) if found else content + 1
    if kind == "Prepend":
        return size(step.get("prepend")) + 1
    if kind == "Precompiled":
        return longest_replacement(step.get("precompiled_charsmap"))
    if kind == "TemplateProcessing":
        return size_of_template(step)
    return GROWTH.get(kind, UNKNOWN)


def size(text: Any) -> int:
    return len(text.encode()) if isinstance(text, str) else 0


def longest_replacement(charsmap: Any) -> float:
    """The longest of the strings, each ended by a zero, that follow the table of characters: four
    bytes of its size, the table."""
    data = base64.b64decode(charsmap) if isinstance(charsmap, str) else b""
    strings = data[4 + int.from_bytes(data[:4], "little") :]
    return max(UNKNOWN, max(map(len, strings.split(b"\0")), default=0))


def size_of_template(step: Mapping[str, Any]) -> int:
    """Its parts, each a text or a special token of several ids."""
    single, special = step.get("single"), step.get("special_tokens")
    parts = len(single.split()) if isinstance(single, str) else len(single or [])
    tokens = special.values() if isinstance(special, dict) else special or []
    return max(1, parts) * max(
        (len(token.get("ids") or []) for token in tokens if isinstance(token, dict)), default=1
    )


def normalized_bytes(token: Any) -> int:
    return size(token.get("content")) if isinstance(token, dict) and token.get("normalized") else 0
