"""What the loss asks for, against differences of the loss and what `loss_and_gradients` shows."""

import json
import re
import zlib
from base64 import b64decode

import numpy as np
import pytest

import simdformer as sf
from simdformer.interpret.explorer.exploration import Exploration
from simdformer.interpret.loss import loss_by_part
from simdformer.interpret.subject import read_subject
from simdformer.training import LoRAModel, TrainableModel
from subjects import IDS, make

STEP = 0.005
TEXT = "Mia has a red kite. Tom has a blue boat."
MODELS = {
    "plain": ("plain", {}),
    "biases": ("biases", {}),
    "gpt2": ("gpt2", {}),
    "norms behind": ("plain", {"norm_placement": "both", "residual_scale": 0.5}),
}


@pytest.fixture(scope="module")
def trained(demo):
    model = TrainableModel.from_pretrained(sf.demo_path())
    model.tokenizer = demo.tokenizer
    return model


def asked(model, text):
    subject = read_subject("look", model, text)
    return loss_by_part(subject, subject.run(["*"])[1])


def scaled(at, factor):
    def edit(x):
        x[at] *= factor

    return edit


def mean_loss(model, ids, edit):
    logits = model.run_with_cache(ids, edit=edit)[0].astype(np.float64)[:-1]
    most = logits.max(-1)
    lse = most + np.log(np.exp(logits - most[:, None]).sum(-1))
    return (lse - logits[np.arange(len(ids) - 1), ids[1:]]).mean()


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_without_a_part_is_its_slope(name):
    variant, changes = MODELS[name]
    model, weights = make(variant, **changes)
    loss, parts, _ = asked(TrainableModel(model.config, weights), IDS)
    assert loss == pytest.approx(mean_loss(model, np.array(IDS), {}), rel=1e-5)

    def slope(activation, at):
        up, down = (
            mean_loss(model, np.array(IDS), {activation: scaled(at, 1 + step)})
            for step in (STEP, -STEP)
        )
        return (down - up) / (2 * STEP)

    config = model.config
    heads = [
        [slope(f"layers.{layer}.attn.z", np.s_[:, head]) for head in range(config.num_heads)]
        for layer in range(config.num_layers)
    ]
    mlps = [slope(f"layers.{layer}.mlp.out", np.s_[:]) for layer in range(config.num_layers)]
    largest = max(np.abs(heads).max(), np.abs(mlps).max())
    np.testing.assert_allclose(parts["without_heads"], heads, atol=0.01 * largest)
    np.testing.assert_allclose(parts["without_mlps"], mlps, atol=0.01 * largest)


def test_sizes_are_norms_of_the_gradients_of_a_trace(trained):
    seen = {}
    ids = trained.tokenizer.encode(TEXT)
    loss, _ = trained.loss_and_gradients(ids, see=lambda name, d: seen.update({name: d[0].copy()}))
    mean, parts, sizes = asked(trained, TEXT)
    assert mean == loss
    for layer in range(6):
        for head in range(4):
            size = np.linalg.norm(seen[f"layers.{layer}.attn.z"][:, head])
            assert parts["head_sizes"][layer, head] == pytest.approx(size, rel=1e-5)
        rms = np.sqrt(np.mean(seen[f"layers.{layer}.attn.q"] ** 2, axis=(1, 2)))
        np.testing.assert_allclose(sizes[f"layers.{layer}.attn.q"], rms, rtol=1e-5)
        size = np.linalg.norm(seen[f"layers.{layer}.mlp.out"])  # no residual_scale here
        assert parts["mlp_sizes"][layer] == pytest.approx(size, rel=1e-5)


def test_the_page_of_a_model_that_is_trained_has_them(trained, demo):
    page = sf.look(trained, TEXT).html
    [data] = re.findall(r'<script id="data" type="application/json">(.*)</script>', page)
    [packed] = re.findall(r'<script id="arrays" type="text/plain">(.*)</script>', page)
    told, numbers = json.loads(data), zlib.decompress(b64decode(packed))
    activations, told = told["activations"], told["loss"]
    mean, parts, sizes = asked(trained, TEXT)
    assert told.pop("mean") == mean
    assert set(told) == set(parts)
    for name, (kind, place, count) in told.items():
        found = np.frombuffer(numbers, kind, count, place)
        np.testing.assert_array_equal(found, parts[name].astype(np.float32).ravel())
    for name, (kind, place, count) in ((n, one["gradient"]) for n, one in activations.items()):
        found = np.frombuffer(numbers, kind, count, place).reshape(6, -1)
        expected = sizes.get(f"layers.4.{name}")
        assert (
            (expected is None) == np.isnan(found).all() == (name in ("attn.pattern", "attn.scores"))
        )
        if expected is not None:
            np.testing.assert_allclose(found[4], expected, rtol=1e-6)
    assert '"loss":{' not in sf.look(demo, TEXT).html


def test_adapters_are_seen_too():
    model = LoRAModel.from_pretrained(sf.demo_path(), rank=2)
    model.parameters()["layers.5.wq.lora_b"][:] = 0.1
    logits = Exploration(model, IDS).now.logits
    np.testing.assert_array_equal(logits, model.language_model().run_with_cache(IDS)[0])
    loss, parts, _ = asked(model, IDS)
    assert loss == pytest.approx(model.loss(IDS))
    assert np.isfinite(parts["head_sizes"]).all()


def test_an_exploration_sees_the_weights_of_now_and_takes_no_edits(trained):
    model = TrainableModel(trained.config, trained.parameters())
    explored = Exploration(model, IDS)
    assert explored.now.data["loss"]["mean"] == pytest.approx(model.loss(IDS))
    model.parameters()["final_norm"][:] *= 0.5
    explored.write(" ".join(map(str, IDS)))
    explored.show()
    assert explored.now.data["loss"]["mean"] == pytest.approx(model.loss(IDS))
    with pytest.raises(
        ValueError, match=r"explore: edits change a model .*language_model\(model.tokenizer\)"
    ):
        explored.change([{"part": "mlp", "layer": 0, "value": "zero"}])
    explored.write("7")
    with pytest.raises(ValueError, match="explore: text has 1 token, needs at least 2"):
        explored.show()


def test_code_of_a_model_that_is_trained_runs(trained):
    explored = Exploration(trained, TEXT)
    names = {"model": trained}
    exec(explored.code(5, 0, 3), names)
    np.testing.assert_array_equal(names["logits"], explored.now.logits)
