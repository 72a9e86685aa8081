"""What a check found: for the terminal, for Jupyter, and as attributes."""

import linecache
import re
import textwrap
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from io import BytesIO
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.compare import row_size, whole_size

__all__ = [
    "GREEN",
    "RED",
    "WIDTH",
    "CheckError",
    "Part",
    "Report",
    "Verdict",
    "Where",
    "card",
    "numbers_are",
    "together",
    "told_apart",
]

WIDTH = 80  # of a terminal
PIXELS = 96  # an inch
GREEN, YELLOW, RED = "#1b7f4b", "#8a6100", "#b3261e"  # white can be read on them
CODE = {"wrong": "#d04a3f", "right": "#2e8b57", "same": "inherit"}  # readable on white and on black


class CheckError(AssertionError):
    """A result that was checked is wrong; the message is the report."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the reader's own lines that led here, and the report."""
        shown = []
        for frame, number in walk_tb(self.__traceback__):
            if frame.f_globals.get("__name__", "").partition(".")[0] not in (
                "IPython",
                "simdformer",
            ):
                line = linecache.getline(frame.f_code.co_filename, number).strip()
                shown.append(f"line {number}: {line}")
        return [*shown, "", f"{type(self).__name__}: {self}"]


class Verdict:
    """What all reports have in common: true when nothing is wrong, printed by their `lines`."""

    if TYPE_CHECKING:

        @property
        def ok(self) -> bool: ...

        def lines(self, width: int = WIDTH) -> list[str]: ...

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def raise_if_wrong(self) -> Self:
        """The report itself, or a `CheckError` with it when something is wrong."""
        __tracebackhide__ = True  # pytest shows the line of the check, not this one
        if not self.ok:
            raise CheckError(repr(self))
        return self


@dataclass(frozen=True)
class Where:
    """Where an array is wrong.

    worst : index of the worst element, counted in `result` when there are several
    mine, right : the numbers there
    text : which heads, positions, channels are wrong, if it is not all of them: "heads 4-7 only"
    wrong, of : how many numbers are wrong, of how many
    result : which of several results, from 0
    """

    worst: tuple[int, ...]
    mine: float
    right: float
    text: str
    wrong: int
    of: int
    result: int = 0


@dataclass(frozen=True)
class Part:
    """A line of a report, before it is broken.

    indent : how far it is moved in
    kind : "title" of a mistake; "wrong", "right" or "same", a line of code; or "", text
    """

    text: str
    indent: int = 0
    kind: str = ""

    def lines(self, width: int) -> list[str]:
        label = re.match(r"(note|why|fix|where|see): |[-+➤✓✗≈?· ] ", self.text)
        return textwrap.wrap(
            self.text,
            width,
            initial_indent=" " * self.indent,
            subsequent_indent=" " * (self.indent + (label.end() if label else 0)),
            break_on_hyphens=False,
        ) or [""]

    def html(self) -> str:
        margin, text = f"margin-left:{self.indent / 2 - 1:g}em", escape(self.text)
        if self.kind in CODE:
            style = f"color:{CODE[self.kind]};background:none;white-space:pre-wrap"
            text = f'<code style="{style}">{text}</code>'
        bold = ";font-weight:600" if self.kind == "title" else ""
        return f'<div style="{margin}{bold}">{text}</div>'


def told(mistake: Mistake) -> Iterator[Part]:
    """A mistake: what it is, why, what to do, and the line."""
    yield Part(f"➤ {mistake.title}", 2, "title")
    yield Part(f"why: {mistake.cause}", 4)
    for line in mistake.difference:
        yield Part(line, 4, {"-": "wrong", "+": "right"}.get(line[0], "same"))
    yield Part(f"fix: {mistake.fix}", 4)
    see = f"notebook {mistake.step}, " if mistake.step else ""
    yield Part(f"see: {see}{mistake.name}", 4)


@dataclass(frozen=True, repr=False)
class Report(Verdict):
    """The answer of `simdformer.check`; it is true when the result is right.

    ok : whether it is
    name : of the operation
    max_abs, max_rel : largest error, as it is and relative to the size (root mean square) of its
        row; NaN when the shapes differ
    where : a `Where`, or None when all is right or the shapes differ
    explanations : everything that explains the array, each a tuple of mistakes made together
    diagnosis : the mistakes in these; empty when the array is right, or when nothing known gives it
    remarks : what else is worth knowing
    observations : when nothing known gives the array, what can be said about it
    nearly, meant, advice : where it is nearly right, the dtype in which it would be right,
        "bfloat16", the coarsest that takes part, and how to say that it is computed in the first
    shape, dtype, axes : of the result that is off the most, its last axes by name; expected : the
        shape it should have
    mine, right : that result and the right one, float64; None when the shapes differ
    parts : of gradients of several arguments, the report of each by its name
    """

    ok: bool
    name: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    where: Where | None = None
    explanations: tuple[tuple[Mistake, ...], ...] = ()
    remarks: tuple[str, ...] = ()
    observations: tuple[str, ...] = ()
    nearly: str = ""
    meant: str = ""
    advice: str = ""
    expected: tuple[int, ...] | None = None
    axes: tuple[str, ...] = ()
    mine: Any = field(default=None, compare=False)
    right: Any = field(default=None, compare=False)
    parts: tuple[tuple[str, "Report"], ...] = ()

    @property
    def diagnosis(self) -> tuple[Mistake, ...]:
        """Every mistake of the explanations, once."""
        return tuple(dict.fromkeys(mistake for group in self.explanations for mistake in group))

    def lines(self, width: int = WIDTH) -> list[str]:
        """The report, none of its lines longer than `width`."""
        return [line for part in self._parts() for line in part.lines(width)]

    def _parts(self) -> list["Part"]:
        notes = [Part(f"note: {remark}", 2) for remark in self.remarks]
        return [Part(self._head()), *self._middle(), *notes]

    @property
    def answer(self) -> str:
        """In a word or two."""
        return "right" if self.ok else "nearly right" if self.nearly else "wrong"

    def _head(self) -> str:
        if self.parts:
            mark = "✓" if self.ok else "≈" if self.nearly else "✗"
            return f"{mark} {self.name}: " + ", ".join(f"{n} {r.answer}" for n, r in self.parts)
        if self.ok:
            off = f"to {self.max_rel:.1e} of a row" if self.max_rel else "exactly"
            return f"✓ {self.name} {self.shape} {self.dtype}: right {off}"
        if self.expected is not None:
            found = f"shape {self.shape}" if self.dtype else "None"
            return f"✗ {self.name}: {found}, needs {self.expected}"
        if self.nearly:
            return (
                f"≈ {self.name} {self.shape} {self.dtype}: nearly right: "
                f"{100 * self._share_off():.2g} % off, more than {self.meant} explains; "
                f"right only if this is computed in {self.nearly}"
            )
        return f"✗ {self.name} {self.shape} {self.dtype}: wrong"

    def _share_off(self) -> float:
        """The size of the error over the size of the row, or of the whole array if that is more, in
        the row that is off the most."""
        error, size = row_size(self.mine - self.right), row_size(self.right)
        size = np.maximum(size, whole_size(size))
        return float((error / np.where(size == 0, np.inf, size)).max())

    def _middle(self) -> Iterator["Part"]:
        if not self.parts:
            yield from self._seen()
            yield from self._reasons()
            return
        wrong = [report for _, report in self.parts if not report.ok]
        shared = bool(self.explanations) and all(
            set(self.explanations) <= set(report.explanations) for report in wrong
        )
        for report, following in zip(wrong, [*wrong[1:], None], strict=False):
            yield Part(report._head()[2:], 2, "title")
            yield from report._seen()
            same = following is not None and following.explanations == report.explanations != ()
            if not (shared or same):  # the same reasons are said once
                yield from report._reasons()
        if shared:
            yield from self._reasons()

    def _seen(self) -> Iterator["Part"]:
        """How far off, and where."""
        if self.where is not None:
            place = ", ".join(map(str, self.where.worst))
            which = f" of result {self.where.result}" if self.where.result else ""
            alone = self.where.of == 1
            worst = which if alone else f", the worst at [{place}]{which}"
            two = ", needs ".join(told_apart(self.where.mine, self.where.right))
            yield Part(f"{numbers_are(self.where.wrong, self.where.of)} off{worst}: {two}", 2)
            error, size = (
                ("error", "its size") if alone else ("largest error", "the size of its row")
            )
            yield Part(f"{error} {number(self.max_abs)}, {number(self.max_rel)} times {size}", 2)
            if self.where.text:
                yield Part(f"where: {self.where.text}", 2)

    def _reasons(self) -> Iterator["Part"]:
        """The mistakes, or what can be said of the numbers."""
        if len(self.explanations) > 1:
            yield Part("several mistakes give this array; for this call they are the same:", 2)
        for i, group in enumerate(self.explanations):
            if len(group) > 1:
                yield Part("two mistakes at once:" if i == 0 else "or these two:", 2)
            for mistake in group:
                yield from told(mistake)
        if self.nearly and not self.explanations:
            yield Part(f"if it is: {self.advice}", 2)
        elif not (self.ok or self.explanations or self.observations or self.expected):
            yield Part("no known mistake gives this array; look at the steps to it one by one", 2)
        yield from (Part(text, 2) for text in self.observations)

    def _repr_html_(self) -> str:
        """For Jupyter: the same, and a picture of where the error is, if there is matplotlib."""
        head, *rest = self._parts()
        parts = [part.html() for part in rest]
        colour = YELLOW if self.nearly else GREEN if self.ok else RED
        return card(colour, head.text, [*parts, self._picture()], ";line-height:1.5")

    def _picture(self) -> str:
        """The error map as an <img>; nothing where there is none to show."""
        if self.ok or self.right is None or not np.size(self.right) or np.ndim(self.right) == 0:
            return ""
        try:
            from matplotlib.figure import Figure

            from simdformer.learn.plots import error_map
        except ImportError:
            return ""
        figure, file = Figure(figsize=(6.4, 3.0)), BytesIO()  # of its own: no window, no state
        error_map(self.mine, self.right, axes=self.axes, ax=figure.subplots())
        figure.savefig(file, format="png", dpi=2 * PIXELS, bbox_inches="tight")
        data = b64encode(file.getvalue()).decode("ascii")
        style = "max-width:100%;zoom:0.5"  # as many pixels as a fine screen has
        return f'<img alt="where the error is" style="{style}" src="data:image/png;base64,{data}">'


def together(
    name: str, parts: Mapping[str, Report], left: list[str], called: Mapping[str, str]
) -> Report:
    """One report of the gradients of several arguments, each by its name, or what it is called in
    the report; `left` were not given.

    What explains all that is wrong is named alone: one mistake is likelier than several.
    """
    parts = {one: replace(report, name=called.get(one, one)) for one, report in parts.items()}
    wrong = [report for report in parts.values() if not report.ok]
    worst = max(wrong or parts.values(), key=lambda one: (one.expected is not None, one.max_rel))
    every = dict.fromkeys(group for report in wrong for group in report.explanations)
    shared = [group for group in every if all(group in one.explanations for one in wrong)]
    remarks = dict.fromkeys(remark for report in parts.values() for remark in report.remarks)
    if left:
        what = "gradients" if name.startswith("backward.") else "results"
        remarks[f"not among your {what}, so not checked: {', '.join(left)}"] = None
    return replace(
        worst,
        name=name,
        ok=not wrong,
        explanations=tuple(shared or every),
        remarks=tuple(remarks),
        nearly=worst.nearly if all(report.nearly for report in wrong) else "",
        parts=tuple(parts.items()),
    )


def card(colour: str, head: str, parts: list[str], style: str = "") -> str:
    """HTML under a headline, with a line at its side: GREEN when right, RED when wrong."""
    badge = (
        "display:inline-block;padding:1px 6px;color:#ffffff;font-weight:600"  # on dark pages too
    )
    return "".join([
        f'<div style="border-left:4px solid {colour};padding:2px 12px{style}">',
        f'<div style="{badge};background:{colour}">{escape(head)}</div>',
        *parts,
        "</div>",
    ])  # fmt: skip


def numbers_are(some: int, of: int) -> str:
    """The beginning of a sentence about some numbers of an array."""
    if of == 1:
        return "the number is"
    return f"{some} of {of} numbers {'is' if some == 1 else 'are'}"


def told_apart(*numbers: float, least: int = 4) -> list[str]:
    """Numbers with at least so many digits, or as many as it takes to tell them apart."""
    for digits in range(least, 18):
        said = [number(x, digits) for x in numbers]
        if len(set(said)) == len(said):
            break
    return said


def number(x: float, digits: int = 4) -> str:
    """Four digits, and whole words for what is no number."""
    if np.isnan(x):
        return "NaN"
    return f"{x:.{digits}g}"
