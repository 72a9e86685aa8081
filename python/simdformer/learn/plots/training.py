"""The loss of a run of training, or of several laid over each other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simdformer.learn.plots.look import COLOURS, HIDDEN, dress, one_axes
from simdformer.training.log import column, read_log, running_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["loss_curve"]


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
    read = {name: read_log(f"plots.loss_curve: {name}", one) for name, one in runs.items()}
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
