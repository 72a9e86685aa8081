"""The mixture of experts against a loop over tokens, and what holds for it whatever comes along."""

import numpy as np
import pytest

import simdformer as sf
from cases import each
from conftest import bfloat16, normal, same_bits
from simdformer import experts, nn
from simdformer.experts import combine_experts, expert_linear, top_k

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
    given = held(form, w)
    if form == "arrays":  # which are multiplied otherwise when rows are few
        x = x[:16]
    else:
        given["router"] = sf.pack(w["router"])
    layer = nn.MixtureOfExperts(**given, num_experts_per_tok=3)
    together = layer(x)
    for index in (slice(3, 4), slice(0, 2), slice(5, 14), [7, 1, 9]):
        assert same_bits(layer(x[index]), together[index])


def test_only_chosen_experts_are_asked(rng):
    w, x = weights(rng), normal(rng, 1, E)
    layer = nn.MixtureOfExperts(**held("lists", w), num_experts_per_tok=K)
    experts, _ = layer.route(x)
    right = layer(x)
    for unchosen in set(range(X)) - set(experts[0].tolist()):
        for part in (layer.gate, layer.up, layer.down):
            part[unchosen] = None
    assert same_bits(layer(x), right)


@each("shared", [True, False])
@pytest.mark.parametrize("form", ["arrays", "packed", "quantised"])
def test_every_row_is_that_of_its_expert(isa, form, shared, rng):
    """The bits of linear with each expert's rows alone; 0 where ids name none that is here."""
    w = held(form, weights(rng))
    biases = [None, *normal(rng, X - 1, I)]
    ids = rng.permuted(np.tile(np.arange(-1, X + 1), (9, 1)), axis=1)[:, :4]
    x = normal(rng, 9, 1 if shared else 4, E)
    gate, up = expert_linear(x, ids, [w["gate"], w["up"]], [biases, None])
    rows = np.broadcast_to(x, (9, 4, E))
    for expert in range(X):
        own = rows[ids == expert]
        assert same_bits(gate[ids == expert], sf.linear(own, w["gate"][expert], biases[expert]))
        assert same_bits(up[ids == expert], sf.linear(own, w["up"][expert]))
    others = (ids < 0) | (ids >= X)
    assert others.any()
    assert not gate[others].any()
    assert not up[others].any()


def test_more_rows_than_are_taken_at_a_time(rng):
    """Blocks end within an expert's rows, and an expert has more than an item."""
    tokens = (8 << 20) // (2 * E) + 100
    matrices = [sf.pack(normal(rng, 3, E)) for _ in range(3)]
    ids = np.array([[0, 1], [2, 1], [1, 0]])[rng.integers(0, 3, tokens)]
    x = normal(rng, tokens, 1, E)
    (found,) = expert_linear(x, ids, [matrices])
    each_alone = np.stack([sf.linear(x[:, 0], matrix) for matrix in matrices], axis=1)
    assert same_bits(found, np.take_along_axis(each_alone, ids[..., None], axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_likeliest_first_and_of_equals_the_lower(dtype, rng):
    logits = rng.integers(-4, 4, (3, 50, 12)).astype(dtype)
    right = np.argsort(-logits, axis=-1, kind="stable")
    for k in (1, 5, 12):
        np.testing.assert_array_equal(top_k(logits, k), right[..., :k])
    nan, low = np.nan, -np.inf
    odd = np.array([[nan, 1, nan, 2], [low, nan, 0, low], [nan] * 4], dtype)
    np.testing.assert_array_equal(top_k(odd, 3), [[3, 1, 0], [2, 0, 1], [0, 1, 2]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, bfloat16])
def test_what_experts_write_is_added_in_order(dtype, rng):
    """As a loop over the k adds it up, with its bits, however many tokens there are."""
    x, shares = normal(rng, 2, 300, K, E, dtype=dtype), normal(rng, 2, 300, K)
    wide = x.astype(np.promote_types(dtype, np.float32))
    total = wide[..., 0, :] * shares[..., :1]
    for j in range(1, K):
        total = total + wide[..., j, :] * shares[..., j, None]
    assert same_bits(combine_experts(x, shares), total.astype(dtype))
    assert same_bits(combine_experts(x[0, 7], shares[0, 7]), combine_experts(x, shares)[0, 7])


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


def test_a_layer_says_what_it_is(rng):
    assert repr(nn.MixtureOfExperts(**weights(rng), num_experts_per_tok=K)) == (
        "MixtureOfExperts(hidden_size=32, intermediate_size=64, num_experts=5, "
        "num_experts_per_tok=2)"
    )


def test_no_experts_at_all_add_up_to_nothing(rng):
    got = combine_experts(normal(rng, 3, 0, E), normal(rng, 3, 0))
    assert got.shape == (3, E)
    assert not got.any()
    assert combine_experts(normal(rng, 0, 2, E), normal(rng, 0, 2)).shape == (0, E)
    (none,) = expert_linear(normal(rng, 3, 0, E), np.zeros((3, 0), int), [normal(rng, X, I, E)])
    assert none.shape == (3, 0, I)
    assert expert_linear(normal(rng, 3, 1, E), np.zeros((3, 2), int), []) == []


@each("layout", ["turned", "gaps", "backwards"])
def test_experts_read_any_layout(layout, rng):
    laid = {
        "turned": lambda x: np.asfortranarray(x),
        "gaps": lambda x: np.repeat(x, 2, -1)[..., ::2],
        "backwards": lambda x: x[::-1, ..., ::-1].copy()[::-1, ..., ::-1],
    }[layout]
    logits, x, shares = normal(rng, 4, 7, X), normal(rng, 4, 7, K, E), normal(rng, 4, 7, K)
    np.testing.assert_array_equal(top_k(laid(logits), K), top_k(logits, K))
    assert same_bits(combine_experts(laid(x), laid(shares)), combine_experts(x, shares))
    ids, w = top_k(logits, K), normal(rng, X, I, E)
    assert same_bits(expert_linear(laid(x), laid(ids), [laid(w)])[0], expert_linear(x, ids, [w])[0])


@pytest.mark.parametrize(
    ("former", "name"),
    [("likeliest", "top_k"), ("linear_chosen", "expert_linear"), ("mixed", "combine_experts")],
)
def test_former_names(former, name):
    with pytest.warns(DeprecationWarning, match=f"experts.{former} is called {name} now"):
        assert getattr(experts, former) is getattr(experts, name)
    with pytest.raises(AttributeError, match="has no attribute 'likely'"):
        _ = experts.likely
