"""Models of PyTorch's tensors: weights, keys and values, prompts."""

import ml_dtypes
import numpy as np
import pytest
import torch

import simdformer as sf
from checkpoints import random_weights, tiny_config
from conftest import same_bits, to_torch
from simdformer.models import KVCache, PagedKVCache, Transformer
from simdformer.text import Sampler

IDS = [3, 1, 4, 1, 5]
KINDS = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
}


@pytest.fixture
def config():
    return tiny_config()


@pytest.fixture
def arrays(rng, config):
    return random_weights(rng, config)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_a_model_is_made_of_tensors(dtype, config, arrays):
    tensors = {name: to_torch(array).to(dtype) for name, array in arrays.items()}
    rounded = {name: array.astype(KINDS[dtype]) for name, array in arrays.items()}
    model = Transformer(config, tensors)
    assert model.weights.embed.dtype == KINDS[dtype]
    want = Transformer(config, rounded)(IDS)
    assert same_bits(model(IDS), want)
    assert same_bits(model(torch.tensor(IDS)), want)
    for tensor in tensors.values():  # it has weights of its own
        tensor.zero_()
    assert same_bits(model(IDS), want)


def test_parameters_are_weights_while_no_gradient_is_recorded(config, arrays):
    parameters = {name: torch.nn.Parameter(to_torch(array)) for name, array in arrays.items()}
    with pytest.raises(BufferError, match=r"model: embed requires a gradient, .* no gradient"):
        Transformer(config, parameters)
    with torch.no_grad():
        model = Transformer(config, parameters)
    assert same_bits(model(IDS), Transformer(config, arrays)(IDS))


def test_lists_are_weights_too(config, arrays):
    lists = {name: array.tolist() for name, array in arrays.items()}
    assert same_bits(
        Transformer(config, lists, dtype="float32")(IDS), Transformer(config, arrays)(IDS)
    )


def test_a_tensor_that_is_elsewhere_is_named(config, arrays):
    tensors = {name: to_torch(array) for name, array in arrays.items()}
    tensors["layers.1.wq"] = tensors["layers.1.wq"].to("meta")
    with pytest.raises(BufferError, match=r"model: layers\.1\.wq does not hand out its memory"):
        Transformer(config, tensors)


def test_a_state_dict_in_other_names_is_told_who_reads_it(config, arrays):
    theirs = {f"model.{name}.weight": to_torch(array) for name, array in arrays.items()}
    with pytest.raises(ValueError, match="model") as caught:
        Transformer(config, theirs)
    assert str(caught.value) == (
        "model: weights are called 'model.embed.weight' ..., needs the names of "
        "weight_shapes(config): embed, layers.0.attn_norm, layers.0.wq, layers.0.wk ...; those of "
        "a checkpoint are read by from_pretrained"
    )
    with pytest.raises(ValueError, match="missing: embed"):
        Transformer(config, theirs | {"final_norm": arrays["final_norm"]})


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_keys_and_values_are_tensors(dtype, rng):
    kind = str(np.dtype(KINDS[dtype]))
    key, value = torch.randn(2, 1, 3, 5, 4).to(dtype)  # (B,K,T,D) of each
    cache = KVCache(num_layers=2, num_kv_heads=3, head_dim=4, max_seq_len=8, dtype=kind)
    cache.write(1, key, value)
    cache.advance(5)
    keys, values = cache.write(1, key[:, :, :2], value[:, :, :2])
    assert torch.equal(torch.tensor(keys[:, :, :5].astype(np.float32)), key.float())
    assert torch.equal(torch.tensor(values[:, :, 5:].astype(np.float32)), value[:, :, :2].float())

    pages = PagedKVCache(num_layers=2, num_kv_heads=3, head_dim=4, page_size=16, dtype=kind)
    text = pages.open(torch.arange(20))
    for start in range(0, 20, 5):
        text.reserve(5)
        text.write(1, key[0], value[0])
        text.advance(torch.arange(start, start + 5))
    assert text.ids == list(range(20))
    assert pages.open(torch.arange(20)).length == 16  # found again by its ids
    query = torch.randn(3, 1, 4)
    got = sf.scaled_dot_product_attention(
        query, pages.key_pages(1), pages.value_pages(1), block_table=text.pages, key_lengths=20
    )
    want = sf.scaled_dot_product_attention(query, key[0].repeat(1, 4, 1), value[0].repeat(1, 4, 1))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_logits_are_tensors():
    logits = torch.randn(20).bfloat16()
    for options in ({}, {"temperature": 0.7, "seed": 1}):
        want = Sampler(**options)(logits.double().numpy())
        assert Sampler(**options)(logits) == want
    assert same_bits(Sampler().probabilities(logits), np.eye(20)[int(logits.argmax())])


def test_prompts_are_tensors():
    model = sf.from_pretrained(sf.demo_path())
    ids = [model.encode(text) for text in ("Once upon a time", "Mia has a red")]
    shortest = min(map(len, ids))
    rows = [row[:shortest] for row in ids]
    want = model.generate(rows, max_new_tokens=4)
    assert model.generate(torch.tensor(rows), max_new_tokens=4) == want
    assert model.generate(torch.tensor(rows[0]), max_new_tokens=4) == want[0]
    assert same_bits(model.loss(torch.tensor(rows[1])), model.loss(rows[1]))
