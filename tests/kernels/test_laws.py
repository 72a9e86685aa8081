"""Laws that results obey whatever the numbers: symmetries, invariances, sums that are the same.

Where a law holds exactly in floating point (powers of two, signs, zeros and ones, rows that do not
know each other) the bits are compared. The others hold within rounding.
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from attention_cases import attention, close, problem
from cases import each
from conftest import SIXTEEN_BITS, grid, normal, same_bits
from operations import OPERATIONS, ROW_WISE
from simdformer.reference.forward import float64

LAYOUTS_OF_ROPE = ["half", "interleaved"]


# ---- all operations ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "softmax_axis_0"])
def test_what_stands_first_does_not_matter(isa, dtype, name, rng):
    """Sequences of a batch do not know each other: turned round, their results turn round, and
    alone each gives the same."""
    for shape in ((7, 6, 16), (37, 1, 54)):
        x = normal(rng, *shape, dtype=dtype)
        order = rng.permutation(len(x))
        weight = normal(rng, 5, shape[-1], dtype=dtype)
        call = (lambda x, w=weight: sf.linear(x, w)) if name == "linear" else OPERATIONS[name]
        whole = call(x)
        assert same_bits(call(x[order]), whole[order])
        assert same_bits(call(x[::-1]), np.ascontiguousarray(whole[::-1]))
        assert all(same_bits(call(alone), found) for alone, found in zip(x, whole, strict=True))


@pytest.mark.parametrize("name", ROW_WISE)
def test_16_bit_arithmetic_is_float32_rounded_once_at_the_store(isa, name, rng):
    for dtype in SIXTEEN_BITS:
        x = normal(rng, 4, 7, 78, dtype=dtype, scale=3)
        wide = ROW_WISE[name](x.astype(np.float32))
        with np.errstate(over="ignore"):
            assert same_bits(ROW_WISE[name](x), wide.astype(dtype))


@each("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [name for name in ROW_WISE if name != "softmax_axis_0"])
def test_nan_and_infinity_stay_in_their_row(isa, dtype, name, poison, rng):
    """In any place of it; a NaN comes out as a NaN in the place where it went in."""
    x = normal(rng, 5, 34, dtype=dtype)
    clean = OPERATIONS[name](x)
    for where in range(34):
        poisoned = x.copy()
        poisoned[2, where] = poison
        got = OPERATIONS[name](poisoned)
        assert same_bits(got[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
        of_norm = name.startswith(("rms_norm", "layer_norm"))
        if np.isnan(poison) or of_norm:
            # relu and its like keep the place, the others spoil at least that
            assert np.isnan(float64(got)[2, where])
        if np.isnan(poison) and of_norm:
            assert np.isnan(float64(got)[2]).all()


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "rope_half", "rope_interleaved"])
def test_odd_functions(isa, dtype, name, rng):
    x = normal(rng, 5, 38, dtype=dtype)
    assert same_bits(OPERATIONS[name](-x), -OPERATIONS[name](x))


# ---- softmax -------------------------------------------------------------------------------------


@each("shift", [1, -3, 16])
def test_softmax_does_not_see_a_shift(isa, dtype, shift, rng):
    x = grid(rng, 9, 53, dtype=dtype)
    assert same_bits(sf.softmax(x + dtype.type(shift)), sf.softmax(x))


@given(
    seed=st.integers(0, 9999),
    length=st.integers(1, 200),
    shift=st.floats(-1e4, 1e4),
    scale=st.floats(0.01, 20),
)
def test_softmax_of_shifted_scores_drawn_at_random(seed, length, shift, scale):
    x = normal(np.random.default_rng(seed), 3, length, dtype=np.float64, scale=scale)
    for name in sf.isas():
        with sf.use_isa(name):
            p = sf.softmax(x)
            # the shifted scores are rounded, by half a unit of the largest of them
            lost = 4 * np.spacing(abs(shift) + np.abs(x).max())
            np.testing.assert_allclose(sf.softmax(x + shift), p, rtol=1e-13 + lost, atol=1e-300)
            np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-13)
            assert (p >= 0).all()
            assert (p <= 1).all()
            assert np.array_equal(p.argmax(-1), x.argmax(-1))


def test_a_temperature_is_a_division(isa, dtype, rng):
    x = grid(rng, 5, 40, dtype=dtype)
    for temperature in (0.25, 0.5, 2.0, 8.0):
        divided = x / dtype.type(temperature)
        assert same_bits(sf.softmax(x, temperature=temperature), sf.softmax(divided))


def test_softmax_of_elements_in_another_order(isa, dtype, rng):
    x = normal(rng, 4, 77, dtype=dtype)
    order = rng.permutation(77)
    close(sf.softmax(x[:, order]), sf.softmax(x)[:, order], dtype)


def test_minus_infinities_are_not_there(isa, dtype, rng):
    x = normal(rng, 4, 50, dtype=dtype)
    longer = np.full((4, 91), -np.inf, dtype)
    longer[:, 20:70] = x
    got = sf.softmax(longer)
    close(got[:, 20:70], sf.softmax(x), dtype)
    assert not got[:, :20].any()
    assert not got[:, 70:].any()


# ---- activations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["silu", "gelu", "relu"])
def test_an_activation_and_its_mirror_image_differ_by_x(isa, dtype, name, rng):
    """x s(x) + x s(-x) = x, since s(x) + s(-x) = 1 for the sigmoid, for Phi, and for the step."""
    x = normal(rng, 7, 45, dtype=dtype, scale=2)
    f = getattr(sf, name)
    close(float64(f(x)) - float64(f(-x)), x, dtype)


def test_swiglu_is_silu_times_up(isa, dtype, rng):
    gate, up = normal(rng, 5, 45, dtype=dtype), normal(rng, 5, 45, dtype=dtype)
    assert same_bits(sf.swiglu(gate, np.ones_like(gate)), sf.silu(gate))
    assert same_bits(sf.swiglu(gate, -up), -sf.swiglu(gate, up))
    close(sf.swiglu(gate, up), float64(sf.silu(gate)) * float64(up), dtype)


# ---- norms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [sf.rms_norm, sf.layer_norm])
@each("factor", [0.25, 4.0])
def test_a_norm_does_not_see_a_factor(isa, dtype, op, factor, rng):
    x, weight = normal(rng, 6, 51, dtype=dtype), normal(rng, 51, dtype=dtype)
    assert same_bits(op(x * dtype.type(factor), weight, eps=0.0), op(x, weight, eps=0.0))
    # with eps, the factor is one of eps as well
    assert same_bits(op(x * dtype.type(4), eps=16e-5), op(x, eps=1e-5))


def test_layer_norm_does_not_see_a_shift(isa, dtype, rng):
    x = grid(rng, 6, 51, dtype=dtype)
    close(sf.layer_norm(x + dtype.type(8), eps=0.0), sf.layer_norm(x, eps=0.0), dtype, 4)


def test_layer_norm_is_rms_norm_of_what_is_left_without_the_mean(isa, dtype, rng):
    x = normal(rng, 6, 64, dtype=dtype)
    centred = (float64(x) - float64(x).mean(-1, keepdims=True)).astype(dtype)
    close(sf.layer_norm(x, eps=1e-5), sf.rms_norm(centred, eps=1e-5), dtype, 4)


# ---- linear --------------------------------------------------------------------------------------

each_form = each("form", [np.asarray, sf.pack])
each_count = each("rows", [1, 5, 30])


@each_form
@each_count
def test_linear_is_homogeneous_and_odd(isa, dtype, form, rows, rng):
    x, weight = normal(rng, rows, 67, dtype=dtype), form(normal(rng, 21, 67, dtype=dtype))
    y = sf.linear(x, weight)
    assert same_bits(sf.linear(x * dtype.type(4), weight), y * dtype.type(4))
    assert same_bits(sf.linear(-x, weight), -y)


@each_form
@each_count
def test_linear_is_additive(isa, dtype, form, rows, rng):
    """On numbers whose sums are exact, in x and in the inner products too."""
    a, b = grid(rng, rows, 67, dtype=dtype), grid(rng, rows, 67, dtype=dtype)
    weight = form(grid(rng, 21, 67, dtype=dtype))
    apart = float64(sf.linear(a, weight)) + float64(sf.linear(b, weight))
    close(sf.linear(a + b, weight), apart, dtype, 70)
    if dtype.itemsize > 2:
        assert same_bits(sf.linear(a + b, weight), sf.linear(a, weight) + sf.linear(b, weight))


@each_form
@each_count
def test_linear_with_zeros_and_ones(isa, dtype, form, rows, rng):
    x, bias = normal(rng, rows, 67, dtype=dtype), normal(rng, 67, dtype=dtype)
    identity = form(np.eye(67, dtype=dtype))
    assert same_bits(sf.linear(x, identity), x)
    assert same_bits(sf.linear(np.zeros_like(x), identity, bias), np.tile(bias, (rows, 1)))
    order = rng.permutation(67)
    assert same_bits(sf.linear(x, form(np.eye(67, dtype=dtype)[order])), x[:, order])


def test_an_embedding_is_linear_of_one_hot_rows(isa, dtype, rng):
    table, ids = normal(rng, 40, 24, dtype=dtype), rng.integers(0, 40, 30)
    one_hot = np.eye(40, dtype=dtype)[ids]
    assert same_bits(sf.linear(one_hot, np.ascontiguousarray(table.T)), sf.embedding(ids, table))


@each("inner", [3, 16, 300])
@each("rows", [1, 30])
def test_sums_too_large_for_the_dtype_are_infinite(isa, dtype, rows, inner):
    x = np.full((rows, inner), ml_dtypes.finfo(dtype).max, dtype)
    for weight in (np.ones((3, inner), dtype), sf.pack(np.ones((3, inner), dtype))):
        assert np.isposinf(float64(sf.linear(x, weight))).all()
        assert np.isneginf(float64(sf.linear(-x, weight))).all()


# ---- rope ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS_OF_ROPE)
def test_rope_keeps_norms(isa, dtype, layout, rng):
    x = normal(rng, 3, 50, 22, dtype=dtype)
    got = sf.rope(x, layout=layout, offset=100_000)
    norms = [np.linalg.norm(float64(y), axis=-1) for y in (got, x)]
    close(*norms, dtype, 5)
    pairs = [
        float64(y).reshape(3, 50, 11, 2) if layout == "interleaved"
        else np.stack([float64(y)[..., :11], float64(y)[..., 11:]], -1)
        for y in (got, x)
    ]  # fmt: skip
    close(*(np.linalg.norm(pair, axis=-1) for pair in pairs), dtype, 2)


@pytest.mark.parametrize("layout", LAYOUTS_OF_ROPE)
@given(
    seed=st.integers(0, 9999),
    half=st.integers(1, 70),
    p=st.integers(-(10**6), 10**6),
    q=st.integers(-(10**6), 10**6),
    theta=st.floats(1.5, 1e7),
)
def test_turns_add_up_and_can_be_taken_back(layout, seed, half, p, q, theta):
    x = normal(np.random.default_rng(seed), 1, 2 * half, dtype=np.float64)
    turn = {"layout": layout, "theta": theta}
    for name in sf.isas():
        with sf.use_isa(name):
            # angles up to 2e6 are good to 2e6 × 2^-53 or so
            once = sf.rope(x, positions=[p + q], **turn)
            twice = sf.rope(sf.rope(x, positions=[p], **turn), positions=[q], **turn)
            np.testing.assert_allclose(twice, once, rtol=0, atol=2e-8)
            back = sf.rope(sf.rope(x, positions=[p], **turn), positions=[-p], **turn)
            np.testing.assert_allclose(back, x, rtol=0, atol=2e-8)


@pytest.mark.parametrize("layout", LAYOUTS_OF_ROPE)
def test_rope_is_linear(isa, dtype, layout, rng):
    x, y = (grid(rng, 2, 9, 26, dtype=dtype) for _ in range(2))
    turn = {"layout": layout, "offset": 17}
    assert same_bits(sf.rope(x * dtype.type(4), **turn), sf.rope(x, **turn) * dtype.type(4))
    apart = float64(sf.rope(x, **turn)) + float64(sf.rope(y, **turn))
    close(sf.rope(x + y, **turn), apart, dtype, 9)


@pytest.mark.parametrize("layout", LAYOUTS_OF_ROPE)
@each("shift", [1, 77, 5000])
def test_attention_with_rope_depends_on_distances_only(isa, dtype, layout, shift, rng):
    """Queries and keys moved on together: the same scores, weights and results."""
    q, k, v = problem(rng, H=4, K=2, L=12, S=12, D=24, dtype=dtype)

    def at(offset):
        turned = (sf.rope(y, layout=layout, offset=offset) for y in (q, k))
        return attention(*turned, v, is_causal=True, return_scores=True)

    for here, there in zip(at(0), at(shift), strict=True):
        seen = np.isfinite(float64(here))
        assert np.array_equal(seen, np.isfinite(float64(there)))
        close(here[seen], there[seen], dtype, 8)


# ---- whole models --------------------------------------------------------------------------------


def test_logits_do_not_depend_on_later_tokens(isa, demo, rng):
    """Not in their last bit, whatever follows."""
    ids = rng.integers(0, demo.config.vocab_size, 40)
    whole = demo(ids)
    for n in (1, 7, 39):
        changed = ids.copy()
        changed[n:] = rng.integers(0, demo.config.vocab_size, 40 - n)
        assert same_bits(demo(changed)[:n], whole[:n])


def test_sequences_of_a_batch_do_not_know_each_other(isa, demo, rng):
    ids = rng.integers(0, demo.config.vocab_size, (5, 20))
    whole = demo(ids)
    order = rng.permutation(5)
    assert same_bits(demo(ids[order]), whole[order])
    others = rng.integers(0, demo.config.vocab_size, (5, 20))
    others[2] = ids[2]
    assert same_bits(demo(others)[2], whole[2])
