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


def layers(kind, dtype=torch.float32, held=lambda weight: weight):
    """Each layer, made by `kind` (sf.nn or nn) of the same weights, with what it is called with;
    `held` makes what a layer is given of a weight."""
    torch.manual_seed(4)

    def weights(count, *shape):
        return [held(random(*shape, dtype=dtype)) for _ in range(count)]

    wq, wk, wv, wo = weights(4, 8, 8)
    gate, up = weights(2, 12, 8)
    (down,) = weights(1, 8, 12)
    (norm, two), (wk4, wv4), (router,) = weights(2, 8), weights(2, 4, 8), weights(1, 3, 8)
    (head_norm,), x = weights(1, 2), random(2, 5, 8, dtype=dtype)
    mlp = kind.MLP(gate, up, down)
    attention = kind.GroupedQueryAttention(
        8, 4, 2, wq, wk4, wv4, wo, q_norm=head_norm, norm_eps=1e-5, rope_layout="half"
    )
    experts = [weights(3, *shape) for shape in ((12, 8), (12, 8), (8, 12))]
    return {
        "MLP": (mlp, (x,), {}),
        "Embedding": (kind.Embedding(wq), (torch.tensor([[1, 7]]),), {}),
        "RMSNorm": (kind.RMSNorm(norm, 1e-5), (x,), {}),
        "LayerNorm": (kind.LayerNorm(norm, two, eps=1e-5), (x,), {}),
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
            kind.MixtureOfExperts(router, *experts, num_experts_per_tok=2, shared=mlp),
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
    assert torch.equal(embedding.as_linear(x), sft.linear(x, embedding.weight))
    experts, (x,), _ = layers(nn)["MixtureOfExperts"]
    chosen, shares = experts.route(x)
    assert chosen.shape == shares.shape == (2, 5, 2)
    assert chosen.dtype is torch.int64
    assert shares.sum(-1).allclose(torch.ones(2, 5))


def test_weights_are_those_that_were_given():
    weight, x = torch.ones(8), random(3, 8)
    norm = nn.RMSNorm(weight, 1e-5)
    before = norm(x)
    weight.mul_(2)
    assert torch.equal(norm(x), before * 2)
    assert not norm.state_dict()  # a tensor that is no parameter is none of the layer's either


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", nn.__all__)
def test_the_gradients_of_a_layer_are_those_of_differences(name):
    layer, (first, *rest), kwargs = layers(nn, torch.float64, torch.nn.Parameter)[name]
    parameters = {name: one.detach() for name, one in layer.named_parameters()}
    assert parameters

    def called(x, *tensors):
        given = dict(zip(parameters, tensors, strict=True))
        return torch.func.functional_call(layer, given, (x, *rest), kwargs)

    floats = [first, *parameters.values()]
    wanting = [one.clone().requires_grad_(one.is_floating_point()) for one in floats]
    # PyTorch's own bounds for differences in float64.
    assert torch.autograd.gradcheck(called, wanting, fast_mode=True)
    with torch.no_grad():
        want = layer(first, *rest, **kwargs)
    tolerance = 1e-15 if name == "MixtureOfExperts" else 0  # whose sums are PyTorch's then
    torch.testing.assert_close(layer(first, *rest, **kwargs).detach(), want, rtol=0, atol=tolerance)


def test_a_layer_trains():
    """With PyTorch's optimizer; its parameters are called as the arguments are."""
    block, args, _ = layers(nn, held=torch.nn.Parameter)["TransformerBlock"]
    assert [name for name, _ in block.named_parameters()] == [
        *(f"attention.{name}" for name in ("wq", "wk", "wv", "wo", "q_norm")),
        *(f"mlp.{name}" for name in ("gate", "up", "down")),
        "attn_norm.weight",
    ]
    goal, losses = random(2, 5, 8), []
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.02)
    for _ in range(20):
        loss = (block(*args) - goal).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]

    other, _, _ = layers(nn, held=lambda one: torch.nn.Parameter(one * 0))["TransformerBlock"]
    for assign in (False, True):
        other.load_state_dict(block.state_dict(), assign=assign)
        assert torch.equal(other(*args), block(*args))
    half = other.to(torch.bfloat16)(args[0].bfloat16(), *args[1:])
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.float(), block(*args), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("form", ["list", "stacked"])
def test_experts_train_as_a_list_and_along_an_axis(form):
    plain = layers(nn)["MixtureOfExperts"][0]
    experts = [torch.stack(one) for one in (plain.gate, plain.up, plain.down)]
    as_one = [torch.nn.Parameter(one.clone()) for one in experts]
    as_list = [[torch.nn.Parameter(one.clone()) for one in stack] for stack in experts]
    given, x = as_one if form == "stacked" else as_list, random(7, 8)
    layer = nn.MixtureOfExperts(plain.router, *given, num_experts_per_tok=2)
    count = {"list": 9, "stacked": 3}[form]
    assert sum(1 for _ in layer.parameters()) == count
    for _ in range(2):  # no graph of the first call is used up in the second
        gradients = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))

    def in_pytorch(gate, up, down):
        shares, ids = (x @ plain.router.T).topk(2)
        inner = torch.nn.functional.silu(torch.einsum("te,xie->txi", x, gate))
        all_of_them = torch.einsum("txi,xei->txe", inner * torch.einsum("te,xie->txi", x, up), down)
        chosen = all_of_them.gather(1, ids[..., None].expand(-1, -1, 8))
        return (chosen * shares.softmax(-1)[..., None]).sum(1)

    want = torch.autograd.grad(in_pytorch(*as_one).square().sum(), as_one)
    if form == "list":
        gradients = [torch.stack(gradients[at : at + 3]) for at in (0, 3, 6)]
    for one, other in zip(gradients, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_layer_of_quantised_weights_hands_gradients_on():
    """To what comes before it, and to those of its weights that are tensors."""
    gate, up, down = random(64, 32), random(64, 32), torch.nn.Parameter(random(32, 64))
    few = [sft.quantize(one, "q8_0") for one in (gate, up)]
    same = [torch.from_numpy(one.dequantize()) for one in few]
    x = random(3, 32).requires_grad_()
    got, want = (
        torch.autograd.grad(nn.MLP(*weights, down)(x).square().sum(), (x, down))
        for weights in (few, same)
    )
    for one, other in zip(got, want, strict=True):  # the forward rounds x to 16-bit integers
        assert float((one - other).norm()) < 1e-3 * float(other.norm())


def test_modules_of_pytorch_are_parts_of_a_block():
    attention, (x,), _ = layers(nn)["GroupedQueryAttention"]
    norm, mlp = (
        torch.nn.LayerNorm(8),
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout()),
    )
    block = nn.TransformerBlock(attention, mlp, norm, norm)
    assert "LayerNorm((8,)" in repr(block)
    block.eval()  # reaches the dropout
    h = x + attention(norm(x), mask="causal")
    torch.testing.assert_close(block(x, mask="causal"), h + mlp(norm(h)))
    block(x).sum().backward()
    assert all(one.grad is not None for one in block.parameters())


@pytest.mark.slow
def test_a_graph_of_layers_stays_whole():
    block, args, _ = layers(nn, held=torch.nn.Parameter)["TransformerBlock"]
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    ways = [
        torch.autograd.grad(way(*args).sum(), list(block.parameters())) for way in (block, compiled)
    ]
    for one, other in zip(*ways, strict=True):
        assert torch.equal(one, other)


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
