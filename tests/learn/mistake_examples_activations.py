"""Activations as learners write them wrong: another function, a constant, the wrong side."""

import math

import numpy as np
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal
from mistake_examples import Examples

example = Examples()


def to_torch(function):
    return lambda x: function(torch.from_numpy(x)).numpy()


def wrong(op, name, function, *also, scale=2.0, **meant):
    """`function` gives the wrong result for x, float32."""

    @example(f"{op}.{name}", *also)
    def _(rng):
        x = normal(rng, 3, 7, 16, scale=scale)
        with np.errstate(all="ignore"):
            mine = function(x)
        return mine.astype(np.float32), getattr(sf, op), (x,), meant


INSTEAD = {
    "silu": to_torch(F.silu),
    "gelu": to_torch(F.gelu),
    "gelu_tanh": to_torch(lambda x: F.gelu(x, approximate="tanh")),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": to_torch(F.relu),
    "hardswish": to_torch(F.hardswish),
    "leaky_relu": to_torch(F.leaky_relu),
    "relu_squared": lambda x: np.where(x < 0, 0, x * x),
    "elu": to_torch(F.elu),
    "softplus": to_torch(F.softplus),
    "mish": to_torch(F.mish),
    "tanh": to_torch(torch.tanh),
    "sigmoid": to_torch(torch.sigmoid),
    "x_tanh": to_torch(lambda x: x * x.tanh()),
    "step": lambda x: (x > 0).astype(np.float32),
    "absolute": abs,
}
for op in ("silu", "gelu", "relu"):
    for name, function in INSTEAD.items():
        if name != op and (op, name) != ("gelu", "gelu_tanh"):
            wrong(op, f"{name}_instead", function)
    wrong(op, "not_applied", lambda x: x.copy())

wrong("silu", "sigmoid_of_minus_x", lambda x: x / (1 + np.exp(x)))
wrong("silu", "sigmoid_overflows", lambda x: x * (np.exp(x) / (1 + np.exp(x))), scale=60.0)
wrong("silu", "softmax_for_sigmoid", to_torch(lambda x: x * torch.softmax(x, -1)))
wrong("silu", "silu_twice", to_torch(lambda x: F.silu(F.silu(x))))

ERF = np.vectorize(math.erf, otypes=[np.float32])
ROOT = math.sqrt(2 / math.pi)

wrong("gelu", "other_form", INSTEAD["gelu_tanh"])
wrong("gelu", "other_form", INSTEAD["gelu"], approximate="tanh")
wrong("gelu", "phi_alone", lambda x: 0.5 * (1 + ERF(x / math.sqrt(2))))
wrong("gelu", "half_missing", lambda x: x * (1 + ERF(x / math.sqrt(2))))
wrong("gelu", "sqrt2_missing", lambda x: 0.5 * x * (1 + ERF(x)))
wrong("gelu", "divided_by_two", lambda x: 0.5 * x * (1 + ERF(x / 2)))
wrong("gelu", "times_sqrt2", lambda x: 0.5 * x * (1 + ERF(x * math.sqrt(2))))


def wrong_bend(name, bend):
    wrong("gelu", name, lambda x: 0.5 * x * (1 + np.tanh(bend(x))), approximate="tanh")


wrong_bend("cube_missing", lambda x: ROOT * x)
wrong_bend("square_for_cube", lambda x: ROOT * (x + 0.044715 * x**2))
wrong_bend("digit_lost", lambda x: ROOT * (x + 0.44715 * x**3))
wrong_bend("root_missing", lambda x: x + 0.044715 * x**3)
wrong_bend("two_over_pi", lambda x: 2 / math.pi * (x + 0.044715 * x**3))
wrong_bend("pi_over_two", lambda x: math.sqrt(math.pi / 2) * (x + 0.044715 * x**3))
wrong_bend("root_on_x_only", lambda x: ROOT * x + 0.044715 * x**3)


# ---- SwiGLU: gate and up -------------------------------------------------------------------------


def wrong_swiglu(name, function, *also):
    @example(name, *also)
    def _(rng):
        gate, up = normal(rng, 2, 5, 24), normal(rng, 2, 5, 24)
        mine = function(torch.from_numpy(gate), torch.from_numpy(up))
        return mine, sf.swiglu, (gate, up), {}  # a tensor, as it comes


wrong_swiglu("swiglu.gate_and_up_swapped", lambda gate, up: gate * F.silu(up))
wrong_swiglu("swiglu.silu_after_product", lambda gate, up: F.silu(gate * up))
wrong_swiglu("swiglu.silu_on_both", lambda gate, up: F.silu(gate) * F.silu(up))
wrong_swiglu("swiglu.up_left_out", lambda gate, up: F.silu(gate))
wrong_swiglu("swiglu.gate_left_out", lambda gate, up: F.silu(up))
wrong_swiglu("swiglu.gate_on_both", lambda gate, up: F.silu(gate) * gate)
wrong_swiglu("swiglu.up_on_both", lambda gate, up: F.silu(up) * up)
wrong_swiglu("swiglu.added", lambda gate, up: F.silu(gate) + up)
wrong_swiglu("silu.not_applied", lambda gate, up: gate * up)
wrong_swiglu("silu.sigmoid_instead", lambda gate, up: torch.sigmoid(gate) * up)
wrong_swiglu("silu.gelu_instead", lambda gate, up: F.gelu(gate) * up)
wrong_swiglu("silu.relu_instead", lambda gate, up: F.relu(gate) * up)


# ---- the MLP -------------------------------------------------------------------------------------


def wrong_mlp(name, function, *also, inner=40):
    """`function` gives the result for (x, w1, w2, w3), called as in Llama."""

    @example(name, *also)
    def _(rng):
        x = normal(rng, 2, 5, 24)
        w1, w3, w2 = (normal(rng, *shape, scale=0.2) for shape in [(inner, 24)] * 2 + [(24, inner)])
        mine = function(*map(torch.from_numpy, (x, w1, w2, w3))).numpy()
        return mine, sf.nn.MLP(w1, w3, w2), (x,), {}


def llama(x, w1, w2, w3):
    return F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2)


wrong_mlp("swiglu.gate_and_up_swapped", lambda x, w1, w2, w3: llama(x, w3, w2, w1))
wrong_mlp("swiglu.gate_on_both", lambda x, w1, w2, w3: llama(x, w1, w2, w1))
wrong_mlp("swiglu.up_on_both", lambda x, w1, w2, w3: llama(x, w3, w2, w3))
wrong_mlp(
    "silu.gelu_tanh_instead",
    lambda x, w1, w2, w3: (F.gelu(x @ w1.T, approximate="tanh") * (x @ w3.T)) @ w2.T,
)
wrong_mlp("mlp.residual_added", lambda x, w1, w2, w3: x + llama(x, w1, w2, w3))
wrong_mlp("mlp.gate_not_transposed", lambda x, w1, w2, w3: llama(x, w1.T, w2, w3), inner=24)
wrong_mlp("mlp.up_not_transposed", lambda x, w1, w2, w3: llama(x, w1, w2, w3.T), inner=24)
wrong_mlp("mlp.down_not_transposed", lambda x, w1, w2, w3: llama(x, w1, w2.T, w3), inner=24)
wrong_mlp("mlp.down_forgotten", lambda x, w1, w2, w3: F.silu(x @ w1.T) * (x @ w3.T), inner=24)
wrong_mlp("linear.not_transposed", lambda x, w1, w2, w3: llama(x, w1.T, w2.T, w3.T), inner=24)


# ---- a mixture of experts ------------------------------------------------------------------------


def wrong_mixture(name, function, normalize=True, shared=False, count=2):
    """`function` gives the result for (x, logits (n, X), mlp): mlp(i, x) is what expert i writes of
    x."""

    @example(f"mixture.{name}")
    def _(rng):
        x, router = normal(rng, 2, 9, 16), normal(rng, 5, 16, scale=0.4)
        w1, w3 = (normal(rng, 6, 12, 16, scale=0.3) for _ in range(2))
        w2 = normal(rng, 6, 16, 12, scale=0.3)
        flat = torch.from_numpy(x).reshape(-1, 16)
        mine = function(
            flat,
            flat @ torch.from_numpy(router).T,
            lambda i, x: llama(x, *(torch.from_numpy(w[i]) for w in (w1, w2, w3))),
        )
        layer = sf.nn.MixtureOfExperts(
            router,
            w1[:5],
            w3[:5],
            w2[:5],
            num_experts_per_tok=count,
            normalize=normalize,
            shared=sf.nn.MLP(w1[5], w3[5], w2[5]) if shared else None,
        )
        return mine.reshape(x.shape).numpy(), layer, (x,), {}


def wrong_choice(name, choice, **layer):
    """`choice` gives the weights and the experts (n, k) for logits (n, X)."""

    def mixed(x, logits, mlp):
        """As in Mixtral: for each expert the tokens that chose it."""
        weights, ids = choice(logits)
        out = torch.zeros_like(x)
        for i in ids.unique().tolist():
            rows, slots = torch.where(ids == i)
            out.index_add_(0, rows, mlp(i, x[rows]) * weights[rows, slots, None])
        return out

    wrong_mixture(name, mixed, **layer)


def shares(x):
    return torch.softmax(x, -1)


def best(z, count=2, weigh=shares):
    values, ids = torch.topk(z, count)
    return weigh(values), ids


def smallest(z):
    ids = torch.argsort(z)[:, :2]
    return shares(z.gather(1, ids)), ids


def one(z):
    ids = z.argmax(-1, keepdim=True)
    return shares(z).gather(1, ids), ids


def normalised(values):
    return values / values.sum(-1, keepdim=True)


wrong_choice("smallest_chosen", smallest)
wrong_choice("one_chosen", one, normalize=False)
wrong_choice("normalised_otherwise", lambda z: best(shares(z), weigh=lambda x: x))
wrong_choice("normalised_otherwise", lambda z: best(shares(z), weigh=normalised), normalize=False)
wrong_choice("logits_as_weights", lambda z: best(z, weigh=lambda x: x))
wrong_choice("sigmoid_as_weights", lambda z: best(z, weigh=torch.sigmoid))
wrong_choice("weights_forgotten", lambda z: best(z, weigh=torch.ones_like))
wrong_choice("mean_of_experts", lambda z: best(z, weigh=lambda x: 0.5 * torch.ones_like(x)))
wrong_choice("one_more_chosen", lambda z: best(z, 3))
wrong_choice("one_fewer_chosen", best, count=3)
wrong_choice("softmax_twice", lambda z: best(shares(z)))
wrong_choice("sorted_without_weights", lambda z: (best(z)[0], best(z)[1].sort(-1).values))
wrong_choice("weights_reversed", lambda z: best(z, 3, lambda x: shares(x.flip(-1))), count=3)
wrong_choice("shared_forgotten", best, shared=True)
wrong_mixture("all_chosen", lambda x, z, mlp: sum(shares(z)[:, i, None] * mlp(i, x)
                                                  for i in range(5)))  # fmt: skip


def inputs_weighed(x, logits, mlp):
    weights, ids = best(logits)
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for weight, i in zip(weights[row], ids[row].tolist(), strict=True):
            out[row] += mlp(i, weight * x[row])
    return out


wrong_mixture("inputs_weighed", inputs_weighed)
