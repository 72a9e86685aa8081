"""`model.batch()`: texts that come and go while others are continued, for programs."""

import weakref
from typing import Any, NamedTuple, Self, Unpack

from simdformer.models.paged_cache import PagedKVCache
from simdformer.models.protocol import CausalModel
from simdformer.text.continuous_batch import ContinuousBatch, Request
from simdformer.text.prompts import read_prompts
from simdformer.text.sampling import SamplingOptions, check_names, shows_sampling
from simdformer.text.tokenized_model import Stop, TokenizedModel
from simdformer.types import NumpyArrayLike

__all__ = ["Batch", "Update"]


class Update(NamedTuple):
    """What a step gave one text: `id` as `add` named it, the new text (new ids for a prompt of
    ids), whether that was the last, and how many ids were chosen for it until now."""

    id: int
    new: Any
    ended: bool
    chosen: int


class Batch:
    """Prompts enter with `add`, at any time; each `step` reads what is new and gives what was said.

    What a prompt gets are the bits that `generate` gives it alone, whoever comes and goes. A batch
    that shares a cache with others gives its pages back when it is closed: at the end of a `with`,
    by `close()`, or when nobody holds it any more.

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> batch = model.batch(max_batch=8)
    >>> first = batch.add("Once upon a time", max_new_tokens=5)
    >>> pieces = batch.step()
    >>> second = batch.add("Mia has", max_new_tokens=5)
    >>> while batch.unfinished:
    ...     pieces += batch.step()
    >>> text = "".join(piece.new for piece in pieces if piece.id == second)
    >>> text == model.generate("Mia has", max_new_tokens=5)
    True
    """

    def __init__(
        self,
        model: TokenizedModel,
        cache: PagedKVCache,
        *,
        max_batch: int,
        share_answers: bool = False,
    ) -> None:
        self._model = model
        self._batch = ContinuousBatch(
            model.transformer, cache, max_batch=max_batch, share_answers=share_answers
        )
        self._requests: dict[int, Request] = {}
        self._said: dict[int, list[Any]] = {}
        self._added = 0
        self._release = weakref.finalize(self, self._batch.close)
        self._release.atexit = False
        self.drafted = self.accepted = 0  # ids that drafts proposed, and those that were as chosen

    def __repr__(self) -> str:
        running, waiting = len(self._batch.running), len(self._batch.waiting)
        return f"Batch({running} running, {waiting} waiting)"

    @property
    def unfinished(self) -> int:
        """How many texts have not ended."""
        return len(self._requests)

    @shows_sampling
    def add(
        self,
        prompt: NumpyArrayLike,
        max_new_tokens: int | None = None,
        *,
        stop: Stop | None = None,
        draft: TokenizedModel | CausalModel | str | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> int:
        """A prompt, text or ids, with `max_new_tokens`, `stop`, `draft` and what samples as in
        `generate`; its number.

        ValueError, TypeError: as `generate`; the batch is closed.
        """
        if not self._release.alive:
            raise ValueError("Batch.add: the batch is closed; begin another with model.batch()")
        names = ("max_new_tokens", "stop", "draft", *SamplingOptions.__annotations__)
        check_names("Batch.add", sampling, names)
        prompts = read_prompts(prompt, self._model.encode, function="Batch.add")
        if prompts.is_list:
            raise ValueError("Batch.add: found is a list of prompts, needs one; add each")
        (ids,) = prompts.ids
        said: list[Any] = []
        new = self._model.check_room(len(ids), max_new_tokens)
        request = self._model.request(
            ids, new, is_text=prompts.is_text, show=said.append, stop=stop, draft=draft, **sampling
        )
        self._batch.add(request)
        self._added += 1
        self._requests[self._added], self._said[self._added] = request, said
        return self._added

    def step(self) -> list[Update]:
        """One more id for every text that has been read, and what is new: text for a prompt of
        text ("" while a character is incomplete), ids for one of ids. [] when all have ended."""
        if self._batch.unfinished:
            step = self._batch.step()
            self.drafted += step.drafted
            self.accepted += step.accepted
            got = {id(request) for request, _ in step.logits}
            return [
                self._update(number)
                for number, request in list(self._requests.items())
                if id(request) in got
            ]
        return []

    def cancel(self, id: int) -> Update:
        """Ends a text where it is; what it still had to say. KeyError: it has ended, or there is no
        such text."""
        if id not in self._requests:
            raise KeyError(
                f"Batch.cancel: no text {id!r} goes on; those are {list(self._requests)}"
            )
        self._batch.cancel(self._requests[id])
        return self._update(id)

    def close(self) -> None:
        """Ends every text where it is, and gives its pages back to the cache."""
        self._release()
        self._requests.clear()
        self._said.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _update(self, number: int) -> Update:
        request, said = self._requests[number], self._said[number]
        new: Any = said[:] if request.text.shows_ids else "".join(said)
        said.clear()
        if request.text.ended:
            del self._requests[number], self._said[number]
        return Update(number, new, request.text.ended, request.chosen)
