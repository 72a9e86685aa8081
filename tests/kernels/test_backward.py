"""sf.backward: every gradient on every instruction set, against the reference in float64, beside
PyTorch's own error; the same bits for every number of threads."""

import inspect

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import (
    LAYOUTS,
    SIXTEEN_BITS,
    assert_same_bits,
    bfloat16,
    epsilon,
    from_torch,
    normal,
    relaid,
    rms_error,
    same_bits,
    to_torch,
)
from simdformer import _core, reference
from simdformer.reference.forward import float64

EPS = 1e-3


class Case:
    """A backward: how its arguments are drawn from a leading shape, and what PyTorch's forward is.

    draw(rng, lead, n, dtype) gives the arguments behind `grad` and the keywords; torchs(*tensors)
    is the forward of those arguments that have a gradient, `wanted` their places."""

    def __init__(self, draw, torchs, wanted=(0,), name=None, from_output=None):
        self.draw, self.torchs, self.wanted, self.name = draw, torchs, wanted, name
        self.from_output = from_output  # the forward, where the backward takes its output


def one(rng, lead, n, dtype):
    return [normal(rng, *lead, n, dtype=dtype, scale=2)], {}


def two(rng, lead, n, dtype):
    return [normal(rng, *lead, n, dtype=dtype, scale=2) for _ in range(2)], {}


def rms_arguments(rng, lead, n, dtype):
    return [normal(rng, *lead, n, dtype=dtype), normal(rng, n, dtype=dtype)], {"eps": EPS}


def layer_arguments(rng, lead, n, dtype):
    x = [normal(rng, *lead, n, dtype=dtype), normal(rng, n, dtype=dtype)]
    return [*x, normal(rng, n, dtype=dtype)], {"eps": EPS}


CASES = {
    "silu": Case(one, F.silu),
    "relu": Case(one, F.relu),
    "gelu": Case(one, F.gelu),
    "gelu_tanh": Case(
        lambda *a: (one(*a)[0], {"approximate": "tanh"}),
        lambda x: F.gelu(x, approximate="tanh"),
        name="gelu",
    ),
    "swiglu": Case(two, lambda gate, up: F.silu(gate) * up, (0, 1)),
    "softmax": Case(
        lambda *a: (one(*a)[0], {"temperature": 0.5}),
        lambda x: (x / 0.5).softmax(-1),
        from_output=lambda x: sf.softmax(x, temperature=0.5),
    ),
    "log_softmax": Case(one, lambda x: x.log_softmax(-1), from_output=sf.log_softmax),
    "rms_norm": Case(rms_arguments, lambda x, w: F.rms_norm(x, w.shape, w, EPS), (0, 1)),
    "layer_norm": Case(
        layer_arguments, lambda x, w, b: F.layer_norm(x, w.shape, w, b, EPS), (0, 1, 2)
    ),
}
each_case = pytest.mark.parametrize("op", CASES)


def gradients(module, case, op, grad, arguments, options):
    """As a list, one for each argument that has a gradient."""
    found = getattr(module, case.name or op)(grad, *arguments, **options)
    return list(found) if isinstance(found, tuple) else [found]


def draw_case(op, rng, lead, n, dtype):
    """(case, arguments of the forward, those of the backward, keywords, grad)"""
    case = CASES[op]
    forward, options = case.draw(rng, lead, n, dtype)
    given = [case.from_output(*forward)] if case.from_output else forward
    return case, forward, given, options, normal(rng, *lead, n, dtype=dtype)


def torch_gradients(case, forward, grad, dtype):
    tensors = [to_torch(np.asarray(x)).to(dtype).requires_grad_() for x in forward]
    wanted = [tensors[place] for place in case.wanted]
    return torch.autograd.grad(case.torchs(*tensors), wanted, to_torch(grad).to(dtype))


def size_of(x):
    return float(np.sqrt(np.mean(float64(x) ** 2))) if np.size(x) else 0.0


@each_case
@pytest.mark.parametrize("length", [1, 2, 7, 16, 33, 64, 129, 1500])
def test_agrees_with_the_reference(isa, dtype, op, length, rng):
    case, _, given, options, grad = draw_case(op, rng, (3,), length, dtype)
    got = gradients(sf.backward, case, op, grad, given, options)
    want = gradients(reference.backward, case, op, grad, given, options)
    wide = np.float64 if dtype == np.float64 else np.float32
    for place, (mine, right) in enumerate(zip(got, want, strict=True)):
        like = given[place] if place < len(given) else None
        is_parameter = op.endswith("norm") and place > 0
        assert mine.dtype == (wide if is_parameter else dtype)
        assert mine.shape == like.shape
        # What is subtracted from what may be much larger than the result: one number beside many.
        scale = max(size_of(right), size_of(grad) * 0.1)
        if op.endswith("norm") and not is_parameter:
            x = float64(given[0])
            scale = max(scale, float((1 / np.sqrt((x * x).mean(-1) + EPS)).max()) * size_of(grad))
        rounding = epsilon(dtype) if mine.dtype in SIXTEEN_BITS else 0
        allowed = (64 * epsilon(wide) + rounding) * (scale + np.abs(right))
        assert (np.abs(float64(mine) - right) <= allowed).all()


@each_case
def test_is_as_accurate_as_torch(isa, dtype, op, rng):
    """Against float64: at most 1.5 times the error of PyTorch's eager gradients in this dtype."""
    if dtype == np.float64:
        pytest.skip("the reference itself is float64")
    mine, torchs = {}, {}
    for n in (32, 100, 384):
        case, forward, given, options, grad = draw_case(op, rng, (50,), n, dtype)
        exact = torch_gradients(case, forward, grad, torch.float64)
        ours = gradients(sf.backward, case, op, grad, given, options)
        theirs = torch_gradients(case, forward, grad, to_torch(grad).dtype)
        for place, right in enumerate(exact):
            right = from_torch(right)
            mine.setdefault(place, []).append(rms_error(ours[place], right))
            torchs.setdefault(place, []).append(rms_error(from_torch(theirs[place]), right))
    for place in mine:
        error, yardstick = (np.sqrt(np.mean(np.square(e[place]))) for e in (mine, torchs))
        assert error <= 1.5 * yardstick + 1e-12, (place, error / yardstick)


# ---- log_softmax ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 5, 16, 100, 3000])
def test_log_softmax(isa, dtype, length, rng):
    x = normal(rng, 3, length, dtype=dtype, scale=5)
    got = float64(sf.log_softmax(x))
    want = reference.loss.log_softmax(x)
    wide = np.float64 if dtype == np.float64 else np.float32
    allowed = 16 * epsilon(wide) * (1 + np.abs(float64(x)).max()) + epsilon(dtype) * np.abs(want)
    assert (np.abs(got - want) <= allowed).all()


def test_log_softmax_neither_overflows_nor_loses_small_probabilities():
    assert sf.log_softmax([0.0, 1000.0]).tolist() == [-1000.0, 0.0]
    assert np.isnan(sf.log_softmax([-np.inf, -np.inf])).all()


# ---- linear --------------------------------------------------------------------------------------


def linear_error(got, grad, x, weight):
    """By its three gradients: the error over what a chain of such products may lose."""
    want = reference.backward.linear(grad, x, weight)
    sizes = reference.backward.linear(
        np.abs(float64(grad)), np.abs(float64(x)), np.abs(float64(weight))
    )
    return [
        float((np.abs(float64(g) - w) / (s + 1e-30)).max(initial=0))
        for g, w, s in zip(got, want, sizes, strict=True)
    ]


@pytest.mark.parametrize("lead", [(1,), (3,), (2, 5), (70,), (300,)])
@pytest.mark.parametrize("sizes", [(1, 1), (5, 3), (16, 17), (64, 100), (130, 70)])
def test_linear(isa, dtype, lead, sizes, rng):
    inputs, outputs = sizes
    x, weight = normal(rng, *lead, inputs, dtype=dtype), normal(rng, outputs, inputs, dtype=dtype)
    grad = normal(rng, *lead, outputs, dtype=dtype)
    got = sf.backward.linear(grad, x, weight)
    wide = np.float64 if dtype == np.float64 else np.float32
    assert [g.dtype for g in got] == [dtype, wide, wide]
    errors = linear_error(got, grad, x, weight)
    rounding = epsilon(dtype) if dtype in SIXTEEN_BITS else 0
    assert errors[0] <= 8 * epsilon(wide) + rounding
    assert max(errors[1:]) <= 8 * epsilon(wide)


def test_linear_of_a_list_of_weights(isa, rng):
    for dtype in (np.dtype(np.float32), bfloat16):
        x = normal(rng, 2, 9, 32, dtype=dtype)
        weights = [normal(rng, n, 32, dtype=dtype) for n in (16, 40, 8)]
        grads = [normal(rng, 2, 9, n, dtype=dtype) for n in (16, 40, 8)]
        got = sf.backward.linear(grads, x, weights)
        want = reference.backward.linear(grads, x, weights)
        np.testing.assert_allclose(
            float64(got.x), want.x, 2 * epsilon(dtype), 0.05 * epsilon(dtype) + 1e-4
        )
        for mine, right in zip([*got.weight, *got.bias], [*want.weight, *want.bias], strict=True):
            np.testing.assert_allclose(mine, right, 1e-4, 1e-4)


def test_linear_beside_packed_and_quantised_weights(rng):
    x, weight, grad = normal(rng, 9, 64), normal(rng, 32, 64), normal(rng, 9, 32)
    plain = sf.backward.linear(grad, x, weight)
    packed = sf.backward.linear(grad, x, sf.pack(weight))
    assert_same_bits(packed, plain)
    quantised = sf.quantize(weight, "q8_0")
    got = sf.backward.linear(grad, x, quantised, needs=("x",))
    assert got.weight is None
    assert same_bits(got.x, sf.backward.linear(grad, x, quantised.dequantize()).x)


def test_linear_mixes_dtypes_as_the_forward_does(rng):
    x, weight, grad = normal(rng, 9, 64), normal(rng, 32, 64, dtype=bfloat16), normal(rng, 9, 32)
    got = sf.backward.linear(grad, x, weight)
    want = sf.backward.linear(grad, x, weight.astype(np.float32))
    np.testing.assert_allclose(got.x, want.x, 1e-5, 1e-5)
    assert same_bits(got.weight, want.weight)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_linear_takes_any_strides(layout, rng):
    x, weight, grad = normal(rng, 4, 5, 20), normal(rng, 12, 20), normal(rng, 4, 5, 12)
    want = sf.backward.linear(grad, x, weight)
    moved = [relaid(rng, a, layout) for a in (grad, x, weight)]
    got = sf.backward.linear(*moved)
    assert_same_bits(got, want)


def test_linear_computes_what_is_needed_and_adds_where_asked(rng):
    x, weight, grad = normal(rng, 5, 4), normal(rng, 3, 4), normal(rng, 5, 3)
    whole = sf.backward.linear(grad, x, weight)
    assert sf.backward.linear(grad, x, weight, needs=("bias",))[:2] == (None, None)
    total, before = normal(rng, 3, 4), None
    before = total.copy()
    got = sf.backward.linear(grad, x, weight, accumulate={"weight": total})
    assert got.weight is total
    np.testing.assert_allclose(total, before + whole.weight, 1e-6)
    with pytest.raises(
        ValueError, match=r"backward\.linear: needs has 'w', needs names out of x, "
    ):
        sf.backward.linear(grad, x, weight, needs=("w",))
    with pytest.raises(
        TypeError, match=r"accumulate\['weight'\] has dtype float64, needs .*float32"
    ):
        sf.backward.linear(grad, x, weight, accumulate={"weight": total.astype(np.float64)})


def test_gradients_of_weights_are_written_where_the_head_wants_them(rng):
    """Rows of a larger array, or columns that lie apart; never into what is still read."""
    grad, x, weight = normal(rng, 5, 24), normal(rng, 5, 16), normal(rng, 24, 16)

    def of_weight(out, grad=grad, weight=weight, several=False):
        if not several:
            grad, weight = (grad,), (weight,)
        return _core.linear_backward(grad, x, weight, several, True, True, False, False, out)

    dx, (want,), _ = of_weight(None)
    memory = np.zeros((60, 48), np.float32)
    for part in np.s_[7:31, 16:32], np.s_[7:31, ::3], np.s_[30:6:-1, :16]:
        memory[:] = 0
        out = memory[part]
        of_x, (found,), _ = of_weight((out,))
        assert found is out
        assert same_bits(out, want)
        assert same_bits(of_x, dx)
        assert np.count_nonzero(memory) == np.count_nonzero(want)
    shared = np.zeros((24, 16), np.float32)
    for call, words in (
        (lambda: of_weight([want]), "weight_out is of type list, needs a tuple"),
        (lambda: of_weight((want, want)), "weight_out has 2 items, needs 1, one for each weight"),
        (lambda: of_weight((want[:3],)), r"weight_out has shape \(3, 16\), needs \(24, 16\)"),
        (lambda: of_weight((want.astype(float),)), "weight_out has dtype float64, needs float32"),
        (
            lambda: of_weight((memory[:24, :16],), grad=memory[:5, :24]),
            "weight_out shares memory with grad, needs memory of its own",
        ),
        (
            lambda: of_weight((shared, shared), (grad, grad), (weight, weight), several=True),
            r"weight_out\[1\] shares memory with weight_out\[0\]",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()


@pytest.mark.parametrize("kind", [np.float32, bfloat16], ids=str)
def test_linear_and_cross_entropy_are_as_accurate_as_torch(isa, kind, rng):
    """At most 1.5 times PyTorch's error in float32; below it in bfloat16, whose weights' gradients
    PyTorch rounds."""
    allowed = 1.5 if kind == np.float32 else 1.0
    x, weight = normal(rng, 300, 100, dtype=kind), normal(rng, 70, 100, dtype=kind)
    grad, labels = normal(rng, 300, 70, dtype=kind), rng.integers(0, 100, 300)
    ours = [*sf.backward.linear(grad, x, weight)[:2], sf.backward.cross_entropy(x, labels)]

    def in_torch(dtype):
        a, w = (to_torch(v).to(dtype).requires_grad_() for v in (x, weight))
        found = torch.autograd.grad(F.linear(a, w), (a, w), to_torch(grad).to(dtype))
        loss = F.cross_entropy(a, torch.from_numpy(labels))
        return [from_torch(v) for v in (*found, *torch.autograd.grad(loss, a))]

    theirs, exact = in_torch(to_torch(x).dtype), in_torch(torch.float64)
    for name, mine, yardstick, right in zip(
        ("x", "weight", "logits"), ours, theirs, exact, strict=True
    ):
        error, other = rms_error(mine, right), rms_error(yardstick, right)
        # where both round the exact sum once, they differ by chance alone
        assert error <= allowed * other * (1 + 1e-3), (name, error / other)


# ---- embedding -----------------------------------------------------------------------------------


def test_embedding_adds_up_repeated_ids(isa, dtype, rng):
    ids = rng.integers(0, 7, (4, 30))
    grad = normal(rng, 4, 30, 20, dtype=dtype)
    got = sf.backward.embedding(grad, ids, 9)
    want = reference.backward.embedding(grad, ids, 9)
    assert got.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    assert not got[7:].any()


def test_embedding_accumulates(rng):
    grad, total = normal(rng, 3, 4), normal(rng, 5, 4)
    before = total.copy()
    assert sf.backward.embedding(grad, [1, 0, 1], 5, accumulate=total) is total
    np.testing.assert_allclose(total, before + sf.backward.embedding(grad, [1, 0, 1], 5), 1e-6)


# ---- cross entropy -------------------------------------------------------------------------------

LOSS_OPTIONS = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
    {"z_loss": 1e-2, "softcap": 5.0},
    {"label_smoothing": 0.2, "softcap": 3.0, "reduction": "sum"},
]


def labels_for(rng, shape, columns):
    labels = rng.integers(0, columns, shape)
    labels.flat[::4] = -100
    return labels


@pytest.mark.parametrize("options", LOSS_OPTIONS, ids=str)
@pytest.mark.parametrize("columns", [1, 5, 16, 100, 1500])
def test_cross_entropy(isa, dtype, columns, options, rng):
    logits, labels = normal(rng, 2, 5, columns, dtype=dtype, scale=3), None
    labels = labels_for(rng, (2, 5), columns)
    got, lse = sf.cross_entropy(logits, labels, return_lse=True, **options)
    want, right = reference.loss.cross_entropy(logits, labels, return_lse=True, **options)
    wide = np.float64 if dtype == np.float64 else np.float32
    assert got.dtype == lse.dtype == wide
    close = 64 * epsilon(wide)
    np.testing.assert_allclose(lse, right, close, close)
    np.testing.assert_allclose(got, want, close, 10 * close)
    grad = normal(rng, 2, 5, dtype=wide) if options.get("reduction") == "none" else 0.7
    want = reference.backward.cross_entropy(logits, labels, grad=grad, **options)
    for given in (None, lse):
        dz = sf.backward.cross_entropy(logits, labels, grad=grad, lse=given, **options)
        assert dz.dtype == dtype
        # a softmax carries the rounding of its largest logit, and p - 1 that of p
        share = np.abs(grad) / ((labels != -100).sum() if "reduction" not in options else 1)
        scale = np.abs(want) + np.broadcast_to(share, labels.shape)[..., None]
        allowed = (close + (epsilon(dtype) if dtype in SIXTEEN_BITS else 0)) * scale
        assert (np.abs(float64(dz) - want) <= allowed + 1e-12).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cross_entropy_takes_any_strides(layout, dtype, rng):
    """From any byte on, too: of an address that is not whole, a sanitizer complains."""
    logits, labels = normal(rng, 2, 5, 20, dtype=dtype), labels_for(rng, (2, 5), 20)
    moved = relaid(rng, logits, layout)
    for options in LOSS_OPTIONS[-2:]:
        for function in (sf.cross_entropy, sf.backward.cross_entropy):
            assert same_bits(
                function(moved, labels, **options), function(logits, labels, **options)
            )


def test_the_gradient_may_take_the_place_of_the_logits(isa, dtype, rng):
    logits, labels = normal(rng, 6, 50, dtype=dtype), labels_for(rng, (6,), 50)
    want = sf.backward.cross_entropy(logits, labels)
    got = sf.backward.cross_entropy(logits, labels, out=logits)
    assert got is logits
    assert same_bits(logits, want)


def test_the_sum_over_no_labels_is_0(rng):
    assert sf.cross_entropy(normal(rng, 3, 5), [-100] * 3, reduction="sum") == 0


# ---- linear and cross entropy in one -------------------------------------------------------------


@pytest.fixture(
    params=[
        {},  # all logits at once
        {"BLOCK_BYTES": 5 * 700 * 4, "FEWEST_ROWS": 2},  # those of some rows
        {"BLOCK_BYTES": 1},  # blocks of the vocabulary
        {"BLOCK_BYTES": 1, "MOST_ROWS": 4},  # and of rows
    ],
    ids=str,
)
def logits_at_once(request, monkeypatch):
    for name, value in request.param.items():
        monkeypatch.setattr(sf.loss, name, value)


@pytest.mark.parametrize(
    "options", [o for o in LOSS_OPTIONS if o.get("reduction") != "none"], ids=str
)
@pytest.mark.usefixtures("logits_at_once")
def test_linear_cross_entropy(options, rng):
    for dtype in (np.float64, np.float32, bfloat16):
        x, weight = normal(rng, 2, 7, 24, dtype=dtype), normal(rng, 700, 24, dtype=dtype)
        labels = labels_for(rng, (2, 7), 700)
        got = sf.linear_cross_entropy(x, weight, labels, **options)
        want = reference.backward.linear_cross_entropy(x, weight, labels, **options)
        wide = np.float64 if dtype == np.float64 else np.float32
        assert (got.count, got.x.dtype, got.weight.dtype) == (want.count, dtype, wide)
        close = 1e-4 if wide == np.float32 else 1e-10
        np.testing.assert_allclose(got.loss, want.loss, close)
        close += epsilon(dtype) if dtype == bfloat16 else 0
        np.testing.assert_allclose(got.weight, want.weight, close, close * size_of(want.weight))
        np.testing.assert_allclose(float64(got.x), want.x, close, close * size_of(want.x))


@pytest.mark.usefixtures("logits_at_once")
def test_linear_cross_entropy_in_bfloat16_is_nearer_than_torchs(rng):
    x, weight = normal(rng, 90, 64, dtype=bfloat16), normal(rng, 700, 64, dtype=bfloat16)
    weight = (weight.astype(np.float32) / 8).astype(bfloat16)  # logits as those of a model
    labels = rng.integers(700, size=90)
    got = sf.linear_cross_entropy(x, weight, labels)
    want = reference.backward.linear_cross_entropy(x, weight, labels)
    theirs = [to_torch(a).requires_grad_() for a in (x, weight)]
    loss = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(*theirs).float(), torch.from_numpy(labels)
    )
    loss.backward()
    assert abs(got.loss - want.loss) <= abs(loss.item() - want.loss)
    for ours, their, right in zip((got.x, got.weight), theirs, (want.x, want.weight), strict=True):
        off, torchs = float64(ours) - right, their.grad.double().numpy() - right
        assert np.linalg.norm(off) < np.linalg.norm(torchs)


def test_linear_cross_entropy_keeps_no_more_logits_than_it_says(rng, monkeypatch):
    """A vocabulary of several blocks: all logits are made at once, or the last are kept."""
    x, weight = normal(rng, 5, 24), normal(rng, 2000, 24)
    labels = labels_for(rng, (5,), 2000)
    want = reference.backward.linear_cross_entropy(x, weight, labels)
    monkeypatch.setattr(sf.loss, "PART_BYTES", 1)  # 256 rows of the weight, the least
    calls = []
    linear = sf.loss.linear
    monkeypatch.setattr(
        sf.loss, "linear", lambda *args, **named: calls.append(1) or linear(*args, **named)
    )
    for kept, products in ((1, 15), (3, 13), (8, 1)):
        monkeypatch.setattr(sf.loss, "BLOCK_BYTES", kept * 256 * 5 * 4)
        calls.clear()
        got = sf.linear_cross_entropy(x, weight, labels)
        assert len(calls) == products
        np.testing.assert_allclose(got.loss, want.loss, 1e-4)
        np.testing.assert_allclose(got.weight, want.weight, 1e-4, 1e-4 * size_of(want.weight))
        np.testing.assert_allclose(got.x, want.x, 1e-4, 1e-4 * size_of(want.x))


def test_linear_cross_entropy_divides_by_the_count_of_the_whole_batch(rng):
    x, weight, labels = normal(rng, 7, 24), normal(rng, 70, 24), labels_for(rng, (7,), 70)
    whole = sf.linear_cross_entropy(x, weight, labels)
    half = sf.linear_cross_entropy(x, weight, labels, count=2 * whole.count)
    np.testing.assert_allclose([half.loss], [whole.loss / 2], 1e-6)
    np.testing.assert_allclose(half.weight, whole.weight / 2, 1e-5, 1e-8)


# ---- the laws of the module ----------------------------------------------------------------------


def test_every_function_is_documented_and_has_its_reference():
    for name in sf.backward.__all__:
        thing = getattr(sf.backward, name)
        if inspect.isclass(thing):
            continue
        assert ">>>" in thing.__doc__, name
        assert hasattr(reference.backward, name), name


# ---- optimisers ----------------------------------------------------------------------------------


def torch_adamw(weights, gradients, steps, **options):
    parameters = [torch.nn.Parameter(to_torch(w.copy())) for w in weights]
    optimizer = torch.optim.AdamW(parameters, **options)
    for step in range(steps):
        for parameter, gradient in zip(parameters, gradients[step], strict=True):
            parameter.grad = to_torch(gradient.copy())
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_adamw_is_torchs(isa, dtype, rng):
    options = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    weights = [normal(rng, *shape, dtype=dtype) for shape in ((37, 11), (5,), (20000,))]
    gradients = [[normal(rng, *w.shape, dtype=dtype) for w in weights] for _ in range(6)]
    want = torch_adamw(weights, gradients, 6, **options)
    parameters = {str(i): w.copy() for i, w in enumerate(weights)}
    optimizer = sf.optim.AdamW(parameters, no_decay=lambda name, w: False, **options)
    for step in gradients:
        optimizer.step({str(i): g for i, g in enumerate(step)})
    close = 2e-6 if dtype == np.float32 else 1e-13
    for i, right in enumerate(want):
        np.testing.assert_allclose(parameters[str(i)], right, close, close)


def test_adamw_leaves_vectors_undecayed_and_goes_on_from_its_state(rng):
    parameters = {"w": normal(rng, 3, 4), "b": normal(rng, 4)}
    zero = {name: np.zeros_like(w) for name, w in parameters.items()}
    before = {name: w.copy() for name, w in parameters.items()}
    optimizer = sf.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)
    optimizer.step(zero)
    np.testing.assert_allclose(parameters["w"], before["w"] * (1 - 0.1 * 0.5), 1e-6)
    assert same_bits(parameters["b"], before["b"])

    gradient = {name: normal(rng, *w.shape) for name, w in parameters.items()}
    optimizer.step(gradient)
    other = {name: w.copy() for name, w in parameters.items()}
    resumed = sf.optim.AdamW(other, lr=0.1, weight_decay=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    optimizer.step(gradient)
    resumed.step(gradient)
    assert all(same_bits(parameters[name], other[name]) for name in parameters)


@pytest.mark.parametrize("shape", [(8, 8), (12, 30), (30, 12)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_muon_moves_every_direction_by_about_one_length(isa, dtype, shape, rng):
    """The update has the singular vectors of g, of plain float64, and values of about 1."""
    gradient = normal(rng, *shape, dtype=dtype)
    weight, buffer = np.zeros(shape, dtype), np.zeros(shape, dtype)
    sf.optim.muon_(weight, gradient, buffer, lr=0.5, weight_decay=0.0)
    assert same_bits(buffer, gradient)
    u, s, vt = np.linalg.svd(float64(gradient), full_matrices=False)
    along = u.T @ float64(weight) @ vt.T / (-0.5 * max(1, shape[0] / shape[1]) ** 0.5)
    a, b, c = 3.4445, -4.7750, 2.0315
    want = s / np.linalg.norm(s)
    for _ in range(5):
        want = a * want + b * want**3 + c * want**5
    np.testing.assert_allclose(along, np.diag(want), 0, 1e-3 if dtype == np.float32 else 1e-6)


def test_muon_has_momentum_decay_and_a_state(rng):
    parameters = {"w": normal(rng, 6, 9)}
    gradients = [{"w": normal(rng, 6, 9)} for _ in range(3)]
    optimizer = sf.optim.Muon(parameters, lr=0.1, weight_decay=0.5)
    optimizer.step(gradients[0])
    before = parameters["w"].copy()
    optimizer.step(gradients[1])
    buffer = 0.95 * gradients[0]["w"] + gradients[1]["w"]
    np.testing.assert_allclose(optimizer.momentum_buffer["w"], buffer, 1e-5, 1e-6)
    direct = np.zeros((6, 9), np.float32)
    nesterov = gradients[1]["w"] + np.float32(0.95) * optimizer.momentum_buffer["w"]
    sf.optim.muon_(direct, nesterov, np.zeros_like(direct), lr=0.1, momentum=0, weight_decay=0)
    np.testing.assert_allclose(parameters["w"], before * 0.95 + direct, 1e-4, 1e-5)

    other = {"w": parameters["w"].copy()}
    resumed = sf.optim.Muon(other, lr=0.1, weight_decay=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    optimizer.step(gradients[2])
    resumed.step(gradients[2])
    assert same_bits(parameters["w"], other["w"])
    with pytest.raises(ValueError, match="Muon: momentum_buffer has other names or shapes"):
        resumed.load_state_dict({"steps": 1, "momentum_buffer": {}})


def test_clip_grad_norm(rng):
    gradients = {"a": normal(rng, 30, 40), "b": normal(rng, 7)}
    tensors = [torch.nn.Parameter(torch.zeros(g.shape)) for g in gradients.values()]
    for tensor, gradient in zip(tensors, gradients.values(), strict=True):
        tensor.grad = to_torch(gradient.copy())
    want = float(torch.nn.utils.clip_grad_norm_(tensors, 1.0))
    kept = {name: g.copy() for name, g in gradients.items()}
    assert sf.optim.clip_grad_norm_(kept, 1.0, apply=False) == pytest.approx(want, rel=1e-6)
    assert all(same_bits(kept[name], gradients[name]) for name in kept)
    assert sf.optim.clip_grad_norm_(gradients, 1.0) == pytest.approx(want, rel=1e-6)
    for tensor, gradient in zip(tensors, gradients.values(), strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), 1e-6)
    small = {"a": np.full(3, 0.1)}
    sf.optim.clip_grad_norm_(small, 1.0)
    assert small["a"].tolist() == [0.1] * 3
    broken = {"a": np.array([1.0, np.inf])}
    assert sf.optim.clip_grad_norm_(broken, 1.0) == np.inf
    assert broken["a"][0] == 1


def test_cosine_lr():
    rates = [sf.optim.cosine_lr(s, lr=1.0, warmup=4, total=12, min_lr=0.1) for s in range(15)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[8] == pytest.approx(0.55)
    assert rates[12:] == [0.1] * 3
    with pytest.raises(ValueError, match="cosine_lr: step, warmup, total are"):
        sf.optim.cosine_lr(0, lr=1.0, warmup=5, total=4)
