"""`torch.ops.simdformer`: what torch.compile and torch.export see of us."""

import functools
import inspect

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import simdformer as sf
import simdformer.torch as sft
from conftest import same_bits
from simdformer.arguments import as_array
from simdformer.tensors.gradients import GRADIENTS
from simdformer.tensors.operators import OPERATORS, PAIRS, linear_cross_entropy
from simdformer.tensors.wrapping import on_tensors

operators = torch.ops.simdformer
BACKENDS = ["eager", "aot_eager"]
X, W = torch.randn(2, 6, 8), torch.randn(8, 8)
Q, KV = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)

LOGITS, LABELS = torch.randn(2, 3, 9), torch.tensor([[0, 8, 3], [5, 1, 1]])
LOSS = {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 3.0}

# Calls of each operator, with the options that models use.
CALLS = {
    "silu": [((X,), {})],
    "relu": [((X,), {})],
    "gelu": [((X,), {}), ((X,), {"approximate": "tanh"})],
    "swiglu": [((X, X + 1), {})],
    "softmax": [((X,), {}), ((X, 1), {"temperature": 0.5})],
    "rms_norm": [((X, W[0]), {"eps": 1e-5}), ((X.mT,), {"eps": 1e-5})],
    "layer_norm": [((X, W[0], W[1]), {"eps": 1e-5}), ((X,), {"eps": 1e-5})],
    "rope": [
        ((X,), {"layout": "half", "offset": 3}),
        ((X, torch.arange(12).reshape(2, 6)), {"layout": "interleaved", "rotary_dim": 4}),
        ((X, None, torch.ones(4)), {"layout": "half", "attention_factor": 1.5}),
    ],
    "linear": [((X, W), {}), ((X.bfloat16(), W[:3].bfloat16(), W[0, :3]), {})],
    "linear.list": [((X, [W, W[:3]]), {}), ((X, [W, W[:3]], [None, W[0, :3]]), {})],
    "embedding": [
        ((torch.tensor([[1, 2]]), W), {}),
        ((torch.tensor([3]), W), {"dtype": torch.bfloat16}),
    ],
    "repeat_kv": [((KV, 2), {}), ((KV, 3), {"axis": 0})],
    "scaled_dot_product_attention": [
        ((Q, KV, KV[..., :3]), {}),
        ((Q, Q, Q), {"is_causal": True, "window": [1, 0], "softcap": 5.0, "scale": 0.3}),
        ((Q, KV, KV, torch.ones(5, 7).bool()), {"sinks": torch.ones(4)}),
        (
            (Q, KV, KV),
            {
                "is_causal": True,
                "causal_offset": torch.tensor([2, 1]),
                "key_lengths": torch.tensor([7, 6]),
            },
        ),
        ((Q[:1], KV, KV), {"window": [1, 2], "chunk": 3, "causal_offset": torch.tensor(2)}),
        (
            (Q[:1], Q, Q),
            {"segment_ids": [torch.tensor([0, 0, 1, 1, 1])], "key_starts": torch.tensor([0, 2])},
        ),
        ((Q, Q, Q), {"window": [2, None]}),
        ((Q, Q, Q), {"window": [2]}),
        (
            (Q[0], KV[0], KV[0]),
            {"cu_seqlens": [torch.tensor([0, 2, 5]), torch.tensor([0, 4, 7])]},
        ),
        (
            (Q, torch.randn(3, 2, 16, 8), torch.randn(3, 2, 16, 8)),
            {"block_table": torch.tensor([[0, 2], [1, 2]]), "key_lengths": torch.tensor([20, 9])},
        ),
    ],
    "scaled_dot_product_attention.parts": [
        ((Q.bfloat16(), KV.bfloat16(), KV.bfloat16()), {"return_lse": True}),
        ((Q, Q, Q), {"is_causal": True, "return_weights": True, "return_scores": True}),
    ],
    "log_softmax": [((X,), {}), ((X, 1), {})],
    "cross_entropy": [
        ((LOGITS, LABELS), {}),
        ((LOGITS.bfloat16(), LABELS), {"reduction": "sum", **LOSS}),
        ((LOGITS, LABELS), {"reduction": "none", "ignore_index": 8}),
    ],
    "cross_entropy.parts": [((LOGITS, LABELS), {"return_lse": True, "reduction": "none"})],
    "linear_cross_entropy": [
        ((X[0], W, torch.arange(6)), {"needs": ["x", "weight"]}),
        ((X[0].bfloat16(), W, torch.arange(6)), {"needs": ["weight"], "count": 9, **LOSS}),
        ((X, W, torch.zeros(2, 6).long()), {"needs": [], "reduction": "sum"}),
    ],
}
NO_OPERATORS = (
    "accelerate restore causal_mask from_pretrained pack quantization_types quantize "
    "rope_frequencies"
)


def operator_of(name):
    base, _, overload = name.partition(".")
    return getattr(getattr(operators, base), overload or "default")


def function_of(name):
    """That gives what an operator gives."""
    if name == "linear_cross_entropy":
        return on_tensors(linear_cross_entropy)
    return getattr(sft, name.partition(".")[0])


def by_name(name, args, kwargs):
    """The arguments of an operator as its function has them."""
    names = [argument.name for argument in operator_of(name)._schema.arguments]
    named = dict(zip(names, args, strict=False)) | kwargs
    for pair in named.keys() & set(PAIRS):
        named[pair] = tuple(named[pair]) if len(named[pair]) == 2 else named[pair][0]
    return named


def test_every_operator_has_the_arguments_of_its_function():
    assert set(OPERATORS) == set(CALLS)
    assert set(sf.functional.__all__) <= set(sft.__all__)
    functions = {name for name in sft.__all__ if inspect.isfunction(getattr(sft, name))}
    assert functions - set(CALLS) == set(NO_OPERATORS.split())
    for name in OPERATORS:
        base = name.partition(".")[0]
        theirs = set(inspect.signature(getattr(sf, base)).parameters)
        ours = {argument.name for argument in operator_of(name)._schema.arguments}
        without = {"out"}
        if name == "scaled_dot_product_attention":  # of the overload ".parts"
            without |= {"return_weights", "return_scores", "return_lse"}
        elif name == "cross_entropy":
            without |= {"return_lse"}
        assert ours == theirs - without, name
        for argument in operator_of(name)._schema.arguments:
            if argument.has_default_value():
                default = inspect.signature(getattr(sf, base)).parameters[argument.name].default
                assert argument.default_value == default, (name, argument.name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_pytorch_finds_nothing_wrong_with_an_operator(name):
    for args, kwargs in CALLS[name]:
        torch.library.opcheck(operator_of(name), args, kwargs)


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_gives_what_its_functions_of_tensors_and_of_arrays_give(name):
    for args, kwargs in CALLS[name]:
        named = by_name(name, args, kwargs)
        got = tree_leaves(operator_of(name)(*args, **kwargs))
        for one, other in zip(got, tree_leaves(function_of(name)(**named)), strict=True):
            assert torch.equal(one, other)
            assert one.dtype is other.dtype
        if "dtype" in named:
            named["dtype"] = str(named["dtype"]).removeprefix("torch.")
        base = name.partition(".")[0]
        of_arrays = linear_cross_entropy if base == "linear_cross_entropy" else getattr(sf, base)
        for one, other in zip(got, tree_leaves(of_arrays(**named)), strict=True):
            assert same_bits(as_array("test", "got", one), np.asarray(other))


# ---- gradients -----------------------------------------------------------------------------------

# What has no gradient, by what refuses it.
REFUSED = ("block_table", "return_weights")
GRADED = [
    (name, args, kwargs)
    for name, calls in CALLS.items()
    for args, kwargs in calls
    if not any(option in kwargs for option in REFUSED)
]


def wide(value):
    """Floats in float64, and with a gradient; ids, masks and lengths as they are."""
    if isinstance(value, list) and None in value:  # autograd sees no tensors in such a list
        return [one.double() if torch.is_tensor(one) else one for one in value]
    if isinstance(value, list | tuple):
        return type(value)(map(wide, value))
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double().requires_grad_() if floats else value


def of_one_list(name, args, kwargs):
    """A call of an operator on float64 as a function of the tensors with a gradient."""
    args = list(wide(args))
    if name == "rope":  # frequencies are constants
        args[1:] = [one.detach() if isinstance(one, torch.Tensor) else one for one in args[1:]]
    kwargs = {option: wide(value) for option, value in kwargs.items()} | (
        {"dtype": torch.float64} if "dtype" in kwargs else {}
    )
    base = name.partition(".")[0]
    if base == "linear_cross_entropy":
        kwargs["needs"] = ["x", "weight"]
    leaves, spec = tree_flatten((args, kwargs))
    places = [at for at, leaf in enumerate(leaves) if torch.is_tensor(leaf) and leaf.requires_grad]
    operator = operator_of(name)

    def called(*tensors, call=operator):
        given = list(leaves)
        for at, tensor in zip(places, tensors, strict=True):
            given[at] = tensor
        args, kwargs = tree_unflatten(given, spec)
        results = call(*args, **kwargs)
        if base in ("cross_entropy", "linear_cross_entropy"):  # the loss alone has a gradient
            return results if torch.is_tensor(results) else results[0]
        return tuple(results) if isinstance(results, list) else results

    return called, [leaves[at].detach().clone().requires_grad_() for at in places]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "args", "kwargs"), GRADED)
def test_the_gradient_of_an_operator_is_that_of_differences(name, args, kwargs):
    called, tensors = of_one_list(name, args, kwargs)
    assert tensors
    # PyTorch's own bounds for differences in float64.
    assert torch.autograd.gradcheck(called, tensors)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "args", "kwargs"), GRADED)
def test_pytorch_finds_nothing_wrong_with_a_gradient(name, args, kwargs):
    called, tensors = of_one_list(name, args, kwargs)

    def function(*args, **kwargs):
        named = by_name(name, args, kwargs)
        named.pop("needs", None)
        return getattr(sft, name.partition(".")[0])(**named)

    by_function = functools.partial(called, call=function)
    wanted = []
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            wanted.append(tree_leaves(by_function(*tensors)))
    ways = []
    for way in (called, by_function, torch.compile(called, backend="aot_eager", fullgraph=True)):
        results = tree_leaves(way(*tensors))
        for want in wanted:
            for one, other in zip(results, want, strict=True):
                assert torch.equal(one, other)
                assert not other.requires_grad
        ways.append(torch.autograd.grad([one.square().sum() for one in results], tensors))
    for way in ways[1:]:
        for one, other in zip(ways[0], way, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()


@pytest.mark.parametrize("name", [name for name in GRADIENTS if not name.endswith(".parts")])
def test_there_is_no_second_derivative(name):
    called, tensors = of_one_list(name, *CALLS[name][0])
    results = [one.square().sum() for one in tree_leaves(called(*tensors))]
    base = name.partition(".")[0]
    with pytest.raises(RuntimeError, match=rf"^backward\.{base}: no gradient: there is no second"):
        torch.autograd.grad(results, tensors, create_graph=True)


@pytest.mark.slow
def test_the_way_back_is_an_operator_that_pytorch_finds_nothing_wrong_with():
    assert set(GRADIENTS) == set(OPERATORS)
    lse = torch.randn(2, 4, 5)
    backward = {
        "silu": ((X, X), {}),
        "relu": ((X, X), {}),
        "gelu": ((X, X), {"approximate": "tanh"}),
        "swiglu": ((X, X, X + 1), {}),
        "softmax": ((X, X.softmax(1), 1), {}),
        "rms_norm": ((X.bfloat16(), X.bfloat16(), W[0].bfloat16()), {"eps": 1e-5}),
        "layer_norm": ((X, X, W[0], W[1]), {"eps": 1e-5}),
        "rope": ((X,), {"layout": "half", "offset": 3}),
        "linear": ((X, X, W), {"needs": ["x", "bias"]}),
        "linear.list": (([X, X[..., :3]], X, [W, W[:3]]), {"needs": ["x", "weight", "bias"]}),
        "embedding": ((W[:2], torch.tensor([1, 2]), 8), {}),
        "repeat_kv": ((KV, 2), {}),
        "scaled_dot_product_attention": (
            (Q, Q, KV, KV, Q, lse),
            {"grad_lse": lse, "needs": ["query", "value"]},
        ),
        "log_softmax": ((X, X.log_softmax(1), 1), {}),
        "cross_entropy": ((torch.ones(2, 3), LOGITS, LABELS), {"reduction": "none", **LOSS}),
        "linear_cross_entropy": ((torch.ones(()), [X, W]), {}),
    }
    assert set(backward) == {name for name in GRADIENTS if not name.endswith(".parts")}
    for name, (args, kwargs) in backward.items():
        base, dot, overload = name.partition(".")
        torch.library.opcheck(operator_of(f"{base}_backward{dot}{overload}"), args, kwargs)


@pytest.mark.parametrize(
    ("option", "value"),
    [("return_weights", True), ("return_scores", True)],
)
def test_an_option_without_a_gradient_is_refused_by_name(option, value):
    q = Q.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=f"no gradient: a call with {option} has none"):
        sft.scaled_dot_product_attention(q, KV, KV, **{option: value})
    pages = {"block_table": torch.tensor([[0], [1]]), "key_lengths": [7, 7]}
    with pytest.raises(RuntimeError, match="no gradient: a call with block_table has none"):
        sft.scaled_dot_product_attention(
            q, KV.repeat(1, 1, 3, 1)[..., :16, :], KV.repeat(1, 1, 3, 1)[..., :16, :], **pages
        )
    with pytest.raises(RuntimeError, match="rope: no gradient: inv_freq has none"):
        sft.rope(X, layout="half", inv_freq=torch.ones(4, requires_grad=True))


# ---- torch.compile -------------------------------------------------------------------------------


def block(x, weights, offset, lengths):
    """(2,T,8): a layer of a transformer, with everything that it is made of."""
    normed = sft.rms_norm(x, weights[0][0], eps=1e-5)
    q, k, v = sft.linear(normed, weights[:3], [None, weights[0][1], None])
    q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (q, k, v))
    q, k = (sft.rope(one, layout="half", offset=offset) for one in (q, k))
    z = sft.scaled_dot_product_attention(
        q, k, v, is_causal=True, causal_offset=offset, key_lengths=lengths, key_starts=[0, 1]
    )
    _, lse = sft.scaled_dot_product_attention(q, k, v, window=(offset, None), return_lse=True)
    x = x + sft.linear(z.transpose(1, 2).flatten(-2), weights[3])
    normed = sft.layer_norm(x, eps=1e-5)
    gate = sft.linear(normed, weights[4], out=torch.empty_like(x))
    return sft.swiglu(gate, sft.gelu(normed)) + sft.softmax(x) * lse.mean(), gate


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
def test_a_graph_stays_whole(backend):
    weights = list(torch.randn(5, 8, 8))
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for steps, (length, offset) in enumerate([(6, 0), (6, 2), (7, 3), (9, 4), (11, 5), (20, 6)]):
        x, lengths = torch.randn(2, length, 8), torch.tensor([length, length - 2])
        for got, want in zip(
            compiled(x, weights, offset, lengths), block(x, weights, offset, lengths), strict=True
        ):
            assert torch.equal(got, want)
            assert got.stride() == want.stride()
        if steps == 3:
            graphs = counters["stats"]["unique_graphs"]
    assert counters["stats"]["unique_graphs"] == graphs  # lengths and offsets are symbols by then


def test_an_exported_program_holds_operators():
    class Model(torch.nn.Module):
        def forward(self, ids, weight):
            x = sft.embedding(ids, weight)
            return sft.linear(sft.rms_norm(x, eps=1e-6), weight)

    ids = torch.tensor([3, 1])
    program = torch.export.export(Model(), (ids, W))
    assert torch.equal(program.module()(ids, W), Model()(ids, W))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == [
        "simdformer.embedding.default",
        "simdformer.rms_norm.default",
        "simdformer.linear.default",
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_gradient_is_the_eager_one(backend):
    weights = [one.clone().requires_grad_() for one in torch.randn(2, 8, 8)]

    def loss(x):
        normed = sft.rms_norm(x, weights[0][0], eps=1e-5)
        q, k = (one.unflatten(-1, (2, 4)).mT for one in sft.linear(normed, weights))
        return sft.scaled_dot_product_attention(q, k, k, is_causal=True).square().sum()

    want = torch.autograd.grad(loss(X), weights)
    got = torch.autograd.grad(torch.compile(loss, backend=backend, fullgraph=True)(X), weights)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    with torch.inference_mode():
        assert torch.equal(torch.compile(loss, backend=backend, fullgraph=True)(X), loss(X))


@pytest.mark.slow
def test_what_is_no_operator_breaks_the_graph_and_is_right():
    packed, few = sft.pack(W), sft.quantize(torch.randn(3, 32), "q8_0")
    norm = sft.nn.RMSNorm(W[0], 1e-5)
    out = torch.empty(2, 6, 8)

    def step(x):
        y = sft.linear(x * 2, [packed, packed])[1] + sft.causal_mask(
            6, 8, offset=1, dtype=x.dtype
        ).clamp(-1)
        sft.linear(y + 1, packed, out=out)
        return norm(y - 1), sft.linear(torch.cat([y] * 4, -1) / 2, few)

    want, want_out = step(X), out.clone()
    compiled = torch.compile(step, backend="eager")
    for _ in range(3):
        out.zero_()
        assert all(map(torch.equal, compiled(X), want))
        assert torch.equal(out, want_out)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="packed weights, are no operators"):
        torch.compile(lambda x: sft.linear(x, packed), backend="eager", fullgraph=True)(X)


def test_wrong_calls_are_named_in_a_graph_too():
    with pytest.raises(Exception, match="rms_norm: weight has shape"):
        torch.compile(lambda x: sft.rms_norm(x, W[0, :3], eps=0.0), backend="eager")(X)
