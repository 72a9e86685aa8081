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
from simdformer.reference.forward import pages_in_order, pair, places


def per_sequence(s: State, numbers: Any) -> Any:
    """One number, or one for each entry of the first axis of (...,H,L,S)."""
    return np.reshape(numbers, np.shape(numbers) + (1,) * (s.q.ndim - np.ndim(numbers)))


def with_pages(s: State) -> tuple[Any, Any]:
    """Keys and values one behind the other, where they lie in pages."""
    if s.block_table is None:
        return s.key, s.value
    return pages_in_order(s.key, s.block_table), pages_in_order(s.value, s.block_table)


def packed_places(s: State) -> tuple[Any, Any, Any]:
    """In packed sequences: where each query stands among the keys, counted from its own place in
    the row; where its text begins; and which keys are those of its text."""
    at = places(
        (*(1,) * (s.q.ndim - 2), s.L, s.S),
        counts=False,
        causal_offset=s.causal_offset,
        segment_ids=s.segment_ids,
        cu_seqlens=s.cu_seqlens,
    )
    position, first, own = (np.take(x, s.i[:, 0], -2) for x in at)
    return position - s.i, np.maximum(first, s.start), own


def reach(s: State) -> tuple[float, float]:
    """How far the window of a query goes to the left and, where causality does not end it, to the
    right."""
    sides = s.window if isinstance(s.window, tuple | list) else (s.window - 1, s.window - 1)
    left, right = (np.inf if side is None else side for side in sides)
    return left, np.inf if s.is_causal else right


def default_scale(s: State) -> float:
    return 1 / math.sqrt(s.head_dim)


def scale_of(s: State) -> float:
    return default_scale(s) if s.scale is None else float(s.scale)


def is_boolean(mask: Any) -> bool:
    return bool(np.asarray(mask).dtype == bool)


def product_of_seen(s: State, weights: Any, v: Any) -> Any:
    """weights @ v, where a hidden key has no part, not even as 0 * NaN."""
    visible = np.broadcast_to(s.visible, s.scores.shape)
    z = np.zeros((*weights.shape[:-1], v.shape[-1]), s.run.dtype)
    for j in range(s.S):
        part = weights[..., j, None] * v[..., None, j, :]
        z = z + np.where(visible[..., j, None] & s.sees, part, s.run.dtype(0))
    return z


def softmax(scores: Any, axis: Any, sink: Any) -> tuple[Any, Any]:
    """Its highest score is subtracted, the sink is among its scores; and the logarithm of the
    sum."""
    highest = np.max(scores, axis=axis, keepdims=True, initial=-np.inf)
    highest = np.maximum(highest, sink)
    highest = np.where(highest == -np.inf, 0, highest)
    exponentials = np.exp(scores - highest)
    total = exponentials.sum(axis=axis, keepdims=True) + np.exp(sink - highest)
    return exponentials / total, (highest + np.log(total))[..., 0]


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
    for name in ("key", "value") if variables["block_table"] is None else ("block_table",):
        x = np.asarray(variables[name])
        fewer[name] = x[:sequences] if query.ndim > 3 and len(x) > 1 else x
    for name in ("causal_offset", "key_starts", "key_lengths"):
        if np.ndim(variables[name]) == 1 and query.ndim > 3 and variables["cu_seqlens"] is None:
            fewer[name] = np.asarray(variables[name])[:sequences]
    if variables["segment_ids"] is not None:
        fewer["segment_ids"] = tuple(
            ids[:sequences] if np.ndim(ids) > 1 else ids for ids in pair(variables["segment_ids"])
        )
    if variables["attn_mask"] is not None and np.ndim(variables["attn_mask"]) > 1:
        fewer["attn_mask"] = take(np.asarray(variables["attn_mask"]))

    def part(out: Any) -> Any:
        if not isinstance(out, tuple | list):
            return take(out)
        lse = len(out) - 1 if variables["return_lse"] else -1
        return tuple(take(x, -1 if i == lse else -2) for i, x in enumerate(out))

    return fewer, part


attention = Program(
    "attention",
    """
    inputs:
        key, value = with_pages(s)
        q, k, v = array(query), array(key), array(value)
        no_heads, axis = q.ndim == 2, -1
        if no_heads:
            q, k, v = q[None], k[None], v[None]
        num_heads, num_kv_heads, head_dim = q.shape[-3], k.shape[-3], q.shape[-1]
        group = num_heads // max(num_kv_heads, 1)
        L, S = q.shape[-2], k.shape[-2]
    positions:
        # i (L,1) and j (S,): query i stands at key i + offset; a sample has some queries only
        rows = vars(s).get("rows")
        i, j = (np.arange(L) if rows is None else rows)[:, None], np.arange(S)
        L = L if rows is None else length
        start = 0 if key_starts is None else per_sequence(s, key_starts)
        offset = 0 if causal_offset is None else per_sequence(s, causal_offset)
    packed if segment_ids is not None or cu_seqlens is not None:
        # Positions are counted from where a text begins.
        offset, start, own = packed_places(s)
    share: k_head = v_head = np.arange(num_heads) // group
    repeat: k, v = k[..., k_head, :, :], v[..., v_head, :, :]
    dot: scores = q @ k.swapaxes(-1, -2)
    scale: scores = scores * real(scale_of(s))
    cap if softcap is not None: scores = softcap * np.tanh(scores / softcap)
    nothing_hidden: visible = np.full((len(i), S), True)
    causal if is_causal: visible = j <= i + offset
    window if window is not None:
        left, right = reach(s)
        visible = visible & (j >= i + offset - left) & (j <= i + offset + right)
    chunk if chunk is not None:
        # Chunks are counted from where a text begins.
        visible = visible & ((j - start) // chunk == (i + offset - start) // chunk)
    starts if key_starts is not None: visible = visible & (j >= per_sequence(s, key_starts))
    segments if segment_ids is not None or cu_seqlens is not None: visible = visible & own
    lengths if key_lengths is not None: visible = visible & (j < per_sequence(s, key_lengths))
    mask if attn_mask is not None:
        if is_boolean(attn_mask):
            visible = visible & np.asarray(attn_mask)
        else:
            scores = scores + array(attn_mask)
    hide: scores = np.where(visible, scores, real(-np.inf))
    no_sink: sink = array(-np.inf).reshape(1, 1, 1)
    sink if sinks is not None: sink = array(sinks).reshape(-1, 1, 1)
    softmax: weights, lse = softmax(scores, axis, sink)
    empty:
        # A query that sees nothing has nothing to say.
        sees = (scores != -np.inf).any(axis=-1, keepdims=True)
        weights = np.where(sees, weights, real(0))
    weigh if np.isfinite(v).all(): z = weights @ v
    weigh_seen if not np.isfinite(v).all(): z = product_of_seen(s, weights, v)
    results:
        found = [z, *[weights] * return_weights, *[scores] * return_scores, *[lse] * return_lse]
        found = [result[0] for result in found] if no_heads else found
        out = found[0] if len(found) == 1 else tuple(found)
    """,
    calls=(
        is_boolean,
        packed_places,
        per_sequence,
        product_of_seen,
        reach,
        scale_of,
        softmax,
        with_pages,
    ),
    of=scaled_dot_product_attention,
    axes=("head", "position", "channel"),
    thin=some_queries,
)
