"""What is right, what is wrong and why: one outcome a function, and the list of them."""

import html
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from simdformer.functional import rope_frequencies
from simdformer.learn.check import Report, check
from simdformer.learn.check.compare import numbers
from simdformer.learn.check.judge import Check
from simdformer.learn.check.operation import Call
from simdformer.learn.exercises.calls import UNWRITTEN, Attempt
from simdformer.learn.exercises.exercise import EXERCISES, Case, Exercise, Question, right
from simdformer.learn.program import Program

__all__ = ["Outcome", "Results", "collected", "folded", "judge"]

Status = Literal["right", "wrong", "raised", "unwritten", "missing"]
SIGNS = {"right": "✓", "wrong": "✗", "raised": "✗", "unwritten": "○", "missing": "○"}
DIAGNOSED = 3  # wrong results whose mistake is looked for before giving up
ONE_OF_MANY = 1000  # more than all explanations of one report
PRINTED_LINES = 5
COLUMNS = 80


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
    report: Report | None = None
    printed: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "right"

    def __repr__(self) -> str:
        return "\n".join(self.lines(len(self.name)))

    def lines(self, width: int) -> Iterator[str]:
        """For a terminal of 80 columns; names take `width` of them."""
        note, *more = self.told()
        head = f"{SIGNS[self.status]} {self.name:<{width}}  {note}".rstrip()
        if len(head) > COLUMNS:
            head, more = f"{SIGNS[self.status]} {self.name}", [f"    {note}", *more]
        yield head
        for line in more:
            yield from folded(line)

    def told(self) -> list[str]:
        """What there is to say besides the name, the note first; lines as long as they come."""
        note, *more = self.note.splitlines() or [""]
        lines = [note, *(f"    {line}" for line in more)]
        if self.case:
            lines.append(f"    called with {self.case}")
        if self.printed and not self.ok:
            printed = self.printed.splitlines()
            lines += ["    it printed:", *(f"    | {line}" for line in printed[:PRINTED_LINES])]
            if len(printed) > PRINTED_LINES:
                lines.append(f"    | ... and {len(printed) - PRINTED_LINES} more lines")
        return lines


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
        """For Jupyter: the same as a table."""
        left = "text-align:left;vertical-align:top"
        rows = []
        for outcome in self.outcomes:
            first, *more = map(html.escape, outcome.told())
            first = first if outcome.ok else f"<b>{first}</b>"
            rows.append(
                f"<tr><td style='{left};white-space:nowrap'>{SIGNS[outcome.status]} "
                f"<code>{html.escape(outcome.name)}</code></td>"
                f"<td style='{left}'>{'<br>'.join([first, *more])}</td></tr>"
            )
        return f"<p><b>{html.escape(self.summary)}</b></p><table>{''.join(rows)}</table>"


def folded(line: str, hanging: str = "  ") -> list[str]:
    """A line as several of at most 80 columns; a word that is longer stays whole."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.strip(),
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def explained(report: Report, which: str) -> str:
    """The diagnosis, the title of the first mistake in front; where there is none, what the report
    says instead."""
    lines: list[str] = []
    for number, group in enumerate(report.explanations):
        if number:
            lines.append("or, which gives the same array here:")
        for mistake in group:
            lines += [mistake.title, f"  why: {mistake.cause}"]
            lines += [f"  {line}" for line in mistake.difference]
            lines += [f"  fix: {mistake.fix}"]
    if not lines:
        _, *lines = repr(report).splitlines()
        needed = (
            "" if report.expected is None else f": shape {report.shape}, needs {report.expected}"
        )
        lines.insert(0, f"gives a wrong result{needed}")
    return "\n".join([which + lines[0], *map(str.rstrip, lines[1:])])


def judge(exercise: Exercise, attempts: dict[int, Attempt], printed: str = "") -> Outcome:
    """What the attempts at the cases of an exercise are worth."""
    cases = exercise.cases()
    wrong: list[Wrong] = []
    for number, tried in sorted(attempts.items()):
        case = cases[number]
        if tried.complaint and not wrong:
            return complained(exercise, case, tried.complaint, printed)
        if tried.complaint or len(wrong) == DIAGNOSED:
            break
        wrong += first_wrong(exercise.name, case, tried)
    if not wrong:
        note = f"{len(cases)} calls are right"
        return Outcome(exercise.name, "right", note, printed=printed)
    # The case that says most: with a diagnosis, and with as few others beside it as possible.
    told = min(wrong, key=lambda one: len(one.report.explanations) or ONE_OF_MANY)
    return Outcome(
        exercise.name,
        "wrong",
        explained(told.report, told.which),
        exercise.label(told.case),
        told.report,
        printed,
    )


@dataclass(frozen=True)
class Wrong:
    """A result that is wrong, and which of several it is."""

    case: Case
    report: Report
    which: str


def first_wrong(name: str, case: Case, tried: Attempt) -> list[Wrong]:
    """At most one; the last results first, for the others are made of them."""
    count, known = len(case.questions), dict[int, Any]()
    for number in reversed(range(count)):
        question = case.questions[number]
        report = asked(name, question, tried.results[number], known)
        if not report.ok:
            which = question.part if case.keys else f"result {number + 1} of {count}"
            if not report.explanations and case.whole is not None:
                whole = case.whole(tried.results)
                if whole.diagnosis:
                    return [Wrong(case, whole.report, f"{whole.first_wrong}: ")]
            return [Wrong(case, report, f"{which}: " if count > 1 else "")]
    return []


@dataclass(frozen=True)
class StepCall(Call):
    """A call of something that is no operation of the package."""

    def right(self) -> list[Any]:
        return self.part([numbers(result) for result in self.results])


def asked(name: str, question: Question, mine: Any, known: dict[int, Any]) -> Report:
    """What `simdformer.check` says; it is asked about programs, too, that the package has no
    operation for. name: of the exercise; known: what they gave, for the questions of one case."""
    op, args = question.op, question.args
    if not isinstance(op, Program):
        if op is rope_frequencies:  # which also gives a factor
            mine = (mine, 1.0)
        mine = {question.part: mine} if question.part else mine
        return check(op, mine, *args, **question.kwargs)
    if id(args) not in known:
        known[id(args)] = right(op, *args)
    variables, out = dict(zip(op.takes, args, strict=True)), known[id(args)]
    results, only = ([*out], question.number) if question.part else ([out], None)
    call = StepCall(name, variables, op, right, args, {}, results, False, only=only)
    return Check(call, [np.asarray(mine)], None).report()


def complained(exercise: Exercise, case: Case, complaint: str, printed: str) -> Outcome:
    if UNWRITTEN in complaint:
        return Outcome(exercise.name, "unwritten", complaint)
    return Outcome(exercise.name, "raised", complaint, exercise.label(case), printed=printed)


def collected(title: str, outcomes: Iterable[Outcome]) -> Results:
    """The list in the order of the exercises."""
    done = {outcome.name: outcome for outcome in outcomes}
    return Results(title, tuple(done[name] for name in EXERCISES if name in done))
