"""Every mistake of the catalogue is found in what wrong code gives, and claimed for nothing else.

The examples are in mistake_examples_*.py, the wrong code in them written without the package; those
of gradients, losses and optimizers that somebody may write by hand are in by_hand/*.txt, where
test_gradients_by_hand checks the same.
"""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import simdformer as sf
from by_hand import EXAMPLES as BY_HAND
from mistake_examples import reads_well
from simdformer.learn import check  # noqa: F401  fills the catalogue
from simdformer.learn.catalogue import CATALOGUE, mistakes
from simdformer.learn.check.additions import unknown_names
from subprocesses import run_python

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("mistake_examples_*.py"))
EXAMPLES = {
    f"{module.removeprefix('mistake_examples_')}: {name}": made
    for module in MODULES
    for name, made in importlib.import_module(module).example.items()
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_mistakes_that_were_made_are_named_and_no_others(name):
    mistakes, make = EXAMPLES[name]
    mine, op, args, kwargs = make(np.random.default_rng(1))
    report = sf.check(op, mine, *args, **kwargs)
    if CATALOGUE[mistakes[0]].mistake.convention:
        assert report.ok, report
        assert CATALOGUE[mistakes[0]].mistake.title in " ".join(repr(report).split())
        return
    if report.ok:  # only too few bits: named, but an error of the size that so few bits have
        assert mistakes[0].endswith(("in_float16", "in_bfloat16"))
        assert "note: right to" in repr(report)
    assert {mistake.name for mistake in report.diagnosis} == set(mistakes), repr(report)
    reads_well(report)


def test_every_mistake_has_an_example():
    """Those of whole models, in layers of a model, are shown in test_check_trace and
    test_traces_of_mixtures; those on the way back through it in test_check_gradients; those around
    a model in test_exercises_text and test_exercises_training."""
    shown = {mistakes[0] for mistakes, _ in EXAMPLES.values()}
    shown |= {name for one in BY_HAND.values() if len(one.mistakes) == 1 for name in one.mistakes}
    elsewhere = ("layer.", "model.", "experts.", "clamped_swiglu.", "text.", "scaling.", "softcap")
    elsewhere += ("layer_backward.", "model_backward.", "batch.", "lora", "step.")
    known = {
        name
        for name, one in CATALOGUE.variations.items()
        if not (one.habit or name.startswith(elsewhere))
    }
    assert known - shown == set()


def test_the_words_of_every_mistake():
    """Half a sentence for the title, whole ones for cause and fix, and where to read on."""
    for mistake in (variation.mistake for variation in CATALOGUE):
        assert not mistake.title.endswith("."), mistake
        assert len(mistake.title) <= 74, mistake  # a line of a report in a report on a trace
        for sentence in (mistake.cause, mistake.fix):
            assert sentence.endswith((".", "?")), mistake
            assert len(sentence) < 200, mistake
        assert mistake.step == "" or mistake.step[:2].isdigit(), mistake


def test_every_mistake_shows_its_line():
    """What the wrong step reads and what the right one does, taken from their source."""
    for mistake in (variation.mistake for variation in CATALOGUE):
        lines = mistake.difference
        assert any(line[0] in "-+" for line in lines), mistake
        assert not any(re.search(r"\bs\.run\b|\balong\b|\bsees\b", line) for line in lines), lines


def test_a_mistake_changes_its_own_program():
    """Else those of a backward would be looked for in the forward that it calls."""
    for mistake in (variation.mistake for variation in CATALOGUE):
        own = mistake.name.partition(".")[0]
        changed = {step.partition(".")[0] for step in mistake.replaces}
        assert own in changed or (own, changed) == ("layer", {"experts"}), mistake


@pytest.mark.parametrize(
    ("name", "lines"),
    {
        "attention.causal_strict": ["- visible = j < i + offset", "+ visible = j <= i + offset"],
        "attention.no_scale": ["+ scores = scores * scale_of"],
        "attention.key_and_value_swapped": ["- k, v = v, k"],
        "attention.group_of_4": [
            "- kv_head = np.arange(num_heads) // 4",
            "+ kv_head = np.arange(num_heads) // group",
        ],
        "rms_norm.sum_for_mean": ["  size = mean(squares, axis)", "- size = size * h.shape[-1]"],
        "rms_norm.eps_1e-05": ["- eps = 1e-05", "  size = size + eps"],
        "silu.relu_instead": ["- out = np.maximum(h, 0)", "+ out = h * share"],
        "layer.wk_for_wv": [
            "- attn_v = heads(attn_norm, 'wk', index)",
            "+ attn_v = heads(attn_norm, 'wv', index)",
        ],
        "layer.gate_of_layer_0": [
            "- mlp_gate = project(mlp_norm, 'gate', 0)",
            "+ mlp_gate = project(mlp_norm, 'gate', index)",
        ],
        "swiglu.gate_and_up_swapped": ["- out = g * silu(x=u)", "+ out = act * u"],
    }.items(),
)
def test_the_line_that_is_shown(name, lines):
    found = CATALOGUE[name].mistake.difference
    assert [line for line in found if line in lines] == lines, found


def test_what_is_no_mistake_is_refused():
    """A line that is neither words nor code, a step that no program has, code that is none."""
    text = "attention.scale (01 §2)\n\n{}: the scores are not scaled\n    Why.\n    | {}\n"
    for wrong, error, said in (
        (text.format("no scale", "pass"), ValueError, "neither a mistake nor the head of some"),
        (text.format("no_scale", "pass"), ValueError, "a mistake is called attention.no_scale"),
        (text.format("x", "pass").replace(".scale", ".skale"), KeyError, "attention.skale"),
        (text.format("x", "scores ="), SyntaxError, "invalid syntax"),
    ):
        with pytest.raises(error, match=said):
            mistakes(wrong)
    assert "attention.x" not in CATALOGUE.variations


# ---- mistakes of one's own -----------------------------------------------------------------------

OWN = """
    softmax.shift (01 §1) > Subtract the maximum of each row.

    minimum_subtracted: the minimum is subtracted instead of the maximum
        min and max differ in two letters; the exponents are then all above zero.
        | scores = scores - scores.min(axis=along, keepdims=True)
    """


@pytest.fixture
def catalogue():
    """The catalogue, put back behind the test."""
    before = CATALOGUE.variations.copy()
    yield CATALOGUE
    CATALOGUE.variations.clear()
    CATALOGUE.variations.update(before)


def test_a_mistake_of_ones_own_is_found_and_replaced(catalogue, rng):
    for _ in range(2):  # a cell that runs again
        assert sf.mistakes.add(OWN) == ["softmax.minimum_subtracted"]
    x = 60 * rng.standard_normal((3, 7), dtype=np.float32)
    with np.errstate(all="ignore"):
        e = np.exp(x - x.min(-1, keepdims=True))
        report = sf.check("softmax", e / e.sum(-1, keepdims=True), x)
    assert "softmax.minimum_subtracted" in [one.name for one in report.diagnosis]
    sf.mistakes.add(OWN.replace("the minimum is", "min() is"))
    title = catalogue["softmax.minimum_subtracted"].mistake.title
    assert title == "min() is subtracted instead of the maximum"


def test_a_mistake_can_be_added_before_anything_else_was_imported():
    code = f"import simdformer as sf; print(sf.mistakes.add({OWN!r}))"
    assert run_python(code) == "['softmax.minimum_subtracted']"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("softmax.shift", "softmax.shft", "'softmax.shft', needs one .*did you mean 'softmax.shi"),
        ("- scores.min", "- scors.min", "reads 'scors', needs a name .*did you mean 'scores'"),
        ("keepdims=True)", "keepdims=", "needs Python"),
        ("| scores = scores - scores.min(axis=along, keepdims=True)", "| ...", "changes nothing"),
        ("| scores = scores - scores.min(axis=along, keepdims=True)", "More.", "has no lines"),
        (OWN, "nonsense", "neither a mistake nor the head of some: nonsense"),
        (OWN, "", "text has no mistake"),
    ],
)
def test_what_is_wrong_with_it_is_said_at_once(catalogue, old, new, said):
    with pytest.raises(ValueError, match=f"mistakes.add: .*{said}"):
        sf.mistakes.add(OWN.replace(old, new))
    assert "softmax.minimum_subtracted" not in catalogue.variations


@pytest.mark.slow
def test_all_that_the_catalogue_reads_is_bound():
    assert [one for variation in CATALOGUE for one in unknown_names(variation)] == []
