"""`out=`: which arrays and tensors it may be, and that it is written whole and nothing beside."""

import numpy as np
import pytest

import simdformer as sf
from conftest import normal, relaid, same_bits
from operations import MIXING, ROWS, SHARES, WIDTH
from simdformer.tensors.memory import tensor_of


def forms(x):
    """An array, and a tensor of the same memory, which has no negative strides."""
    return [x] if min(x.strides) < 0 else [x, tensor_of(x)]


def drawn(operation, dtype, rng):
    """A result (ROWS, WIDTH), and the call that makes it into `out`."""
    x = normal(rng, ROWS, WIDTH, dtype=dtype)
    if operation is MIXING["linear"]:
        weight = normal(rng, WIDTH, WIDTH, dtype=dtype)
        want, call = sf.linear(x, weight), lambda out: sf.linear(x, weight, out=out)
    else:
        want, call = operation(x), lambda out: operation(x, out=out)
    return want, call


def test_out_is_returned_and_holds_the_result(operation, dtype, rng):
    want, call = drawn(operation, dtype, rng)
    for shape_of_memory, part in (
        ((ROWS, WIDTH), np.s_[:, :]),
        ((ROWS, WIDTH + 3), np.s_[:, 2:-1]),
        ((2 * ROWS, WIDTH), np.s_[::-2, :]),
        ((ROWS, 3 * WIDTH), np.s_[:, ::3]),
        ((ROWS, WIDTH), np.s_[:, ::-1]),
    ):
        memory = np.full(shape_of_memory, 77, dtype)
        untouched = np.ones(shape_of_memory, bool)
        untouched[part] = False
        for out in forms(memory[part]):
            memory[part] = 77
            assert call(out) is out
            assert same_bits(memory[part], want)
            assert (memory[untouched] == 77).all()
    across = np.empty((WIDTH, ROWS), dtype).T
    for out in forms(across):
        assert call(out) is out
        assert same_bits(across, want)
        across[:] = 0


def test_unaligned_out(operation, dtype, rng):
    want, call = drawn(operation, dtype, rng)
    out = np.zeros(want.nbytes + 1, np.uint8)[1:].view(dtype).reshape(want.shape)
    assert call(out) is out
    assert same_bits(out, want)


def test_out_may_be_exactly_the_input_of_a_row_wise_operation(isa, row_wise, dtype, rng):
    x = normal(rng, 70, ROWS, WIDTH, dtype=dtype)
    want = row_wise(x)
    for layout in ("contiguous", "unaligned", "transposed", "gaps", "backwards"):
        same = relaid(rng, x.copy(), layout)
        if layout == "unaligned":  # which comes from immutable bytes
            same = np.zeros(x.nbytes + 1, np.uint8)[1:].view(dtype).reshape(x.shape)
        for one in [same] if layout == "unaligned" else forms(same):
            same[:] = x
            assert row_wise(one, out=one) is one
            assert same_bits(same, want), layout
    across = np.asfortranarray(x)
    assert row_wise(across, out=across) is across
    assert same_bits(across, want)


def test_swiglu_writes_over_gate_or_up(isa, dtype, rng):
    gate, up = normal(rng, 2, 5, 33, dtype=dtype)
    want = sf.swiglu(gate, up)
    for index in range(2):
        pair = [gate.copy(), up.copy()]
        assert sf.swiglu(*pair, out=pair[index]) is pair[index]
        assert same_bits(pair[index], want)


def test_partial_overlap_is_refused_and_interleaved_columns_are_not(row_wise, rng):
    memory = normal(rng, ROWS + 1, 2 * WIDTH)
    left, right = memory[:ROWS, :WIDTH], memory[:ROWS, WIDTH:]
    assert np.may_share_memory(left, right)  # by their bounds, which is not enough to refuse
    want = row_wise(left.copy())
    assert same_bits(row_wise(left, out=right), want)

    for out in (memory[1:, :WIDTH], memory[:ROWS, 1 : WIDTH + 1], left[::-1]):
        before = memory.copy()
        for one in forms(out):
            with pytest.raises(ValueError, match=SHARES):
                row_wise(left, out=one)
        assert same_bits(memory, before)
    flat = normal(rng, ROWS * WIDTH * 2)
    evens, odds = (flat[start::2].reshape(ROWS, WIDTH) for start in (0, 1))
    assert same_bits(row_wise(evens.copy(), out=odds), row_wise(evens.copy()))
    with pytest.raises(ValueError, match=SHARES):
        row_wise(flat[: ROWS * WIDTH].reshape(ROWS, WIDTH), out=evens)


def test_outs_of_a_list_of_weights(rng):
    x, weights = normal(rng, 3, 8), [normal(rng, n, 8) for n in (4, 5, 4)]
    want = sf.linear(x, weights)
    for form in (np.asarray, tensor_of):
        wide = np.zeros((3, 13), np.float32)
        outs = [form(part) for part in (wide[:, :4], wide[:, 4:9], wide[:, 9:])]
        got = sf.linear(x, weights, out=outs)
        assert isinstance(got, list)
        assert all(a is b for a, b in zip(got, outs, strict=True))
        assert same_bits(wide, np.concatenate(want, axis=1))
    partly = sf.linear(x, weights, [None, np.ones(5, np.float32), None], out=[outs[0], None, None])
    assert partly[0] is outs[0]
    np.testing.assert_allclose(partly[1], want[1] + 1, rtol=1e-6)
    for clash, name in (
        ((outs[0], None, outs[0]), r"out\[0\]"),
        ((None, None, weights[0][:3, :4]), "weight"),
    ):
        with pytest.raises(ValueError, match=r"linear: out\[2\] shares memory with " + name):
            sf.linear(x, weights, out=clash)
