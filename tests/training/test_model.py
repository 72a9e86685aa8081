"""TrainableModel: the loss and every gradient of every dense architecture, beside transformers in
float64."""

import dataclasses
import re

import numpy as np
import pytest
import torch
import transformers

import simdformer as sf
import tiny_models
from conftest import normal, same_bits
from simdformer.checkpoints import CheckpointError
from simdformer.training import TrainableModel
from simdformer.training.export import export
from simdformer.training.new_tokenizer import make_tokenizer
from tiny import DENSE, MIXED, gradients_by_our_names, made


@pytest.fixture
def batch(rng):
    """ids and labels (2, 19), some of which do not count."""
    ids = rng.integers(1, 96, (2, 19))
    labels = rng.integers(1, 96, (2, 19))
    labels[0, :5] = labels[1, 7] = -100
    return ids, labels


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DENSE + MIXED)
def test_every_gradient_is_that_of_transformers(name, batch, tmp_path):
    model = made(name, tmp_path / "weights")
    mine = TrainableModel.from_pretrained(tmp_path / "weights")
    ids, labels = batch
    loss, gradients = mine.loss_and_gradients(ids, labels)

    logits = model(torch.as_tensor(ids)).logits.flatten(0, 1)
    right = torch.nn.functional.cross_entropy(logits, torch.as_tensor(labels).flatten())
    right.backward()
    assert loss == pytest.approx(right.item(), abs=1e-5)
    wanted = gradients_by_our_names(model, tmp_path / "gradients")
    assert gradients.keys() == mine.parameters().keys()
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for key, gradient in gradients.items():
        want = np.asarray(wanted[key], np.float64)
        assert gradient.shape == want.shape
        size = max(np.abs(want).max(), 1e-3 * largest)
        np.testing.assert_allclose(gradient, want, rtol=0, atol=5e-5 * size, err_msg=key)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DENSE + MIXED)
def test_every_weight_takes_a_step(name, batch, tmp_path):
    """Those that a file has transposed, or as every second row, too."""
    made(name, tmp_path)
    model = TrainableModel.from_pretrained(tmp_path)
    before = {key: weight.copy() for key, weight in model.parameters().items()}
    _, gradients = model.loss_and_gradients(*batch)
    sf.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0).step(gradients)
    for key, weight in model.parameters().items():
        assert (weight != before[key]).any() == gradients[key].any(), key


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*DENSE, "mixtral-window-all"])
def test_bfloat16_is_as_near_as_pytorchs(name, batch, tmp_path):
    """Beside float64, over all gradients: no further away than its autocast, give or take. (Where
    experts are chosen, rounding chooses others now and then, and nothing is near; this one has no
    choice.)
    """
    model = made(name, tmp_path / "weights")
    mine = TrainableModel.from_pretrained(tmp_path / "weights")
    ids, labels = (torch.as_tensor(array) for array in batch)

    def gradients_of(model, kind):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            logits = model(ids).logits.flatten(0, 1)
        torch.nn.functional.cross_entropy(logits.double(), labels.flatten()).backward()
        found = gradients_by_our_names(model, tmp_path / kind)
        return {key: np.asarray(value, np.float64) for key, value in found.items()}

    right = gradients_of(model, "float64")
    theirs = gradients_of(model.float(), "autocast")
    loss, ours = mine.loss_and_gradients(*batch, precision="bfloat16")
    assert loss == pytest.approx(mine.loss(*batch), rel=0.02)
    assert all(gradient.dtype == np.float32 for gradient in ours.values())

    def error(found):
        squares = [np.square(found[key] - right[key]).sum() for key in right]
        return np.sqrt(sum(squares) / sum(np.square(one).sum() for one in right.values()))

    assert 1e-5 < error(ours) < 1.5 * error(theirs)


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe"])
def test_the_balance_loss_is_that_of_transformers(name, batch, tmp_path):
    """It counts 0.3 here. Half of a batch has half of it."""
    model = made(name, tmp_path / "weights")
    model.config.output_router_logits, model.router_aux_loss_coef = True, 0.3
    mine = TrainableModel.from_pretrained(tmp_path / "weights")
    ids, labels = batch
    loss, gradients = mine.loss_and_gradients(ids, labels, balance=0.3)
    shifted = torch.as_tensor(np.concatenate([labels[:, :1] * 0 - 100, labels[:, :-1]], axis=1))
    out = model(torch.as_tensor(ids))
    right = torch.nn.functional.cross_entropy(
        out.logits.flatten(0, 1), torch.as_tensor(labels).flatten()
    )
    right = right + 0.3 * out.aux_loss
    assert shifted.shape == ids.shape
    right.backward()
    assert loss == pytest.approx(right.item(), abs=1e-5)
    assert loss > mine.loss(ids, labels) + 0.1
    wanted = gradients_by_our_names(model, tmp_path / "gradients")
    for layer in range(3):
        key = f"layers.{layer}.router"
        if key in gradients:
            want = np.asarray(wanted[key], np.float64)
            np.testing.assert_allclose(gradients[key], want, rtol=0, atol=2e-4 * np.abs(want).max())
    count = 2 * int((labels != -100).sum())
    half, _ = mine.loss_and_gradients(ids, labels, count=count, balance=0.3)
    assert half == pytest.approx(loss / 2, abs=1e-6)


@pytest.mark.parametrize(
    "name", ["gemma2", "gpt2", "qwen3", "olmo2", "qwen2-moe-window", "gpt-oss"]
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_same_bits_for_every_number_of_threads_and_where_parts_are_computed_again(
    precision, name, tmp_path, batch
):
    made(name, tmp_path)
    model = TrainableModel.from_pretrained(tmp_path)
    results = []
    ways = (1, "none"), (2, "none"), (3, "none"), (2, "mlp"), (2, "layer")
    for threads, checkpoint in ways:
        with sf.num_threads(threads):
            results.append(
                model.loss_and_gradients(*batch, checkpoint=checkpoint, precision=precision)
            )
    for loss, gradients in results[1:]:
        assert loss == results[0][0]
        assert all(same_bits(gradient, results[0][1][key]) for key, gradient in gradients.items())


@pytest.mark.parametrize("name", ["gemma2", "gpt2", "granite"])
def test_the_loss_alone_is_that_beside_the_gradients(name, tmp_path, batch):
    made(name, tmp_path)
    model = TrainableModel.from_pretrained(tmp_path)
    for count in (None, 7):
        want, _ = model.loss_and_gradients(*batch, count=count)
        assert model.loss(*batch, count=count) == pytest.approx(want, abs=1e-6)
    with pytest.raises(ValueError, match="loss: labels has none that counts"):
        model.loss(batch[0], np.full((2, 19), -100))


def test_see_is_shown_gradients_by_the_names_of_a_trace(tmp_path, batch):
    """A nudge of an activation changes the loss as its gradient says."""
    made("llama3", tmp_path)
    model, seen = TrainableModel.from_pretrained(tmp_path), {}
    ids, labels = batch[0][:1], batch[1][:1]
    model.loss_and_gradients(ids, labels, see=seen.setdefault)
    runs = model.language_model()
    trace = runs.run_with_cache(ids[0])[1]
    for name in (
        "layers.1.resid_mid",
        "layers.2.mlp.act",
        "layers.1.attn.z",
        "layers.0.attn.q_rot",
    ):
        direction = normal(np.random.default_rng(0), *trace[name].shape)
        gradient = seen[name].reshape(trace[name].shape)

        def loss(step, name=name, direction=direction):
            logits = runs(ids[0], edit={name: trace[name] + np.float32(step) * direction})
            return float(sf.cross_entropy(logits, labels[0]))

        difference = (loss(0.01) - loss(-0.01)) / 0.02
        assert difference == pytest.approx(float((gradient * direction).sum()), rel=2e-2, abs=1e-3)


def test_what_is_seen_of_outputs_is_in_front_of_residual_scale(tmp_path, batch):
    """A nudge of what a trace has, which is behind it, counts 1 / residual_scale times as much."""
    made("granite", tmp_path)
    model, seen = TrainableModel.from_pretrained(tmp_path), {}
    ids, labels = batch[0][:1], batch[1][:1]
    model.loss_and_gradients(ids, labels, see=lambda name, d: seen.update({name: d[0].copy()}))
    runs, scale = model.language_model(), model.config.residual_scale
    assert scale != 1
    trace = runs.run_with_cache(ids[0])[1]
    for name, factor in (
        ("layers.1.attn.out", scale),
        ("layers.1.mlp.out", scale),
        ("layers.1.attn.z", 1),
        ("layers.1.resid_post", 1),
    ):
        direction = normal(np.random.default_rng(0), *trace[name].shape)

        def loss(step, name=name, direction=direction):
            logits = runs(ids[0], edit={name: trace[name] + np.float32(step) * direction})
            return float(sf.cross_entropy(logits, labels[0]))

        difference = (loss(0.01) - loss(-0.01)) / 0.02
        expected = float((seen[name] * direction).sum()) / factor
        assert difference == pytest.approx(expected, rel=2e-2, abs=1e-3)


def test_a_count_of_the_whole_batch_makes_parts_add_up(tmp_path, batch):
    made("qwen2", tmp_path)
    model = TrainableModel.from_pretrained(tmp_path)
    ids, labels = batch
    whole, gradients = model.loss_and_gradients(ids, labels)
    count = int((labels != -100).sum())
    parts = [model.loss_and_gradients(ids[i], labels[i], count=count) for i in range(2)]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole, abs=1e-6)
    for key, gradient in gradients.items():
        added = sum(part[key] for _, part in parts)
        np.testing.assert_allclose(added, gradient, rtol=0, atol=1e-5 * np.abs(gradient).max())


def test_a_new_model_starts_at_the_loss_of_guessing():
    config = sf.from_pretrained(sf.demo_path()).config
    model = TrainableModel.from_config(config, seed=3)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (4, 64))
    loss, _ = model.loss_and_gradients(ids)
    assert loss == pytest.approx(np.log(config.vocab_size), abs=0.1)
    again = TrainableModel.from_config(config, seed=3)
    assert all(same_bits(w, again.parameters()[key]) for key, w in model.parameters().items())


def test_what_is_learnt_is_what_generates(batch):
    """One batch is learnt by heart, and the model of the same numbers says it."""
    config = sf.from_pretrained(sf.demo_path()).config
    model = TrainableModel.from_config(config, seed=0)
    optimizer = sf.optim.AdamW(model.parameters(), lr=3e-3)
    ids = batch[0]
    for _ in range(60):
        loss, gradients = model.loss_and_gradients(ids)
        sf.optim.clip_grad_norm_(gradients, 1.0)
        optimizer.step(gradients)
    assert loss < 0.1
    logits = model.language_model()(ids[0])
    assert (logits.argmax(-1)[:-1] == ids[0][1:]).mean() > 0.9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*DENSE, *MIXED, "demo"])
def test_transformers_and_the_package_open_what_was_saved(name, batch, tmp_path):
    path = tmp_path / "given"
    if name == "demo":
        path = sf.demo_path()  # interleaved pairs
    else:
        made(name, path)
    model = TrainableModel.from_pretrained(path)
    model.parameters()["final_norm"][:] *= 1.5  # as training would
    model.save(tmp_path / "saved")
    want = model.language_model()(batch[0])
    ours = sf.from_pretrained(tmp_path / "saved")
    assert ours.config.rope_layout == "half"
    np.testing.assert_allclose(ours(batch[0]), want, rtol=0, atol=2e-4)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(tiny_models.logits(theirs, batch[0]), want, rtol=0, atol=2e-4)


def test_large_models_are_saved_in_several_files(tmp_path):
    made("llama3", tmp_path / "given")
    model = TrainableModel.from_pretrained(tmp_path / "given")
    export(tmp_path, model.config, model.parameters(), None, (), shard=20_000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    again = TrainableModel.from_pretrained(tmp_path)
    assert all(same_bits(w, again.parameters()[key]) for key, w in model.parameters().items())
    model.save(tmp_path / "one")
    assert (tmp_path / "one" / "model.safetensors").exists()


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path):
    demo = sf.from_pretrained(sf.demo_path()).config
    model = TrainableModel.from_config(dataclasses.replace(demo, attention_sinks=True))
    with pytest.raises(CheckpointError, match=r"needs a model as llama, mistral, qwen2, .* are"):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    llama = TrainableModel.from_config(demo)
    with pytest.raises(CheckpointError, match="no tokenizer"):
        llama.save(tmp_path / "saved", tokenizer=tmp_path)


def test_a_tokenizer_goes_along(tmp_path, batch):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    make_tokenizer(["the cat sat on the mat " * 20], 300, folder)
    config = dataclasses.replace(sf.from_pretrained(sf.demo_path()).config, vocab_size=300)
    TrainableModel.from_config(config).save(tmp_path / "saved", tokenizer=folder)
    model = sf.from_pretrained(tmp_path / "saved")
    assert model.tokenizer.decode(model.tokenizer.encode("the cat"), skip_special=True) == "the cat"


def test_refusals(batch):
    config = sf.from_pretrained(sf.demo_path()).config
    model = TrainableModel.from_config(config)
    ids, labels = batch
    for error, text, given in (
        (ValueError, "precision is 'float16', needs 'float32' or 'bfl", {"precision": "float16"}),
        (ValueError, "checkpoint is 'all', needs 'none' or 'mlp' or", {"checkpoint": "all"}),
        (ValueError, r"labels have shape \(2, 3\), needs \(2, 19\)", {"labels": labels[:, :3]}),
        (ValueError, "labels has none that counts", {"labels": np.full((2, 19), -100)}),
        (IndexError, "labels", {"labels": labels + 5000}),
    ):
        with pytest.raises(error, match=text):
            model.loss_and_gradients(**{"ids": ids, **given})
    for shape in ((0,), (0, 5), (2, 0)):
        for function in (model.loss_and_gradients, model.loss, model.losses):
            with pytest.raises(
                ValueError, match=rf"ids have shape {re.escape(str(shape))}, needs at"
            ):
                function(np.zeros(shape, int))
    with pytest.raises(ValueError, match=r"ids have 300 positions, needs at most 256"):
        model.loss_and_gradients(np.ones((1, 300), int))
