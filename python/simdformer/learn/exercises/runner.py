"""Runs a learner's file in a process of its own, which may hang, crash or end itself."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simdformer.learn.exercises.calls import Attempt
from simdformer.learn.exercises.child import saved

__all__ = ["Submission", "run"]

IMPORT_SECONDS = 60.0  # PyTorch alone may take ten on a slow disk
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Submission:
    """What one function did: its attempts by the number of the case, none after the first
    complaint; and what it printed."""

    name: str
    attempts: dict[int, Attempt]
    printed: str = ""


def run(file: Path, names: list[str], seconds: float) -> Iterator[Submission]:
    """Each function as soon as it is done; those that are not in the file are left out. `seconds`
    is the time for one function with all of its cases.

    ValueError: the file cannot be imported.
    """
    todo = list(names)
    while todo:
        with tempfile.TemporaryDirectory(prefix="simdformer-") as folder:
            for submission, rest in follow(file, Path(folder), todo, seconds):
                if submission is not None:
                    yield submission
                todo = rest


def follow(
    file: Path, folder: Path, names: list[str], seconds: float
) -> Iterator[tuple[Submission | None, list[str]]]:
    """One process: what it has done, and which functions are left for another one."""
    (folder / "messages").touch()
    (folder / "printed").touch()
    command = [sys.executable, "-P", "-m", "simdformer.learn.exercises.child"]
    with (
        open(folder / "messages", encoding="utf-8") as messages,
        open(folder / "printed", "ab") as printed,
        ended(
            subprocess.Popen(
                [*command, str(file), str(folder), *names],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,  # so that what it starts ends with it
            )
        ) as process,
    ):
        message = next_message(messages, process, IMPORT_SECONDS)
        if "ready" not in message:
            raise ValueError(f"{file.name}: {not_imported(message, process, folder)}")
        left = [name for name in names if name in message["ready"]]
        yield None, left
        while left:
            name, *left = left
            deadline = time.monotonic() + seconds
            message, case = {}, 0
            while "end" not in message:
                case = message.get("case", 0)
                message = next_message(messages, process, deadline - time.monotonic())
                if not message:
                    yield Submission(name, {case: Attempt(complaint=why(process, seconds))}), left
                    return
            yield submission(folder, name, message), left


def next_message(messages: Any, process: "subprocess.Popen[bytes]", seconds: float) -> Any:
    """The next line of JSON; {} when none came in time, or none can come any more."""
    deadline = time.monotonic() + seconds
    line = ""
    while True:
        over = process.poll() is not None or time.monotonic() > deadline
        line += messages.readline()
        if line.endswith("\n"):
            return json.loads(line)
        if over:
            return {}
        time.sleep(POLL_SECONDS)


def submission(folder: Path, name: str, message: dict[str, Any]) -> Submission:
    attempts = {}
    for number, complaint in enumerate(message["complaints"]):
        if complaint:
            attempts[number] = Attempt(complaint=complaint)
        else:
            attempts[number] = Attempt(saved(folder / f"{name}-{number}.npz"))
    return Submission(name, attempts, message["printed"])


def why(process: "subprocess.Popen[bytes]", seconds: float) -> str:
    """What happened to a process that said nothing more."""
    code = process.poll()
    if code is None:
        return f"did not come back within {seconds:g} seconds: is there a loop without an end?"
    if code < 0:
        return f"crashed ({signal.Signals(-code).name}): the process was ended by the system"
    return f"ended the whole process with exit status {code}"


def not_imported(message: dict[str, Any], process: "subprocess.Popen[bytes]", folder: Path) -> str:
    if "failed" in message:
        return f"it cannot be imported: {message['failed'].replace(chr(10), ', ')}"
    if process.poll() is None:
        return (
            f"it was still being imported after {IMPORT_SECONDS:g} seconds; put what is no "
            'function behind `if __name__ == "__main__":`'
        )
    last = (folder / "printed").read_text(errors="replace").strip().splitlines()[-1:]
    return "it ended the process when it was imported" + "".join(f": {line}" for line in last)


@contextlib.contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """The process, which is gone afterwards, with everything that it started."""
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
