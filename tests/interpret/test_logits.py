"""The logit lens and attribution against the same made by hand, in float64, of a trace."""

import numpy as np
import pytest

import simdformer as sf
from subjects import IDS, VARIANTS, make, softmax, unembedded

each_variant = pytest.mark.parametrize("name", VARIANTS)
LOOKUP = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"


# ---- the lens ------------------------------------------------------------------------------------


@each_variant
def test_a_lens_is_the_stream_through_norm_and_last_matrix(name):
    model, weights = make(name)
    logits, trace = model.run_with_cache(IDS)
    lens = sf.logit_lens(model, IDS, top=7)
    assert lens.layers == [-1, 0, 1, 2]
    streams = [trace["resid_pre", 0], *trace["layers.*.resid_post"].values()]
    for row, stream in enumerate(streams):
        shares = softmax(unembedded(model, weights, stream))
        order = np.argsort(-shares, axis=-1, kind="stable")
        assert np.array_equal(lens.ids[row], order[:, :7])
        expected = np.take_along_axis(shares, order, -1)[:, :7]
        np.testing.assert_allclose(lens.probabilities[row], expected, rtol=2e-4)
        said = logits.argmax(-1)
        assert lens.target.tolist() == said.tolist()
        np.testing.assert_allclose(
            lens.probability[row], shares[np.arange(len(IDS)), said], rtol=2e-4
        )
        assert lens.rank[row].tolist() == [list(order[i]).index(said[i]) for i in range(len(IDS))]
    assert (lens.rank[-1] == 0).all()
    assert lens.words[2][3] == [str(id) for id in lens.ids[2, 3]]  # no tokenizer: ids
    assert lens.tokens == [str(id) for id in IDS]


def test_a_lens_follows_a_target_through_chosen_layers():
    model, weights = make()
    _, trace = model.run_with_cache(IDS)
    lens = sf.logit_lens(model, np.array(IDS), layers=[2, -1], target=9)
    assert lens.layers == [2, -1]
    assert lens.target.tolist() == [9] * len(IDS)
    for row, stream in enumerate([trace["resid_post", 2], trace["embed"]]):
        shares = softmax(unembedded(model, weights, stream))
        np.testing.assert_allclose(lens.probability[row], shares[:, 9], rtol=2e-4)
        assert lens.rank[row].tolist() == (shares > shares[:, 9:10]).sum(-1).tolist()
    assert sf.logit_lens(model, IDS, top=1000).ids.shape == (4, len(IDS), 300)


def test_a_lens_speaks_in_words(demo):
    lens = sf.logit_lens(demo, LOOKUP, target=" silver")
    assert lens.words[-1][-1][0] == " blue"
    assert lens.rank[-1, -1] == 1
    lines = repr(lens).splitlines()
    assert lines[0] == "logit lens behind ' is'"
    assert len(lines) == 1 + 7
    assert lines[-1].startswith("  layer 5    rank     1  ' blue' 97%, ' silver' 1%")


# ---- attribution ---------------------------------------------------------------------------------


@each_variant
@pytest.mark.parametrize("against", [None, 200])
@pytest.mark.parametrize("position", [-1, 4])
def test_parts_are_what_is_written_times_what_is_read(name, against, position):
    model, weights = make(name)
    logits, trace = model.run_with_cache(IDS)
    found = sf.attribute(model, IDS, 9, against, position=position)
    at, config = position % len(IDS), model.config
    last = weights["embed" if config.tie_embeddings else "lm_head"].astype(np.float64)
    stream = trace["resid_post", 2][at].astype(np.float64)
    mean = np.mean if config.norm == "layer_norm" else np.zeros_like
    stream -= mean(stream)
    scale = np.sqrt(np.mean(stream**2) + config.norm_eps)

    def read(written):
        return through((written - mean(written)) / scale * weights["final_norm"])

    def through(normed):
        return normed @ last[9] - (0 if against is None else normed @ last[against])

    for layer in range(3):
        wo = weights[f"layers.{layer}.wo"].astype(np.float64)
        for head in range(4):
            own = slice(head * config.head_dim, (head + 1) * config.head_dim)
            written = wo[:, own] @ trace["z", layer][at, head]
            np.testing.assert_allclose(found.heads[layer, head], read(written), atol=2e-5)
        bias = weights.get(f"layers.{layer}.bo", np.zeros(config.hidden_size))
        np.testing.assert_allclose(found.biases[layer], read(bias), atol=2e-5)
        np.testing.assert_allclose(found.mlps[layer], read(trace["mlp.out", layer][at]), atol=2e-5)
    np.testing.assert_allclose(found.embed, read(trace["embed"][at]), atol=2e-5)
    gpt2 = "pos_embed" in trace
    if gpt2:
        np.testing.assert_allclose(found.pos_embed, read(trace["pos_embed"][at]), atol=2e-5)
        np.testing.assert_allclose(found.constant, through(weights["final_norm_bias"]), atol=2e-5)
    told = logits[at, 9] - (0 if against is None else logits[at, against])
    np.testing.assert_allclose(found.difference, told, atol=1e-6)
    assert abs(sum(found.parts.values()) - found.difference) < 1e-4
    assert (found.target, found.against, found.position) == (9, against, at)
    assert len(found.parts) == 1 + 3 * (4 + 1 + config.wo_bias) + 2 * gpt2


def test_parts_add_up_in_a_trained_model(demo):
    found = sf.attribute(demo, LOOKUP, " blue", " red")
    _, trace = demo.run_with_cache(LOOKUP, ["*.attn.result", "final_norm_scale"])
    weights = demo.transformer.weights
    rows, weight = weights.lm_head.unpack().astype(float), weights.final_norm.astype(float)
    read = (rows[found.target] - rows[found.against]) * weight / trace["final_norm_scale"][-1]
    written = np.stack([trace["result", layer][-1] @ read for layer in range(6)])
    np.testing.assert_allclose(found.heads, written, atol=1e-4)
    logits = demo(LOOKUP)[-1]
    blue, red = (demo.tokenizer.encode(word, bos=False)[0] for word in (" blue", " red"))
    assert found.difference == pytest.approx(logits[blue] - logits[red], abs=1e-5)
    assert sum(found.parts.values()) == pytest.approx(found.difference, abs=1e-4)


def test_an_attribution_tells_the_ten_largest_parts(demo):
    found = sf.attribute(demo, LOOKUP, " blue", " red")
    first, *rows, rest = repr(found).splitlines()
    end = len(demo.tokenizer.encode(LOOKUP)) - 1
    assert first == f"logit of ' blue' against ' red' = {found.difference:+.3f} at position {end}"
    told = {row.split()[0]: float(row.split()[1]) for row in rows}
    order = sorted(found.parts, key=lambda name: -abs(found.parts[name]))
    assert list(told) == order[:10]
    assert all(told[name] == round(found.parts[name], 3) for name in told)
    left = sum(found.parts[name] for name in order[10:])
    assert float(rest.split()[-1]) == pytest.approx(left, abs=1e-3)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("call", [sf.logit_lens, lambda model, text: sf.attribute(model, text, 9)])
def test_what_is_no_text_is_refused(call):
    model, _ = make()
    who = r"^(logit_lens|attribute): "
    for text in ([], [[1, 2], [3, 4]], [1.5, 2], None, {"a": 1}):
        with pytest.raises(TypeError, match=who + "text is .*, needs one text, or its ids"):
            call(model, text)
    with pytest.raises(ValueError, match=who + "text cannot be read as an array"):
        call(model, [[1], [2, 3]])
    with pytest.raises(ValueError, match=who + "text needs a tokenizer, and this model has none"):
        call(model, "text")
    with pytest.raises(TypeError, match=who + "model is 'demo', needs a model, as from_pretra"):
        call("demo", IDS)
    with pytest.raises(IndexError, match="300"):
        call(model, [300])
    with pytest.raises(ValueError, match="65 ids are more than max_seq_len = 64"):
        call(model, [1] * 65)


def test_a_target_is_one_token(demo):
    model, _ = make()
    for target in (300, -1, np.int64(300)):
        with pytest.raises(IndexError, match=r"attribute: target is -?\d+, needs an id from 0 "):
            sf.attribute(model, IDS, target)
    for target in (1.0, None, [1], True):
        with pytest.raises(TypeError, match=r"attribute: target is .*, needs a token: its text"):
            sf.attribute(model, IDS, target)
    with pytest.raises(ValueError, match="attribute: against is text, and this model has no token"):
        sf.attribute(model, IDS, 3, " red")
    for text in (" red kite", ""):
        with pytest.raises(ValueError, match=f"target '{text}' is . tokens, .*, needs one: min"):
            sf.attribute(demo, LOOKUP, text)
    with pytest.raises(ValueError, match="logit_lens: target 'Miaa' is 2 tokens"):
        sf.logit_lens(demo, LOOKUP, target="Miaa")


def test_layers_and_positions_exist():
    model, _ = make()
    for layer in (3, -2, 1.0, True, "0"):
        with pytest.raises(ValueError, match=r"logit_lens: a layer is .*, needs numbers from -1"):
            sf.logit_lens(model, IDS, layers=[0, layer])
    with pytest.raises(ValueError, match="logit_lens: top is 0"):
        sf.logit_lens(model, IDS, top=0)
    for position in (13, -14, 1.0, None):
        with pytest.raises(IndexError, match=r"attribute: position is .*, needs a number from -13"):
            sf.attribute(model, IDS, 9, position=position)
