"""The ids of a conversation in the format of Llama 3 Instruct, in steps; and what goes wrong
there."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program

__all__ = ["chat"]


def header(
    role: str, encode: Callable[[str], list[int]], special: Mapping[str, int], ends: str = "\n\n"
) -> list[int]:
    start, end = special["<|start_header_id|>"], special["<|end_header_id|>"]
    return [start, *encode(role), end, *encode(ends)]


def joined(parts: list[list[int]]) -> Any:
    return np.array([id for part in parts for id in part])


chat = Program(
    "text",
    """
    chat_start: parts = [[special["<|begin_of_text|>"]]]
    chat_header: head_of = header
    chat_content: content = lambda message: encode(message["content"].strip())
    chat_turns:
        for message in messages:
            head = head_of(message["role"], encode, special)
            parts = [*parts, [*head, *content(message), special["<|eot_id|>"]]]
    chat_answer: out = joined([*parts, head_of("assistant", encode, special)])
    """,
    calls=(header, joined),
    takes=("messages", "encode", "special"),
    axes=("token",),
)

mistakes(
    """
    text.chat_start (02 §11) > Put special['<|begin_of_text|>'] in front, once.

    chat_without_bos: begin_of_text is missing
        Every text that the model has read began with it.
        | parts = []
    chat_two_bos: begin_of_text comes twice
        The tokenizer puts one in front, and so does the format.
        | parts = [2 * [special["<|begin_of_text|>"]]]

    text.chat_header (02 §11) > Put encode("\\n\\n") behind <|end_header_id|>.

    chat_no_line_ends: the two line ends behind the header are missing
        They belong to the format: the answer begins behind them.
        | head_of = lambda role, encode, special: header(role, encode, special, "")
    chat_one_line_end: there is one line end behind the header, not two
        "\\n" for "\\n\\n".
        | head_of = lambda role, encode, special: header(role, encode, special, "\\n")
    chat_one_role: all headers say the same role
        The role is written into the code, or taken from the first message.
        > Take the role of each message.
        | head_of = lambda role, encode, special: header(messages[0]["role"], encode, special)

    text.chat_content (02 §11) > Encode message["content"].strip().

    chat_not_stripped: white space around a message is kept
        The format strips it: the model was trained without.
        | content = lambda message: encode(message["content"])

    text.chat_turns (02 §11) > Put special['<|eot_id|>'] behind every message.

    chat_without_eot: eot_id is missing: messages do not end
        The model cannot tell where one speaker stops.
        | for message in messages:
        |     parts = [*parts, head_of(message["role"], encode, special), content(message)]
    chat_end_of_text: messages end with end_of_text, not with eot_id
        end_of_text ends a document, eot_id a turn of a conversation.
        | for message in messages:
        |     head = head_of(message["role"], encode, special)
        |     parts = [*parts, [*head, *content(message), special["<|end_of_text|>"]]]
    chat_spelled_out: special tokens are spelled out as text
        encode("<|eot_id|>") gives the ids of ten characters; strangers could write them, too.
        > Take the id of a special token from special["<|eot_id|>"].
        chat_start | special = {name: name for name in special}
        chat_start | parts = [encode("<|begin_of_text|>")]
        chat_header | head_of = lambda role, encode, special: encode(
        chat_header |     f"<|start_header_id|>{role}<|end_header_id|>\\n\\n"
        chat_header | )
        | for message in messages:
        |     head = head_of(message["role"], encode, special)
        |     parts = [*parts, [*head, *content(message), *encode("<|eot_id|>")]]

    text.chat_answer (02 §11) > End with the header of "assistant" and its two line ends.

    chat_without_answer: the header of the answer is missing
        The model would first have to guess who speaks next.
        | out = joined(parts)
    chat_closed_answer: the answer is closed before it has begun: eot_id stands behind its header
        The header of the answer was made like a message, with an empty text.
        | out = joined([*parts, head_of("assistant", encode, special), [special["<|eot_id|>"]]])
    """,
)
