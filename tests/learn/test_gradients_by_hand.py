"""Gradients, losses and optimizers as learners write them: no right one is accused, and the mistake
in a wrong one is named. The learners' lines are in by_hand/."""

import pytest
from ml_dtypes import bfloat16

from by_hand import EXAMPLES
from mistake_examples import reads_well

RIGHT = {name: one for name, one in EXAMPLES.items() if one.right}
WRONG = {name: one for name, one in EXAMPLES.items() if not one.right}
LEAST_NAMED = 0.95
# What is computed in float32 from arrays of 16 bits, and rounded: nothing else is drawn for them.
ROUNDED = (
    "linear", "embedding", "rms_norm", "layer_norm", "softmax", "log_softmax", "silu", "gelu",
    "relu", "swiglu", "rope", "repeat_kv",
)  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_are_right(name):
    """In the dtype that is written there, and in both that numpy computes in."""
    one = RIGHT[name]
    for dtype in {one.dtype, *(("float32", "float64") if one.dtype.endswith(("32", "64")) else ())}:
        report = one.check(dtype)
        assert report.ok, report


@pytest.mark.parametrize("few", ["float16", bfloat16], ids=str)
@pytest.mark.parametrize(
    "name",
    [n for n, one in RIGHT.items() if one.op in ROUNDED and one.dtype in ("float32", "float64")],
)
def test_right_ones_are_right_in_few_bits(name, few):
    report = RIGHT[name].check("float32", few)
    assert report.ok, report


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_ones_are_named(name):
    one = WRONG[name]
    report = one.check()
    assert not report.ok
    assert {mistake.name for mistake in report.diagnosis} == one.mistakes, report
    assert report.diagnosis or report.where is not None, report  # at least located
    reads_well(report)


def test_nearly_all_are_named():
    named = [one for one in WRONG.values() if one.mistakes]
    assert len(named) >= LEAST_NAMED * len(WRONG)
    assert len(WRONG) >= 150
    assert len(RIGHT) >= 75
