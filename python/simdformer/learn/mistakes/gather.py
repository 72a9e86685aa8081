"""Embedding, repeat_kv and causal_mask in steps, and what goes wrong in them."""

import math
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.program import Program, State, mistake

embedding = Program("embedding", of=functional.embedding, axes=("position", "channel"))
repeat_kv = Program("repeat_kv", of=functional.repeat_kv, axes=("head", "position", "channel"))
causal_mask = Program("causal_mask", of=functional.causal_mask, axes=("query", "key"))


# ---- embedding: ids (...) and weight (V,E) -> (...,E) --------------------------------------------


@embedding.step
def read(s: State) -> None:
    s.rows, s.table = np.asarray(s.ids), s.run.array(s.weight)


@embedding.step
def pick(s: State) -> None:
    s.out = s.table[s.rows]


@mistake(
    "embedding.read",
    title="ids are counted from 1: every row is that of the id before",
    cause="weight[ids - 1]: tokenizers count from 0.",
    fix="Take weight[ids].",
    step="04 §2",
)
def ids_from_one(s: State) -> None:
    read(s)
    s.rows = s.rows - 1


@mistake(
    "embedding.read",
    title="every row is that of the next id",
    cause="weight[ids + 1], or a row for padding in front of the table.",
    fix="Take weight[ids].",
    step="04 §2",
)
def ids_plus_one(s: State) -> None:
    read(s)
    s.rows = np.minimum(s.rows + 1, len(s.table) - 1)


@mistake(
    "embedding.pick",
    title="the rows are multiplied with sqrt(E)",
    cause="The first transformer and Gemma do this; Llama, Qwen and MiniMind do not.",
    fix="Take the rows as they are.",
    step="04 §2",
)
def scaled(s: State) -> None:
    s.out = s.table[s.rows] * s.run.dtype(math.sqrt(s.table.shape[-1]))


@mistake(
    "embedding.pick",
    title="the rows are divided by sqrt(E)",
    cause="A scale that belongs to attention, or to the initial weights.",
    fix="Take the rows as they are.",
    step="04 §2",
)
def divided(s: State) -> None:
    s.out = s.table[s.rows] / s.run.dtype(math.sqrt(s.table.shape[-1]))


@mistake(
    "embedding.pick",
    title="columns of the table are taken instead of rows",
    cause="The table is (V, E), a row for each id; here it is read as (E, V).",
    fix="Take weight[ids], not weight[:, ids].",
    step="04 §2",
)
def columns(s: State) -> None:
    s.out = np.moveaxis(s.table[:, s.rows], 0, -1)


@mistake(
    "embedding.pick",
    title="the table is reshaped, not transposed, to get from (E, V) to (V, E)",
    cause="reshape leaves every number where it was.",
    fix="Transpose the table with .T.",
    step="04 §2",
)
def table_reshaped(s: State) -> None:
    if s.table.shape[0] == s.table.shape[1]:
        raise ValueError("then a reshape changes nothing: these are columns")
    s.out = s.table.T.reshape(s.table.shape)[s.rows]


@mistake(
    "embedding.pick",
    title="the rows are normalised to length one",
    cause="max_norm, or a norm that belongs into the next step.",
    fix="Take the rows as they are.",
    step="04 §2",
)
def normalised(s: State) -> None:
    rows = s.table[s.rows]
    s.out = rows / np.sqrt((rows * rows).sum(axis=-1, keepdims=True))


# ---- repeat_kv: x (...,K,S,D) -> (...,K·n,S,D) ---------------------------------------------------


@repeat_kv.step
def inputs(s: State) -> None:
    s.h, s.times, s.along = s.run.array(s.x), s.n, s.axis


@repeat_kv.step
def repeat(s: State) -> None:
    s.out = np.repeat(s.h, s.times, axis=s.along)


def tiled(s: State, axis: int) -> Any:
    """The whole axis again and again."""
    return np.concatenate([s.h] * s.times, axis=axis)


@mistake(
    "repeat_kv.repeat",
    title="the heads are tiled a b a b instead of repeated a a b b",
    cause="np.tile and torch's repeat put the whole axis behind itself.",
    fix="Use np.repeat(x, n, axis=-3), in torch x.repeat_interleave(n, dim=-3).",
    step="03 §3",
)
def heads_tiled(s: State) -> None:
    s.out = tiled(s, s.along)


@mistake(
    "repeat_kv.repeat",
    title="all heads are copies of the first",
    cause="An index 0, or expand on the wrong axis.",
    fix="Use np.repeat(x, n, axis=-3).",
    step="03 §3",
)
def first_head_for_all(s: State) -> None:
    first = np.take(s.h, [0], axis=s.along)
    s.out = np.repeat(first, s.h.shape[s.along] * s.times, axis=s.along)


@mistake(
    "repeat_kv.repeat",
    title="another axis is repeated: positions instead of heads",
    cause="Before and after the transpose the heads are on different axes.",
    fix="Repeat the axis of the heads: -3 in (..., K, S, D), -2 in (..., S, K, D).",
    step="03 §3",
)
def positions_repeated(s: State) -> None:
    s.out = np.repeat(s.h, s.times, axis=-2 if s.along in (-3, s.h.ndim - 3) else -3)


@mistake(
    "repeat_kv.repeat",
    title="the heads are repeated by reshape from the wrong side",
    cause="x[..., None, :, :] was expanded, but the new axis stands after the positions.",
    fix="Put the new axis right behind the heads, (..., K, n, S, D), then merge the two.",
    step="03 §3",
)
def merged_from_the_wrong_side(s: State) -> None:
    shape = list(s.h.shape)
    repeated = np.repeat(np.expand_dims(s.h, -2), s.times, axis=-2)
    shape[-3] *= s.times
    s.out = repeated.reshape(shape)


# ---- causal_mask: (L,S) --------------------------------------------------------------------------


@causal_mask.step
def places(s: State) -> None:
    s.i, s.j = np.arange(s.L)[:, None], np.arange(s.S)
    s.shift = 0 if s.offset is None else s.offset


@causal_mask.step
def see(s: State) -> None:
    s.visible = s.j <= s.i + s.shift


@causal_mask.step
def write(s: State) -> None:
    additive = np.where(s.visible, 0.0, -np.inf)
    s.out = s.visible if np.dtype(s.dtype) == bool else additive


@mistake(
    "causal_mask.see",
    title="the mask hides one key too many: a token does not see itself",
    cause="j < i in place of j <= i: triu with k=0 where k=1 is meant.",
    fix="The diagonal is visible: np.tril(np.ones((L, L), bool)).",
    step="01 §3",
)
def strict(s: State) -> None:
    s.visible = s.j < s.i + s.shift


@mistake(
    "causal_mask.see",
    title="the mask shows one key too many: the next token",
    cause="j <= i + 1 in place of j <= i.",
    fix="The diagonal is the last visible key: np.tril(np.ones((L, L), bool)).",
    step="01 §3",
)
def loose(s: State) -> None:
    s.visible = s.j <= s.i + s.shift + 1


@mistake(
    "causal_mask.see",
    title="the mask shows the future and hides the past",
    cause="triu in place of tril, or rows taken for columns.",
    fix="Rows are queries, columns are keys: np.tril.",
    step="01 §3",
)
def transposed(s: State) -> None:
    s.visible = s.j >= s.i + s.shift


@mistake(
    "causal_mask.see",
    title="the mask is inverted: True where it hides",
    cause="np.triu(ones, k=1) is what masked_fill wants; here True means `may attend`.",
    fix="Use ~mask, or np.tril.",
    step="01 §3",
)
def inverted(s: State) -> None:
    s.visible = s.j > s.i + s.shift


@mistake(
    "causal_mask.places",
    title="the offset is forgotten: the mask is lined up at the top left",
    cause="np.tril((L, S)) takes the first query for the first token.",
    fix="Query i may see the keys j <= i + offset: np.tril(np.ones((L, S)), k=offset).",
    step="03 exercise 3",
)
def no_offset(s: State) -> None:
    places(s)
    s.shift = 0


@mistake(
    "causal_mask.places",
    title="the mask is lined up at the bottom right instead of the given offset",
    cause="An offset of S - L is what decoding with a cache needs; this call asks for another.",
    fix="Use the offset of the call.",
    step="03 exercise 3",
)
def bottom_right(s: State) -> None:
    places(s)
    s.shift = s.S - s.L


@mistake(
    "causal_mask.see",
    title="nothing is hidden",
    cause="The mask is all ones, or all zeros.",
    fix="Hide the keys j > i + offset.",
    step="01 §3",
)
def all_visible(s: State) -> None:
    s.visible = np.full((s.L, s.S), True)


@mistake(
    "causal_mask.write",
    title="it is the other kind of mask: booleans for additive, or additive for booleans",
    cause="A boolean mask says True for `may attend`, an additive one holds 0 there and -inf else.",
    fix="Pass dtype=np.float32 for an additive mask, dtype=bool for a boolean one.",
    step="01 §3",
)
def other_kind(s: State) -> None:
    additive = np.where(s.visible, 0.0, -np.inf)
    s.out = additive if np.dtype(s.dtype) == bool else s.visible


@mistake(
    "causal_mask.write",
    title="the additive mask holds a large finite number, not -inf",
    cause="-1e9 hides nearly as well, but is not what this call asks for.",
    fix="Use -np.inf.",
    step="01 §3",
)
def large_number(s: State) -> None:
    s.out = s.visible if np.dtype(s.dtype) == bool else np.where(s.visible, 0.0, -1e9)


@mistake(
    "causal_mask.write",
    title="the additive mask is NaN where nothing is hidden",
    cause="0 * -inf is NaN: zeros and ones were multiplied with infinity.",
    fix="Choose instead of multiplying: np.where(visible, 0, -np.inf).",
    step="01 §3",
)
def zero_times_infinity(s: State) -> None:
    s.out = (~s.visible).astype(np.float64) * -np.inf
