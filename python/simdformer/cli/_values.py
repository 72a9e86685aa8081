"""What an option may be: read from the command line before anything else happens, and refused
there. Each is a `type` for `add_argument`."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import simdformer as sf
from simdformer.arguments import LARGEST, shown

__all__ = ["existing", "isa", "new_file", "number", "text", "whole"]


def refused(found: str, needed: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"found {shown(found)}, needs {needed}")


def whole(least: int = 1, most: int = LARGEST) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""
    needed = f"a whole number >= {least}" if most == LARGEST else f"{least} to {most}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise refused(text, needed) from None
        if value > LARGEST:
            raise refused(text, f"{needed} and < 2**63")
        if not least <= value <= most:
            raise refused(text, needed)
        return value

    return read


def number(needed: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """A finite number that is `allowed`; `needed` says so in words."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise refused(text, needed) from None
        if not (math.isfinite(value) and allowed(value)):
            raise refused(text, needed)
        return value

    return read


def text(given: str) -> str:
    """Some text."""
    if not given:
        raise refused(given, "a text that is not empty")
    return given


def isa(name: str) -> str:
    """An instruction set that runs here."""
    if name.lower() not in sf.isas():
        raise refused(name, f"what this machine runs: {' or '.join(sf.isas())}")
    return name


def existing(name: str) -> Path:
    """A file or directory that is there."""
    path = Path(name)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no file {shown(name)}")
    return path


def new_file(name: str) -> Path:
    """A file to write, which may be there already; the directory that it goes into must be."""
    path = Path(name)
    if path.is_dir():
        raise refused(name, "a file; this is a directory")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {shown(str(path.parent))}")
    return path
