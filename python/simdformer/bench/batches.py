"""Many texts at once as work: one more id for each of them, chosen from logits, in one step.

A text has keys and values of its own, in pages (llama.cpp: in cells of its own), though all of them
begin alike.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simdformer.bench import llama_cpp
from simdformer.bench.contestants import LLAMA_CPP, OURS, Contestant, Missing, Way
from simdformer.bench.models import SHAPES, ModelRun
from simdformer.bench.work import BOTH, Case, Inputs, times
from simdformer.models import PagedKVCache, Transformer
from simdformer.models.batch_pass import BatchPass, Piece
from simdformer.models.budget import cache_bytes
from simdformer.models.paged_cache import PagedSequence
from simdformer.text.sampling import Sampler
from simdformer.types import Array

__all__ = ["BatchRun", "batch_cases"]

SHAPE = "Qwen3-0.6B"
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def batch_cases() -> Iterator[Case]:
    """From one text to many, in two arithmetics."""
    for dtype in BOTH:
        for texts in COUNTS:
            work = BatchRun(config=SHAPES[SHAPE], in_cache=64, texts=texts, dtype=dtype)
            goal = times(1.2 if texts == COUNTS[-1] else 1.0, LLAMA_CPP)
            yield Case(f"{SHAPE}/batch/{dtype}/{texts}", work, (goal,))


@dataclass(frozen=True, kw_only=True)
class BatchRun(ModelRun):
    """A step of `texts` texts, behind `in_cache` ids each."""

    operation: ClassVar[str] = "decode many texts"
    peers: ClassVar[tuple[str, ...]] = (LLAMA_CPP,)
    # llama.cpp's step ends with logits, and nothing is chosen from them.
    how: ClassVar[dict[str, Any]] = {"each": True}
    new: int = 1
    texts: int

    @property
    def flops(self) -> int:
        return self.texts * super().flops

    @property
    def nbytes(self) -> int:
        """Every weight once, and the cache of each text."""
        each = cache_bytes(self.config, self.in_cache + 1, np.dtype(self.cache_dtype).itemsize)
        return super().nbytes + (self.texts - 1) * each

    @property
    def token_count(self) -> int:
        return self.texts

    def ids(self, rng: np.random.Generator) -> Array:
        """(in_cache + texts,): how all begin, and what each reads next"""
        return rng.integers(self.config.vocab_size, size=self.in_cache + self.texts)

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        return [self.ours(inputs), self.theirs(llama_cpp, inputs)]

    def ours(self, inputs: Inputs) -> Contestant:
        model = self.our_model(inputs)
        beginning, next_ids = np.split(inputs["ids"], [self.in_cache])
        cache = model.new_pages(dtype=self.cache_dtype)
        texts = begun(model, cache, beginning, self.texts)
        together = step(model, texts, next_ids)

        def checked(_: Array) -> Array:
            few, pages = self.checked_ids(inputs), model.new_pages(dtype=self.cache_dtype)
            short = begun(model, pages, few[:-1], self.texts)
            return step(model, short, np.repeat(few[-1:], self.texts))()

        return Contestant(OURS, (Way(f"activations {self.dtype}", together, checked),))


def begun(model: Transformer, cache: PagedKVCache, ids: Array, count: int) -> list[PagedSequence]:
    """Texts that all have read these ids. One has; the others get copies of its pages."""
    texts = [cache.open() for _ in range(count)]
    first, *others = texts
    model.forward_batch(BatchPass(cache, [Piece(first, ids.tolist(), shared=False)]))
    for text in others:
        text.reserve(len(ids))
        cache.data[:, :, text.pages] = cache.data[:, :, first.pages]
        text.advance(ids.tolist(), shared=False)
    return texts


def step(model: Transformer, texts: list[PagedSequence], ids: Array) -> Callable[[], Array]:
    """A call that reads one id of each text, chooses the next one and forgets both; it gives the
    logits of the last text."""
    cache, sampler = texts[0].cache, Sampler()
    pieces = [
        Piece(text, [int(id)], shared=False, one_by_one=True)
        for text, id in zip(texts, ids, strict=True)
    ]

    def call() -> Array:
        answers = model.forward_batch(BatchPass(cache, pieces))
        for logits in answers:
            sampler(logits[-1])
        for text in texts:
            text.truncate(text.length - 1)
        last: Array = answers[-1][-1]
        return last

    return call
