"""What `sf.explore` computes: changes, as `edit=`, `sf.ablate` and `sf.patch` make them."""

import re

import numpy as np
import pytest

import simdformer as sf
from checkpoints import random_model
from conftest import same_bits
from simdformer.interpret import lens
from simdformer.interpret.explorer import exploration
from simdformer.interpret.explorer.exploration import Exploration
from simdformer.models.progress import watched
from simdformer.text import Sampler
from subjects import IDS, OTHERS, VARIANTS, make

TEXT = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
SPOILT = TEXT.replace("blue", "green")
HEAD = {"part": "head", "layer": 5, "at": 0}
WORD = 9  # the logit that is asked about, where a model has no words
CHANGES = {
    "nothing": [],
    "head": [{**HEAD, "value": "zero"}],
    "patched": [{**HEAD, "value": "other"}, {"part": "mlp", "layer": 5, "value": "other"}],
    "several": [
        {**HEAD, "value": "mean"},
        {**HEAD, "at": 3, "value": "zero"},
        {"part": "mlp", "layer": 2, "value": "mean"},
        {"part": "position", "layer": 1, "at": 3, "value": "zero"},
        {"part": "position", "layer": 1, "at": 4, "value": "mean"},
    ],
}


@pytest.fixture
def explored(demo):
    return Exploration(demo, TEXT, SPOILT)


def shown(exploration, edits):
    exploration.change(edits)
    exploration.show()
    return exploration.now


# ---- the same numbers as elsewhere ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "gpt2", "mqa"])
@pytest.mark.parametrize("value", ["zero", "mean"])
def test_ablating_is_what_ablate_does(name, value):
    model, _ = make(name)
    explored = Exploration(model, IDS)
    ways = {
        "head": {"by": "head"},
        "position": {"by": "position", "names": "layers.*.resid_pre"},
        "mlp": {"by": "layer", "names": "layers.*.mlp.out"},
    }
    for part, how in ways.items():
        lost = np.asarray(sf.ablate(model, IDS, WORD, value=value, **how))
        for place in {(1, 0), (2, 3)} if part != "mlp" else {(1,), (2,)}:
            edit = {"part": part, "layer": place[0], "value": value}
            now = shown(explored, [edit if part == "mlp" else edit | {"at": place[1]}])
            found = explored.before.logits[-1, WORD] - now.logits[-1, WORD]
            assert found == pytest.approx(lost[place], rel=1e-4, abs=1e-5)
            assert abs(found) > 1e-4


@pytest.mark.parametrize("part", ["head", "position"])
def test_patching_is_what_patch_does(part):
    model, _ = make()
    explored = Exploration(model, OTHERS, IDS)
    back = sf.patch(model, IDS, OTHERS, WORD, by=part)
    right, wrong = model(IDS)[-1, WORD], explored.before.logits[-1, WORD]
    for layer, at in ((0, 1), (1, 2), (2, 0)):
        now = shown(explored, [{"part": part, "layer": layer, "at": at, "value": "other"}])
        found = (now.logits[-1, WORD] - wrong) / (right - wrong)
        assert found == pytest.approx(back[layer, at], abs=1e-4)


@pytest.mark.parametrize("name", CHANGES)
def test_code_computes_what_is_shown(explored, demo, name):
    now, before = shown(explored, CHANGES[name]), explored.before
    layer, head, position = 5, 0, 23
    ran = {"model": demo}
    exec(explored.code(layer, head, position), ran)
    assert same_bits(ran["logits"], now.logits)
    assert same_bits(ran["before"], before.logits)
    assert same_bits(ran["pattern"], now.trace["pattern", layer][head])

    data, length = now.data, len(now.trace.ids)
    shares = now.array(data["next"]["shares"]).reshape(length, -1)[position]
    assert same_bits(shares, np.sort(ran["probabilities"])[::-1][:5])
    lens = now.array(data["lens"]["final"]).reshape(-1, length)[:, position]
    np.testing.assert_allclose(lens, ran["lens"].probability[:, position], rtol=1e-6)
    heads = now.array(data["attribution"]["heads"]).reshape(6, 4, length)
    np.testing.assert_allclose(heads[..., position], ran["parts"].heads, rtol=1e-5, atol=1e-6)
    assert same_bits(before.logits, now.logits) == (name == "nothing")


def test_both_readings_have_their_numbers_at_the_same_places(explored):
    now, before = shown(explored, CHANGES["several"]), explored.before
    places = ("tokens", "next", "patterns", "scores", "lens", "attribution", "activations")
    assert all(now.data[name] == before.data[name] for name in places)
    assert now.words is before.words
    assert len(now.numbers) == len(before.numbers)


def test_a_target_is_kept(demo):
    explored = Exploration(demo, TEXT, target=" blue", against=" red")
    shown(explored, CHANGES["head"])
    ran = {"model": demo}
    exec(explored.code(5, 0, -1), ran)
    expected = sf.attribute(demo, TEXT, " blue", " red", edit=ran["edit"])
    assert same_bits(ran["parts"].heads, expected.heads)
    assert not same_bits(expected.heads, sf.attribute(demo, TEXT, " blue", " red").heads)


# ---- the text ------------------------------------------------------------------------------------


def test_tokens_are_appended_as_generate_draws_them(explored, demo):
    ids = demo.encode(TEXT)
    sampler = Sampler(temperature=1.0, seed=3)
    for _ in range(5):
        explored.sample(sampler)
    explored.show()
    drawn = demo.generate(ids, 5, temperature=1.0, seed=3)
    assert explored.wanted.text.ids == [*ids, *drawn]
    assert explored.wanted.text.text == demo.tokenizer.decode([*ids, *drawn], skip_special=True)


def test_a_token_is_rewritten_in_its_place(explored, demo):
    tokens = explored.tokens
    at = tokens.index(" blue")
    explored.rewrite(at, " green")
    assert explored.tokens == [*tokens[:at], " green", *tokens[at + 1 :]]
    explored.rewrite(at, " kite blue")
    assert explored.tokens[at : at + 2] == [" kite", " blue"]
    explored.rewrite(at, "")
    explored.rewrite(0, "Once. ")  # where the text begins
    assert explored.wanted.text.text == "Once. " + TEXT
    assert explored.wanted.text.ids == demo.encode(explored.wanted.text.text)
    explored.write("𝄞")  # a letter of several tokens
    with pytest.raises(ValueError, match="token 1 is a part of a letter, needs whole ones; edit"):
        explored.rewrite(1, "e")
    model, _ = make()
    numbers = Exploration(model, IDS)
    numbers.rewrite(1, "5 6")
    assert numbers.wanted.text.ids == [IDS[0], 5, 6, *IDS[2:]]


def test_ids_that_no_text_gives_stay_ids(demo):
    apart = [*demo.encode("Mia has a red b"), *demo.tokenizer.encode("oat", bos=False)]
    explored = Exploration(demo, apart)
    assert explored.wanted.text.text == "Mia has a red boat"
    assert demo.encode("Mia has a red boat") != apart
    ran = {"model": demo}
    exec(explored.code(0, 0, 0), ran)
    assert ran["text"] == apart
    assert same_bits(ran["logits"], explored.now.logits)


def test_a_model_without_words_reads_numbers():
    model, _ = make()
    explored = Exploration(model, IDS)
    assert explored.wanted.text.text == " ".join(map(str, IDS))
    explored.write("7, 12 45")
    assert explored.wanted.text.ids == [7, 12, 45]
    with pytest.raises(ValueError, match="text is '7 dogs', needs ids such as 7 12 45"):
        explored.write("7 dogs")


def test_what_does_not_fit_another_text_is_taken_back(explored):
    shown(explored, [*CHANGES["patched"], *CHANGES["several"][2:]])
    explored.write("Mia has")
    assert explored.labels == ["MLP of layer 2 → its mean"]
    assert explored.note.startswith("taken back, because it does not fit this text: head 5.0 ← the")
    explored.show()
    explored.compare("")
    assert explored.note == ""


# ---- refusals and ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (3, "edits is 3, needs a list of dicts"),
        ([4], r"edits\[0\] is 4, needs a dict"),
        ([{"part": "hat"}], r"edits\[0\] has part 'hat', needs one of head, mlp, position"),
        ([{"part": "mlp", "layer": 1}], "has the keys part, layer, needs part, layer, value, bec"),
        ([{**HEAD, "value": "one"}], "has value 'one', needs one of zero, mean, other"),
        ([{**HEAD, "layer": 6, "value": "zero"}], r"has layer 6, needs 0 to 5"),
        ([{**HEAD, "at": 4, "value": "zero"}], r"has at 4, needs 0 to 3"),
        ([{**HEAD, "at": True, "value": "zero"}], r"has at True, needs 0 to 3"),
        ([{**HEAD, "value": "other"}], "there is no second text, needs one to take an activation"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(demo, edits, message):
    explored = Exploration(demo, TEXT)
    with pytest.raises((TypeError, ValueError), match=f"^explore: .*{message}"):
        explored.change(edits)
    assert explored.wanted == explored.shown


@pytest.mark.parametrize("model", ["demo", None])
def test_what_is_no_model_is_refused(model):
    for text in (TEXT, [1, 2]):
        with pytest.raises(TypeError, match=rf"^explore: model is {model!r}, needs a model, as"):
            Exploration(model, text)


def test_texts_that_do_not_fit_are_refused(explored):
    explored.compare("Mia has")
    with pytest.raises(ValueError, match="other has 3 tokens, needs 25, as many as text"):
        explored.change(CHANGES["patched"])
    with pytest.raises(ValueError, match=r"text has \d+ tokens, needs at most 200; shorten it, or"):
        explored.write("a dog " * 300)
    with pytest.raises(ValueError, match="text is empty, needs at least one token"):
        explored.write([])
    with pytest.raises(IndexError, match="explore: token is -1, needs an id from 0 to"):
        explored.append(-1)
    explored.show()
    assert explored.wanted.text.text == TEXT


def test_what_is_ended_leaves_what_was_shown(explored):
    before, seen = shown(explored, CHANGES["head"]), []

    def stop(bar):
        seen.append(bar.what)
        if len(seen) == 4:
            raise KeyboardInterrupt

    explored.write("Mia has a red kite.")
    with watched(stop), pytest.raises(KeyboardInterrupt):
        explored.show()
    assert seen == ["explore: reading"] * 4
    assert explored.now is before
    explored.give_up()
    assert explored.wanted is explored.shown
    assert explored.wanted.text.text == TEXT


def test_a_file_has_both_readings(explored, tmp_path):
    shown(explored, CHANGES["head"])
    page = explored.page()
    assert "head 5.0 → 0" in page.html
    [now] = re.findall(r'<script id="arrays" type="text/plain">(.+)</script>', page.html)
    [before] = re.findall(r'<script id="before" type="text/plain">(.+)</script>', page.html)
    assert now != before


@pytest.fixture
def counted(monkeypatch):
    """A model, an exploration of it, and how many cells of a lens it has computed, in a list."""
    model, _ = make("plain")
    unembed, cells = model.unembed, []

    def counting(stream, *observer):
        if not observer:  # else it is the model itself that comes to its end
            cells.append(len(stream))
        return unembed(stream, *observer)

    monkeypatch.setattr(model, "unembed", counting)
    return model, Exploration(model, IDS), cells


def position_to_zero(layer, at):
    def take_away(x):
        x[at] = 0

    return (
        {"part": "position", "layer": layer, "at": at, "value": "zero"},
        {f"layers.{layer}.resid_pre": take_away},
    )


@pytest.mark.parametrize(("layer", "new"), [(0, 2 * 9 + 1), (1, 9), (2, 0)])
def test_the_lens_in_front_of_a_change_is_not_computed_again(counted, layer, new):
    model, explored, cells = counted
    assert sum(cells) == 3 * 13  # the row of the last layer is that of the logits
    cells.clear()
    change, edit = position_to_zero(layer, 4)
    now = shown(explored, [change])
    assert sum(cells) == new  # between the change and the last row, from its token on
    fresh = sf.logit_lens(model, IDS, edit=edit)
    assert np.array_equal(now.lens.ids, fresh.ids)
    assert same_bits(now.lens.probabilities, fresh.probabilities)


def test_a_lens_that_costs_much_is_computed_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(exploration, "CHEAP_LENS", 0)
    model, _ = make("plain")
    explored = Exploration(model, IDS)
    change, edit = position_to_zero(1, 4)
    now = shown(explored, [change])
    fresh = sf.logit_lens(model, IDS, edit=edit)
    words = now.data["lens"]["words"]

    def known():
        assert np.array_equal(explored.now.lens.known, explored.before.lens.known)
        cells = explored.now.array(words).reshape(4, 13, -1) > 0
        assert (cells.all(-1) == explored.now.lens.known).all()
        return np.flatnonzero(explored.now.lens.known.all(0)).tolist()

    assert known() == []
    assert now.lens.known[-1].all()
    assert now.lens.known.sum() == 13
    explored.fill_lens([3, 7, 99])
    assert known() == [3, 7]
    assert same_bits(explored.now.lens.probabilities[:, [3, 7]], fresh.probabilities[:, [3, 7]])
    assert not same_bits(explored.now.lens.probability[1:3], explored.before.lens.probability[1:3])
    explored.page()  # which shows all of it
    assert known() == list(range(13))
    assert np.array_equal(explored.now.lens.ids, fresh.ids)


def test_what_is_ended_keeps_the_columns_that_it_has(monkeypatch):
    monkeypatch.setattr(exploration, "CHEAP_LENS", 0)
    monkeypatch.setattr(lens, "MOST_LOGITS", 1)  # a cell at a time
    explored = Exploration(make("plain")[0], IDS)

    def stop(bar):
        if bar.done == 6:
            raise KeyboardInterrupt

    with watched(stop), pytest.raises(KeyboardInterrupt):
        explored.fill_lens()
    assert np.flatnonzero(explored.now.lens.known.all(0)).tolist() == [0, 1]
    cells = explored.now.array(explored.now.data["lens"]["final"]).reshape(4, 13)
    assert np.isfinite(cells[:, :2]).all()
    assert np.isnan(cells[:3, 2:]).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_layers_in_front_of_a_change_are_taken_from_the_run_before(name, monkeypatch):
    model, _ = make(name)
    explored, layers = Exploration(model, IDS), []
    block = model.block
    monkeypatch.setattr(model, "block", lambda at, *args: layers.append(at) or block(at, *args))
    change = {"part": "head", "layer": 1, "at": 1, "value": "zero"}
    now = shown(explored, [change])
    assert layers == [1, 2]
    logits, trace = model.run_with_cache(
        IDS, ["*", "final_norm_scale"], edit={"layers.1.attn.z": take_head_away}
    )
    assert same_bits(now.logits, logits)
    assert list(now.trace) == list(trace)
    assert all(same_bits(now.trace[name], trace[name]) for name in trace)
    heads = now.array(now.data["attribution"]["heads"]).reshape(3, 4, -1)
    parts = sf.attribute(model, IDS, int(now.said[-1]), edit={"layers.1.attn.z": take_head_away})
    np.testing.assert_allclose(heads[..., -1], parts.heads, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activations", ["float64", "bfloat16"])
def test_a_run_from_a_layer_is_that_of_the_whole(activations):
    dtype = "float64" if activations == "float64" else "float32"
    model, _ = random_model(dtype=dtype, activations=activations)
    for ids in (IDS, [IDS[:5], OTHERS[:5]]):
        _, before = model.run_with_cache(ids)
        edit = {"layers.2.mlp.out": np.zeros(1)}
        logits, trace = model.run_with_cache(ids, edit=edit)
        again, found = model.run_from(2, before, edit=edit)
        assert same_bits(again, logits)
        assert all(same_bits(found[name], trace[name]) for name in trace)


def take_head_away(z):
    z[:, 1] = 0
