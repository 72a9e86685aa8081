"""The mixture of experts against a loop over tokens, and what holds for it whatever comes along."""

import re

import numpy as np
import pytest

import simdformer as sf
from cases import each
from conftest import bfloat16, normal, same_bits
from simdformer import nn

X, K, E, I = 5, 2, 32, 64  # experts, of them a token, widths


def weights(rng, dtype=np.float32):
    shapes = {"router": (X, E), "gate": (X, I, E), "up": (X, I, E), "down": (X, E, I)}
    return {n: normal(rng, *s, dtype=dtype, scale=s[-1] ** -0.5) for n, s in shapes.items()}


def expected(x, w, *, normalize=True, bias=0.0, shared=None):
    """Token by token in float64."""
    w = {name: np.asarray(one, np.float64) for name, one in w.items()}
    out = np.zeros(x.shape)
    for at in np.ndindex(x.shape[:-1]):
        token = x[at].astype(np.float64)
        logits = w["router"] @ token + bias
        chosen = sorted(range(X), key=lambda i: -logits[i])[:K]
        exps = np.exp(logits)
        total = exps[chosen].sum() if normalize else exps.sum()
        out[at] = sum(
            exps[i] / total * mlp(token, *(w[n][i] for n in ("gate", "up", "down"))) for i in chosen
        )
        if shared is not None:
            out[at] += mlp(token, *shared)
    return out


def mlp(x, gate, up, down):
    g = gate @ x
    return down @ (g / (1 + np.exp(-g)) * (up @ x))


def held(form, w):
    """The weights of the experts in one of the forms that they may have."""
    if form == "arrays":
        return w
    if form == "lists":
        return {n: one if n == "router" else list(one) for n, one in w.items()}
    make = sf.pack if form == "packed" else lambda one: sf.quantize(one, "q8_0")
    return {n: one if n == "router" else [make(part) for part in one] for n, one in w.items()}


@each("batch", [(), (1,), (7,), (2, 3), (0,)])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("form", ["arrays", "lists", "packed"])
def test_each_token_goes_through_its_experts(isa, form, batch, normalize, rng):
    w, x = weights(rng), normal(rng, *batch, E)
    layer = nn.MixtureOfExperts(**held(form, w), num_experts_per_tok=K, normalize=normalize)
    got = layer(x)
    assert got.dtype == np.float32
    right = expected(x, w, normalize=normalize)
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, bfloat16])
def test_dtypes(dtype, rng):
    w, x = weights(rng, dtype), normal(rng, 6, E, dtype=dtype)
    got = nn.MixtureOfExperts(**w, num_experts_per_tok=K)(x)
    assert got.dtype == dtype
    # the dtype's own rounding of gate, up, their product, and the result
    tolerance = {np.float64: 1e-12, np.float16: 4e-3, bfloat16: 3e-2}[dtype]
    np.testing.assert_allclose(np.float64(got), expected(x, w), rtol=tolerance, atol=tolerance)


def test_bias_and_shared_mlp(rng):
    w, x, bias = weights(rng), normal(rng, 9, E), normal(rng, X, scale=3.0)
    beside = [normal(rng, *shape, scale=0.1) for shape in [(40, E), (40, E), (E, 40)]]
    layer = nn.MixtureOfExperts(
        **w, num_experts_per_tok=K, router_bias=bias, shared=nn.MLP(*beside)
    )
    right = expected(x, w, bias=bias.astype(np.float64), shared=beside)
    np.testing.assert_allclose(layer(x), right, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("form", ["arrays", "packed", "quantised"])
def test_a_token_has_the_same_bits_in_any_company(isa, form, rng):
    w, x = weights(rng), normal(rng, 40, E)
    layer = nn.MixtureOfExperts(**held(form, w), num_experts_per_tok=3)
    if form == "arrays":  # which are multiplied otherwise when rows are few
        x = x[:16]
    together = layer(x)
    for index in (slice(3, 4), slice(0, 2), slice(5, 14), [7, 1, 9]):
        same_bits(layer(x[index]), together[index])


def test_only_chosen_experts_are_asked(rng):
    w, x = weights(rng), normal(rng, 1, E)
    layer = nn.MixtureOfExperts(**held("lists", w), num_experts_per_tok=K)
    experts, _ = layer.route(x)
    right = layer(x)
    for unchosen in set(range(X)) - set(experts[0].tolist()):
        for part in (layer.gate, layer.up, layer.down):
            part[unchosen] = None
    same_bits(layer(x), right)


def test_route(rng):
    w, x = weights(rng), normal(rng, 4, 3, E)
    layer = nn.MixtureOfExperts(**w, num_experts_per_tok=X)
    experts, shares = layer.route(x)
    assert experts.shape == shares.shape == (4, 3, X)
    np.testing.assert_array_equal(np.sort(experts), np.broadcast_to(np.arange(X), (4, 3, X)))
    assert (shares[..., :-1] >= shares[..., 1:]).all()
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-6)
    same = nn.MixtureOfExperts(
        **w | {"router": np.zeros((X, E), np.float32)}, num_experts_per_tok=3
    )
    np.testing.assert_array_equal(same.route(x)[0][0, 0], [0, 1, 2])  # of equals the lowest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0, needs 1 to 5, the number of exp"),
        ({"num_experts_per_tok": 6}, "num_experts_per_tok is 6, needs 1 to 5"),
        ({"num_experts_per_tok": True}, "num_experts_per_tok is True, needs 1 to 5"),
        ({"gate": [np.zeros((I, E))] * 4}, "gate holds 4 weights, needs 5, one for each row of"),
        ({"up": np.zeros((X, I + 1, E))}, "up[0] has shape (65, 32), needs (64, 32), (intermed"),
        ({"down": np.zeros((X, I, E))}, "down[0] has shape (64, 32), needs (32, 64), (E, inter"),
        ({"down": [*np.zeros((4, E, I)), np.zeros((E, 1))]}, "down[4] has shape (32, 1), needs"),
        ({"router": np.zeros(E)}, "router has shape (32,), needs two axes"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message, rng):
    given = weights(rng) | {"num_experts_per_tok": K} | changes
    with pytest.raises(ValueError, match=re.escape(f"MixtureOfExperts: {message}")):
        nn.MixtureOfExperts(**given)


def test_an_input_of_another_width_is_refused(rng):
    layer = nn.MixtureOfExperts(**weights(rng), num_experts_per_tok=K)
    with pytest.raises(ValueError, match=r"MixtureOfExperts: x has shape \(3, 31\), needs"):
        layer(np.zeros((3, 31), np.float32))
    assert repr(layer) == (
        "MixtureOfExperts(hidden_size=32, intermediate_size=64, num_experts=5, "
        "num_experts_per_tok=2)"
    )
