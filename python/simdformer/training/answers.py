"""Conversations as ids, and which of them the assistant says: what a model learns from a chat."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from simdformer.text.chat import ChatTemplate, JinjaTemplate, Message
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.types import Array

__all__ = ["mark_completion", "mark_conversations"]

AT_A_TIME = 64  # conversations that one process renders


def mark_conversations(
    template: ChatTemplate, tokenizer: PieceTokenizer, conversations: Sequence[Sequence[Message]]
) -> Iterator[tuple[Array, Array]]:
    """Each conversation as the template writes it: ids (L,), and marks (L,) of bool, True for what
    the assistant says and the token that ends it.

    CheckpointError: the template fails or refuses a conversation.
    """
    if not isinstance(template, JinjaTemplate):
        for messages in conversations:
            yield by_ids(template, tokenizer, messages)
        return
    for begin in range(0, len(conversations), AT_A_TIME):
        some = conversations[begin : begin + AT_A_TIME]
        asked = [one for messages in some for one in beginnings(messages)]
        texts = iter(template.render_each(asked))
        for messages in some:
            pairs = [(next(texts), next(texts)) for _ in turns(messages)]
            yield by_text(tokenizer, pairs)


def mark_completion(tokenizer: PieceTokenizer, prompt: str, completion: str) -> tuple[Array, Array]:
    """A prompt and what is to follow it, with the token that ends a text."""
    before = tokenizer.encode(prompt)
    after = [*tokenizer.encode(completion, bos=False), *tokenizer.eos_ids[:1]]
    marks = [False] * len(before) + [True] * len(after)
    return np.array([*before, *after], np.int32), np.array(marks)


def turns(messages: Sequence[Message]) -> list[int]:
    """Where the assistant speaks."""
    return [at for at, message in enumerate(messages) if message["role"] == "assistant"]


def beginnings(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    """What is rendered to find the answers: for each the conversation up to it, as the model will
    be asked, and up to its end."""
    for at in turns(messages):
        yield {"messages": list(messages[:at]), "add_generation_prompt": True}
        yield {"messages": list(messages[: at + 1]), "add_generation_prompt": False}


def by_text(tokenizer: PieceTokenizer, pairs: Sequence[tuple[str, str]]) -> tuple[Array, Array]:
    """pairs: for each answer the text before it and the text with it. A template that writes early
    turns differently once there are later ones (without what was thought) leaves the last."""
    text = pairs[-1][1]
    spans = [(len(before), len(whole.rstrip())) for before, whole in pairs]
    fits = all(text.startswith(whole) and whole.startswith(before) for before, whole in pairs)
    if not fits:
        before, whole = pairs[-1]
        if not whole.startswith(before):
            raise ValueError(
                "the chat template writes a conversation differently when the assistant is to "
                f"answer, found {before[-40:]!r} where the answer begins"
            )
        spans = spans[-1:]
    cuts = [0, *(cut for span in spans for cut in span), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(cuts)]
    ids = tokenizer.encode(text, bos=False, special=True)
    sizes = [len(piece) for piece in tokenizer.to_bytes(ids)]
    ends = np.cumsum(sizes) - (sum(sizes) - len(text.encode()))  # a space in front is not counted
    if sum(sizes) - len(text.encode()) in (0, 1):
        limits = np.cumsum([len(piece.encode()) for piece in pieces])
        places = np.searchsorted(limits, ends)  # the piece in which a token ends
        return np.array(ids, np.int32), places % 2 == 1
    # The tokenizer has changed the text: each piece by itself.
    each = [tokenizer.encode(piece, bos=False, special=True) if piece else [] for piece in pieces]
    marks = [at % 2 == 1 for at, part in enumerate(each) for _ in part]
    return np.array([id for part in each for id in part], np.int32), np.array(marks)


def by_ids(
    template: ChatTemplate, tokenizer: PieceTokenizer, messages: Sequence[Message]
) -> tuple[Array, Array]:
    """With a template that gives ids and always has the assistant speak next."""
    header = len(template.ids([], tokenizer, {})) - len(tokenizer.encode("", bos=True))
    ids = np.array(template.ids(messages, tokenizer, {}), np.int32)[:-header]
    marks = np.zeros(len(ids), np.bool_)
    for at in turns(messages):
        begin = len(template.ids(messages[:at], tokenizer, {}))
        marks[begin : len(template.ids(messages[: at + 1], tokenizer, {})) - header] = True
    return ids, marks
