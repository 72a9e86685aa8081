"""Conversations as the text that a model was trained on: by the checkpoint's own template, or
Llama 3's.

messages: [{"role": "system" | "user" | "assistant" | ..., "content": text}, ...]
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simdformer.checkpoints.checkpoint import Checkpoint
from simdformer.checkpoints.error import CheckpointError
from simdformer.text import render_template
from simdformer.text.tiktoken_tokenizer import TiktokenTokenizer
from simdformer.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "JinjaTemplate", "Llama3Template", "check_messages", "find_template"]

Message = Mapping[str, Any]

# Published templates take milliseconds and little memory.
MAX_TEXT = 4 << 20  # characters
MAX_SECONDS = 10
MAX_MEMORY = 1 << 30  # bytes of address space


# What Llama3Template does, for files that hold a template. There a special token that is spelled
# out in a message counts, as it does in every template in jinja's language.
LLAMA3 = """\
{{ bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""


class ChatTemplate(Protocol):
    @property
    def template(self) -> str:
        """It, or the same, in jinja's language."""

    def ids(
        self, messages: Sequence[Message], tokenizer: Tokenizer, variables: Mapping[str, Any]
    ) -> list[int]:
        """The ids of a conversation, up to where the assistant's next words belong."""


@dataclass(frozen=True)
class JinjaTemplate:
    """A template in jinja's language. It is a program by a stranger: it is rendered in a sandbox in
    a process of its own, with limits on time, memory and the length of the text.

    source : file it is from, for messages
    tokens : bos_token, eos_token, ... by name
    """

    template: str
    source: str
    tokens: Mapping[str, str]

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """The text of a conversation. CheckpointError with what the template complains about or did
        wrong."""
        return self.render_each([{**variables, "messages": list(messages)}])[0]

    def render_each(self, conversations: Sequence[Mapping[str, Any]]) -> list[str]:
        """The texts of several conversations, each given as the template's variables, by one
        process within the limits of one."""
        defaults = {"add_generation_prompt": True, "tools": None, "documents": None}
        task = {
            "path": sys.path,
            "template": self.template,
            "variables": [{**self.tokens, **defaults, **one} for one in conversations],
            "seconds": MAX_SECONDS,
            "memory": MAX_MEMORY,
            "output": MAX_TEXT,
        }
        try:
            answer = self._run(json.dumps(task))
        except (subprocess.SubprocessError, json.JSONDecodeError):
            raise CheckpointError(
                "a chat template that did not end as it should",
                f"one that takes at most {MAX_SECONDS} seconds and {MAX_MEMORY >> 20} MB",
                file=self.source,
            ) from None
        if "missing" in answer:
            raise ImportError(
                f"chat templates need the package 'jinja2' ({answer['missing']}): "
                "pip install simdformer[models]",
                name="jinja2",
            )
        if "texts" not in answer:
            message = " ".join(str(answer.get("error")).split())[:300]
            raise CheckpointError(f"a chat template that failed: {message}", file=self.source)
        return [str(text) for text in answer["texts"]]

    def ids(
        self, messages: Sequence[Message], tokenizer: Tokenizer, variables: Mapping[str, Any]
    ) -> list[int]:
        # Special tokens are written out by the template; so they count, bos among them.
        return tokenizer.encode(self.render(messages, variables), bos=False, special=True)

    def _run(self, task: str) -> dict[str, Any]:
        ended = subprocess.run(
            [sys.executable, "-I", render_template.__file__],
            input=task.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ
            },
            timeout=2 * MAX_SECONDS,
            check=True,
        )
        answer = json.loads(ended.stdout)
        return answer if isinstance(answer, dict) else {}


class Llama3Template:
    """What Llama 3 Instruct expects, for checkpoints in Meta's format, which hold no template.
    Special tokens spelled out in a message are plain text."""

    template = LLAMA3

    def ids(
        self, messages: Sequence[Message], tokenizer: Tokenizer, variables: Mapping[str, Any]
    ) -> list[int]:
        if variables:
            raise ValueError(
                f"chat: {', '.join(variables)} given, but Llama 3's own template takes none"
            )
        ids = tokenizer.encode("", bos=True)
        for message in messages:
            ids += self._header(tokenizer, message["role"])
            ids += tokenizer.encode(message["content"].strip(), bos=False)
            ids += tokenizer.encode("<|eot_id|>", bos=False, special=True)
        return ids + self._header(tokenizer, "assistant")

    @staticmethod
    def _header(tokenizer: Tokenizer, role: str) -> list[int]:
        start, end = (
            tokenizer.encode(name, bos=False, special=True)
            for name in ("<|start_header_id|>", "<|end_header_id|>")
        )
        blank = tokenizer.encode("\n\n", bos=False)
        return [*start, *tokenizer.encode(role, bos=False), *end, *blank]


def check_messages(messages: Any) -> None:
    """TypeError or ValueError for what is no conversation."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise TypeError(
            f"chat: messages is {type(messages).__name__}, needs a list of "
            '{"role": ..., "content": ...}'
        )
    if not messages:
        raise ValueError("chat: messages is empty, needs at least one")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not (
            isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
        ):
            raise ValueError(
                f'chat: messages[{index}] is {message!r}, needs {{"role": text, "content": text}}'
            )


def find_template(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> ChatTemplate | None:
    """The template that a checkpoint has with it; Llama 3's where its format holds none."""
    stored = checkpoint.format.chat_template(checkpoint)
    if stored is not None:
        return JinjaTemplate(stored.text, str(stored.file), stored.tokens)
    if checkpoint.format.llama3_chat and isinstance(tokenizer, TiktokenTokenizer):
        return Llama3Template()
    return None
