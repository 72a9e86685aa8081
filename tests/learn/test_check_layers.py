"""check on RoPE, norms, activations and layers: what is right is right, and programs say the same
as the operations. That each of their mistakes is found is tested in test_mistakes.py."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import mistake_examples_blocks
import mistake_examples_scaling
import simdformer as sf
from conftest import normal, relaid, to_torch, torch_rope
from simdformer import nn
from simdformer.learn.catalogue import CATALOGUE
from simdformer.learn.check import check
from simdformer.learn.check.operation import bind
from simdformer.learn.check.search import SAMPLE
from simdformer.learn.program import OPERATIONS, Run
from test_check import same

# ---- wrong ---------------------------------------------------------------------------------------


def test_two_mistakes_at_once_are_found(rng):
    x, weight, bias = normal(rng, 3, 8), normal(rng, 8), normal(rng, 8)
    # As in the Annotated Transformer, and without the bias; eps is small enough not to matter.
    mine = weight * (x - x.mean(-1, keepdims=True)) / x.std(-1, ddof=1, keepdims=True)
    report = check(sf.layer_norm, mine, x, weight, bias, eps=1e-6)
    found = {mistake.name for mistake in report.diagnosis}
    assert found == {"layer_norm.n_minus_one", "layer_norm.bias_forgotten"}


def test_wide_weights_are_sampled_though_the_sequences_are_few(rng):
    hidden_size, num_heads = 256, 8
    wq, wk, wv, wo = (normal(rng, hidden_size, hidden_size, scale=1 / 16) for _ in range(4))
    x = normal(rng, 2, 6, hidden_size)
    assert wq.size > SAMPLE > x.size
    layer = nn.MultiHeadAttention(hidden_size, num_heads, wq, wk, wv, wo)
    wrong = nn.MultiHeadAttention(hidden_size, num_heads, wk, wk, wv, wo)(x, x, x)
    report = check(layer, wrong, x, x, x)
    assert [mistake.name for mistake in report.diagnosis] == ["projections.weights_kkv"]


def test_an_eps_that_makes_no_difference_is_right(rng):
    x = normal(rng, 5, 64)
    for eps in (1.1e-6, 1e-6, 9e-7):
        mine = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
        assert check(sf.rms_norm, mine, x, eps=1e-6).ok
    exact = x.astype(np.float64)
    mine = exact / np.sqrt((exact * exact).mean(-1, keepdims=True) + 1e-5)
    report = check(sf.rms_norm, mine, exact, eps=1e-6)
    assert [mistake.name for mistake in report.diagnosis] == ["rms_norm.eps_1e-05"]


def test_the_frequencies_of_rope_may_come_alone(rng):
    mine = torch.from_numpy(1 / 1e4 ** (np.arange(0, 64, 2) / 64))
    assert check(sf.rope_frequencies, mine, 64, theta=1e4).ok
    assert check(sf.rope_frequencies, mine.float(), 64, theta=1e4).ok
    report = check(
        sf.rope_frequencies, mine, 64, theta=1e4, scaling=mistake_examples_scaling.LLAMA3
    )
    assert [mistake.name for mistake in report.diagnosis] == ["rope_scaling.ignored"]


# ---- right ---------------------------------------------------------------------------------------


def forms(rng, x):
    """The same result as learners hold it: an array, strided, a tensor, one with a gradient."""
    tensor = to_torch(x)
    return [x, relaid(rng, x, "gaps"), tensor, tensor.clone().requires_grad_()]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_right_rope_is_right(layout, dtype, rng):
    for offset in (0, 3000):
        x = normal(rng, 2, 3, 9, 16, dtype=dtype)
        mine = torch_rope(to_torch(x), layout=layout, offset=offset, theta=5e5)
        for form in (mine, mine.to(torch.float64), mine.clone().requires_grad_()):
            report = check(sf.rope, form, x, layout=layout, offset=offset, theta=5e5)
            assert report.ok, report


def test_right_norms_are_right(dtype, rng):
    x, weight, bias = (normal(rng, *shape, dtype=dtype) for shape in ((2, 9, 40), (40,), (40,)))
    rms = F.rms_norm(to_torch(x), (40,), to_torch(weight), 1e-5)
    layer = F.layer_norm(to_torch(x), (40,), to_torch(weight), to_torch(bias), 1e-5)
    by_hand = x / np.sqrt((x * x).mean(-1, keepdims=True) + dtype.type(1e-5)) * weight
    for form in [rms, by_hand, *forms(rng, sf.rms_norm(x, weight, eps=1e-5))]:
        assert check(sf.rms_norm, form, x, weight, eps=1e-5).ok
        assert check(nn.RMSNorm(weight, 1e-5), form, x).ok
    assert check(nn.LayerNorm(weight, bias, 1e-5), layer, x).ok


def test_right_activations_are_right(dtype, rng):
    x, y = normal(rng, 4, 33, dtype=dtype, scale=3), normal(rng, 4, 33, dtype=dtype)
    tensor = to_torch(x)
    for op, mine, kwargs in (
        ("silu", F.silu(tensor), {}),
        ("gelu", F.gelu(tensor), {}),
        ("gelu", F.gelu(tensor, approximate="tanh"), {"approximate": "tanh"}),
        ("relu", F.relu(tensor), {}),
    ):
        assert check(op, mine, x, **kwargs).ok
    assert check(sf.swiglu, F.silu(tensor) * to_torch(y), x, y).ok
    assert check(sf.silu, x / (1 + np.exp(-x)), x).ok


def test_right_layers_are_right(dtype, rng):
    """In PyTorch, every product rounded to the dtype of the model."""
    parts = mistake_examples_blocks.Parts(rng, dtype)
    block, x = parts.block, normal(rng, 2, 7, 32, dtype=dtype)
    t = to_torch(x)
    h = t + parts.attention(parts.attn_norm(t))
    mine = h + parts.mlp(parts.mlp_norm(h))
    report = check(block, mine, x, mask="causal")
    assert report.ok, report
    assert check(block.mlp, parts.mlp(t), x).ok
    assert check(block.attention, parts.attention(t), x, mask="causal").ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_made_of_tensors(dtype, rng):
    parts = mistake_examples_blocks.Parts(rng)
    w = [torch.nn.Parameter(x.to(dtype)) for x in parts.w]
    norm = nn.RMSNorm(torch.nn.Parameter(parts.one.to(dtype)), 1e-2)
    block = nn.TransformerBlock(
        nn.GroupedQueryAttention(32, 4, 2, *w[:4]), nn.MLP(*w[4:]), norm, norm
    )
    x = normal(rng, 2, 7, 32)
    parts.w, parts.one = [x.detach().float() for x in w], norm.weight.detach().float()
    t = torch.from_numpy(x)
    h = t + parts.attention(parts.attn_norm(t))
    assert check(block, h + parts.mlp(parts.attn_norm(h)), x, mask="causal").ok
    report = check(block, h + parts.mlp(h), x, mask="causal")
    assert [mistake.name for mistake in report.diagnosis] == ["block.no_mlp_norm"]


# ---- the programs --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_program_of_rope(layout, rng):
    positions = rng.integers(0, 5000, (2, 7))
    inv_freq = rng.random(3)
    places = [{}, {"offset": 11}, {"positions": positions[0]}, {"positions": positions}]
    tables = [{}, {"theta": 5e5}, {"inv_freq": inv_freq}, {"attention_factor": 1.2}]
    for place, table, part in itertools.product(places, tables, [{}, {"rotary_dim": 6}]):
        D = 6 if "inv_freq" in table and not part else 10
        for shape in ((2, 7, D), (2, 3, 7, D), (2, 2, 3, 7, D)):
            x = normal(rng, *shape, dtype=np.float64)
            same(sf.rope, x, layout=layout, **place, **table, **part)
    plain = normal(rng, 7, 8, dtype=np.float64)
    same(sf.rope, plain, layout=layout, offset=-2)


YARN = mistake_examples_scaling.YARN


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"type": "linear", "factor": 3.0},
        mistake_examples_scaling.LLAMA3,
        YARN,
        YARN | {"truncate": False, "beta_fast": 20, "attention_factor": 1.5},
        {"rope_type": "default"},
    ],
)
def test_the_program_of_rope_frequencies(scaling):
    for head_dim, theta in itertools.product((2, 64, 128), (1e4, 1e6)):
        same(sf.rope_frequencies, head_dim, theta=theta, scaling=scaling)


def test_the_programs_of_norms_and_activations(rng):
    for shape in ((8,), (3, 8), (2, 3, 8), (0, 8), (3, 1)):
        x = normal(rng, *shape, dtype=np.float64)
        weight, bias = (normal(rng, shape[-1], dtype=np.float64) for _ in range(2))
        for eps in (0.0, 1e-5, 1.0):
            same(sf.rms_norm, x, eps=eps)
            same(sf.rms_norm, x, weight, eps=eps)
            same(sf.layer_norm, x, eps=eps)
            same(sf.layer_norm, x, weight, bias, eps=eps)
            same(nn.RMSNorm(weight, eps), x)
            same(nn.LayerNorm(weight, None, eps), x)
        wide = 20 * x
        same(sf.silu, wide)
        same(sf.relu, wide)
        same(sf.gelu, wide)
        same(sf.gelu, wide, approximate="tanh")
        same(sf.swiglu, wide, x)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("mask", [None, "causal", "bool", "additive"])
def test_the_programs_of_attention_layers(batch, mask, rng):
    def array(*shape):
        return normal(rng, *shape, dtype=np.float64)

    L, S, E = 5, 7, 24
    if mask == "bool":
        mask, wide = rng.random((L, L)) < 0.7, rng.random((4, L, S)) < 0.7
    elif mask == "additive":
        mask, wide = array(4, L, L), array(L, S)
    else:
        wide = None
    w = [array(E, E) for _ in range(4)]
    heads = nn.MultiHeadAttention(E, 4, *w)
    x, key, value = array(*batch, L, E), array(*batch, S, E), array(*batch, S, E)
    same(heads, x, x, x, mask)
    same(heads, x, key, value, wide)
    packed = nn.MultiHeadAttention(E, 4, *map(sf.pack, w))
    same(packed, x, x, x, mask)
    some = (array(48, E), array(24, E), array(24, E), array(E, 48))
    for more in (
        {},
        {"rope_layout": "half"},
        {"rope_layout": "interleaved", "theta": 50.0, "q_norm": array(12), "norm_eps": 1e-2},
        {
            "rope_layout": "half", "inv_freq": rng.random(6),
            "q_norm": array(12), "k_norm": array(12), "norm_eps": 1e-6,
        },
    ):  # fmt: skip
        groups = nn.GroupedQueryAttention(E, 4, 2, *some, **more)
        same(groups, x, mask)
        if more:
            same(groups, x, mask, np.arange(L) + 9)
            if batch:
                at = rng.integers(0, 99, (2, L))
                same(groups, x, mask, at)
        mlp = nn.MLP(array(40, E), array(40, E), array(E, 40))
        norms = nn.RMSNorm(array(E), 1e-3), nn.LayerNorm(array(E), array(E), 1e-3)
        same(mlp, x)
        same(nn.TransformerBlock(groups, mlp, *norms), x, mask)
        block = nn.TransformerBlock(heads, np.tanh, *norms)
        same(block, x, mask)


def assert_sample_is_a_part(limit, op, *args, **kwargs):
    """What is computed for a part of a large call is that part of the whole result."""
    call = bind(op, args, kwargs)
    fewer, part = call.program.thin(call.variables, limit)
    want = part(Run(np.float64)(call.program, **call.variables).out)
    got = Run(np.float64)(call.program, **fewer).out
    assert 0 < want.size < call.results[0].size
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13 * np.abs(want).max())
    assert call.program.thin(call.variables, 10**9) is None


@pytest.mark.parametrize("limit", [1, 300, 2000])
def test_samples_of_large_calls(limit, rng):
    def array(*shape):
        return normal(rng, *shape, dtype=np.float64)

    for x in (array(3, 4, 60, 10), array(5, 60, 10), array(400, 10)):
        for place in ({}, {"offset": 9}, {"positions": rng.integers(0, 99, x.shape[-2])}):
            assert_sample_is_a_part(limit, sf.rope, x, layout="half", **place)
        assert_sample_is_a_part(limit, sf.rms_norm, x, array(10), eps=1e-3)
        assert_sample_is_a_part(limit, sf.layer_norm, x, array(10), array(10), eps=1e-3)
        assert_sample_is_a_part(limit, sf.gelu, x)
        assert_sample_is_a_part(limit, sf.swiglu, x, array(*x.shape))
        assert_sample_is_a_part(limit, nn.MLP(array(24, 10), array(24, 10), array(10, 24)), x)
    x, positions = array(3, 4, 60, 10), rng.integers(0, 99, (3, 60))
    assert_sample_is_a_part(limit, sf.rope, x, layout="interleaved", positions=positions)

    E = 24
    heads = nn.MultiHeadAttention(E, 4, *[array(E, E) for _ in range(4)])
    some = (array(48, E), array(24, E), array(24, E), array(E, 48))
    groups = nn.GroupedQueryAttention(E, 4, 2, *some, rope_layout="half")
    mlp, norm = nn.MLP(array(40, E), array(40, E), array(E, 40)), nn.RMSNorm(array(E), 1e-3)
    block = nn.TransformerBlock(groups, mlp, norm, norm)
    long, many = array(60, E), array(40, 7, E)
    per_head = rng.random((40, 4, 7, 7)) < 0.8
    for x, mask in ((long, "causal"), (many, "causal"), (many, None), (many, per_head)):
        at = rng.integers(0, 99, x.shape[:-1])
        if x is many or limit == 1:
            assert_sample_is_a_part(limit, groups, x, mask, at)
            assert_sample_is_a_part(limit, heads, x, x, x, mask)
            assert_sample_is_a_part(limit, block, x, mask, at)


def test_every_layer_has_a_program():
    assert {getattr(nn, name) for name in nn.__all__} <= OPERATIONS.keys()


def sections(notebook):
    """The numbers of a notebook's chapters: § 5, and of its exercises."""
    found = set()
    for first, last in re.findall(r"^# ## (\d+)(?: to (\d+))? ·", notebook, re.MULTILINE):
        found |= {f"§{i}" for i in range(int(first), int(last or first) + 1)}
    return found | {
        f"exercise {i}" for i in re.findall(r"^# ## Exercise (\d+)", notebook, re.MULTILINE)
    }


def test_mistakes_belong_to_chapters_that_exist():
    known = set()
    for path in (Path(__file__).parents[2] / "notebooks").glob("0*.py"):
        known |= {f"{path.name[:2]} {section}" for section in sections(path.read_text())}
    assert len(known) > 40
    assert {variation.mistake.step for variation in CATALOGUE} - {""} <= known
