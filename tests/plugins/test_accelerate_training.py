"""`accelerate(model, training=True)`: gradients of every parameter, and training with them."""

import copy

import pytest
import torch

from hugging import IDS, PADDINGS, made
from simdformer.torch import accelerate, restore

MODELS = [
    "llama-bias",
    "llama3.2",  # a tied embedding
    "qwen2-window",
    "qwen3",
    "mistral",
    "granite",
    "gemma2",  # softcap; its attention and linear layers
    "gpt2",
]


def gradients(model, mask=None):
    """What one backward pass of the loss leaves in .grad, by name. Nothing is asked of the padding,
    and of what stands before a text the first word is not asked."""
    model.zero_grad()
    labels = IDS if mask is None else IDS.where(mask.bool() & mask.bool().roll(1), -100)
    model(IDS, labels=labels, attention_mask=mask).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def errors(found, exact):
    """How far each gradient is off, as a part of its size."""
    assert found.keys() == exact.keys()
    return {
        name: float((found[name].double() - right).norm() / right.norm().clamp_min(1e-30))
        for name, right in exact.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_as_right_as_those_of_eager(name):
    model = made(name)
    exact = gradients(copy.deepcopy(model).double())
    eager = errors(gradients(model), exact)
    accelerate(model, training=True)
    ours = errors(gradients(model), exact)
    assert sum(ours.values()) <= 1.5 * sum(eager.values())
    assert max(ours[name] - 1.5 * eager[name] for name in ours) < 1e-6


@pytest.mark.sampled(3)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_padding_has_no_part_in_gradients(name, side):
    """In float64 eager's are NaN, for its softmax is float32 and the mask then infinite."""
    model = made(name)
    eager = gradients(model, PADDINGS[side])
    accelerate(model, training=True)
    ours = errors(gradients(model, PADDINGS[side]), eager)
    assert max(ours.values()) < 5e-6


def steps(model, count=4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["qwen3", "llama3.2"])
def test_steps_of_an_optimizer_change_what_the_model_answers(name):
    model = made(name).train()
    other = copy.deepcopy(model)
    accelerate(model, training=True)
    losses = steps(model)
    assert losses == pytest.approx(steps(other), rel=1e-4)
    assert losses[-1] < 0.9 * losses[0]
    with torch.no_grad():
        assert model.eval()(IDS, labels=IDS).loss.item() == pytest.approx(
            other.eval()(IDS, labels=IDS).loss.item(), rel=1e-4
        )
    restore(model)
    with torch.no_grad():
        assert model(IDS, labels=IDS).loss.item() == pytest.approx(
            other(IDS, labels=IDS).loss.item(), rel=1e-4
        )


@pytest.mark.parametrize("options", [{}, {"quantize": "q8_0"}, {"originals": "release"}], ids=str)
def test_what_is_frozen_is_packed_and_the_rest_learns(options):
    """As beside an adapter. Rows of 48 are no whole blocks, and need not be: they learn."""
    model = made("qwen3", hidden_size=64, intermediate_size=48)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("down_proj" in name)
    right = gradients(model)
    report = accelerate(model, training=True, **options)
    found = gradients(model)
    assert report.nbytes > 0
    assert len(found) == model.config.num_hidden_layers
    allowed = 0.05 if "quantize" in options else 1e-5
    assert max(errors(found, {name: x.double() for name, x in right.items()}).values()) < allowed
    assert not any(parameter.is_meta for parameter in model.parameters() if parameter.requires_grad)


def test_layers_that_are_computed_again_have_the_same_gradients():
    model = made("qwen3").train()
    accelerate(model, training=True)
    once = gradients(model)
    calls = []
    layer = model.model.layers[0]
    written = layer.mlp.forward.compute
    layer.mlp.forward.compute = lambda *args: calls.append(1) or written(*args)
    for again in ("use_reentrant", ""):
        calls.clear()
        model.gradient_checkpointing_enable({"use_reentrant": bool(again)})
        found = gradients(model)
        assert len(calls) == 2
        assert all(torch.allclose(found[name], once[name], atol=1e-6) for name in once)


def test_hooks_of_the_way_back_run():
    model = made("qwen3")
    expected, seen = gradients(model), []
    accelerate(model, training=True)
    projection = model.model.layers[0].self_attn.q_proj
    projection.register_full_backward_hook(lambda *_: seen.append("after"))
    projection.register_full_backward_pre_hook(lambda *_: seen.append("before"))
    found = gradients(model)
    assert seen == ["before", "after"]
    assert max(errors(found, {name: x.double() for name, x in expected.items()}).values()) < 1e-5


def test_dropout_while_it_is_recorded_is_refused():
    model = made("llama2", attention_dropout=0.5).train()
    accelerate(model, training=True)
    with pytest.raises(RuntimeError, match=r"dropout is 0\.5"):
        model(IDS, labels=IDS)


def test_without_training_the_error_says_how_to_have_gradients():
    model = made("llama2")
    accelerate(model)
    with pytest.raises(RuntimeError, match=r"accelerate\(model, training=True\)"):
        model(IDS)


@pytest.mark.slow
def test_the_trainer_of_transformers_trains_it(tmp_path):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs the package accelerate")
    from transformers import Trainer, TrainingArguments

    model = made("qwen3").train()
    accelerate(model, training=True)
    rows = [{"input_ids": row, "labels": row} for row in IDS] * 8
    settings = TrainingArguments(
        tmp_path,
        use_cpu=True,
        max_steps=6,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = Trainer(model, settings, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
