"""What goes wrong with the heads of attention layers: their axes, their norms, their RoPE."""

from typing import Any

import numpy as np

from simdformer.learn.mistakes.attention import attention
from simdformer.learn.mistakes.attention_layers import (
    as_mask,
    listen,
    normalise,
    normalised,
    split,
    turn,
    turned,
)
from simdformer.learn.mistakes.rope import rope
from simdformer.learn.mistakes.rope_frequencies import ROPE, rope_frequencies
from simdformer.learn.mistakes.split_heads import HEADS, merge_heads
from simdformer.learn.program import State, mistake

QK_NORM = "04 §4"


# ---- mistakes: the axis of the heads -------------------------------------------------------------


@mistake(
    "many_heads.listen",
    title="each token attends to its own heads instead of each head to the tokens",
    cause="The heads are split to (..., L, H, D) and never swapped, so that attention takes the "
    "axis of the heads for that of the tokens.",
    fix="Swap L and H before attention, (..., H, L, D), and back after it.",
    step=HEADS,
)
def attention_over_heads(s: State) -> None:
    group = s.q.shape[-3] // s.k.shape[-3]
    q, k, v = (
        x.swapaxes(-3, -2) for x in (s.q, np.repeat(s.k, group, -3), np.repeat(s.v, group, -3))
    )
    s.z = s.run(attention, query=q, key=k, value=v, **as_mask(s.mask)).out.swapaxes(-3, -2)


@mistake(
    "many_heads.listen",
    title="there is only one head: the heads are not split",
    cause="Attention runs over all elements of a token at once, scaled by the width of the layer.",
    fix="Split the last axis into (H, D) and let each head attend on its own.",
    step=HEADS,
)
def one_head(s: State) -> None:
    q, k, v = (s.run(merge_heads, x=x).out[..., None, :, :] for x in (s.q, s.k, s.v))
    s.z = s.run(attention, query=q, key=k, value=v, **as_mask(s.mask)).out


@mistake(
    "many_heads.listen",
    title="all heads are averaged instead of lying side by side",
    cause="The result of each head is one part of the merged vector, not one vote.",
    fix="Merge the heads by laying them one after the other along the last axis.",
    step=HEADS,
    rare=True,
)
def heads_averaged(s: State) -> None:
    listen(s)
    s.z = np.broadcast_to(s.z.mean(-3, keepdims=True, dtype=s.z.dtype), s.z.shape)


# ---- mistakes: norms of query and key ------------------------------------------------------------


@mistake(
    "qk_norm.normalise_q",
    title="q_norm is forgotten",
    cause="Qwen 3 and MiniMind normalise each query head before RoPE; other models do not.",
    fix="Apply RMSNorm with q_norm's weight to the split queries.",
    step=QK_NORM,
)
def q_norm_forgotten(s: State) -> None:
    pass


@mistake(
    "qk_norm.normalise_k",
    title="k_norm is forgotten",
    cause="Qwen 3 and MiniMind normalise each key head before RoPE; other models do not.",
    fix="Apply RMSNorm with k_norm's weight to the split keys.",
    step=QK_NORM,
)
def k_norm_forgotten(s: State) -> None:
    pass


@mistake(
    "grouped_query_attention.normalise",
    title="q_norm and k_norm are forgotten",
    cause="Qwen 3 and MiniMind normalise each head of queries and keys before RoPE; other models "
    "do not.",
    fix="Apply RMSNorm to the split queries and keys, each with its own weight.",
    step=QK_NORM,
)
def norms_forgotten(s: State) -> None:
    pass


@mistake(
    "qk_norm.normalise_q",
    "qk_norm.normalise_k",
    title="q_norm and k_norm are swapped",
    cause="Two vectors of the same shape, handed over in the wrong order.",
    fix="Normalise queries with q_norm, keys with k_norm.",
    step=QK_NORM,
)
class NormsSwapped:
    @staticmethod
    def normalise_q(s: State) -> None:
        s.q = normalised(s, s.q, s.k_norm)

    @staticmethod
    def normalise_k(s: State) -> None:
        s.k = normalised(s, s.k, s.q_norm)


@mistake(
    "qk_norm.normalise_k",
    title="the keys are normalised with q_norm",
    cause="A copied line in which the name of the weight was not changed.",
    fix="Normalise keys with k_norm.",
    step=QK_NORM,
)
def q_norm_for_keys(s: State) -> None:
    s.k = normalised(s, s.k, s.q_norm)


@mistake(
    "qk_norm.heads",
    title="the values are normalised too",
    cause="Only queries and keys have a norm: their product is what it keeps in bounds.",
    fix="Leave the values as they are projected.",
    step=QK_NORM,
)
def values_normalised(s: State) -> None:
    s.out = s.q, s.k, normalised(s, s.v, s.k_norm)


@mistake(
    "grouped_query_attention.split",
    "grouped_query_attention.normalise",
    title="queries and keys are normalised before they are split: all heads together",
    cause="The mean of the squares must be that of one head; before the split it is that of all.",
    fix="Split the heads first, then normalise over the last axis, which is the head's.",
    step=QK_NORM,
)
class NormsBeforeSplit:
    @staticmethod
    def split(s: State) -> None:
        for name, num_heads in (("q", s.num_heads), ("k", s.num_kv_heads)):
            weight = getattr(s, f"{name}_norm")
            weight = None if weight is None else np.tile(s.run.array(weight), num_heads)
            setattr(s, name, normalised(s, getattr(s, name), weight))
        split(s)

    @staticmethod
    def normalise(s: State) -> None:
        pass


@mistake(
    "grouped_query_attention.normalise",
    "grouped_query_attention.turn",
    title="queries and keys are turned first and normalised after",
    cause="RoPE keeps the mean square, but the norm's weights then meet the turned elements.",
    fix="Normalise each head first, then apply RoPE.",
    step=QK_NORM,
)
class NormsAfterRope:
    @staticmethod
    def normalise(s: State) -> None:
        turn(s)

    @staticmethod
    def turn(s: State) -> None:
        normalise(s)


# ---- mistakes: RoPE in the layer -----------------------------------------------------------------


@mistake(
    "qk_rope.turn_q",
    title="RoPE is missing on the queries",
    cause="Only the keys are turned; it is the difference of the two angles that counts.",
    fix="Apply RoPE to queries and keys.",
    step=ROPE,
)
def queries_not_turned(s: State) -> None:
    pass


@mistake(
    "qk_rope.turn_k",
    title="RoPE is missing on the keys",
    cause="Only the queries are turned; it is the difference of the two angles that counts.",
    fix="Apply RoPE to queries and keys.",
    step=ROPE,
)
def keys_not_turned(s: State) -> None:
    pass


@mistake(
    "qk_rope.heads",
    title="RoPE is applied to the values too",
    cause="Positions matter for who listens to whom; what is said (the values) is not turned.",
    fix="Apply RoPE to queries and keys only.",
    step=ROPE,
)
def values_turned(s: State) -> None:
    s.out = s.q, s.k, turned(s, s.v)


def of_hidden_size(s: State, x: Any) -> Any:
    heads, kv_heads, head_dim = s.q.shape[-3], s.k.shape[-3], s.q.shape[-1]
    if s.inv_freq is not None or heads == kv_heads:  # the latter is a mistake of rope itself
        return turned(s, x)
    theta = 10000.0 if s.theta is None else s.theta
    table = s.run(rope_frequencies, head_dim=heads * head_dim, theta=theta)
    own = table.inv_freq[: head_dim // 2]
    return s.run(rope, x=x, layout=s.rope_layout, positions=s.positions, inv_freq=own).out


@mistake(
    "qk_rope.turn_q",
    "qk_rope.turn_k",
    title="RoPE's exponents are divided by hidden_size instead of head_dim",
    cause="D in theta ** (-2i/D) is the size of one head; with hidden_size only the fastest of "
    "the frequencies are used.",
    fix="Make the frequencies for head_dim.",
    step=ROPE,
)
class FrequenciesOfHiddenSize:
    @staticmethod
    def turn_q(s: State) -> None:
        s.q = of_hidden_size(s, s.q)

    @staticmethod
    def turn_k(s: State) -> None:
        s.k = of_hidden_size(s, s.k)


@mistake(
    "grouped_query_attention.split",
    "grouped_query_attention.turn",
    title="RoPE is applied before the heads are split",
    cause="Then the whole vector is taken for one head: other pairs, other frequencies.",
    fix="Split the heads first, then turn each of them.",
    step=ROPE,
)
class RopeBeforeSplit:
    @staticmethod
    def split(s: State) -> None:
        if s.rope_layout is not None:
            s.q, s.k = turned(s, s.q), turned(s, s.k)
        split(s)

    @staticmethod
    def turn(s: State) -> None:
        pass
