"""One text that is continued: what was chosen, what of it is certain, and whether it has ended."""

from collections.abc import Callable, Sequence
from typing import Any

from simdformer.text.streaming import StopStrings, TextStream

__all__ = ["Continuation"]


class Continuation:
    """One prompt and what has become of it, up to an id or a string that ends it.

    `show` is given what is certain to stay: pieces of text, or ids when `show_ids`.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        stop_ids: frozenset[int],
        stop_strings: Sequence[str] = (),
        text_stream: TextStream | None = None,
        show: Callable[[Any], object] | None = None,
        show_ids: bool = False,
    ) -> None:
        self.ids = list(prompt)  # the prompt and everything chosen
        self.new_ids: list[int] = []  # without what ended it
        self.text = ""
        self.ended = False
        self._stop_ids = stop_ids
        self._stops = StopStrings(stop_strings)
        self._stream = text_stream
        self._show = show
        self.shows_ids = show_ids
        self._undecided: list[tuple[int, int]] = []  # ids, and where the text of each ends
        self._decoded = 0

    def put(self, id: int) -> None:
        """Appends an id, or ends with it."""
        self.ids.append(id)
        if id in self._stop_ids:
            self.finish()
            return
        piece = self._stream.put(id) if self._stream else ""
        self._decoded += len(piece)
        # An id without text of its own is part of the next character (or `finish` lets it through).
        part_of_next = self._stream is not None and not piece
        self._undecided.append((id, self._decoded + part_of_next))
        self._let_through(self._stops.put(piece))
        self.ended = self._stops.found

    def finish(self) -> None:
        """Lets through what was kept back. After an end by a stop string there is nothing to do."""
        if not self.ended:
            rest = self._stream.flush() if self._stream else ""
            rest = self._stops.put(rest) + self._stops.flush()
            self._let_through(rest, everything=not self._stops.found)
            self.ended = True

    def _let_through(self, text: str, *, everything: bool = False) -> None:
        self.text += text
        # An id stays when all of its text does.
        while self._undecided and (everything or self._undecided[0][1] <= len(self.text)):
            self.new_ids.append(self._undecided.pop(0)[0])
            if self._show and self.shows_ids:
                self._show(self.new_ids[-1])
        if text and self._show and not self.shows_ids:
            self._show(text)
