"""`simdformer demo`: every step checked, and every check able to fail."""

import textwrap

import numpy as np
import pytest

import simdformer as sf
from simdformer.demo import NEXT, steps
from simdformer.demo import model as demo_model
from simdformer.demo.printing import difference

STEPS = [*steps.STEPS, steps.BACK]


def test_the_demonstration_agrees(command, isa, shared):
    status, out, err = command("demo", shared / "data" / "stories260K" / "stories260K.bin")
    assert (status, err) == (0, "")
    assert out.count("✓ agree") == len(STEPS) + 2
    assert "✗" not in out
    assert "Once upon a time, there was a little girl named Lily." in out
    assert out.endswith(f"\nAll checks agree.\n{NEXT}\n")
    for step in STEPS:
        assert step.title in out
    assert max(map(len, out.splitlines())) <= 120


def test_the_demonstration_shows_the_head_that_looks_at_what_is_said(command, shared):
    """The row of the picture, computed here from the whole trace."""
    path = shared / "data" / "stories260K" / "stories260K.bin"
    model = sf.from_pretrained(path)
    ids = model.tokenizer.encode(demo_model.LOOKUP)
    logits, trace = model.run_with_cache(ids)
    places = [at for at, id in enumerate(ids) if id == int(logits[-1].argmax())] or [
        at for at, id in enumerate(ids) if id != 1
    ]
    best = max(
        (float(trace[f"layers.{layer}.attn.pattern"][head, -1, places].sum()), layer, head)
        for layer in range(5)
        for head in range(8)
    )
    _, out, _ = command("demo", path)
    assert f"Layer {best[1]}, head {best[2]}: {best[0]:.0%} of the last token's attention" in out
    assert f"    | {demo_model.LOOKUP} ->" in out


def test_without_an_argument_the_package_s_own_model_is_asked(command):
    """What it answers is for the test of that checkpoint to say."""
    status, out, _ = command("demo")
    assert status in (0, 1)
    assert "model = sf.from_pretrained(sf.demo_path())" in out
    assert f"it should say {demo_model.ANSWER}" in out
    assert out.count("✓ agree") == len(STEPS) + 2 + (status == 0)


def test_a_wrong_answer_is_told(command, monkeypatch):
    monkeypatch.setattr(demo_model, "ANSWER", "forty-two")
    status, out, _ = command("demo")
    assert status == 1
    assert "✗ DIFFER" in out


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_every_check_of_the_demonstration_can_fail(command, monkeypatch, tiny, number):
    """One value off by 1e-3 on the learner's side, in each step by turns."""
    step = STEPS[number]
    name = step.results.split()[0]
    wrong = steps.DemoStep(
        step.title,
        f"{textwrap.dedent(step.numpy)}\n{name} = {name} + 0.001",
        step.kernel,
        step.results,
    )
    *forwards, back = [*STEPS[:number], wrong, *STEPS[number + 1 :]]
    monkeypatch.setattr(steps, "STEPS", forwards)
    monkeypatch.setattr(steps, "BACK", back)
    status, out, _ = command("demo", tiny)
    assert status == 1
    assert "✗ DIFFER" in out
    assert out.endswith("A CHECK FAILED: look for ✗ above.\n")


def test_a_model_that_depends_on_its_cache_is_found_out(command, monkeypatch, tiny):
    from simdformer.models.forward_pass import InCache

    write = InCache.write

    def forgetful(self, layer, key, value):
        return write(self, layer, key, value * np.float32(1.01))

    monkeypatch.setattr(InCache, "write", forgetful)
    status, out, _ = command("demo", tiny)
    assert status == 1
    assert "✗ DIFFER" in out


def test_differences_see_what_is_not_a_number():
    x = np.array([1.0, -np.inf, 3.0])
    assert difference(x, x) == 0
    assert difference(x, x + np.array([0, 0, 0.5])) == 0.5
    assert difference(x, [1.0, 2.0, 3.0]) == np.inf
    assert difference(x, [1.0, -np.inf, np.nan]) == np.inf
    assert difference(x, x[:2]) == np.inf
