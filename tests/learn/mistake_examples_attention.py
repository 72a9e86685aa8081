"""Attention as learners write it wrong: scale, products, heads, softmax."""

import ml_dtypes
import numpy as np

import simdformer as sf
from conftest import normal
from mistake_examples import Examples

example = Examples()
attention = sf.scaled_dot_product_attention

B, H, K, L, D = 2, 6, 3, 7, 8


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def scores_of(q, k, scale=None):
    return q @ np.swapaxes(k, -1, -2) * np.float32(D**-0.5 if scale is None else scale)


def attend(q, k, v, scale=None):
    return softmax(scores_of(q, k, scale)) @ v


def wrong(name, code, *also, heads=(H, H), length=(L, L), dim=D, factor=1.0, **kwargs):
    """`code` gives the result for (q, k, v) and the keywords of the call, in float32."""

    @example(*(f"attention.{one}" for one in (name, *also)))
    def _(rng):
        q = normal(rng, B, heads[0], length[0], dim, scale=factor)
        k, v = (normal(rng, B, heads[1], length[1], dim) for _ in range(2))
        with np.errstate(all="ignore"):
            mine = code(q, k, v, **kwargs)
        return mine, attention, (q, k, v), kwargs


# ---- scale ---------------------------------------------------------------------------------------

wrong("no_scale", lambda q, k, v: attend(q, k, v, 1))
wrong("scale_by_head_dim", lambda q, k, v: attend(q, k, v, 1 / D), "scale_twice")
wrong("scale_twice", lambda q, k, v, scale: attend(q * np.float32(scale), k, v, scale), scale=0.3)
wrong("scale_by_hidden_size", lambda q, k, v: attend(q, k, v, (H * D) ** -0.5))
wrong("scale_by_length", lambda q, k, v: attend(q, k, v, 1 / np.sqrt(k.shape[-2])), length=(7, 11))
wrong("scale_by_num_heads", lambda q, k, v: attend(q, k, v, q.shape[1] ** -0.5))
wrong("divided_by_scale", lambda q, k, v: attend(q, k, v, np.sqrt(D)))
wrong("divided_by_scale", lambda q, k, v, scale: attend(q, k, v, 1 / scale), scale=0.3)
wrong("scale_ignored", lambda q, k, v, scale: attend(q, k, v), scale=0.3)
wrong("scale_or_default", lambda q, k, v, scale: attend(q, k, v, scale or D**-0.5), scale=0.0)
wrong(
    "scale_besides_default",
    lambda q, k, v, scale: attend(q / np.float32(D**0.5), k, v, scale),
    scale=0.3,
)
wrong(
    "scale_after_softmax",
    lambda q, k, v: softmax(q @ k.swapaxes(-1, -2)) / np.float32(np.sqrt(D)) @ v,
)


def capped(x, cap):
    return np.float32(cap) * np.tanh(x / np.float32(cap))


wrong("no_softcap", lambda q, k, v, softcap: attend(q, k, v), softcap=1.5)
wrong(
    "softcap_not_multiplied",
    lambda q, k, v, softcap: softmax(np.tanh(scores_of(q, k) / np.float32(softcap))) @ v,
    softcap=1.5,
)
wrong(
    "softcap_clips",
    lambda q, k, v, softcap: softmax(np.clip(scores_of(q, k), -softcap, softcap)) @ v,
    softcap=1.5,
)
wrong(
    "softcap_before_scale",
    lambda q, k, v, softcap: (
        softmax(capped(scores_of(q, k, 1), softcap) / np.float32(np.sqrt(D))) @ v
    ),
    softcap=1.5,
)

# ---- what is multiplied with what ----------------------------------------------------------------

wrong("key_as_value", lambda q, k, v: attend(q, k, k))
wrong("value_as_key", lambda q, k, v: attend(q, v, v))
wrong("key_and_value_swapped", lambda q, k, v: attend(q, v, k))
wrong("query_as_key", lambda q, k, v: attend(q, q, v))
wrong("query_as_value", lambda q, k, v: attend(q, k, q))
wrong("query_and_key_swapped", lambda q, k, v: attend(k, q, v))
wrong(
    "key_not_transposed", lambda q, k, v: softmax(q @ k / np.float32(np.sqrt(D))) @ v, length=(D, D)
)
wrong(
    "key_reshaped", lambda q, k, v: softmax(q @ k.reshape(B, H, D, L) / np.float32(np.sqrt(D))) @ v
)
wrong(
    "weights_transposed", lambda q, k, v: np.einsum("bhji,bhjd->bhid", softmax(scores_of(q, k)), v)
)
wrong("first_sequence_for_all", lambda q, k, v: attend(q, k[0], v[0]))


def over_heads(q, k, v, is_causal=False):
    """q, k, v as they come from x.view(B, L, H, D): nobody transposed."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = scores_of(q, k)
    if is_causal:
        scores = np.where(np.tri(H, dtype=bool), scores, np.float32(-np.inf))
    return (softmax(scores) @ v).transpose(0, 2, 1, 3)


wrong("over_heads", over_heads)
wrong("over_heads", over_heads, is_causal=True)
wrong("values_copied", lambda q, k, v: v)


@example("attention.all_axes_transposed")
def _(rng):
    q, k, v = (normal(rng, 5, 5, 5) for _ in range(3))
    return softmax(q @ k.T / np.float32(np.sqrt(5))) @ v, attention, (q, k, v), {}


# ---- heads ---------------------------------------------------------------------------------------


def by_head(kv_of_head, value_of_head=None):
    """A loop over the heads, as tutorials write it."""

    def code(q, k, v):
        out = np.empty_like(q)
        for h in range(q.shape[1]):
            g = kv_of_head(h)
            out[:, h] = attend(q[:, h], k[:, g], v[:, value_of_head(h) if value_of_head else g])
        return out

    return code


wrong("heads_tiled", by_head(lambda h: h % K), heads=(H, K))
wrong("one_kv_head", by_head(lambda h: 0), heads=(H, K))
wrong("group_of_2", by_head(lambda h: h // 2))
wrong("group_of_4", by_head(lambda h: h // 4), heads=(12, 6))
wrong("group_of_8", by_head(lambda h: h // 8), heads=(16, 4))
wrong("divided_by_kv_heads", by_head(lambda h: h // 3), heads=(6, 3))
wrong("values_tiled", by_head(lambda h: h // (H // K), lambda h: h % K), heads=(H, K))

# ---- softmax -------------------------------------------------------------------------------------

wrong("softmax_over_queries", lambda q, k, v: softmax(scores_of(q, k), -2) @ v)
wrong("softmax_over_heads", lambda q, k, v: softmax(scores_of(q, k), 1) @ v)
wrong("softmax_over_first_axis", lambda q, k, v: softmax(scores_of(q, k), 0) @ v)
wrong("softmax_over_everything", lambda q, k, v: softmax(scores_of(q, k), None) @ v)
wrong("no_softmax", lambda q, k, v: scores_of(q, k) @ v)
wrong(
    "not_divided",
    lambda q, k, v: np.exp(scores_of(q, k) - scores_of(q, k).max(-1, keepdims=True)) @ v,
)


def without_keepdims(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1)


@example("attention.softmax_keepdims_lost")
def _(rng):
    q, k, v = (normal(rng, L, D) for _ in range(3))
    return without_keepdims(scores_of(q, k)) @ v, attention, (q, k, v), {}


@example("attention.softmax_keepdims_lost_unshifted")
def _(rng):
    q, k, v = (normal(rng, L, D) for _ in range(3))
    e = np.exp(scores_of(q, k))
    return (e / e.sum(-1)) @ v, attention, (q, k, v), {}


def one_hot(x):
    return np.float32(x == x.max(-1, keepdims=True))


wrong("one_hot", lambda q, k, v: one_hot(scores_of(q, k)) @ v)
wrong("softmax_twice", lambda q, k, v: softmax(softmax(scores_of(q, k))) @ v)
wrong("log_softmax", lambda q, k, v: np.log(softmax(scores_of(q, k))) @ v)


def exp2_softmax(x):
    e = np.exp2(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


wrong("powers_of_two", lambda q, k, v: exp2_softmax(scores_of(q, k)) @ v)


def overflowing(q, k, v, scale):
    e = np.exp(scores_of(q, k, scale))
    return e / e.sum(-1, keepdims=True) @ v


wrong("no_shift", overflowing, scale=15.0)


def in_dtype(dtype):
    def code(q, k, v):
        rounded = scores_of(q, k).astype(dtype).astype(np.float32)
        return softmax(rounded).astype(dtype).astype(np.float32) @ v

    return code


wrong("softmax_in_float16", in_dtype(np.float16), factor=20.0)
wrong("softmax_in_bfloat16", in_dtype(ml_dtypes.bfloat16), factor=20.0)


def wrong_sinks(name, code):
    @example(f"attention.{name}")
    def _(rng):
        q, k, v = (normal(rng, B, H, L, D) for _ in range(3))
        sinks = np.abs(normal(rng, H)) + np.float32(0.5)
        return code(q, k, v, sinks), attention, (q, k, v), {"sinks": sinks}


def plain_sink(q, k, v, sinks):
    x = scores_of(q, k)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + sinks[:, None, None]) @ v


wrong_sinks("no_sinks", lambda q, k, v, sinks: attend(q, k, v))
wrong_sinks("sink_without_exp", plain_sink)

# ---- results -------------------------------------------------------------------------------------


@example("attention.results_swapped")
def _(rng):
    q, k, v = (normal(rng, B, H, L, D) for _ in range(3))
    weights = softmax(scores_of(q, k))
    return (weights, weights @ v), attention, (q, k, v), {"return_weights": True}


@example("attention.scores_before_mask")
def _(rng):
    q, k, v = (normal(rng, B, H, L, D) for _ in range(3))
    scores = scores_of(q, k)
    weights = softmax(np.where(np.tri(L, dtype=bool), scores, -np.inf))
    asked = {"return_scores": True, "is_causal": True}
    return (weights @ v, scores), attention, (q, k, v), asked


@example("attention.lse_without_maximum")
def _(rng):
    q, k, v = (normal(rng, B, H, L, D) for _ in range(3))
    scores = scores_of(q, k)
    lse = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1))
    return (attend(q, k, v), lse), attention, (q, k, v), {"return_lse": True}
