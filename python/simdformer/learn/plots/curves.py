"""Pictures of functions of one number: activations, and what a machine can do."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.learn.plots.look import (
    COLOURS,
    HIDDEN,
    INK,
    PALE,
    USUAL_TEXT,
    dress,
    needs,
    one_axes,
)
from simdformer.types import Array, ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["activations", "lines", "roofline"]

LINES = ("-", "--", ":", "-.")
MARK = 11.0  # points: the diameter of a dot that holds a number


def activations(
    functions: Sequence[Callable[[Array], Array]],
    *,
    low: float = -4.0,
    high: float = 3.0,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Curves of functions that work number by number, such as `sf.silu`, from `low` to `high`; each
    is called with one float32 array (n,) and named as in Python.

    >>> import simdformer as sf
    >>> ax = sf.plots.activations([sf.silu, sf.relu])
    >>> [line.get_label() for line in ax.lines]
    ['silu', 'relu']
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    if not isinstance(functions, Sequence) or not all(map(callable, functions)):
        raise needs("activations", "functions", functions, "a list of functions, such as [sf.silu]")
    if not functions:
        raise ValueError("plots.activations: functions is empty, needs at least one")
    x = np.linspace(low, high, 241, dtype=np.float32)
    with one_axes(ax, (6.4, 3.1)) as axes:
        for number, function in enumerate(functions):
            axes.plot(
                x,
                function(x),
                LINES[number % len(LINES)],
                color=list(COLOURS.values())[number % len(COLOURS)],
                label=getattr(function, "__name__", str(function)),
            )
        dress(axes)
        axes.grid(True, color=HIDDEN, linewidth=0.7)
        axes.set_xlim(low, high)
        axes.set(xlabel="x", ylabel="activation")
        axes.set_title("activations" if title is None else title)
        axes.legend(loc="upper left")
    return axes


def lines(
    x: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    xlabel: str,
    ylabel: str,
    level: tuple[str, float] | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Measurements (n,) against x (n,), a line for each of `curves`, by its name; `level` is a line
    to compare with, and what it is called. x is logarithmic where it grows more than thirty times.
    ValueError for lengths that differ.

    >>> import simdformer as sf
    >>> ax = sf.plots.lines([1, 2, 4], {"mine": [1, 2, 3]}, xlabel="tokens", ylabel="ms")
    >>> ax.get_xscale(), [line.get_label() for line in ax.lines]
    ('linear', ['mine'])
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    places = np.asarray(x, np.float64)
    named = {name: np.asarray(values, np.float64) for name, values in curves.items()}
    for name, values in named.items():
        if values.shape != places.shape or values.ndim != 1:
            raise ValueError(
                f"plots.lines: {name} has shape {values.shape}, x has {places.shape}, needs "
                "two of one shape (n,)"
            )
    with one_axes(ax, (6.4, 3.3)) as axes:
        for number, (name, values) in enumerate(named.items()):
            colour = list(COLOURS.values())[number % len(COLOURS)]
            axes.plot(places, values, "os^D"[number % 4] + "-", color=colour, label=name)
        dress(axes)
        axes.grid(True, axis="y", color=HIDDEN, linewidth=0.7)
        if level is not None:
            axes.axhline(level[1], color=PALE, linewidth=1, linestyle="--")
            axes.annotate(
                level[0], (places.min(), level[1]), (0, 3), textcoords="offset points", color=INK
            )
        if places.min() > 0 and places.max() > 30 * places.min():
            axes.set_xscale("log", base=2)
            axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_ylim(bottom=0)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(ylabel if title is None else title)
        axes.legend(loc="best")
    return axes


def roofline(
    work: Mapping[str, float],
    *,
    gflops: float,
    gigabytes_per_second: float | Mapping[str, float],
    measured: Mapping[str, float] | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """What a machine can do at most, against how much an operation computes per byte: the slanted
    roof is the memory's, the level one the arithmetic's (Williams, Waterman and Patterson 2009).

    Parameters
    ----------
    work : mapping
        FLOP per byte of each operation, by its name.
    gflops : float
        The most that the machine computes, > 0.
    gigabytes_per_second : float, or mapping
        The most that it reads, > 0; of several levels of memory by their names, the slowest last,
        each with a roof of its own.
    measured : mapping, optional
        GFLOPS of each operation, by the same names; None: each stands at the roof, as fast as it
        could be.
    title : str, optional
    ax : Axes, optional
        Where to draw; None: on a new figure.

    Returns
    -------
    Axes
        Dots with numbers; the legend says which is which, and, where they were measured under one
        roof, how much of what is possible was reached.

    Raises
    ------
    ValueError
        There is nothing to show, or a number that is not above 0.

    >>> import simdformer as sf
    >>> ax = sf.plots.roofline({"decode": 0.5, "prefill": 200.0}, gflops=400.0,
    ...                        gigabytes_per_second=40.0)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['1  decode', '2  prefill']
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    reached = {} if measured is None else {name: measured[name] for name in work}
    levels = gigabytes_per_second
    roofs = dict(levels) if isinstance(levels, Mapping) else {"gigabytes_per_second": levels}
    for name, number in {"gflops": gflops, **roofs, **work, **reached}.items():
        if not number > 0:
            raise ValueError(f"plots.roofline: {name} is {number}, needs a number > 0")
    if not work or not roofs:
        raise ValueError("plots.roofline: work or roofs are empty, needs at least one of each")
    slowest = list(roofs.values())[-1]
    ridge = gflops / slowest
    ends = min(*work.values(), ridge) / 3, max(*work.values(), ridge) * 3
    with one_axes(ax, (8.6, 4.0)) as axes:
        draw_roofs(axes, ends, gflops, roofs)
        axes.axvline(ridge, color=HIDDEN, linewidth=1, zorder=0)
        for number, (name, intensity) in enumerate(work.items(), start=1):
            possible = min(gflops, intensity * slowest)
            height = reached.get(name, possible)
            share = f", {height / possible:.0%}" if reached and len(roofs) == 1 else ""
            draw_dot(axes, intensity, height, number, f"{name}{share}", intensity < ridge)
        dress(axes)
        axes.set(xscale="log", yscale="log", xlim=ends)
        axes.set_ylim(top=3 * gflops)
        for side, words in (
            ("right", "memory is the limit "),
            ("left", " arithmetic is the limit"),
        ):
            axes.text(ridge, 1.9 * gflops, words, ha=side, color=INK, fontsize=USUAL_TEXT)
        axes.set(xlabel="FLOP per byte", ylabel="GFLOPS")
        limit = f"{gflops:.0f} GFLOPS, {slowest:.0f} GB/s from memory"
        axes.set_title(f"at most {limit}" if title is None else title)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=0, handletextpad=0)
    return axes


def draw_roofs(
    axes: "Axes", ends: tuple[float, float], gflops: float, roofs: Mapping[str, float]
) -> None:
    """From end to end, a roof for each rate in GB/s; where there are several, with their names."""
    x = np.geomspace(*ends, 200)
    for name, rate in roofs.items():
        axes.plot(x, np.minimum(gflops, x * rate), color=PALE, linewidth=2)
        if len(roofs) > 1:
            label = f"{name} {rate:.0f} GB/s"
            axes.annotate(label, (x[0], x[0] * rate), (4, 6), textcoords="offset points")


def draw_dot(axes: "Axes", x: float, y: float, number: int, name: str, by_memory: bool) -> None:
    """A dot with its number in it: blue where memory is the limit, orange where arithmetic is."""
    colour = COLOURS["blue" if by_memory else "vermilion"]
    style: dict[str, Any] = {"color": colour, "markersize": MARK, "linestyle": "none"}
    axes.plot([x], [y], "o" if by_memory else "s", **style)
    axes.plot([], [], " ", label=f"{number}  {name}")
    axes.annotate(
        str(number), (x, y), ha="center", va="center", color="white", fontsize=USUAL_TEXT - 1
    )
