"""What a check of a step of training found."""

from dataclasses import dataclass
from html import escape
from typing import Any

from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.report import GREEN, RED, WIDTH, Part, Verdict, card

__all__ = ["StepReport"]


@dataclass(frozen=True, repr=False)
class StepReport(Verdict):
    """The answer of `simdformer.check_step`; it is true when nothing is wrong.

    parts : the name and the report of each part that was looked at, in order: loss, gradients,
        clipping, AdamW
    remarks : what else is worth knowing
    loss : the right loss
    """

    parts: tuple[tuple[str, Any], ...]
    remarks: tuple[str, ...] = ()
    loss: float = float("nan")

    @property
    def ok(self) -> bool:
        return self.first_wrong is None

    @property
    def first_wrong(self) -> str | None:
        """The part that is wrong: those behind it are not looked at."""
        return next((name for name, report in self.parts if not report.ok), None)

    @property
    def report(self) -> Any:
        """That of the part that is wrong, or None."""
        return next((report for _, report in self.parts if not report.ok), None)

    @property
    def diagnosis(self) -> tuple[Mistake, ...]:
        """The mistakes that explain what is wrong: see `Report.diagnosis`."""
        return () if self.ok else tuple(self.report.diagnosis)

    @property
    def sentence(self) -> str:
        right = list(dict.fromkeys(name for name, report in self.parts if report.ok))
        *most, last = right or [""]
        listed = f"{', '.join(most)} and {last}" if most else last
        if self.ok:
            return f"the step is right: {listed}"
        verb = "are" if most or last == "gradients" else "is"
        verb_of_wrong = "differ" if self.first_wrong == "gradients" else "differs"
        return f"{self.first_wrong} {verb_of_wrong}" + (f", {listed} {verb} right" if right else "")

    def lines(self, width: int = WIDTH) -> list[str]:
        """The report, none of its lines longer than `width`."""
        found = Part(f"{'✓' if self.ok else '✗'} {self.sentence}").lines(width)
        if not self.ok:
            found += [f"  {line}" for line in self.report.lines(width - 2)]
        for remark in self.remarks:
            found += Part(f"note: {remark}", 2).lines(width)
        return found

    def _repr_html_(self) -> str:
        """For Jupyter: the same, and the report with its map of the error."""
        parts = [] if self.ok else [self.report._repr_html_()]
        parts += [f"<div>note: {escape(remark)}</div>" for remark in self.remarks]
        return card(GREEN if self.ok else RED, self.sentence, parts)
