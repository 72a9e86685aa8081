"""What goes wrong with the heads of attention layers: their axes, their norms, their RoPE."""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistakes, first, instead, skip, then
from simdformer.learn.mistakes.attention import attention
from simdformer.learn.mistakes.attention_layers import (
    as_mask,
    normalise,
    normalised,
    split,
    turn,
    turned,
)
from simdformer.learn.mistakes.rope import rope
from simdformer.learn.mistakes.rope_frequencies import ROPE, rope_frequencies
from simdformer.learn.mistakes.split_heads import HEADS, merge_heads
from simdformer.learn.program import State

# ---- the axis of the heads -----------------------------------------------------------------------


def attention_over_heads(s: State) -> None:
    group = s.q.shape[-3] // s.k.shape[-3]
    q, k, v = (
        x.swapaxes(-3, -2) for x in (s.q, np.repeat(s.k, group, -3), np.repeat(s.v, group, -3))
    )
    s.z = s.run(attention, query=q, key=k, value=v, **as_mask(s.mask)).out.swapaxes(-3, -2)


def one_head(s: State) -> None:
    q, k, v = (s.run(merge_heads, x=x).out[..., None, :, :] for x in (s.q, s.k, s.v))
    s.z = s.run(attention, query=q, key=k, value=v, **as_mask(s.mask)).out


Mistakes("many_heads.listen", see=HEADS)(
    """
    attention_over_heads: each token attends to its own heads instead of each head to the tokens
        The heads are split to (..., L, H, D) and never swapped, so that attention takes the axis of
        the heads for that of the tokens.
        > Swap L and H before attention, (..., H, L, D), and back after it.
    one_head: there is only one head: the heads are not split
        Attention runs over all elements of a token at once, scaled by the width of the layer.
        > Split the last axis into (H, D) and let each head attend on its own.
    heads_averaged (rare): all heads are averaged instead of lying side by side
        The result of each head is one part of the merged vector, not one vote.
        > Merge the heads by laying them one after the other along the last axis.
    """,
    attention_over_heads=attention_over_heads,
    one_head=one_head,
    heads_averaged=then(z=lambda s: s.z * 0 + s.z.mean(-3, keepdims=True, dtype=s.z.dtype)),
)

# ---- norms of query and key ----------------------------------------------------------------------

with_k_norm = instead(q=lambda s: normalised(s, s.q, s.k_norm))
with_q_norm = instead(k=lambda s: normalised(s, s.k, s.q_norm))


def normalise_then_split(s: State) -> None:
    for name, num_heads in (("q", s.num_heads), ("k", s.num_kv_heads)):
        weight = getattr(s, f"{name}_norm")
        weight = None if weight is None else np.tile(s.run.array(weight), num_heads)
        setattr(s, name, normalised(s, getattr(s, name), weight))
    split(s)


in_norms = Mistakes(
    "qk_norm",
    see="04 §4",
    fix="Apply RMSNorm to the split queries with q_norm's weight, to the split keys with k_norm's.",
)
in_norms(
    """
    q_norm_forgotten: q_norm is forgotten
        Qwen 3 and MiniMind normalise each head of queries before RoPE; other models do not.
    k_norm_forgotten: k_norm is forgotten
        Qwen 3 and MiniMind normalise each head of keys before RoPE; other models do not.
    norms_swapped: q_norm and k_norm are swapped
        Two vectors of the same shape, handed over in the wrong order.
    q_norm_for_keys: the keys are normalised with q_norm
        A copied line in which the name of the weight was not changed.
    values_normalised: the values are normalised too
        Only queries and keys have a norm: their product is what it keeps in bounds.
        > Leave the values as they are projected.
    """,
    q_norm_forgotten={"normalise_q": skip},
    k_norm_forgotten={"normalise_k": skip},
    norms_swapped={"normalise_q": with_k_norm, "normalise_k": with_q_norm},
    q_norm_for_keys={"normalise_k": with_q_norm},
    values_normalised={"heads": first(v=lambda s: normalised(s, s.v, s.k_norm))},
)

Mistakes("grouped_query_attention", see="04 §4", fix=in_norms.fix)(
    """
    norms_forgotten: q_norm and k_norm are forgotten
        Qwen 3 and MiniMind normalise each head of queries and keys before RoPE; other models do
        not.
    norms_before_split: queries and keys are normalised before the split: all heads together
        The mean of the squares must be that of one head; before the split it is that of all.
        > Split the heads first, then normalise over the last axis, which is the head's.
    norms_after_rope: queries and keys are turned first and normalised after
        RoPE keeps the mean square, but the norm's weights then meet the turned elements.
        > Normalise each head first, then apply RoPE.
    """,
    norms_forgotten={"normalise": skip},
    norms_before_split={"split": normalise_then_split, "normalise": skip},
    norms_after_rope={"normalise": turn, "turn": normalise},
)

# ---- RoPE in the layer ---------------------------------------------------------------------------

Mistakes("qk_rope", see=ROPE, fix="Apply RoPE to queries and keys, and to these only.")(
    """
    queries_not_turned: RoPE is missing on the queries
        Only the keys are turned; it is the difference of the two angles that counts.
    keys_not_turned: RoPE is missing on the keys
        Only the queries are turned; it is the difference of the two angles that counts.
    values_turned: RoPE is applied to the values too
        Positions matter for who listens to whom; what is said (the values) is not turned.
    frequencies_of_hidden_size: RoPE's exponents are divided by hidden_size instead of head_dim
        D in theta ** (-2i/D) is the size of one head; with hidden_size only the fastest of the
        frequencies are used.
        > Make the frequencies for head_dim.
    """,
    queries_not_turned={"turn_q": skip},
    keys_not_turned={"turn_k": skip},
    values_turned={"heads": first(v=lambda s: turned(s, s.v))},
    frequencies_of_hidden_size={
        "turn_q": instead(q=lambda s: of_hidden_size(s, s.q)),
        "turn_k": instead(k=lambda s: of_hidden_size(s, s.k)),
    },
)


def of_hidden_size(s: State, x: Any) -> Any:
    heads, kv_heads, head_dim = s.q.shape[-3], s.k.shape[-3], s.q.shape[-1]
    if s.inv_freq is not None or heads == kv_heads:
        raise ValueError("there are none, or it is a mistake of rope itself")
    theta = 10000.0 if s.theta is None else s.theta
    table = s.run(rope_frequencies, head_dim=heads * head_dim, theta=theta)
    own = table.inv_freq[: head_dim // 2]
    return s.run(rope, x=x, layout=s.rope_layout, positions=s.positions, inv_freq=own).out


Mistakes("grouped_query_attention", see=ROPE)(
    """
    rope_before_split: RoPE is applied before the heads are split
        Then the whole vector is taken for one head: other pairs, other frequencies.
        > Split the heads first, then turn each of them.
    """,
    rope_before_split={
        "split": first(q=lambda s: turned(s, s.q), k=lambda s: turned(s, s.k)),
        "turn": skip,
    },
)
