"""The exercises as a Jupyter notebook: a cell to write in, a cell that checks it, and hints and a
solution that open on a click."""

import html
import inspect
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from simdformer.learn.exercises import starter
from simdformer.learn.exercises.exercise import EXERCISES, Exercise
from simdformer.learn.exercises.help import HINTS, solution
from simdformer.learn.exercises.little_sister import TRAINED_BY
from simdformer.learn.exercises.story import NEEDED

__all__ = ["folded_answer", "folded_hints", "is_notebook", "notebook", "written"]

Cell = dict[str, Any]

WELCOME = """\
# Write a transformer

{count} functions without bodies. Together they are a transformer that writes text, and what trains
one. Replace each `raise NotImplementedError` by your own code, run the cell, then run the check
below it. It says whether your function is right, or which mistake it makes. Any order will do, with
numpy or PyTorch.

Your functions are called with numpy arrays; if this notebook imports torch, with tensors. They may
return either. Arrays come in float32. `...` in a shape means any number of axes in front, or none.
Do not change the inputs: another function may need them.

B sequences, L queries, S keys, E hidden_size, H query heads, K key/value heads, D head_dim, V
vocabulary. Weights are (outputs, inputs), as in checkpoints: y = x @ weight.T.

Nothing here needs a network."""

LIST = """\
## How far am I?

All functions at once:"""

STORY = """\
## Your functions write a story

A small model comes with the package. Here it runs on your functions alone: {needed}."""


TRAINING = """\
## Your functions train a model

The model's little sister knows nothing yet. Here your functions compute her gradients and make her
steps, for a minute: {needed}."""


def notebook() -> dict[str, Any]:
    """What the file holds, as nbformat 4.5 wants it."""
    cells = list(cells_of(EXERCISES.values()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number:03d}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def cells_of(exercises: Iterable[Exercise]) -> Iterator[Cell]:
    yield markdown(WELCOME.format(count=len(EXERCISES)))
    yield code("import numpy as np\n\nimport simdformer as sf")
    chapter = ""
    for exercise in exercises:
        if exercise.chapter != chapter:
            chapter = exercise.chapter
            yield markdown(f"## {chapter}")
        name = exercise.name
        yield markdown(f"### {name}\n\n{html.escape(exercise.summary, quote=False)}")
        yield code(inspect.getsource(getattr(starter, name)).strip())
        yield code(f'sf.exercises.check("{name}")')
        yield markdown(f"{folded_hints(HINTS[name])}\n\n{folded_answer(solution(name))}")
    yield markdown(LIST)
    yield code("sf.exercises.check(globals())")
    yield markdown(STORY.format(needed=", ".join(f"`{name}`" for name in NEEDED)))
    yield code("sf.exercises.story()")
    yield markdown(TRAINING.format(needed=", ".join(f"`{name}`" for name in TRAINED_BY)))
    yield code("trained = sf.exercises.train()\ntrained")
    yield code("sf.plots.loss_curve(trained.losses)")


def folded_hints(hints: Iterable[str]) -> str:
    """Each hint behind a line that opens on a click."""
    return "\n\n".join(
        f"<details><summary>Hint {number}</summary>\n\n{html.escape(hint, quote=False)}\n\n"
        "</details>"
        for number, hint in enumerate(map(unformatted, hints), start=1)
    )


def folded_answer(source: str) -> str:
    """Code behind a line that opens on a click."""
    return (
        "<details><summary>One way to write it</summary>\n\n"
        f"```python\n{source.strip()}\n```\n\n</details>"
    )


def unformatted(text: str) -> str:
    """Markdown shows these characters as they are."""
    for special in "*_[]":
        text = text.replace(special, f"\\{special}")
    return text


def written() -> str:
    """The text of the file."""
    return json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n"


def markdown(text: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": lines(text)}


def code(text: str) -> Cell:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": lines(text),
    }


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def is_notebook(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(".ipynb")
