"""sf.check: right is right, in every dtype and from every library; wrong is never a guess."""

import sys

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from conftest import LAYOUTS, bfloat16, normal, relaid, to_torch
from simdformer import nn, reference
from simdformer.learn.operation import bind, checkable
from simdformer.learn.program import CATALOGUE, Run, mistake

attention = sf.scaled_dot_product_attention
TORCH = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def attend(q, k, v, scale=None):
    scale = q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
    return softmax(q @ k.swapaxes(-1, -2) * scale) @ v


def names(report):
    return [mistake.name for mistake in report.diagnosis]


# ---- what is right -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("scale", [0.01, 1, 100])
def test_results_of_torch_are_right_in_every_dtype(dtype, scale, rng):
    def tensor(*shape):
        return torch.from_numpy(scale * rng.standard_normal(shape)).to(dtype)

    q, k, v = tensor(2, 8, 12, 16), tensor(2, 4, 12, 16), tensor(2, 4, 12, 16)
    x, w, row, b = tensor(3, 40), tensor(24, 40), tensor(1, 40), tensor(24)
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    sf.check(attention, causal, q, k, v, is_causal=True).raise_if_wrong()
    sf.check(sf.softmax, F.softmax(x, -1), x).raise_if_wrong()
    sf.check(sf.softmax, F.softmax(x, 0), x, 0).raise_if_wrong()
    sf.check(sf.linear, F.linear(x, w, b), x, w, b).raise_if_wrong()
    sf.check(sf.linear, F.linear(x, row), x, row).raise_if_wrong()  # sums that nearly cancel
    sf.check(sf.rms_norm, F.rms_norm(x, (40,), None, 1e-6), x, eps=1e-6).raise_if_wrong()


@given(st.data())
def test_sums_in_any_order_are_right(data):
    """Attention head by head, key by key, in float32, for keys in any order."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    h, length, keys, dim = (data.draw(st.integers(1, most)) for most in (4, 6, 9, 12))
    q = normal(rng, h, length, dim, scale=data.draw(st.sampled_from([1e-3, 1, 5, 300])))
    k, v = normal(rng, h, keys, dim), normal(rng, h, keys, dim)
    order = rng.permutation(keys)
    scores = np.zeros((h, length, keys), np.float32)
    for d in rng.permutation(dim):
        scores += q[..., d, None] * k[:, None, :, d]
    scores = scores / np.float32(np.sqrt(dim))
    e = np.exp(scores - scores.max(-1, keepdims=True))
    total, mine = np.zeros((h, length, 1), np.float32), np.zeros((h, length, dim), np.float32)
    for j in order:
        total += e[..., j, None]
        mine += e[..., j, None] * v[:, None, j]
    sf.check(attention, mine / total, q, k, v).raise_if_wrong()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides_are_right(layout, rng):
    q, k, v = (normal(rng, 2, 3, 5, 8) for _ in range(3))
    mine = relaid(rng, attend(q, k, v), layout)
    q, k, v = (relaid(rng, x, layout) for x in (q, k, v))
    assert sf.check(attention, mine, q, k, v)


def test_tensors_lists_and_gradients_are_taken(rng):
    x = normal(rng, 3, 5)
    w = torch.from_numpy(normal(rng, 4, 5)).requires_grad_()
    mine = F.linear(torch.from_numpy(x), w)
    assert mine.requires_grad
    assert sf.check(sf.linear, mine, x, w)
    assert sf.check(sf.linear, mine, torch.from_numpy(x).T.contiguous().T, w)
    assert sf.check("softmax", softmax(x).tolist(), x)
    half = to_torch(x.astype(bfloat16))
    assert sf.check("simdformer.softmax", F.softmax(half, -1), half)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
def test_empty_arrays_are_right(shape):
    x = np.zeros(shape, np.float32)
    assert sf.check("relu", x, x)
    assert sf.check("softmax", x, x)


def test_rows_of_zeros_must_be_zero(rng):
    q, k, v = (normal(rng, 2, 4, 8) for _ in range(3))
    seen = np.ones((4, 4), bool)
    seen[2] = False
    mine = attention(q, k, v, seen)
    assert sf.check(attention, mine, q, k, v, seen)
    mine[0, 2, 3] = 1e-3
    report = sf.check(attention, mine, q, k, v, seen)
    assert report.where.worst == (0, 2, 3)
    assert report.where.text == "head 0 only, position 2 only, channel 3 only"


def test_nan_and_infinity_have_to_be_where_they_belong(rng):
    x = normal(rng, 4, 6)
    x[1, 2], x[2, 3] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        mine = softmax(x)
    assert sf.check("softmax", mine, x)
    mine[1, 2] = 0.5
    assert not sf.check("softmax", mine, x)
    assert sf.check("relu", np.maximum(x, 0), x)
    assert not sf.check("relu", np.nan_to_num(np.maximum(x, 0)), x)


def test_rows_of_every_size_are_measured_by_themselves(rng):
    x = normal(rng, 8, 6) * np.float32(10.0) ** np.arange(-20, 20, 5, dtype=np.float32)[:, None]
    mine = np.maximum(x, 0)
    assert sf.check("relu", mine, x)
    mine[0] *= np.float32(1.001)  # a row of numbers around 1e-20
    assert sf.check("relu", mine, x).where.text.startswith("position 0 only")


def test_numbers_too_large_for_float16_are_infinite(rng):
    x = np.full((2, 4), 6e4, np.float16)
    w = np.eye(3, 4, dtype=np.float16) * 2
    with np.errstate(over="ignore"):
        assert sf.check("linear", (x.astype(np.float32) @ w.T).astype(np.float16), x, w)


def test_rtol_overrides(rng):
    x = normal(rng, 3, 4)
    mine = softmax(x) * np.float32(1.01)
    assert not sf.check("softmax", mine, x)
    assert sf.check("softmax", mine, x, rtol=0.03)
    assert not sf.check("softmax", softmax(x), x, rtol=1e-12)


# ---- programs and the reference ------------------------------------------------------------------


def same(op, *args, **kwargs):
    """The program in float64, nothing replaced, is the operation."""
    call = bind(op, args, kwargs)
    with np.errstate(all="ignore"):
        out = Run(np.float64)(call.program, **call.variables).out
    wanted = call.right()
    out = list(out) if call.several else [out]
    for a, b in zip(out, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=1e-12, atol=1e-13)


@given(st.data())
def test_the_program_of_attention_is_the_reference(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    lead = data.draw(st.sampled_from([(), (2,), (2, 1)]))
    kv, group, length, keys = (data.draw(st.integers(1, most)) for most in (3, 3, 5, 6))
    q = normal(rng, *lead, kv * group, length, 4)
    k, v = normal(rng, *lead, kv, keys, 4), normal(rng, *lead, kv, keys, 3)
    options = {"return_weights": True, "return_scores": True, "return_lse": True}
    if data.draw(st.booleans()):
        options |= {"is_causal": True, "causal_offset": data.draw(st.integers(-2, 6))}
        options |= data.draw(st.sampled_from([{}, {"window": 2}]))
    options |= data.draw(st.sampled_from([{}, {"scale": 0.0}, {"scale": 0.7}, {"softcap": 0.5}]))
    if data.draw(st.booleans()):
        options["sinks"] = normal(rng, kv * group)
    if lead and data.draw(st.booleans()):
        options["key_lengths"] = rng.integers(0, keys + 1, 2)
    masks = [None, rng.random((length, keys)) < 0.5, normal(rng, kv * group, length, keys)]
    same(attention, q, k, v, masks[data.draw(st.integers(0, 2))], **options)


def test_the_other_programs_are_the_reference(rng):
    x, w = normal(rng, 2, 3, 6), normal(rng, 5, 6)
    q, k, v = (normal(rng, 4, 6) for _ in range(3))
    v[3] = np.nan
    same(attention, q, k, v, is_causal=True)
    for axis in (-1, 0, 1):
        same("softmax", x, axis, temperature=0.7)
    same("softmax", np.full((2, 3), -np.inf, np.float32))
    same("linear", x, w)
    same("linear", x, sf.pack(w), normal(rng, 5))
    same("linear", x, [w, w[:2]], [None, normal(rng, 2)])
    same("embedding", rng.integers(0, 5, (2, 3)), w)
    same("repeat_kv", x, 3)
    same("repeat_kv", x, 2, axis=0)
    same("causal_mask", 4, 6, offset=-1)
    same("causal_mask", 4, 4, dtype=np.float32)


@pytest.mark.parametrize("op", ["attention", "layer"])
def test_what_is_known_from_earlier_runs_changes_nothing(op, rng):
    """Every single mistake, made on the tape of the right run, is what it is made from scratch."""
    w = [normal(rng, 12, 12) for _ in range(2)]
    if op == "layer":
        wq, wo = normal(rng, 16, 12), normal(rng, 12, 16)
        layer = nn.GroupedQueryAttention(12, 4, 2, wq, w[0][:8], w[1][:8], wo, rope_layout="half")
        call = bind(layer, (normal(rng, 2, 5, 12),), {"mask": "causal"})
    else:
        q, k = normal(rng, 2, 4, 5, 6), normal(rng, 2, 2, 5, 6)
        call = bind(attention, (q, k, k), {"is_causal": True, "window": 2})
    base = Run(np.float32)
    base(call.program, **call.variables)
    tried = 0
    for one in CATALOGUE.among(base.visited):
        try:
            with np.errstate(all="ignore"):
                fresh = Run(np.float32, one.replaces)(call.program, **call.variables).out
        except (ValueError, IndexError, TypeError):
            continue
        again = Run(np.float32, one.replaces, earlier=base.tape, differing=one.steps)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(again(call.program, **call.variables).out, fresh)
        tried += 1
    assert tried > 50


# ---- what is wrong -------------------------------------------------------------------------------


def test_two_mistakes_at_once(rng):
    q, k, v = (normal(rng, 2, 4, 7, 8) for _ in range(3))
    report = sf.check(attention, attend(q, k, v, 1), q, k, v, is_causal=True)
    assert sorted(names(report)) == ["attention.no_causal", "attention.no_scale"]
    assert len(report.explanations) == 1
    assert "two mistakes at once" in repr(report)


def test_mistakes_that_are_the_same_here_are_named_together(rng):
    q, k, v = (normal(rng, 3, 7, 16) for _ in range(3))
    report = sf.check(attention, attend(q, k, v, 1 / 16), q, k, v)
    assert set(names(report)) == {"attention.scale_by_head_dim", "attention.scale_twice"}
    assert len(report.explanations) == 2
    assert "for this call they are the same" in repr(report)


def test_overflow_is_that_of_the_learners_dtype(rng):
    x = normal(rng, 4, 6) + np.float32(90)
    with np.errstate(all="ignore"):
        single, double = np.exp(x), np.exp(x.astype(np.float64))
        report = sf.check("softmax", single / single.sum(-1, keepdims=True), x)
    assert "softmax.no_shift" in names(report)
    assert sf.check("softmax", double / double.sum(-1, keepdims=True), x).ok
    half = (x - 75).astype(np.float16)
    with np.errstate(all="ignore"):
        e = np.exp(half)
        report = sf.check("softmax", e / e.sum(-1, keepdims=True), half)
    assert "softmax.no_shift" in names(report)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float64], ids=str)
def test_mistakes_are_found_in_other_dtypes(dtype, rng):
    q, k, v = (normal(rng, 2, 4, 7, 16).astype(dtype) for _ in range(3))
    mine = attend(*(x.astype(np.float64) for x in (q, k, v)), 1).astype(dtype)
    assert names(sf.check(attention, mine, q, k, v)) == ["attention.no_scale"]


def test_large_arrays_are_sampled(rng):
    q, k, v = normal(rng, 2, 8, 300, 64), normal(rng, 2, 2, 300, 64), normal(rng, 2, 2, 300, 64)
    right = attention(q, k, v, is_causal=True)
    assert sf.check(attention, right, q, k, v, is_causal=True)
    wrong = attention(q, k, v, is_causal=True, window=100)
    report = sf.check(attention, wrong, q, k, v, is_causal=True, window=101)
    assert names(report) == ["attention.window_too_narrow"]
    assert report.where.text == "positions from 100 on"
    x, w = normal(rng, 3000, 700), normal(rng, 700, 700)
    assert names(sf.check("linear", x @ w, x, w)) == ["linear.not_transposed"]


def test_a_sample_is_a_part_of_the_whole(rng):
    q, k = normal(rng, 3, 4, 90, 8), normal(rng, 3, 2, 70, 8)
    options = {"is_causal": True, "causal_offset": np.array([0, 5, 9]), "return_lse": True}
    call = bind(attention, (q, k, k, normal(rng, 90, 70)), options)
    fewer, part = call.program.thinned(call.variables, 3000)
    some = Run(np.float64)(call.program, **fewer).out
    assert some[0].size < q.size / 4
    for a, b in zip(some, part(tuple(call.right())), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


# ---- wrong shapes --------------------------------------------------------------------------------


def wrong_shape(rng, change):
    w = [normal(rng, 12, 12) for _ in range(4)]
    x = normal(rng, 2, 5, 12)
    layer = nn.MultiHeadAttention(12, 3, *w)
    return sf.check(layer, change(layer(x, x, x)), x, x, x)


def test_wrong_shapes_are_diagnosed_first(rng):
    q, k, v = (normal(rng, 2, 3, 5, 4) for _ in range(3))
    z = attention(q, k, v)
    merged = z.swapaxes(1, 2).reshape(2, 5, 12)
    for mine, name in (
        (merged, "shape.heads_merged"),
        (z.swapaxes(1, 2), "shape.transposed"),
        (z.reshape(6, 5, 4), "shape.reshaped"),
        (z[0], "shape.one_of_many"),
        (z.mean(1), "shape.averaged"),
        (z[None], "shape.axis_of_one"),
    ):
        report = sf.check(attention, mine, q, k, v)
        assert names(report) == [name], repr(report)
        assert report.expected == z.shape
        assert f"shape {mine.shape}, needs {z.shape}" in repr(report)
    assert names(wrong_shape(rng, lambda y: y[0])) == ["shape.one_of_many"]
    q = q[:1]
    report = sf.check(attention, attention(q, k[:1], v[:1])[0], q, k[:1], v[:1])
    assert names(report) == ["shape.axis_lost"]


def test_a_wrong_shape_and_a_mistake(rng):
    q, k, v = (normal(rng, 2, 3, 5, 4) for _ in range(3))
    mine = attend(q, k, v, 1).swapaxes(1, 2)
    report = sf.check(attention, mine, q, k, v)
    assert names(report) == ["shape.transposed", "attention.no_scale"]


def test_a_shape_that_says_nothing(rng):
    x = normal(rng, 3, 5)
    report = sf.check("softmax", normal(rng, 4, 4), x)
    assert not report.ok
    assert report.diagnosis == ()


# ---- what can be said ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda z: z * np.float32(0.25), "it is the right answer times 0.25 = 1/4"),
        (lambda z: z * np.float32(2**0.5), "it is the right answer times 1.41421 = sqrt(2)"),
        (lambda z: -z, "it is the right answer with the sign turned round"),
        (lambda z: z + np.float32(0.5), "it is the right answer plus 0.5"),
        (lambda z: 0 * z, "every number is 0"),
        (lambda z: 0 * z + 3, "every number is 3"),
        (lambda z: z[:, ::-1], "the heads are right, but in reverse order"),
        (lambda z: np.roll(z, 1, 2), "the positions are right, but rolled along by 1"),
        (lambda z: z[:, [1, 0, 2, 3]], "heads 0 and 1 are swapped"),
        (lambda z: z[..., [0, 2, 4, 1, 3, 5]], "the channels are right, but"),
        (lambda z: z[:, [2, 2, 2, 2]], "all heads are head 2 of the right answer"),
        (
            lambda z: z.swapaxes(1, 2).reshape(z.shape),
            "a reshape stands where a transpose is needed",
        ),
        (
            lambda z: np.where(np.arange(7)[:, None] < 5, z, np.nan),
            "numbers are NaN: positions from 5 on; the other numbers are right",
        ),
        (
            lambda z: z + np.arange(6, dtype=np.float32),
            "the same vector is added to every row: look for a bias",
        ),
        (
            lambda z: z.astype(ml_dtypes.bfloat16).astype(np.float32),
            "the error is as large as bfloat16 roundings are, and all numbers are bfloat16 numbers",
        ),
        (
            lambda z: np.concatenate([np.zeros_like(z[:, :, :1]), z[:, :, :-1]], 2),
            "the right numbers stand 1 position too late",
        ),
    ],
)
def test_what_can_be_said_of_an_unknown_mistake(change, sentence, rng):
    q, k, v = (normal(rng, 2, 4, 7, 6) for _ in range(3))
    report = sf.check(attention, change(attention(q, k, v)), q, k, v)
    assert not report.ok
    assert report.diagnosis == ()
    said = " / ".join(report.observations)
    assert sentence in said, said
    assert report.observations[0] in repr(report)


def test_numbers_that_mean_nothing_are_not_explained(rng):
    q, k, v = (normal(rng, 2, 4, 7, 6) for _ in range(3))
    report = sf.check(attention, normal(rng, 2, 4, 7, 6), q, k, v, is_causal=True)
    assert report.diagnosis == report.observations == ()


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (np.s_[:, 2:4], "heads 2-3 only"),
        (np.s_[:, 1], "head 1 only"),
        (np.s_[1, :, 5:], "sequence 1 only, positions from 5 on"),
        (np.s_[..., ::2], "every other of the channels, from 0 on"),
        (np.s_[:, :, [0, 1, 2, 4, 5, 6]], "all positions but 3"),
        (np.s_[0, 0, 0, 0], "sequence 0 only, head 0 only, position 0 only, channel 0 only"),
        (np.s_[...], ""),
    ],
)
def test_where_the_damage_is(index, text, rng):
    q, k, v = (normal(rng, 2, 4, 7, 6) for _ in range(3))
    mine = attention(q, k, v)
    mine[index] += np.abs(normal(rng, *np.shape(mine[index]))) + 1
    report = sf.check(attention, mine, q, k, v)
    assert report.where.text == text
    assert report.max_abs == pytest.approx(abs(report.where.mine - report.where.right), rel=0.9)


def test_which_of_several_results_is_wrong(rng):
    q, k, v = (normal(rng, 2, 7, 6) for _ in range(3))
    z, weights = attention(q, k, v, return_weights=True)
    report = sf.check(attention, (z, weights[:, ::-1]), q, k, v, return_weights=True)
    assert report.where.result == 1
    assert "of the 2 results, right: number 0 (from 0)" in report.observations


# ---- remarks -------------------------------------------------------------------------------------


def test_remarks(rng):
    q, k, v = (normal(rng, 2, 5, 4) for _ in range(3))

    def remark(*args, mine=None, **kwargs):
        mine = attention(*args, **kwargs) if mine is None else mine
        report = sf.check(attention, mine, *args, **kwargs)
        assert report.ok
        return " / ".join(report.remarks)

    assert remark(q, k, v) == ""
    assert "key and value are the same array" in remark(q, k, k)
    assert "query and key are the same array" in remark(q, q, v)
    assert "a float64 has come in" in remark(q, k, v, mine=attention(q, k, v).astype(float))
    assert "right to 16 bits only" in remark(q, k, v, mine=attention(q, k, v).astype(np.float16))
    assert "all numbers of query are equal" in remark(np.ones_like(q), k, v)
    square = [normal(rng, 3, 5, 5) for _ in range(3)]
    assert "L and D are both 5" in remark(*square)
    w = normal(rng, 4, 4)
    assert "symmetric" in sf.check("linear", q @ (w + w.T), q, w + w.T).remarks[0]


# ---- the call and the report ---------------------------------------------------------------------


def test_wrong_calls_raise_what_the_operation_raises(rng):
    x = normal(rng, 3, 4)
    for op, args, kwargs in (
        (sf.softmax, (x, 5), {}),
        (sf.softmax, (), {}),
        (sf.linear, (x, x.T), {}),
        (sf.embedding, ([7], x), {}),
        (sf.rms_norm, (x,), {}),
    ):
        with pytest.raises((TypeError, ValueError, IndexError)) as own:
            op(*args, **kwargs)
        with pytest.raises(type(own.value)) as raised:
            sf.check(op, x, *args, **kwargs)
        assert str(raised.value) == str(own.value)


def test_refusals(rng):
    x = normal(rng, 3, 4)
    with pytest.raises(TypeError, match=r"op is 'conv', needs one of .*softmax.*TransformerBlock"):
        sf.check("conv", x, x)
    with pytest.raises(TypeError, match=r"op is the class nn\.MLP, needs a layer made from it"):
        sf.check(nn.MLP, x, x)
    with pytest.raises(TypeError, match="needs one of"):
        sf.check(np.exp, x, x)
    with pytest.raises(TypeError, match="out is given"):
        sf.check("softmax", x, x, out=x)
    with pytest.raises(TypeError, match="needs a tuple or list of 2 results"):
        sf.check(attention, x, x, x, x, return_weights=True)
    with pytest.raises(TypeError, match="mine is a tuple of 2, needs one array"):
        sf.check("softmax", (x, x), x)
    for nothing in (None, "x", [[1], [1, 2]]):
        with pytest.raises(TypeError, match="mine is"):
            sf.check("softmax", nothing, x)
    with pytest.raises(TypeError, match="complex"):
        sf.check("softmax", x * 1j, x)


def test_everything_can_be_checked():
    known = {name for name in reference.__all__ if name != "RopeFrequencies"}
    assert known | {f"nn.{name}" for name in nn.__all__} == set(checkable())


def test_the_report(rng):
    q, k, v = (normal(rng, 2, 5, 4) for _ in range(3))
    right = sf.check(attention, attend(q, k, v), q, k, v)
    assert right.ok
    assert right
    assert right.raise_if_wrong() is right
    assert repr(right).startswith("✓ scaled_dot_product_attention (2, 5, 4) float32: right")
    assert "\n" not in repr(right)
    wrong = sf.check(attention, attend(q, k, v, 1), q, k, v)
    assert not wrong
    with pytest.raises(sf.CheckError) as raised:
        wrong.raise_if_wrong()
    assert isinstance(raised.value, AssertionError)
    (found,) = wrong.diagnosis
    for words in (found.name, found.title, found.cause, found.fix, found.step):
        assert words in str(raised.value)
    assert wrong.max_abs > 0 < wrong.max_rel


def test_html_is_small_and_escaped(rng):
    q, k, v = (normal(rng, 2, 5, 4) for _ in range(3))
    html = sf.check(attention, attend(q, k, v, 1), q, k, v)._repr_html_()
    assert "the scores are not scaled" in html
    assert 'src="data:image/png;base64,' in html
    assert len(html) < 60_000
    ids = np.array([1, 2])
    html = sf.check("embedding", normal(rng, 2, 4), ids, normal(rng, 5, 4))._repr_html_()
    assert "<script" not in html
    assert sf.check(attention, attend(q, k, v), q, k, v)._repr_html_().count("<img") == 0


def test_html_without_matplotlib(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    x = normal(rng, 3, 4)
    html = sf.check("softmax", x, x)._repr_html_()
    assert "<img" not in html
    assert "wrong" in html


def test_a_mistake_of_ones_own(rng):
    """As the README shows."""

    @mistake(
        "softmax.shift",
        title="the minimum is subtracted",
        cause="min for max.",
        fix="Subtract the maximum.",
        step="01 §1",
    )
    def minimum_subtracted(s):
        s.scores = s.scores - s.scores.min(axis=s.along, keepdims=True)

    try:
        x = normal(rng, 3, 4, scale=60)
        with np.errstate(all="ignore"):
            e = np.exp(x - x.min(-1, keepdims=True))
            report = sf.check("softmax", e / e.sum(-1, keepdims=True), x)
        assert "softmax.minimum_subtracted" in names(report)
        with pytest.raises(ValueError, match=r"is called softmax\.minimum_subtracted already"):
            CATALOGUE.add(minimum_subtracted)
    finally:
        del CATALOGUE.variations["softmax.minimum_subtracted"]
