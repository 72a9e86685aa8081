"""Embedding, repeat_kv and causal_mask in steps, and what goes wrong in them."""

from simdformer import functional, nn
from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import OPERATIONS, Program

embedding = Program(
    "embedding",
    """
    read: rows, table = np.asarray(ids), array(weight)
    pick: out = table[rows]
    """,
    of=functional.embedding,
    axes=("position", "channel"),
)

repeat_kv = Program(
    "repeat_kv",
    """
    inputs: h, times, along = array(x), n, axis
    repeat: out = np.repeat(h, times, axis=along)
    """,
    of=functional.repeat_kv,
    axes=("head", "position", "channel"),
)

causal_mask = Program(
    "causal_mask",
    """
    places:
        i, j = np.arange(L)[:, None], np.arange(S)
        shift = 0 if offset is None else offset
    see: visible = j <= i + shift
    write:
        is_boolean = np.dtype(dtype) == bool
        out = visible if is_boolean else np.where(visible, 0.0, -np.inf)
    """,
    of=functional.causal_mask,
    axes=("query", "key"),
)

OPERATIONS[nn.Embedding] = embedding
mistakes(
    """
    embedding.read (04 §2) > Take weight[ids].

    ids_from_one: ids are counted from 1: every row is that of the id before
        weight[ids - 1]: tokenizers count from 0.
        | ...; rows = rows - 1
    ids_plus_one: every row is that of the next id
        weight[ids + 1], or a row for padding in front of the table.
        | ...; rows = np.minimum(rows + 1, len(table) - 1)
    without_bos: the first id is left out: these are the rows of the text without its bos
        The tokenizer was called without special tokens, so that the sequence is one shorter.
        > Put the bos first: encode(text, bos=True), or add_special_tokens=True.
        | ...; rows = rows[..., 1:]

    embedding.pick (04 §2) > Take the rows as they are.

    scaled: the rows are multiplied with sqrt(E)
        The first transformer and Gemma do this; Llama, Qwen and MiniMind do not.
        | ...; out = out * real(math.sqrt(table.shape[-1]))
    divided: the rows are divided by sqrt(E)
        A scale that belongs to attention, or to the initial weights.
        | ...; out = out / real(math.sqrt(table.shape[-1]))
    columns: columns of the table are taken instead of rows
        The table is (V, E), a row for each id; here it is read as (E, V).
        > Take weight[ids], not weight[:, ids].
        | out = np.moveaxis(table[:, rows], 0, -1)
    table_reshaped: the table is reshaped, not transposed, to get from (E, V) to (V, E)
        reshape leaves every number where it was.
        > Transpose the table with .T.
        | unless(table.shape[0] == table.shape[1]); out = table.T.reshape(table.shape)[rows]
    normalised: the rows are normalised to length one
        max_norm, or a norm that belongs into the next step.
        | ...; out = out / np.sqrt((out * out).sum(axis=-1, keepdims=True))
    rows_of_positions (02 §3): the row of the position is taken instead of the row of the id
        weight[:T], or a loop over enumerate that uses the counter.
        > Take weight[ids].
        | out = table[rows * 0 + np.arange(rows.shape[-1])]
    sines_added (02 §3): sines and cosines of the position are added
        The first transformer does that; Llama and its kind turn queries and keys instead (RoPE).
        | width = table.shape[-1]
        | angles = np.arange(rows.shape[-1])[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
        | sines = np.empty((len(angles), width), real)
        | sines[:, 0::2], sines[:, 1::2] = np.sin(angles), np.cos(angles[:, : width // 2])
        | out = table[rows] + sines

    repeat_kv.repeat (03 §3) > Use np.repeat(x, n, axis=-3).

    heads_tiled: the heads are tiled a b a b instead of repeated a a b b
        np.tile and torch's repeat put the whole axis behind itself.
        > Use np.repeat(x, n, axis=-3), in torch x.repeat_interleave(n, dim=-3).
        | out = np.concatenate([h] * times, axis=along)
    first_head_for_all: all heads are copies of the first
        An index 0, or expand on the wrong axis.
        | ...; out = np.take(out, [0] * out.shape[along], along)
    positions_repeated: another axis is repeated: positions instead of heads
        Before and after the transpose the heads are on different axes.
        > Repeat the axis of the heads: -3 in (..., K, S, D), -2 in (..., S, K, D).
        | out = np.repeat(h, times, axis=-2 if along in (-3, h.ndim - 3) else -3)
    merged_from_the_wrong_side: the heads are repeated by reshape from the wrong side
        x[..., None, :, :] was expanded, but the new axis stands after the positions.
        > Put the new axis right behind the heads, (..., K, n, S, D), then merge the two.
        | shape = list(h.shape)
        | repeated = np.repeat(np.expand_dims(h, -2), times, axis=-2)
        | shape[-3] *= times
        | out = repeated.reshape(shape)

    causal_mask.see (01 §3) > The diagonal is the last visible key: np.tril(np.ones((L, L), bool)).

    strict: the mask hides one key too many: a token does not see itself
        j < i in place of j <= i: triu with k=0 where k=1 is meant.
        | visible = j < i + shift
    loose: the mask shows one key too many: the next token
        j <= i + 1 in place of j <= i.
        | visible = j <= i + shift + 1
    transposed: the mask shows the future and hides the past
        triu in place of tril, or rows taken for columns.
        > Rows are queries, columns are keys: np.tril.
        | visible = j >= i + shift
    inverted: the mask is inverted: True where it hides
        np.triu(ones, k=1) is what masked_fill wants; here True means `may attend`.
        > Use ~mask, or np.tril.
        | visible = j > i + shift
    all_visible: nothing is hidden
        The mask is all ones, or all zeros.
        > Hide the keys j > i + offset.
        | visible = np.full((L, S), True)

    causal_mask.places (03 exercise 3)

    no_offset: the offset is forgotten: the mask is lined up at the top left
        np.tril((L, S)) takes the first query for the first token.
        > Query i may see the keys j <= i + offset: np.tril(np.ones((L, S)), k=offset).
        | ...; shift = 0
    bottom_right: the mask is lined up at the bottom right instead of the given offset
        An offset of S - L is what decoding with a cache needs; this call asks for another.
        > Use the offset of the call.
        | ...; shift = S - L

    causal_mask.write (01 §3)

    other_kind: it is the other kind of mask: booleans for numbers, or the reverse
        A boolean mask says True for `may attend`, an additive one holds 0 there and -inf else.
        > Pass dtype=np.float32 for an additive mask, dtype=bool for a boolean one.
        | dtype = np.float32 if np.dtype(dtype) == bool else bool; ...
    large_number: the additive mask holds a large finite number, not -inf
        -1e9 hides nearly as well, but is not what this call asks for.
        > Use -np.inf.
        | ...; out = out if is_boolean else np.where(visible, 0.0, -1e9)
    zero_times_infinity: the additive mask is NaN where nothing is hidden
        0 * -inf is NaN: zeros and ones were multiplied with infinity.
        > Choose instead of multiplying: np.where(visible, 0, -np.inf).
        | out = (~visible).astype(np.float64) * -np.inf
    """
)
