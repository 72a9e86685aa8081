"""Results for people: a table for the terminal, line by line as it is measured, or Markdown."""

import math
from collections.abc import Iterator

from simdformer.bench import model_contestants, numpy_peer, onnxruntime_peer, ours, torch_peer
from simdformer.bench.company import MOST_MEAN, MOST_P99
from simdformer.bench.results import Measurement, Result, Results

__all__ = ["header", "line", "markdown", "notes", "summary"]

PEERS = (torch_peer.NAME, onnxruntime_peer.NAME, numpy_peer.NAME)
LEGEND = """\
time: the best sample of ours. share: of the limit that is nearer, arithmetic or reading.
torch, onnxruntime, numpy: how many times as fast as they ours is.
error: RMS against float64, relative; beside it that of PyTorch.
goals: so many times the speed of the better of torch and onnxruntime (peers), that share of the
multiply-adds (FMA) or of the read bandwidth (read) of this machine.
"""
ON_TORCH = (torch_peer.NAME, model_contestants.TRANSFORMERS)  # whose error stands beside ours
WIDTHS = (31, 9, 12, 6, 8, 12, 8, 9, 9)  # of all columns but the last
TITLES = ("case", "time", "speed", "share", *PEERS, "error", "torch's", "goals")


def header(results: Results) -> str:
    """The machine, its limits, and the titles of the columns."""
    return f"{results.machine}\nlimits: {results.limits}\n\n{LEGEND}\n{row(TITLES)}"


def line(result: Result) -> str:
    """One case; below it what else is worth knowing."""
    return "\n".join([row(cells(result)), *(f"{'':4}{note}" for note in notes(result))])


def row(texts: tuple[str, ...]) -> str:
    first, *others = texts[:-1]
    padded = [first.ljust(WIDTHS[0])]
    padded += [text.rjust(width) for text, width in zip(others, WIDTHS[1:], strict=True)]
    return (" ".join(padded) + "  " + texts[-1]).rstrip()


def cells(result: Result) -> tuple[str, ...]:
    """In the order of TITLES."""
    mine = result.ours
    if mine is None:
        return (result.case.name, "WRONG", *[""] * (len(TITLES) - 3), "")
    theirs = next((result.measured[name] for name in ON_TORCH if name in result.measured), None)
    return (
        result.case.name,
        duration(mine.best),
        "" if result.case.tiny else speed(result, mine),
        "" if result.case.tiny else f"{result.share:.0%}",
        *(times(result.ratio(name)) for name in PEERS),
        f"{mine.error:.1e}",
        f"{theirs.error:.1e}" if theirs else "",
        ", ".join(goals(result)),
    )


def goals(result: Result) -> Iterator[str]:
    for reached in result.goals:
        sign = ("✓" if reached.met else "✗") if reached.known else "?"
        yield f"{sign} {reached.goal}"


def notes(result: Result) -> Iterator[str]:
    """Contestants that have no column, and those that are missing for a reason worth saying."""
    for name in result.measured:
        if name not in (ours.NAME, *PEERS):
            unit = result.case.work.counted_in
            theirs = result.case.work.speed(result.measured[name].best)
            yield f"{times(result.ratio(name))} {name} ({theirs:,.1f} {unit})"
    for name, why in result.missing.items():
        if "another result" in why:
            yield f"{name} {why}"


def summary(results: Results) -> str:
    """How many goals are met, and who did not take part at all."""
    reached = [goal for result in results.results for goal in result.goals if goal.known]
    lines = list(company(results))
    if results.interrupted:
        lines.append(f"interrupted after {len(results.results)} cases")
    if reached:
        lines.append(f"{sum(goal.met for goal in reached)} of {len(reached)} goals are met")
    absent = {
        f"{name}: {why}"
        for result in results.results
        for name, why in result.missing.items()
        if "not installed" in why
    }
    return "\n".join([*lines, *sorted(absent)])


def company(results: Results) -> Iterator[str]:
    """A line for each library that was measured in company."""
    if results.company:
        yield "one decode step of attention, alone and beside a process that keeps a CPU busy:"
    for one in results.company:
        alone, beside = one.alone.mean(), one.beside.mean()
        goal = f"  {'✓' if one.met else '✗'} {MOST_MEAN:g}×, {duration(MOST_P99)}"
        yield (
            f"    {one.name:<10} mean {duration(alone)} → {duration(beside)} "
            f"({one.mean_ratio:.1f}×), 99 of 100 calls within {duration(one.p99)}"
            f"{goal if one.name == ours.NAME else ''}"
        )


def markdown(results: Results) -> str:
    """The table for a README: machine, limits, a row a case."""
    titles = ("case", "ours", "speed", "share", *(f"× {name}" for name in PEERS))
    titles += ("error", "PyTorch's", "goals")
    rows = [titles, ("---", *["---:"] * (len(titles) - 2), "---")]
    rows += [cells(result) for result in results.results]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    machine = [str(results.machine), "", f"Limits: {results.limits}.", ""]
    return "\n".join([*machine, *lines]) + "\n"


# ---- numbers -------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> duration(1.234e-6), duration(0.0456), duration(12.0)
    ('1.23 µs', '45.6 ms', '12.0 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.9995:
            return f"{digits(seconds / size)} {unit}"
    return f"{digits(seconds / 1e-9)} ns"


def digits(number: float) -> str:
    """About three of them."""
    places = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:,.{places}f}"


def speed(result: Result, one: Measurement) -> str:
    work = result.case.work
    return f"{digits(work.speed(one.best))} {work.counted_in}"


def times(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{digits(ratio)}×"
