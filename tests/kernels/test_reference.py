"""The reference itself: against PyTorch in float64, and by hand where PyTorch has no such thing."""

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import bfloat16, from_torch, to_torch
from simdformer import reference


@pytest.fixture
def draw(rng):
    return lambda *shape: rng.standard_normal(shape)


def equal(got, want):
    np.testing.assert_allclose(
        got, from_torch(want) if torch.is_tensor(want) else want, 1e-12, 1e-12
    )


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_is_torchs(lead, kv_heads, draw, rng):
    q, k, v = draw(*lead, 4, 5, 6), draw(*lead, kv_heads, 7, 6), draw(*lead, kv_heads, 7, 3)
    visible = rng.random((5, 7)) < 0.7
    visible[:, 0] = True
    tensors = [to_torch(x) for x in (q, k, v)]
    for mask in (None, visible, draw(5, 7)):
        want = F.scaled_dot_product_attention(*tensors, to_torch(mask), scale=0.3, enable_gqa=True)
        equal(reference.scaled_dot_product_attention(q, k, v, mask, scale=0.3), want)
    square = [q, k[..., :5, :], v[..., :5, :]]
    want = F.scaled_dot_product_attention(*map(to_torch, square), is_causal=True, enable_gqa=True)
    equal(reference.scaled_dot_product_attention(*square, is_causal=True), want)


def test_scores_weights_and_lse_are_torchs(draw):
    q, k, v = draw(2, 4, 5, 6), draw(2, 2, 7, 6), draw(2, 2, 7, 3)
    _, weights, scores, lse = reference.scaled_dot_product_attention(
        q, k, v, return_weights=True, return_scores=True, return_lse=True
    )
    want = to_torch(q) @ to_torch(np.repeat(k, 2, axis=1)).mT / 6**0.5
    equal(scores, want)
    equal(weights, want.softmax(-1))
    equal(lse, want.logsumexp(-1))


def test_a_sink_is_a_key_with_a_given_score_and_no_value(draw):
    q, k, v, sinks = draw(2, 5, 6), draw(2, 7, 6), draw(2, 7, 3), draw(2)
    out, weights, lse = reference.scaled_dot_product_attention(
        q, k, v, sinks=sinks, return_weights=True, return_lse=True
    )
    extra = np.broadcast_to(sinks[:, None, None], (2, 5, 1))
    scores = np.concatenate([q @ k.swapaxes(-1, -2) / 6**0.5, extra], -1)
    want = to_torch(scores).softmax(-1)
    equal(weights, want[..., :7])
    equal(out, want[..., :7] @ to_torch(v))
    equal(lse, to_torch(scores).logsumexp(-1))


def test_what_positions_hide(draw):
    """Causality with an offset, a window and lengths, one for every sequence, by two loops."""
    q, k, v = draw(3, 2, 4, 4), draw(3, 2, 9, 4), draw(3, 2, 9, 4)
    offsets, lengths = np.array([5, 0, -2]), np.array([9, 3, 0])
    got = reference.scaled_dot_product_attention(
        q, k, v, is_causal=True, causal_offset=offsets, window=3, key_lengths=lengths
    )
    for b in range(3):
        mask = np.zeros((4, 9), bool)
        for i in range(4):
            for j in range(9):
                last = i + offsets[b]
                mask[i, j] = last - 3 < j <= last and j < lengths[b]
        equal(got[b], reference.scaled_dot_product_attention(q[b], k[b], v[b], mask))


def test_hidden_nan_does_not_leak_and_visible_nan_stays(draw):
    q, k, v = draw(2, 3, 4), draw(2, 5, 4), draw(2, 5, 3)
    want = reference.scaled_dot_product_attention(q, k[:, :3], v[:, :3])
    k[:, 3:] = v[:, 3:] = np.nan
    equal(reference.scaled_dot_product_attention(q, k, v, key_lengths=3), want)
    equal(reference.scaled_dot_product_attention(q, k, v, np.arange(5) < 3), want)
    additive = np.where(np.arange(5) < 3, 0, -np.inf)
    assert np.isnan(reference.scaled_dot_product_attention(q, k, v, additive)).all()


def test_softcap_comes_before_the_mask(draw):
    q, k, v, mask = draw(2, 3, 4), draw(2, 5, 4), draw(2, 5, 3), draw(3, 5)
    got = reference.scaled_dot_product_attention(
        q, k, v, mask, scale=2.0, softcap=0.7, return_scores=True
    )[1]
    equal(got, 0.7 * np.tanh(2.0 * q @ k.swapaxes(-1, -2) / 0.7) + mask)


def test_the_layers_are_torchs(draw):
    x, w, b, matrix = draw(2, 3, 8), draw(8), draw(8), draw(5, 8)
    t, tw, tb, tm = (to_torch(a) for a in (x, w, b, matrix))
    equal(reference.softmax(x, 1, temperature=0.7), (t / 0.7).softmax(1))
    equal(reference.linear(x, matrix, b[:5]), F.linear(t, tm, tb[:5]))
    equal(reference.linear(x, [matrix, matrix], [None, b[:5]])[1], F.linear(t, tm, tb[:5]))
    equal(reference.rms_norm(x, w, eps=1e-5), F.rms_norm(t, (8,), tw, 1e-5))
    equal(reference.layer_norm(x, w, b, eps=1e-5), F.layer_norm(t, (8,), tw, tb, 1e-5))
    equal(reference.silu(x), F.silu(t))
    equal(reference.relu(x), F.relu(t))
    equal(reference.gelu(x), F.gelu(t))
    equal(reference.gelu(x, approximate="tanh"), F.gelu(t, approximate="tanh"))
    equal(reference.swiglu(x, x + 1), F.silu(t) * (t + 1))
    equal(reference.embedding([[1, 4]], matrix), F.embedding(torch.tensor([[1, 4]]), tm))
    equal(reference.repeat_kv(x, 2), t.repeat_interleave(2, 0))


def test_rope_multiplies_complex_numbers(draw, rng):
    x, positions = draw(2, 3, 7, 8), rng.integers(0, 100, (2, 7))
    angle = positions[:, None, :, None] * 10000.0 ** (-np.arange(0, 8, 2) / 8)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    want = np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    equal(reference.rope(x, layout="interleaved", positions=positions), want)
    evens_first = np.r_[0:8:2, 1:8:2]
    equal(
        reference.rope(x[..., evens_first], layout="half", positions=positions),
        want[..., evens_first],
    )


def test_rope_is_hugging_faces_and_metas(draw):
    modeling_llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    x = draw(1, 3, 7, 8)
    half = torch.outer(
        torch.arange(7.0, dtype=torch.float64),
        10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8),
    )
    angle = torch.cat([half, half], -1)[None]
    want = modeling_llama.apply_rotary_pos_emb(to_torch(x), to_torch(x), angle.cos(), angle.sin())[
        0
    ]
    equal(reference.rope(x, layout="half"), want)
    pairs = torch.view_as_complex(to_torch(x).reshape(1, 3, 7, 4, 2))
    meta = torch.view_as_real(pairs * torch.polar(torch.ones_like(half), half)).flatten(-2)
    equal(reference.rope(x, layout="interleaved"), meta)


def test_everything_comes_out_as_float64(draw):
    for dtype in (np.float16, np.float32, bfloat16):
        x = draw(2, 4, 8).astype(dtype)
        results = [
            reference.scaled_dot_product_attention(x, x, x),
            reference.softmax(x),
            reference.linear(x, x[0], x[0, :, 0]),
            reference.rms_norm(x, x[0, 0], eps=1e-6),
            reference.layer_norm(x, x[0, 0], x[0, 0], eps=1e-6),
            reference.rope(x, layout="half"),
            reference.silu(x),
            reference.gelu(x),
            reference.relu(x),
            reference.swiglu(x, x),
            reference.embedding([1], x[0]),
            reference.repeat_kv(x, 2),
        ]
        assert all(result.dtype == np.float64 for result in results)


def test_the_reference_warns_of_nothing(draw):
    """NaN and infinities are results here, not accidents."""
    with np.errstate(all="raise"):
        odd = np.array([[np.nan, np.inf, -np.inf, 1e300, -1e300]])
        for op in (reference.silu, reference.gelu, reference.relu, reference.softmax):
            op(odd)
        reference.rms_norm(odd, eps=0.0)
        reference.layer_norm(np.zeros((2, 0)), eps=0.0)
        reference.scaled_dot_product_attention(odd, odd, odd)


@pytest.mark.parametrize("name", reference.forward.__all__)
def test_names_and_keywords_are_the_public_ones(name):
    if name == "RopeFrequencies":
        return
    ours = inspect.signature(getattr(reference, name)).parameters
    public = inspect.signature(getattr(sf, name)).parameters
    assert [p for p in public if p != "out"] == list(ours)
    for parameter in ours.values():
        assert parameter.kind == public[parameter.name].kind, parameter.name
        if parameter.name != "dtype":
            assert parameter.default == public[parameter.name].default, parameter.name


def test_the_reference_needs_no_compiled_module():
    file = reference.forward.__file__
    script = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('reference', {file!r})\n"
        "module = sys.modules['reference'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert module.silu(0.0) == 0.0\n"
        "assert 'simdformer' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", ["loss", "backward"])
def test_the_rest_of_the_reference_needs_the_reference_alone(name):
    source = Path(reference.forward.__file__).with_name(f"{name}.py").read_text()
    modules = {
        line.split()[1] for line in source.splitlines() if line.startswith(("from", "import"))
    }
    ours = {module for module in modules if module.startswith("simdformer")}
    assert ours <= {"simdformer.reference.forward", "simdformer.reference.loss"}
