"""Files of training data: text, JSON lines and token ids. What a file holds is told by its name and
its first line, and every other line must hold the same."""

import json
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simdformer.arguments import shown
from simdformer.checkpoints.files import KINDS
from simdformer.text.chat import check_messages

__all__ = ["END_OF_DOCUMENT", "Kind", "Source", "Stage", "read_source", "stage_of"]

Stage = Literal["pretrain", "sft", "dpo"]
Kind = Literal["text", "ids", "messages", "completion", "preference"]
STAGES: dict[Kind, Stage] = {
    "text": "pretrain",
    "ids": "pretrain",
    "messages": "sft",
    "completion": "sft",
    "preference": "dpo",
}
WORDS = {
    "text": "text",
    "messages": "conversations",
    "completion": "prompts and completions",
    "preference": "pairs of a chosen and a rejected answer",
}
END_OF_DOCUMENT = "<|endoftext|>"
ROLES = {"human": "user", "gpt": "assistant"}  # as ShareGPT calls them
# llm.c has 256 numbers of 32 bits in front of ids: one that says whose, a version, how many.
LLM_C = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # of GPT-2, of Llama 3
LLM_C_HEADER = 1024  # bytes
FORMS: dict[Kind, str] = {
    "text": '{"text": "..."}',
    "messages": '{"messages": [{"role": "user", "content": "..."}, '
    '{"role": "assistant", "content": "..."}]}',
    "completion": '{"prompt": "...", "completion": "..."}',
    "preference": '{"prompt": "...", "chosen": "...", "rejected": "..."}, texts or lists of '
    "messages with an answer of the assistant",
}
NEEDED = (
    '{"text": ...}, {"messages": [...]}, {"conversations": [...]}, {"prompt": ..., '
    '"completion": ...} or {"prompt": ..., "chosen": ..., "rejected": ...}'
)


@dataclass(frozen=True)
class Source:
    """What a file holds: documents as text, one array of ids, conversations, pairs of prompt and
    completion, or pairs of either, the chosen one first; `lines` has the number of the line that
    each came from, `said` all of it in words.
    """

    path: Path
    kind: Kind
    documents: Sequence[Any]
    lines: Sequence[int]
    said: str


def read_source(path: Path) -> Source:
    """Reads a file. ValueError names the file, and the line, that is not as it should be."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise ValueError(f"{path}: found {kind}, needs a regular file: .txt, .jsonl or .bin")
    if status.st_size == 0:
        raise ValueError(f"{path}: found an empty file, needs text or ids to learn from")
    if path.suffix == ".bin":
        return read_ids(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}, line {line}: found bytes that are not UTF-8, needs text in UTF-8"
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # lines end as open() reads them
    if not text.strip():
        raise ValueError(f"{path}: found an empty file, needs text to learn from")
    return read_json_lines(path, text) if path.suffix == ".jsonl" else read_text(path, text)


def stage_of(sources: Sequence[Source]) -> Stage:
    """What sources are for. ValueError where they are for different things."""
    stages = {STAGES[source.kind]: source for source in sources}
    if len(stages) > 1:
        first, second = stages.values()
        raise ValueError(
            f"{first.path} holds {first.said}, {second.path} holds {second.said}; "
            "needs files for one stage: text, or conversations"
        )
    return next(iter(stages))


def read_ids(path: Path) -> Source:
    """Ids of 16 bits as nanoGPT writes them, or behind a header of llm.c's; the file stays on the
    disk."""
    size = path.stat().st_size
    begin, dtype = 0, np.dtype("<u2")
    if size >= LLM_C_HEADER:
        magic, version, count = np.fromfile(path, "<i4", 3).tolist()
        if magic in LLM_C:
            needed, kind = LLM_C[magic]
            if version != needed:
                raise ValueError(f"{path}: found version {version} of llm.c's ids, needs {needed}")
            begin, dtype = LLM_C_HEADER, np.dtype(kind)
            if size != (whole := begin + count * dtype.itemsize):
                raise ValueError(
                    f"{path}: found {size:,} bytes, needs {whole:,} for the {count:,} ids that its "
                    "header tells of; write it again"
                )
    bits = 8 * dtype.itemsize
    if size - begin < 2 * dtype.itemsize or size % dtype.itemsize:
        raise ValueError(f"{path}: found {size} bytes, needs ids of {bits} bits, two or more")
    ids = np.memmap(path, dtype, "r", begin)
    return Source(path, "ids", [ids], [0], f"{len(ids):,} ids of {bits} bits")


def read_text(path: Path, text: str) -> Source:
    """Documents end at <|endoftext|> where the file has it, else at blank lines."""
    marked = END_OF_DOCUMENT in text
    parts = text.split(END_OF_DOCUMENT if marked else "\n\n")
    documents = [part.strip("\n") for part in parts if part.strip()]
    ends = END_OF_DOCUMENT if marked else "blank lines"
    said = f"text, {len(documents):,} documents between {ends}"
    return Source(path, "text", documents, [0] * len(documents), said)


# ---- JSON lines ----------------------------------------------------------------------------------


def read_json_lines(path: Path, text: str) -> Source:
    documents: list[Any] = []
    lines: list[int] = []
    found: tuple[Kind, Callable[[Mapping[str, Any]], Any]] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(
                f"{path}, line {number}: found {shown(line.strip()[:40])}, needs a JSON object"
            ) from None
        found = found or kind_of(path, number, value)
        kind, read = found
        try:
            documents.append(read(value))
            if "\\u" in line:
                check_pairs(value)
        except (KeyError, TypeError, ValueError) as error:
            why = f", {error}" if isinstance(error, ValueError) else ""
            needed = f"{kind} as in the lines above it" if lines else FORMS[kind]
            raise ValueError(
                f"{path}, line {number}: found {shown(value)}{why}, needs {needed}"
            ) from None
        lines.append(number)
    if found is None:
        raise ValueError(f"{path}: found no line, needs {NEEDED}")
    said = f"JSON lines, {len(documents):,} of {WORDS[found[0]]}"
    return Source(path, found[0], documents, lines, said)


def kind_of(path: Path, number: int, value: Any) -> tuple[Kind, Callable[[Mapping[str, Any]], Any]]:
    """What the first line is, and what reads it and the lines behind it."""
    keys = set(value) if isinstance(value, dict) else set()
    if {"chosen", "rejected"} <= keys:
        return "preference", texts if isinstance(value["chosen"], str) else messages
    if "messages" in keys or "conversations" in keys:
        key = "messages" if "messages" in keys else "conversations"
        return "messages", lambda line: conversation(line[key])
    if {"prompt", "completion"} <= keys:
        return "completion", lambda line: (string(line["prompt"]), string(line["completion"]))
    if "text" in keys:
        return "text", lambda line: string(line["text"])
    raise ValueError(f"{path}, line {number}: found {shown(value)}, needs {NEEDED}")


def texts(line: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A chosen answer and a rejected one, each behind its prompt."""
    prompt = string(line["prompt"])
    return [(prompt, string(line[which])) for which in ("chosen", "rejected")]


def messages(line: Mapping[str, Any]) -> list[list[dict[str, str]]]:
    """The same as conversations: whole ones, or what goes on behind the prompt."""
    prompt = line.get("prompt", [])
    found = [line["chosen"], line["rejected"]]
    if not all(isinstance(part, list) for part in (prompt, *found)):
        raise TypeError
    return [conversation([*prompt, *answer]) for answer in found]


def check_pairs(value: Any) -> None:
    """ValueError: an escape \\ud83d or its like stands alone, which is half of a character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"the lone surrogate {half!r} in it, which has no UTF-8") from None


def string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def conversation(messages: Any) -> list[dict[str, str]]:
    """Messages with role and content; ShareGPT's from and value are renamed."""
    if not isinstance(messages, list):
        raise TypeError
    renamed = [
        {
            "role": ROLES.get(message["from"], message["from"]),
            "content": message["value"],
        }
        if isinstance(message, dict) and {"from", "value"} <= message.keys()
        else message
        for message in messages
    ]
    check_messages(renamed)
    if not any(message["role"] == "assistant" for message in renamed):
        raise ValueError("no turn of the assistant")
    return renamed
