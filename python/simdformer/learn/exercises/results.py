"""What is right, what is wrong and why: one outcome a function, and the list of them."""

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from simdformer.learn.check import check
from simdformer.learn.exercises.calls import UNWRITTEN, Attempt
from simdformer.learn.exercises.cases import EXERCISES, Case, Exercise

__all__ = ["Outcome", "Results", "judge"]

Status = Literal["right", "wrong", "raised", "unwritten", "missing"]
SIGNS = {"right": "✓", "wrong": "✗", "raised": "✗", "unwritten": "○", "missing": "○"}
DIAGNOSED = 3  # wrong results whose mistake is looked for before giving up
PRINTED_LINES = 5


@dataclass(frozen=True)
class Outcome:
    """How one function did.

    name
    status : "right", "wrong", "raised" (an error, or no usable result), "unwritten", or "missing"
        (there is no function of that name)
    note : in a line; for errors the line of the file on a second one
    case : the call that went wrong, "" if none did
    report : what `simdformer.check` says about it; None unless the result is wrong
    printed : what the function printed
    """

    name: str
    status: Status
    note: str
    case: str = ""
    report: Any = None
    printed: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "right"

    def __repr__(self) -> str:
        return "\n".join(self.lines(len(self.name)))

    def lines(self, width: int) -> Iterator[str]:
        note, *more = self.note.splitlines() or [""]
        yield f"{SIGNS[self.status]} {self.name:<{width}}  {note}".rstrip()
        yield from (f"    {line}" for line in more)
        if self.case:
            yield f"    called with {self.case}"
        if self.report is not None:
            yield from (f"    {line}".rstrip() for line in explained(self.report))
        if self.printed and not self.ok:
            printed = self.printed.splitlines()
            yield "    it printed:"
            yield from (f"    | {line}" for line in printed[:PRINTED_LINES])
            if len(printed) > PRINTED_LINES:
                yield f"    | ... and {len(printed) - PRINTED_LINES} more lines"


@dataclass(frozen=True)
class Results:
    """All outcomes, in the order of the exercises; true when everything is right."""

    title: str
    outcomes: tuple[Outcome, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return all(outcome.ok for outcome in self.outcomes)

    def __bool__(self) -> bool:
        return self.ok

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, name: str) -> Outcome:
        found = [outcome for outcome in self.outcomes if outcome.name == name]
        if not found:
            raise KeyError(f"no exercise is called {name!r}: {', '.join(EXERCISES)}")
        return found[0]

    @property
    def summary(self) -> str:
        counts = {
            "right": sum(outcome.ok for outcome in self.outcomes),
            "wrong": sum(outcome.status in ("wrong", "raised") for outcome in self.outcomes),
            UNWRITTEN: sum(outcome.status in ("unwritten", "missing") for outcome in self.outcomes),
        }
        return f"{self.title}: {', '.join(f'{n} {what}' for what, n in counts.items() if n)}"

    @property
    def width(self) -> int:
        return max((len(outcome.name) for outcome in self.outcomes), default=0)

    def __repr__(self) -> str:
        lines = [self.summary, ""]
        for outcome in self.outcomes:
            lines += outcome.lines(self.width)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left;vertical-align:top'>{SIGNS[outcome.status]} "
            f"<code>{html.escape(outcome.name)}</code></td><td style='text-align:left'>"
            f"{'<br>'.join(map(html.escape, noted(outcome)))}</td></tr>"
            for outcome in self.outcomes
        )
        return f"<p><b>{html.escape(self.summary)}</b></p><table>{rows}</table>"


def noted(outcome: Outcome) -> list[str]:
    first, *more = outcome.lines(0)
    return [first.removeprefix(f"{SIGNS[outcome.status]} {outcome.name}").strip(), *more]


def explained(report: Any) -> list[str]:
    """The diagnosis; where there is none, what the report says instead."""
    if not report.diagnosis:
        return repr(report).splitlines()
    lines = []
    for number, mistake in enumerate(report.diagnosis):
        if number:
            lines.append("or, which gives the same here:")
        lines += [mistake.title, mistake.cause, mistake.fix]
    return lines


def judge(exercise: Exercise, attempts: dict[int, Attempt], printed: str = "") -> Outcome:
    """What the attempts at the cases of an exercise are worth."""
    cases = exercise.cases()
    wrong: list[tuple[Case, Any]] = []
    for number, tried in sorted(attempts.items()):
        case = cases[number]
        if tried.complaint and not wrong:
            return complained(exercise, case, tried.complaint, printed)
        if tried.complaint or len(wrong) == DIAGNOSED:
            break
        for report in reports(case, tried):
            if not report.ok:
                wrong.append((case, report))
                break
    if not wrong:
        note = f"{len(cases)} calls are right"
        return Outcome(exercise.name, "right", note, printed=printed)
    case, report = next((pair for pair in wrong if pair[1].diagnosis), wrong[0])
    return Outcome(
        exercise.name, "wrong", "gives a wrong result", exercise.label(case), report, printed
    )


def reports(case: Case, tried: Attempt) -> Iterator[Any]:
    for question, mine in zip(case.questions, tried.results, strict=True):
        yield check(question.op, mine, *question.args, **question.kwargs)


def complained(exercise: Exercise, case: Case, complaint: str, printed: str) -> Outcome:
    if UNWRITTEN in complaint:
        return Outcome(exercise.name, "unwritten", complaint)
    return Outcome(exercise.name, "raised", complaint, exercise.label(case), printed=printed)


def collected(title: str, outcomes: Iterable[Outcome]) -> Results:
    """The list in the order of the exercises."""
    done = {outcome.name: outcome for outcome in outcomes}
    return Results(title, tuple(done[name] for name in EXERCISES if name in done))
