"""The report of sf.check: wrong shapes, what can be said of unknown mistakes, remarks, refusals."""

import sys

import numpy as np
import pytest

import simdformer as sf
from conftest import normal
from mistake_examples import names
from simdformer import backward, nn, reference
from simdformer.learn.check.operation import checkable
from test_check import attend, attention

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
        (z[:1], "shape.one_of_many"),
        (z.sum(-1, keepdims=True), "shape.averaged"),
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda z: z * np.float32(0.25), "it is the right answer times 0.25 = 1/4"),
        (lambda z: z * np.float32(2**0.5), "it is the right answer times 1.41421 = sqrt(2)"),
        (lambda z: -z, "it is the right answer with the sign flipped"),
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
    assert report.observations[0] in " ".join(repr(report).split())


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_sign_of_rope_is_flipped(layout, rng):
    x = normal(rng, 2, 3, 7, 8)
    report = sf.check("rope", -sf.rope(x, layout=layout), x, layout=layout)
    assert report.diagnosis == ()
    assert report.observations == ("it is the right answer with the sign flipped",)


def test_numbers_that_mean_nothing_are_not_explained(rng):
    q, k, v = (normal(rng, 2, 4, 7, 6) for _ in range(3))
    report = sf.check(attention, normal(rng, 2, 4, 7, 6), q, k, v, is_causal=True)
    assert report.diagnosis == report.observations == ()
    assert "no known mistake gives this array" in repr(report)


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


def of_other_axes(rng):
    """Operations, a wrong result of each, and where it says that it is wrong."""
    x, p = normal(rng, 2, 3, 7, 8), normal(rng, 5, 4)
    z, labels = normal(rng, 2, 6, 9), rng.integers(0, 9, (2, 6))
    rope = {"layout": "half"}
    zeros = np.zeros_like(p)
    options = {"step": 1, "lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    weight, *moments = p.copy(), zeros.copy(), zeros.copy()
    sf.optim.adamw_(weight, p, *moments, **options)
    step = (p, [p], zeros, zeros)
    return (
        ("rope", sf.rope(x, **rope), (x,), rope, np.s_[:, 2], "head 2 only"),
        ("backward.rope", backward.rope(x, **rope), (x,), rope, np.s_[:, 2], "head 2 only"),
        ("softmax", sf.softmax(x), (x,), {}, np.s_[:, 1], "entry 1 of axis 1 only"),
        ("softmax", sf.softmax(x), (x,), {}, np.s_[:, :, 4], "row 4 only"),
        ("silu", sf.silu(x[0]), (x[0],), {}, np.s_[1], "sequence 1 only"),
        ("silu", sf.silu(x), (x,), {}, np.s_[:, 1], "entry 1 of axis 1 only"),
        (
            "backward.cross_entropy", backward.cross_entropy(z, labels), (z, labels), {},
            np.s_[1, 2:4], "sequence 1 only, rows 2-3 only",
        ),
        ("optim.adamw_", weight, step, options, np.s_[4], "row 4 only"),
        ("optim.adamw_", weight, step, options, np.s_[:, 1], "column 1 only"),
    )  # fmt: skip


def test_where_the_damage_is_in_other_axes(rng):
    for op, right, args, kwargs, index, text in of_other_axes(rng):
        mine = right.copy()
        mine[index] += np.abs(normal(rng, *np.shape(mine[index]))) + 1
        report = sf.check(op, mine, *args, **kwargs)
        assert report.where.text == text, repr(report)


def test_what_is_said_of_axes_without_a_name(rng):
    x = normal(rng, 3, 5, 17)
    right = sf.softmax(x)
    for order, said in (
        ([0, 1, 1], "every entry of axis 0 occurs in the right answer, but some more than once: "),
        ([1, 0, 2], "entries 0 and 1 of axis 0 are swapped"),
        ([1, 1, 1], "all entries of axis 0 are entry 1 of axis 0 of the right answer"),
    ):
        report = sf.check("softmax", right[order], x)
        assert report.observations[0].startswith(said), repr(report)


def test_rows_of_zeros_are_in_no_other_order(rng):
    """Rows of a gradient that nobody wrote are alike: which of them stands there says nothing."""
    grad, ids = normal(rng, 7, 4), np.array([0, 3, 3, 5, 1, 8, 2])
    mine = sf.backward.embedding(grad, ids, 10)
    mine[0], mine[8] = mine[3], 0
    report = sf.check("backward.embedding", mine, grad, ids, 10)
    assert report.where.text == "ids 0, 8 only"
    assert "more than once" not in repr(report)


def test_a_number_that_is_like_another_is_in_no_other_order(rng):
    """A single number has a neighbour that is as good as equal; a row has none by chance."""
    x, dy, weight = normal(rng, 40, 9), normal(rng, 40, 9), normal(rng, 9)
    right = sf.backward.rms_norm(dy, x, weight, eps=1e-6).weight
    mine = right.copy()
    mine[3] = mine[4] * np.float32(1 + 1e-6)
    report = sf.check("backward.rms_norm", {"weight": mine}, dy, x, weight, eps=1e-6)
    assert report.where.text == "channel 3 only"
    assert "more than once" not in repr(report)
    report = sf.check("backward.rms_norm", {"weight": right[::-1]}, dy, x, weight, eps=1e-6)
    assert "in reverse order" in repr(report)


def test_which_of_several_results_is_wrong(rng):
    q, k, v = (normal(rng, 2, 7, 6) for _ in range(3))
    z, weights = attention(q, k, v, return_weights=True)
    report = sf.check(attention, (z, weights[:, ::-1]), q, k, v, return_weights=True)
    assert report.where.result == 1
    assert "of the 2 results number 0 is right (counted from 0)" in report.observations


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


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.full((3, 5), np.nan), "no number of the result is finite: no mistake would show"),
        (np.zeros((0, 3)), "the result has no numbers: nothing was compared"),
        (np.zeros((3, 0)), "the result has no numbers: nothing was compared"),
        (-1 - np.eye(3), "all numbers of the result are 0: many mistakes would not show"),
    ],
)
def test_a_right_answer_that_says_nothing(x, said):
    report = sf.check(sf.relu, sf.relu(x), x)
    assert report.ok
    assert said in report.remarks[0]


def test_a_gradient_that_says_nothing_is_named(rng):
    x, weight = normal(rng, 0, 5), normal(rng, 5)
    report = sf.check(backward.rms_norm, (x, 0 * weight), x, x, weight, eps=1e-5)
    assert report.ok
    assert report.remarks[:2] == (
        "the gradient of x has no numbers: nothing was compared",
        "all numbers of the gradient of weight are 0: many mistakes would not show",
    )


# ---- the call and the report ---------------------------------------------------------------------


def test_wrong_calls_raise_what_the_operation_raises(rng):
    x = normal(rng, 3, 4)
    for op, args, kwargs in (
        (sf.softmax, (x, 5), {}),
        (sf.linear, (x, x.T), {}),
        (sf.embedding, ([7], x), {}),
    ):
        with pytest.raises((TypeError, ValueError, IndexError)) as own:
            op(*args, **kwargs)
        with pytest.raises(type(own.value)) as raised:
            sf.check(op, x, *args, **kwargs)
        assert str(raised.value) == str(own.value)


def test_refusals(rng):
    x = normal(rng, 3, 4)
    with pytest.raises(TypeError, match=r"op is the class nn\.MLP, needs a layer made from it"):
        sf.check(nn.MLP, x, x)
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
    for dtype in ("bf16", "int8", 5):
        with pytest.raises(TypeError, match=r"check: dtype is .*, needs float32, float64, float16"):
            sf.check("softmax", x, x, dtype=dtype)
    for rtol in (-1, np.nan, np.inf, "a", [1e-3], True):
        with pytest.raises(ValueError, match=r"check: rtol is .*, needs a finite number >= 0"):
            sf.check("softmax", x, x, rtol=rtol)


def test_everything_can_be_checked():
    known = {name for name in reference.forward.__all__ if name != "RopeFrequencies"}
    known |= {f"backward.{name}" for name in backward.__all__ if name.islower()}
    known |= {"cross_entropy", "linear_cross_entropy", "log_softmax"}
    known |= {f"optim.{name}" for name in ("adamw_", "clip_grad_norm_", "cosine_lr")}
    assert known | {f"nn.{name}" for name in nn.__all__} == set(checkable())
    listed = sf.check.__doc__.partition("mine : ")[0]
    unnamed = [name for name in known | {*nn.__all__} if name.rpartition(".")[2] not in listed]
    assert not unnamed


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
        assert words in " ".join(str(raised.value).split())
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


# ---- mistakes of the call itself -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("softmax", {"dim": -1}, "softmax: has no dim, needs one of x, axis, .* called axis"),
        ("rms_norm", {}, "rms_norm: eps is missing, .* 1e-5 in Llama, 1e-6 in Qwen3"),
        ("rms_norm", {"variance_epsilon": 1e-6}, "rms_norm: has no variance_epsilon, .* eps$"),
        ("rope", {}, 'rope: layout is missing, .*"half" pairs .* "interleaved"'),
        ("rope", {"layout": "half", "thta": 1e4}, "rope: has no thta, .* did you mean theta\\?"),
        ("relu", {"inplace": True}, "relu: has no inplace, needs none: .*; leave it out"),
    ],
)
def test_what_was_meant_by_an_argument_that_there_is_not(name, kwargs, said, rng):
    x = normal(rng, 3, 8)
    with pytest.raises(TypeError, match=said):
        sf.check(name, x, x, **kwargs)


def test_a_result_that_is_none(rng):
    x = normal(rng, 3, 8)
    for mine in (None, lambda x: None):
        with pytest.raises(TypeError, match=r"mine is None, .* does your function end with return"):
            sf.check("softmax", mine, x)


def test_the_result_and_the_argument_swapped(rng):
    x = normal(rng, 3, 8)
    report = sf.check("softmax", x, sf.softmax(x))
    assert [mistake.name for mistake in report.diagnosis] == ["call.swapped"]
    report = sf.check("rms_norm", x, sf.rms_norm(x, eps=1e-5), eps=1e-5)
    assert [mistake.name for mistake in report.diagnosis] == ["call.swapped"]
    found = sf.check("silu", x, x).diagnosis
    assert "call.swapped" not in [mistake.name for mistake in found]


# ---- numbers in words ----------------------------------------------------------------------------


def test_one_number_is_and_several_are(rng):
    x = normal(rng, 3, 5)
    mine = sf.softmax(x)
    mine[1, 2] = 0.75
    assert "\n  1 of 15 numbers is off, the worst at [1, 2]: 0.75, needs 0." in repr(
        sf.check(sf.softmax, mine, x)
    )
    mine[1, 2] = np.nan
    assert "1 of 15 numbers is NaN: row 1 only" in repr(sf.check(sf.softmax, mine, x))


def test_a_single_number_has_no_place_and_no_row(rng):
    logits = normal(rng, 6, 5)
    report = sf.check(sf.cross_entropy, 7.5, logits, np.arange(6) % 5)
    assert "\n  the number is off: 7.5, needs " in repr(report)
    assert " times its size" in repr(report)
