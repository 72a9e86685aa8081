"""What notebook 07 says of the demonstration model, and what the demo leaves to it."""

import numpy as np
import pytest

import simdformer as sf

TEXT = "Mia has a red kite. Ben has a blue boat. What colour is the boat of Ben? It is"
SPOILT = TEXT.replace("blue", "green")
OTHER = "Mia has a red kite. Ben has a blue boat. What colour is the kite of Mia? It is"
SWAPPED = "Ben has a red kite. Mia has a blue boat. What colour is the boat of Ben? It is"


@pytest.fixture(scope="module")
def trace(demo):
    return demo.run_with_cache(TEXT, "*.pattern")[1]


def restored(demo, corrupted, metric, kind):
    return sf.patch(demo, TEXT, corrupted, metric, f"layers.3.attn.{kind}", by="layer")[0]


def test_five_heads_look_and_one_of_them_does_nothing(demo, trace):
    blue, red = trace.tokens.index(" blue"), trace.tokens.index(" red")
    looks = np.stack([trace["pattern", layer][:, -1] for layer in range(6)])
    hard = np.argwhere(looks[..., blue] > 0.5).tolist()
    assert hard == [[3, 0], [3, 1], [3, 2], [3, 3], [4, 1]]
    assert all(looks[layer, head, red] < 0.02 for layer, head in hard)
    back = sf.patch(demo, TEXT, SPOILT, (" blue", " green"), by="head")
    assert 0.3 < back[3].sum() < 0.7
    assert np.abs(np.delete(back, 3, axis=0)).max() < 0.02


def test_attribution_counts_what_an_mlp_was_told_as_its_own(demo):
    found = sf.attribute(demo, TEXT, " blue", " green")
    assert (found.heads[3] > 0.5).all()
    assert found.heads[4, 1] < 0
    assert found.mlps[4] > found.heads[3].max()
    assert found.mlps[5] > found.mlps[4]


def test_the_word_is_carried_over_in_layer_3_by_values(demo):
    metric = " blue", " green"
    by_position = sf.patch(demo, TEXT, SPOILT, metric)
    assert by_position.argmax(1).tolist() == [10] * 4 + [22] * 2
    assert restored(demo, SPOILT, metric, "out") > 0.95
    assert restored(demo, SPOILT, metric, "v") > 0.95
    assert abs(restored(demo, SPOILT, metric, "pattern")) < 0.05


@pytest.mark.parametrize(
    ("corrupted", "head", "carrier"), [(OTHER, (2, 0), "q"), (SWAPPED, (2, 1), "k")]
)
def test_one_head_brings_the_query_and_one_writes_the_keys(demo, corrupted, head, carrier):
    assert demo.generate(corrupted, max_new_tokens=1) == " red"
    back = sf.patch(demo, TEXT, corrupted, (" blue", " red"), by="head")
    assert back[head] > 0.95
    back[3], back[head] = 0, 0
    assert np.abs(back).max() < 0.05
    for kind in ("q", "k", "v"):
        found = restored(demo, corrupted, (" blue", " red"), kind)
        assert found > 0.95 if kind == carrier else abs(found) < 0.05


def test_what_these_two_read_is_the_name(trace):
    pattern = trace["pattern", 2]
    assert pattern[0, -1].argmax() == 19  # the name in the question
    assert pattern[1, 4].argmax() == 1
    assert pattern[1, 10].argmax() == 7


def test_the_answer_is_lost_without_either_but_not_without_one_of_four(demo):
    lost = sf.ablate(demo, TEXT, (" blue", " red"))
    assert np.argwhere(lost > 5).tolist() == [[2, 0], [2, 1]]
    assert np.abs(lost[3]).max() < 1
