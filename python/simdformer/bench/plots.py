"""Two pictures. The roofline: how much arithmetic an operation has for each byte, against how fast
it is. Throughput: how many ids a second come, against how many texts are continued together."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.bench.batches import BatchRun
from simdformer.bench.contestants import LLAMA_CPP, ONNXRUNTIME, OURS, TORCH, optional
from simdformer.bench.machine import Limits
from simdformer.bench.results import Result, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["new_axes", "plot_roofline", "plot_throughput", "save_plot"]

# Okabe and Ito's colours, which all eyes tell apart; a shape a contestant for print in grey.
DOTS: dict[str, dict[str, Any]] = {
    OURS: {"marker": "o", "color": "#0072B2", "s": 34, "zorder": 4},
    TORCH: {"marker": "^", "color": "#D55E00", "s": 24, "zorder": 3},
    ONNXRUNTIME: {"marker": "s", "color": "#009E73", "s": 18, "zorder": 3},
}
FONT = 8  # points


def plot_roofline(results: Results, ax: "Axes | None" = None) -> "Axes":
    """One dot a case and contestant; the roofs are the limits of the machine.

    The dots of one operation stand above each other, because they do the same work. Cases that
    only cost a call, and those that compute nothing, are left out.
    """
    if ax is None:
        (ax,) = new_axes(1)
    shown = [
        result
        for result in results.results
        if result.measured and result.case.work.flops and not result.case.tiny
    ]
    intensities = [result.case.work.intensity for result in shown] or [1.0]
    left, right = min(intensities) / 5, max(max(intensities) * 2, ridge(results.limits) * 4)
    draw_roofs(ax, results.limits, left, right)
    for name, style in DOTS.items():
        dots = [
            (result.case.work.intensity, result.case.work.flops / found.best / 1e9)
            for result in shown
            if (found := result.measured.get(name))
        ]
        if dots:
            x, y = np.transpose(dots)
            ax.scatter(x, y, label=name, linewidths=0, alpha=0.85, **style)
    ax.set(
        xscale="log",
        yscale="log",
        xlim=(left, right),
        xlabel="floating-point operations a byte",
        ylabel="GFLOPS",
        title=results.machine.title,
    )
    ax.spines[["top", "right"]].set_visible(False)
    if ax.collections:  # any dot
        ax.legend(frameon=False, loc="lower right", fontsize=9)
    highest = max([height(result) for result in shown], default=0.0)  # of 16 bits above the roof
    ax.set_ylim(top=2 * max(highest, results.limits.gflops))  # room for names
    write_names(ax, shown)
    return ax


def new_axes(count: int) -> "list[Axes]":
    """So many beside each other. ImportError: matplotlib is not installed."""
    figures = optional("matplotlib.figure")
    if figures is None:
        raise ImportError(
            "bench: matplotlib is not installed, which draws the plot; pip install matplotlib"
        )
    figure = figures.Figure(figsize=(3 + 5 * count, 5), layout="constrained")
    widths = [8, *[5] * (count - 1)]
    return list(figure.subplots(1, count, squeeze=False, width_ratios=widths)[0])


def ridge(limits: Limits, level: int = -1) -> float:
    """From this intensity on arithmetic is what limits, even with all data in memory, or in that
    level."""
    return limits.gflops / limits.levels[level].gigabytes_per_second


def write_names(ax: "Axes", results: list[Result]) -> None:
    """Each operation above its highest dot, or as far above as needs be to be readable."""
    points_a_pixel = 72 / ax.figure.dpi
    taken: list[tuple[float, float, float]] = []  # left, right and bottom, in points
    highest = {one.case.work.operation: one for one in sorted(results, key=height)}
    for name, result in sorted(highest.items(), key=lambda item: height(item[1])):
        dot = result.case.work.intensity, height(result)
        x, y = ax.transData.transform(dot) * points_a_pixel
        reach = 0.3 * FONT * len(name)  # half of its width, about
        start, end, up = x - reach, x + reach, 7.0
        for left, right, bottom in sorted(taken, key=lambda box: box[2]):
            if start < right and left < end and abs(y + up - bottom) < 1.2 * FONT:
                up = bottom - y + 1.2 * FONT
        taken.append((start, end, y + up))
        ax.annotate(
            name, dot, (0, up), textcoords="offset points", ha="center", fontsize=FONT, zorder=5,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "0.6"} if up > 7 else None,
        )  # fmt: skip


def draw_roofs(ax: "Axes", limits: Limits, left: float, right: float) -> None:
    x, top = np.geomspace(left, right, 200), limits.gflops
    labels = [(f"{top:.0f} GFLOPS float32", (ridge(limits, 0), top), (0, 4))]
    for level in limits.levels:
        rate = level.gigabytes_per_second
        ax.plot(x, np.minimum(rate * x, top), color="0.6", lw=1)
        labels.append((f"{level.name} {rate:.0f} GB/s", (left, rate * left), (12, 2)))
    for text, dot, offset in labels:
        ax.annotate(text, dot, offset, textcoords="offset points", fontsize=FONT, color="0.4")


def height(result: Result) -> float:
    best = min(one.best for one in result.measured.values())
    return result.case.work.flops / best / 1e9


# ---- many texts ----------------------------------------------------------------------------------


def save_plot(results: Results, file: Path) -> None:
    """The roofline, and the throughput beside it where that was measured, in the format that the
    name of the file ends in.

    ImportError: matplotlib is not installed.
    """
    many = bool(curves(results))
    roof, *more = new_axes(1 + many)
    plot_roofline(results, roof)
    for ax in more:
        plot_throughput(results, ax)
    figure: Any = roof.figure
    figure.savefig(file, dpi=160)


def plot_throughput(results: Results, ax: "Axes | None" = None) -> "Axes":
    """A line for each contestant and arithmetic."""
    from simdformer.learn.plots import lines  # takes a moment

    found = curves(results)
    counts = sorted({count for points in found.values() for count in points})
    return lines(
        counts,
        {name: [points.get(count, np.nan) for count in counts] for name, points in found.items()},
        xlabel="texts at once",
        ylabel="tokens a second",
        title=results.machine.title,
        ax=ax,
    )


def curves(results: Results) -> dict[str, dict[int, float]]:
    """Tokens a second by contestant and arithmetic, and by the number of texts. llama.cpp has one
    arithmetic: of several times the best counts."""
    found: dict[str, dict[int, float]] = {}
    for result in results.results:
        work = result.case.work
        if not isinstance(work, BatchRun):
            continue
        for name, dtype in ((OURS, work.dtype), (LLAMA_CPP, "bfloat16")):
            if one := result.measured.get(name):
                points = found.setdefault(f"{name}, {dtype}", {})
                points[work.texts] = max(work.speed(one.best), points.get(work.texts, 0.0))
    return found
