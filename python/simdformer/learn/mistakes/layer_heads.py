"""What goes wrong with the heads of attention layers: their axes, their norms, their RoPE."""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.attention_layers import normalised, turned
from simdformer.learn.mistakes.rope import rope
from simdformer.learn.mistakes.rope_frequencies import rope_frequencies
from simdformer.learn.program import State


def for_all(weight: Any, heads: int) -> Any:
    """The weight of one head as that of all heads side by side."""
    return None if weight is None else np.tile(np.asarray(weight), heads)


def of_hidden_size(s: State, x: Any) -> Any:
    heads, kv_heads, head_dim = s.q.shape[-3], s.k.shape[-3], s.q.shape[-1]
    if s.inv_freq is not None or heads == kv_heads:
        raise ValueError("there are none, or it is a mistake of rope itself")
    theta = 10000.0 if s.theta is None else s.theta
    table = s.run(rope_frequencies, head_dim=heads * head_dim, theta=theta)
    own = table.out.inv_freq[: head_dim // 2]
    return s.run(rope, x=x, layout=s.rope_layout, positions=s.positions, inv_freq=own).out


mistakes(
    """
    multi_head_attention.three_inputs (01 §6), grouped_query_attention.one_input (03 §3) > Write
        nn.MultiheadAttention(..., batch_first=True), or hand over (L, B, E).

    batch_first_forgotten:
        attention runs over the batch, not the positions: batch_first is missing
        Without batch_first=True, PyTorch's nn.MultiheadAttention takes (L, B, E) for (B, L, E).
        | ...; unless(np.ndim(x_q) < 3)
        | x_q, x_k, x_v = (np.swapaxes(array(y), 0, 1) for y in (x_q, x_k, x_v))
        output | ...; out = out.swapaxes(0, 1)

    many_heads.listen (01 §6)

    one_head: there is only one head: the heads are not split
        Attention runs over all elements of a token at once, scaled by the width of the layer.
        > Split the last axis into (H, D) and let each head attend on its own.
        | q, k, v = (run(merge_heads, x=x).out[..., None, :, :] for x in (q, k, v))
        | z = run(attention, query=q, key=k, value=v, **as_mask(mask)).out
    heads_averaged (rare): all heads are averaged instead of lying side by side
        The result of each head is one part of the merged vector, not one vote.
        > Merge the heads by laying them one after the other along the last axis.
        | ...; z = z * 0 + z.mean(-3, keepdims=True, dtype=z.dtype)

    qk_norm (04 §4) > Apply RMSNorm to the split queries with q_norm's weight, to the split keys
        with k_norm's.

    q_norm_forgotten: q_norm is forgotten
        Qwen 3 and MiniMind normalise each head of queries before RoPE; other models do not.
        normalise_q | pass
    k_norm_forgotten: k_norm is forgotten
        Qwen 3 and MiniMind normalise each head of keys before RoPE; other models do not.
        normalise_k | pass
    norms_swapped: q_norm and k_norm are swapped
        Two vectors of the same shape, handed over in the wrong order.
        normalise_q | q = normalised(s, q, k_norm)
        normalise_k | k = normalised(s, k, q_norm)
    q_norm_for_keys: the keys are normalised with q_norm
        A copied line in which the name of the weight was not changed.
        normalise_k | k = normalised(s, k, q_norm)
    values_normalised: the values are normalised too
        Only queries and keys have a norm: their product is what it keeps in bounds.
        > Leave the values as they are projected.
        heads | v = normalised(s, v, k_norm); ...

    grouped_query_attention (04 §4) > Apply RMSNorm to the split queries with q_norm's weight, to
        the split keys with k_norm's.

    norms_forgotten: q_norm and k_norm are forgotten
        Qwen 3 and MiniMind normalise each head of queries and keys before RoPE; other models do
        not.
        normalise | pass
    norms_before_split: queries and keys are normalised before the split: all heads together
        The mean of the squares must be that of one head; before the split it is that of all.
        > Split the heads first, then normalise over the last axis, which is the head's.
        split | q = normalised(s, q, for_all(q_norm, num_heads))
        split | k = normalised(s, k, for_all(k_norm, num_kv_heads))
        split | ...
        normalise | pass
    norms_after_rope: queries and keys are turned first and normalised after
        RoPE keeps the mean square, but the norm's weights then meet the turned elements.
        > Normalise each head first, then apply RoPE.
        normalise | q, k = turned(s, q), turned(s, k)
        turn | q, k = normalised(s, q, q_norm), normalised(s, k, k_norm)

    qk_rope (02 §5) > Apply RoPE to queries and keys, and to these only.

    queries_not_turned: RoPE is missing on the queries
        Only the keys are turned; it is the difference of the two angles that counts.
        turn_q | pass
    keys_not_turned: RoPE is missing on the keys
        Only the queries are turned; it is the difference of the two angles that counts.
        turn_k | pass
    values_turned: RoPE is applied to the values too
        Positions matter for what attends to what; the values are not rotated.
        heads | v = turned(s, v); ...
    frequencies_of_hidden_size: RoPE's exponents are divided by hidden_size instead of head_dim
        D in theta ** (-2i/D) is the size of one head; with hidden_size only the fastest of the
        frequencies are used.
        > Make the frequencies for head_dim.
        turn_q | q = of_hidden_size(s, q)
        turn_k | k = of_hidden_size(s, k)
    """,
    calls=(for_all, normalised, of_hidden_size, turned),
)
