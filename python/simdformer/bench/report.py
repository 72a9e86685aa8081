"""Results for people: a table for the terminal, line by line as it is measured, or Markdown."""

import math
from collections.abc import Iterator

from simdformer.bench.checkpoints import FIRST_TOKEN
from simdformer.bench.contestants import OURS
from simdformer.bench.results import Measurement, Result, Results

__all__ = ["goals", "header", "line", "markdown", "notes", "summary"]

LEGEND = """\
time: the best sample of ours. share: of the limit that is nearer, arithmetic or reading.
× torch, × onnxruntime, ...: how many times as fast as they ours is.
error: RMS against float64, relative; beside it that of others.
goals: so many times the speed of the better of torch and onnxruntime, for a model of transformers
and llama.cpp (peers), that share of the multiply-adds (FMA) or of the read bandwidth (read) of this
machine. At most: what a kernel would reach that runs at the limit of the machine. Loading a model:
so many times the speed of reading its files, and at most so many bytes in memory as its weights.
"""
WIDTHS = {"case": 31, "time": 9, "speed": 12, "share": 6}  # of others that of the title, at least 8


def header(results: Results) -> str:
    """The machine and its limits."""
    return f"{results.machine}\nlimits: {results.limits}\n\n{LEGEND}"


def line(results: Results) -> str:
    """The last case, and below it what else is worth knowing; above it the titles of its columns
    where they are others than those of the case before."""
    *_, before, result = None, *results.results
    found = [row(result, cells(result)), *(f"{'':4}{note}" for note in notes(result))]
    if before is None or titles(before) != titles(result):
        found.insert(0, row(result, titles(result)))
    return "\n".join(found)


def row(result: Result, texts: tuple[str, ...]) -> str:
    first, *others = (WIDTHS.get(title, max(len(title), 8)) for title in titles(result)[:-1])
    padded = [texts[0].ljust(first)]
    padded += [text.rjust(width) for text, width in zip(texts[1:-1], others, strict=True)]
    return (" ".join(padded) + "  " + texts[-1]).rstrip()


def titles(result: Result) -> tuple[str, ...]:
    """Those of the columns: a ratio for each peer, and some peers' errors."""
    work = result.case.work
    ratios, errors = (f"× {name}" for name in work.peers), (f"{name}'s" for name in work.errors_of)
    return ("case", "time", "speed", "share", *ratios, "error", *errors, "goals")


def cells(result: Result) -> tuple[str, ...]:
    """In the order of the titles."""
    mine, work = result.ours, result.case.work
    if mine is None:
        return (result.case.name, "WRONG", *[""] * (len(titles(result)) - 2))
    errors = (result.measured.get(name) for name in work.errors_of)
    return (
        result.case.name,
        duration(mine.best),
        "" if result.case.tiny else speed(result, mine),
        "" if result.case.tiny or result.loaded else f"{result.share:.0%}",
        *(times(result.ratio(name)) for name in work.peers),
        f"{mine.error:.1e}",
        *(f"{one.error:.1e}" if one else "" for one in errors),
        ", ".join(goals(result)),
    )


def goals(result: Result) -> Iterator[str]:
    for goal in result.goals:
        met, possible = result.met(goal), result.possible(goal)
        hopeless = met is False and possible < goal.least and goal.otherwise is None
        sign = "?" if met is None else "✓" if met else "✗"
        yield f"{sign} {goal}" + (f" (at most {goal.amount(possible)})" if hopeless else "")


def notes(result: Result) -> Iterator[str]:
    """What a line has no column for, and who is missing for a reason worth saying."""
    yield from loading(result)
    for name, why in result.missing.items():
        if "another result" in why or name == OURS:
            yield f"{name} {why}"


def loading(result: Result) -> Iterator[str]:
    """A line where a model was loaded."""
    if (loaded := result.loaded) and (first := result.measured.get(FIRST_TOKEN)):
        yield (
            f"first token after {duration(first.best)}, {megabytes(loaded.resident)} resident "
            f"beside {megabytes(loaded.weights)} of weights"
        )


def summary(results: Results) -> str:
    """How many goals are met, and who did not take part at all."""
    found = [result.met(goal) for result in results.results for goal in result.goals]
    known = [met for met in found if met is not None]
    lines = []
    if results.interrupted:
        lines.append(f"interrupted after {len(results.results)} cases")
    if known:
        lines.append(f"{sum(known)} of {len(known)} goals are met")
    absent = {
        f"{name}: {why}"
        for result in results.results
        for name, why in result.missing.items()
        if "installed" in why or "could not" in why
    }
    return "\n".join([*lines, *sorted(absent)])


def markdown(results: Results) -> str:
    """Machine, limits, a row a case: a table for all cases that have the same columns."""
    blocks = [str(results.machine), f"Limits: {results.limits}."]
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results.results:
        groups.setdefault(titles(result), []).append(result)
    for head, group in groups.items():
        rows = [head, ("---", *["---:"] * (len(head) - 2), "---"), *map(cells, group)]
        blocks.append(
            "\n".join(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
            )
        )
        lines = [f"* {one.case.name}: {note}" for one in group for note in loading(one)]
        blocks += ["\n".join(lines)] if lines else []
    return "\n\n".join(blocks) + "\n"


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


def megabytes(nbytes: float) -> str:
    """
    >>> megabytes(1_254e6), megabytes(math.nan)
    ('1,254 MB', 'unknown MB')
    """
    return "unknown MB" if math.isnan(nbytes) else f"{nbytes / 1e6:,.0f} MB"


def digits(number: float) -> str:
    """About three of them."""
    places = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:,.{places}f}"


def speed(result: Result, one: Measurement) -> str:
    work = result.case.work
    return f"{digits(work.speed(one.best))} {work.counted_in}"


def times(ratio: float) -> str:
    return "" if math.isnan(ratio) else f"{digits(ratio)}×"
