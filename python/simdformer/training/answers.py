"""Conversations as ids, and which of them the assistant says: what a model learns from a chat."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from simdformer.checkpoints.error import CheckpointError
from simdformer.text.chat import ChatTemplate, JinjaTemplate, Message
from simdformer.text.piece_tokenizer import PieceTokenizer
from simdformer.types import Array

__all__ = ["mark_completion", "mark_conversations"]

AT_A_TIME = 64  # conversations that one process renders


def mark_conversations(
    template: ChatTemplate, tokenizer: PieceTokenizer, conversations: Sequence[Sequence[Message]]
) -> Iterator[tuple[Array, Array]]:
    """Each conversation as the template writes it: ids (L,), and marks (L,) of bool, True for what
    the assistant says and the token that ends it. What it says before anybody has spoken is
    not marked where the template cannot write a conversation without a message.

    CheckpointError: the template fails or refuses a conversation; those before it have been given.
    """
    if not isinstance(template, JinjaTemplate):
        for messages in conversations:
            yield by_ids(template, tokenizer, messages)
        return
    begins = any(messages[0]["role"] == "assistant" for messages in conversations)
    first = 0 if not begins or writes_nothing(template) else 1
    for begin in range(0, len(conversations), AT_A_TIME):
        yield from mark_some(template, tokenizer, conversations[begin : begin + AT_A_TIME], first)


def mark_some(
    template: JinjaTemplate,
    tokenizer: PieceTokenizer,
    conversations: Sequence[Sequence[Message]],
    first: int,
) -> Iterator[tuple[Array, Array]]:
    """The same for so many as one process renders; answers before message `first` are not
    marked."""
    asked = [one for messages in conversations for one in beginnings(messages, first)]
    try:
        texts = iter(template.render_each(asked))
    except CheckpointError:
        if len(conversations) == 1:
            raise
        for messages in conversations:  # one by one: the error comes where it belongs
            yield from mark_some(template, tokenizer, [messages], first)
        return
    for messages in conversations:
        pairs = [(next(texts), next(texts)) for _ in turns(messages, first)]
        yield by_text(tokenizer, pairs) if pairs else (np.zeros(0, np.int32), np.zeros(0, np.bool_))


def writes_nothing(template: JinjaTemplate) -> bool:
    """Whether a template can write a conversation without a message: many look at the first."""
    try:
        template.render([], {})
    except CheckpointError:
        return False
    return True


def mark_completion(tokenizer: PieceTokenizer, prompt: str, completion: str) -> tuple[Array, Array]:
    """A prompt and what is to follow it, with the token that ends a text."""
    before = tokenizer.encode(prompt)
    after = [*tokenizer.encode(completion, bos=False), *tokenizer.eos_ids[:1]]
    marks = [False] * len(before) + [True] * len(after)
    return np.array([*before, *after], np.int32), np.array(marks)


def turns(messages: Sequence[Message], first: int = 0) -> list[int]:
    """Where the assistant speaks, from message `first` on."""
    speaks = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    return [at for at in speaks if at >= first]


def beginnings(messages: Sequence[Message], first: int) -> Iterator[Mapping[str, Any]]:
    """What is rendered to find the answers: for each the conversation up to it, as the model will
    be asked, and up to its end."""
    for at in turns(messages, first):
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
