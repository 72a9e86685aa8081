"""The loss of a run of training, or of several laid over each other."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.learn.plots.look import COLOURS, HIDDEN, dress, one_axes
from simdformer.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["loss_curve"]

LOG = "log.jsonl"
SMOOTHED = 40  # a line is the mean over this part of a run


def loss_curve(log: Any, *, title: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """The loss against the step: each step pale, their running mean as a line, and the validation
    loss as dots where it was measured.

    log : the directory of `simdformer train`, its log.jsonl, its lines as dicts, or losses; or a
        dict of several by their names. ValueError: there is no step.

    >>> import simdformer as sf
    >>> ax = sf.plots.loss_curve({"mine": [3.0, 2.0, 1.5], "theirs": [3.0, 2.5, 2.4]})
    >>> ax.get_legend_handles_labels()[1]
    ['mine', 'theirs']
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    runs = log if isinstance(log, Mapping) else {"training": log}
    read = {name: read_log(name, one) for name, one in runs.items()}
    with one_axes(ax, (6.4, 3.0)) as axes:
        for number, (name, lines) in enumerate(read.items()):
            colour = list(COLOURS.values())[number % len(COLOURS)]
            steps, losses = column(lines, "loss")
            axes.plot(steps, losses, color=colour, linewidth=0.6, alpha=0.3)
            axes.plot(steps, running_mean(losses), color=colour, linewidth=1.4, label=name)
            measured = column(lines, "val_loss")
            if len(measured[0]):
                label = "validation" if len(read) == 1 else f"{name}, validation"
                axes.plot(
                    *measured, "o", color=colour, markersize=4, markeredgecolor="white", label=label
                )
        dress(axes)
        axes.grid(True, axis="y", color=HIDDEN, linewidth=0.7)
        axes.set(xlabel="step", ylabel="loss")
        axes.set_title("loss" if title is None else title)
        axes.legend(loc="upper right")
    return axes


def read_log(name: str, log: Any) -> list[Mapping[str, Any]]:
    """Its lines, in which losses alone have the numbers of their steps."""
    if isinstance(log, str | os.PathLike):
        path = Path(log)
        text = (path / LOG if path.is_dir() else path).read_text(encoding="utf-8")
        log = [json.loads(line) for line in text.splitlines()]
    if not len(log):
        raise ValueError(f"plots.loss_curve: {name} has no step, needs one at least")
    return [
        one if isinstance(one, Mapping) else {"step": at, "loss": float(one)}
        for at, one in enumerate(log, 1)
    ]


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
