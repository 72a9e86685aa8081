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
from pathlib import Path
from typing import Any, Protocol

from simdformer.models.checkpoint import Checkpoint, CheckpointError
from simdformer.models.input_file import read_file
from simdformer.models.json_file import read_object
from simdformer.text import render_template
from simdformer.text.huggingface_tokenizer import read_tokenizer_config
from simdformer.text.tiktoken_tokenizer import TiktokenTokenizer
from simdformer.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "JinjaTemplate", "Llama3Template", "check_messages", "find_template"]

Message = Mapping[str, Any]

# Published templates have up to 20 kB, take milliseconds and little memory.
MAX_TEMPLATE = 1 << 20  # bytes
MAX_TEXT = 4 << 20  # characters
MAX_SECONDS = 10
MAX_MEMORY = 1 << 30  # bytes of address space


class ChatTemplate(Protocol):
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
        defaults = {"add_generation_prompt": True, "tools": None, "documents": None}
        task = {
            "path": sys.path,
            "template": self.template,
            "variables": {**self.tokens, **defaults, **variables, "messages": list(messages)},
            "seconds": MAX_SECONDS,
            "memory": MAX_MEMORY,
            "output": MAX_TEXT,
        }
        try:
            answer = self._run(json.dumps(task))
        except (subprocess.SubprocessError, json.JSONDecodeError):
            raise CheckpointError(
                f"{self.source}: the chat template did not end as it should; it may take at most "
                f"{MAX_SECONDS} seconds and {MAX_MEMORY >> 20} MB"
            ) from None
        if "missing" in answer:
            raise ImportError(
                f"chat templates need the package 'jinja2' ({answer['missing']}): "
                "pip install simdformer[models]",
                name="jinja2",
            )
        if "text" not in answer:
            message = " ".join(str(answer.get("error")).split())[:300]
            raise CheckpointError(f"{self.source}: the chat template failed: {message}")
        return str(answer["text"])

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
            f"chat: messages is {type(messages).__name__}, needed is a list of "
            '{"role": ..., "content": ...}'
        )
    if not messages:
        raise ValueError("chat: messages is empty, needed is at least one")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not (
            isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
        ):
            raise ValueError(
                f"chat: messages[{index}] is {message!r}, needed is "
                '{"role": text, "content": text}'
            )


def find_template(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> ChatTemplate | None:
    """The template of a checkpoint: chat_template.jinja, or the one in tokenizer_config.json (of
    several the one named "default"), or chat_template.json; Llama 3's for Meta's format."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if checkpoint.format == "meta":
        return Llama3Template() if isinstance(tokenizer, TiktokenTokenizer) else None
    if checkpoint.format == "llama2.c":
        return None
    config = read_tokenizer_config(folder)
    tokens = {name: text for name in config if (text := token_text(config, name)) is not None}
    source = folder / "chat_template.jinja"
    if source.exists():
        return JinjaTemplate(read_text(source), str(source), tokens)
    source = folder / "tokenizer_config.json"
    template = config.get("chat_template")
    if template is None and (folder / "chat_template.json").exists():
        source = folder / "chat_template.json"
        template = read_object(source).get("chat_template")
    if template is None:
        return None
    return JinjaTemplate(default_template(template, source), str(source), tokens)


def default_template(template: Any, source: Path) -> str:
    """A template, or of a list of {"name", "template"} the one named "default"."""
    if isinstance(template, list):
        named = {
            entry.get("name"): entry.get("template")
            for entry in template
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        }
        template = named.get("default")
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE:
        raise CheckpointError(
            f"{source}: chat_template is no text of at most {MAX_TEMPLATE} characters, and no list "
            'of {"name": ..., "template": ...} with one named "default"',
            file=source,
        )
    return template


def read_text(file: Path) -> str:
    data = read_file(file, MAX_TEMPLATE)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: is no UTF-8 ({error})", file=file) from None


def token_text(config: Mapping[str, Any], name: str) -> str | None:
    """The text of bos_token and its like: a string, or an object with `content`."""
    value = config[name] if name.endswith("_token") else None
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None
