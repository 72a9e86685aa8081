"""Every tiny architecture can be looked into: lens, attribution, patching, scores, the page."""

import numpy as np
import pytest

import simdformer as sf
import tiny_models

IDS = [3, 17, 3, 17, 90, 44, 3, 17]
OTHERS = [3, 17, 3, 17, 91, 44, 3, 17]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", tiny_models.MODELS)
def test_an_architecture_is_seen_through(name, tmp_path):
    tiny_models.make(name).save_pretrained(tmp_path)
    model = sf.from_pretrained(tmp_path)
    logits, trace = model.run_with_cache(IDS)
    lens = sf.logit_lens(model, IDS)
    assert (lens.ids[-1, :, 0] == logits.argmax(-1)).all()
    np.testing.assert_allclose(lens.probability[-1], sf.softmax(logits).max(-1), rtol=1e-4)
    for against in (None, 5):
        found = sf.attribute(model, IDS, 9, against)
        assert abs(sum(found.parts.values()) - found.difference) < 1e-4
    np.testing.assert_allclose(sf.patch(model, IDS, OTHERS, 9, by="layer"), 1, atol=1e-3)
    heads = sf.ablate(model, IDS, 9)
    assert heads.shape == sf.head_scores(trace)["induction"].shape == (3, 4)
    assert "3 layers of 4 heads, 8 tokens" in sf.look(model, IDS, against=5).about
