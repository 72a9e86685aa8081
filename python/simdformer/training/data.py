"""Training data as rows of ids and labels, and which rows each step takes.

A label is the id that the model is to predict at its position: `labels[i]` follows `ids[i]`.
IGNORED stands where nothing is to be learned.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from simdformer.text.chat import ChatTemplate
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.training.answers import mark_completion, mark_conversations
from simdformer.training.files import hash_of_file
from simdformer.training.sources import Source
from simdformer.types import Array

__all__ = [
    "IGNORED",
    "AnswerRows",
    "PairRows",
    "Rows",
    "StreamRows",
    "hash_of_data",
    "make_rows",
    "rows_of_step",
]

IGNORED = -100
MULTIPLE = 16  # a row's length is rounded up to it, so that few lengths occur


class Rows(Protocol):
    """The rows of a run, by number."""

    largest: int  # id

    def __len__(self) -> int: ...

    def batch(self, numbers: Sequence[int]) -> tuple[Array, Array]:
        """Ids and labels (rows, length) of rows by their numbers."""

    def said(self) -> str:
        """What they are, in words."""


class StreamRows:
    """Documents behind each other, cut into rows of `context` ids."""

    def __init__(self, ids: Array, context: int) -> None:
        self.ids, self.context = ids, context
        self.largest = int(ids.max())
        if len(self) == 0:
            raise ValueError(
                f"train: the data has {len(ids):,} tokens, needs more than --context = {context}; "
                "give more data, or a smaller --context"
            )

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.context

    def batch(self, numbers: Sequence[int]) -> tuple[Array, Array]:
        begins = np.asarray(numbers)[:, None] * self.context
        places = begins + np.arange(self.context)
        return self.ids[places].astype(np.int32), self.ids[places + 1].astype(np.int32)

    def said(self) -> str:
        return f"{len(self.ids):,} tokens, {len(self):,} rows of {self.context}"


class AnswerRows:
    """A conversation a row, cut after `context` ids; the labels are those of the answers."""

    def __init__(self, marked: Iterable[tuple[Array, Array]], context: int) -> None:
        self.rows: list[tuple[Array, Array]] = []
        self.context, self.cut, self.left_out, self.largest = context, 0, 0, 0
        for ids, marks in marked:
            self.add(ids, marks)

    def add(self, ids: Array, marks: Array) -> None:
        self.cut += len(ids) > self.context + 1
        ids, marks = ids[: self.context + 1], marks[: self.context + 1]
        if marks[1:].any():
            self.rows.append((ids, marks))
            self.largest = max(self.largest, int(ids.max()))
        else:
            self.left_out += 1

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, numbers: Sequence[int]) -> tuple[Array, Array]:
        return self.filled([self.rows[number] for number in numbers])

    def filled(self, chosen: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
        """Ids and labels of rows, all of them as long as the longest."""
        longest = max(len(ids) - 1 for ids, _ in chosen)
        length = min(-(-longest // MULTIPLE) * MULTIPLE, self.context)
        ids = np.zeros((len(chosen), length), np.int32)
        labels = np.full((len(chosen), length), IGNORED, np.int32)
        for row, (own, marks) in enumerate(chosen):
            ids[row, : len(own) - 1] = own[:-1]
            labels[row, : len(own) - 1] = np.where(marks[1:], own[1:], IGNORED)
        return ids, labels

    def said(self) -> str:
        answers = sum(int(marks[1:].sum()) for _, marks in self.rows)
        tokens = sum(len(ids) for ids, _ in self.rows)
        cut = f"; {self.cut:,} longer than {self.context} are cut" if self.cut else ""
        out = f", {self.left_out:,} left out: no answer that is learned" if self.left_out else ""
        return (
            f"{len(self):,} conversations, {tokens:,} tokens, of which {answers:,} are the "
            f"assistant's{cut}{out}"
        )


class PairRows:
    """Two answers a row, of which the first is to become likelier: those of a batch are the chosen
    ones, and behind them the rejected ones. The labels are those in which the two differ."""

    def __init__(self, marked: Iterable[tuple[Array, Array]], context: int) -> None:
        """marked: chosen and rejected ones in turn."""
        self.chosen, self.rejected = AnswerRows((), context), AnswerRows((), context)
        self.same, self.left_out, self.largest, every = 0, 0, 0, iter(marked)
        for chosen, rejected in zip(every, every, strict=True):
            if np.array_equal(chosen[0], rejected[0]):
                self.same += 1
                continue
            same = min(len(chosen[0]), len(rejected[0]))
            differ = np.flatnonzero(chosen[0][:same] != rejected[0][:same])
            begin = int(differ[0]) if len(differ) else same
            pair = [
                (ids, marks & (np.arange(len(ids)) >= begin)) for ids, marks in (chosen, rejected)
            ]
            if all(marks[1 : context + 1].any() for _, marks in pair):
                self.chosen.add(*pair[0])
                self.rejected.add(*pair[1])
            else:
                self.left_out += 1
        if self.same and not len(self) and not self.left_out:
            raise ValueError(
                "train: the chosen and the rejected answer are the same in every pair, needs two "
                "that differ"
            )
        if not len(self):
            raise ValueError(
                f"train: no pair of answers differs within --context = {context} tokens; give a "
                "larger --context"
            )
        self.largest = max(self.chosen.largest, self.rejected.largest)

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, numbers: Sequence[int]) -> tuple[Array, Array]:
        rows = [self.chosen.rows[n] for n in numbers] + [self.rejected.rows[n] for n in numbers]
        return self.chosen.filled(rows)

    def said(self) -> str:
        out = f", {self.left_out:,} left out: they differ later" if self.left_out else ""
        out += f", {self.same:,} left out: both answers are the same" if self.same else ""
        cut = self.chosen.cut + self.rejected.cut
        longer = f"; {cut:,} longer than {self.chosen.context} are cut" if cut else ""
        return f"{len(self):,} pairs of a chosen and a rejected answer{longer}{out}"


def make_rows(
    sources: Sequence[Source],
    tokenizer: PieceTokenizer | None,
    template: ChatTemplate | None,
    context: int,
    advance: Callable[[], None] = lambda: None,
) -> Rows:
    """The rows of sources of one stage; `advance` is called once for each document."""
    if sources[0].kind == "preference":
        return PairRows(marked(sources, tokenizer, template, advance), context)
    if sources[0].kind in ("messages", "completion"):
        rows = AnswerRows(marked(sources, tokenizer, template, advance), context)
        if not len(rows):
            raise ValueError(
                f"train: no conversation has an answer within --context = {context} tokens; "
                "give a larger --context"
            )
        return rows
    parts = [ids_of(source, tokenizer, advance) for source in sources]
    return StreamRows(parts[0] if len(parts) == 1 else np.concatenate(parts), context)


def ids_of(source: Source, tokenizer: PieceTokenizer | None, advance: Callable[[], None]) -> Array:
    """The ids of all documents, each with what begins and ends a text."""
    if source.kind == "ids":
        advance()
        ids: Array = source.documents[0]
        return ids
    if tokenizer is None:
        raise ValueError(
            f"{source.path} holds text, which needs a tokenizer; give --tokenizer MODEL, or "
            "--vocab N to train one"
        )
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    ends = tokenizer.eos_ids[:1]
    every = []
    for document in source.documents:
        every.append(np.array([*tokenizer.encode(document), *ends], dtype))
        advance()
    return np.concatenate(every)


def marked(
    sources: Sequence[Source],
    tokenizer: PieceTokenizer | None,
    template: ChatTemplate | None,
    advance: Callable[[], None],
) -> Iterable[tuple[Array, Array]]:
    """Conversations and completions as ids and marks, those of a pair one after the other."""
    for source in sources:
        if tokenizer is None:
            raise ValueError(f"{source.path} holds {source.said}, which need a tokenizer")
        documents = source.documents
        if in_pairs := source.kind == "preference":
            documents = [one for pair in documents for one in pair]
        chats = isinstance(documents[0], list)
        if chats and template is None:
            raise ValueError(
                f"{source.path} holds conversations, and the model has no chat template; give "
                "--tokenizer MODEL of one that has"
            )
        if chats and template is not None:
            every = mark_conversations(template, tokenizer, documents)
        else:
            every = (mark_completion(tokenizer, *pair) for pair in documents)
        for number in range(len(documents)):
            line = source.lines[number // 2 if in_pairs else number]
            try:
                one = next(every)
            except ValueError as error:
                raise ValueError(f"{source.path}, line {line}: {error}") from None
            if not in_pairs or number % 2:
                advance()
            yield one


def rows_of_step(step: int, rows: int, count: int, seed: int) -> list[int]:
    """Which of `count` rows step number `step` (from 0) takes: `rows` of them, out of an order that
    differs from epoch to epoch and depends on the seed alone."""
    places = range(step * rows, (step + 1) * rows)
    return [int(order(place // count, count, seed)[place % count]) for place in places]


@lru_cache(maxsize=2)  # a step may end one epoch and begin the next
def order(epoch: int, count: int, seed: int) -> Array:
    return np.random.default_rng([seed, epoch]).permutation(count)


def hash_of_data(paths: Iterable[Path]) -> str:
    """One hash for the bytes of all files, in their order."""
    every = " ".join(hash_of_file(path) for path in paths)
    return hashlib.blake2b(every.encode(), digest_size=16).hexdigest()
