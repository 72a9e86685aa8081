"""sf.check: right is right, in every dtype and from every library; wrong is never a guess."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from conftest import LAYOUTS, bfloat16, normal, relaid, to_torch
from mistake_examples import names
from simdformer import nn
from simdformer.learn.catalogue import CATALOGUE
from simdformer.learn.check.blas import _openblas, one_thread
from simdformer.learn.check.operation import bind
from simdformer.learn.check.search import WHOLE, Search
from simdformer.learn.program import Run

attention = sf.scaled_dot_product_attention
TORCH = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def attend(q, k, v, scale=None):
    scale = q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
    return softmax(q @ k.swapaxes(-1, -2) * scale) @ v


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
        size = np.abs(b).max(initial=0, where=np.isfinite(b))
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=1e-12, atol=1e-14 * size)


@given(st.data())
def test_the_program_of_attention_is_the_reference(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    lead = data.draw(st.sampled_from([(), (2,), (2, 1)]))
    kv, group, length, keys = (data.draw(st.integers(1, most)) for most in (3, 3, 5, 6))
    q = normal(rng, *lead, kv * group, length, 4)
    k, v = normal(rng, *lead, kv, keys, 4), normal(rng, *lead, kv, keys, 3)
    options = {"return_weights": True, "return_scores": True, "return_lse": True}
    if data.draw(st.booleans()):
        kinds = [{"is_causal": True}, {"window": 2}, {"window": (None, 1)}, {"chunk": 2}]
        options |= data.draw(st.sampled_from([{}, {"is_causal": True}]))
        options |= data.draw(st.sampled_from(kinds))
        options["causal_offset"] = data.draw(st.integers(-2, 6))
    options |= data.draw(st.sampled_from([{}, {"scale": 0.0}, {"scale": 0.7}, {"softcap": 0.5}]))
    if data.draw(st.booleans()):
        options["sinks"] = normal(rng, kv * group)
    for name in ("key_starts", "key_lengths"):
        if lead and data.draw(st.booleans()):
            options[name] = rng.integers(0, keys + 1, 2)
    if data.draw(st.booleans()):
        sizes = (*lead, length), (*lead, keys)
        options["segment_ids"] = tuple(np.sort(rng.integers(0, 3, size)) for size in sizes)
    elif not lead and "causal_offset" in options:
        options["cu_seqlens"] = [0, 1, length], [0, 0, keys]
        options["causal_offset"] = np.array([options["causal_offset"], 1])
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


def test_the_program_of_attention_reads_pages_and_a_query_for_all(rng):
    pools = normal(rng, 5, 2, 4, 6), normal(rng, 5, 2, 4, 3)
    q, table = normal(rng, 2, 4, 3, 6), np.array([[4, 0], [1, 3]])
    same(attention, q, *pools, block_table=table, key_lengths=[5, 8])
    same(attention, q[:1], normal(rng, 2, 2, 7, 6), normal(rng, 2, 2, 7, 6), key_starts=[0, 4])


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


def test_a_simpler_mistake_that_gives_the_same_is_named_alone():
    """Where there is one row, or nothing but NaN, keepdims changes nothing."""
    x = np.array([1000.0, 1000.1, 1000.2], np.float32)
    with np.errstate(all="ignore"):
        naive = np.exp(x) / np.exp(x).sum(-1)
    assert [one.name for one in sf.check(sf.softmax, naive, x).diagnosis] == ["softmax.no_shift"]


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


def test_nothing_is_raised_or_warned_of_on_the_way(rng):
    """Whatever a notebook has set numpy to do about overflow."""
    x = normal(rng, 4, 6, scale=1e-30)
    x[0] = 1e30
    with np.errstate(all="raise"):
        assert sf.check("softmax", sf.softmax(x), x)
        assert not sf.check("softmax", sf.softmax(x, 0), x)
        assert not sf.check("linear", sf.linear(x, x), x, x, x[:, 0])


def test_large_arrays_are_sampled(rng):
    q, k, v = normal(rng, 2, 4, 400, 32), normal(rng, 2, 2, 400, 32), normal(rng, 2, 2, 400, 32)
    right = attention(q, k, v, is_causal=True)
    assert sf.check(attention, right, q, k, v, is_causal=True)
    wrong = attention(q, k, v, is_causal=True, window=100)
    report = sf.check(attention, wrong, q, k, v, is_causal=True, window=101)
    assert names(report) == ["attention.window_too_narrow"]
    assert report.where.text == "positions from 100 on"
    x, w = normal(rng, 3000, 350), normal(rng, 350, 350)
    assert q.shape[0] * q.shape[1] * 400 * 400 > WHOLE < x.size
    assert names(sf.check("linear", x @ w, x, w)) == ["linear.not_transposed"]


def test_what_takes_long_is_not_tried_on_a_whole_array(rng, monkeypatch):
    """One wrong number, beside the sample: sums in 16 bits would take many seconds."""
    x, w = normal(rng, 600, 512), normal(rng, 700, 512)
    mine = sf.linear(x, w)
    mine[3, 4] += 1
    slow, is_slow = {}, Search.is_slow

    def asked(search, variation, dtype):
        slow[variation.mistake.name] = is_slow(search, variation, dtype)
        return slow[variation.mistake.name]

    monkeypatch.setattr(Search, "is_slow", asked)
    report = sf.check("linear", mine, x, w)
    assert not report.ok
    assert report.where.wrong == 1
    assert report.diagnosis == ()
    assert slow.pop("linear.sum_stalls_in_float16")
    assert slow
    assert not slow["linear.first_weight_for_all"]


def test_a_sample_is_a_part_of_the_whole(rng):
    q, k = normal(rng, 3, 4, 90, 8), normal(rng, 3, 2, 70, 8)
    options = {"is_causal": True, "causal_offset": np.array([0, 5, 9]), "return_lse": True}
    ids = np.sort(rng.integers(0, 5, (3, 90))), np.sort(rng.integers(0, 5, (3, 70)))
    packed = {"segment_ids": ids, "key_starts": np.array([0, 9, 2]), "chunk": 20}
    for more in ({}, packed):
        sampled(bind(attention, (q, k, k, normal(rng, 90, 70)), options | more), q.size)


def sampled(call, size):
    fewer, part = call.program.thin(call.variables, 3000)
    with np.errstate(all="ignore"):
        some = Run(np.float64)(call.program, **fewer).out
    assert some[0].size < size / 4
    for a, b in zip(some, part(tuple(call.right())), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


# ---- what was done to the whole array ------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_is_seen_in_one_array(p, rng):
    q, k, v = (normal(rng, 2, 3, 7, 8) for _ in range(3))
    mine = attend(q, k, v) * (rng.random(q.shape) >= p) / np.float32(1 - p)
    report = sf.check(attention, mine.astype(np.float32), q, k, v)
    assert names(report) == ["array.dropout"], report
    assert report.diagnosis[0].title == f"dropout is left on, with p = {p}"


def test_zeros_alone_or_another_factor_are_no_dropout(rng):
    q, k, v = (normal(rng, 2, 3, 7, 8) for _ in range(3))
    dropped = attend(q, k, v) * (rng.random(q.shape) >= 0.3)
    for factor in (1, 1.1, 3):
        mine = (dropped * factor).astype(np.float32)
        assert "array.dropout" not in names(sf.check(attention, mine, q, k, v))


def test_a_first_sequence_only(rng):
    q, k, v = (normal(rng, 3, 2, 7, 8) for _ in range(3))
    right = attend(q, k, v)
    for mine, rest in (
        (np.concatenate([right[:1], 0 * right[1:]]), "the others are 0"),
        (np.concatenate([right[:1]] * 3), "the others are copies of it"),
    ):
        report = sf.check(attention, mine, q, k, v)
        assert names(report) == ["array.first_sequence_only"], report
        assert report.diagnosis[0].title.endswith(rest)


def test_matrix_products_have_one_thread_while_a_check_runs_and_all_of_them_afterwards():
    blas = _openblas()
    if blas is None:
        pytest.skip("numpy has another library than OpenBLAS")
    read, write = blas
    before, seen = read(), []

    def mine(x):
        with one_thread():  # a check within a check
            pass
        seen.append(read())
        return sf.softmax(x)

    write(2)
    try:
        assert sf.check(sf.softmax, mine, np.random.default_rng(0).standard_normal((3, 5))).ok
        with pytest.raises(TypeError):
            sf.check("no such operation", mine)
        assert set(seen) == {1}
        assert read() == 2
    finally:
        write(before)
