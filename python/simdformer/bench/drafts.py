"""A text that repeats itself as work: with a draft that is looked up in it, and without.

The model's weights are random, and so would be what it says. So the answer is dictated: it copies
the prompt, and every so many ids comes another one, as when a model hands back a program in which
it changed some lines. The model reads all of it, and the sampler chooses, before the answer is
given; the draft knows the ids that were read and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from simdformer.bench.contestants import OURS, Contestant, Missing, Way
from simdformer.bench.models import SHAPES, ModelRun
from simdformer.bench.work import Case, Inputs, times
from simdformer.models import PagedKVCache, Transformer
from simdformer.text.continuation import Continuation
from simdformer.text.continuous_batch import Request
from simdformer.text.draft import PromptLookup
from simdformer.text.generate import Report, generate
from simdformer.text.sampling import Sampler
from simdformer.types import Array, ArrayLike

__all__ = ["WITHOUT_DRAFT", "DraftRun", "draft_cases"]

SHAPE = "Qwen3-0.6B"
WITHOUT_DRAFT = "without a draft"  # ours
CHANGED = 12  # every so many ids of the answer are others


def draft_cases() -> Iterator[Case]:
    """One text."""
    work = DraftRun(config=SHAPES[SHAPE], in_cache=66, new=48)
    yield Case(f"{SHAPE}/draft", work, (times(1.8, WITHOUT_DRAFT),))


@dataclass(frozen=True, kw_only=True)
class DraftRun(ModelRun):
    """`new` ids chosen after a prompt of `in_cache`, whose whole pages have been read before.

    Its share is one of the bandwidth that reading every weight for each id would take: above 1 is
    what a draft saves.
    """

    operation: ClassVar[str] = "decode with a draft"

    @property
    def flops(self) -> int:
        """Those of a step for each id, without attention."""
        return 2 * self.new * (self.matrices + self.last_matrix)

    @property
    def nbytes(self) -> int:
        """Every weight once for each id."""
        return 2 * self.new * (self.matrices + self.last_matrix)

    def ids(self, rng: np.random.Generator) -> Array:
        """(in_cache + new,): the prompt, and what is said"""
        vocab_size = self.config.vocab_size
        prompt = rng.integers(vocab_size, size=self.in_cache)
        answer = np.resize(prompt, self.new)
        answer[CHANGED - 1 :: CHANGED] = rng.integers(vocab_size, size=self.new // CHANGED)
        return np.concatenate([prompt, answer])

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        model = self.our_model(inputs)
        return [
            Contestant(OURS, (self.way(model, inputs, 'draft="prompt"', drafted=True),)),
            Contestant(
                WITHOUT_DRAFT, (self.way(model, inputs, "id by id", drafted=False),), peer=False
            ),
        ]

    def way(self, model: Transformer, inputs: Inputs, name: str, *, drafted: bool) -> Way:
        ids, few = inputs["ids"], self.checked_ids(inputs)
        cache = model.new_pages(dtype=self.cache_dtype)

        def call() -> Array:
            return said(model, cache, ids, self.in_cache, drafted=drafted)

        def checked(_: Array) -> Array:
            # What is chosen behind the last id is not read any more.
            short, more = model.new_pages(dtype=self.cache_dtype), np.append(few, few[:1])
            return said(model, short, more, len(few) // 2, drafted=drafted)

        return Way(name, call, checked)

    def smaller(self) -> Self:
        return replace(super().smaller(), in_cache=20, new=20)


@dataclass(frozen=True, kw_only=True)
class Dictation(Sampler):
    """Chooses as ever, and then says what `ids` say."""

    ids: Array

    def __call__(self, logits: ArrayLike, so_far: Sequence[int] = ()) -> int:
        super().__call__(logits)
        return int(self.ids[len(so_far)])


def said(
    model: Transformer, cache: PagedKVCache, ids: Array, prompt: int, *, drafted: bool
) -> Array:
    """Says what stands behind the first `prompt` of ids; the logits that chose the last one."""
    report = Report()
    request = Request(
        Continuation(ids[:prompt].tolist(), stop_ids=frozenset()),
        Dictation(ids=ids),
        len(ids) - prompt,
        PromptLookup() if drafted else None,
    )
    generate(model, [request], cache=cache, max_batch=1, report=report)
    logits: Array = report.logits[0]
    return logits
