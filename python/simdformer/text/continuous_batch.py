"""Continuous batching: texts enter when others end, prompts are read between the steps of the rest.

Yu et al. 2022, "Orca: a distributed serving system for transformer-based generative models"; in
chunks: Agrawal et al. 2023, arXiv:2308.16369. What a text gets are the bits that it gets alone: the
kernels see to that, and what a prompt is cut into here are pieces of two ids or more.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simdformer.models.batch_pass import BatchPass, Piece
from simdformer.models.cache import KVCache
from simdformer.models.communicator import Communicator
from simdformer.models.observer import Edit
from simdformer.models.paged_cache import PagedKVCache, PagedSequence
from simdformer.models.protocol import CausalModel
from simdformer.text.continuation import Continuation
from simdformer.text.draft import Draft
from simdformer.text.sampling import Sampler
from simdformer.types import Array

__all__ = ["PREFILL_CHUNK", "ContinuousBatch", "Request"]

# Ids of prompts read at a time: bounds the memory that activations take, and how long the texts
# that go on have to wait.
PREFILL_CHUNK = 512


@dataclass(eq=False)
class Request:
    """A text that wants up to `max_new_tokens` more ids, chosen by a sampler of its own. What a
    draft proposes is read together with the last id, and kept as far as the sampler agrees. Where
    several ranks hold the model, rank 0 chooses."""

    text: Continuation
    sampler: Sampler
    max_new_tokens: int
    draft: Draft | None = None
    ranks: Communicator = field(default_factory=Communicator)
    sequence: PagedSequence | None = None
    chosen: int = 0
    cached: int = 0  # ids of the prompt that the cache had already
    proposed: Sequence[int] = ()

    def put(self, logits: Array) -> None:
        """Chooses the next id by logits (V,); the text has ended after the last."""
        self.text.put(self.ranks.broadcast(lambda: self.sampler(logits, self.text.ids)))
        self.chosen += 1
        if self.chosen == self.max_new_tokens:
            self.text.finish()

    def propose(self, boundary: int | None) -> None:
        """Asks the draft for ids; the last of all is never read, and none beyond RoPE's boundary
        for short texts."""
        room = self.max_new_tokens - self.chosen - 1
        if boundary is not None and len(self.text.ids) <= boundary:
            room = min(room, boundary - len(self.text.ids))
        proposed = self.draft.propose(self.text.ids)[:room] if self.draft and room else ()
        self.proposed = self.ranks.broadcast(lambda: proposed) if self.draft else ()

    def answer(self, logits: Array) -> int:
        """Chooses by logits (rows,V) behind the last id and behind each proposed one, up to the
        first that differs from the one proposed; how many it chose beyond one."""
        for accepted, row in enumerate(logits):
            self.put(row)
            agrees = accepted < len(self.proposed) and self.proposed[accepted] == self.text.ids[-1]
            if self.text.ended or not agrees:
                return accepted
        raise AssertionError("the last row has no id proposed behind it")


class StepResult(NamedTuple):
    """What a step did: for each text that got ids the logits (V,) by which the last was chosen, how
    many ids of prompts it read, how many that were chosen before, how many that drafts proposed,
    and how many of those were as chosen."""

    logits: list[tuple[Request, Array]]
    prompt_ids: int
    read_ids: int
    drafted: int
    accepted: int


class ContinuousBatch:
    """Texts that are continued together; `step` reads what is new of each and chooses one id.

    At most `max_batch` at a time, and no more than find room in the cache to their end: none has to
    be interrupted. With an `edit` one goes on at a time, and shares what was read with no other.
    """

    def __init__(
        self,
        model: CausalModel,
        cache: PagedKVCache,
        *,
        max_batch: int,
        share_answers: bool = False,
        edit: Mapping[str, Edit] | None = None,
    ) -> None:
        self.model, self.cache, self.edit = model, cache, edit
        self.boundary = model.config.rope_boundary
        self.max_batch, self.share_answers = 1 if edit else max_batch, share_answers
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @property
    def unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Behind those that wait. ValueError when the cache could never hold it."""
        most, needed = self.cache.max_pages, self._pages_needed(request)
        if most is not None and needed > most:
            size = self.cache.page_size
            raise ValueError(
                f"generate: {len(request.text.ids)} ids and {request.max_new_tokens} new ones take "
                f"{needed} pages of {size} positions, and the cache has {most}; give it more "
                "memory, or ask for fewer"
            )
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Ends a text where it is."""
        request.text.finish()
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._leave(request)

    def close(self) -> None:
        """Gives all pages back."""
        for request in self.running[:]:
            self._leave(request)
        self.waiting.clear()

    def step(self) -> StepResult:
        """One forward pass, over one id of each text that goes on and some of those that begin."""
        self._admit()
        going_on = [request for request in self.running if self._goes_on(request)]
        pieces: dict[Request, Piece] = {}
        for request in going_on:
            request.propose(self.boundary)
            ids = [request.text.ids[-1], *request.proposed]
            pieces[request] = Piece(opened(request), ids, self.share_answers, one_by_one=True)
        prompts = self._prompts(pieces)
        pieces |= prompts
        answers = self._read(list(pieces.values()))
        got, accepted = [], 0
        for request, logits in zip(pieces, answers, strict=True):
            sequence, before = opened(request), request.chosen
            if sequence.length < len(request.text.ids):
                continue  # there is more of the prompt
            accepted += request.answer(logits)
            got.append((request, logits[request.chosen - before - 1]))
            if request.text.ended:
                self._leave(request)
            else:
                sequence.truncate(len(request.text.ids) - 1)
        drafted = sum(len(request.proposed) for request in going_on)
        prompt_ids = sum(len(piece.ids) for piece in prompts.values())
        return StepResult(got, prompt_ids, len(going_on), drafted, accepted)

    def _read(self, pieces: list[Piece]) -> list[Array]:
        """The logits (rows,V) that each piece wants."""
        if not self.edit:
            return self.model.forward_batch(BatchPass(self.cache, pieces))
        room = self.model.config.max_seq_len
        return [
            self.model(piece.ids, KVCache.of([piece.sequence], room), 1, edit=self.edit)
            for piece in pieces
        ]

    def _admit(self) -> None:
        """Lets texts in while there are pages for them. MemoryError when none goes on and others
        hold the pages that the next one takes."""
        most = self.cache.max_pages
        free = math.inf if most is None else most - self._held_by_others()
        promised = sum(map(self._pages_needed, self.running))
        while self.waiting and len(self.running) < self.max_batch:
            needed = self._pages_needed(self.waiting[0])
            if promised + needed > free:
                break
            promised += needed
            self.running.append(self.waiting.popleft())
        if self.waiting and not self.running:
            raise MemoryError(
                f"generate: the next text takes {needed} pages, and of the cache's {most} others "
                f"hold {self._held_by_others()}; close them, or give it more memory"
            )

    def _held_by_others(self) -> int:
        """How many pages are in use by texts that are not of this batch."""
        sequences = [request.sequence for request in self.running if request.sequence is not None]
        return self.cache.used_pages - len({page for text in sequences for page in text.pages})

    def _goes_on(self, request: Request) -> bool:
        """Whether all but its last id has been read, as RoPE turns a text of its length now. One
        that becomes long is read once more from its beginning."""
        sequence = request.sequence
        if sequence is None or request.chosen == 0:
            return False
        if sequence.long != self._is_long(request):
            sequence.close()
            request.sequence, request.proposed = None, ()
            return False
        return sequence.length == len(request.text.ids) - 1

    def _is_long(self, request: Request) -> bool:
        return self.boundary is not None and len(request.text.ids) > self.boundary

    def _pages_needed(self, request: Request) -> int:
        """From its first position to its last; what is chosen last is never read."""
        positions = len(request.text.ids) + request.max_new_tokens - request.chosen - 1
        return -(-positions // self.cache.page_size)

    def _prompts(self, going_on: Collection[Request]) -> dict[Request, Piece]:
        """What of the other texts is read next, first come, first served."""
        pieces: dict[Request, Piece] = {}
        room = PREFILL_CHUNK
        for request in self.running:
            if request in going_on:
                continue
            if request.sequence is None:
                known = () if self.edit else request.text.ids
                sequence = self.cache.open(known, long=self._is_long(request))
                if any(will_share(sequence, request, other) for other in pieces):
                    sequence.close()
                    continue  # what it begins with is being read for another
                request.sequence = sequence
                if request.chosen == 0:
                    request.cached = sequence.length
            unread = request.text.ids[request.sequence.length :]
            count = min(len(unread), room)
            count -= len(unread) - count == 1  # a single id is decoded: other bits
            if count < min(len(unread), 2):
                break
            pieces[request] = Piece(request.sequence, unread[:count])
            room -= count
        return pieces

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        if request.sequence is not None:
            request.sequence.close()


def opened(request: Request) -> PagedSequence:
    assert request.sequence is not None
    return request.sequence


def will_share(sequence: PagedSequence, request: Request, other: Request) -> bool:
    """Whether the page behind what the sequence has found will be one that `other` is reading."""
    stop = sequence.length + sequence.cache.page_size
    begin = request.text.ids[:stop]
    alike = sequence.long == opened(other).long and other.text.ids[:stop] == begin
    return stop <= len(request.text.ids) - 2 and alike
