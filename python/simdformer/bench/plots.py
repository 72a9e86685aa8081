"""Two pictures. The roofline: how much arithmetic an operation has for each byte, against how fast
it is. Throughput: how many ids a second come, against how many texts are continued together."""

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.bench.batches import BatchRun
from simdformer.bench.contestants import LLAMA_CPP, ONNXRUNTIME, OURS, TORCH, optional
from simdformer.bench.results import Measurement, Result, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["new_axes", "plot_roofline", "plot_throughput", "save_plot"]

# Okabe and Ito's colours, which all eyes tell apart; a shape a contestant for print in grey.
DOTS: dict[str, dict[str, Any]] = {
    OURS: {"marker": "o", "color": "#0072B2", "s": 34},
    TORCH: {"marker": "^", "color": "#D55E00", "s": 24},
    ONNXRUNTIME: {"marker": "s", "color": "#009E73", "s": 18},
}


def plot_roofline(results: Results, ax: "Axes | None" = None) -> "Axes":
    """One dot a case and contestant, our highest of each operation with a number; the roofs are the
    limits of the machine.

    The dots of one case stand above each other, because they do the same work. Cases that only
    cost a call, and those that compute nothing, are left out.
    """
    from simdformer.learn.plots.curves import draw_dot, draw_roofs  # takes a moment
    from simdformer.learn.plots.look import dress, one_axes

    shown = [
        result
        for result in results.results
        if result.measured and result.case.work.flops and not result.case.tiny
    ]
    top = results.limits.gflops
    roofs = {level.name: level.gigabytes_per_second for level in results.limits.levels}
    ridge = top / results.limits.levels[-1].gigabytes_per_second
    intensities = [ridge, *(result.case.work.intensity for result in shown)]
    ends = min(intensities) / 3, max(intensities) * 3
    with one_axes(ax, (8.6, 4.6)) as axes:
        draw_roofs(axes, ends, top, roofs)
        for name, style in DOTS.items():
            dots = [
                (result.case.work.intensity, height(found, result))
                for result in shown
                if (found := result.measured.get(name))
            ]
            if dots:
                x, y = np.transpose(dots)
                axes.scatter(x, y, label=name, linewidths=0, alpha=0.85, zorder=1.5, **style)
        ours = [(height(best, one), one.case.work) for one in shown if (best := one.ours)]
        highest = {
            work.operation: (work.intensity, at) for at, work in sorted(ours, key=itemgetter(0))
        }
        for number, (name, dot) in enumerate(highest.items(), start=1):
            draw_dot(axes, *dot, number, name, by_memory=True)
        dress(axes)
        axes.set(xscale="log", yscale="log", xlim=ends)
        axes.set(xlabel="FLOP per byte", ylabel="GFLOPS")
        axes.set_title(f"{results.machine.title}: at most {top:.0f} GFLOPS in float32")
        if shown:
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return axes


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


def height(found: Measurement, result: Result) -> float:
    return result.case.work.flops / found.best / 1e9


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
    from simdformer.learn.plots import lines

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
