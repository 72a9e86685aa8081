"""How many ids a second come, against the number of texts that are continued together."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simdformer.bench.batches import BatchRun
from simdformer.bench.contestants import LLAMA_CPP, OURS
from simdformer.bench.results import Results
from simdformer.bench.roofline import new_axes, plot_roofline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_throughput", "save_plot"]

# As in the roofline: colours that all eyes tell apart, a shape each for print in grey.
STYLES: dict[tuple[str, str], dict[str, Any]] = {
    (OURS, "bfloat16"): {"marker": "o", "color": "#0072B2"},
    (OURS, "float32"): {"marker": "D", "color": "#56B4E9"},
    (LLAMA_CPP, "bfloat16"): {"marker": "^", "color": "#D55E00"},
}


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
    """A line for each contestant and arithmetic; grey: twice as many texts, twice as many ids."""
    if ax is None:
        (ax,) = new_axes(1)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="texts at once", ylabel="tokens a second", title=results.machine.title)
    found = curves(results)
    for (name, dtype), points in found.items():
        texts, speeds = zip(*sorted(points.items()), strict=True)
        ax.plot(texts, speeds, label=f"{name}, {dtype}", ms=5, **STYLES[name, dtype])
    counts = sorted({count for points in found.values() for count in points})
    if counts:
        one = max(points[counts[0]] for points in found.values() if counts[0] in points)
        ideal = [one * count / counts[0] for count in counts]
        ax.plot(counts, ideal, color="0.6", lw=1, ls=":", label="in proportion", zorder=1)
        ax.set_ylim(top=1.3 * max(max(points.values()) for points in found.values()))
        ax.legend(frameon=False, loc="lower right", fontsize=9)
    ax.set_xticks(counts, labels=map(str, counts))
    ax.minorticks_off()
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def curves(results: Results) -> dict[tuple[str, str], dict[int, float]]:
    """Tokens a second by contestant and arithmetic, and by the number of texts. llama.cpp has one
    arithmetic: of several times the best counts."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for result in results.results:
        work = result.case.work
        if not isinstance(work, BatchRun):
            continue
        for name, dtype in ((OURS, work.dtype), (LLAMA_CPP, "bfloat16")):
            if one := result.measured.get(name):
                points = found.setdefault((name, dtype), {})
                points[work.texts] = max(work.speed(one.best), points.get(work.texts, 0.0))
    return {key: found[key] for key in STYLES if key in found}
