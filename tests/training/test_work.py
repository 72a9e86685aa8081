"""What a step takes: the operations are those that its products have, counted one by one."""

import numpy as np
import pytest

import simdformer as sf
from simdformer import backward, loss
from simdformer.loss import BLOCK_BYTES, linear_cross_entropy_in_parts
from simdformer.models import ModelConfig
from simdformer.models.weights import weight_shapes
from simdformer.training import LoRAModel, TrainableModel, parts, step
from simdformer.training.work import flops_of_token, logits_bytes, visible_keys, work_of_step

MINIMIND = ModelConfig(
    hidden_size=512, num_layers=8, num_heads=8, num_kv_heads=2, head_dim=64,
    intermediate_size=1408, vocab_size=6400, max_seq_len=512, norm_eps=1e-5, rope_theta=1e6,
    rope_layout="half", tie_embeddings=True,
)  # fmt: skip
GPT2 = ModelConfig(
    hidden_size=768, num_layers=12, num_heads=12, num_kv_heads=12, head_dim=64,
    intermediate_size=3072, vocab_size=50257, max_seq_len=1024, norm_eps=1e-5, rope_theta=1e4,
    rope_layout="half", tie_embeddings=True, positions="learned", norm="layer_norm",
    gated_mlp=False, activation="gelu_tanh", qkv_bias=True, wo_bias=True, mlp_bias=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "length", "mflop"), [(MINIMIND, 512, 170), (GPT2, 64, 745), (GPT2, 1024, 807)]
)
def test_known_models(config, length, mflop):
    """As counted by hand, in millions a token."""
    parameters = {name: np.empty(0) for name in weight_shapes(config)}
    assert flops_of_token(config, parameters, length) / 1e6 == pytest.approx(mflop, rel=0.01)


@pytest.mark.parametrize("checkpoint", ["none", "mlp", "layer"])
@pytest.mark.parametrize("lora", [False, True])
def test_products_are_counted(monkeypatch, checkpoint, lora):
    """Each product of a step adds what it does; attention is left out, of which the kernels skip
    what is hidden by tiles."""
    counted = 0

    def forward(x, weight, *rest, **named):
        nonlocal counted
        for one in weight if isinstance(weight, list) else [weight]:
            counted += 2 * x.size * one.shape[0]
        return sf.linear(x, weight, *rest, **named)

    def back(grad, x, weight, *, needs, **named):
        nonlocal counted
        for one in weight if isinstance(weight, list) else [weight]:
            counted += 2 * x.size * one.shape[0] * len({"x", "weight"} & set(needs))
        return linear_backward(grad, x, weight, needs=needs, **named)

    def head(x, weight, *rest, **named):
        nonlocal counted
        counted += 3 * 2 * x.size * weight.shape[0]
        return linear_cross_entropy_in_parts(x, weight, *rest, **named)

    linear_backward = backward.linear
    monkeypatch.setattr(parts, "linear", forward)
    monkeypatch.setattr(step, "linear_cross_entropy_in_parts", head)
    monkeypatch.setattr(parts.backward, "linear", back)
    kind = LoRAModel.from_pretrained if lora else TrainableModel.from_pretrained
    model = kind(sf.demo_path())
    config = model.config
    ids = np.arange(64).reshape(2, 32)
    model.loss_and_gradients(ids, checkpoint=checkpoint)
    attention = config.num_layers * 4 * visible_keys(32, None) * config.num_heads * config.head_dim
    attention *= 3.5 + (checkpoint == "layer")
    found = flops_of_token(config, model.parameters(), 32, checkpoint) - attention
    if lora:  # what is computed again has its adapters too, which are small
        assert counted / 64 == pytest.approx(found, rel=0.1)
    else:
        assert counted / 64 == pytest.approx(found, rel=1e-6)


def test_keys_that_are_seen():
    for length, window in ((7, None), (7, 3), (5, 9), (1, 1)):
        seen = [min(at + 1, window or length) for at in range(length)]
        assert visible_keys(length, window) == pytest.approx(np.mean(seen))


def test_memory_grows_with_what_is_kept():
    parameters = {name: np.empty(10) for name in weight_shapes(MINIMIND)}
    sizes = [
        work_of_step(MINIMIND, parameters, rows=32, length=512, checkpoint=kind).activations
        for kind in ("none", "mlp", "layer")
    ]
    assert sizes[0] > 1.8 * sizes[1] > 1.8 * 1.5 * sizes[2]
    parts = work_of_step(MINIMIND, parameters, rows=32, length=512, micro_batches=4)
    assert parts.activations < sizes[0] / 3
    assert parts.gradients == 3 * 4 * sum(array.size for array in parameters.values())


def test_few_tokens_have_all_logits_at_once(monkeypatch):
    """A quarter of GPT-2's step goes into its head: each logit is computed once there."""
    assert logits_bytes(GPT2, 384) == 4 * 384 * 50257
    assert logits_bytes(GPT2, 385) == logits_bytes(GPT2, 9) == BLOCK_BYTES
    memory = [work_of_step(GPT2, {}, rows=1, length=length).activations for length in (384, 385)]
    assert memory[0] > memory[1]

    monkeypatch.setattr(loss, "BLOCK_BYTES", 1)
    monkeypatch.setattr(step, "logits_bytes", lambda config, tokens: 1)
    model = TrainableModel.from_pretrained(sf.demo_path())
    ids = np.arange(48).reshape(2, 24)
    want, gradients = model.loss_and_gradients(ids)
    monkeypatch.setattr(step, "logits_bytes", lambda config, tokens: BLOCK_BYTES)
    monkeypatch.setattr(loss, "by_vocabulary", None)  # it is not called
    found, others = model.loss_and_gradients(ids)
    assert found == pytest.approx(want, rel=1e-6)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(others[name], gradient, 1e-3, 1e-5 * abs(gradient).max())
