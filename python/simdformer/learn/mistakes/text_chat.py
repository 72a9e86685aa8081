"""The ids of a conversation in the format of Llama 3 Instruct, in steps; and what goes wrong
there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistakes, instead
from simdformer.learn.program import Program, State

__all__ = ["chat_ids"]

CHAT = "02 §11"

Messages = Sequence[Mapping[str, str]]


def chat_ids(
    messages: Messages, encode: Callable[[str], list[int]], special: Mapping[str, int]
) -> list[int]:
    """Llama 3 Instruct's format, up to where the assistant answers."""
    return [
        special["<|begin_of_text|>"],
        *(id for message in messages for id in said(message, encode, special)),
        *header("assistant", encode, special),
    ]


def header(role: str, encode: Callable[[str], list[int]], special: Mapping[str, int]) -> list[int]:
    start, end = special["<|start_header_id|>"], special["<|end_header_id|>"]
    return [start, *encode(role), end, *encode("\n\n")]


def said(
    message: Mapping[str, str], encode: Callable[[str], list[int]], special: Mapping[str, int]
) -> list[int]:
    text = encode(message["content"].strip())
    return [*header(message["role"], encode, special), *text, special["<|eot_id|>"]]


chat = Program("text", of=chat_ids, axes=("token",))


@chat.step
def chat_start(s: State) -> None:
    s.parts = [[s.special["<|begin_of_text|>"]]]


@chat.step
def chat_header(s: State) -> None:
    s.header = header


@chat.step
def chat_content(s: State) -> None:
    s.content = lambda message: s.encode(message["content"].strip())


@chat.step
def chat_turns(s: State) -> None:
    for message in s.messages:
        head = s.header(message["role"], s.encode, s.special)
        s.parts = [*s.parts, [*head, *s.content(message), s.special["<|eot_id|>"]]]


@chat.step
def chat_answer(s: State) -> None:
    s.out = joined([*s.parts, s.header("assistant", s.encode, s.special)])


def joined(parts: list[list[int]]) -> Any:
    return np.array([id for part in parts for id in part])


Mistakes("text.chat_start", see=CHAT, fix="Put special['<|begin_of_text|>'] in front, once.")(
    """
    chat_without_bos: begin_of_text is missing
        Every text that the model has read began with it.
    chat_two_bos: begin_of_text comes twice
        The tokenizer puts one in front, and so does the format.
    """,
    chat_without_bos=instead(parts=lambda s: []),
    chat_two_bos=instead(parts=lambda s: [2 * [s.special["<|begin_of_text|>"]]]),
)


def chat_no_line_ends(s: State) -> None:
    end = len(s.encode("\n\n"))
    s.header = lambda role, encode, special: header(role, encode, special)[:-end]


def chat_one_line_end(s: State) -> None:
    def one(role: str, encode: Any, special: Any) -> list[int]:
        start, end = special["<|start_header_id|>"], special["<|end_header_id|>"]
        return [start, *encode(role), end, *encode("\n")]

    s.header = one


def chat_one_role(s: State) -> None:
    role = s.messages[0]["role"]
    s.header = lambda _, encode, special: header(role, encode, special)


Mistakes("text.chat_header", see=CHAT, fix='Put encode("\\n\\n") behind <|end_header_id|>.')(
    """
    chat_no_line_ends: the two line ends behind the header are missing
        They belong to the format: the answer begins behind them.
    chat_one_line_end: there is one line end behind the header, not two
        "\\n" for "\\n\\n".
    chat_one_role: all headers say the same role
        The role is written into the code, or taken from the first message.
        > Take the role of each message.
    """,
    chat_no_line_ends=chat_no_line_ends,
    chat_one_line_end=chat_one_line_end,
    chat_one_role=chat_one_role,
)

Mistakes("text.chat_content", see=CHAT, fix='Encode message["content"].strip().')(
    """
    chat_not_stripped: white space around a message is kept
        The format strips it: the model was trained without.
    """,
    chat_not_stripped=instead(content=lambda s: lambda message: s.encode(message["content"])),
)


def chat_without_eot(s: State) -> None:
    for message in s.messages:
        s.parts = [*s.parts, s.header(message["role"], s.encode, s.special), s.content(message)]


def chat_end_of_text(s: State) -> None:
    for message in s.messages:
        head = s.header(message["role"], s.encode, s.special)
        s.parts = [*s.parts, [*head, *s.content(message), s.special["<|end_of_text|>"]]]


def chat_spelled_out_chat_start(s: State) -> None:
    s.special = {name: name for name in s.special}
    s.parts = [s.encode("<|begin_of_text|>")]


def chat_spelled_out_chat_turns(s: State) -> None:
    for message in s.messages:
        head = s.header(message["role"], s.encode, s.special)
        s.parts = [*s.parts, [*head, *s.content(message), *s.encode("<|eot_id|>")]]


Mistakes("text.chat_turns", see=CHAT, fix="Put special['<|eot_id|>'] behind every message.")(
    """
    chat_without_eot: eot_id is missing: messages do not end
        The model cannot tell where one speaker stops.
    chat_end_of_text: messages end with end_of_text, not with eot_id
        end_of_text ends a document, eot_id a turn of a conversation.
    chat_spelled_out: special tokens are spelled out as text
        encode("<|eot_id|>") gives the ids of ten characters; strangers could write them, too.
        > Take the id of a special token from special["<|eot_id|>"].
    """,
    chat_without_eot=chat_without_eot,
    chat_end_of_text=chat_end_of_text,
    chat_spelled_out={
        "chat_start": chat_spelled_out_chat_start,
        "chat_header": instead(
            header=lambda s: (
                lambda role, encode, _: encode(f"<|start_header_id|>{role}<|end_header_id|>\n\n")
            )
        ),
        "chat_turns": chat_spelled_out_chat_turns,
    },
)


def chat_closed_answer(s: State) -> None:
    end = [s.special["<|eot_id|>"]]
    s.out = joined([*s.parts, s.header("assistant", s.encode, s.special), end])


Mistakes(
    "text.chat_answer", see=CHAT, fix='End with the header of "assistant" and its two line ends.'
)(
    """
    chat_without_answer: the header of the answer is missing
        The model would first have to guess who speaks next.
    chat_closed_answer: the answer is closed before it has begun: eot_id stands behind its header
        The header of the answer was made like a message, with an empty text.
    """,
    chat_without_answer=instead(out=lambda s: joined(s.parts)),
    chat_closed_answer=chat_closed_answer,
)
