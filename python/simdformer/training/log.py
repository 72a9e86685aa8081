"""The log of a run: its lines, and what is drawn of them."""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.types import Array

__all__ = ["LOG", "column", "read_log", "running_mean", "whole_lines"]

LOG = "log.jsonl"
SMOOTHED = 40  # a line is the mean over this part of a run


def read_log(who: str, log: Any) -> list[Mapping[str, Any]]:
    """The lines of a run's directory or of its log.jsonl, lines as dicts, or losses, which get the
    numbers of their steps. ValueError, with `who` in it: there is no step."""
    if isinstance(log, str | os.PathLike):
        path = Path(log)
        log = whole_lines(path / LOG if path.is_dir() else path)
    if not len(log):
        raise ValueError(f"{who} has no step, needs one at least")
    return [
        one if isinstance(one, Mapping) else {"step": at, "loss": float(one)}
        for at, one in enumerate(log, 1)
    ]


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that tell of a step: one may be just being written, or be what a machine
    that went down has left of it."""
    found = []
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            told = json.loads(line)
            if isinstance(told, dict) and isinstance(told.get("step"), int):
                found.append(told)
    return found


def column(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[Array, Array]:
    """The steps that have a number of that name, and those numbers."""
    found = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    steps, values = np.array(found, np.float64).reshape(-1, 2).T
    return steps, values


def running_mean(values: Array) -> Array:
    """The mean over the numbers around each: fewer at the ends, as many on both sides."""
    reach = len(values) // SMOOTHED // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    wide = np.minimum(np.minimum(at, len(values) - 1 - at), reach)
    mean: Array = (sums[at + wide + 1] - sums[at - wide]) / (2 * wide + 1)
    return mean
