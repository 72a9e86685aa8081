"""Masks of attention as learners write them wrong."""

import numpy as np

import simdformer as sf
from conftest import normal
from mistake_examples import Examples
from mistake_examples_attention import attention, scores_of, softmax

example = Examples()

B, H, L, D = 2, 3, 7, 8
SEEN = np.tri(L, dtype=bool)
INF = np.float32(np.inf)


def attend(q, k, v, seen):
    """As it should be, for a mask that may be wrong."""
    with np.errstate(all="ignore"):
        x = np.where(seen, scores_of(q, k), -INF)
        weights = np.nan_to_num(softmax(np.where(seen.any(-1, keepdims=True), x, 0)))
        return np.where(seen.any(-1, keepdims=True), weights, 0).astype(np.float32) @ v


def wrong(name, code, *also, length=(L, L), mask=None, **kwargs):
    """`code` gives the result for (q, k, v), with a mask for (q, k, v, mask)."""

    @example(*(f"attention.{one}" for one in (name, *also)))
    def _(rng):
        q = normal(rng, B, H, length[0], D)
        k, v = (normal(rng, B, H, length[1], D) for _ in range(2))
        masks = [] if mask is None else [mask(rng)]
        with np.errstate(all="ignore"):
            mine = code(q, k, v, *masks)
        return np.asarray(mine, np.float32), attention, (q, k, v, *masks), kwargs


def causal(name, code, *also, **kwargs):
    wrong(name, code, *also, is_causal=True, **kwargs)


def seeing(mask):
    """With this mask in place of the right one."""
    return lambda q, k, v: attend(q, k, v, mask)


# ---- causality -----------------------------------------------------------------------------------

causal("no_causal", lambda q, k, v: softmax(scores_of(q, k)) @ v)
causal("causal_strict", seeing(~np.triu(np.ones((L, L), bool), 0)))


def diagonal_hidden(q, k, v, hidden, dtype=np.float32):
    """triu(k=0), and whatever a row that sees nothing comes to."""
    scores = scores_of(q, k).astype(dtype)
    scores = np.where(np.triu(np.ones((L, L), bool)), dtype(hidden), scores)
    return (softmax(scores) @ v).astype(np.float32)


@example("attention.causal_strict_added")
def _(rng):
    """In float64, where the digits of the scores survive beside 1e9."""
    q, k, v = (normal(rng, B, H, L, D).astype(np.float64) for _ in range(3))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(D) + np.triu(np.full((L, L), -1e9))
    return softmax(scores) @ v, attention, (q, k, v), {"is_causal": True}


causal("causal_strict_nan", lambda q, k, v: diagonal_hidden(q, k, v, -np.inf))
causal("causal_strict_uniform", lambda q, k, v: diagonal_hidden(q, k, v, -1e9))
causal("causal_strict_uniform", lambda q, k, v: diagonal_hidden(q, k, v, np.finfo(np.float32).min))
causal(
    "causal_strict_uniform",
    lambda q, k, v: diagonal_hidden(q, k, v, np.finfo(np.float16).min, np.float64),
)
causal("causal_loose", seeing(np.tril(np.ones((L, L), bool), 1)))
causal("causal_reversed", seeing(np.triu(np.ones((L, L), bool))), "visible_transposed")

S = 10  # keys, of which the queries are the last L
I, J = np.arange(L)[:, None], np.arange(S)
cached = {"length": (L, S), "is_causal": True}

wrong("no_causal_offset", seeing(J <= I), **cached, causal_offset=S - L)
wrong("causal_bottom_right", seeing(J <= I + S - L), **cached, causal_offset=0)
wrong(
    "causal_offset_one_less",
    seeing(J <= I + S - L - 1),
    "causal_strict",
    **cached,
    causal_offset=S - L,
)

# ---- windows and padding -------------------------------------------------------------------------

A, Z = np.arange(L)[:, None], np.arange(L)
causal("no_window", seeing(SEEN), window=3)
causal("window_too_wide", seeing(SEEN & (A - Z <= 3)), window=3)
causal("window_too_narrow", seeing(SEEN & (A - Z < 2)), window=3)
causal("window_both_ways", seeing(abs(A - Z) < 3), window=3)
BACK = SEEN & (A - Z < 3)
wrong("window_to_the_left", seeing(BACK), window=3)
wrong("window_to_the_left", seeing(BACK), window=(2, 1))
wrong("window_too_wide", seeing(abs(A - Z) <= 3), window=3)
wrong("no_window", lambda q, k, v: softmax(scores_of(q, k)) @ v, window=(2, 3))

causal("no_chunk", seeing(SEEN), chunk=3)
causal("chunk_as_window", seeing(BACK), chunk=3)

STARTS = np.array([4, 1])
BEGIN = STARTS[:, None, None, None]
left = {"key_starts": STARTS}
causal(
    "chunk_from_the_first_key", seeing(SEEN & (A // 3 == Z // 3) & (Z >= BEGIN)), chunk=3, **left
)
causal("no_key_starts", seeing(SEEN), **left)
wrong("one_key_of_left_padding", seeing(np.broadcast_to(Z >= BEGIN - 1, (B, 1, L, L))), **left)
wrong("padding_on_the_right", seeing(np.broadcast_to(Z < L - BEGIN, (B, 1, L, L))), **left)
causal("no_segments", seeing(SEEN), segment_ids=np.array([0, 0, 0, 1, 1, 2, 2]))
TEXTS = np.repeat([0, 1], [2, 5])[:, None], np.repeat([0, 1], [4, 6])  # of queries, of keys
wrong(
    "positions_of_the_row",
    seeing((TEXTS[0] == TEXTS[1]) & (J <= I)),
    **cached,
    segment_ids=(TEXTS[0][:, 0], TEXTS[1]),
    causal_offset=1,
)

LENGTHS = np.array([4, 6])
padded = {"key_lengths": LENGTHS}
END = LENGTHS[:, None, None, None]
wrong("no_key_lengths", lambda q, k, v: softmax(scores_of(q, k)) @ v, **padded)
wrong("one_key_of_padding", seeing(np.broadcast_to(Z <= END, (B, 1, L, L))), **padded)
wrong("padding_on_the_left", seeing(np.broadcast_to(Z >= L - END, (B, 1, L, L))), **padded)
wrong("length_of_the_first", seeing(np.broadcast_to(Z < 4, (L, L))), **padded)

# ---- the mask that is given ----------------------------------------------------------------------


def seen_mask(rng):
    """One of its own for each sequence and head; every query and every key sees something."""
    return (rng.random((B, H, L, L)) < 0.5) | np.eye(L, dtype=bool)


def additive_mask(rng):
    return np.where(seen_mask(rng), 0, -INF).astype(np.float32)


def bias_mask(rng):
    """Like ALiBi: finite numbers, all different."""
    return -np.abs(normal(rng, B, H, L, L))


def score_only(q, k, v, mask):
    return softmax(scores_of(q, k)) @ v


wrong("no_mask", score_only, mask=seen_mask)
wrong("no_mask", score_only, mask=additive_mask)
wrong("no_mask", score_only, mask=bias_mask)
wrong(
    "mask_transposed",
    lambda q, k, v, m: attend(q, k, v, m.swapaxes(-1, -2)),
    "visible_transposed",
    mask=seen_mask,
)
wrong(
    "mask_transposed",
    lambda q, k, v, m: softmax(scores_of(q, k) + m.swapaxes(-1, -2)) @ v,
    mask=bias_mask,
)
wrong(
    "mask_inverted",
    lambda q, k, v, m: attend(q, k, v, ~m),
    "hidden_and_visible_swapped",
    mask=seen_mask,
)
wrong("mask_inverted", lambda q, k, v, m: attend(q, k, v, m < 0), mask=additive_mask)
wrong(
    "mask_added_as_numbers",
    lambda q, k, v, m: softmax(scores_of(q, k) + m) @ v,
    "visible_added",
    mask=seen_mask,
)
wrong("mask_subtracted", lambda q, k, v, m: softmax(scores_of(q, k) - m) @ v, mask=bias_mask)
wrong(
    "mask_multiplied",
    lambda q, k, v, m: softmax(scores_of(q, k) * m) @ v,
    "hidden_as_zero",
    "hidden_as_tiny_number",
    mask=seen_mask,
)
wrong("mask_multiplied", lambda q, k, v, m: softmax(scores_of(q, k) * m) @ v, mask=bias_mask)


def partly_hidden(rng):
    """Numbers, some of them below zero, none infinite."""
    return normal(rng, B, H, L, L) + 3 * np.eye(L, dtype=np.float32)


wrong("mask_as_visible", lambda q, k, v, m: attend(q, k, v, m >= 0), mask=partly_hidden)
wrong(
    "mask_before_scale",
    lambda q, k, v, m: softmax((q @ k.swapaxes(-1, -2) + m) / np.float32(np.sqrt(D))) @ v,
    mask=bias_mask,
)
wrong(
    "mask_added_after_softmax",
    lambda q, k, v, m: (softmax(scores_of(q, k)) + m) @ v,
    mask=bias_mask,
)
wrong("first_mask_for_all", lambda q, k, v, m: attend(q, k, v, m[0, 0]), mask=seen_mask)

# ---- how what is hidden is hidden ----------------------------------------------------------------

causal("mask_after_softmax", lambda q, k, v: softmax(scores_of(q, k)) * SEEN @ v)
causal(
    "hidden_as_zero", lambda q, k, v: softmax(np.tril(scores_of(q, k))) @ v, "hidden_as_tiny_number"
)


def filled(value):
    return lambda q, k, v: softmax(np.where(SEEN, scores_of(q, k), np.float32(value))) @ v


# -1e-9 and 0 are the same for softmax, and so is a number that is added instead of put in.
causal("hidden_as_tiny_number", filled(-1e-9), "hidden_as_zero")
causal("hidden_as_minus_one", filled(-1.0))
causal("hidden_as_nan", filled(np.nan), "hidden_as_plus_infinity")
causal("hidden_as_plus_infinity", filled(np.inf), "hidden_as_nan")


causal(
    "softcap_after_mask",
    lambda q, k, v: softmax(2 * np.tanh(np.where(SEEN, scores_of(q, k), -INF) / 2)) @ v,
    softcap=2.0,
)


def empty_rows(value, *also):
    """Queries that see no key, where hidden scores are a large number."""

    def code(q, k, v, mask):
        return softmax(np.where(mask, scores_of(q, k), np.float32(value))) @ v

    def mask(rng):
        seen = seen_mask(rng)
        seen[:, :, 2] = False
        return seen

    return code, mask, also


LARGE = [
    "hidden_as_large_number",
    "hidden_as_lowest_float",
    "hidden_as_minus_ten_thousand",
    "large_number_added",
]
for name, value in zip(LARGE[:3], (-1e9, np.finfo(np.float32).min, -1e4), strict=True):
    code, mask, _ = empty_rows(value)
    wrong(name, code, *(other for other in LARGE if other != name), mask=mask)


def added(q, k, v, m):
    return softmax(scores_of(q, k) + np.where(m, np.float32(0), np.float32(-1e9))) @ v


wrong("large_number_added", added, *LARGE[:3], mask=empty_rows(0)[1])


def nan_rows(q, k, v, mask):
    return softmax(np.where(mask, scores_of(q, k), -INF)) @ v


wrong("nan_where_nothing_is_seen", nan_rows, mask=empty_rows(0)[1])
causal("visible_added", lambda q, k, v: softmax(scores_of(q, k) + np.tri(L, dtype=np.float32)) @ v)


def zero_times_infinity(q, k, v):
    mask = np.triu(np.ones((L, L), np.float32), 1) * -INF
    return softmax(scores_of(q, k) + mask) @ v


causal("zero_times_infinity", zero_times_infinity)
causal("hidden_and_visible_swapped", seeing(~SEEN))
wrong("visible_transposed", seeing((SEEN & (A - Z < 3)).T), is_causal=True, window=3)


# Where all of a sequence is NaN, whatever looks at the end of the cache explains it.
@example(
    "attention.hidden_values_leak",
    "attention.hidden_as_nan",
    "attention.hidden_as_plus_infinity",
    "attention.no_key_lengths",
    "attention.one_key_of_padding",
    "attention.padding_on_the_left",
)
def _(rng):
    q, k, v = (normal(rng, B, H, L, D) for _ in range(3))
    v[0, :, 5:] = np.nan  # the end of a cache that nobody has written to
    x = scores_of(q, k)
    x[0, ..., 5:] = -INF
    return softmax(x) @ v, attention, (q, k, v), {"key_lengths": np.array([5, L])}


# ---- causal_mask ---------------------------------------------------------------------------------


def mask_example(name, mine, *args, **kwargs):
    @example(f"causal_mask.{name}")
    def _(rng):
        return mine, sf.causal_mask, args, kwargs


ONES = np.ones((5, 7), bool)
mask_example("strict", np.tril(ONES, 1), 5, 7, offset=2)
mask_example("loose", np.tril(ONES, 3), 5, 7, offset=2)
mask_example("transposed", np.triu(ONES, 2), 5, 7, offset=2)
mask_example("inverted", ~np.tril(ONES, 2), 5, 7, offset=2)
mask_example("no_offset", np.tril(ONES), 5, 7, offset=2)
mask_example("bottom_right", np.tril(ONES, 2), 5, 7, offset=0)
mask_example("all_visible", ONES, 5, 7, offset=2)
ADDITIVE = np.triu(np.full((5, 5), -INF), 1)
mask_example("other_kind", ADDITIVE, 5, 5)
mask_example("other_kind", np.tri(5, dtype=bool), 5, 5, dtype=np.float32)
mask_example("large_number", np.triu(np.full((5, 5), np.float32(-1e9)), 1), 5, 5, dtype=np.float32)
with np.errstate(invalid="ignore"):
    NANS = np.triu(np.ones((5, 5), np.float32), 1) * -INF
mask_example("zero_times_infinity", NANS, 5, 5, dtype=np.float32)


# ---- inverted masks, and masks on the wrong axis -------------------------------------------------


def filled(q, k, v, hidden, value):
    """scores.masked_fill(hidden, value)"""
    return softmax(np.where(hidden, np.float32(value), scores_of(q, k))) @ v


def padding(rng):
    """(B, 1, 1, S): the second sequence is shorter."""
    return (np.arange(L) < np.array([[L], [L - 3]]))[:, None, None]


for kind, value in (("nan", -np.inf), ("uniform", -1e9)):
    causal(f"inverted_{kind}", lambda q, k, v, value=value: filled(q, k, v, SEEN, value))
    wrong(
        f"inverted_{kind}",
        lambda q, k, v, mask, value=value: filled(q, k, v, mask, value),
        mask=lambda rng: SEEN,
    )
    wrong(
        f"mask_inverted_{kind}",
        lambda q, k, v, mask, value=value: filled(q, k, v, mask == 0, value),
        mask=lambda rng: np.where(SEEN, np.float32(0), -INF),
    )
    wrong(
        f"mask_transposed_{kind}",
        lambda q, k, v, mask, value=value: filled(q, k, v, ~mask.swapaxes(-1, -2), value),
        mask=padding,
    )
    wrong(
        f"queries_of_padding_{kind}",
        lambda q, k, v, value=value: filled(q, k, v, ~padding(0).swapaxes(-1, -2), value),
        key_lengths=[L, L - 3],
    )
    wrong(
        f"queries_of_left_padding_{kind}",
        lambda q, k, v, value=value: filled(
            q, k, v, np.arange(L)[:, None] < np.array([2, 0])[:, None, None, None], value
        ),
        key_starts=[2, 0],
    )

causal(
    "causal_strict_ten_thousand",
    lambda q, k, v: softmax(scores_of(q, k) + np.triu(np.full((L, L), np.float32(-10000)))) @ v,
)
wrong("causal_not_asked_for", seeing(SEEN))
wrong(
    "only_new_keys",
    lambda q, k, v: attend(q, k[..., S - L :, :], v[..., S - L :, :], SEEN),
    **cached,
    causal_offset=S - L,
)
wrong("first_key_hidden", lambda q, k, v: attend(q, k[..., 1:, :], v[..., 1:, :], SEEN[-1:, 1:]))
