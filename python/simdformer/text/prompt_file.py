"""Prompts in a file and answers in another: a line of JSON each, written so that none is lost."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from simdformer.arguments import shown

__all__ = ["AnswerFile", "FilePrompt", "read_prompt_file"]

NEEDED = (
    'a text in quotes, {"prompt": text} or {"messages": [...]}, with an "id" of its own or none'
)


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """A line: its number, its id (None given: its number) and what the model is to read, a text or
    the messages of a conversation."""

    line: int
    id: Any
    prompt: Any


def read_prompt_file(file: Path) -> list[FilePrompt]:
    """The prompts of a file, empty lines left out. ValueError names the first line that is none, or
    whose id stood above."""
    prompts: list[FilePrompt] = []
    lines: dict[str, int] = {}
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            prompt = read_line(file, number, line)
            before = lines.setdefault(json.dumps(prompt.id), number)
            if before != number:
                raise ValueError(
                    f"{file}, line {number}: the id {shown(prompt.id)} stands in line {before} too"
                )
            prompts.append(prompt)
    return prompts


def read_line(file: Path, number: int, line: bytes) -> FilePrompt:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise ValueError(
            f"{file}, line {number}: found {shown(line.strip()[:40])}, needs JSON: {NEEDED}"
        ) from None
    if isinstance(found, str):
        return FilePrompt(number, number, found)
    if isinstance(found, dict):
        text, messages, id = (found.get(key) for key in ("prompt", "messages", "id"))
        right = isinstance(id, str | int | None) and not isinstance(id, bool)
        if right and (isinstance(text, str) != isinstance(messages, list)):
            return FilePrompt(
                number, number if id is None else id, messages if text is None else text
            )
    raise ValueError(f"{file}, line {number}: found {shown(found)}, needs {NEEDED}")


class AnswerFile:
    """Answers are appended and on the disk before `write` returns. What a run that was killed has
    left is kept, but for a last line that it did not finish; `done` are the ids of those answers.

    BlockingIOError: another run is writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[str] = set()

    def __enter__(self) -> Self:
        self._file = self.path.open("a+b")
        try:
            lock(self._file.fileno(), self.path)
            self._file.truncate(sum(map(len, self._whole_lines())))
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __contains__(self, id: Any) -> bool:
        return json.dumps(id) in self.done

    def write(self, id: Any, text: str, new_tokens: int) -> None:
        answer = {"id": id, "text": text, "new_tokens": new_tokens}
        line = json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done.add(json.dumps(id))

    def _whole_lines(self) -> Iterator[bytes]:
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                self.done.add(json.dumps(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError, RecursionError):
                raise ValueError(
                    f"{self.path}, line {number}: found {shown(line.strip()[:40])}, needs an "
                    "answer as this command writes them; give another file"
                ) from None
            yield line


def lock(descriptor: int, path: Path) -> None:
    """Until the file is closed, by this process alone; where the system has no such locks, nothing
    is done."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(f"{path}: another run is writing into it") from None
