"""Softmax, linear, embedding and repeat_kv as learners write them wrong."""

import numpy as np

import simdformer as sf
from conftest import normal
from mistake_examples import Examples

example = Examples()

# ---- softmax -------------------------------------------------------------------------------------


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def wrong_softmax(name, code, *also, shape=(3, 4, 6), scale=1.0, **kwargs):
    @example(name, *also)
    def _(rng):
        x = normal(rng, *shape, scale=scale)
        with np.errstate(all="ignore"):
            return code(x), sf.softmax, (x,), kwargs


def raw(x):
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)


def divided(x):
    return x / x.sum(-1, keepdims=True)


wrong_softmax("softmax.another_axis", lambda x: softmax(x, -2))
wrong_softmax("softmax.another_axis", softmax, axis=1)
wrong_softmax("softmax.first_axis", lambda x: softmax(x, 0))
wrong_softmax("softmax.no_axis", lambda x: softmax(x, None))
wrong_softmax("softmax.no_shift", raw, scale=100.0)
wrong_softmax(
    "softmax.shift_by_maximum_of_all",
    lambda x: raw(x - x.max()),
    scale=100.0,
)
wrong_softmax("softmax.shift_by_mean", lambda x: raw(x - x.mean(-1, keepdims=True)), scale=100.0)
wrong_softmax("softmax.temperature_inverted", lambda x: softmax(x * 3), temperature=3.0)
wrong_softmax("softmax.no_temperature", softmax, temperature=3.0)
wrong_softmax("softmax.temperature_after", lambda x: softmax(x) / 3, temperature=3.0)
wrong_softmax("softmax.log", lambda x: np.log(softmax(x)))
wrong_softmax("softmax.twice", lambda x: softmax(softmax(x)))
wrong_softmax("softmax.not_divided", lambda x: np.exp(x - x.max(-1, keepdims=True)))
wrong_softmax("softmax.no_exp", lambda x: divided(x - x.max(-1, keepdims=True)))
wrong_softmax("softmax.only_normalised", divided)
wrong_softmax("softmax.powers_of_two", lambda x: softmax(x * np.float32(np.log(2))))
wrong_softmax("softmax.negated", lambda x: softmax(-x))


def keepdims_lost(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1)


def keepdims_of_maximum_lost(x):
    e = np.exp(x - x.max(-1))
    return e / e.sum(-1, keepdims=True)


def keepdims_lost_twice(x):
    e = np.exp(x - x.max(-1))
    return e / e.sum(-1)


def plainly(x):
    e = np.exp(x)
    return e / e.sum(-1)


for sharpness in (1.0, 50.0):
    wrong_softmax("softmax.one_hot", lambda x: np.eye(6, dtype="f")[x.argmax(-1)], scale=sharpness)
wrong_softmax("softmax.keepdims_lost", keepdims_lost, shape=(6, 6))
wrong_softmax("softmax.keepdims_lost_unshifted", plainly, shape=(6, 6))
wrong_softmax("softmax.keepdims_of_maximum_lost", keepdims_of_maximum_lost, shape=(6, 6))
wrong_softmax("softmax.keepdims_lost_twice", keepdims_lost_twice, shape=(6, 6))

# ---- linear --------------------------------------------------------------------------------------


def wrong_linear(name, code, *also, outputs=6):
    @example(name, *also)
    def _(rng):
        x, w, b = normal(rng, 6, 6), normal(rng, outputs, 6), normal(rng, outputs)
        return code(x, w, b), sf.linear, (x, w, b), {}


wrong_linear("linear.not_transposed", lambda x, w, b: x @ w + b)
wrong_linear("linear.reshaped", lambda x, w, b: x @ w.reshape(6, 9) + b, outputs=9)
wrong_linear("linear.no_bias", lambda x, w, b: x @ w.T)
wrong_linear("linear.bias_twice", lambda x, w, b: x @ w.T + 2 * b)
wrong_linear("linear.bias_subtracted", lambda x, w, b: x @ w.T - b)
wrong_linear("linear.bias_down_the_rows", lambda x, w, b: (x @ w.T).T.__add__(b).T)
wrong_linear("linear.bias_before_product", lambda x, w, b: (x + b) @ w.T)


def wrong_list(name, code):
    @example(name)
    def _(rng):
        x, weights = normal(rng, 5, 6), [normal(rng, 4, 6) for _ in range(3)]
        return code(x, *weights), sf.linear, (x, weights), {}


wrong_list("linear.order_reversed", lambda x, q, k, v: [x @ v.T, x @ k.T, x @ q.T])
wrong_list("linear.first_weight_for_all", lambda x, q, k, v: [x @ q.T, x @ q.T, x @ q.T])

# ---- embedding -----------------------------------------------------------------------------------


def wrong_embedding(name, code, *also, vocabulary=10):
    @example(name, *also)
    def _(rng):
        ids = rng.integers(1, vocabulary - 1, (2, 5))
        weight = normal(rng, vocabulary, 8)
        return code(ids, weight), sf.embedding, (ids, weight), {}


def sines(ids, weight):
    """The table of Attention is all you need, written as a loop."""
    width = weight.shape[1]
    out = weight[ids].copy()
    for position in range(ids.shape[1]):
        for i in range(0, width, 2):
            angle = position / 10000 ** (i / width)
            out[:, position, i] += np.sin(angle)
            out[:, position, i + 1] += np.cos(angle)
    return out


wrong_embedding("embedding.ids_from_one", lambda ids, w: w[ids - 1])
wrong_embedding("embedding.ids_plus_one", lambda ids, w: w[ids + 1])
wrong_embedding("embedding.without_bos", lambda ids, w: w[ids[:, 1:]])
wrong_embedding("embedding.scaled", lambda ids, w: w[ids] * np.float32(np.sqrt(8)))
wrong_embedding("embedding.divided", lambda ids, w: w[ids] / np.float32(np.sqrt(8)))
wrong_embedding("embedding.columns", lambda ids, w: w.T[ids], vocabulary=8)
wrong_embedding("embedding.table_reshaped", lambda ids, w: w.T.reshape(10, 8)[ids])
wrong_embedding(
    "embedding.normalised", lambda ids, w: w[ids] / np.linalg.norm(w[ids], axis=-1, keepdims=True)
)
wrong_embedding("embedding.rows_of_positions", lambda ids, w: np.stack([w[:5], w[:5]]))
wrong_embedding("embedding.sines_added", sines)

# ---- repeat_kv -----------------------------------------------------------------------------------


def wrong_repeat(name, code, shape=(2, 3, 5, 4), n=2):
    @example(name)
    def _(rng):
        x = normal(rng, *shape)
        return code(x), sf.repeat_kv, (x, n), {}


wrong_repeat("repeat_kv.heads_tiled", lambda x: np.tile(x, (1, 2, 1, 1)))
wrong_repeat("repeat_kv.first_head_for_all", lambda x: x[:, [0] * 6])
wrong_repeat("repeat_kv.positions_repeated", lambda x: np.repeat(x, 2, axis=2))
wrong_repeat(
    "repeat_kv.merged_from_the_wrong_side",
    lambda x: np.stack([x, x], axis=3).reshape(2, 6, 5, 4),
)
