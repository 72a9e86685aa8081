"""Results for people: a table for the terminal, line by line as it is measured, or Markdown."""

import math
from collections.abc import Iterator

from simdformer.bench.contestants import (
    EAGER,
    LLAMA_CPP,
    NUMPY,
    ONNXRUNTIME,
    OURS,
    REGISTERED,
    SDPA,
    TORCH,
    TRANSFORMERS,
)
from simdformer.bench.models import ModelRun
from simdformer.bench.plugins import PluginRun
from simdformer.bench.results import Measurement, Result, Results

__all__ = ["header", "line", "markdown", "notes", "summary"]

PEERS = (TORCH, ONNXRUNTIME, NUMPY)
MODEL_PEERS = (TRANSFORMERS, LLAMA_CPP)
PLUGIN_PEERS = (EAGER, SDPA, REGISTERED)
LEGEND = """\
time: the best sample of ours. share: of the limit that is nearer, arithmetic or reading.
torch, onnxruntime, numpy: how many times as fast as they ours is.
error: RMS against float64, relative; beside it that of PyTorch.
goals: so many times the speed of the better of torch and onnxruntime, for a model of transformers
and llama.cpp (peers), that share of the multiply-adds (FMA) or of the read bandwidth (read) of this
machine. At most: what a kernel would reach that runs at the limit of the machine. Loading a model:
at most so many times as long as reading its file, and so many bytes in memory as its weights have.
"""
ON_TORCH = (TORCH, TRANSFORMERS)  # whose error stands beside ours
Names = tuple[str, ...]
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


def cells(
    result: Result, peers: Names = PEERS, others: tuple[Names, ...] = (ON_TORCH,)
) -> tuple[str, ...]:
    """In the order of TITLES, with a column of ratios for each of `peers` and one of errors for
    each of `others`: of the first of these names that was measured.
    """
    mine = result.ours
    if mine is None:
        return (
            result.case.name,
            "skipped" if result.skipped else "WRONG",
            *[""] * (4 + len(peers) + len(others)),
        )
    return (
        result.case.name,
        duration(mine.best),
        "" if result.case.tiny else speed(result, mine),
        "" if result.case.tiny or result.loaded else f"{result.share:.0%}",
        *(times(result.ratio(name)) for name in peers),
        f"{mine.error:.1e}",
        *(first_error(result, names) for names in others),
        ", ".join(goals(result)),
    )


def first_error(result: Result, names: Names) -> str:
    return next(
        (f"{result.measured[name].error:.1e}" for name in names if name in result.measured), ""
    )


def goals(result: Result) -> Iterator[str]:
    for reached in result.goals:
        sign = ("✓" if reached.met else "✗") if reached.known else "?"
        at_most = (
            f" (at most {reached.goal.amount(reached.possible)})" if reached.out_of_reach else ""
        )
        yield f"{sign} {reached.goal}{at_most}"


def notes(result: Result) -> Iterator[str]:
    """Contestants that have no column, those that are missing for a reason worth saying, and what
    a line has no column for.
    """
    if result.skipped:
        yield result.skipped
    yield from loading(result)
    for name in result.measured:
        if name not in (OURS, *PEERS):
            unit = result.case.work.counted_in
            theirs, error = result.measured[name], first_error(result, (name,))
            found = f"{result.case.work.speed(theirs.best):,.1f} {unit}, error {error}"
            yield f"{times(result.ratio(name))} {name} ({found})"
    for name, why in result.missing.items():
        if "another result" in why or name == OURS:
            yield f"{name} {why}"


def loading(result: Result) -> Iterator[str]:
    """A line where a model was loaded."""
    if (loaded := result.loaded) and result.ours:
        ratio = result.ours.best / loaded.reading
        yield (
            f"{times(ratio)} as long as reading the file ({duration(loaded.reading)}), "
            f"first token after {duration(loaded.first_token)}, "
            f"{megabytes(loaded.resident)} resident beside {megabytes(loaded.weights)} of weights"
        )


def summary(results: Results) -> str:
    """How many goals are met, and who did not take part at all."""
    reached = [goal for result in results.results for goal in result.goals if goal.known]
    lines = []
    if results.interrupted:
        lines.append(f"interrupted after {len(results.results)} cases")
    if reached:
        lines.append(f"{sum(goal.met for goal in reached)} of {len(reached)} goals are met")
    absent = {
        f"{name}: {why}"
        for result in results.results
        for name, why in result.missing.items()
        if "installed" in why or "could not" in why
    }
    return "\n".join([*lines, *sorted(absent)])


def markdown(results: Results) -> str:
    """Tables for a README: machine, limits, a row a case; models beside peers of their own."""
    blocks = [str(results.machine), f"Limits: {results.limits}."]
    groups: dict[Names, list[Result]] = {PEERS: [], MODEL_PEERS: [], PLUGIN_PEERS: []}
    for result in results.results:
        groups[peers_of(result)].append(result)
    for peers, group in groups.items():
        each = (ON_TORCH,) if peers is PEERS else tuple((name,) for name in peers)
        errors = ("PyTorch's",) if peers is PEERS else tuple(f"{name}'s" for name in peers)
        blocks += [table(group, peers, each, errors)] if group else []
        lines = [f"* {one.case.name}: {x}" for one in group for x in loading(one)]
        blocks += ["\n".join(lines)] if lines else []
    return "\n\n".join(blocks) + "\n"


def peers_of(result: Result) -> Names:
    """Whom its table has columns for."""
    if isinstance(result.case.work, PluginRun):
        return PLUGIN_PEERS
    return MODEL_PEERS if isinstance(result.case.work, ModelRun) else PEERS


def table(
    group: list[Result], peers: Names, others: tuple[Names, ...], errors: tuple[str, ...]
) -> str:
    """`others` as in `cells`; `errors`: the titles of their columns."""
    titles = ("case", "ours", "speed", "share", *(f"× {name}" for name in peers))
    titles += ("error", *errors, "goals")
    rows = [titles, ("---", *["---:"] * (len(titles) - 2), "---")]
    rows += [cells(result, peers, others) for result in group]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    )


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
