"""Every mistake of the catalogue is found in what wrong code gives, and claimed for nothing else.

The examples are in mistake_examples_*.py, the wrong code in them written without the package.
"""

import importlib
from pathlib import Path

import numpy as np
import pytest

import simdformer as sf
from simdformer.learn import check  # noqa: F401  fills the catalogue
from simdformer.learn.catalogue import CATALOGUE

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("mistake_examples_*.py"))
EXAMPLES = {
    f"{module.removeprefix('mistake_examples_')}: {name}": made
    for module in MODULES
    for name, made in importlib.import_module(module).example.items()
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_mistakes_that_were_made_are_named_and_no_others(name):
    mistakes, make = EXAMPLES[name]
    mine, op, args, kwargs = make(np.random.default_rng(1))
    report = sf.check(op, mine, *args, **kwargs)
    if report.ok:  # only too few bits: named, but an error of the size that so few bits have
        assert mistakes[0].endswith(("in_float16", "in_bfloat16"))
        assert "note: right to" in repr(report)
    assert {mistake.name for mistake in report.diagnosis} == set(mistakes), repr(report)


def test_every_mistake_has_an_example():
    """Those of whole models, in layers of a model, are shown in test_check_trace; those around a
    model in test_exercises_text."""
    shown = {mistakes[0] for mistakes, _ in EXAMPLES.values()}
    elsewhere = ("layer.", "model.", "text.")
    known = {name for name in CATALOGUE.variations if not name.startswith(elsewhere)}
    assert known - shown == set()


def test_the_words_of_every_mistake():
    """Half a sentence for the title, whole ones for cause and fix, and where to read on."""
    for mistake in (variation.mistake for variation in CATALOGUE):
        assert not mistake.title.endswith("."), mistake
        for sentence in (mistake.cause, mistake.fix):
            assert sentence.endswith((".", "?")), mistake
            assert len(sentence) < 200, mistake
        assert mistake.step == "" or mistake.step[:2].isdigit(), mistake
