"""Attention and what belongs to it: softmax, repeat_kv, causal_mask.

Part of `simdformer.functional`, which says what all operations share. Letters in shapes: B
sequences, H query heads, K key/value heads, L queries, S keys, D head_dim.
"""

from typing import Any, Literal, overload

from simdformer import _core
from simdformer.types import Array, ArrayLike, DTypeLike, Out

__all__ = ["causal_mask", "repeat_kv", "scaled_dot_product_attention", "softmax"]


@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = True,
    causal_offset: int | ArrayLike | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    chunk: int | None = None,
    key_starts: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    return_weights: Literal[False] = False,
    return_scores: Literal[False] = False,
    return_lse: Literal[False] = False,
    out: Out | None = None,
) -> Array: ...
@overload
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = True,
    causal_offset: int | ArrayLike | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    chunk: int | None = None,
    key_starts: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    return_weights: bool = False,
    return_scores: bool = False,
    return_lse: bool = False,
    out: Out | None = None,
) -> Any: ...
def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = True,
    causal_offset: int | ArrayLike | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    chunk: int | None = None,
    key_starts: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    return_weights: bool = False,
    return_scores: bool = False,
    return_lse: bool = False,
    out: Out | None = None,
) -> Any:
    """Attention: softmax(query keyᵀ scale + mask) value.

    For each query, the values of all keys it may see, averaged by how well the keys fit. Vaswani et
    al. 2017, "Attention is all you need", section 3.2.1; with fewer key/value heads than query
    heads it is grouped-query attention (Ainslie et al. 2023). The order is: scale, softcap, mask,
    softmax. The (L,S) matrix of scores is never in memory as a whole, unless you ask for it.

    Parameters
    ----------
    query : (..., H, L, D)
        L queries of H heads. `(L, D)` and `(H, L, D)` work too; `...` are any batch axes.
    key : (..., K, S, D)
        S keys of K heads. H must be a multiple of K: query head h reads key/value head h // (H/K).
        Batch axes are those of the query, or 1 on either side, as numpy broadcasts.
    value : (..., K, S, Dv)
        Dv may differ from D. The dtype is the key's; beside a float32 query they may be 16-bit, a
        cache for instance, and beside a 16-bit query float32.
    attn_mask : broadcastable to (..., H, L, S), optional
        bool: True = may attend. Or any float dtype: added to the scores, -inf hides. (A key-padding
        mask (B, S) is `mask[:, None, None, :]`, or better `key_lengths`.)
    dropout_p : float
        Must be 0; it is here so that calls written for torch run.
    is_causal : bool
        Query i sees the keys j <= i + causal_offset. Can be combined with a mask.
    scale : float, optional
        Multiplies query keyᵀ. None: 1/sqrt(D). A scale of 0 is 0.
    enable_gqa : bool
        False insists on H == K.
    causal_offset : int or (B,) integers, optional
        Query i stands at the position p = i + causal_offset of the keys; one for each entry of the
        first axis if (B,), and of each segment if (N,) beside cu_seqlens. May be negative. Where
        there are as many keys as queries it is 0 unless you say otherwise. Where not, is_causal,
        window and chunk need it, because two conventions exist: `0` lines up the first positions
        (torch), `S - L` the last ones, which is what decoding with a cache needs (MLX, flash-attn).
    window : int or (int, int), optional
        Sliding window: also |j - p| < window. With is_causal that leaves `window` keys, the query's
        own position included. A pair (left, right) is flash-attn's window_size: p - left <= j <=
        p + right, None for no bound.
    chunk : int, optional
        Also j and p in one chunk of so many positions, as in Llama 4's local layers.
    key_starts, key_lengths : int or (B,) integers, optional
        Only the keys key_starts[b] <= j < key_lengths[b] of sequence b count: a batch padded on the
        left or on the right, the unused end of a cache. What lies elsewhere may be anything, NaN
        too. Positions stay those of the array, so that padding on the left changes no offset;
        chunks are counted from key_starts[b], where the text begins.
    segment_ids : (B, L) integers, or a tuple (B, L), (B, S), optional
        Packed sequences: a query sees keys with its own id, and the others cost nothing. The
        positions of an id lie side by side. Each segment is attended to as it would be alone, bit
        by bit: positions, causality, windows and chunks are counted from where it begins.
    cu_seqlens : (N + 1,) integers, or a tuple of two, optional
        The same for one sequence, by cumulative lengths: segment n has the positions from
        cu_seqlens[n] to cu_seqlens[n+1]. (flash-attn's cu_seqlens_q and cu_seqlens_k; its offset is
        `np.diff(cu_seqlens_k) - np.diff(cu_seqlens_q)`.)
    softcap : float, optional
        Scores become softcap * tanh(scores / softcap), as in Gemma 2.
    sinks : (H,), optional
        One more score a head with no value behind it, in the denominator only, as in gpt-oss.
    block_table : (B, N) integers, optional
        Paged attention (Kwon et al. 2023): key (P, K, page, D) and value (P, K, page, Dv) are pools
        of pages, and position j of sequence b is position j % page of page block_table[b, j //
        page]; S is N·page. The query is (B, H, L, D); without B the table is (N,). Sequences may
        share pages, and entries behind key_lengths[b] may be anything.
    return_weights, return_scores, return_lse : bool
        Return these as well. They are what the kernel computed, not a second computation.
    out : (..., H, L, Dv) ndarray or tensor, optional
        Takes the result. May not share memory with an input.

    Returns
    -------
    ndarray (..., H, L, Dv) in the dtype of the query; with any `return_*` a tuple of it and, in
    this order, weights (..., H, L, S), scores (..., H, L, S), scaled and masked (-inf where
    hidden), and lse (..., H, L), the logarithm of the softmax's denominator, float32 at least.

    Raises
    ------
    TypeError
        A dtype that does not fit: integers, float64 beside float32, float16 beside bfloat16.
    ValueError
        Shapes that do not fit; is_causal, window or chunk with L != S and no causal_offset, which
        without them has no meaning; a scale that is not finite; a softcap, window or chunk <= 0; a
        dropout_p > 0; a page that does not exist; ids of a segment that lie apart; segments beside
        a block_table.
    BufferError
        A tensor that is not on the CPU.

    Notes
    -----
    A query that sees no key gives 0 (weights 0, lse -inf), where torch gives NaN. A hidden key has
    no influence at all, even if it is NaN; that holds for bool masks and everything that goes by
    positions, while an additive mask is plain arithmetic. NaN that is looked at stays NaN. Unlike
    torch's, `enable_gqa` is on by default. bfloat16 queries and keys are multiplied by the CPU's
    own dot product where it has one (AVX512-BF16), which takes subnormal numbers for zero.

    The bits of a result do not depend on the number of threads, nor on the other sequences and
    heads. With pages they do not depend either on the pages' size and order, nor on how the queries
    of a prompt are cut into calls of at least two. Pages of a multiple of 16 positions are read in
    place, others are copied.

    Examples
    --------
    >>> import numpy as np
    >>> import simdformer as sf
    >>> q = np.zeros((8, 3, 16), np.float32)                        # 8 query heads, 3 positions
    >>> k = v = np.ones((2, 3, 16), np.float32)                     # 2 key/value heads
    >>> z, weights = sf.scaled_dot_product_attention(q, k, v, is_causal=True, return_weights=True)
    >>> z.shape
    (8, 3, 16)
    >>> weights[0].round(2)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 0.5 , 0.  ],
           [0.33, 0.33, 0.33]], dtype=float32)

    One more token, with the three others in a cache: L = 1, S = 4, and the query is the last.

    >>> q, k = np.zeros((8, 1, 16), np.float32), np.ones((2, 4, 16), np.float32)
    >>> sf.scaled_dot_product_attention(q, k, k, is_causal=True, causal_offset=3).shape
    (8, 1, 16)
    """
    return _core.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, causal_offset,
        window, chunk, key_starts, key_lengths, segment_ids, cu_seqlens, softcap, sinks,
        block_table, return_weights, return_scores, return_lse, out,
    )  # fmt: skip


def softmax(
    x: ArrayLike, axis: int = -1, *, temperature: float = 1.0, out: Out | None = None
) -> Array:
    """exp(x/T) / sum(exp(x/T)) along one axis; T is the temperature.

    Large numbers do not overflow: the maximum is subtracted first. A row of nothing but -inf gives
    NaN, as in torch. A low temperature (> 0) sharpens, a high one flattens.

    TypeError: x is not of a float dtype. ValueError: no such axis; a temperature not > 0 and
    finite.

    >>> import simdformer as sf
    >>> sf.softmax([1000.0, 1000.1, 1000.2]).round(4)
    array([0.3006, 0.3322, 0.3672])
    """
    return _core.softmax(x, axis, temperature, out)


def repeat_kv(x: ArrayLike, n: int, *, axis: int = -3) -> Array:
    """Each head n times in place, a a b b: (..., K, S, D) -> (..., K·n, S, D).

    What grouped-query attention does in thought (`scaled_dot_product_attention` needs no copies).
    It is torch.repeat_interleave, not a tiling a b a b, which would give heads the wrong keys.

    TypeError: x is not of a float dtype. ValueError: n < 1; no such axis.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> sf.repeat_kv(np.array([1.0, 2.0]), 2, axis=0)
    array([1., 1., 2., 2.])
    """
    return _core.repeat_kv(x, n, axis)


def causal_mask(L: int, S: int, *, offset: int | None = None, dtype: DTypeLike = bool) -> Array:
    """(L,S): query i may see key j <= i + offset.

    As bool, True = may attend; in a float dtype 0, and -inf where hidden, to be added to scores.
    With L != S an offset must be given: 0 lines up the first positions, S - L the last ones.

    TypeError: L, S or offset is not an integer, dtype is neither bool nor one of the four floats.
    ValueError: a negative length; L != S without an offset.

    >>> import simdformer as sf
    >>> sf.causal_mask(2, 3, offset=1).astype(int)
    array([[1, 1, 0],
           [1, 1, 1]])
    """
    return _core.causal_mask(L, S, offset, dtype)
