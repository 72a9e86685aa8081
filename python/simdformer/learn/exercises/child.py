"""The process in which a learner's file runs: `python -m simdformer.learn.exercises.child`.

    child FILE FOLDER FUNCTION ...

It imports FILE and calls the functions, and says what happens as lines of JSON in FOLDER/messages:
{"ready": names found}, then for each function {"case": number} for each of its cases, and at last
{"end": name, "complaints": one a case, "printed": text}. Arrays that came back are in
FOLDER/NAME-CASE.npz. If the file ends the process or never comes back, the lines so far say where:
see runner.py.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from simdformer.learn.exercises.calls import attempt, described, kinds_of_arrays, where
from simdformer.learn.exercises.exercise import EXERCISES

__all__ = ["main", "saved"]

BFLOAT16 = "-bfloat16"
PRINTED = 2000  # characters of what a function printed that are worth showing


def main(file: str, folder: str, names: list[str]) -> None:
    cases = {name: EXERCISES[name].cases() for name in names}  # before foreign code is run
    results = {name: EXERCISES[name].results for name in names}
    with open(Path(folder) / "messages", "a", encoding="utf-8") as messages:

        def say(**message: Any) -> None:
            messages.write(json.dumps(message) + "\n")
            messages.flush()

        with_output = Path(folder) / "printed"
        redirect(with_output)
        try:
            namespace = load(file)
        except (Exception, SystemExit) as error:
            say(failed=described(error) + place(error, file))
            return
        say(ready=[name for name in names if callable(namespace.get(name))])
        for name in names:
            function = namespace.get(name)
            if not callable(function):
                continue
            kinds = kinds_of_arrays(function, namespace)
            before = size_of(with_output)
            complaints = []
            for number, case in enumerate(cases[name]):
                say(case=number)
                tried = attempt(function, case.arguments, results[name], kinds)
                complaints.append(tried.complaint)
                if tried.complaint:
                    break
                save(Path(folder) / f"{name}-{number}.npz", tried.results)
            say(end=name, complaints=complaints, printed=printed(with_output, before))


def load(file: str) -> dict[str, Any]:
    """The names of a file that is imported as a module of its own."""
    path = Path(file)
    sys.argv = [file]
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(path.parent))  # it may import what lies beside it
    name = path.stem if path.stem not in sys.modules else f"my_{path.stem}"  # json.py, say
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file: its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return vars(module)


def place(error: BaseException, file: str) -> str:
    if isinstance(error, SyntaxError):  # its own message says where
        return ""
    return where(error, file=file)


def save(path: Path, arrays: tuple[np.ndarray[Any, Any], ...]) -> None:
    """Arrays without pickles; bfloat16, which numpy cannot save, as float32 that says so."""
    named = {
        f"{number}{BFLOAT16 if array.dtype == bfloat16 else ''}": (
            array.astype(np.float32) if array.dtype == bfloat16 else array
        )
        for number, array in enumerate(arrays)
    }
    with open(path, "wb") as file:
        np.savez(file, **named)  # type: ignore[arg-type]


def saved(path: Path) -> tuple[np.ndarray[Any, Any], ...]:
    """What `save` has written."""
    with np.load(path, allow_pickle=False) as arrays:
        return tuple(
            array.astype(bfloat16) if name.endswith(BFLOAT16) else array
            for name, array in arrays.items()
        )


# ---- what it prints ------------------------------------------------------------------------------


def redirect(path: Path) -> None:
    """Everything that is printed, by C++ code too, into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)


def size_of(path: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return path.stat().st_size


def printed(path: Path, start: int) -> str:
    end = size_of(path)
    with open(path, "rb") as file:
        file.seek(start)
        text = file.read(min(end - start, PRINTED)).decode(errors="replace")
    return text + (" ..." if end - start > PRINTED else "")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
