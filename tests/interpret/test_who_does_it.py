"""What notebook 07 says of the demonstration model, and what the demo leaves to it."""

import numpy as np
import pytest

import simdformer as sf

TEXT = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
SWAPPED = "Mia has a blue kite. Tom has a red boat. What colour is the boat of Tom? It is"


@pytest.fixture(scope="module")
def model():
    return sf.from_pretrained(sf.demo_path())


def largest(table):
    return tuple(int(at) for at in np.unravel_index(np.argmax(table), table.shape))


def test_the_head_that_looks_hardest_is_not_the_one_that_brings_the_word(model):
    _, trace = model.run_with_cache(TEXT, "*.pattern")
    blue = trace.tokens.index(" blue")
    looks = np.stack([trace["pattern", layer][:, -1, blue] for layer in range(6)])
    restored = sf.patch(model, TEXT, TEXT.replace("blue", "green"), (" blue", " green"), by="head")
    assert largest(looks) == (4, 2)
    assert restored[4, 2] < 0.1
    assert largest(restored) == (5, 0)
    assert restored[5, 0] > 0.3


def test_attribution_and_patching_disagree_about_it(model):
    assert sf.attribute(model, TEXT, " blue", " red").heads[5, 0] < -0.3
    green = sf.attribute(model, TEXT, " blue", " green")
    assert green.heads[5, 0] > green.heads[4, 2]
    assert green.mlps[5] > green.difference / 2


def test_the_word_is_carried_over_in_the_last_layer_by_values(model):
    spoilt, metric = TEXT.replace("blue", "green"), (" blue", " green")
    by_position = sf.patch(model, TEXT, spoilt, metric)
    assert (by_position.argmax(1) == 11).all()

    def restored(kind):
        return sf.patch(model, TEXT, spoilt, metric, f"layers.5.attn.{kind}", by="layer")[0]

    assert restored("out") > 0.9
    assert restored("v") > 0.8
    assert abs(restored("pattern")) < 0.05


def test_in_another_comparison_it_has_a_part(model):
    whose = sf.patch(model, TEXT, SWAPPED, (" blue", " red"), by="head")
    assert largest(whose) == (5, 0)
    assert whose[4, 2] > 0.2
