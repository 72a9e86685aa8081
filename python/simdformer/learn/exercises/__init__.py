"""Write a transformer yourself, function by function, and have each one checked.

    simdformer learn                             writes my_attention.py: functions without bodies
    simdformer check my_attention.py             says which are right, and what is wrong with others
    simdformer check my_attention.py softmax     looks at one; --hint helps, --solution shows it

In a notebook the same is `sf.exercises.check(my_function)`. Nothing needs a network.
"""

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from simdformer.learn.exercises import cases, starter, text_cases  # noqa: F401  fill EXERCISES
from simdformer.learn.exercises.calls import attempt, kinds_of_arrays
from simdformer.learn.exercises.exercise import EXERCISES, Exercise
from simdformer.learn.exercises.help import HINTS, solution
from simdformer.learn.exercises.results import Outcome, Results, collected, judge
from simdformer.learn.exercises.runner import run

__all__ = [
    "EXERCISES",
    "HINTS",
    "Exercise",
    "Outcome",
    "Results",
    "check",
    "check_file",
    "solution",
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
    code : function, module, dict of names (`globals()`), or the path of a file
        A file runs in a process of its own: see `check_file`. The others run here.
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
        Nothing in it is called as an exercise is.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> def silu(x):
    ...     return x / (1 + np.exp(x))
    >>> sf.exercises.check(silu).ok
    False
    """
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


def write(path: str | os.PathLike[str] = DEFAULT_FILE) -> Path:
    """Writes the exercises as a file of functions without bodies, and gives its path.

    FileExistsError: something is there already; nothing is ever overwritten.
    """
    file = Path(path)
    with open(starter.__file__, encoding="utf-8") as source:
        source.readline()  # is for the type checker of this package
        text = source.read()
    with open(file, "x", encoding="utf-8") as new:
        new.write(text.replace("{file}", str(path)))
    return file
