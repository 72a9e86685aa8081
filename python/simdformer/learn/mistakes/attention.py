"""Attention in steps. What goes wrong in them: attention_products.py, attention_masks.py.

query (...,H,L,D), key (...,K,S,D), value (...,K,S,Dv); the meaning is that of
`reference.scaled_dot_product_attention`, which a test holds it to.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer.functional import scaled_dot_product_attention
from simdformer.learn.program import Program, State

attention = Program(
    "attention", of=scaled_dot_product_attention, axes=("head", "position", "channel")
)


@attention.step
def inputs(s: State) -> None:
    s.q, s.k, s.v = s.run.array(s.query), s.run.array(s.key), s.run.array(s.value)
    s.no_heads, s.axis = s.q.ndim == 2, -1
    if s.no_heads:
        s.q, s.k, s.v = s.q[None], s.k[None], s.v[None]
    s.num_heads, s.head_dim = s.q.shape[-3], s.q.shape[-1]
    s.num_kv_heads = s.k.shape[-3]
    s.group = s.num_heads // max(s.num_kv_heads, 1)
    s.L, s.S = s.q.shape[-2], s.k.shape[-2]


@attention.step
def positions(s: State) -> None:
    """i (L,1) and j (S,): where queries and keys stand. A sample has some of the queries only."""
    rows = vars(s).get("rows")
    s.L = s.L if rows is None else s.length
    s.i = np.arange(s.L)[:, None] if rows is None else rows[:, None]
    s.j = np.arange(s.S)
    s.offset = 0 if s.causal_offset is None else per_sequence(s, s.causal_offset)


@attention.step
def share(s: State) -> None:
    """Which key/value head each query head reads."""
    s.k_head = s.v_head = np.arange(s.num_heads) // s.group


@attention.step
def repeat(s: State) -> None:
    s.k, s.v = s.k[..., s.k_head, :, :], s.v[..., s.v_head, :, :]


@attention.step
def dot(s: State) -> None:
    s.scores = s.q @ s.k.swapaxes(-1, -2)


@attention.step
def scale(s: State) -> None:
    s.scores = s.scores * s.run.dtype(scale_of(s))


@attention.step_if(lambda s: s.softcap is not None)
def cap(s: State) -> None:
    s.scores = s.softcap * np.tanh(s.scores / s.softcap)


@attention.step
def nothing_hidden(s: State) -> None:
    s.visible = np.full((len(s.i), s.S), True)


@attention.step_if(lambda s: s.is_causal)
def causal(s: State) -> None:
    s.visible = s.j <= s.i + s.offset


@attention.step_if(lambda s: s.window is not None)
def window(s: State) -> None:
    s.visible = s.visible & (s.j > s.i + s.offset - s.window)


@attention.step_if(lambda s: s.key_lengths is not None)
def lengths(s: State) -> None:
    s.visible = s.visible & (s.j < per_sequence(s, s.key_lengths))


@attention.step_if(lambda s: s.attn_mask is not None)
def mask(s: State) -> None:
    if np.asarray(s.attn_mask).dtype == bool:
        s.visible = s.visible & np.asarray(s.attn_mask)
    else:
        s.scores = s.scores + s.run.array(s.attn_mask)


@attention.step
def hide(s: State) -> None:
    s.scores = np.where(s.visible, s.scores, s.run.dtype(-np.inf))


@attention.step
def no_sink(s: State) -> None:
    s.sink = s.run.array(-np.inf).reshape(1, 1, 1)


@attention.step_if(lambda s: s.sinks is not None)
def sink(s: State) -> None:
    s.sink = s.run.array(s.sinks).reshape(-1, 1, 1)


@attention.step
def softmax(s: State) -> None:
    over(s, s.axis)


@attention.step
def empty(s: State) -> None:
    """A query that sees nothing has nothing to say."""
    s.sees = (s.scores != -np.inf).any(axis=-1, keepdims=True)
    s.weights = np.where(s.sees, s.weights, s.run.dtype(0))


@attention.step
def weigh(s: State) -> None:
    """A hidden key has no part, not even as 0 * NaN."""
    if np.isfinite(s.v).all():
        s.z = s.weights @ s.v
        return
    visible = np.broadcast_to(s.visible, s.scores.shape)
    s.z = np.zeros((*s.weights.shape[:-1], s.v.shape[-1]), s.run.dtype)
    for j in range(s.S):
        part = s.weights[..., j, None] * s.v[..., None, j, :]
        s.z = s.z + np.where(visible[..., j, None] & s.sees, part, s.run.dtype(0))


weigh.lines = ["z = weights @ v  # hidden v as 0"]  # type: ignore[attr-defined]


@attention.step
def results(s: State) -> None:
    found = [s.z]
    if s.return_weights:
        found.append(s.weights)
    if s.return_scores:
        found.append(s.scores)
    if s.return_lse:
        found.append(s.lse)
    found = [result[0] for result in found] if s.no_heads else found
    s.out = found[0] if len(found) == 1 else tuple(found)


def per_sequence(s: State, numbers: Any) -> Any:
    """One number, or one for each entry of the first axis of (...,H,L,S)."""
    return np.reshape(numbers, np.shape(numbers) + (1,) * (s.q.ndim - np.ndim(numbers)))


def default_scale(s: State) -> float:
    return 1 / math.sqrt(s.head_dim)


def scale_of(s: State) -> float:
    return default_scale(s) if s.scale is None else float(s.scale)


def over(s: State, axis: Any) -> None:
    """Softmax along an axis, its highest score subtracted, the sink among its scores."""
    highest = np.max(s.scores, axis=axis, keepdims=True, initial=-np.inf)
    highest = np.maximum(highest, s.sink)
    exponentials = np.exp(s.scores - np.where(highest == -np.inf, 0, highest))
    total = exponentials.sum(axis=axis, keepdims=True) + np.exp(
        s.sink - np.where(highest == -np.inf, 0, highest)
    )
    s.weights = exponentials / total
    s.lse = (np.where(highest == -np.inf, 0, highest) + np.log(total))[..., 0]


@attention.thin
def some_queries(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """Some queries of some sequences; all heads and keys, for mistakes mix those up."""
    query, key = np.asarray(variables["query"]), np.asarray(variables["key"])
    L, S = query.shape[-2], key.shape[-2]
    batch = query.shape[0] if query.ndim > 3 else 1
    row = query[0].size // L * S // query.shape[-1] if query.ndim > 3 else 0
    row = row or query.size // max(L * query.shape[-1], 1) * S
    if batch * row * L <= limit:
        return None
    sequences = max(1, min(batch, limit // max(row * min(L, 8), 1)))
    count = int(min(L, max(limit // max(row * sequences, 1), 4)))
    rows = np.unique(np.linspace(0, L - 1, count).astype(int))

    def take(x: Any, axis: int = -2) -> Any:
        batched = query.ndim > 3 and x.ndim + axis == query.ndim - 2 and len(x) > 1
        x = x[:sequences] if batched else x
        return x if x.shape[axis] != L else np.take(x, rows, axis)

    fewer = dict(variables, query=take(query), rows=rows, length=L)
    for name in ("key", "value"):
        x = np.asarray(variables[name])
        fewer[name] = x[:sequences] if query.ndim > 3 and len(x) > 1 else x
    for name in ("causal_offset", "key_lengths"):
        if np.ndim(variables[name]) == 1 and query.ndim > 3:
            fewer[name] = np.asarray(variables[name])[:sequences]
    if variables["attn_mask"] is not None and np.ndim(variables["attn_mask"]) > 1:
        fewer["attn_mask"] = take(np.asarray(variables["attn_mask"]))

    def part(out: Any) -> Any:
        if not isinstance(out, tuple | list):
            return take(out)
        lse = len(out) - 1 if variables["return_lse"] else -1
        return tuple(take(x, -1 if i == lse else -2) for i, x in enumerate(out))

    return fewer, part
