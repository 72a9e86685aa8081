"""What an exercise is: a function of the starter file, what it is called with, and the right call
beside it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simdformer.learn.exercises import starter
from simdformer.learn.program import Program, Run
from simdformer.types import Array

__all__ = ["EXERCISES", "Case", "Draw", "Exercise", "Question", "exercise", "right", "same"]


@dataclass(frozen=True)
class Question:
    """One array that should come back: what `simdformer.check` is asked about it.

    op : an operation of the package, or the program of what it has none for
    part, number : which it is of several results
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    part: str = ""
    number: int = 0


@dataclass(frozen=True)
class Case:
    """One call: the learner's arguments, a question for each array that comes back, and what is
    special.

    keys : for each result the keys of the dict that it is, none where it is an array; (): all are
    whole : what is asked about all of them together, where no question finds the mistake
    """

    arguments: tuple[Any, ...]
    questions: tuple[Question, ...]
    special: str = ""
    keys: tuple[tuple[str, ...], ...] = ()
    whole: Callable[[tuple[Array, ...]], Any] | None = None


@dataclass(frozen=True)
class Exercise:
    """A function of the starter file.

    name, chapter
    summary : the first line of its docstring
    cases : makes the calls, the same ones every time
    """

    name: str
    chapter: str
    make: Callable[["Draw"], Iterator[Case]]

    @property
    def summary(self) -> str:
        return (inspect.getdoc(getattr(starter, self.name)) or "").splitlines()[0]

    @property
    def signature(self) -> str:
        return f"{self.name}{inspect.signature(getattr(starter, self.name))}"

    @property
    def results(self) -> tuple[tuple[str, ...], ...]:
        """For each result the keys of the dict that it is, none where it is an array."""
        case = self.cases()[0]
        return case.keys or ((),) * len(case.questions)

    def cases(self) -> list[Case]:
        return list(self.make(Draw(np.random.default_rng([*self.name.encode()]))))

    def label(self, case: Case) -> str:
        """The call in a line: query (3, 4, 5), key (3, 6, 5), scale=0.0"""
        parts = []
        for name, value in zip(
            inspect.signature(getattr(starter, self.name)).parameters, case.arguments, strict=False
        ):
            if isinstance(value, np.ndarray):
                parts.append(f"{name} {value.shape}")
            elif isinstance(value, list) and all(isinstance(x, np.ndarray) for x in value):
                parts.append(f"{name} of {', '.join(str(x.shape) for x in value)}")
            elif callable(value):
                parts.append(name)
            elif value is not None and not isinstance(value, dict):
                parts.append(f"{name}={value!r}")
        return ", ".join(parts) + (f" ({case.special})" if case.special else "")


@dataclass
class Draw:
    """Random arrays in float32: whoever computes in it throughout is right."""

    rng: np.random.Generator

    def __call__(self, *shape: int, scale: float = 1.0, around: float = 0.0) -> Array:
        drawn = around + scale * self.rng.standard_normal(shape)
        return np.asarray(drawn.astype(np.float32))

    def matrix(self, outputs: int, inputs: int) -> Array:
        """A weight that keeps the size of what it is given."""
        return self(outputs, inputs, scale=inputs**-0.5)


EXERCISES: dict[str, Exercise] = {}
Make = Callable[[Draw], Iterator[Case]]


def exercise(chapter: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        EXERCISES[make.__name__] = Exercise(make.__name__, chapter, make)
        return make

    return register


def right(program: Program, *arguments: Any) -> Any:
    """What a program gives for these arguments, in float64."""
    given = dict(zip(program.takes, arguments, strict=True))
    return Run(np.float64, record=False)(program, **given).out


def same(op: Any, *arguments: Any, special: str = "") -> Case:
    """A call whose arguments are the same for the learner and for us."""
    return Case(arguments, (Question(op, arguments),), special)
