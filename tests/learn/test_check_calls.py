"""`check` as it is called by somebody who has not read how: names, order, numbers of Python."""

import numpy as np
import pytest
import torch

import simdformer as sf
from conftest import normal
from mistake_examples import names
from simdformer.learn.check.asking import by_our_names


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("silu_backward", "op is 'silu_backward', .* such as backward.silu, "),
        ("LayerNorm", "op is 'LayerNorm', .* such as .*layer_norm"),
        ("AdamW", "op is 'AdamW', .* such as optim.adamw_; "),
        (sf.optim.AdamW, "op is the class AdamW, .* such as optim.adamw_; "),
        (torch.nn.functional.silu, "op is the function silu, .* such as silu, "),
        ("attention", "such as .*scaled_dot_product_attention"),
        (lambda x: x, "op is the function <lambda>, needs an operation that it knows; help"),
        (3, "op is 3, needs an operation that it knows; help"),
        ("conv", "op is 'conv', needs an operation that it knows; help"),
        (np.exp, "needs an operation that it knows"),
    ],
)
def test_an_unknown_operation_is_answered_with_near_ones(op, said, rng):
    x = normal(rng, 3, 4)
    with pytest.raises(TypeError, match=said) as raised:
        sf.check(op, x, x)
    assert len(str(raised.value)) < 200
    assert " at 0x" not in str(raised.value)


@pytest.mark.parametrize(
    ("op", "count", "said"),
    [
        ("backward.rms_norm", 2, r"backward\.rms_norm: eps is missing, needs a value; give eps="),
        ("backward.rms_norm", 1, r"backward\.rms_norm: x is missing, needs a value; give x"),
        (
            "backward.scaled_dot_product_attention",
            4,
            "product_attention: out is None, .*, lse = ",
        ),
        ("softmax", 0, "softmax: x is missing"),
        ("softmax", 3, "softmax: has 3 arguments without a name, needs at most 2: x, axis; give"),
        ("optim.adamw_", 4, "adamw_: step is missing"),
    ],
)
def test_missing_arguments_are_said_in_one_form(op, count, said, rng):
    x = normal(rng, 2, 3, 4)
    with pytest.raises(TypeError, match=said):
        sf.check(op, x, *[x] * count)


@pytest.mark.parametrize("form", ["d{}", "D{}", "d_{}", "grad_{}", "{}_grad", "{}.grad", "{}"])
def test_gradients_by_the_names_that_learners_use(form, rng):
    g, x, weight, bias = (normal(rng, *shape) for shape in ((3, 5), (3, 4), (5, 4), (5,)))
    right = sf.backward.linear(g, x, weight)
    mine = {form.format(name): one for name, one in zip(["x", "W", "b"], right, strict=True)}
    assert sf.check(sf.backward.linear, mine, g, x, weight).ok
    right = sf.backward.layer_norm(g, g, bias, bias, eps=1e-5)
    for named in (("x", "gamma", "beta"), ("x", "g", "b"), ("X", "weight", "bias")):
        mine = {form.format(name): one for name, one in zip(named, right, strict=True)}
        assert sf.check(sf.backward.layer_norm, mine, g, g, bias, bias, eps=1e-5).ok


def test_names_of_results_are_read_where_they_can_mean_one_thing_only():
    attention = ("query", "key", "value", "attn_mask", "sinks")
    assert [*by_our_names({"dQ": 0, "dK": 1, "dV": 2}, attention)] == [*attention[:3]]
    assert [*by_our_names({"w": 0, "m": 1, "v": 2}, ("weight", "exp_avg", "exp_avg_sq"))] == [
        "weight",
        "exp_avg",
        "exp_avg_sq",
    ]
    assert [*by_our_names({"dgate": 0, "du": 1}, ("gate", "up"))] == ["gate", "up"]
    assert [*by_our_names({"dg": 0}, ("gate", "weight"))] == ["dg"]
    assert [*by_our_names({"dv": 0, 3: 1}, ("x", "weight"))] == ["dv", 3]
    with pytest.raises(TypeError, match="mine has 'dw' and 'weight', needs one weight; leave one"):
        by_our_names({"dw": 0, "weight": 1}, ("x", "weight"))


def test_a_number_of_pythons_has_no_dtype(rng):
    z, labels = normal(rng, 5, 7), rng.integers(0, 7, 5)
    loss = sf.cross_entropy(z, labels)
    for mine in (float(loss), lambda z, labels: float(sf.cross_entropy(z, labels))):
        report = sf.check("cross_entropy", mine, z, labels)
        assert report.ok
        assert not report.remarks
    report = sf.check("cross_entropy", np.float64(loss), z, labels)
    assert "a float64 has come in" in repr(report)
    assert not sf.check("cross_entropy", 1.01 * float(loss), z, labels).remarks
    report = sf.check("softmax", sf.softmax(z[0]).tolist(), z[0])
    assert report.ok
    assert not report.remarks
    gradients = [normal(rng, 3, 4)]
    norm = float(np.sqrt(np.square(gradients[0].astype(np.float64)).sum()))
    report = sf.check("optim.clip_grad_norm_", norm, gradients, 1.0, apply=False)
    assert report.ok
    assert not report.remarks


# ---- arguments in another order, the loss for its gradient ---------------------------------------


def test_arguments_in_another_order_that_cannot_be_called(rng):
    g, x, weight = normal(rng, 6, 5), normal(rng, 6, 4), normal(rng, 5, 4)
    right = sf.backward.linear(g, x, weight)
    with pytest.raises(ValueError, match=r"grad and x are swapped, needs .*; grad comes first$"):
        sf.check("backward.linear", right, x, g, weight)
    with pytest.raises(
        ValueError, match=r"transpose it: .*; or are grad and x swapped\? The order"
    ):
        sf.check("backward.linear", {"weight": right.weight}, x, g, weight)
    # x @ w of somebody whose weight lies as (inputs, outputs): both may be meant
    with pytest.raises(ValueError, match=r"; or are grad and x swapped\?"):
        sf.check("backward.linear", right, g, x, weight.T)
    z, labels = normal(rng, 6, 9), rng.integers(0, 9, 6)
    with pytest.raises(
        TypeError, match=r"^cross_entropy: logits and labels are swapped, needs log"
    ):
        sf.check("cross_entropy", 1.0, labels, z)
    with pytest.raises(TypeError, match=r"^backward\.embedding: grad and ids are swapped"):
        sf.check("backward.embedding", normal(rng, 9, 4), labels, x, 9)


def test_arguments_in_another_order_that_can_be_called(rng):
    g, x, weight = normal(rng, 3, 8), normal(rng, 3, 8), normal(rng, 8)
    right = sf.backward.rms_norm(g, x, weight, eps=1e-5)
    report = sf.check("backward.rms_norm", right, x, g, weight, eps=1e-5)
    assert names(report) == ["call.arguments_swapped"]
    assert "grad and x are swapped" in repr(report)
    assert [one.ok for _, one in report.parts] == [False, False]

    def other_way_round(x, g):
        return sf.backward.silu(g, x)

    assert names(sf.check("backward.silu", other_way_round, g, x)) == ["call.arguments_swapped"]
    wrong = sf.check("backward.rms_norm", (right.x, right.weight + 1), x, g, weight, eps=1e-5)
    assert "call.arguments_swapped" not in names(wrong)


def test_a_loss_for_its_gradient_and_the_other_way_round(rng):
    z, labels = normal(rng, 5, 9), rng.integers(0, 9, 5)
    loss, gradient = sf.cross_entropy(z, labels), sf.backward.cross_entropy(z, labels)
    for mine in (loss, float(loss), 2 * loss):
        report = sf.check("backward.cross_entropy", mine, z, labels)
        assert names(report) == ["call.forward_result"]
        assert "this is the loss, not its gradient" in repr(report)
    report = sf.check("cross_entropy", gradient, z, labels)
    assert names(report) == ["call.gradient"]
    assert "this is the gradient, not the loss" in repr(report)
    x, weight = normal(rng, 5, 9), normal(rng, 9)
    y = sf.rms_norm(x, weight, eps=1e-5)
    report = sf.check("backward.rms_norm", (y, None), z, x, weight, eps=1e-5)
    assert "this is the result of rms_norm, not its gradient" in repr(report)
    assert not names(sf.check("cross_entropy", 2 * gradient, z, labels))


# ---- what is said of the numbers -----------------------------------------------------------------


def test_numbers_that_are_wrong_in_other_columns_of_each_row_are_counted(rng):
    z, labels = normal(rng, 12, 23), rng.integers(0, 23, 12)
    right, rows = sf.backward.cross_entropy(z, labels), np.arange(12)

    def where(*columns, of=rows):
        mine = right.copy()
        for column in columns:
            mine[of, column[of]] += rng.uniform(0.1, 0.2, len(of)).astype(np.float32)
        return sf.check("backward.cross_entropy", mine, z, labels).where.text

    one, other = 2 * rows % 23, (2 * rows + 1) % 23
    assert where(one, other) == "2 of 23 numbers in each row"
    assert where(labels) == "the label's column"
    assert where(labels, of=rows[4:7]) == "rows 4-6 only, the label's column"
    assert where(rows * 0 + 3, rows * 0 + 5) == "columns 3, 5 only"
    assert where(one, of=rows[4:5]) == "row 4 only, column 8 only"


def test_a_transposed_gradient_of_a_weight_has_its_own_lesson(rng):
    g, x, weight = normal(rng, 6, 5), normal(rng, 6, 4), normal(rng, 5, 4)
    report = sf.check("backward.linear", {"dW": x.T @ g}, g, x, weight)
    assert names(report) == ["linear_backward.transposed"]
    assert report.diagnosis[0].step == "08 §4"
    table = sf.backward.embedding(x, [0, 1, 1, 2, 6, 0], 7)
    report = sf.check("backward.embedding", table.T, x, [0, 1, 1, 2, 6, 0], 7)
    assert names(report) == ["shape.transposed"]


@pytest.mark.parametrize(
    ("op", "mine", "names", "kwargs", "said"),
    [
        (
            sf.rms_norm,
            lambda a, b: a,
            2,
            {"eps": 1e-5},
            r"check: mine takes \(a, b\), needs \(x, weight, eps=\): .* keyword argument 'eps'",
        ),
        (sf.softmax, lambda: 0, 1, {}, r"check: mine takes \(\), needs \(x\): .*\(too many"),
        (
            sf.optim.adamw_,
            lambda w, g, m, v, *, step, lr: w,
            4,
            {"step": 1, "lr": 0.1, "eps": 1e-8},
            r"check: mine takes \(w, g, .*, needs \(weight, gradient, .* lr=, eps=\): .* 'eps'",
        ),
    ],
)
def test_it_is_said_how_a_function_is_called(op, mine, names, kwargs, said, rng):
    with pytest.raises(TypeError, match=said):
        sf.check(op, mine, *(normal(rng, 8) for _ in range(names)), **kwargs)


def test_names_of_an_optimizer_are_the_learners_own(rng):
    state = {name: normal(rng, 8) ** 2 for name in ("weight", "gradient", "exp_avg", "exp_avg_sq")}

    def mine(w, g, m, v, **options):
        sf.optim.adamw_(w, g, m, v, **options)

    assert sf.check(sf.optim.adamw_, mine, **state, step=1, lr=0.1).ok


def test_the_operation_comes_first(rng):
    x = normal(rng, 3, 5)
    for first in (x, x.tolist(), torch.tensor(x)):
        with pytest.raises(
            TypeError, match=r"check: op is a \w+, needs an operation; it comes fir"
        ):
            sf.check(first, sf.softmax, x)


def test_what_attention_gave_is_needed_for_its_gradient(rng):
    q, k, v, grad = (normal(rng, 2, 5, 4) for _ in range(4))
    for given, missing in (((), "out"), ((v,), "lse")):
        with pytest.raises(TypeError, match=f"attention: {missing} is None, needs that of the for"):
            sf.backward.scaled_dot_product_attention(grad, q, k, v, *given)
