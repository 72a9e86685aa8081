"""JSON objects from files of strangers: config.json, params.json, an index, a tensor header."""

import json
from pathlib import Path
from typing import Any

from simdformer.models.checkpoint import CheckpointError
from simdformer.models.input_file import read_file

__all__ = ["parse_object", "read_object"]

MAX_SIZE = 16 << 20  # bytes; the index of the largest published checkpoint has about 1 MB
MAX_DIGITS = 30  # sizes have 64 bits, so 20 of them


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. CheckpointError when it is something else, or far too large."""
    return parse_object(path, read_file(path, MAX_SIZE))


def parse_object(path: Path, text: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8. A key that appears twice is an error: two readers would disagree."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key appears twice")
        return result

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    def sane_int(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise ValueError(f"a number of {len(digits)} digits")
        return int(digits)

    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=no_constant,
            parse_int=sane_int,
        )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: found no JSON object ({error}); download it again",
            file=path,
            found=str(error),
            needed="a JSON object",
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path}: found a JSON {type(value).__name__}, needed is an object",
            file=path,
            found=f"a JSON {type(value).__name__}",
            needed="a JSON object",
        )
    return value
