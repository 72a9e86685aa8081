"""`simdformer.torch.nn` and models on tensors: the answers of those on arrays, as tensors."""

import copy
import inspect

import numpy as np
import pytest
import torch

import simdformer as sf
import simdformer.torch as sft
from checkpoints import random_weights, tiny_config
from conftest import same_bits
from simdformer.arguments import as_array
from simdformer.models import Trace
from simdformer.models import Transformer as ArrayTransformer
from simdformer.torch import nn


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype) / 2


def layers(kind, dtype=torch.float32):
    """Each layer, made by `kind` (sf.nn or nn) of the same weights, with what it is called with."""
    torch.manual_seed(4)

    def weights(count, *shape):
        return [random(*shape, dtype=dtype) for _ in range(count)]

    wq, wk, wv, wo = weights(4, 8, 8)
    gate, up = weights(2, 12, 8)
    (down,) = weights(1, 8, 12)
    norm, x = random(8, dtype=dtype), random(2, 5, 8, dtype=dtype)
    mlp = kind.MLP(gate, up, down)
    attention = kind.GroupedQueryAttention(
        8, 4, 2, wq, wk[:4], wv[:4], wo, q_norm=norm[:2], norm_eps=1e-5, rope_layout="half"
    )
    experts = [weights(3, *shape) for shape in ((12, 8), (12, 8), (8, 12))]
    return {
        "MLP": (mlp, (x,), {}),
        "Embedding": (kind.Embedding(wq), (torch.tensor([[1, 7]]),), {}),
        "RMSNorm": (kind.RMSNorm(norm, 1e-5), (x,), {}),
        "LayerNorm": (kind.LayerNorm(norm, norm, eps=1e-5), (x,), {}),
        "MultiHeadAttention": (
            kind.MultiHeadAttention(8, 2, wq, wk, wv, wo),
            (x, x[:, :3], x[:, :3]),
            {"mask": torch.ones(5, 3).tril()},
        ),
        "GroupedQueryAttention": (
            attention,
            (x,),
            {"mask": torch.ones(5, 5).tril().bool(), "positions": torch.arange(5) + 3},
        ),
        "MixtureOfExperts": (
            kind.MixtureOfExperts(wq[:3], *experts, num_experts_per_tok=2, shared=mlp),
            (x,),
            {},
        ),
        "TransformerBlock": (
            kind.TransformerBlock(attention, mlp, kind.RMSNorm(norm, 1e-5), mlp_norm=mlp),
            (x, "causal"),
            {},
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", nn.__all__)
def test_a_layer_gives_what_that_of_arrays_gives(name, dtype):
    (ours, args, kwargs), (theirs, *_) = layers(nn, dtype)[name], layers(sf.nn, dtype)[name]
    got = ours(*args, **kwargs)
    want = theirs(*args, **kwargs)
    assert isinstance(got, torch.Tensor)
    assert same_bits(as_array("test", "got", got), want)
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, torch.nn.Module)
    assert isinstance(ours, getattr(nn, name))
    assert torch.equal(copy.deepcopy(ours)(*args, **kwargs), got)
    assert not ours.state_dict()
    assert "Array" not in str(inspect.signature(getattr(nn, name)))
    assert getattr(nn, name).__doc__.startswith(f"`simdformer.nn.{name}` on tensors")


def test_methods_besides_the_call():
    embedding, _, _ = layers(nn)["Embedding"]
    x = random(3, 8)
    assert torch.equal(embedding.as_linear(x), sft.linear(x, embedding.weights[0]))
    experts, (x,), _ = layers(nn)["MixtureOfExperts"]
    chosen, shares = experts.route(x)
    assert chosen.shape == shares.shape == (2, 5, 2)
    assert chosen.dtype is torch.int64
    assert shares.sum(-1).allclose(torch.ones(2, 5))


def test_weights_are_those_that_were_given():
    weight, x = torch.nn.Parameter(torch.ones(8)), random(3, 8)
    norm = nn.RMSNorm(weight, 1e-5)
    with pytest.raises(RuntimeError, match="RMSNorm: no gradient"):
        norm(x)
    with torch.no_grad():
        before = norm(x)
        weight.mul_(2)
        assert torch.equal(norm(x), before * 2)
    weight.requires_grad_(False)
    assert torch.equal(norm(x), before * 2)
    with pytest.raises(RuntimeError, match="RMSNorm: no gradient"):
        norm(x.clone().requires_grad_())


def test_a_block_asks_its_parts_for_gradients():
    block, args, _ = layers(nn)["TransformerBlock"]
    block.parts[0].weights[0].requires_grad_()
    with pytest.raises(RuntimeError, match="TransformerBlock: no gradient"):
        block(*args)


def test_modules_of_pytorch_are_parts_of_a_block():
    attention, (x,), _ = layers(nn)["GroupedQueryAttention"]
    norm, mlp = (
        torch.nn.LayerNorm(8),
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout()),
    )
    block = nn.TransformerBlock(attention, mlp, norm, norm)
    assert "LayerNorm((8,)" in repr(block)
    block.eval()  # reaches the dropout
    with torch.no_grad():
        h = x + attention(norm(x), mask="causal")
        torch.testing.assert_close(block(x, mask="causal"), h + mlp(norm(h)))
    with pytest.raises(RuntimeError, match="LayerNorm: no gradient"):
        block(x)


def test_packed_weights_in_a_layer():
    w = random(8, 8)
    layer = nn.MLP(sft.pack(w), sft.pack(w), down=w)
    torch.testing.assert_close(layer(w), nn.MLP(w, w, w)(w))


def test_wrong_layers_are_refused_as_those_of_arrays():
    w = random(8, 8)
    for make in (
        lambda kind: kind.MLP(w, w[:3], w),
        lambda kind: kind.MultiHeadAttention(8, 3, w, w, w, w),
        lambda kind: kind.RMSNorm(w[0], 1e-5)(w[:, :3]),
        lambda kind: kind.MLP(w, w, w)(w, w),
    ):
        with pytest.raises((ValueError, TypeError)) as ours:
            make(nn)
        with pytest.raises(type(ours.value)) as theirs:
            make(sf.nn)
        assert str(ours.value) == str(theirs.value)


# ---- models --------------------------------------------------------------------------------------

TEXT = "Mia has a red kite."


@pytest.fixture(scope="module")
def models():
    return sf.from_pretrained(sf.demo_path()), sft.from_pretrained(sf.demo_path())


def test_a_model_gives_the_same_as_tensors(models):
    theirs, ours = models
    ids = torch.tensor(theirs.encode(TEXT))
    want = theirs(TEXT)
    for given in (TEXT, ids, ids.to(torch.int32), ids.tolist()):
        got = ours(given)
        assert isinstance(got, torch.Tensor)
        assert same_bits(got.numpy(), want)
    assert same_bits(ours(ids[None], logits_to_keep=2).numpy(), want[None, -2:])
    assert [one.shape for one in ours([TEXT, "Mia"])] == [
        one.shape for one in theirs([TEXT, "Mia"])
    ]
    assert same_bits(ours.loss(TEXT).numpy(), theirs.loss(TEXT))
    assert ours.generate(TEXT, max_new_tokens=4) == theirs.generate(TEXT, max_new_tokens=4)
    assert ours.generate(ids, max_new_tokens=4) == theirs.generate(ids, max_new_tokens=4)
    assert ours.tokenizer is not None
    cache = ours.new_cache()
    ours(ids[:3], cache)
    torch.testing.assert_close(ours(ids[3:], cache), torch.from_numpy(want[3:]))


def test_a_trace_holds_tensors(models):
    theirs, ours = models
    logits, trace = ours.run_with_cache(TEXT)
    _, want = theirs.run_with_cache(TEXT)
    assert isinstance(logits, torch.Tensor)
    assert isinstance(trace, sft.Trace)
    assert isinstance(trace, Trace)
    assert trace.tokens == want.tokens
    for name, tensor in trace.items():
        assert isinstance(tensor, torch.Tensor)
        assert same_bits(tensor.numpy(), want[name])
    assert torch.equal(trace["pattern", 4], trace[4]["attn.pattern"])
    assert all(isinstance(one, torch.Tensor) for one in trace["layers.*.resid_post"].values())
    scores = sf.head_scores(trace)
    for name, one in sf.head_scores(want).items():
        np.testing.assert_array_equal(scores[name], one)
    _, (first, _) = ours.run_with_cache([TEXT, "Mia"])
    assert isinstance(first["embed"], torch.Tensor)
    sf.logit_lens(ours, TEXT)  # what looks into models takes this one


def test_edits_are_functions_of_tensors(models):
    theirs, ours = models
    want = theirs(TEXT, edit={"layers.2.mlp.out": np.zeros_like})
    seen = []

    def zeros(value):
        seen.append(type(value))
        return torch.zeros_like(value)

    def in_place(value):
        value.zero_()

    for edit in (zeros, in_place, torch.zeros(()), torch.zeros((), dtype=torch.bfloat16)):
        assert same_bits(ours(TEXT, edit={"layers.2.mlp.out": edit}).numpy(), want)
    assert seen == [torch.Tensor]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, "float16"], ids=str)
def test_a_transformer_of_a_state_dict(dtype, rng):
    config = tiny_config()
    arrays = random_weights(rng, config)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    name = "bfloat16" if dtype is torch.bfloat16 else dtype
    model = sft.Transformer(config, tensors, dtype=dtype)
    want = ArrayTransformer(config, arrays, dtype=name)([3, 1, 4])
    assert same_bits(model(torch.tensor([3, 1, 4])).numpy(), want)
    assert len(model.generate([3, 1], max_new_tokens=3)) == 3
    assert isinstance(model, sft.LanguageModel)


def test_dtypes_of_pytorch_load_a_model():
    model = sft.from_pretrained(sf.demo_path(), torch.bfloat16, activations=torch.bfloat16)
    assert str(model.transformer.weights.embed.dtype) == "bfloat16"
    assert str(model.transformer.activations) == "bfloat16"
    with pytest.raises(TypeError):
        sft.from_pretrained(sf.demo_path(), torch.int8)
