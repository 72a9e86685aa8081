"""RMSNorm and LayerNorm as learners write them wrong."""

import ml_dtypes
import numpy as np
import torch

import simdformer as sf
from conftest import normal
from mistake_examples import Examples

example = Examples()

N = 16
EPS = 1e-2  # large enough to show beside a mean square of 1


def wrong_rms(name, wrong, *also, shape=(2, 9, N), eps=EPS, scale=1.0):
    """`wrong` gives the result for (x, weight, eps), computed in float32."""

    @example(name, *also)
    def _(rng):
        x, w = normal(rng, *shape, scale=scale), normal(rng, shape[-1])
        with np.errstate(all="ignore"):
            mine = wrong(x, w, np.float32(eps))
        return mine.astype(np.float32), sf.rms_norm, (x, w), {"eps": eps}


def wrong_layer(name, wrong, *also, shape=(2, 9, N), eps=EPS, scale=1.0):
    """`wrong` gives the result for (x, x - mean, weight, bias, eps), computed in float32."""

    @example(name, *also)
    def _(rng):
        x, w, b = normal(rng, *shape, scale=scale), normal(rng, shape[-1]), normal(rng, shape[-1])
        x = x + np.float32(scale / 2)
        with np.errstate(all="ignore"):
            mine = wrong(x, x - mean(x), w, b, np.float32(eps))
        return mine.astype(np.float32), sf.layer_norm, (x, w, b), {"eps": eps}


def ms(x, axis=-1, keepdims=True):
    return np.mean(x**2, axis=axis, keepdims=keepdims)


def mean(x, axis=-1):
    return np.mean(x, axis=axis, keepdims=True)


def var(x, **how):
    return np.var(x, axis=-1, keepdims=True, **how)


# ---- RMSNorm -------------------------------------------------------------------------------------

wrong_rms("rms_norm.no_eps", lambda x, w, e: x / np.sqrt(ms(x)) * w)
wrong_rms("rms_norm.eps_outside_root", lambda x, w, e: x / (np.sqrt(ms(x)) + e) * w)
wrong_rms(
    "rms_norm.eps_as_a_bound", lambda x, w, e: x / np.sqrt(np.maximum(ms(x), e)) * w, scale=0.1
)
wrong_rms(
    "rms_norm.eps_squared", lambda x, w, e: x / np.sqrt(ms(x) + e**2) * w, scale=0.1, eps=0.02
)
for label in ("1e-03", "1e-04", "1e-05", "1e-06", "1.19e-07", "1e-08", "1e-12"):
    other = {"1.19e-07": 1.1920929e-07}.get(label, float(label))

    def with_eps(x, w, e, other=other):
        return torch.rms_norm(torch.from_numpy(x), x.shape[-1:], eps=other).numpy() * w

    # So small that each eps leaves its own trace.
    wrong_rms(f"rms_norm.eps_{label}", with_eps, eps=3e-5, scale=1e-7 if other < 1e-9 else 1e-4)
wrong_rms(
    "rms_norm.sum_for_mean", lambda x, w, e: x / np.linalg.norm(x, axis=-1)[..., None] * w, eps=1e-6
)
wrong_rms(
    "rms_norm.n_minus_one",
    lambda x, w, e: x / np.sqrt((x * x).sum(-1, keepdims=True) / (N - 1) + e) * w,
)
wrong_rms("rms_norm.no_root", lambda x, w, e: x / (ms(x) + e) * w)
wrong_rms("rms_norm.multiplied_by_root", lambda x, w, e: x * np.sqrt(ms(x) + e) * w)
wrong_rms("rms_norm.not_divided", lambda x, w, e: x * w)
wrong_rms("rms_norm.absolute_values", lambda x, w, e: x / np.sqrt(mean(abs(x)) ** 2 + e) * w)
wrong_rms("rms_norm.mean_then_square", lambda x, w, e: x / np.sqrt(mean(x) ** 2 + e) * w)
wrong_rms(
    "rms_norm.mean_subtracted",
    lambda x, w, e: torch.layer_norm(
        torch.from_numpy(x), (N,), torch.from_numpy(w), eps=float(e)
    ).numpy(),
)
wrong_rms("rms_norm.standard_deviation", lambda x, w, e: x / np.sqrt(var(x) + e) * w)
wrong_rms("rms_norm.over_tokens", lambda x, w, e: x / np.sqrt(ms(x, 1) + e) * w)
wrong_rms("rms_norm.over_everything", lambda x, w, e: x / np.sqrt(ms(x, None) + e) * w)
wrong_rms("rms_norm.over_first_axis", lambda x, w, e: x / np.sqrt(ms(x, 0) + e) * w)
wrong_rms("rms_norm.over_tokens_and_elements", lambda x, w, e: x / np.sqrt(ms(x, (1, 2)) + e) * w)
wrong_rms("rms_norm.over_batch_and_tokens", lambda x, w, e: x / np.sqrt(ms(x, (0, 1)) + e) * w)
wrong_rms(
    "rms_norm.keepdims_lost",
    lambda x, w, e: x / np.sqrt(ms(x, keepdims=False) + e) * w,
    shape=(N, N),
)
wrong_rms("rms_norm.weight_forgotten", lambda x, w, e: x / np.sqrt(ms(x) + e))
wrong_rms("rms_norm.one_plus_weight", lambda x, w, e: x / np.sqrt(ms(x) + e) * (1 + w))
wrong_rms("rms_norm.weight_added", lambda x, w, e: x / np.sqrt(ms(x) + e) + w)
wrong_rms("rms_norm.weight_before_norm", lambda x, w, e: x * w / np.sqrt(ms(x * w) + e))
wrong_rms(
    "rms_norm.weight_on_tokens",
    lambda x, w, e: x / np.sqrt(ms(x) + e) * w[:, None],
    shape=(3, N, N),
)


def in_16_bits(x, w, e, dtype):
    x, w = x.astype(dtype), w.astype(dtype)
    size = (x * x).astype(np.float32).mean(-1, keepdims=True).astype(dtype)
    return x / np.sqrt(size + dtype(e)) * w


wrong_rms("rms_norm.in_bfloat16", lambda x, w, e: in_16_bits(x, w, e, ml_dtypes.bfloat16))
wrong_rms("rms_norm.in_float16", lambda x, w, e: in_16_bits(x, w, e, np.float16))


@example("rms_norm.squares_overflow")
def _(rng):
    """float16 in and out, and squares that do not fit into it."""
    x, w = normal(rng, 3, 8, dtype=np.float16, scale=1000.0), normal(rng, 8, dtype=np.float16)
    with np.errstate(all="ignore"):
        mine = x / np.sqrt(ms(x) + np.float16(1e-5)) * w
    assert mine.dtype == np.float16
    return mine, sf.rms_norm, (x, w), {"eps": 1e-5}


@example("rms_norm.squares_overflow")
def _(rng):
    """One channel of one token alone, as models have it, in an array that was widened."""
    x, w = normal(rng, 5, 32), normal(rng, 32)
    x[1, 3] = 300
    half = x.astype(np.float16)
    with np.errstate(all="ignore"):
        mine = half / np.sqrt(ms(half) + np.float16(1e-6)) * w.astype(np.float16)
    return mine, sf.rms_norm, (x, w), {"eps": 1e-6}


wrong_rms("rms_norm.weight_twice", lambda x, w, e: x / np.sqrt(ms(x) + e) * w * w)

# ---- LayerNorm -----------------------------------------------------------------------------------


@example("layer_norm.squares_overflow")
def _(rng):
    x, w, b = (normal(rng, *shape).astype(np.float16) for shape in ((5, 32), (32,), (32,)))
    x[1, 3] = 300
    with np.errstate(all="ignore"):
        mine = (x - mean(x)) / np.sqrt(var(x) + np.float16(1e-5)) * w + b
    return mine, sf.layer_norm, (x, w, b), {"eps": 1e-5}


for name, code in {
    "weight_twice": lambda x, c, w, b, e: c / np.sqrt(var(x) + e) * w * w + b,
    "no_eps": lambda x, c, w, b, e: c / np.sqrt(var(x)) * w + b,
    "eps_outside_root": lambda x, c, w, b, e: c / (x.std(-1, keepdims=True) + e) * w + b,
    "sum_for_mean": lambda x, c, w, b, e: c / np.sqrt((c**2).sum(-1, keepdims=True) + e) * w + b,
    "n_minus_one": lambda x, c, w, b, e: c / np.sqrt(var(x, ddof=1) + e) * w + b,
    "no_root": lambda x, c, w, b, e: c / (var(x) + e) * w + b,
    "multiplied_by_root": lambda x, c, w, b, e: c * np.sqrt(var(x) + e) * w + b,
    "not_divided": lambda x, c, w, b, e: c * w + b,
    "absolute_values": lambda x, c, w, b, e: c / np.sqrt(mean(abs(c)) ** 2 + e) * w + b,
    "mean_not_subtracted": lambda x, c, w, b, e: x / np.sqrt(ms(x) + e) * w + b,
    "squares_not_centred": lambda x, c, w, b, e: c / np.sqrt(ms(x) + e) * w + b,
    "only_variance_centred": lambda x, c, w, b, e: x / np.sqrt(var(x) + e) * w + b,
    "weight_forgotten": lambda x, c, w, b, e: c / np.sqrt(var(x) + e) + b,
    "one_plus_weight": lambda x, c, w, b, e: c / np.sqrt(var(x) + e) * (1 + w) + b,
    "weight_added": lambda x, c, w, b, e: c / np.sqrt(var(x) + e) + w + b,
    "weight_before_norm": lambda x, c, w, b, e: c * w / np.sqrt(ms(c * w) + e) + b,
    "bias_forgotten": lambda x, c, w, b, e: c / np.sqrt(var(x) + e) * w,
    "weight_and_bias_swapped": lambda x, c, w, b, e: c / np.sqrt(var(x) + e) * b + w,
    "bias_before_weight": lambda x, c, w, b, e: (c / np.sqrt(var(x) + e) + b) * w,
}.items():
    wrong_layer(f"layer_norm.{name}", code)
for name, code, eps in (
    ("eps_as_a_bound", lambda x, c, w, b, e: c / np.sqrt(np.maximum(var(x), e)) * w + b, EPS),
    ("eps_squared", lambda x, c, w, b, e: c / np.sqrt(var(x) + e**2) * w + b, 0.02),
):
    wrong_layer(f"layer_norm.{name}", code, scale=0.1, eps=eps)
for name, code in {
    "keepdims_lost": lambda x, m, w, b, e: (x - mean(x)) / np.sqrt(x.var(-1) + e) * w + b,
    "keepdims_of_mean_lost": lambda x, m, w, b, e: (x - m) / np.sqrt(ms(x - m) + e) * w + b,
    "keepdims_lost_twice": lambda x, m, w, b, e: (
        (x - m) / np.sqrt(ms(x - m, keepdims=False) + e) * w + b
    ),
    "keepdims_lost_in_both": lambda x, m, w, b, e: (x - m) / np.sqrt(x.var(-1) + e) * w + b,
    "weight_on_tokens": lambda x, m, w, b, e: (x - mean(x)) / np.sqrt(var(x) + e) * w[:, None] + b,
}.items():
    wrong_layer(
        f"layer_norm.{name}",
        lambda x, c, w, b, e, code=code: code(x, x.mean(-1), w, b, e),
        shape=(N, N),
    )
for label in ("1e-03", "1e-04", "1e-05", "1e-06", "1.19e-07", "1e-08", "1e-12"):
    other = {"1.19e-07": 1.1920929e-07}.get(label, float(label))

    def with_eps(x, c, w, b, e, other=other):
        return torch.layer_norm(torch.from_numpy(x), x.shape[-1:], eps=other).numpy() * w + b

    wrong_layer(f"layer_norm.eps_{label}", with_eps, eps=3e-5, scale=1e-7 if other < 1e-9 else 1e-4)
for name, axis in {
    "over_tokens": 1,
    "over_everything": None,
    "over_first_axis": 0,
    "over_tokens_and_elements": (1, 2),
    "over_batch_and_tokens": (0, 1),
}.items():
    wrong_layer(
        f"layer_norm.{name}",
        lambda x, c, w, b, e, axis=axis: (
            (x - mean(x, axis)) / np.sqrt(x.var(axis=axis, keepdims=True) + e) * w + b
        ),
    )


def layer_in_16_bits(x, w, b, e, dtype):
    x, w, b = (y.astype(dtype) for y in (x, w, b))
    h = x - mean(x.astype(np.float32)).astype(dtype)
    size = mean((h * h).astype(np.float32)).astype(dtype)
    return h / np.sqrt(size + dtype(e)) * w + b


for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
    wrong_layer(
        f"layer_norm.in_{name}",
        lambda x, c, w, b, e, dtype=dtype: layer_in_16_bits(x, w, b, e, dtype),
    )
