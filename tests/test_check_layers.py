"""check on RoPE, norms, activations and layers: each mistake is found, and nothing else is said."""

import pytest

import mistake_examples_norms
import mistake_examples_rope
from simdformer.learn.check import check

EXAMPLES = {
    **mistake_examples_norms.example,
    **mistake_examples_rope.example,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_mistake_is_found_and_no_other(name, rng):
    mistakes, make = EXAMPLES[name]
    mine, op, args, kwargs = make(rng)
    report = check(op, mine, *args, **kwargs)
    assert not report.ok
    assert {mistake.name for mistake in report.diagnosis} == set(mistakes), report
