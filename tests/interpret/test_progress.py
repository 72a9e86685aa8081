"""What takes long in large models says how far it is: bars that come after a second, and count to
their end."""

import numpy as np
import pytest

import simdformer as sf
from conftest import same_bits
from simdformer.interpret.subject import read_subject
from simdformer.models.progress import Progress
from simdformer.text.loss import perplexity
from subjects import IDS, OTHERS, make

TRACE = {f"layers.{layer}.attn.pattern": np.ones((2, 3, 3)) / 3 for layer in range(4)}
BARS = {
    "lens": (
        lambda m: sf.logit_lens(m, IDS),
        {"logit_lens: reading": 3, "logit lens": 4 * len(IDS)},
    ),
    "attribute": (
        lambda m: sf.attribute(m, IDS, 9),
        {"attribute: reading": 3, "attribution": 3},
    ),
    "patch": (
        lambda m: sf.patch(m, IDS, OTHERS, 9),
        {"patch: reading": 3, "patch": 3 * 3 * len(IDS)},
    ),
    "ablate": (lambda m: sf.ablate(m, IDS, 9), {"ablate: reading": 3, "ablate": 3 * 3 * 4}),
    "head_scores": (lambda _: sf.head_scores(TRACE, [1, 2, 3]), {"head scores": 4}),
    "look": (
        lambda m: sf.look(m, IDS),
        {
            "look: reading": 3,
            "logit lens": 3 * len(IDS),  # the last row is that of the logits
            "attribution": 3,
            "look: numbers": 18,
        },
    ),
    "eval": (lambda m: perplexity(m, IDS, window=6), {"eval": 5 + 5 + 5 + 3}),
}


@pytest.mark.parametrize("name", BARS)
def test_a_bar_counts_to_its_end(name, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        Progress,
        "__exit__",
        lambda bar, *error: seen.update({bar.what: (bar.done, bar.total)}),
    )
    call, bars = BARS[name]
    model, _ = make()
    call(model)
    assert all(done == total for done, total in seen.values())
    assert {what: seen[what][1] for what in bars} == bars


def test_a_bar_changes_no_bit():
    model, _ = make()
    logits, trace = model.run_with_cache(IDS)
    with_bar, same = read_subject("look", model, IDS).run("*")
    assert same_bits(with_bar, logits)
    assert all(same_bits(same[name], trace[name]) for name in trace)
