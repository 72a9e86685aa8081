"""Scores of heads, on patterns that are made to have one habit, and counted by hand on others."""

import numpy as np
import pytest

import simdformer as sf
from subjects import IDS, make

REPEATED = [5, 6, 7, 8, 5, 6, 7, 8]


def looks_at(keys):
    """A pattern (L,L) whose row i gives everything to keys[i]."""
    pattern = np.zeros((len(keys), len(keys)))
    pattern[np.arange(len(keys)), keys] = 1
    return pattern


HABITS = {
    "previous_token": looks_at([0, 0, 1, 2, 3, 4, 5, 6]),
    "first_token": looks_at([0] * 8),
    "same_token": looks_at([0, 1, 2, 3, 0, 1, 2, 3]),
    "induction": looks_at([0, 0, 0, 0, 1, 2, 3, 4]),
}


def test_each_habit_has_its_score():
    trace = {"layers.0.attn.pattern": np.stack(list(HABITS.values()))}
    scores = sf.head_scores(trace, REPEATED)
    for head, name in enumerate(HABITS):
        assert scores[name].shape == (1, 4)
        assert scores[name][0, head] == 1
        assert scores[name][0, head] == scores[name].max()
    assert not scores["entropy"].any()
    # before a token that stood at 0 stands one at 4: whoever looks back there looks at 3
    assert scores["previous_token"][0, 3] == 1 / 7  # of seven queries one looks back by one
    assert scores["induction"][0, 1] == 0


def test_entropy_is_in_bits():
    even = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    scores = sf.head_scores({"layers.0.attn.pattern": even[None]}, ids=[1, 2, 3, 4])
    assert scores["entropy"][0, 0] == pytest.approx((0 + 1 + np.log2(3) + 2) / 4)


def test_nothing_that_counts_is_nan():
    scores = sf.head_scores({"layers.0.attn.pattern": np.eye(4)[None]}, ids=[1, 2, 3, 4])
    assert np.isnan(scores["same_token"]).all()
    assert np.isnan(scores["induction"]).all()
    assert scores["previous_token"][0, 0] == 0
    alone = sf.head_scores({"layers.0.attn.pattern": np.ones((2, 1, 1))}, ids=[1])
    assert np.isnan(alone["previous_token"]).all()
    assert not alone["entropy"].any()


def test_scores_of_a_trace_are_counted_by_hand():
    model, _ = make()
    _, trace = model.run_with_cache(IDS, "*.pattern")
    scores = sf.head_scores(trace)
    for layer in range(3):
        pattern = trace["pattern", layer].astype(np.float64)
        for head in range(4):
            shares = {name: [] for name in scores}
            for i, row in enumerate(pattern[head]):
                before = [j for j in range(i) if IDS[j] == IDS[i]]
                if i > 0:
                    shares["previous_token"].append(row[i - 1])
                    shares["first_token"].append(row[0])
                if before:
                    shares["same_token"].append(sum(row[j] for j in before))
                    shares["induction"].append(sum(row[j + 1] for j in before))
                shares["entropy"].append(-sum(p * np.log2(p) for p in row if p > 0))
            for name, some in shares.items():
                assert scores[name][layer, head] == pytest.approx(np.mean(some)), name


def test_what_is_no_pattern_of_one_text_is_refused():
    model, _ = make()
    with pytest.raises(ValueError, match=r"no layers.0.attn.pattern; run_with_cache\(text, names="):
        sf.head_scores({})
    _, batch = model.run_with_cache([IDS, IDS])
    with pytest.raises(ValueError, match=r"patterns have shape \(2, 4, 13, 13\), needs \(H,L,L"):
        sf.head_scores(batch)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4\)"):
        sf.head_scores({"layers.0.attn.pattern": np.ones((2, 3, 4))}, [1, 2, 3])
    _, trace = model.run_with_cache(IDS)
    with pytest.raises(ValueError, match=r"ids have shape \(3,\), needs \(13,\), a number for e"):
        sf.head_scores(trace, [1, 2, 3])
    with pytest.raises(ValueError, match=r"ids have shape \(\), needs \(13,\)"):
        sf.head_scores({**trace})
