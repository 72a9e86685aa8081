"""What goes wrong in the products of attention: scale, softcap, what is multiplied, heads."""

import math

import numpy as np

from simdformer.learn.mistakes.attention import default_scale, inputs, weigh
from simdformer.learn.program import State, mistake

SCALE = "01 §2"
DIVIDE = "Divide the scores by sqrt(head_dim), the last axis of the query, once."


def scaled_by(s: State, factor: float) -> None:
    s.scores = s.scores * s.run.dtype(factor)


def given_scale(s: State) -> float:
    return default_scale(s) if s.scale is None else float(s.scale)


# ---- scale ---------------------------------------------------------------------------------------


@mistake(
    "attention.scale",
    title="the scores are not scaled",
    cause="query @ keyᵀ grows with head_dim; without 1/sqrt(D) the softmax is too sharp.",
    fix=DIVIDE,
    step=SCALE,
)
def no_scale(s: State) -> None:
    pass


@mistake(
    "attention.scale",
    title="the scores are divided by D, not by its root",
    cause="1/D in place of 1/sqrt(D): the softmax becomes too flat.",
    fix=DIVIDE,
    step=SCALE,
)
def scale_by_head_dim(s: State) -> None:
    scaled_by(s, 1 / s.head_dim)


@mistake(
    "attention.scale",
    title="the scores are divided by sqrt(E), the width of all heads together",
    cause="hidden_size is H times head_dim; each head works on head_dim numbers only.",
    fix=DIVIDE,
    step="01 §4",
)
def scale_by_hidden_size(s: State) -> None:
    scaled_by(s, 1 / math.sqrt(s.head_dim * s.num_heads))


@mistake(
    "attention.scale",
    title="the scores are divided by the root of another axis: the number of positions",
    cause="shape[-2] or shape[1] is taken for head_dim; which axis that is depends on the layout.",
    fix="Take the last axis of the query, query.shape[-1].",
    step=SCALE,
    rare=True,
)
def scale_by_length(s: State) -> None:
    scaled_by(s, 1 / math.sqrt(s.S))


@mistake(
    "attention.scale",
    title="the scores are divided by the root of another axis: the number of heads",
    cause="shape[1] or shape[-2] is taken for head_dim; which axis that is depends on the layout.",
    fix="Take the last axis of the query, query.shape[-1].",
    step=SCALE,
    rare=True,
)
def scale_by_num_heads(s: State) -> None:
    if s.num_heads == 1:
        raise ValueError("then there is no scale: see no_scale")
    scaled_by(s, 1 / math.sqrt(s.num_heads))


@mistake(
    "attention.scale",
    title="the scores are scaled twice",
    cause="The query was scaled already, in the projection or in the line before.",
    fix=DIVIDE,
    step=SCALE,
)
def scale_twice(s: State) -> None:
    scaled_by(s, given_scale(s) ** 2)


@mistake(
    "attention.scale",
    title="the scores are divided by the scale instead of multiplied with it",
    cause="`scale` is 1/sqrt(D) already; dividing by it multiplies with sqrt(D).",
    fix="Write scores * scale, or scores / sqrt(D).",
    step=SCALE,
)
def divided_by_scale(s: State) -> None:
    s.scores = s.scores / s.run.dtype(given_scale(s))


@mistake(
    "attention.scale",
    title="the scale that is given is ignored",
    cause="1/sqrt(D) is written into the code, although this call has a scale of its own.",
    fix="Use the argument, and 1/sqrt(D) only where it is None.",
    step=SCALE,
)
def scale_ignored(s: State) -> None:
    scaled_by(s, default_scale(s) if s.scale else given_scale(s))


@mistake(
    "attention.scale",
    title="a scale of 0 is taken for no scale",
    cause="`scale or 1/sqrt(D)` throws 0.0 away, because zero is false.",
    fix="Write `if scale is None`.",
    step="01 §4",
)
def scale_or_default(s: State) -> None:
    scaled_by(s, given_scale(s) or default_scale(s))


@mistake(
    "attention.scale",
    title="the scale comes on top of 1/sqrt(D)",
    cause="The scale that is given replaces 1/sqrt(D); here the scores are multiplied with both.",
    fix="Multiply with the given scale alone.",
    step=SCALE,
)
def scale_besides_default(s: State) -> None:
    scaled_by(s, default_scale(s) * given_scale(s) if s.scale is not None else default_scale(s))


@mistake(
    "attention.scale",
    "attention.weigh",
    title="the scale comes after the softmax",
    cause="The shares are multiplied with 1/sqrt(D), not the scores: they no longer sum to one.",
    fix="Scale the scores, before the softmax.",
    step=SCALE,
)
class ScaleAfterSoftmax:
    @staticmethod
    def scale(s: State) -> None:
        pass

    @staticmethod
    def weigh(s: State) -> None:
        s.weights = s.weights * s.run.dtype(given_scale(s))
        weigh(s)


@mistake(
    "attention.cap",
    title="the softcap is forgotten",
    cause="The call asks for softcap * tanh(scores / softcap), and the scores go on as they are.",
    fix="Cap the scores after scaling and before masking.",
    step=SCALE,
)
def no_softcap(s: State) -> None:
    pass


@mistake(
    "attention.cap",
    title="the softcap is not multiplied back",
    cause="tanh(scores / softcap) lies between -1 and 1: nearly all shares become alike.",
    fix="Write softcap * tanh(scores / softcap).",
    step=SCALE,
)
def softcap_not_multiplied(s: State) -> None:
    if s.softcap is not None:
        s.scores = np.tanh(s.scores / s.softcap)


@mistake(
    "attention.cap",
    title="the scores are cut off at the softcap instead of bent towards it",
    cause="clip keeps scores up to the cap as they are; tanh bends all of them.",
    fix="Write softcap * tanh(scores / softcap).",
    step=SCALE,
)
def softcap_clips(s: State) -> None:
    if s.softcap is not None:
        s.scores = np.clip(s.scores, -s.softcap, s.softcap)


@mistake(
    "attention.scale",
    "attention.cap",
    title="the softcap comes before the scale",
    cause="The order is scale, softcap, mask, softmax; tanh does not commute with a factor.",
    fix="Scale the scores first, then cap them.",
    step=SCALE,
)
class SoftcapBeforeScale:
    @staticmethod
    def scale(s: State) -> None:
        pass

    @staticmethod
    def cap(s: State) -> None:
        if s.softcap is not None:
            s.scores = s.softcap * np.tanh(s.scores / s.softcap)
        scaled_by(s, given_scale(s))


# ---- what is multiplied with what ----------------------------------------------------------------


@mistake(
    "attention.inputs",
    title="the key is used as the value",
    cause="A copied line, such as `v = k[0]`: the shares average keys.",
    fix="Multiply the shares with the value.",
    step=SCALE,
)
def key_as_value(s: State) -> None:
    inputs(s)
    s.v = s.k


@mistake(
    "attention.inputs",
    title="the value is used as the key",
    cause="A copied line: the scores are query @ valueᵀ.",
    fix="Compare the query with the key.",
    step=SCALE,
)
def value_as_key(s: State) -> None:
    inputs(s)
    s.k = s.v


@mistake(
    "attention.inputs",
    title="key and value are swapped",
    cause="The order of the arguments is query, key, value.",
    fix="Compare with the key, average the value.",
    step=SCALE,
)
def key_and_value_swapped(s: State) -> None:
    inputs(s)
    s.k, s.v = s.v, s.k


@mistake(
    "attention.inputs",
    title="the query is used as the key",
    cause="query @ queryᵀ: each token looks for what is like its own question.",
    fix="Compare the query with the key.",
    step=SCALE,
)
def query_as_key(s: State) -> None:
    inputs(s)
    s.k = s.q


@mistake(
    "attention.inputs",
    title="the query is used as the value",
    cause="A copied line: the shares average queries.",
    fix="Multiply the shares with the value.",
    step=SCALE,
)
def query_as_value(s: State) -> None:
    inputs(s)
    s.v = s.q


@mistake(
    "attention.dot",
    title="query and key are swapped: the scores are transposed",
    cause="key @ queryᵀ: row i then holds what the others think of token i.",
    fix="Write query @ keyᵀ; rows are queries, columns are keys.",
    step=SCALE,
)
def query_and_key_swapped(s: State) -> None:
    s.scores = s.k @ s.q.swapaxes(-1, -2)


@mistake(
    "attention.dot",
    title="the key is not transposed",
    cause="query @ key runs when there are as many keys as numbers in a head.",
    fix="Swap the last two axes of the key: key.swapaxes(-1, -2).",
    step=SCALE,
)
def key_not_transposed(s: State) -> None:
    s.scores = s.q @ s.k


@mistake(
    "attention.dot",
    title="the key is reshaped to (D, S), not transposed",
    cause="reshape gives the shape that the product needs, but leaves every number where it was.",
    fix="Swap the last two axes of the key: key.swapaxes(-1, -2).",
    step=SCALE,
    rare=True,
)
def key_reshaped(s: State) -> None:
    if s.head_dim == s.S:
        raise ValueError("then it changes nothing: see key_not_transposed")
    s.scores = s.q @ s.k.reshape(*s.k.shape[:-2], s.head_dim, s.S)


@mistake(
    "attention.dot",
    title=".T reverses all axes of the key, not only the last two",
    cause="key.T is right for two axes; with heads and a batch it lines heads up with positions.",
    fix="Write key.swapaxes(-1, -2), in torch key.transpose(-1, -2).",
    step=SCALE,
)
def all_axes_transposed(s: State) -> None:
    s.scores = s.q @ (s.k[0].T[None] if s.no_heads else s.k.T)


@mistake(
    "attention.weigh",
    title="the shares are transposed before they average the values",
    cause="weightsᵀ @ value sums over the queries instead of the keys.",
    fix="Write weights @ value.",
    step=SCALE,
)
def weights_transposed(s: State) -> None:
    s.z = s.weights.swapaxes(-1, -2) @ s.v


@mistake(
    "attention.inputs",
    title="all sequences read the keys and values of the first one",
    cause="An index 0 on the batch axis.",
    fix="Keep the batch axis: key and value have one entry for each sequence.",
    step=SCALE,
    rare=True,
)
def first_sequence_for_all(s: State) -> None:
    inputs(s)
    if s.k.ndim > 3:
        s.k, s.v = s.k[:1], s.v[:1]


@mistake(
    "attention.weigh",
    title="the shares are not used: every token keeps its own value",
    cause="The last product is missing.",
    fix="Multiply the shares with the value: weights @ value.",
    step=SCALE,
    rare=True,
)
def values_copied(s: State) -> None:
    s.z = s.v + 0 * s.weights.sum(axis=-1, keepdims=True)
