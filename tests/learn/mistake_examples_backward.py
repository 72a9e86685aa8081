"""Gradients as learners write them wrong."""

import math

import numpy as np
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal
from mistake_examples import Examples
from right_answers import Numpy

example = Examples()


def wrong(name, op, mine, *arguments, **kwargs):
    """`mine` gives the result for the arguments, which are made from a generator."""

    @example(*name.split())
    def _(rng):
        args = [one(rng) if callable(one) else one for one in arguments]
        with np.errstate(all="ignore"):
            return np.asarray(mine(*args), np.float32), op, tuple(args), kwargs


def some(*shape):
    return lambda rng: normal(rng, *shape)


# ---- softmax and log_softmax ---------------------------------------------------------------------


def shares(*shape):
    return lambda rng: Numpy().softmax(normal(rng, *shape))


def log_shares(*shape):
    return lambda rng: np.log(Numpy().softmax(normal(rng, *shape)))


def total(x, axis=-1):
    return x.sum(axis, keepdims=True)


def softmax_again(p):
    return np.exp(p) / total(np.exp(p))


SHAPE = (3, 5, 7)
for name, mine in {
    "sum_of_shares": lambda g, p: p * (g - 1),
    "first_axis": lambda g, p: p * (g - total(g * p, 0)),
    "row_sum_outside": lambda g, p: g * p - total(g * p),
    "shares_squared": lambda g, p: p**2 * (g - total(g * p)),
    "softmax_again": lambda g, p: softmax_again(p) * (g - total(g * softmax_again(p))),
}.items():
    wrong(f"softmax_backward.{name}", sf.backward.softmax, mine, some(*SHAPE), shares(*SHAPE))
wrong(
    "softmax_backward.keepdims_lost",
    sf.backward.softmax,
    lambda g, p: p * (g - (g * p).sum(-1)),
    some(6, 6),
    shares(6, 6),
)

for name, mine in {
    "first_axis": lambda g, y: g - np.exp(y) * total(g, 0),
    "sum_of_all": lambda g, y: g - np.exp(y) * g.sum(),
    "softmax_again": lambda g, y: g - softmax_again(np.exp(y)) * total(g),
    "sum_missing": lambda g, y: g - np.exp(y),
    "sum_added": lambda g, y: g + np.exp(y) * total(g),
    "passed_through": lambda g, y: g,
}.items():
    wrong(
        f"log_softmax_backward.{name}",
        sf.backward.log_softmax,
        mine,
        some(*SHAPE),
        log_shares(*SHAPE),
    )
wrong(
    "log_softmax_backward.keepdims_lost",
    sf.backward.log_softmax,
    lambda g, y: g - np.exp(y) * g.sum(-1),
    some(6, 6),
    log_shares(6, 6),
)

# ---- activations ---------------------------------------------------------------------------------


def sigmoid(x):
    return 0.5 * (1 + np.tanh(x / 2))


def silu(x):
    return x * sigmoid(x)


def slope_of_silu(x):
    return sigmoid(x) + x * sigmoid(x) * sigmoid(-x)


for name, mine in {
    "of_output": lambda g, x: g * slope_of_silu(silu(x)),
    "one_missing": lambda g, x: g * sigmoid(x) * (1 + x - sigmoid(x)),
    "share_missing": lambda g, x: g * (1 + x * sigmoid(-x)),
    "plus_for_minus": lambda g, x: g * sigmoid(x) * (1 + x * (1 + sigmoid(x))),
    "not_minus": lambda g, x: g * (sigmoid(x) + x * sigmoid(x) ** 2),
    "no_slope": lambda g, x: g,
}.items():
    wrong(f"silu_backward.{name}", sf.backward.silu, mine, some(4, 9), some(4, 9))


def normal_cdf(x):
    return torch.special.ndtr(torch.from_numpy(x)).numpy()


def density(x):
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


C, K = math.sqrt(2 / math.pi), 0.044715


def bent(x):
    return np.tanh(C * (x + K * x**3))


def slope_of_tanh(x, inner):
    return 0.5 * (1 + bent(x)) + 0.5 * x * inner / np.cosh(C * (x + K * x**3)) ** 2


def inner(x):
    return C + 3 * C * K * x**2


def slope_of_gelu(x):
    return normal_cdf(x) + x * density(x)


def by_torch(function):
    """The gradient of torch's own function."""

    def mine(g, x):
        leaf = torch.tensor(x, requires_grad=True)
        function(leaf).backward(torch.tensor(g))
        return leaf.grad

    return mine


def gelu_tanh(c=C, k=K):
    return by_torch(lambda x: x / 2 * (1 + torch.tanh(c * (x + k * x**3))))


FUNCTIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
for op, own in {
    "silu": ("silu", "sigmoid"),
    "gelu": ("gelu", "gelu_tanh", "tanh"),
    "relu": ("relu",),
}.items():
    for name in (one for one in FUNCTIONS if one not in own):
        wrong(
            f"{op}_backward.of_{name}",
            getattr(sf.backward, op),
            by_torch(FUNCTIONS[name]),
            some(4, 11),
            lambda rng: normal(rng, 4, 11, scale=2.0),
            **({"approximate": "none"} if op == "gelu" else {}),
        )

for approximate, forms in {
    "none": {
        "no_grad": lambda g, x: slope_of_gelu(x),
        "no_slope": lambda g, x: g,
    },
    "tanh": {
        "x_for_square": lambda g, x: g * slope_of_tanh(x, C + 3 * C * K * x),
        "cubic_missing": lambda g, x: g * slope_of_tanh(x, C),
        "c_missing": lambda g, x: g * slope_of_tanh(x, 1 + 3 * K * x**2),
        "digit_lost": gelu_tanh(k=0.44715),
        "c_is_one": gelu_tanh(1.0),
        "tanh_x_missing": lambda g, x: g * ((1 + bent(x)) / 2 + (1 - bent(x) ** 2) * inner(x) / 2),
        "half_missing": lambda g, x: g * ((1 + bent(x)) / 2 + x * (1 - bent(x) ** 2) * inner(x)),
    },
}.items():
    for name, mine in forms.items():
        wrong(
            f"gelu_backward.{name}",
            sf.backward.gelu,
            mine,
            some(4, 9),
            some(4, 9),
            approximate=approximate,
        )


def with_zeros(rng):
    return np.where(rng.random((4, 9)) < 0.3, 0, normal(rng, 4, 9))


for name, mine in {
    "one_at_zero": lambda g, x: np.where(x < 0, 0, g),
    "no_slope": lambda g, x: g,
}.items():
    wrong(f"relu_backward.{name}", sf.backward.relu, mine, some(4, 9), with_zeros)

# ---- RoPE ----------------------------------------------------------------------------------------

HALF = {"layout": "half", "theta": 100.0}


def turned(x, positions, sign):
    """Half of each pair in each half of x, by an angle of this sign."""
    angles = np.outer(positions, 1 / 100.0 ** (np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    z = x[..., : x.shape[-1] // 2] + 1j * x[..., x.shape[-1] // 2 :]
    z = z * np.exp(sign * 1j * angles)
    return np.concatenate([z.real, z.imag], -1)


for name, first in (("positions_from_one", 1), ("positions_one_too_low", -1)):
    wrong(
        f"rope_backward.{name}",
        sf.backward.rope,
        lambda g, first=first: turned(g, np.arange(6) + first, -1),
        some(2, 6, 8),
        **HALF,
    )

# ---- embedding and repeat_kv ---------------------------------------------------------------------


def ids(rng):
    return np.array([[3, 0, 3, 5, 1], [2, 2, 0, 4, 3]])


def scattered(grad, ids, rows):
    return np.eye(rows)[ids.ravel()].T @ grad.reshape(-1, grad.shape[-1])


for name, mine in {
    "ids_from_one": lambda g, at, n: scattered(g, at - 1, n),
    "ids_plus_one": lambda g, at, n: scattered(g, at + 1, n),
    "first_sequence_only": lambda g, at, n: scattered(g[0], at[0], n),
    "ids_of_next_flat": lambda g, at, n: scattered(g, np.roll(at, -1), n),
    "ids_of_previous_flat": lambda g, at, n: scattered(g, np.roll(at, 1), n),
    "ids_of_previous_first_dropped": lambda g, at, n: scattered(g[:, 1:], at[:, :-1], n),
}.items():
    wrong(f"embedding_backward.{name}", sf.backward.embedding, mine, some(2, 5, 4), ids, 7)

for name, mine in {
    "not_folded": lambda g, n: g,
}.items():
    wrong(f"repeat_kv_backward.{name}", sf.backward.repeat_kv, mine, some(2, 6, 4, 5), 3)
