"""The gradients of attention in steps, and what goes wrong in them.

grad, out (...,H,L,Dv), query (...,H,L,D), key (...,K,S,D), value (...,K,S,Dv), lse (...,H,L); the
meaning is that of `reference.backward.scaled_dot_product_attention`.
"""

import math
from typing import Any

import numpy as np

from simdformer import backward
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.attention import is_boolean, scale_of
from simdformer.learn.mistakes.sampling import Thinned, Variables
from simdformer.learn.program import Program, State
from simdformer.reference.forward import visible_keys


def with_heads(s: State, x: Any) -> Any:
    """An array with an axis of heads, where query has none."""
    x = s.run.array(x)
    return x[None] if np.ndim(s.query) == 2 else x


def of_sample(s: State, pairs: Any) -> Any:
    """(...,L,S), the queries and keys that are looked at: a sample has some of either."""
    return pairs[..., s.some_queries, :][..., s.some_keys]


def visible(s: State) -> Any:
    """Which keys each query sees, of those that a mask of numbers does not hide."""
    names = ("is_causal", "causal_offset", "window", "chunk", "key_starts", "key_lengths")
    given = {name: getattr(s, name) for name in (*names, "segment_ids", "cu_seqlens")}
    seen = of_sample(s, visible_keys((*s.scores.shape[:-2], *s.lengths), **given))
    mask = s.attn_mask
    if mask is None:
        return seen
    return seen & (np.asarray(mask) if is_boolean(mask) else s.run.array(mask) != -np.inf)


def summed_to(x: Any, like: Any) -> Any:
    """The sum over all axes along which `like` was broadcast."""
    shape = np.shape(like)
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    axes = tuple(i for i, length in enumerate(shape) if x.shape[i] != length)
    return x.sum(axis=axes, keepdims=True)


def transposed(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def of_group(s: State, x: Any) -> Any:
    """(...,H,S,D) -> (...,K,G,S,D)"""
    return x.reshape(*x.shape[:-3], s.num_kv_heads, s.group, *x.shape[-2:])


def of_seen(seen: Any, x: Any) -> Any:
    """x where it is seen, 0 elsewhere."""
    return np.where(seen, x, x.dtype.type(0))


LEAST = 8  # queries, or keys


def softmax_of(x: Any, seen: Any = True) -> Any:
    x = np.where(seen, x, -np.inf).astype(x.dtype)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def some_scores(variables: Variables, limit: int) -> Thinned | None:
    """Some queries for the gradient of query, and some keys for those of key and value, of the
    first heads of the first sequence, where none of them is a sum over all heads."""
    shape, only = np.shape(variables["query"]), variables["only"]
    S = np.shape(variables["key"])[-2]
    if math.prod(shape[:-1]) * S <= limit or only > 2:
        return None
    fewer, part = some_heads(variables)
    shape = np.shape(fewer["query"])
    length, work = (S if only else shape[-2]), math.prod(shape[:-1]) * S
    kept = max(limit * length // work, LEAST)
    kept_at = np.arange(0, length, max(length // kept, 1) | 1)
    names = ("key", "value") if only else ("query", "grad", "out")

    def take(x: Any, axis: int = -2) -> Any:
        x = np.asarray(x)
        return np.take(x, kept_at, axis) if x.ndim >= -axis and x.shape[axis] == length else x

    fewer |= {name: take(fewer[name]) for name in names}
    fewer |= {"some_keys" if only else "some_queries": kept_at, "lengths": (shape[-2], S)}
    if only == 0:
        of_queries = [name for name in ("lse", "grad_lse") if fewer[name] is not None]
        fewer |= {name: take(fewer[name], -1) for name in of_queries}
    if fewer["attn_mask"] is not None:
        fewer["attn_mask"] = take(fewer["attn_mask"], -1 if only else -2)
    return fewer, lambda out: take(part(out))


def some_heads(variables: Variables) -> Thinned:
    """The first heads of the first sequence, if each has all that its gradients are made of."""
    query, key = np.asarray(variables["query"]), np.asarray(variables["key"])
    of_each = ("key_starts", "key_lengths", "causal_offset", "segment_ids", "cu_seqlens")
    several = any(np.ndim(variables[name]) for name in of_each)
    shapes = [np.shape(variables[name]) for name in ("key", "value", "grad")]
    alike = all(shape[:-3] == query.shape[:-3] for shape in shapes)
    if query.ndim < 3 or several or not alike:
        return dict(variables), lambda out: out
    heads, kv_heads = query.shape[-3], key.shape[-3]
    group, kept = heads // kv_heads, min(kv_heads, 2)

    def take(x: Any, count: int, axis: int = -3) -> Any:
        x = np.asarray(x)
        x = x[(slice(1),) * (x.ndim + axis)]
        return x if x.shape[axis] == 1 < heads else np.take(x, range(count), axis)

    fewer = dict(variables)
    for name in ("query", "grad", "out"):
        fewer[name] = take(variables[name], kept * group)
    for name in ("key", "value"):
        fewer[name] = take(variables[name], kept)
    for name in ("lse", "grad_lse"):
        if variables[name] is not None:
            fewer[name] = take(variables[name], kept * group, -2)
    if np.ndim(variables["attn_mask"]) > 2:
        fewer["attn_mask"] = take(variables["attn_mask"], kept * group)
    if variables["sinks"] is not None:
        fewer["sinks"] = np.asarray(variables["sinks"])[: kept * group]

    def part(out: Any) -> Any:
        lost = np.ndim(out) < 3 or out.shape[-3] not in (heads, kv_heads)
        return out if lost else take(out, kept if variables["only"] else kept * group)

    return fewer, part


attention_backward = Program(
    "attention_backward",
    """
    inputs:
        q, k, v = with_heads(s, query), with_heads(s, key), with_heads(s, value)
        dy, y, head_dim = with_heads(s, grad), with_heads(s, out), q.shape[-1]
        log_sums = with_heads(s, lse)[..., None]
        lengths = vars(s).get("lengths", (q.shape[-2], k.shape[-2]))
        some_queries = vars(s).get("some_queries", slice(None))
        some_keys = vars(s).get("some_keys", slice(None))
        of_lse = real(0) if grad_lse is None else with_heads(s, grad_lse)[..., None]
    group:
        num_kv_heads = k.shape[-3]
        group = q.shape[-3] // num_kv_heads
    repeat: keys, values = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)
    scale: factor = real(scale_of(s))
    score: scores = q @ transposed(keys) * factor
    cap if softcap is not None: scores = real(softcap) * np.tanh(scores / real(softcap))
    see: seen = visible(s)
    mask: masked = scores
    add_mask if attn_mask is not None and not is_boolean(attn_mask):
        masked = scores + array(attn_mask)
    weigh: p = of_seen(seen, np.exp(masked - log_sums))
    of_value: dv = transposed(p) @ dy
    of_weights: dp = dy @ transposed(values)
    delta: delta = (dy * y).sum(axis=-1, keepdims=True)
    delta_of_lse if grad_lse is not None: delta = delta - of_lse
    subtract: ds = of_seen(seen, p * (dp - delta))
    of_mask: dm = ds
    uncap if softcap is not None: ds = ds * (1 - (scores / real(softcap)) ** 2)
    of_query: dq = ds @ keys * factor
    of_key: dk = transposed(ds) @ q * factor
    fold: dk, dv = of_group(s, dk).sum(axis=-3), of_group(s, dv).sum(axis=-3)
    fold_mask: dm = None if attn_mask is None else summed_to(dm, attn_mask)
    of_sinks:
        shares = None if sinks is None else np.exp(array(sinks)[:, None, None] - log_sums)
        dsink = None if sinks is None else -(shares * delta)
    fold_sinks:
        dsink = None if sinks is None else np.moveaxis(dsink[..., 0], -2, 0)
        dsink = None if sinks is None else dsink.reshape(len(dsink), -1).sum(axis=-1)
    give:
        dq, dk = dq.reshape(np.shape(query)), dk.reshape(np.shape(key))
        out = dq, dk, dv.reshape(np.shape(value)), dm, dsink
    """,
    calls=(
        with_heads, visible, of_sample, summed_to, transposed, of_group, of_seen, scale_of,
        is_boolean, softmax_of,
    ),
    of=backward.scaled_dot_product_attention,
    axes=("head", "position", "channel"),
    thin=some_scores,
)  # fmt: skip

OWN = """
        weigh | p = softmax_of(masked, seen)
        delta | delta = (p * dp).sum(axis=-1, keepdims=True)"""
mistakes(
    f"""
    attention_backward.scale (08 §9) > Divide the scores by sqrt(D) in the forward, too.

    no_scale: the scores are not scaled, in forward and backward
        These are the right gradients of another attention.
        | factor = real(1){OWN}
    scale_ignored: the scores are divided by sqrt(D): scale= is not looked at
        These are the right gradients of another attention.
        | unless(scale is None); factor = real(1 / math.sqrt(q.shape[-1])){OWN}
    scale_by_width (rare): the scores are divided by D, in forward and backward
        These are the right gradients of another attention: the root is missing.
        | factor = real(1 / q.shape[-1]){OWN}

    attention_backward.see (08 §9) > The diagonal is the last visible key.

    causal_loose: the next token is seen as well, in forward and backward
        tril with k=1, or j <= i + 1: these are the right gradients of another attention.
        | unless(not is_causal); seen = of_sample(s, np.tri(*lengths, k=1, dtype=bool)){OWN}

    attention_backward.weigh (08 §9) > Softmax runs along the keys, the last axis.

    softmax_over_queries (rare): softmax runs over the queries, in forward and backward
        axis=-2 where the last axis is meant: the right gradients of another attention.
        | p = transposed(softmax_of(transposed(masked), transposed(np.broadcast_to(
        |     seen, masked.shape))))
        delta | delta = (p * dp).sum(axis=-2, keepdims=True)

    attention_backward.repeat (08 §9) > Query head h reads key head h // (H // K).

    keys_tiled: keys and values are tiled, not repeated, in forward and backward
        Query head h then reads key head h % K; the heads of a group are neighbours.
        | unless(group == 1 or num_kv_heads == 1)
        | keys, values = (np.concatenate([x] * group, axis=-3) for x in (k, v)){OWN}
        fold | dk = dk.reshape(*dk.shape[:-3], group, num_kv_heads, *dk.shape[-2:]).sum(axis=-4)
        fold | dv = dv.reshape(*dv.shape[:-3], group, num_kv_heads, *dv.shape[-2:]).sum(axis=-4)
    """
)
mistakes(
    """
    attention_backward.see (08 §9) > Use the forward's mask where the weights are computed again.

    mask_missing: the mask is missing where the weights are computed again
        exp(scores - lse) gives hidden keys a weight: the mask belongs to the backward as well.
        | seen = np.ones_like(visible(s))
    causal_missing (rare, unless mask_missing): causality is missing in the backward
        Only the mask that was handed over hides keys.
        | unless(not is_causal or attn_mask is None); is_causal = False; ...
    causal_strict: the diagonal is hidden in the backward
        j < i in place of j <= i.
        | unless(not is_causal); ...; seen = seen & ~of_sample(s, np.eye(*lengths, dtype=bool))
    causal_loose_in_backward: the next token is seen in the backward
        tril with k=1 or triu with k=2: the mask of the forward ends at the diagonal.
        | unless(not is_causal); ...; seen = of_sample(s, np.tri(*lengths, k=1, dtype=bool))
    causal_inverted: the mask is inverted in the backward: it hides what was seen
        masked_fill(tril, -inf) hides the past; the upper triangle is what it should hide.
        | unless(not is_causal); ...; seen = ~of_sample(s, np.tri(*lengths, dtype=bool))
    mask_missing_in_softmax: the mask is missing where softmax is computed again
        as above
        | unless(visible(s).all()); seen = np.ones_like(visible(s))
        weigh | p = softmax_of(masked)
        delta | delta = (p * dp).sum(axis=-1, keepdims=True)
    window_missing (rare, unless mask_missing): the window is missing in the backward
        Keys that are too far back had no weight, and have no gradient.
        | unless(window is None); window = None; ...
    window_too_wide (rare): the window is one key too wide in the backward
        i - j <= window in place of i - j < window.
        | unless(not isinstance(window, int)); window = window + 1; ...
    window_too_narrow (rare): the window is one key too narrow in the backward
        i - j < window - 1: the token itself is one of the window's keys.
        | unless(not isinstance(window, int)); window = window - 1; ...
    chunk_missing (rare, unless mask_missing): the chunks are missing in the backward
        Keys of the chunks before had no weight, and have no gradient.
        | unless(chunk is None); chunk = None; ...
    chunk_from_the_first_key (rare): the chunks are counted from the padding in the backward
        A text that is padded on the left begins behind it, and so does its first chunk.
        | unless(chunk is None or not np.any(key_starts))
        | starts = key_starts; key_starts = None; ...
        | key_starts = starts; chunk = None; seen = seen & visible(s)
    offset_missing: causal_offset is not looked at in the backward
        With keys of a cache before them, queries see more than their own number tells.
        | unless(not is_causal or causal_offset is None or not np.any(causal_offset))
        | causal_offset = 0; ...
    lengths_missing (rare, unless mask_missing): key_lengths are not looked at in the backward
        Padding had no weight, and has no gradient.
        | unless(key_lengths is None); key_lengths = None; ...
    starts_missing (rare, unless mask_missing): key_starts are not looked at in the backward
        Padding had no weight, and has no gradient.
        | unless(not np.any(key_starts)); key_starts = None; ...
    segments_missing (rare, unless mask_missing): packed texts see each other in the backward
        Each text sees itself alone, on the way back too.
        | unless(segment_ids is None and cu_seqlens is None)
        | segment_ids = cu_seqlens = None; ...

    attention_backward.add_mask (08 §9) > Add the mask to the scores before exp(scores - lse).

    bias_missing: the numbers of the mask are not added where the weights are computed again
        The forward added them: ALiBi, T5.
        | masked = scores

    attention_backward.weigh (08 §9) > The weights are exp(scores - lse), 0 where nothing is seen.

    own_softmax (habit): the weights are a softmax of the scores, lse is not used
        Both are the same.
        | p = softmax_of(masked, seen)
    own_softmax_and_delta (habit): softmax and its row sum are computed again
        Both are the same.
        | p = softmax_of(masked, seen)
        delta | delta = (p * dp).sum(axis=-1, keepdims=True)
    sink_missing: the sink is left out where the weights are computed again
        It takes a part of each row's sum: exp(sink) belongs to the denominator.
        | unless(sinks is None); p = softmax_of(masked, seen)
        delta | delta = (p * dp).sum(axis=-1, keepdims=True)
    sink_missing_in_weights (rare): the sink is missing in the weights, delta is made of out
        as above
        | unless(sinks is None); p = softmax_of(masked, seen)
    only_maximum_subtracted (rare): exp(scores - max) is not divided by its sum
        The largest score is subtracted instead of lse: these weights do not sum to one.
        | highest = np.where(seen, masked, -np.inf).max(axis=-1, keepdims=True)
        | p = of_seen(seen, np.exp(masked - highest)).astype(real)
    lse_missing (rare): lse is missing: the weights are not divided by their sum
        exp(scores) alone does not sum to one.
        | p = of_seen(seen, np.exp(masked))
    hidden_not_zero (rare): a query that sees nothing gives NaN
        exp(-inf + inf) is NaN, and NaN spreads into all keys.
        | p = np.exp(np.where(seen, masked, real(-np.inf)) - log_sums)
        subtract | ds = p * (dp - delta)

    attention_backward.of_value (08 §9) > dvalue = weightsᵀ @ dout.

    value_not_transposed: the weights are not transposed in value's gradient
        weights @ dout has the right shape where queries and keys are as many.
        | dv = p @ dy
    value_itself: value's gradient is made of value instead of dout
        y = weights @ value: the other factor stays, and dout takes the place of y.
        | unless(dy.shape[-2] != values.shape[-2]); dv = transposed(p) @ values
    scale_in_value: the scale is in value's gradient
        The scale multiplies scores; weights and value have none.
        | ...; dv = dv * factor
    value_of_dp (rare): value's gradient is made of dP instead of the weights
        dP belongs to queries and keys.
        | dv = transposed(dy @ transposed(values)) @ dy

    attention_backward.delta (08 §9) > delta is the sum of dout * out along the row.

    own_delta (habit): delta is the sum of the weights times dP, out is not used
        Both are the same.
        | delta = (p * dp).sum(axis=-1, keepdims=True)
    delta_missing: delta is missing: softmax's row sum is not subtracted
        softmax's gradient is P * (dP - sum(P * dP)); the sum equals dout · out.
        | delta = np.zeros_like((dy * y).sum(axis=-1, keepdims=True))
    delta_of_out: delta is the sum of out, without dout
        sum(dout * out).
        | delta = y.sum(axis=-1, keepdims=True)
    delta_mean: delta is the mean of dout * out instead of the sum
        It is too small by the number of channels.
        | delta = (dy * y).mean(axis=-1, keepdims=True)
    delta_of_dp (rare): delta is the sum of dP, without the weights
        The row sum of the wrong array: sum(P * dP).
        | delta = dp.sum(axis=-1, keepdims=True)
    delta_mean_of_keys: the mean of P * dP is subtracted instead of the sum
        softmax's gradient has the sum along the row.
        | delta = (p * dp).mean(axis=-1, keepdims=True)
    delta_over_queries: the sum of P * dP runs over the queries, not along the keys
        axis=-2 where the last axis is meant.
        | delta = (p * dp).sum(axis=-2, keepdims=True)
    delta_added (rare): delta is added instead of subtracted
        P * (dP - delta).
        subtract | ds = of_seen(seen, p * (dp + delta))

    attention_backward.subtract (08 §9) > dscores = P * (dP - delta).

    weights_missing: the weights are missing in front: dP - delta
        softmax's gradient has P in front of the bracket.
        | ds = of_seen(seen, dp - delta)
    diagonal_only: this is P * (1 - P) * dP, the derivative of a sigmoid
        It is the diagonal of softmax's Jacobian only.
        | ds = of_seen(seen, p * (1 - p) * dp)
    delta_outside: P multiplies dP only: P * dP - delta
        The brackets: P * (dP - delta).
        | ds = of_seen(seen, p * dp - delta)
    no_softmax (rare): softmax's gradient is left out: dP is taken for that of the scores
        The weights are a softmax of the scores.
        | ds = of_seen(seen, dp)
    negated: the sign of the scores' gradient is flipped
        P * (delta - dP): the two terms are swapped.
        | ds = of_seen(seen, p * (delta - dp))

    attention_backward.delta_of_lse (08 §9) > The gradient of lse adds P * dlse: delta - dlse.

    lse_gradient_missing: the gradient of lse is left out
        lse is an output too: losses may use it.
        | pass
    lse_gradient_sign: the gradient of lse has the wrong sign
        delta - dlse, not delta + dlse.
        | delta = delta + of_lse

    attention_backward.uncap (08 §9) > Multiply by 1 - (scores / softcap)², of the capped scores.

    cap_not_differentiated: the softcap's derivative is missing
        tanh lies between the scores and the softmax.
        | pass
    cap_not_squared (rare): the square is missing in the softcap's derivative
        tanh' is 1 - tanh².
        | ds = ds * (1 - scores / real(softcap))
    cap_of_masked (rare): the softcap's derivative is taken of the masked scores
        The mask comes behind the cap: 1 - (scores / softcap)² before it.
        | ds = ds * (1 - (masked / real(softcap)) ** 2)

    attention_backward.cap (08 §9) > Cap the scores where the weights are computed again.

    no_cap: the softcap is missing where the weights are computed again
        The forward capped the scores: softcap * tanh(scores / softcap).
        | pass
        uncap | pass

    attention_backward.of_query (08 §9) > dquery = dscores @ key * scale.

    scale_missing_in_query: the scale is missing in query's gradient
        scores = query @ keyᵀ * scale: it multiplies on the way back, too.
        | dq = ds @ keys
    scale_twice_in_query: the scale is in query's gradient twice
        It is in dscores already, or the query was scaled in advance.
        | ...; dq = dq * factor

    query_itself: query's gradient is made of query instead of key
        scores = query @ keyᵀ: the other factor stays.
        | unless(q.shape != keys.shape); dq = ds @ q * factor

    attention_backward.of_key (08 §9) > dkey = dscoresᵀ @ query * scale.

    scale_missing_in_key: the scale is missing in key's gradient
        scores = query @ keyᵀ * scale: it multiplies on the way back, too.
        | dk = transposed(ds) @ q
    scale_twice_in_key: the scale is in key's gradient twice
        It is in dscores already, or the query was scaled in advance.
        | ...; dk = dk * factor
    key_itself: key's gradient is made of key instead of query
        scores = query @ keyᵀ: the other factor stays.
        | unless(q.shape != keys.shape); dk = transposed(ds) @ keys * factor
    scale_missing: the scale is missing in the gradients of query and key
        scores = query @ keyᵀ * scale: it multiplies on the way back, too.
        of_query | dq = ds @ keys
        | dk = transposed(ds) @ q
    scale_twice: the scale is in the gradients of query and key twice
        It is in dscores already.
        of_query | ...; dq = dq * factor
        | ...; dk = dk * factor
    key_not_transposed: the scores' gradient is not transposed in key's gradient
        dscores @ query has the right shape where queries and keys are as many.
        | dk = ds @ q * factor

    attention_backward.scale (08 §9) > Use the forward's scale.

    scale_missing_in_scores: the scale is missing where the weights are computed again
        exp(scores - lse) needs the scores of the forward, scaled.
        | factor = real(1)
        of_query | factor = real(scale_of(s)); ...
    scale_multiplied: the scores are multiplied by sqrt(D) instead of divided
        scores / sqrt(D): its inverse went into the product.
        | ...; factor = 1 / factor
    scale_of_query_alone (rare): the scale is that of the whole width, not of a head
        sqrt(E) in place of sqrt(E / H).
        | ...; factor = factor / real(math.sqrt(q.shape[-3]))

    attention_backward.fold (08 §9) > Sum over the query heads that read a key head: neighbours.

    groups_averaged: the heads of a group are averaged, not summed
        Each query head adds its own part.
        | dk, dv = of_group(s, dk).mean(axis=-3), of_group(s, dv).mean(axis=-3)
    largest_of_group (rare): the largest of the heads of a group is taken, not the sum
        max and sum of an axis are written alike.
        | dk, dv = of_group(s, dk).max(axis=-3), of_group(s, dv).max(axis=-3)
    last_of_group: only the last head of each group counts
        A loop that assigns with = where += is meant.
        | dk, dv = of_group(s, dk)[..., -1, :, :], of_group(s, dv)[..., -1, :, :]
    first_of_group: only the first head of each group counts
        An index 0, or a step, where the sum is meant.
        | dk, dv = of_group(s, dk)[..., 0, :, :], of_group(s, dv)[..., 0, :, :]
    groups_tiled: heads that are K apart are folded, as if keys had been tiled
        Heads of a group are neighbours: repeat_interleave, not tile.
        | dk = dk.reshape(*dk.shape[:-3], group, num_kv_heads, *dk.shape[-2:]).sum(axis=-4)
        | dv = dv.reshape(*dv.shape[:-3], group, num_kv_heads, *dv.shape[-2:]).sum(axis=-4)
    not_folded: key and value have a gradient for each query head
        The sum over the query heads that read a key head is missing.
        | unless(group == 1)
        give | out = dq.reshape(np.shape(query)), dk, dv, dm, dsink

    attention_backward.of_mask (08 §9) > The mask is added behind the scale: dmask = dscores.

    scale_in_mask: the scale is in the mask's gradient
        scores = query @ keyᵀ * scale + mask: the mask is not scaled.
        | unless(attn_mask is None); dm = ds * factor

    attention_backward.fold_mask (08 §9) > Sum over the axes along which the mask was broadcast.

    mask_not_summed: the mask's gradient is not summed over the heads that share it
        What was broadcast is summed on the way back.
        | unless(attn_mask is None)

    mask_of_last_sequence: the mask's gradient is that of the last sequence
        A loop that assigns with = where += is meant, or an index -1.
        | unless(attn_mask is None or dm.ndim < 4 or len(dm) < 2)
        | unless(np.ndim(attn_mask) == dm.ndim and len(attn_mask) > 1)
        | dm = summed_to(dm[-1:], attn_mask)
    mask_of_first_sequence (rare): the mask's gradient is that of the first sequence
        An index 0 on the batch axis.
        | unless(attn_mask is None or dm.ndim < 4 or len(dm) < 2)
        | unless(np.ndim(attn_mask) == dm.ndim and len(attn_mask) > 1)
        | dm = summed_to(dm[:1], attn_mask)

    attention_backward.of_sinks (08 §9) > dsink = -sum(exp(sink - lse) * delta).

    sinks_sign: the sign of the sinks' gradient is flipped
        A sink takes from all keys: -exp(sink - lse) * delta.
        | ...; dsink = -dsink
    sinks_without_delta: delta is missing in the sinks' gradient
        The sink's own share times delta.
        | ...; dsink = -shares * np.ones_like(delta)

    attention_backward.fold_sinks (08 §9) > Sum over all queries and sequences.

    sinks_averaged (rare): the sinks' gradient is a mean, not a sum
        The mean is in the loss already, and so in dout.
        | unless(sinks is None); dsink = np.moveaxis(dsink[..., 0], -2, 0)
        | dsink = dsink.reshape(len(dsink), -1).mean(axis=-1)

    sinks_of_last_sequence (rare): the sinks' gradient is that of the last sequence
        A loop that assigns with = where += is meant, or an index -1.
        | unless(sinks is None or dsink.ndim < 4 or len(dsink) < 2); dsink = dsink[-1:]; ...

    attention_backward.give (08 §9) > The order is query, key, value.

    query_and_key_swapped: the gradients of query and key are swapped
        The results stand in another order.
        | unless(dq.shape != dk.shape); ...; out = (out[1], out[0], *out[2:])
    key_and_value_swapped: the gradients of key and value are swapped
        The results stand in another order.
        | unless(dk.shape != dv.shape); ...; out = (out[0], out[2], out[1], *out[3:])
    """
)
