"""What goes wrong in the products of attention: scale, softcap, what is multiplied, heads."""

import math

import numpy as np

from simdformer.learn.catalogue import Mistakes, first, instead, skip, then
from simdformer.learn.mistakes.attention import default_scale, inputs, scale_of
from simdformer.learn.program import State

SCALE = "01 §2"
# ---- scale and softcap ---------------------------------------------------------------------------


def scale_by_num_heads(s: State) -> None:
    if s.num_heads == 1:
        raise ValueError("then there is no scale: see no_scale")
    s.scores = s.scores * s.run.dtype(1 / math.sqrt(s.num_heads))


Mistakes(
    "attention.scale",
    see=SCALE,
    fix="Divide the scores by sqrt(head_dim), the last axis of the query, once.",
)(
    """
    no_scale: the scores are not scaled
        query @ keyᵀ grows with head_dim; without 1/sqrt(D) the softmax is too sharp.
    scale_by_head_dim: the scores are divided by D, not by its root
        1/D in place of 1/sqrt(D): the softmax becomes too flat.
    scale_by_hidden_size (01 §4): the scores are divided by sqrt(E), the width of all heads together
        hidden_size is H times head_dim; each head works on head_dim numbers only.
    scale_by_length (rare): the scores are divided by the root of the number of positions
        shape[-2] or shape[1] is taken for head_dim; which axis that is depends on the layout.
        > Take the last axis of the query, query.shape[-1].
    scale_by_num_heads (rare): the scores are divided by the root of the number of heads
        as above
        > Take the last axis of the query, query.shape[-1].
    scale_twice: the scores are scaled twice
        The query was scaled already, in the projection or in the line before.
    divided_by_scale: the scores are divided by the scale instead of multiplied with it
        `scale` is 1/sqrt(D) already; dividing by it multiplies with sqrt(D).
        > Write scores * scale, or scores / sqrt(D).
    scale_ignored: the scale that is given is ignored
        1/sqrt(D) is written into the code, although this call has a scale of its own.
        > Use the argument, and 1/sqrt(D) only where it is None.
    scale_or_default (01 §4): a scale of 0 is taken for no scale
        `scale or 1/sqrt(D)` throws 0.0 away, because zero is false.
        > Write `if scale is None`.
    scale_besides_default: the scale comes on top of 1/sqrt(D)
        The scale that is given replaces 1/sqrt(D); here the scores are multiplied with both.
        > Multiply with the given scale alone.
    """,
    no_scale=skip,
    scale_by_head_dim=instead(scores=lambda s: s.scores * s.run.dtype(1 / s.head_dim)),
    scale_by_hidden_size=instead(
        scores=lambda s: s.scores * s.run.dtype(1 / math.sqrt(s.head_dim * s.num_heads))
    ),
    scale_by_length=instead(scores=lambda s: s.scores * s.run.dtype(1 / math.sqrt(s.S))),
    scale_by_num_heads=scale_by_num_heads,
    scale_twice=instead(scores=lambda s: s.scores * s.run.dtype(scale_of(s) ** 2)),
    divided_by_scale=instead(scores=lambda s: s.scores / s.run.dtype(scale_of(s))),
    scale_ignored=first(scale=lambda s: s.scale and default_scale(s)),
    scale_or_default=first(scale=lambda s: s.scale or default_scale(s)),
    scale_besides_default=first(scale=lambda s: default_scale(s) * s.scale),
)

Mistakes("attention.weigh", see=SCALE, fix="Write weights @ value.")(
    """
    scale_after_softmax: the scale comes after the softmax
        The shares are multiplied with 1/sqrt(D), not the scores: they no longer sum to one.
        > Scale the scores, before the softmax.
    weights_transposed: the shares are transposed before they average the values
        weightsᵀ @ value sums over the queries instead of the keys.
    values_copied (rare): the shares are not used: every token keeps its own value
        The last product is missing.
        > Multiply the shares with the value: weights @ value.
    """,
    scale_after_softmax={
        "scale": skip,
        "weigh": first(weights=lambda s: s.weights * s.run.dtype(scale_of(s))),
    },
    weights_transposed=instead(z=lambda s: s.weights.swapaxes(-1, -2) @ s.v),
    values_copied=instead(z=lambda s: s.v + 0 * s.weights.sum(axis=-1, keepdims=True)),
)

Mistakes("attention.cap", see=SCALE, fix="Write softcap * tanh(scores / softcap).")(
    """
    no_softcap: the softcap is forgotten
        The call asks for softcap * tanh(scores / softcap), and the scores go on as they are.
        > Cap the scores after scaling and before masking.
    softcap_not_multiplied: the softcap is not multiplied back
        tanh(scores / softcap) lies between -1 and 1: nearly all shares become alike.
    softcap_clips: the scores are cut off at the softcap instead of bent towards it
        clip keeps scores up to the cap as they are; tanh bends all of them.
    softcap_before_scale: the softcap comes before the scale
        The order is scale, softcap, mask, softmax; tanh does not commute with a factor.
        > Scale the scores first, then cap them.
    """,
    no_softcap=skip,
    softcap_not_multiplied=instead(scores=lambda s: np.tanh(s.scores / s.softcap)),
    softcap_clips=instead(scores=lambda s: np.clip(s.scores, -s.softcap, s.softcap)),
    softcap_before_scale={
        "scale": skip,
        "cap": then(scores=lambda s: s.scores * s.run.dtype(scale_of(s))),
    },
)

# ---- what is multiplied with what ----------------------------------------------------------------


def first_sequence_for_all(s: State) -> None:
    inputs(s)
    if s.k.ndim > 3:
        s.k, s.v = s.k[:1], s.v[:1]


Mistakes("attention.inputs", see=SCALE, fix="Compare the query with the key, average the value.")(
    """
    key_as_value: the key is used as the value
        A copied line, such as `v = k[0]`: the shares average keys.
    value_as_key: the value is used as the key
        A copied line: the scores are query @ valueᵀ.
    key_and_value_swapped: key and value are swapped
        The order of the arguments is query, key, value.
    query_as_key: the query is used as the key
        query @ queryᵀ: each token looks for what is like its own question.
    query_as_value: the query is used as the value
        A copied line: the shares average queries.
    first_sequence_for_all (rare): all sequences read the keys and values of the first one
        An index 0 on the batch axis.
        > Keep the batch axis: key and value have one entry for each sequence.
    """,
    key_as_value=then(v=lambda s: s.k),
    value_as_key=then(k=lambda s: s.v),
    key_and_value_swapped=then(k=lambda s: s.v, v=lambda s: s.k),
    query_as_key=then(k=lambda s: s.q),
    query_as_value=then(v=lambda s: s.q),
    first_sequence_for_all=first_sequence_for_all,
)


def key_reshaped(s: State) -> None:
    if s.head_dim == s.S:
        raise ValueError("then it changes nothing: see key_not_transposed")
    s.scores = s.q @ s.k.reshape(*s.k.shape[:-2], s.head_dim, s.S)


Mistakes(
    "attention.dot", see=SCALE, fix="Swap the last two axes of the key: key.swapaxes(-1, -2)."
)(
    """
    query_and_key_swapped: query and key are swapped: the scores are transposed
        key @ queryᵀ: row i then holds what the others think of token i.
        > Write query @ keyᵀ; rows are queries, columns are keys.
    key_not_transposed: the key is not transposed
        query @ key runs when there are as many keys as numbers in a head.
    key_reshaped (rare): the key is reshaped to (D, S), not transposed
        reshape gives the shape that the product needs, but leaves every number where it was.
    all_axes_transposed: .T reverses all axes of the key, not only the last two
        key.T is right for two axes; with heads and a batch it lines heads up with positions.
        > Write key.swapaxes(-1, -2), in torch key.transpose(-1, -2).
    """,
    query_and_key_swapped=instead(scores=lambda s: s.k @ s.q.swapaxes(-1, -2)),
    key_not_transposed=instead(scores=lambda s: s.q @ s.k),
    key_reshaped=key_reshaped,
    all_axes_transposed=instead(scores=lambda s: s.q @ (s.k[0].T[None] if s.no_heads else s.k.T)),
)
