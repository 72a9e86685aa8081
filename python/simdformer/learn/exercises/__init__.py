"""Write a transformer yourself, function by function, and have each one checked.

    simdformer learn                             writes my_attention.py: functions without bodies
    simdformer check my_attention.py             says which are right, and what is wrong with others
    simdformer check my_attention.py softmax     looks at one; --hint helps, --solution shows it
    simdformer learn --run my_attention.py       lets them write a story, and train a model

`simdformer learn --out my_attention.ipynb` writes them as a notebook. There the same is
`sf.exercises.check("softmax")`, `sf.exercises.story()` and `sf.exercises.train()`. Nothing needs a
network.
"""

import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from simdformer.learn.exercises import (  # noqa: F401  fill EXERCISES, in this order
    cases,
    starter,
    text_cases,
    training_cases,
)
from simdformer.learn.exercises.calls import attempt, kinds_of_arrays
from simdformer.learn.exercises.child import load
from simdformer.learn.exercises.exercise import EXERCISES, Exercise
from simdformer.learn.exercises.help import HINTS, solution
from simdformer.learn.exercises.little_sister import TRAINED_BY, Training, trained_by
from simdformer.learn.exercises.notebook import is_notebook, written
from simdformer.learn.exercises.results import Outcome, Results, collected, judge
from simdformer.learn.exercises.runner import run
from simdformer.learn.exercises.story import NEEDED, PROMPT, Story, story_of

__all__ = [
    "EXERCISES",
    "HINTS",
    "Exercise",
    "NotRight",
    "Outcome",
    "Results",
    "Story",
    "Training",
    "check",
    "check_file",
    "solution",
    "story",
    "train",
    "write",
]
__dir__ = __all__.copy  # what dir() and completion show

SECONDS = 10.0
DEFAULT_FILE = "my_attention.py"


def check(
    code: Callable[..., Any] | ModuleType | Mapping[str, Any] | str | os.PathLike[str],
    name: str | None = None,
) -> Results:
    """Checks a function, or every function of a module, that is called as an exercise is.

    Parameters
    ----------
    code : function, its name, module, dict of names (`globals()`), or the path of a file
        The name of an exercise means the function that the calling cell or file has under it. A
        file runs in a process of its own: see `check_file`. The others run here.
    name : str, optional
        The exercise that a function is meant for, where it has another name; in a file, the one
        function to look at.

    Returns
    -------
    Results
        True when all is right; shows what is wrong with the others, and why.

    Raises
    ------
    ValueError
        Nothing in it is called as an exercise is; there is no exercise, or no function, of that
        name.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> def silu(x):
    ...     return x / (1 + np.exp(x))
    >>> sf.exercises.check(silu).ok
    False
    >>> sf.exercises.check("silu").ok
    False
    """
    if isinstance(code, str) and code.isidentifier() and not Path(code).exists():
        name = known(code)
        code = function_of(sys._getframe(1).f_globals, name)
    if isinstance(code, str | os.PathLike):
        return check_file(code, names=None if name is None else [name])
    namespace: dict[str, Any]
    if isinstance(code, ModuleType):
        namespace, title = dict(vars(code)), code.__name__
    elif isinstance(code, Mapping):
        namespace, title = dict(code), "these functions"
    else:
        title = name or str(getattr(code, "__name__", code))
        namespace = {title: code}
    names = getattr(code, "__globals__", namespace)
    found = [exercise for exercise in EXERCISES if callable(namespace.get(exercise))]
    if not found:
        raise ValueError(
            f"exercises.check: {title} is no exercise; they are called {', '.join(EXERCISES)}; "
            "say which one is meant with name="
        )
    return collected(title, [tried(EXERCISES[one], namespace[one], names) for one in found])


def function_of(names: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """The function of that name; ValueError where the caller has none."""
    function = names.get(name)
    if not callable(function):
        raise ValueError(
            f"exercises.check: there is no function {name} here, needs one; run the cell that "
            f"begins with `def {name}` first"
        )
    return cast(Callable[..., Any], function)


def tried(exercise: Exercise, function: Callable[..., Any], names: dict[str, Any]) -> Outcome:
    """All cases of an exercise in this process, up to the first that fails to give arrays."""
    attempts = {}
    kinds = kinds_of_arrays(function, names)
    for number, case in enumerate(exercise.cases()):
        attempts[number] = attempt(function, case.arguments, exercise.results, kinds)
        if attempts[number].complaint:
            break
    return judge(exercise, attempts)


def check_file(
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    seconds: float = SECONDS,
    show: Callable[[Outcome], None] | None = None,
) -> Results:
    """Checks the functions of a file in a process of its own, which may do what it likes.

    Parameters
    ----------
    path : path
        A Python file as `write` makes it, filled in.
    names : sequence of str, optional
        The exercises to look at; None: all.
    seconds : float
        How long one function may take for all its calls.
    show : callable, optional
        Is given each outcome as soon as it is known.

    Returns
    -------
    Results
        An outcome for every exercise.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file cannot be imported, or has none of the functions; no exercise has such a name.
    """
    wanted = list(EXERCISES) if names is None else list(map(known, names))
    file = Path(path)
    with open(file, "rb"):  # or the error that says why not
        pass
    if is_notebook(file):
        raise ValueError(
            f"{file.name}: it is a notebook, needs a Python file; in the notebook, run "
            "sf.exercises.check(globals())"
        )
    outcomes = {}
    for submission in run(file.resolve(), wanted, seconds):
        outcome = judge(EXERCISES[submission.name], submission.attempts, submission.printed)
        outcomes[submission.name] = outcome
        if show is not None:
            show(outcome)
    if not outcomes and names is None:
        raise ValueError(
            f"{file.name}: none of the exercises is in it; `simdformer learn` writes a file to "
            "begin with"
        )
    missing = [
        Outcome(name, "missing", "not in the file") for name in wanted if name not in outcomes
    ]
    return collected(file.name, [*outcomes.values(), *missing])


def known(name: str) -> str:
    """The name itself; ValueError where no exercise has it."""
    if name not in EXERCISES:
        near = difflib.get_close_matches(name, EXERCISES, n=1)
        help = f"is {near[0]} meant?" if near else f"they are called {', '.join(EXERCISES)}"
        raise ValueError(f"no exercise is called {name!r}; {help}")
    return name


def story(
    code: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    prompt: str = PROMPT,
    max_new_tokens: int = 80,
) -> Story:
    """The model that the package carries, run by a learner's own functions alone.

    Parameters
    ----------
    code : dict of names (`globals()`) or the path of a file, optional
        Where the functions are; None: in the calling cell or file. They run in this process.
    prompt : str
        How the story begins.
    max_new_tokens : int
        How many tokens are written at most.

    Returns
    -------
    Story
        The text, its loss, and how many tokens are those that the package writes.

    Raises
    ------
    NotRight
        A function that a story needs is not there, or not right.
    """
    names = right_functions("story", NEEDED, code, sys._getframe(1).f_globals)
    return story_of({name: names[name] for name in NEEDED}, names, prompt, max_new_tokens)


def train(
    code: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    seconds: float = 60.0,
    *,
    steps: int | None = None,
) -> Training:
    """A small model learns to write stories by a learner's own functions alone.

    Parameters
    ----------
    code : dict of names (`globals()`) or the path of a file, optional
        Where the functions are; None: in the calling cell or file. They run in this process.
    seconds : float
        How long it takes; the learning rate falls until then.
    steps : int, optional
        How many steps of 16 stories are made, in place of `seconds`.

    Returns
    -------
    Training
        The losses (for `sf.plots.loss_curve`), and what the model writes before and after.

    Raises
    ------
    NotRight
        A function that training needs is not there, or not right.
    ValueError
        seconds or steps is no number > 0.
    """
    for name, number in (("seconds", seconds), ("steps", 1 if steps is None else steps)):
        if not 0 < number < float("inf"):
            raise ValueError(f"exercises.train: {name} is {number}, needs a number > 0")
    names = right_functions("train", TRAINED_BY, code, sys._getframe(1).f_globals)
    return trained_by({name: names[name] for name in TRAINED_BY}, names, seconds, steps)


class NotRight(ValueError):
    """Functions that a story or a training needs are not there, or not right."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


def right_functions(
    who: str,
    needed: Sequence[str],
    code: Mapping[str, Any] | str | os.PathLike[str] | None,
    caller: Mapping[str, Any],
) -> dict[str, Any]:
    """The names of a learner's code; NotRight unless all of `needed` are right."""
    names: dict[str, Any] = {}
    if isinstance(code, str | os.PathLike):
        outcomes = list(check_file(code, names=needed))
    else:
        names = dict(caller if code is None else code)
        there = [name for name in needed if callable(names.get(name))]
        outcomes = [tried(EXERCISES[name], names[name], names) for name in there]
    right = {outcome.name for outcome in outcomes if outcome.ok}
    if missing := [name for name in needed if name not in right]:
        named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
        raise NotRight(
            f"exercises.{who}: {named} {'is' if len(missing) == 1 else 'are'} not right yet, needs "
            f"{len(needed)} right functions; do `simdformer check FILE`, or in a notebook "
            "sf.exercises.check(globals())"
        )
    return load(str(Path(code).resolve())) if isinstance(code, str | os.PathLike) else names


def write(path: str | os.PathLike[str] = DEFAULT_FILE) -> Path:
    """Writes the exercises as a file of functions without bodies, and gives its path; a name that
    ends in .ipynb makes a notebook.

    FileExistsError: something is there already; nothing is ever overwritten.
    """
    file = Path(path)
    text = written() if is_notebook(file) else starting_text().replace("{file}", str(path))
    with open(file, "x", encoding="utf-8") as new:
        new.write(text)
    return file


def starting_text() -> str:
    with open(starter.__file__, encoding="utf-8") as source:
        source.readline()  # is for the type checker of this package
        return source.read()
