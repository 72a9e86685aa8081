'''Mistakes: steps of a program done otherwise, with words for them.

A mistake is a step done otherwise: something is assigned before it, after it, or instead of it. It
says in words what went wrong and why; what to do, and where to read about it, is said once for all
mistakes of a step:

    Mistakes("attention.scale", see="01 §2", fix="Divide the scores by sqrt(head_dim), once.")(
        """
        no_scale: the scores are not scaled
            query @ keyᵀ grows with head_dim; the softmax is too sharp.
        scale_twice: the scores are scaled twice
            The query was scaled already, in the line before.
        """,
        no_scale=skip,
        scale_twice=then(scores=lambda s: s.scores * s.scale),
    )

    no_scale = CATALOGUE["attention.no_scale"]
    Run(np.float32, no_scale.replaces)(attention, query=q, key=k, value=v).out

What needs more lines is a function like the steps. What shows in several steps has a wrong one for
each of them: mask_after_softmax={"hide": skip, "weigh": first(weights=lambda s: ...)}.
'''

import re
import textwrap
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from simdformer.learn.program import STEPS, Step, Value
from simdformer.learn.source import called, difference, expression, statements

__all__ = [
    "CATALOGUE",
    "Change",
    "Mistake",
    "Mistakes",
    "Variation",
    "first",
    "instead",
    "reads",
    "skip",
    "then",
]

Wrong = Step | Mapping[str, Step]

MOST_LINES = 12  # of a difference


@dataclass(frozen=True)
class Change:
    """A step done otherwise: what is assigned before it, whether it is done, what is assigned after
    it. All values of one `first` or `then` are computed before any of them is assigned."""

    first: Mapping[str, Value]
    done: bool
    then: Mapping[str, Value]
    step: Step | None = None  # the right one; a `Mistakes` puts it there

    def __call__(self, s: Any) -> None:
        vars(s).update({name: value(s) for name, value in self.first.items()})
        if self.done:
            assert self.step is not None
            self.step(s)
        vars(s).update({name: value(s) for name, value in self.then.items()})

    @property
    def lines(self) -> list[str]:
        """What it reads."""
        before, after = (
            [f"{name} = {expression(value)}" for name, value in values.items()]
            for values in (self.first, self.then)
        )
        return [*before, *(reads(self.step) if self.done else []), *after]


skip = Change({}, False, {})  # the step is left out


def instead(**values: Value) -> Change:
    """These variables get other values, and nothing else is done."""
    return Change({}, False, values)


def first(**values: Value) -> Change:
    """These variables are changed before the step."""
    return Change(values, True, {})


def then(**values: Value) -> Change:
    """These variables are changed after the step."""
    return Change({}, True, values)


def reads(step: Any) -> list[str]:
    """The lines of a step, right or wrong; see `source`."""
    return step.lines if hasattr(step, "lines") else statements(step)


@dataclass(frozen=True)
class Mistake:
    """What went wrong, in words.

    name : such as "attention.no_scale"
    title : what is wrong with the array, in half a sentence
    cause : how one comes to it
    fix : what to write instead
    step : the notebook and section that the step belongs to, such as "01 §2"
    replaces : the wrong steps, by full name; none where it is none of the catalogue
    """

    name: str
    title: str
    cause: str
    fix: str
    step: str
    replaces: Mapping[str, Step] = field(default_factory=dict, compare=False, repr=False)

    @property
    def difference(self) -> list[str]:
        """The lines of its steps, as they are behind - and as they should be behind +; of many the
        first."""
        lines = []
        for name, wrong in self.replaces.items():
            right = reads(STEPS[name])
            lines += difference(called(reads(wrong), STEPS[name].__name__, right), right)
        return lines if len(lines) <= MOST_LINES else [*lines[:MOST_LINES], "  ..."]


@dataclass(frozen=True)
class Variation:
    """A mistake that can be made, by doing the steps that it replaces otherwise.

    rare : seldom made, so that in looking for two mistakes at once the others are tried first
    """

    mistake: Mistake
    rare: bool = False

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


class Mistakes:
    """What goes wrong in a step; a call puts some mistakes into the catalogue.

    step : its full name, such as "attention.scale"; several where programs share it, and each gets
        the mistakes; or the name of the program, where each mistake says which steps it replaces
    fix, see : as `Mistake` has them, where a mistake does not bring its own; `see` may be one for
        each step
    """

    def __init__(self, *step: str, fix: str = "", see: str | tuple[str, ...] = "") -> None:
        self.step, self.fix = step, fix
        self.see = (see,) * len(step) if isinstance(see, str) else see

    def __call__(self, words: str, **wrong: Wrong) -> None:
        """`words` has a paragraph for each mistake; `wrong`, under the same names, what is done: a
        wrong step, or several by their names.

            name (rare, 01 §4): title
                cause, or `as above`
                > fix

        The parenthesis, with what is in it, and the fix may be missing. A long title stands in a
        line of its own below the name.
        """
        cause = ""
        for match in PARAGRAPH.finditer(textwrap.dedent(words)):
            name, notes = (
                match["name"],
                [note for note in (match["notes"] or "").split(", ") if note],
            )
            lines = [line.strip() for line in match["lines"].splitlines()]
            title = match["title"] or lines.pop(0)
            before, _, fix = " ".join(lines).partition("> ")
            cause = cause if before.strip() == "as above" else before.strip()
            see = next((note for note in notes if note != "rare"), "")
            self.add(name, wrong.pop(name), title, cause, fix, see=see, rare="rare" in notes)
        if wrong:
            raise ValueError(f"no words for {', '.join(wrong)}")

    def add(
        self,
        name: str,
        wrong: Wrong,
        title: str,
        cause: str,
        fix: str = "",
        *,
        see: str = "",
        rare: bool = False,
    ) -> None:
        """One mistake, where many are alike and their words are made."""
        for full, usual in zip(self.step, self.see, strict=True):
            program, _, own = full.partition(".")
            steps = wrong if isinstance(wrong, Mapping) else {own: wrong}
            replaces = {f"{program}.{step}": done for step, done in steps.items()}
            for step, done in replaces.items():
                if isinstance(done, Change):
                    replaces[step] = replace(done, step=STEPS[step])
            words = title, cause, fix or self.fix, see or usual
            CATALOGUE.add(Variation(Mistake(f"{program}.{name}", *words, replaces), rare))


PARAGRAPH = re.compile(
    r"^(?P<name>\w+)(?: \((?P<notes>.+?)\))?:(?: (?P<title>.+))?\n(?P<lines>(?:[ ]+.+\n)+)", re.M
)
