"""The loop: read the prompts, then choose an id and read it, until every text has ended."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from simdformer.models.observer import Edit
from simdformer.models.paged_cache import PagedKVCache
from simdformer.models.transformer import Transformer
from simdformer.text.continuous_batch import PREFILL_CHUNK, ContinuousBatch, Request
from simdformer.types import Array, DTypeLike

__all__ = ["Report", "Streamer", "generate", "generate_one_by_one"]


@runtime_checkable
class Streamer(Protocol):
    """Is given what is new, piece by piece, and told when there is no more."""

    def put(self, piece: Any, /) -> object: ...
    def end(self) -> object: ...


@dataclass
class Report:
    """What `generate(..., report=...)` did, in which time, and the last logits (B,V).

    `new_ids` are all that were chosen, `decode_ids` those of them that the model then read.
    `drafted` ids were proposed by a draft and read with them; `accepted` of them saved a step.
    Where prompts are read beside texts that go on, the time of a step is divided by the ids of
    each.
    """

    prompt_ids: int = 0
    new_ids: int = 0
    decode_ids: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    logits: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))


def generate(
    model: Transformer,
    requests: Sequence[Request],
    *,
    cache: PagedKVCache,
    max_batch: int,
    share_answers: bool = False,
    report: Report | None = None,
) -> None:
    """Continues all texts, up to `max_batch` at a time, until each has ended. With `share_answers`
    later texts may begin with what was generated, and not only with prompts that were read."""
    report = Report() if report is None else report
    report.prompt_ids = sum(len(request.text.ids) for request in requests)
    batch = ContinuousBatch(model, cache, max_batch=max_batch, share_answers=share_answers)
    last: dict[int, Array] = {}
    try:
        for request in requests:
            batch.add(request)
        while batch.unfinished:
            started = time.perf_counter()
            step = batch.step()
            seconds = time.perf_counter() - started
            report.prefill_seconds += seconds * step.prompt_ids / (step.prompt_ids + step.read_ids)
            report.decode_seconds += seconds * step.read_ids / (step.prompt_ids + step.read_ids)
            report.decode_ids += step.read_ids + step.accepted
            report.new_ids += len(step.logits) + step.accepted
            report.drafted += step.drafted
            report.accepted += step.accepted
            for request, logits in step.logits:
                last[id(request)] = logits
    finally:
        batch.close()
    report.logits = np.stack([last[id(request)] for request in requests])


def generate_one_by_one(
    model: Transformer,
    requests: Sequence[Request],
    edit: Mapping[str, Edit],
    *,
    cache_dtype: DTypeLike,
    report: Report | None = None,
) -> None:
    """The same, one text after the other, with activations changed on their way. A text that passes
    RoPE's boundary is read once more, because what the cache holds of it is turned as in a short
    one."""
    report, boundary = Report() if report is None else report, model.config.rope_boundary
    report.prompt_ids = sum(len(request.text.ids) for request in requests)
    rows = []
    for request in requests:
        text = request.text
        started = time.perf_counter()
        # The last id chosen is never read, so its place is not needed.
        cache = model.new_cache(len(text.ids) + request.max_new_tokens - 1, 1, cache_dtype)
        for ids in chunks(text.ids, boundary):
            logits = model(ids, cache, logits_to_keep=1, edit=edit)
        report.prefill_seconds += time.perf_counter() - started

        started = time.perf_counter()
        while True:
            request.put(logits[-1])
            report.new_ids += 1
            if text.ended:
                break
            ids = text.ids[-1:]
            if cache.length == boundary:
                cache.reset()
                ids = text.ids
            logits = model(ids, cache, logits_to_keep=1, edit=edit)
            report.decode_ids += 1
        report.decode_seconds += time.perf_counter() - started
        rows.append(logits[-1])
    report.logits = np.stack(rows)


def chunks(ids: Sequence[int], boundary: int | None) -> Iterator[Sequence[int]]:
    """Of a text that is longer than RoPE's boundary the first piece is, too, so that all of them
    are turned as in a long one."""
    first = PREFILL_CHUNK if boundary is None or len(ids) <= boundary else boundary + 1
    yield ids[:first]
    for start in range(first, len(ids), PREFILL_CHUNK):
        yield ids[start : start + PREFILL_CHUNK]
