"""How the commands write for people, on terminals and into files."""

import hashlib
import re
import sys
from typing import TYPE_CHECKING

import numpy as np

from simdformer.types import Array

if TYPE_CHECKING:
    from simdformer.parallel.plan import Link

__all__ = [
    "count",
    "describe",
    "duration",
    "figure",
    "harmless",
    "hash_of",
    "link_line",
    "memory",
    "paragraph",
    "rate",
    "write",
]

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def write(text: str) -> None:
    """To stdout at once. What a model says stays text, even on a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def harmless(text: str) -> str:
    """Control characters but the ends of lines and tabs become U+FFFD: they could move a terminal's
    cursor, change its title or its keys."""
    return CONTROLS.sub("\ufffd", text)


def paragraph(text: str, hanging: str = "") -> None:
    """To stdout, in lines of at most 80 columns."""
    from simdformer.learn.exercises.results import folded

    write("\n".join(folded(text, hanging)) + "\n")


def rate(tokens: int, seconds: float) -> str:
    return f"{count(tokens, 'token')} at {tokens / max(seconds, 1e-9):,.0f} a second"


def figure(number: float) -> str:
    """Three digits, or all of a whole number from 1000 on: 12.3, 4,567."""
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def link_line(link: "Link") -> str:
    return f"link: {link.bandwidth * 8e-9:.3g} Gb/s, {link.latency * 1e6:.3g} us"


def memory(size: int) -> str:
    """Bytes for people: 1.5 GiB."""
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{size / 1024**power:.{1 if power else 0}f} {unit}"


def duration(seconds: float) -> str:
    """For people: 4 h 10 min.

    >>> duration(15_000), duration(200), duration(9.2), duration(0.012)
    ('4 h 10 min', '3 min 20 s', '9.2 s', '12 ms')
    """
    if (whole := round(seconds)) >= 3600:
        return f"{whole // 3600:,} h {whole % 3600 // 60} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    unit, name = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")
    return f"{seconds * unit:.3g} {name}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def describe(error: BaseException) -> str:
    """One line, whatever the message looks like."""
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, KeyError) and error.args:  # whose str() is a repr
        text = str(error.args[0])
    else:
        text = str(error)
    return harmless(" ".join(text.split())) or type(error).__name__


def hash_of(logits: Array) -> str:
    """Eight bytes that tell whether two runs computed the same to the last bit."""
    return hashlib.blake2b(np.ascontiguousarray(logits).tobytes(), digest_size=8).hexdigest()
