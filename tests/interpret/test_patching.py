"""Patching and ablation against the same made by hand with edit=."""

import pickle

import numpy as np
import pytest

import simdformer as sf
from subjects import IDS, OTHERS, VARIANTS, make

each_variant = pytest.mark.parametrize("name", VARIANTS)
CLEAN = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
CORRUPTED = CLEAN.replace("blue", "green")


def difference(logits):
    return float(logits[-1, 9] - logits[-1, 200])


def close(found, needed):
    np.testing.assert_allclose(found, needed, atol=2e-4 * np.abs(needed).max())


# ---- patching ------------------------------------------------------------------------------------


def patched_by_hand(model, name, at):
    """What is restored when clean's `name` stands in the corrupted text at an index."""
    right, trace = model.run_with_cache(IDS)

    def put(x):
        x[at] = trace[name][at]

    right, wrong = difference(right), difference(model(OTHERS))
    return (difference(model(OTHERS, edit={name: put})) - wrong) / (right - wrong)


@each_variant
def test_streams_are_patched_position_by_position(name):
    model, _ = make(name)
    found = sf.patch(model, IDS, OTHERS, (9, 200))
    assert found.shape == (3, len(IDS))
    by_hand = [
        [patched_by_hand(model, f"layers.{layer}.resid_pre", at) for at in range(len(IDS))]
        for layer in range(3)
    ]
    close(found, by_hand)
    same = [at for at in range(len(IDS)) if IDS[at] == OTHERS[at]]
    np.testing.assert_allclose(found[0, same], 0, atol=1e-5)


@each_variant
@pytest.mark.parametrize("kind", ["attn.z", "attn.q_rot", "attn.v", "attn.pattern", "attn.scores"])
def test_heads_are_patched_one_by_one(name, kind):
    model, _ = make(name)
    found = sf.patch(model, IDS, OTHERS, difference, f"layers.*.{kind}", by="head")
    heads = model.config.num_kv_heads if kind == "attn.v" else 4
    assert found.shape == (3, heads)
    of_pairs = kind in ("attn.pattern", "attn.scores")
    by_hand = [
        [
            patched_by_hand(
                model, f"layers.{layer}.{kind}", head if of_pairs else (slice(None), head)
            )
            for head in range(heads)
        ]
        for layer in range(3)
    ]
    close(found, by_hand)


def test_a_whole_layer_of_the_stream_restores_all():
    model, _ = make()
    restored = sf.patch(model, IDS, OTHERS, (9, 200), by="layer")
    np.testing.assert_allclose(restored, np.ones(3), atol=1e-4)
    np.testing.assert_allclose(sf.patch(model, OTHERS, IDS, 9, by="layer"), 1, atol=1e-4)


def test_one_name_gives_one_row():
    model, _ = make()
    every = sf.patch(model, IDS, OTHERS, (9, 200), "layers.*.mlp.out")
    one = sf.patch(model, IDS, OTHERS, (9, 200), "layers.1.mlp.out")
    assert one.shape == (1, len(IDS))
    close(one, every[1:2])
    theirs = sf.patch(model, IDS, OTHERS, (9, 200), "blocks.1.hook_mlp_out")
    close(theirs, one)


def test_a_metric_may_be_a_function_a_token_or_two():
    model, _ = make()
    found = [
        sf.patch(model, IDS, OTHERS, metric, by="head")
        for metric in (9, np.int64(9), [9], lambda logits: logits[-1, 9])
    ]
    assert all(np.array_equal(found[0], other) for other in found)
    pair = sf.patch(model, IDS, OTHERS, (9, 200), by="head")
    assert np.allclose(pair, sf.patch(model, IDS, OTHERS, difference, by="head"))


def test_text_is_patched_in_words(demo):
    found = sf.patch(demo, CLEAN, CORRUPTED, (" blue", " green"))
    tokens = demo.tokenizer.to_str_tokens(CLEAN)
    assert found.shape == (6, len(tokens))
    assert tokens[found[0].argmax()] == " blue"
    assert found[0].max() == pytest.approx(1, abs=1e-3)
    assert tokens[found[3].argmax()] == " blue"
    assert found[4].argmax() == len(tokens) - 1  # it is looked up in layer 3


def test_large_vocabularies_are_read_a_few_rows_at_a_time(monkeypatch):
    from simdformer.interpret import patching

    model, _ = make()
    whole = sf.patch(model, IDS, OTHERS, 9)
    for most in (1, 300 * len(IDS) * 5):
        monkeypatch.setattr(patching, "MOST_LOGITS", most)
        close(sf.patch(model, IDS, OTHERS, 9), whole)


# ---- ablation ------------------------------------------------------------------------------------


@each_variant
@pytest.mark.parametrize("value", ["zero", "mean"])
def test_heads_are_taken_away_one_by_one(name, value):
    model, _ = make(name)
    found = sf.ablate(model, IDS, (9, 200), value=value)
    assert found.shape == (3, 4)
    whole = difference(model(IDS))

    def lost(layer, head):
        def take(x):
            x[:, head] = 0 if value == "zero" else x[:, head].mean(0)

        return whole - difference(model(IDS, edit={f"layers.{layer}.attn.z": take}))

    close(found, [[lost(layer, head) for head in range(4)] for layer in range(3)])


@pytest.mark.parametrize("value", ["zero", "mean"])
def test_patterns_of_heads_are_taken_away(value):
    model, _ = make()
    found = sf.ablate(model, IDS, 9, "layers.*.attn.pattern", value=value)

    def take(x):
        x[2] = 0 if value == "zero" else x[2].mean(0)

    left = model(IDS, edit={"layers.1.attn.pattern": take})
    np.testing.assert_allclose(found[1, 2], (model(IDS) - left)[-1, 9], atol=2e-4)


def test_positions_and_layers_are_taken_away():
    model, _ = make()
    whole = difference(model(IDS))
    by_layer = sf.ablate(model, IDS, difference, by="layer")
    for layer in range(3):
        left = difference(model(IDS, edit={f"layers.{layer}.mlp.out": 0}))
        np.testing.assert_allclose(by_layer[layer], whole - left, atol=1e-4)
    by_position = sf.ablate(model, IDS, difference, by="position", value="mean")
    assert by_position.shape == (3, len(IDS))

    def take(x):
        x[4] = x.mean(0)

    left = difference(model(IDS, edit={"layers.2.mlp.out": take}))
    np.testing.assert_allclose(by_position[2, 4], whole - left, atol=1e-4)


# ---- what is refused -----------------------------------------------------------------------------


def test_texts_have_the_same_number_of_tokens(demo):
    with pytest.raises(ValueError, match="patch: clean has 13 tokens, corrupted 12, needs as ma"):
        sf.patch(make()[0], IDS, OTHERS[1:], 9)
    with pytest.raises(ValueError, match=r"as many, so that .*: \['<\|begin_of_text\|>', 'Mia'"):
        sf.patch(demo, "Mia has", "Mia has a", " red")


def test_a_metric_tells_the_texts_apart():
    model, _ = make()
    with pytest.raises(ValueError, match=r"patch: the metric is .* for both texts, needs one tha"):
        sf.patch(model, IDS, IDS, 9)
    with pytest.raises(ValueError, match="patch: the metric is 1 for both texts"):
        sf.patch(model, IDS, OTHERS, lambda logits: 1)


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [
        (lambda logits: logits, TypeError, r"metric gave .*, needs one number for the logits"),
        (lambda logits: None, TypeError, "metric gave None, needs one number"),
        (
            (1, 2, 3),
            TypeError,
            r"metric is \(1, 2, 3\), needs a function of the logits \(L,V\)",
        ),
        ((), TypeError, r"metric is \(\), needs"),
        (None, TypeError, "metric is None, needs a token"),
        (300, IndexError, "metric is 300, needs an id from 0 to 299"),
        (" red", ValueError, "metric is text, and this model has no tokenizer; give an id"),
    ],
)
def test_a_metric_is_a_number(metric, error, message):
    model, _ = make()
    with pytest.raises(error, match="^patch: " + message):
        sf.patch(model, IDS, OTHERS, metric)
    with pytest.raises(error, match="^ablate: " + message):
        sf.ablate(model, IDS, metric)


@pytest.mark.parametrize(
    ("names", "by", "error", "message"),
    [
        (
            "layers.*.atn.z",
            "position",
            KeyError,
            "no activation is called 'layers.*.atn.z'; near are",
        ),
        (
            "layers.*",
            "position",
            ValueError,
            "names 'layers.*' fits attn.k, .* one activation of e",
        ),
        (
            "layers.*.mlp.out",
            "head",
            ValueError,
            "mlp.out has no heads; by='head' needs one of attn",
        ),
        ("layers.*.attn.pattern", "position", ValueError, "attn.pattern belongs to two positions"),
        (["embed"], "position", TypeError, "names is .*, needs a name or a glob"),
        (None, "neuron", ValueError, "by is 'neuron', needs one of position, head, layer"),
    ],
)
def test_names_fit_one_activation_of_each_layer(names, by, error, message):
    model, _ = make()
    with pytest.raises(error, match=f"patch: {message.replace('*.a', '[*].a')}"):
        sf.patch(model, IDS, OTHERS, 9, names, by=by)
    with pytest.raises(error, match=f"ablate: {message.replace('*.a', '[*].a')}"):
        sf.ablate(model, IDS, 9, names, by=by)


def test_zero_or_mean():
    with pytest.raises(ValueError, match="ablate: value is 'noise', needs 'zero' or 'mean'"):
        sf.ablate(make()[0], IDS, 9, value="noise")


# ---- labels --------------------------------------------------------------------------------------


def test_results_know_their_labels_and_what_is_computed_from_them_is_plain():
    model, _ = make(num_layers=2)
    heads = sf.ablate(model, IDS, 12)
    assert heads.names == ["layers.0.attn.z", "layers.1.attn.z"]
    assert heads.places == ["head 0", "head 1", "head 2", "head 3"]
    kv_heads = sf.ablate(model, IDS, 12, "layers.*.attn.v")
    assert kv_heads.places == ["head 0", "head 1"]
    where = sf.patch(model, IDS, OTHERS, 12)
    assert where.places[:2] == ["0 7", "1 0"]
    layers = sf.patch(model, IDS, OTHERS, 12, by="layer")
    assert layers.places == []
    for found in (heads, kv_heads, where, layers):
        page = found._repr_html_()
        assert page.count("<tr>") == 3
        assert page.count("<td") == found.size
        again = pickle.loads(pickle.dumps(found))
        assert (again.names, again.places) == (found.names, found.places)
        for plain in (found * 2, np.abs(found), found - found):
            assert type(plain) is np.ndarray
        assert type(found.sum()) is np.float64
        assert getattr(found[0], "names", []) == []
