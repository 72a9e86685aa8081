"""Embedding, repeat_kv and causal_mask in steps, and what goes wrong in them."""

import math

import numpy as np

from simdformer import functional, nn
from simdformer.learn.catalogue import Mistakes, first, instead, then
from simdformer.learn.program import OPERATIONS, Program, State

embedding = Program("embedding", of=functional.embedding, axes=("position", "channel"))

repeat_kv = Program("repeat_kv", of=functional.repeat_kv, axes=("head", "position", "channel"))

causal_mask = Program("causal_mask", of=functional.causal_mask, axes=("query", "key"))

OPERATIONS[nn.Embedding] = embedding

# ---- embedding: ids (...) and weight (V,E) -> (...,E) --------------------------------------------


@embedding.step
def read(s: State) -> None:
    s.rows, s.table = np.asarray(s.ids), s.run.array(s.weight)


@embedding.step
def pick(s: State) -> None:
    s.out = s.table[s.rows]


Mistakes("embedding.read", see="04 §2", fix="Take weight[ids].")(
    """
    ids_from_one: ids are counted from 1: every row is that of the id before
        weight[ids - 1]: tokenizers count from 0.
    ids_plus_one: every row is that of the next id
        weight[ids + 1], or a row for padding in front of the table.
    without_bos: the first id is left out: these are the rows of the text without its bos
        The tokenizer was called without special tokens, so that the sequence is one shorter.
        > Put the bos first: encode(text, bos=True), or add_special_tokens=True.
    """,
    ids_from_one=then(rows=lambda s: s.rows - 1),
    without_bos=then(rows=lambda s: s.rows[..., 1:]),
    ids_plus_one=then(rows=lambda s: np.minimum(s.rows + 1, len(s.table) - 1)),
)


def table_reshaped(s: State) -> None:
    if s.table.shape[0] == s.table.shape[1]:
        raise ValueError("then a reshape changes nothing: these are columns")
    s.out = s.table.T.reshape(s.table.shape)[s.rows]


def sines_added(s: State) -> None:
    width = s.table.shape[-1]
    angles = np.arange(s.rows.shape[-1])[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    sines = np.empty((len(angles), width), s.run.dtype)
    sines[:, 0::2], sines[:, 1::2] = np.sin(angles), np.cos(angles[:, : width // 2])
    s.out = s.table[s.rows] + sines


Mistakes("embedding.pick", see="04 §2", fix="Take the rows as they are.")(
    """
    scaled: the rows are multiplied with sqrt(E)
        The first transformer and Gemma do this; Llama, Qwen and MiniMind do not.
    divided: the rows are divided by sqrt(E)
        A scale that belongs to attention, or to the initial weights.
    columns: columns of the table are taken instead of rows
        The table is (V, E), a row for each id; here it is read as (E, V).
        > Take weight[ids], not weight[:, ids].
    table_reshaped: the table is reshaped, not transposed, to get from (E, V) to (V, E)
        reshape leaves every number where it was.
        > Transpose the table with .T.
    normalised: the rows are normalised to length one
        max_norm, or a norm that belongs into the next step.
    rows_of_positions (02 §3): the row of the position is taken instead of the row of the id
        weight[:T], or a loop over enumerate that uses the counter.
        > Take weight[ids].
    sines_added (02 §3): sines and cosines of the position are added
        The first transformer does that; Llama and its kind turn queries and keys instead (RoPE).
    """,
    scaled=then(out=lambda s: s.out * s.run.dtype(math.sqrt(s.table.shape[-1]))),
    divided=then(out=lambda s: s.out / s.run.dtype(math.sqrt(s.table.shape[-1]))),
    columns=instead(out=lambda s: np.moveaxis(s.table[:, s.rows], 0, -1)),
    table_reshaped=table_reshaped,
    normalised=then(out=lambda s: s.out / np.sqrt((s.out * s.out).sum(axis=-1, keepdims=True))),
    rows_of_positions=instead(out=lambda s: s.table[s.rows * 0 + np.arange(s.rows.shape[-1])]),
    sines_added=sines_added,
)

# ---- repeat_kv: x (...,K,S,D) -> (...,K·n,S,D) ---------------------------------------------------


@repeat_kv.step
def inputs(s: State) -> None:
    s.h, s.times, s.along = s.run.array(s.x), s.n, s.axis


@repeat_kv.step
def repeat(s: State) -> None:
    s.out = np.repeat(s.h, s.times, axis=s.along)


def merged_from_the_wrong_side(s: State) -> None:
    shape = list(s.h.shape)
    repeated = np.repeat(np.expand_dims(s.h, -2), s.times, axis=-2)
    shape[-3] *= s.times
    s.out = repeated.reshape(shape)


Mistakes("repeat_kv.repeat", see="03 §3", fix="Use np.repeat(x, n, axis=-3).")(
    """
    heads_tiled: the heads are tiled a b a b instead of repeated a a b b
        np.tile and torch's repeat put the whole axis behind itself.
        > Use np.repeat(x, n, axis=-3), in torch x.repeat_interleave(n, dim=-3).
    first_head_for_all: all heads are copies of the first
        An index 0, or expand on the wrong axis.
    positions_repeated: another axis is repeated: positions instead of heads
        Before and after the transpose the heads are on different axes.
        > Repeat the axis of the heads: -3 in (..., K, S, D), -2 in (..., S, K, D).
    merged_from_the_wrong_side: the heads are repeated by reshape from the wrong side
        x[..., None, :, :] was expanded, but the new axis stands after the positions.
        > Put the new axis right behind the heads, (..., K, n, S, D), then merge the two.
    """,
    heads_tiled=instead(out=lambda s: np.concatenate([s.h] * s.times, axis=s.along)),
    first_head_for_all=then(out=lambda s: np.take(s.out, [0] * s.out.shape[s.along], s.along)),
    positions_repeated=instead(
        out=lambda s: np.repeat(s.h, s.times, axis=-2 if s.along in (-3, s.h.ndim - 3) else -3)
    ),
    merged_from_the_wrong_side=merged_from_the_wrong_side,
)

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
    s.is_boolean = np.dtype(s.dtype) == bool
    s.out = s.visible if s.is_boolean else np.where(s.visible, 0.0, -np.inf)


Mistakes(
    "causal_mask.see",
    see="01 §3",
    fix="The diagonal is the last visible key: np.tril(np.ones((L, L), bool)).",
)(
    """
    strict: the mask hides one key too many: a token does not see itself
        j < i in place of j <= i: triu with k=0 where k=1 is meant.
    loose: the mask shows one key too many: the next token
        j <= i + 1 in place of j <= i.
    transposed: the mask shows the future and hides the past
        triu in place of tril, or rows taken for columns.
        > Rows are queries, columns are keys: np.tril.
    inverted: the mask is inverted: True where it hides
        np.triu(ones, k=1) is what masked_fill wants; here True means `may attend`.
        > Use ~mask, or np.tril.
    all_visible: nothing is hidden
        The mask is all ones, or all zeros.
        > Hide the keys j > i + offset.
    """,
    strict=instead(visible=lambda s: s.j < s.i + s.shift),
    loose=instead(visible=lambda s: s.j <= s.i + s.shift + 1),
    transposed=instead(visible=lambda s: s.j >= s.i + s.shift),
    inverted=instead(visible=lambda s: s.j > s.i + s.shift),
    all_visible=instead(visible=lambda s: np.full((s.L, s.S), True)),
)

Mistakes("causal_mask.places", see="03 exercise 3")(
    """
    no_offset: the offset is forgotten: the mask is lined up at the top left
        np.tril((L, S)) takes the first query for the first token.
        > Query i may see the keys j <= i + offset: np.tril(np.ones((L, S)), k=offset).
    bottom_right: the mask is lined up at the bottom right instead of the given offset
        An offset of S - L is what decoding with a cache needs; this call asks for another.
        > Use the offset of the call.
    """,
    no_offset=then(shift=lambda s: 0),
    bottom_right=then(shift=lambda s: s.S - s.L),
)

Mistakes("causal_mask.write", see="01 §3")(
    """
    other_kind: it is the other kind of mask: booleans for numbers, or the reverse
        A boolean mask says True for `may attend`, an additive one holds 0 there and -inf else.
        > Pass dtype=np.float32 for an additive mask, dtype=bool for a boolean one.
    large_number: the additive mask holds a large finite number, not -inf
        -1e9 hides nearly as well, but is not what this call asks for.
        > Use -np.inf.
    zero_times_infinity: the additive mask is NaN where nothing is hidden
        0 * -inf is NaN: zeros and ones were multiplied with infinity.
        > Choose instead of multiplying: np.where(visible, 0, -np.inf).
    """,
    other_kind=first(dtype=lambda s: np.float32 if np.dtype(s.dtype) == bool else bool),
    large_number=then(out=lambda s: s.out if s.is_boolean else np.where(s.visible, 0.0, -1e9)),
    zero_times_infinity=instead(out=lambda s: (~s.visible).astype(np.float64) * -np.inf),
)
