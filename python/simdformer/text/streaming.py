"""Text that arrives in pieces: bytes to characters, and strings at which it is to stop."""

import codecs
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

__all__ = ["StopStrings", "TextStream", "TextStreamer"]


class TextStreamer:
    """Writes what `generate(..., streamer=TextStreamer())` comes up with as it comes.

    file : a text file; None: whatever `sys.stdout` is at that moment
    end : what is written when there is no more

    Text is written as it is, ids (when the prompt was ids) with a space behind each.

    >>> from simdformer.text import TextStreamer
    >>> streamer = TextStreamer(end=" ...")
    >>> streamer.put("Once upon"); streamer.put(" a time"); streamer.end()
    Once upon a time ...
    """

    def __init__(self, file: TextIO | None = None, end: str = "\n") -> None:
        self._file = file
        self._end = end

    def put(self, piece: str | int, /) -> None:
        self._write(piece if isinstance(piece, str) else f"{piece} ")

    def end(self) -> None:
        self._write(self._end)

    def _write(self, text: str) -> None:
        file = sys.stdout if self._file is None else self._file
        file.write(text)
        file.flush()


class TextStream:
    """Turns ids into text one by one and never splits a UTF-8 character: `put` keeps back what is
    incomplete.

    Bytes that are no UTF-8 become U+FFFD, as in `decode`.
    """

    def __init__(self, id_to_bytes: Callable[[int], bytes]) -> None:
        self._id_to_bytes = id_to_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, id: int) -> str:
        """The text that this id completes; often a word, sometimes nothing."""
        return self._decoder.decode(self._id_to_bytes(id))

    def flush(self) -> str:
        """The rest, when no more ids come."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Lets text through up to the first of some strings, and keeps back what could become one of
    them."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._kept = ""
        self.found = False

    def put(self, text: str) -> str:
        """The text that is safe to show now. After `found` nothing more comes."""
        if self.found:
            return ""
        text = self._kept + text
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        self.found = bool(starts)
        shown = min(starts) if starts else len(text) - self._longest_beginning_of_a_stop(text)
        self._kept = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What was kept back for a stop that did not come."""
        kept, self._kept = self._kept, ""
        return "" if self.found else kept

    def _longest_beginning_of_a_stop(self, text: str) -> int:
        lengths = range(min(len(text), max(map(len, self._stops), default=0)), 0, -1)
        return next(
            (n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0
        )
