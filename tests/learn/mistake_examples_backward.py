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
    "sum_of_grad": lambda g, p: p * (g - total(g)),
    "sum_of_shares": lambda g, p: p * (g - 1),
    "mean_for_sum": lambda g, p: p * (g - np.mean(g * p, -1, keepdims=True)),
    "another_axis": lambda g, p: p * (g - total(g * p, 1)),
    "first_axis": lambda g, p: p * (g - total(g * p, 0)),
    "sum_of_all": lambda g, p: p * (g - np.vdot(g, p)),
    "largest_for_sum": lambda g, p: p * (g - (g * p).max(-1, keepdims=True)),
    "shares_pulled_out": lambda g, p: p * g - p**2 * total(g),
    "row_sum_missing": lambda g, p: g * p,
    "of_sigmoid": lambda g, p: g * p * (1 - p),
    "row_sum_added": lambda g, p: p * (g + total(g * p)),
    "negated": lambda g, p: p * total(g * p) - p * g,
    "first_term_missing": lambda g, p: -p * total(g * p),
    "shares_missing": lambda g, p: g - total(g * p),
    "row_sum_outside": lambda g, p: g * p - total(g * p),
    "shares_squared": lambda g, p: p**2 * (g - total(g * p)),
    "softmax_again": lambda g, p: softmax_again(p) * (g - total(g * softmax_again(p))),
    "of_log_softmax": lambda g, p: g - p * total(g),
    "of_cross_entropy": lambda g, p: p - g,
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
    "no_temperature": lambda g, p: p * (g - total(g * p)),
    "temperature_multiplied": lambda g, p: p * (g - total(g * p)) * 0.7,
    "temperature_twice": lambda g, p: p * (g - total(g * p)) / 0.49,
}.items():
    wrong(
        f"softmax_backward.{name}",
        sf.backward.softmax,
        mine,
        some(*SHAPE),
        shares(*SHAPE),
        temperature=0.7,
    )

for name, mine in {
    "mean_for_sum": lambda g, y: g - np.exp(y) * g.mean(-1, keepdims=True),
    "another_axis": lambda g, y: g - np.exp(y) * total(g, 1),
    "first_axis": lambda g, y: g - np.exp(y) * total(g, 0),
    "sum_of_all": lambda g, y: g - np.exp(y) * g.sum(),
    "output_for_shares": lambda g, y: g - y * total(g),
    "softmax_again": lambda g, y: g - softmax_again(np.exp(y)) * total(g),
    "sum_missing": lambda g, y: g - np.exp(y),
    "sum_of_weighed": lambda g, y: g - np.exp(y) * total(g * np.exp(y)),
    "of_diagonal": lambda g, y: g * (1 - np.exp(y)),
    "shares_missing": lambda g, y: g - total(g),
    "sum_added": lambda g, y: g + np.exp(y) * total(g),
    "of_cross_entropy": lambda g, y: np.exp(y) - g,
    "of_softmax": lambda g, y: np.exp(y) * (g - total(g * np.exp(y))),
    "passed_through": lambda g, y: g,
    "shares_in_front": lambda g, y: np.exp(y) * (g - total(g)),
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
    "of_sigmoid": lambda g, x: g * sigmoid(x) * sigmoid(-x),
    "second_term_only": lambda g, x: g * x * sigmoid(x) * sigmoid(-x),
    "first_term_only": lambda g, x: g * sigmoid(x),
    "x_missing": lambda g, x: g * sigmoid(x) * (1 + sigmoid(-x)),
    "output_for_input": lambda g, x: g * sigmoid(x) * (1 + silu(x) * sigmoid(-x)),
    "of_output": lambda g, x: g * slope_of_silu(silu(x)),
    "one_missing": lambda g, x: g * sigmoid(x) * (1 + x - sigmoid(x)),
    "second_term_subtracted": lambda g, x: g * sigmoid(x) * (1 - x * sigmoid(-x)),
    "share_missing": lambda g, x: g * (1 + x * sigmoid(-x)),
    "plus_for_minus": lambda g, x: g * sigmoid(x) * (1 + x * (1 + sigmoid(x))),
    "not_minus": lambda g, x: g * (sigmoid(x) + x * sigmoid(x) ** 2),
    "forward": lambda g, x: g * silu(x),
    "no_grad": lambda g, x: slope_of_silu(x),
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
        "first_term_only": lambda g, x: g * normal_cdf(x),
        "x_missing": lambda g, x: g * (normal_cdf(x) + density(x)),
        "density_unscaled": lambda g, x: g * (normal_cdf(x) + x * np.exp(-(x**2) / 2)),
        "of_tanh": lambda g, x: g * slope_of_tanh(x, inner(x)),
        "no_grad": lambda g, x: slope_of_gelu(x),
        "no_slope": lambda g, x: g,
    },
    "tanh": {
        "inner_missing": lambda g, x: g * slope_of_tanh(x, 1),
        "three_missing": lambda g, x: g * slope_of_tanh(x, C + C * K * x**2),
        "x_for_square": lambda g, x: g * slope_of_tanh(x, C + 3 * C * K * x),
        "cubic_missing": lambda g, x: g * slope_of_tanh(x, C),
        "c_missing": lambda g, x: g * slope_of_tanh(x, 1 + 3 * K * x**2),
        "pi_over_two": gelu_tanh(math.sqrt(math.pi / 2)),
        "digit_lost": gelu_tanh(k=0.44715),
        "c_is_one": gelu_tanh(1.0),
        "tanh_first_term_only": lambda g, x: g * (1 + bent(x)) / 2,
        "tanh_x_missing": lambda g, x: g * ((1 + bent(x)) / 2 + (1 - bent(x) ** 2) * inner(x) / 2),
        "tanh_not_squared": lambda g, x: g * ((1 + bent(x)) / 2 + x / 2 * (1 - bent(x)) * inner(x)),
        "half_missing": lambda g, x: g * ((1 + bent(x)) / 2 + x * (1 - bent(x) ** 2) * inner(x)),
        "of_erf": lambda g, x: g * slope_of_gelu(x),
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
    "forward": lambda g, x: g * np.maximum(x, 0),
    "of_grad": lambda g, x: np.maximum(g, 0),
    "inverted": lambda g, x: np.where(x < 0, g, 0),
    "leaky": lambda g, x: np.where(x > 0, g, g / 100),
    "one_at_zero": lambda g, x: np.where(x < 0, 0, g),
    "no_grad": lambda g, x: x > 0,
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


def with_sin_for_cos(x, positions):
    angles = np.outer(positions, 1 / 100.0 ** (np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    a, b = np.split(x, 2, -1)
    c, s = np.sin(angles), np.cos(angles)
    return np.concatenate([a * c + b * s, b * c - a * s], -1)


wrong(
    "rope_backward.turned_forwards",
    sf.backward.rope,
    lambda g: turned(g, np.arange(6), 1),
    some(2, 6, 8),
    **HALF,
)
for name, first in (("positions_from_one", 1), ("positions_one_too_low", -1)):
    wrong(
        f"rope_backward.{name}",
        sf.backward.rope,
        lambda g, first=first: turned(g, np.arange(6) + first, -1),
        some(2, 6, 8),
        **HALF,
    )
wrong(
    "rope_backward.cos_and_sin_swapped",
    sf.backward.rope,
    lambda g: with_sin_for_cos(g, np.arange(6)),
    some(2, 6, 8),
    **HALF,
)
wrong(
    "rope_backward.positions_lost",
    sf.backward.rope,
    lambda g: turned(g, np.arange(6), -1),
    some(2, 6, 8),
    positions=np.array([4, 9, 2, 7, 0, 11]),
    **HALF,
)
wrong(
    "rope_backward.factor_divided",
    sf.backward.rope,
    lambda g: turned(g, np.arange(6), -1) / 1.3,
    some(2, 6, 8),
    attention_factor=1.3,
    **HALF,
)
wrong(
    "rope_backward.factor_twice",
    sf.backward.rope,
    lambda g: turned(g, np.arange(6), -1) * 1.3 * 1.3,
    some(2, 6, 8),
    attention_factor=1.3,
    **HALF,
)
wrong(
    "rope_backward.rest_zeroed",
    sf.backward.rope,
    lambda g: np.concatenate([turned(g[..., :8], np.arange(6), -1), 0 * g[..., 8:]], -1),
    some(2, 6, 12),
    rotary_dim=8,
    **HALF,
)

# ---- embedding and repeat_kv ---------------------------------------------------------------------


def ids(rng):
    return np.array([[3, 0, 3, 5, 1], [2, 2, 0, 4, 3]])


def scattered(grad, ids, rows):
    return np.eye(rows)[ids.ravel()].T @ grad.reshape(-1, grad.shape[-1])


def overwritten(grad, ids, rows):
    table = np.zeros((rows, grad.shape[-1]))
    table[ids] += grad
    return table


for name, mine in {
    "overwritten": overwritten,
    "averaged": lambda g, at, n: (
        scattered(g, at, n) / np.maximum(np.bincount(at.ravel(), minlength=n), 1)[:, None]
    ),
    "first_sequence_only": lambda g, at, n: scattered(g[0], at[0], n),
    "last_sequence_only": lambda g, at, n: scattered(g[1], at[1], n),
    "ids_of_next": lambda g, at, n: scattered(g, np.roll(at, -1, 1), n),
    "ids_of_previous": lambda g, at, n: scattered(g, np.roll(at, 1, 1), n),
    "ids_of_next_flat": lambda g, at, n: scattered(g, np.roll(at, -1), n),
    "ids_of_previous_flat": lambda g, at, n: scattered(g, np.roll(at, 1), n),
    "ids_of_previous_first_dropped": lambda g, at, n: scattered(g[:, 1:], at[:, :-1], n),
    "ids_of_next_last_dropped": lambda g, at, n: scattered(g[:, :-1], at[:, 1:], n),
    "largest_kept": lambda g, at, n: np.array(
        [g[at == i].max(0) if (at == i).any() else 0 * g[0, 0] for i in range(n)]
    ),
    "first_kept": lambda g, at, n: np.array(
        [g[at == i][0] if (at == i).any() else 0 * g[0, 0] for i in range(n)]
    ),
    "counted": lambda g, at, n: np.tile(np.bincount(at.ravel(), minlength=n)[:, None], 4),
    "padding_skipped": lambda g, at, n: scattered(g * (at != 0)[..., None], at, n),
}.items():
    wrong(f"embedding_backward.{name}", sf.backward.embedding, mine, some(2, 5, 4), ids, 7)

for name, mine in {
    "not_folded": lambda g, n: g,
    "averaged": lambda g, n: g.reshape(2, 2, n, 4, 5).mean(2),
    "largest_copy": lambda g, n: np.maximum.reduceat(g, [0, 3], axis=1),
    "first_copy_only": lambda g, n: g[:, ::n],
    "last_copy_only": lambda g, n: g[:, n - 1 :: n],
    "tiled": lambda g, n: g.reshape(2, n, 2, 4, 5).sum(1),
}.items():
    wrong(f"repeat_kv_backward.{name}", sf.backward.repeat_kv, mine, some(2, 6, 4, 5), 3)
