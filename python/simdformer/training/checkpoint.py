"""Checkpoints of a run: DIR/checkpoint-000123/ holds what the run needs to go on with the same bits
after step 123.

    state.json     step, options, norms so far, hashes: of itself and of the arrays' file
    arrays.npz     weights/NAME, exp_avg/NAME, exp_avg_sq/NAME, as they are in memory

A checkpoint is written beside its place, synced, and renamed: whatever ends the process or the
machine, a name checkpoint-* belongs to a whole one. The last two are kept, and where the newest is
damaged the one before it is taken.
"""

import json
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.checkpoints.files import InputFile
from simdformer.training.files import (
    hash_of_file,
    hash_of_json,
    sync,
    sync_directory,
    write_text,
)
from simdformer.types import Array

__all__ = [
    "KEPT",
    "Checkpoint",
    "newest_checkpoint",
    "read_checkpoint",
    "save_checkpoint",
    "unwritten",
    "whole_one",
]

KEPT = 2
NAME = re.compile(r"checkpoint-(\d{6,})")
STATE, ARRAYS = "state.json", "arrays.npz"


@dataclass(frozen=True)
class Checkpoint:
    """`state` is JSON, `arrays` are by group and name: arrays["weights"]["embed"]."""

    step: int
    state: Mapping[str, Any]
    arrays: Mapping[str, Mapping[str, Array]]


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint, and removes all but the last two. OSError: what was there before is
    still there."""
    place = directory / f"checkpoint-{checkpoint.step:06d}"
    beside = directory / f".{place.name}.unfinished"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir()
        flat = {
            f"{group}/{name}": array
            for group, arrays in checkpoint.arrays.items()
            for name, array in arrays.items()
        }
        with (beside / ARRAYS).open("wb") as file:
            np.savez(file, allow_pickle=False, **flat)
            sync(file)
        state = {
            "step": checkpoint.step,
            **checkpoint.state,
            "arrays": hash_of_file(beside / ARRAYS),
        }
        write_text(beside / STATE, json.dumps(state | {"state": hash_of_json(state)}, indent=1))
        sync_directory(beside)
        shutil.rmtree(place, ignore_errors=True)  # a damaged one, which the run has made again
        beside.rename(place)
        sync_directory(directory)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise unwritten(directory, place, error) from error
    for old in saved(directory)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def whole_one(directory: Path) -> str:
    """Which checkpoint a run that ends can go on from, in words."""
    last = saved(directory)[-1:]
    return f"{last[0].name} is whole" if last else "there is no checkpoint yet"


def unwritten(directory: Path, place: Path, error: OSError) -> OSError:
    """What is said of a file or a checkpoint of a run for which there is no room."""
    return OSError(
        f"{place}: cannot be written ({error.strerror or error}); {whole_one(directory)}; free "
        "some space, then --resume"
    )


def newest_checkpoint(directory: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of a run, None without one; and a sentence on each newer one that
    is damaged."""
    damaged: list[str] = []
    for path in reversed(saved(directory)):
        try:
            return read_checkpoint(path), damaged
        except ValueError as error:
            damaged.append(str(error))
    return None, damaged


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint. ValueError: it is damaged."""
    try:
        file = InputFile(path / STATE)
        state = json.loads(file.read(0, file.size))
        InputFile(path / ARRAYS)  # nothing that a read would wait for, or never end with
        told = state.pop("state")
        if told != hash_of_json(state) or state.pop("arrays") != hash_of_file(path / ARRAYS):
            raise ValueError("the hash differs")
        arrays: dict[str, dict[str, Array]] = {}
        with np.load(path / ARRAYS, allow_pickle=False) as stored:
            for key in stored.files:
                group, _, name = key.partition("/")
                arrays.setdefault(group, {})[name] = stored[key]
        return Checkpoint(int(state.pop("step")), state, arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"{path}: found a damaged checkpoint ({why})") from None


def saved(directory: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    found = [(NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    numbered = [(int(match[1]), path) for match, path in found if match and path.is_dir()]
    return [path for _, path in sorted(numbered)]
