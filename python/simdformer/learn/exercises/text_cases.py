"""Sampling, generation, tokens, chat and loss: what each exercise is called with, and the right
call.

No decision hangs on rounding: no two logits are nearly equal, and no sum of probabilities lies near
top_p.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simdformer.learn.exercises.exercise import Case, Draw, exercise, right, same
from simdformer.learn.mistakes.text_bpe import bpe
from simdformer.learn.mistakes.text_chat import chat
from simdformer.learn.mistakes.text_generation import generation
from simdformer.learn.mistakes.text_loss import loss
from simdformer.learn.mistakes.text_sampling import sampling
from simdformer.types import Array

__all__ = ["SmallModel"]

CHAPTER = "6. Text"


@exercise(CHAPTER)
def sampling_probabilities(draw: Draw) -> Iterator[Case]:
    for temperature, top_k, top_p, size in (
        (1.0, None, None, 1.0),
        (0.5, None, None, 1.0),
        (1.7, 3, None, 1.0),
        (1.0, 20, None, 1.0),  # more than there are
        (1.0, None, 0.8, 1.0),
        (1.0, None, 0.2, 1.0),  # less than the likeliest alone has
        (0.6, 5, 0.75, 1.0),
        (2.0, None, 0.6, 1.0),
        (2.0, 6, 0.59, 1.0),
        (2.0, 6, 0.9, 100.0),
    ):
        count = 12 if size == 1.0 else 30
        logits = size * np.linspace(-1.5, 2.0, count) + draw(count, scale=0.05 * size)
        logits = draw.rng.permutation(logits).astype(np.float32)
        special = "logits of about 100" if size > 1 else ""
        yield same(sampling, logits, temperature, top_k, top_p, special=special)


@exercise(CHAPTER)
def generate(draw: Draw) -> Iterator[Case]:
    for seed, length, most in ((1, 5, 8), (2, 1, 6), (3, 4, 12)):
        model = SmallModel(seed)
        prompt = draw.rng.integers(0, model.vocabulary, length).tolist()
        new = right(generation, model, prompt, most, -1)[3:4].tolist()
        for end_id in (-1, *new):
            yield same(generation, model, prompt, most, end_id)


@exercise(CHAPTER)
def bpe_merges(draw: Draw) -> Iterator[Case]:
    del draw
    for word, pairs in (
        ("lower", "lo er low lower"),
        ("lower", "er we ower lo wer ow low lowe"),
        ("unhappily", "pi ap ha un hap happ pil pily unhap ily ly"),
        ("thermal", "he th er the rm ma mal al her"),
        ("stored", "ed or tor ored stor"),
        ("cat", "do og"),
        ("a", "ab"),
    ):
        ranks = {pair: rank for rank, pair in enumerate(pairs.split())}
        yield same(bpe, word, ranks)


SPECIAL = {
    "<|begin_of_text|>": 1000,
    "<|end_of_text|>": 1001,
    "<|start_header_id|>": 1006,
    "<|end_header_id|>": 1007,
    "<|eot_id|>": 1009,
}
CONVERSATIONS = (
    (("user", "Hi!"),),
    (("system", "Be brief."), ("user", " What is 6 times 7? \n")),
    (("user", "Hi!"), ("assistant", "Hello.\n\nAnd you?"), ("user", "  fine  ")),
)


@exercise(CHAPTER)
def chat_ids(draw: Draw) -> Iterator[Case]:
    del draw
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        yield same(chat, messages, encode, SPECIAL)


@exercise(CHAPTER)
def text_loss(draw: Draw) -> Iterator[Case]:
    pad = 0
    for length, padding, size in ((6, 0, 1.0), (2, 0, 1.0), (7, 3, 2.0), (5, 1, 100.0)):
        logits = draw(length, 9, scale=size)
        ids = draw.rng.integers(1, 9, length)
        ids[length - padding :] = pad
        special = "logits of about 100" if size > 10 else ""
        yield same(loss, logits, ids, pad, special=special)


# ---- what the functions are given ----------------------------------------------------------------


def encode(text: str) -> list[int]:
    """A tokenizer with one id for each byte."""
    return list(text.encode())


@dataclass(frozen=True)
class Read:
    """What a `SmallModel` keeps of what it has read; stands for keys and values."""

    state: Array
    length: int


@dataclass(frozen=True)
class SmallModel:
    """A model that is called as a language model is, and small: what it says next depends on all
    ids that it has read, and on their order.

    It remembers how it was called since `fresh`, which gives one like it for another caller.
    """

    seed: int
    tensors: bool = field(default=False, compare=False)
    calls: list[tuple[int, bool]] = field(default_factory=list, compare=False, repr=False)

    vocabulary = 40
    width = 12

    def __repr__(self) -> str:
        return f"a small model (number {self.seed})"

    def __call__(self, ids: Any, cache: Read | None = None) -> tuple[Any, Read]:
        """logits (L, V) behind each of ids (L,), and the cache for the next call."""
        if np.ndim(ids) != 1 or not len(ids):
            raise ValueError(
                f"model: ids has shape {np.shape(ids)}, needs (L,), at least one: for one id "
                "model([id], cache)"
            )
        if cache is not None and not isinstance(cache, Read):
            raise TypeError(
                f"model: cache is {type(cache).__name__}, needs what the model gave as its second "
                "result, or None"
            )
        rng = np.random.default_rng(self.seed)
        embed = rng.standard_normal((self.vocabulary, self.width))
        turn = rng.standard_normal((self.width, self.width)) / self.width**0.5
        head = rng.standard_normal((self.vocabulary, self.width))
        read = cache or Read(np.zeros(self.width), 0)
        self.calls.append((len(ids), cache is None))
        logits, state = [], read.state
        for id in map(int, ids):
            state = np.tanh(2 * turn @ state + embed[id])
            logits.append(head @ state)
        rows: Any = np.array(logits, np.float32)
        if self.tensors:
            rows = sys.modules["torch"].from_numpy(rows)
        return rows, Read(state, read.length + len(ids))

    def fresh(self, kind: str) -> "SmallModel":
        return SmallModel(self.seed, kind == "torch")

    @property
    def complaint(self) -> str:
        """What is wrong with how it was called, though the ids may be right."""
        (first, _), *others = self.calls or [(0, True)]
        again = [length for length, is_new in others if is_new and length > first]
        if not again:
            return ""
        return (
            f"reads the whole text again for every new token (without its cache {again[0]} ids in "
            "the second call): give the model the newest id alone, and the cache of the call before"
        )
