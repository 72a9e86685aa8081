"""The ids of a conversation in the format of Llama 3 Instruct, in steps; and what goes wrong
there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simdformer.learn.program import Program, State, mistake

__all__ = ["chat_ids"]

CHAT = "02 §10"

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


@mistake(
    "text.chat_start",
    title="begin_of_text is missing",
    cause="Every text that the model has read began with it.",
    fix="Put special['<|begin_of_text|>'] in front, once.",
    step=CHAT,
)
def chat_without_bos(s: State) -> None:
    s.parts = []


@mistake(
    "text.chat_start",
    title="begin_of_text comes twice",
    cause="The tokenizer puts one in front, and so does the format.",
    fix="Put special['<|begin_of_text|>'] in front, once.",
    step=CHAT,
)
def chat_two_bos(s: State) -> None:
    s.parts = [2 * [s.special["<|begin_of_text|>"]]]


@mistake(
    "text.chat_header",
    title="the two line ends behind the header are missing",
    cause="They belong to the format: the answer begins behind them.",
    fix='Put encode("\\n\\n") behind <|end_header_id|>.',
    step=CHAT,
)
def chat_no_line_ends(s: State) -> None:
    end = len(s.encode("\n\n"))
    s.header = lambda role, encode, special: header(role, encode, special)[:-end]


@mistake(
    "text.chat_header",
    title="there is one line end behind the header, not two",
    cause='"\\n" for "\\n\\n".',
    fix='Put encode("\\n\\n") behind <|end_header_id|>.',
    step=CHAT,
)
def chat_one_line_end(s: State) -> None:
    def one(role: str, encode: Any, special: Any) -> list[int]:
        start, end = special["<|start_header_id|>"], special["<|end_header_id|>"]
        return [start, *encode(role), end, *encode("\n")]

    s.header = one


@mistake(
    "text.chat_header",
    title="all headers say the same role",
    cause="The role is written into the code, or taken from the first message.",
    fix="Take the role of each message.",
    step=CHAT,
)
def chat_one_role(s: State) -> None:
    role = s.messages[0]["role"]
    s.header = lambda _, encode, special: header(role, encode, special)


@mistake(
    "text.chat_content",
    title="white space around a message is kept",
    cause="The format strips it: the model was trained without.",
    fix='Encode message["content"].strip().',
    step=CHAT,
)
def chat_not_stripped(s: State) -> None:
    s.content = lambda message: s.encode(message["content"])


@mistake(
    "text.chat_turns",
    title="eot_id is missing: messages do not end",
    cause="The model cannot tell where one speaker stops.",
    fix="Put special['<|eot_id|>'] behind every message.",
    step=CHAT,
)
def chat_without_eot(s: State) -> None:
    for message in s.messages:
        s.parts = [*s.parts, s.header(message["role"], s.encode, s.special), s.content(message)]


@mistake(
    "text.chat_turns",
    title="messages end with end_of_text, not with eot_id",
    cause="end_of_text ends a document, eot_id a turn of a conversation.",
    fix="Put special['<|eot_id|>'] behind every message.",
    step=CHAT,
)
def chat_end_of_text(s: State) -> None:
    for message in s.messages:
        head = s.header(message["role"], s.encode, s.special)
        s.parts = [*s.parts, [*head, *s.content(message), s.special["<|end_of_text|>"]]]


@mistake(
    "text.chat_answer",
    title="the header of the answer is missing",
    cause="The model would first have to guess who speaks next.",
    fix='End with the header of "assistant" and its two line ends.',
    step=CHAT,
)
def chat_without_answer(s: State) -> None:
    s.out = joined(s.parts)


@mistake(
    "text.chat_answer",
    title="the answer is closed before it has begun: eot_id stands behind its header",
    cause="The header of the answer was made like a message, with an empty text.",
    fix='End with the header of "assistant" and its two line ends.',
    step=CHAT,
)
def chat_closed_answer(s: State) -> None:
    end = [s.special["<|eot_id|>"]]
    s.out = joined([*s.parts, s.header("assistant", s.encode, s.special), end])


@mistake(
    "text.chat_start",
    "text.chat_header",
    "text.chat_turns",
    title="special tokens are spelled out as text",
    cause='encode("<|eot_id|>") gives the ids of ten characters; strangers could write them, too.',
    fix='Take the id of a special token from special["<|eot_id|>"].',
    step=CHAT,
)
class ChatSpelledOut:
    @staticmethod
    def chat_start(s: State) -> None:
        s.special = {name: name for name in s.special}
        s.parts = [s.encode("<|begin_of_text|>")]

    @staticmethod
    def chat_header(s: State) -> None:
        s.header = lambda role, encode, _: encode(f"<|start_header_id|>{role}<|end_header_id|>\n\n")

    @staticmethod
    def chat_turns(s: State) -> None:
        for message in s.messages:
            head = s.header(message["role"], s.encode, s.special)
            s.parts = [*s.parts, [*head, *s.content(message), *s.encode("<|eot_id|>")]]
