'''Mistakes: steps of a program done otherwise, with words for them.

A mistake says in words what went wrong and why, and in lines of code what is done; what to do, and
where to read about it, is said once for all mistakes of a step:

    mistakes(
        """
        attention.scale (01 §2) > Divide the scores by sqrt(head_dim), once.

        no_scale: the scores are not scaled
            query @ keyᵀ grows with head_dim; the softmax is too sharp.
            | pass
        scale_twice (rare): the scores are scaled twice
            The query was scaled already, in the line before.
            > Divide the query, or the scores.
            | ...; scores = scores * scale
        mask_after_softmax (01 §3): the mask comes after the softmax
            The softmax has already given shares to the hidden keys.
            hide | pass
            weigh | weights = np.where(visible, weights, 0); ...
        """
    )
    no_scale = CATALOGUE["attention.no_scale"]
    Run(np.float32, no_scale.replaces)(attention, query=q, key=k, value=v).out

The lines behind | take the place of the step's own, for which ... stands (see lines.py); those of
another step have its name in front, and that of its program where it is another one. A line with
the full name of a step, with the notebook and section that explain it and with what to do, is the
head of the mistakes below it. Where several programs share a step it has several names, and where
each mistake says whose lines it changes, that of a program. In parentheses behind a mistake's name:
that it is rarely made; that another one alone is named where both give an array (unless no_eps,
unless linear.no_bias); the section, where it is another one; that it is no mistake but another
convention, with which the array is right; that it is a habit, another way to write what is right,
which shows only beside a mistake. `as above` is the cause of the mistake before.

What code finds out has its words in the same form, without lines, and {} where `about` says what it
has found; its head is any name. (-) stands for no section:

    FOUND = words(
        """
        array (-)

        dropout: dropout is left on, with p = {p:.2g}
            The others are 1/(1-p) times the right ones.
            > Switch dropout off: model.eval(), or dropout_p=0.
        """
    )
    FOUND["array.dropout"].about(p=0.1)
'''

import re
import textwrap
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from simdformer.learn.lines import Lines, difference, named
from simdformer.learn.program import STEPS, Step

__all__ = ["CATALOGUE", "Mistake", "Variation", "mistakes", "words", "wrong_steps"]

MOST_LINES = 12  # of a difference


@dataclass(frozen=True)
class Mistake:
    """What went wrong, in words.

    name : such as "attention.no_scale"
    title : what is wrong with the array, in half a sentence
    cause : how one comes to it
    fix : what to write instead
    step : the notebook and section that the step belongs to, such as "01 §2"
    replaces : the wrong steps, by full name; none where it is none of the catalogue
    convention : whether it is none, but another way to be right
    """

    name: str
    title: str
    cause: str
    fix: str
    step: str
    replaces: Mapping[str, Step] = field(default_factory=dict, compare=False, repr=False)
    convention: bool = False

    def about(self, **found: Any) -> "Mistake":
        """With what was found in its words."""
        said = {of: getattr(self, of).format(**found) for of in ("title", "cause", "fix")}
        return replace(self, **said)

    @property
    def difference(self) -> list[str]:
        """The lines of its steps, as they are behind - and as they should be behind +; each once,
        and of many the first."""
        lines: list[str] = []
        for name, wrong in self.replaces.items():
            if not isinstance(wrong, Lines):  # a number that was fitted
                continue
            found = difference(wrong.read, STEPS[name].read)
            lines += [line for line in found if line not in lines]
        return lines if len(lines) <= MOST_LINES else [*lines[:MOST_LINES], "  ..."]


@dataclass(frozen=True)
class Variation:
    """A mistake that can be made, by doing the steps that it replaces otherwise.

    rare : seldom made, so that in looking for two mistakes at once the others are tried first
    unless : the name of another mistake, which is named alone where both give the array
    habit : no mistake but another way to write what is right; beside a mistake it may give another
        array
    slip : "usual", "many" or "factor" for one that is in no catalogue (see slips.py)
    """

    mistake: Mistake
    rare: bool = False
    unless: str = ""
    habit: bool = False
    slip: str = ""

    @property
    def replaces(self) -> Mapping[str, Step]:
        return self.mistake.replaces

    @property
    def steps(self) -> Set[str]:
        return self.replaces.keys()

    def combines_with(self, other: "Variation") -> bool:
        return not self.replaces.keys() & other.replaces.keys()


class Catalogue:
    """All mistakes that are known, in the order in which they were written down."""

    def __init__(self) -> None:
        self.variations: dict[str, Variation] = {}

    def __iter__(self) -> Iterator[Variation]:
        return iter(self.variations.values())

    def __len__(self) -> int:
        return len(self.variations)

    def __getitem__(self, name: str) -> Variation:
        return self.variations[name]

    def add(self, variation: Variation) -> None:
        if variation.mistake.name in self.variations:
            raise ValueError(f"a mistake is called {variation.mistake.name} already")
        self.variations[variation.mistake.name] = variation

    def among(self, visited: Set[str]) -> list[Variation]:
        """The mistakes that can be made in a run that visited these steps."""
        return [known for known in self if known.replaces.keys() <= visited]


CATALOGUE = Catalogue()


def mistakes(text: str, *, calls: tuple[Any, ...] = ()) -> None:
    """Puts mistakes into the catalogue.

    text : heads and mistakes, as above
    calls : the functions and programs that their lines call, beside those that the steps call
    """
    for variation in variations(text, calls):
        CATALOGUE.add(variation)


def words(text: str) -> dict[str, Mistake]:
    """Mistakes that no lines make, by their full names."""
    return {one.mistake.name: one.mistake for one in variations(text)}


def variations(text: str, calls: tuple[Any, ...] = ()) -> Iterator[Variation]:
    """The mistakes of a text, as `mistakes` takes it."""
    steps, fix, cause = [], "", ""
    text = textwrap.dedent(text) + "\n"
    if lost := PARAGRAPH.sub("", text).strip():
        raise ValueError(f"neither a mistake nor the head of some: {lost}")
    for found in PARAGRAPH.finditer(text):
        words, code = _parted(found["lines"])
        before, _, own = " ".join(words).partition("> ")
        if found["steps"]:
            steps = re.findall(r"([\w.]+) \((.+?)\)", found["steps"])
            fix = " ".join([found["fix"] or "", *words]).strip()
            continue
        title = found["title"] or words[0]
        before = before.removeprefix("" if found["title"] else title).strip()
        cause = cause if before == "as above" else before
        notes = [note for note in (found["notes"] or "").split(", ") if note]
        for step, usual in steps:
            program, _, its = step.partition(".")
            full = {full_name(one or its, program): lines for one, lines in code.items()}
            other = [note[7:] for note in notes if note.startswith("unless ")]
            see = next((note for note in notes if note == "-" or note[:1].isdigit()), usual)
            name = f"{program}.{found['name']}"
            replaces, convention = wrong_steps(full, calls), "convention" in notes
            yield Variation(
                Mistake(name, title, cause, own or fix, see.strip("-"), replaces, convention),
                "rare" in notes,
                next((full_name(one, program) for one in other), ""),
                "habit" in notes,
            )


def wrong_steps(lines: Mapping[str, str], calls: tuple[Any, ...] = ()) -> dict[str, Lines]:
    """Wrong steps by the full names of the right ones, of lines by these names."""
    return {
        full: Lines(text, {**STEPS[full].names, **named(calls)}, right=STEPS[full]).checked()
        for full, text in lines.items()
    }


def full_name(name: str, program: str) -> str:
    """That of a step or a mistake, which may leave out its program."""
    return name if "." in name else f"{program}.{name}"


def _parted(lines: str) -> tuple[list[str], dict[str, str]]:
    """Words, a line each; and lines of code by the names of their steps, "" the step's own."""
    words: list[str] = []
    code: dict[str, str] = {}
    for line in lines.splitlines():
        found = CODE.match(line)
        if found is None:
            words.append(line.strip())
        else:
            step = found["step"] or ""
            code[step] = code.get(step, "") + found["line"] + "\n"
    return words, code


PARAGRAPH = re.compile(
    r"^(?:(?P<name>[\w.-]+)(?: \((?P<notes>.*?)\))?:(?: (?P<title>.+))?"
    r"|(?P<steps>[\w.]+ \(.+?\)(?:, [\w.]+ \(.+?\))*)(?: > (?P<fix>.+))?)\n"
    r"(?P<lines>(?:[ ]+.+\n)*)",
    re.M,
)
CODE = re.compile(r"^ +(?:(?P<step>[\w.]+) )?\| (?P<line>.*)$")
