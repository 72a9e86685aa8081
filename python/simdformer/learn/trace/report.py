"""What a check of a whole trace found."""

import re
from dataclasses import dataclass, field
from html import escape
from typing import Any, ClassVar

from simdformer.learn.check.report import GREEN, RED, WIDTH, YELLOW, Part, Report, Verdict, card

__all__ = ["TraceReport", "listed"]

LISTED = 8  # names in one list


@dataclass(frozen=True, repr=False)
class TraceReport(Verdict):
    """The answer of `simdformer.check_trace`; it is true when nothing is wrong.

    ok : whether everything that is known by name is right
    checked : the names of the trace that are right, in the order of computation
    first_wrong : the first that is not, or None
    report : a `Report` on it, or None
    after : the known values that it is computed from, which are right
    not_checked : names that come after it
    unknown : the learner's names that nobody knows, each with near ones
    missing : names of the trace that the learner does not have
    remarks : what else is worth knowing
    """

    checked: tuple[str, ...]
    first_wrong: str | None = None
    report: Report | None = None
    after: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    unknown: dict[Any, list[str]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    noun: ClassVar[str] = "activation"

    @property
    def ok(self) -> bool:
        return self.first_wrong is None

    @property
    def diagnosis(self) -> tuple[Any, ...]:
        """The mistakes that explain what is wrong: see `Report.diagnosis`."""
        return () if self.report is None else self.report.diagnosis

    @property
    def sentence(self) -> str:
        if self.first_wrong is None:
            count = len(self.checked)
            return f"{count} {self.noun}{'' if count == 1 else 's'}, all right"
        found = f"{self.first_wrong} is {'nearly right' if self.nearly else 'wrong'}"
        if not self.after:
            return found
        *most, last = self.after
        right = f"{', '.join(most)} and {last} are" if most else f"{last} is"
        return f"{found} while {right} right"

    @property
    def nearly(self) -> str:
        """The dtype in which the first that is not right would be right: see `Report.nearly`."""
        return "" if self.report is None else self.report.nearly

    def lines(self, width: int = WIDTH) -> list[str]:
        """The report, none of its lines longer than `width`."""
        sign = "✓" if self.ok else "≈" if self.nearly else "✗"
        before = [Part(f"{sign} {self.sentence}"), *self._parts(self._before())]
        found = [line for part in before for line in part.lines(width)]
        if self.report is not None:
            found += [f"  {line}" for line in self.report.lines(width - 2)]
        return found + [line for part in self._parts(self._rest()) for line in part.lines(width)]

    def _parts(self, texts: list[str]) -> list[Part]:
        return [Part(text, 2) for text in texts]

    def _before(self) -> list[str]:
        """What is said before the report."""
        return [f"✓ {line}" for line in grouped(self.checked)]

    def _rest(self) -> list[str]:
        """What is said after the report."""
        lines = []
        if self.not_checked:
            lines.append(f"· not looked at, for it comes after: {listed(self.not_checked)}")
        unknown = []
        names = {one_of_many(key): near for key, near in self.unknown.items()}
        for key, near in names.items():
            meant = f" (do you mean {' or '.join(near)}?)" if near else ""
            unknown.append(f"? unknown name {key!r}{meant}")
        lines += folded(unknown)
        if self.missing and self.checked:
            lines.append(self._missing())
        return lines + folded([f"note: {remark}" for remark in self.remarks])

    def _missing(self) -> str:
        return f"· {len(self.missing)} activations of the model are not in it"

    def _repr_html_(self) -> str:
        """For Jupyter: the same, and the report with its map of the error."""
        parts = [f"<div>{escape(line)}</div>" for line in self._before()]
        if self.report is not None:
            parts.append(self.report._repr_html_())
        parts += [f"<div>{escape(line)}</div>" for line in self._rest()]
        colour = GREEN if self.ok else YELLOW if self.nearly else RED
        return card(colour, self.sentence, parts)


def grouped(names: tuple[str, ...]) -> list[str]:
    """Names in a line a layer; layers in which the same is right share one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        at, short = name, ""
        if name.startswith("layers."):
            _, index, short = name.split(".", 2)
            at = f"layers.{index}"
        if short not in (group := groups.setdefault(at, [])):
            group.append(short)
    lines: list[tuple[list[str], str]] = []  # the layers, what is right in them
    for at, shorts in groups.items():
        what = " ".join(shorts)
        if at.startswith("layers.") and lines and lines[-1][0] and lines[-1][1] == what:
            lines[-1][0].append(at)
        else:
            lines.append(([at] if at.startswith("layers.") else [], what or at))
    shown = []
    for layers, what in lines:
        last = layers[-1].partition(".")[2] if layers else ""
        shown.append(
            f"{layers[0]}{f' to {last}' if len(layers) > 1 else ''}: {what}" if layers else what
        )
    return shown


EXPERT = re.compile(r"\bexperts\.\d+")
LAYER = re.compile(r"(?<![a-z])(layers|layer|blocks|h)([._]?)(\d+)")


def folded(lines: list[str]) -> list[str]:
    """Lines that differ in the number of a layer only, as one: the first, and which others."""
    alike: dict[str, list[tuple[str, int]]] = {}
    for line in lines:
        numbers = [int(found[3]) for found in LAYER.finditer(line)]
        same = LAYER.sub(r"\1\2#", line) if len(set(numbers)) == 1 else line
        alike.setdefault(same, []).append((line, numbers[0] if numbers else 0))
    shown = []
    for group in alike.values():
        first, *others = [number for _, number in group]
        if not others:
            where = ""
        elif others == list(range(first + 1, first + 1 + len(others))) and len(others) > 1:
            where = f", and so in layers {others[0]} to {others[-1]}"
        else:
            which = "layer" if len(others) == 1 else "layers"
            where = f", and so in {which} {', '.join(map(str, others))}"
        shown.append(group[0][0] + where)
    return shown


def one_of_many(key: Any) -> Any:
    """A name that each expert of a layer has, as one."""
    return EXPERT.sub("experts.*", key) if isinstance(key, str) else key


def listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
