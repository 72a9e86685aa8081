"""The loop: read the prompts, then choose an id and read it, until every sequence has ended."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from simdformer.models.cache import KVCache
from simdformer.models.observer import Edit
from simdformer.models.transformer import Transformer
from simdformer.text.sampling import Sampler
from simdformer.text.streaming import StopStrings, TextStream
from simdformer.types import Array, DTypeLike

__all__ = ["Continuation", "Report", "Streamer", "generate"]

# Ids read at a time: bounds the memory that activations take.
PREFILL_CHUNK = 512


@runtime_checkable
class Streamer(Protocol):
    """Is given what is new, piece by piece, and told when there is no more."""

    def put(self, piece: Any, /) -> object: ...
    def end(self) -> object: ...


@dataclass
class Report:
    """What `generate(..., report=...)` did, in which time, and the last logits (B,V).

    `new_ids` are all that were chosen, `decode_ids` those of them that the model then read.
    """

    prompt_ids: int = 0
    new_ids: int = 0
    decode_ids: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    logits: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))


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
        self._show_ids = show_ids
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
            if self._show and self._show_ids:
                self._show(self.new_ids[-1])
        if text and self._show and not self._show_ids:
            self._show(text)


def generate(
    model: Transformer,
    sequences: Sequence[Continuation],
    *,
    max_new_tokens: int,
    sampler: Sampler,
    report: Report | None = None,
    cache_dtype: DTypeLike = "float32",
    edit: Mapping[str, Edit] | None = None,
) -> None:
    """Continues all sequences together, until each has ended or has `max_new_tokens` more ids."""
    report = Report() if report is None else report
    report.prompt_ids = sum(len(sequence.ids) for sequence in sequences)
    longest = max(len(sequence.ids) for sequence in sequences)
    started = time.perf_counter()
    # The last id chosen is never read, so its place is not needed.
    cache = model.new_cache(longest + max_new_tokens - 1, len(sequences), cache_dtype)
    report.logits = logits = prefill(model, [sequence.ids for sequence in sequences], cache, edit)
    report.prefill_seconds = time.perf_counter() - started

    started = time.perf_counter()
    for step in range(max_new_tokens):
        for sequence, row in zip(sequences, logits, strict=True):
            if not sequence.ended:
                sequence.put(sampler(row, sequence.ids))
                report.new_ids += 1
        report.decode_seconds = time.perf_counter() - started
        if step + 1 == max_new_tokens or all(sequence.ended for sequence in sequences):
            break
        # A sequence that has ended goes on reading its last id; nobody looks at what comes out.
        last = [[sequence.ids[-1]] for sequence in sequences]
        report.logits = logits = read(model, last, cache, edit, alone=len(sequences) == 1)
        report.decode_ids += len(sequences)
    for sequence in sequences:
        sequence.finish()


def prefill(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    cache: KVCache,
    edit: Mapping[str, Edit] | None,
) -> Array:
    """Reads every prompt into its sequence of the cache, each by its own length; logits (B,V)
    behind the last ids."""
    rows = []
    for index, prompt in enumerate(prompts):
        own = cache.sequence(index)
        for chunk in chunks(prompt):
            logits = read(model, [chunk], own, edit, alone=len(prompts) == 1)
        rows.append(logits[-1])
    return np.stack(rows)


def read(
    model: Transformer,
    ids: Sequence[Sequence[int]],
    cache: KVCache,
    edit: Mapping[str, Edit] | None,
    *,
    alone: bool,
) -> Array:
    """Reads ids (B,L); logits (B,V) behind the last of each. What `edit` sees has a batch axis
    unless there is but one prompt."""
    if alone:
        return model(ids[0], cache, logits_to_keep=1, edit=edit)
    return model(ids, cache, logits_to_keep=1, edit=edit)[:, -1]


def chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + PREFILL_CHUNK] for start in range(0, len(ids), PREFILL_CHUNK))
