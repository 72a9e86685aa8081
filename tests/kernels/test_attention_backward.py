"""backward.scaled_dot_product_attention on every instruction set, against the reference in float64,
beside PyTorch's own error; the same bits for every number of threads; what is hidden stays so."""

import inspect

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from attention_cases import attention, close, problem
from conftest import (
    LAYOUTS,
    assert_same_bits,
    assert_threads_change_no_bit,
    bfloat16,
    from_torch,
    normal,
    relaid,
    rms_error,
    same_bits,
    to_torch,
)
from simdformer import reference
from simdformer.backward import of_argument
from simdformer.reference.forward import float64

backward = sf.backward.scaled_dot_product_attention
INPUTS = ("query", "key", "value")
NAME = r"^backward\.scaled_dot_product_attention: "

# What varies: sizes beside lead (2,), H 4, K 2, L = S = 70, D 24, Dv 20, and options.
RULES = {
    "all": ({}, {}),
    "one of each": ({"lead": (), "H": 1, "K": 1, "L": 1, "S": 1, "D": 1, "Dv": 1}, {}),
    "causal": ({}, {"is_causal": True}),
    "tiles end unevenly": ({"L": 131, "S": 257, "D": 17, "Dv": 33}, {}),
    "parts of the keys": ({"lead": (), "H": 2, "K": 1, "L": 90, "S": 1100}, {"scale": 0.1}),
    "bands of queries": ({"lead": (), "H": 1, "K": 1, "L": 4500, "S": 40, "D": 20, "Dv": 20}, {}),
    "MQA": ({"H": 5, "K": 1}, {"is_causal": True}),
    "deep": ({"lead": (), "D": 300, "Dv": 270}, {}),
    "decoding": ({"L": 2, "S": 90}, {"is_causal": True, "causal_offset": 88}),
    "an offset for each": ({}, {"is_causal": True, "causal_offset": [-30, 4]}),
    "window": ({"L": 90, "S": 131}, {"window": (10, 20), "causal_offset": 3}),
    "chunks": ({}, {"is_causal": True, "chunk": 17}),
    "lengths": ({}, {"key_starts": [3, 0], "key_lengths": [60, 70], "is_causal": True}),
    "softcap": ({}, {"softcap": 2.0, "is_causal": True}),
    "segments": ({}, {"segment_ids": np.repeat([0, 1, 2], [20, 30, 20]), "is_causal": True}),
    "segments of keys alone": (
        {"lead": ()}, {"segment_ids": (np.zeros(70, int), np.repeat([0, 1], [50, 20]))}
    ),
    "cumulative lengths": ({"lead": ()}, {"cu_seqlens": [0, 33, 70], "is_causal": True}),
}  # fmt: skip
each_rule = pytest.mark.parametrize("rule", RULES)


def draw(rng, rule="all", dtype=np.float64, **sizes):
    """q, k, v and options of a rule."""
    given, options = RULES[rule]
    sizes = {"lead": (2,), "H": 4, "K": 2, "L": 70, "S": 70, "D": 24, "Dv": 20, **given, **sizes}
    return problem(rng, **sizes, dtype=dtype), options


def gradients(rng, inputs, mask=None, needs=INPUTS, **options):
    """(ours, the reference's), from one forward of ours."""
    out, lse = attention(*inputs, mask, return_lse=True, **options)
    grad = normal(rng, *out.shape, dtype=out.dtype)
    given = (grad, *inputs, out, lse, mask)
    right = reference.backward.scaled_dot_product_attention(*given, needs=needs, **options)
    return backward(*given, needs=needs, **options), right


def compare(mine, right, given):
    """Each gradient with the reference's, to the size of the largest number of it."""
    for name, ours, wanted in zip(mine._fields, mine, right, strict=True):
        assert (ours is None) == (wanted is None), name
        if ours is not None:
            like = np.asarray(given[name])
            assert (ours.dtype, ours.shape) == (like.dtype, like.shape), name
            close(ours, wanted, like.dtype, np.abs(wanted).max(initial=1))


@pytest.mark.sampled(2)
@each_rule
def test_agrees_with_the_reference(isa, dtype, rule, rng):
    inputs, options = draw(rng, rule, dtype)
    mine, right = gradients(rng, inputs, **options)
    compare(mine, right, dict(zip(INPUTS, inputs, strict=True)))


@pytest.mark.parametrize("shape", [(70, 70), (4, 1, 70), (2, 4, 70, 70), (70, 1)])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_mask_that_is_added_has_a_gradient(isa, dtype, shape, softcap, rng):
    inputs, _ = draw(rng, dtype=dtype)
    mask = normal(rng, *shape, dtype=dtype)
    if mask.ndim > 1 and shape[-1] > 1:
        mask[..., 3] = -np.inf
    options = {"softcap": softcap, "needs": (*INPUTS, "attn_mask"), "is_causal": True}
    mine, right = gradients(rng, inputs, mask, **options)
    compare(mine, right, {**dict(zip(INPUTS, inputs, strict=True)), "attn_mask": mask})


def test_a_boolean_mask(isa, dtype, rng):
    inputs, _ = draw(rng, dtype=dtype)
    mask = rng.random((2, 1, 70, 70)) > 0.5
    mask[0, 0, 5] = False  # a query that sees nothing
    mine, right = gradients(rng, inputs, mask)
    compare(mine, right, dict(zip(INPUTS, inputs, strict=True)))
    assert not np.any(float64(mine.query[0, :, 5]))


def test_sinks_have_a_gradient(isa, dtype, rng):
    inputs, _ = draw(rng, dtype=dtype)
    sinks = normal(rng, 4, dtype=dtype)
    mine, right = gradients(rng, inputs, sinks=sinks, needs=(*INPUTS, "sinks"), is_causal=True)
    compare(mine, right, {**dict(zip(INPUTS, inputs, strict=True)), "sinks": sinks})


def test_what_was_broadcast_is_summed(isa, dtype, rng):
    q, k, v = (
        normal(rng, *shape, dtype=dtype)
        for shape in ((3, 1, 4, 9, 8), (1, 2, 2, 9, 8), (2, 2, 9, 8))
    )
    v = v[None]
    mine, right = gradients(rng, (q, k, v))
    compare(mine, right, {"query": q, "key": k, "value": v})


def test_two_axes_are_one_head(rng):
    q, k, v = (normal(rng, 9, 8) for _ in range(3))
    mask = normal(rng, 9, 9)
    flat, right = gradients(rng, (q, k, v), mask, needs=(*INPUTS, "attn_mask"))
    compare(flat, right, {"query": q, "key": k, "value": v, "attn_mask": mask})


def test_the_gradient_of_lse_comes_in(isa, rng):
    (q, k, v), _ = draw(rng)
    out, lse = attention(q, k, v, return_lse=True, is_causal=True)
    grad, of_lse = (
        normal(rng, *out.shape, dtype=out.dtype),
        normal(rng, *lse.shape, dtype=lse.dtype),
    )
    options = {"is_causal": True, "grad_lse": of_lse}
    mine = backward(grad, q, k, v, out, lse, **options)
    right = reference.backward.scaled_dot_product_attention(grad, q, k, v, out, lse, **options)
    compare(mine, right, {"query": q, "key": k, "value": v})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("H", "K", "L", "D"), [(4, 2, 80, 32), (2, 2, 300, 64)])
def test_is_as_accurate_as_torch(isa, causal, H, K, L, D, rng):
    """Forward and backward together, against float64: at most 1.5 times PyTorch's error in float32,
    and in bfloat16 less than PyTorch's, which adds up in bfloat16."""
    for dtype, most in ((np.float32, 1.5), (bfloat16, 1.0)):
        inputs = problem(rng, lead=(2,), H=H, K=K, L=L, S=L, D=D, dtype=dtype)
        grad = normal(rng, 2, H, L, D, dtype=dtype)

        def autograd(to, inputs=inputs, grad=grad):
            tensors = [to_torch(x).to(to).requires_grad_() for x in inputs]
            out = F.scaled_dot_product_attention(*tensors, is_causal=causal, enable_gqa=True)
            return torch.autograd.grad(out, tensors, to_torch(grad).to(to))

        out, lse = attention(*inputs, is_causal=causal, return_lse=True)
        ours = backward(grad, *inputs, out, lse, is_causal=causal)
        exact, theirs = autograd(torch.float64), autograd(to_torch(grad).dtype)
        for mine, other, right in zip(ours[:3], theirs, exact, strict=True):
            right = from_torch(right)
            assert rms_error(mine, right) <= most * rms_error(from_torch(other), right)


@each_rule
def test_the_same_bits_for_every_number_of_threads(rule, dtype, rng):
    inputs, options = draw(rng, rule, dtype)

    def there_and_back():
        out, lse = attention(*inputs, return_lse=True, **options)
        return backward(out, *inputs, out, lse, **options)

    assert_threads_change_no_bit(there_and_back, (2, 3))


@pytest.mark.parametrize("needs", [(), ("query",), ("key",), ("value",), ("value", "query")])
def test_what_else_is_wanted_changes_no_bit(needs, rng):
    inputs, options = draw(rng, "parts of the keys", np.float32)
    out, lse = attention(*inputs, return_lse=True, **options)
    everything = backward(out, *inputs, out, lse, **options)
    some = backward(out, *inputs, out, lse, needs=needs, **options)
    for name, whole, part in zip(some._fields, everything, some, strict=True):
        assert part is None if name not in needs else same_bits(whole, part)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_change_no_bit(layout, rng):
    inputs, options = draw(rng, "causal", np.float32)
    out, lse = attention(*inputs, return_lse=True, **options)
    grad = normal(rng, *out.shape)
    want = backward(grad, *inputs, out, lse, **options)
    moved = [relaid(rng, x, layout) for x in (grad, *inputs, out, lse)]
    assert_same_bits(backward(*moved, **options), want)


def test_tensors_of_other_libraries_are_read(rng):
    inputs, _ = draw(rng, dtype=bfloat16)
    out, lse = attention(*inputs, return_lse=True)
    tensors = [to_torch(x) for x in (out, *inputs, out, lse)]
    assert_same_bits(backward(*tensors), backward(out, *inputs, out, lse))


# ---- what is hidden, and what is not finite ------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("by", ["length", "mask", "causality"])
def test_what_a_hidden_key_holds_does_no_harm(isa, value, softcap, by, rng):
    (q, k, v), _ = draw(rng, dtype=np.float32)
    hidden = np.arange(70) >= 50
    q = q[:, :, :50]
    options = {"softcap": softcap}
    options |= {
        "length": {"key_lengths": [50, 50]},
        "mask": {"attn_mask": ~hidden},
        "causality": {"is_causal": True, "causal_offset": 0},
    }[by]
    zeroed, spoilt = ([x.copy() for x in (k, v)] for _ in range(2))
    for x, y in zip(zeroed, spoilt, strict=True):
        x[:, :, 50:], y[:, :, 50:] = 0, value
    out, lse = attention(q, *zeroed, return_lse=True, **options)
    grad = normal(rng, *out.shape)
    want = backward(grad, q, *zeroed, out, lse, **options)
    got = backward(grad, q, *spoilt, out, lse, **options)
    assert all(same_bits(a, b) for a, b in zip(got[:3], want[:3], strict=True))
    assert not got.key[:, :, 50:].any()
    assert not got.value[:, :, 50:].any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_reaches_what_its_query_sees(isa, value, rng):
    inputs, options = draw(rng, "causal", np.float32)
    out, lse = attention(*inputs, return_lse=True, **options)
    grad = normal(rng, *out.shape)
    clean = backward(grad, *inputs, out, lse, **options)
    grad[0, 1, 40, 3] = value
    got = backward(grad, *inputs, out, lse, **options)
    assert same_bits(got.key[0, 0, 41:], clean.key[0, 0, 41:])
    assert same_bits(got.value[0, 0, 41:], clean.value[0, 0, 41:])
    assert not np.isfinite(got.value[0, 0, :41, 3]).any()
    assert same_bits(got.value[0, 0, :41, 4:], clean.value[0, 0, :41, 4:])
    assert np.isnan(got.query[0, 1, 40]).all()
    assert same_bits(got.query[0, 1, 41:], clean.query[0, 1, 41:])
    assert same_bits(got.query[1], clean.query[1])


def test_nothing_in_nothing_out(dtype, rng):
    for sizes in ({"L": 0}, {"S": 0}, {"Dv": 0}, {"lead": (0,)}, {"H": 0, "K": 2}):
        inputs, _ = draw(rng, dtype=dtype, **sizes)
        out, lse = attention(*inputs, return_lse=True)
        got = backward(out, *inputs, out, lse)
        for gradient, x in zip(got[:3], inputs, strict=True):
            assert gradient.shape == x.shape
            assert not np.any(float64(gradient))


# ---- refusals ------------------------------------------------------------------------------------


def test_its_keywords_are_the_forwards():
    names = set(inspect.signature(attention).parameters)
    extra = {"grad", "out", "lse", "grad_lse", "needs"}
    asked = {"return_weights", "return_scores", "return_lse", "out"}
    assert set(inspect.signature(backward).parameters) - extra == names - asked


def test_what_was_broadcast_is_summed_in_float64():
    gradient = np.array([[1e8], [1], [-1e8]], np.float32)
    total = of_argument(gradient, np.zeros((1, 1), np.float32))
    assert total.dtype == np.float32
    assert total == 1
