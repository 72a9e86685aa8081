"""The loop: read the prompts, then choose an id and read it, until every text has ended."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from simdformer.models.observer import Edit
from simdformer.models.paged_cache import PagedKVCache
from simdformer.models.protocol import CausalModel
from simdformer.text.continuous_batch import ContinuousBatch, Request
from simdformer.types import Array

__all__ = ["Report", "Streamer", "generate"]


@runtime_checkable
class Streamer(Protocol):
    """Is given what is new, piece by piece, and told when there is no more."""

    def put(self, piece: Any, /) -> object: ...
    def end(self) -> object: ...


@dataclass
class Report:
    """What `generate(..., report=...)` did, in which time, and the last logits (B,V).

    The cache had `cached_ids` of the `prompt_ids` already, in whole pages; the others were read.
    `new_ids` are all that were chosen, `decode_ids` those of them that the model then read.
    `drafted` ids were proposed by a draft and read with them; `accepted` of them saved a step.
    Where prompts are read beside texts that go on, the time of a step is divided by the ids of
    each.
    """

    prompt_ids: int = 0
    cached_ids: int = 0
    new_ids: int = 0
    decode_ids: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    logits: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))


def generate(
    model: CausalModel,
    requests: Sequence[Request],
    *,
    cache: PagedKVCache,
    max_batch: int,
    share_answers: bool = False,
    edit: Mapping[str, Edit] | None = None,
    report: Report | None = None,
) -> None:
    """Continues all texts, up to `max_batch` at a time, until each has ended. With `share_answers`
    later texts may begin with what was generated, and not only with prompts that were read. An
    `edit` changes activations on their way, of one text after the other."""
    report = Report() if report is None else report
    report.prompt_ids = sum(len(request.text.ids) for request in requests)
    batch = ContinuousBatch(
        model, cache, max_batch=max_batch, share_answers=share_answers, edit=edit
    )
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
    report.cached_ids = sum(request.cached for request in requests)
    report.logits = np.stack([last[id(request)] for request in requests])
