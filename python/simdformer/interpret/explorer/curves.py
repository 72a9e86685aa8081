"""The curves of a run that goes on, as the page draws them."""

from typing import Any

import numpy as np

from simdformer.training.log import column, read_log, running_mean
from simdformer.types import Array

__all__ = ["curves"]

MOST_POINTS = 500
CURVES = ("loss", "val_loss", "lr", "norm")


def curves(log: Any) -> dict[str, Any]:
    """How many steps there were, and each curve of the log that has a finite number: its points,
    `steps` and `values`, thinned where they are many, their running mean, and the last value."""
    lines = read_log("explore: log", log)
    told: dict[str, Any] = {"steps": int(lines[-1]["step"]), "last": {}}
    for name in CURVES:
        steps, values = column(lines, name)
        steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
        if len(values):
            columns = {"steps": steps, "values": values, "means": running_mean(values)}
            told[name] = {key: thinned(numbers).tolist() for key, numbers in columns.items()}
            told["last"][name] = float(values[-1])
    return told


def thinned(values: Array) -> Array:
    """At most MOST_POINTS of them at even distances, the first and the last among them."""
    if len(values) <= MOST_POINTS:
        return values
    few: Array = values[np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int)]
    return few
