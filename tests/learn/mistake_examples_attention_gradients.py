"""Attention's gradients as learners write them wrong: from a softmax of their own and its row sums,
by einsum, never from out and lse."""

import math

import numpy as np

import simdformer as sf
from conftest import normal
from mistake_examples import Examples

example = Examples()
forward, backward = sf.scaled_dot_product_attention, sf.backward.scaled_dot_product_attention

B, H, K, L, D = 2, 4, 2, 5, 6
SEEN = np.tri(L, dtype=bool)
SCALE = 1 / math.sqrt(D)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def weights_of(q, k, seen=SEEN, scale=SCALE, bias=0.0, cap=None):
    x = np.einsum("bhld,bhsd->bhls", q, k) * scale
    x = x if cap is None else cap * np.tanh(x / cap)
    return softmax(np.where(seen, x + bias, -np.inf))


def through_softmax(dp, p):
    """p * (dp - the row sum), from the whole Jacobian."""
    jacobian = p[..., None] * np.eye(p.shape[-1]) - np.einsum("bhls,bhlt->bhlst", p, p)
    return np.einsum("bhls,bhlst->bhlt", dp, jacobian)


def repeated(x, heads):
    return x[:, np.arange(heads) * x.shape[1] // heads]


def folded(x, kv_heads):
    """The sum over each group, head by head."""
    out = np.zeros((x.shape[0], kv_heads, *x.shape[2:]), x.dtype)
    for head in range(x.shape[1]):
        out[:, head * kv_heads // x.shape[1]] += x[:, head]
    return out


def gradients(
    g, q, k, v, seen=SEEN, *, scale=SCALE, weights=None, through=through_softmax,
    of_query=None, of_key=None, of_value=None, fold=folded, **options,
):  # fmt: skip
    """All of it right, but for what is handed over."""
    kv_heads = k.shape[1]
    k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    p = weights_of(q, k, seen, scale, **options) if weights is None else weights(q, k)
    dp = np.einsum("bhld,bhsd->bhls", g, v)
    ds = through(dp, p)
    dq = of_query(ds, q, k) if of_query else np.einsum("bhls,bhsd->bhld", ds, k) * scale
    dk = of_key(ds, q, k) if of_key else np.einsum("bhls,bhld->bhsd", ds, q) * scale
    dv = of_value(p, dp, g, v) if of_value else np.einsum("bhls,bhld->bhsd", p, g)
    return dq, fold(dk, kv_heads), fold(dv, kv_heads)


def wrong(name, mine, *others, shapes=(H, K, L, L), needs=("query", "key", "value"), **kwargs):
    """`mine` gives gradients for grad, query, key and value; it is causal unless something else is
    said."""

    @example(f"attention_backward.{name}", *(f"attention_backward.{one}" for one in others))
    def _(rng):
        heads, kv_heads, length, keys = shapes
        q = normal(rng, B, heads, length, D)
        k, v = (normal(rng, B, kv_heads, keys, D) for _ in range(2))
        g = normal(rng, *q.shape)
        options = kwargs or {"is_causal": True}
        options = {n: one(rng) if callable(one) else one for n, one in options.items()}
        of_lse = options.pop("grad_lse", None)
        out, lse = forward(q, k, v, **options, return_lse=True)
        if of_lse is not None:
            options["grad_lse"] = of_lse
        with np.errstate(all="ignore"):
            found = mine(g, q, k, v)
        found = found(options) if callable(found) else found
        found = tuple(None if x is None else np.asarray(x, np.float32) for x in found)
        return found, backward, (g, q, k, v, out, lse), options | {"needs": needs}


def hand(**wrongs):
    return lambda g, q, k, v: gradients(g, q, k, v, **wrongs)


def exp_of_all(seen=None):
    """exp(s - lse) of the keys that were seen, for all or some others as well."""

    def weights(q, k):
        x = np.einsum("bhld,bhsd->bhls", q, k) / math.sqrt(D)
        total = np.where(SEEN, np.exp(x), 0).sum(-1, keepdims=True)
        return np.exp(x) / total * (1 if seen is None else seen)

    return weights


def by_own_delta(g, q, k, v, weights, delta):
    """With another row sum than that of the weights."""
    keys, values = repeated(k, H), repeated(v, H)
    return gradients(g, q, k, v, weights=weights, through=lambda dp, p: p * (dp - delta(
        g, weights_of(q, keys) @ values, dp, p)))  # fmt: skip


def dot(g, out, dp, p):
    return (g * out).sum(-1, keepdims=True)


FULL = np.ones((L, L), bool)
wrong("causal_loose_in_backward", lambda *x: by_own_delta(*x, exp_of_all(np.tri(L, k=1)), dot))
wrong("causal_inverted", lambda *x: by_own_delta(*x, exp_of_all(1 - np.tri(L)), dot))


wrong("causal_loose", hand(seen=np.tri(L, k=1, dtype=bool)))
wrong("no_scale", hand(scale=1.0))


wrong("scale_by_width", hand(scale=1 / D))


def of_part(mask, wider):
    """exp(s - lse) for the keys of a wider mask, of a forward with a narrower one."""

    def mine(g, q, k, v):
        keys, values = repeated(k, H), repeated(v, H)
        x = np.einsum("bhld,bhsd->bhls", q, keys) / math.sqrt(D)
        total = np.where(mask, np.exp(x), 0).sum(-1, keepdims=True)
        out = np.where(mask, np.exp(x) / total, 0) @ values
        return gradients(g, q, k, v, weights=lambda q, k: np.where(wider, np.exp(x) / total, 0),
                         through=lambda dp, p: p * (dp - dot(g, out, dp, p)))  # fmt: skip

    return mine


NEAR = SEEN & ~np.tri(L, k=-2, dtype=bool)
wrong("window_missing", of_part(NEAR, SEEN), is_causal=True, window=2)
WIDER = SEEN & ~np.tri(L, k=-3, dtype=bool)
wrong("window_too_wide", of_part(NEAR, WIDER), is_causal=True, window=2)
wrong("window_too_narrow", of_part(WIDER, NEAR), is_causal=True, window=3)
CHUNKS = SEEN & (np.arange(L) // 2 == np.arange(L)[:, None] // 2)
wrong("chunk_missing", of_part(CHUNKS, SEEN), is_causal=True, chunk=2)
BEHIND = SEEN & (np.arange(L) >= 1)  # padding of one
OF_TEXT = BEHIND & ((np.arange(L) + 1) // 2 == (np.arange(L)[:, None] + 1) // 2)
wrong("chunk_from_the_first_key", of_part(OF_TEXT, BEHIND & CHUNKS), is_causal=True, chunk=2,
      key_starts=1)  # fmt: skip
LATER = np.tri(L, k=1, dtype=bool)
wrong("offset_missing", of_part(LATER, SEEN), is_causal=True, causal_offset=1)
TWO_LATER = np.tri(L, k=2, dtype=bool)
wrong("starts_missing", of_part(TWO_LATER & (np.arange(L) >= 1), TWO_LATER), is_causal=True,
      causal_offset=2, key_starts=1)  # fmt: skip
SHORT = SEEN & (np.arange(L) < 3)
wrong("lengths_missing", of_part(SHORT, SEEN), is_causal=True, key_lengths=3)
TEXTS = np.array([0, 0, 1, 1, 1])
OWN = SEEN & (TEXTS[:, None] == TEXTS)
wrong("segments_missing", of_part(OWN, SEEN), is_causal=True, segment_ids=np.tile(TEXTS, (B, 1)))


@example("attention_backward.causal_missing")
def _(rng):
    """A padding mask is handed over, and causality forgotten."""
    q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
    mask = np.ones((B, 1, 1, L), bool)
    mask[1, ..., 3] = False
    out, lse = forward(q, k, v, mask, is_causal=True, return_lse=True)
    mine = of_part(SEEN & mask, np.broadcast_to(mask, (B, 1, L, L)))(g, q, k, v)
    return mine, backward, (g, q, k, v, out, lse, mask), {"is_causal": True}


BIAS = -0.3 * np.abs(np.subtract.outer(np.arange(L), np.arange(L))).astype(np.float32)


def not_divided(q, k):
    x = np.where(SEEN, np.einsum("bhld,bhsd->bhls", q, k) / math.sqrt(D), -np.inf)
    return np.exp(x - x.max(-1, keepdims=True))


wrong("only_maximum_subtracted", lambda *x: by_own_delta(*x, not_divided, dot))


@example("attention_backward.hidden_not_zero")
def _(rng):
    q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
    mask = np.ones((L, L), bool)
    mask[2] = False
    out, lse = forward(q, k, v, mask, return_lse=True)
    with np.errstate(all="ignore"):
        mine = gradients(g, q, k, v, seen=mask)
    return mine, backward, (g, q, k, v, out, lse, mask), {}


wrong("value_itself", hand(of_value=lambda p, dp, g, v: np.einsum("bhls,bhld->bhsd", p, v)))
wrong(
    "scale_in_value",
    hand(of_value=lambda p, dp, g, v: np.einsum("bhls,bhld->bhsd", p, g) / math.sqrt(D)),
)
wrong("delta_of_dp", hand(through=lambda dp, p: p * (dp - dp.sum(-1, keepdims=True))))
wrong("delta_mean_of_keys", hand(through=lambda dp, p: p * (dp - (p * dp).mean(-1)[..., None])))
wrong("delta_added", hand(through=lambda dp, p: p * (dp + (p * dp).sum(-1, keepdims=True))))
wrong("weights_missing", hand(through=lambda dp, p: np.where(
    SEEN, dp - (p * dp).sum(-1, keepdims=True), 0)))  # fmt: skip
wrong("delta_outside", hand(through=lambda dp, p: np.where(
    SEEN, p * dp - (p * dp).sum(-1, keepdims=True), 0)))  # fmt: skip
wrong("no_softmax", hand(through=lambda dp, p: np.where(SEEN, dp, 0)))
wrong("negated", hand(through=lambda dp, p: -through_softmax(dp, p)))


CAP = 1.2


@example("attention_backward.cap_of_masked")
def _(rng):
    q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
    out, lse = forward(q, k, v, BIAS, softcap=CAP, return_lse=True)
    x = CAP * np.tanh(np.einsum("bhld,bhsd->bhls", q, k) / math.sqrt(D) / CAP) + BIAS
    mine = gradients(g, q, k, v, seen=FULL, bias=BIAS, cap=CAP, through=lambda dp, p:
                     through_softmax(dp, p) * (1 - x**2 / CAP**2))  # fmt: skip
    return mine, backward, (g, q, k, v, out, lse, BIAS), {"softcap": CAP}


def key_times(factor):
    return lambda ds, q, k: np.einsum("bhls,bhld->bhsd", ds, q) * factor


wrong("query_itself", hand(of_query=lambda ds, q, k: ds @ q / math.sqrt(D)))
wrong("scale_twice_in_key", hand(of_key=key_times(1 / D)))
wrong("key_itself", hand(of_key=lambda ds, q, k: ds.swapaxes(2, 3) @ k / math.sqrt(D)))


def other_scale(scores, of_gradient):
    """exp(s - lse) with scores that are scaled otherwise than those of lse."""

    def mine(g, q, k, v):
        keys, values = repeated(k, H), repeated(v, H)
        x = np.einsum("bhld,bhsd->bhls", q, keys)
        total = np.where(SEEN, np.exp(x / math.sqrt(D)), 0).sum(-1, keepdims=True)
        out = weights_of(q, keys) @ values
        return gradients(g, q, k, v, weights=lambda q, k: np.where(SEEN, np.exp(x * scores), 0) /
                         total, scale=of_gradient,
                         through=lambda dp, p: p * (dp - dot(g, out, dp, p)))  # fmt: skip

    return mine


wrong("scale_missing_in_scores", other_scale(1, 1 / math.sqrt(D)))
wrong("scale_multiplied", other_scale(math.sqrt(D), math.sqrt(D)))
wrong("scale_of_query_alone", other_scale(1 / math.sqrt(H * D), 1 / math.sqrt(H * D)))


def folding(how):
    return hand(fold=lambda x, kv_heads: how(x.reshape(B, kv_heads, -1, L, D)))


wrong("largest_of_group", folding(lambda x: x.max(2)))


def of_one_sequence(name, which):
    @example(f"attention_backward.{name}")
    def _(rng):
        q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
        out, lse = forward(q, k, v, BIAS, return_lse=True)
        p = weights_of(q, k, FULL, bias=BIAS)
        each = through_softmax(np.einsum("bhld,bhsd->bhls", g, v), p)[which].sum(0)
        return (
            {"attn_mask": each},
            backward,
            (g, q, k, v, out, lse, BIAS),
            {"needs": ("attn_mask",)},
        )


of_one_sequence("mask_of_last_sequence", -1)
of_one_sequence("mask_of_first_sequence", 0)


for name, own_delta in (("sink_missing", True), ("sink_missing_in_weights", False)):

    @example(f"attention_backward.{name}")
    def _(rng, own_delta=own_delta):
        q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
        options = {"sinks": normal(rng, H), "is_causal": True}
        out, lse = forward(q, k, v, **options, return_lse=True)
        through = through_softmax if own_delta else lambda dp, p: p * (dp - dot(g, out, dp, p))
        return gradients(g, q, k, v, through=through), backward, (g, q, k, v, out, lse), options


def with_sinks(name, form):
    @example(f"attention_backward.{name}")
    def _(rng):
        q, k, v, g = (normal(rng, B, H, L, D) for _ in range(4))
        sinks = normal(rng, H)
        out, lse = forward(q, k, v, sinks=sinks, is_causal=True, return_lse=True)
        shares = np.exp(sinks[:, None] - lse)
        mine = {"sinks": form(shares, np.einsum("bhld,bhld->bhl", g, out))}
        options = {"sinks": sinks, "is_causal": True, "needs": ("sinks",)}
        return mine, backward, (g, q, k, v, out, lse), options


with_sinks("sinks_of_last_sequence", lambda shares, delta: -(shares * delta)[-1].sum(-1))
