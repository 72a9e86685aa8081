"""What `sf.explore` computes: changes, as `edit=`, `sf.ablate` and `sf.patch` make them."""

import re

import numpy as np
import pytest

import simdformer as sf
from conftest import same_bits
from simdformer.interpret.explorer.exploration import Exploration
from simdformer.models.progress import watched
from simdformer.text import Sampler
from subjects import IDS, OTHERS, make

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


@pytest.fixture(scope="module")
def demo():
    return sf.from_pretrained(sf.demo_path())


@pytest.fixture
def explored(demo):
    return Exploration(demo, TEXT, SPOILT)


def shown(exploration, edits):
    exploration.change(edits)
    exploration.show()
    return exploration.now


def array(reading, place):
    kind, start, count = place
    return np.frombuffer(reading.numbers, kind, count, start)


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
    shares = array(now, data["next"]["shares"]).reshape(length, -1)[position]
    assert same_bits(shares, np.sort(ran["probabilities"])[::-1][:5])
    lens = array(now, data["lens"]["final"]).reshape(-1, length)[:, position]
    np.testing.assert_allclose(lens, ran["lens"].probability[:, position], rtol=1e-6)
    heads = array(now, data["attribution"]["heads"]).reshape(6, 4, length)
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


def test_the_lens_below_a_change_is_not_computed_again(monkeypatch):
    model, _ = make("plain")
    explored = Exploration(model, IDS)
    unembed, streams = model.unembed, []

    def counting(stream, *observer):
        if not observer:  # else it is the model itself that comes to its end
            streams.append(stream)
        return unembed(stream, *observer)

    monkeypatch.setattr(model, "unembed", counting)
    layers = model.config.num_layers
    for layer in range(layers):
        streams.clear()
        edit = {f"layers.{layer}.attn.z": take_head_away}
        explored.change([{"part": "head", "layer": layer, "at": 1, "value": "zero"}])
        explored.show()
        assert len(streams) == layers - layer  # behind this layer and those above it
        fresh = sf.logit_lens(model, IDS, edit=edit)
        np.testing.assert_array_equal(explored.now.lens.ids, fresh.ids)
        np.testing.assert_array_equal(explored.now.lens.probabilities, fresh.probabilities)


def take_head_away(z):
    z[:, 1] = 0
