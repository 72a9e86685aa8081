"""Every operation in plain float64 numpy, forwards.

Names, keywords and meaning are those of the public functions; only `out` and the checks of the
arguments are missing. Whatever float dtype comes in, float64 comes out. Nothing here is fast, and
nothing here needs the compiled module.

Shapes: `...` any leading axes, B batch, H query heads, K key/value heads, L query length,
S key length, D head_dim.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    Array = npt.NDArray[np.float64]
    ArrayLike = npt.ArrayLike
    DTypeLike = npt.DTypeLike
else:  # in short, for help()
    Array = ArrayLike = np.ndarray
    DTypeLike = np.dtype
Layout = Literal["half", "interleaved"]
Window = int | tuple[int | None, int | None] | None

__all__ = [
    "RopeFrequencies",
    "causal_mask",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "relu",
    "repeat_kv",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "swiglu",
]
__dir__ = __all__.copy  # what dir() and completion show

# inf - inf, 0 * inf and exp(1000) are part of the semantics here, not accidents worth a warning.
ieee = np.errstate(all="ignore")


@ieee
def float64(x: ArrayLike) -> Array:
    return np.asarray(x.unpack() if hasattr(x, "unpack") else x, dtype=np.float64)


# ---- attention -----------------------------------------------------------------------------------


@ieee
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
    window: Window = None,
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
) -> Array | tuple[Array, ...]:
    """softmax(query keyᵀ scale + mask) value. Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.

    query (...,H,L,D), key (...,K,S,D), value (...,K,S,Dv) -> (...,H,L,Dv), followed on request by
    weights and scores (...,H,L,S) and lse (...,H,L). Query head h reads key/value head h // (H/K):
    grouped-query attention, arXiv:2305.13245. The order is scale, softcap, mask, softmax; which
    keys a query sees is said at `visible_keys`, and one that sees none gives 0. With a block_table
    (B,N) key and value are pools (P,K,page,D) of pages: paged attention, arXiv:2309.06180.
    """
    if block_table is not None:
        key, value = pages_in_order(key, block_table), pages_in_order(value, block_table)
    if dropout_p != 0.0 or (
        not enable_gqa and np.shape(query)[:-2][-1:] != np.shape(key)[:-2][-1:]
    ):
        raise ValueError(
            "scaled_dot_product_attention: dropout_p must be 0, and H == K without enable_gqa"
        )
    q, k, v = float64(query), float64(key), float64(value)
    if no_heads := q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    group = q.shape[-3] // max(k.shape[-3], 1)
    k, v = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)

    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:  # Gemma 2, arXiv:2408.00118
        scores = softcap * np.tanh(scores / softcap)
    scores, visible = masked_scores(
        scores, attn_mask, is_causal=is_causal, causal_offset=causal_offset, window=window,
        chunk=chunk, key_starts=key_starts, key_lengths=key_lengths,
        segment_ids=segment_ids, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    scores = np.where(visible, scores, -np.inf)

    # A sink is one more score a head, with no value behind it: arXiv:2309.17453, and gpt-oss.
    sink = float64(-np.inf if sinks is None else sinks).reshape(-1, 1, 1)
    highest = np.maximum(np.max(scores, axis=-1, keepdims=True, initial=-np.inf), sink)
    empty = highest == -np.inf
    exponentials = np.exp(scores - np.where(empty, 0, highest))
    denominator = np.where(
        empty, 1, exponentials.sum(axis=-1, keepdims=True) + np.exp(sink - highest)
    )
    weights = exponentials / denominator
    sees_none = (scores == -np.inf).all(axis=-1, keepdims=True)
    out = np.where(sees_none, 0, weighted_sum(weights, v, visible))

    results = [out]
    if return_weights:
        results.append(weights)
    if return_scores:
        results.append(scores)
    if return_lse:
        results.append((highest + np.log(denominator))[..., 0])
    if no_heads:
        results = [result[0] for result in results]
    return results[0] if len(results) == 1 else tuple(results)


def pages_in_order(pool: ArrayLike, block_table: ArrayLike) -> Array:
    """(P,K,page,D) and (...,N) -> (...,K,N·page,D). Numbers that are no page stand for any page."""
    pool = np.asarray(pool)
    table = np.asarray(block_table).clip(0, len(pool) - 1)
    pages: Array = np.moveaxis(pool[table], -3, -4)  # (...,K,N,page,D)
    return pages.reshape(*pages.shape[:-3], -1, pages.shape[-1])


def sides(window: Window, is_causal: bool) -> tuple[int | None, int | None]:
    """How far a query sees to the left and to the right; None: without bound."""
    if window is None:
        left, right = None, None
    elif isinstance(window, tuple | list):
        left, right = window
    else:
        left = right = window - 1
    return left, 0 if is_causal else right


class Places(NamedTuple):
    """Where queries and keys stand; arrays broadcast to (...,H,L,S).

    position : that of each query, among the keys
    first : the key from which positions of its text are counted
    own : whether a key belongs to the query's text
    """

    position: npt.NDArray[Any]
    first: npt.NDArray[Any]
    own: npt.NDArray[np.bool_]


def places(
    shape: tuple[int, ...],
    *,
    counts: bool = True,
    causal_offset: int | ArrayLike | None = None,
    segment_ids: Any = None,
    cu_seqlens: Any = None,
) -> Places:
    """For scores (...,H,L,S). Query i stands at key i + causal_offset; of packed sequences both are
    counted from the beginning of the query's segment. Whether positions `counts`: then an offset
    has to be given where a text has not as many keys as queries."""
    i, offset = np.arange(shape[-2])[:, None], per_sequence(causal_offset, shape)
    if segment_ids is None and cu_seqlens is None:
        if counts and causal_offset is None and shape[-2] != shape[-1]:
            raise ValueError(
                "scaled_dot_product_attention: is_causal with L != S needs a causal_offset"
            )
        return Places(i + offset, np.zeros_like(i), np.ones(shape[-2:], bool))

    if cu_seqlens is not None:
        lengths, of_keys = (np.diff(ends) for ends in pair(cu_seqlens))
        segment_ids = tuple(np.repeat(np.arange(len(n)), n) for n in (lengths, of_keys))
        if causal_offset is not None and np.ndim(causal_offset) > 0:  # one a segment
            offset = np.repeat(np.asarray(causal_offset), lengths)[:, None]
    queries, keys = (np.asarray(ids)[..., None, :] for ids in pair(segment_ids))
    own = queries[..., :, None] == keys[..., None, :]
    siblings = queries[..., :, None] == queries[..., None, :]
    unlike = own.any(-1) & (siblings.sum(-1) != own.sum(-1))
    if counts and causal_offset is None and unlike.any():
        raise ValueError(
            "scaled_dot_product_attention: a segment with L != S needs a causal_offset"
        )
    first = first_true(own)
    return Places(i - first_true(siblings) + first + offset, first, own)


def visible_keys(
    shape: tuple[int, ...],
    *,
    is_causal: bool = False,
    causal_offset: int | ArrayLike | None = None,
    window: Window = None,
    chunk: int | None = None,
    key_starts: int | ArrayLike | None = None,
    key_lengths: int | ArrayLike | None = None,
    segment_ids: Any = None,
    cu_seqlens: Any = None,
) -> npt.NDArray[np.bool_]:
    """Which scores (...,H,L,S) are looked at.

    A query at position p sees key j of its own segment when key_starts <= j < key_lengths,
    p - left <= j <= p + right, and j lies in the chunk of p. Starts, lengths and offsets are one
    number, or one for each entry of the first axis; of cumulative lengths one for each segment.
    """
    left, right = sides(window, is_causal)
    counts = (left, right, chunk) != (None, None, None)
    at = places(
        shape,
        counts=counts,
        causal_offset=causal_offset if counts else 0,
        segment_ids=segment_ids,
        cu_seqlens=cu_seqlens,
    )
    j, start = np.arange(shape[-1]), per_sequence(key_starts, shape)
    visible = at.own & (j >= start)
    if left is not None:
        visible = visible & (j >= at.position - left)
    if right is not None:
        visible = visible & (j <= at.position + right)
    if chunk is not None:
        origin = np.maximum(at.first, start)
        visible = visible & ((j - origin) // chunk == (at.position - origin) // chunk)
    if key_lengths is not None:
        visible = visible & (j < per_sequence(key_lengths, shape))
    return np.broadcast_to(visible, shape)


def per_sequence(numbers: int | ArrayLike | None, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """One number (None: 0), or one for each entry of the first axes of (...,H,L,S)."""
    numbers = 0 if numbers is None else numbers
    return np.reshape(numbers, np.shape(numbers) + (1,) * (len(shape) - np.ndim(numbers)))


def pair(both: Any) -> tuple[Any, Any]:
    """For queries and keys: a tuple of two, or one array that holds for both."""
    return both if isinstance(both, tuple) and len(both) == 2 else (both, both)


def first_true(x: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """(...,1): where each row is True first, 0 where it never is."""
    return x.argmax(-1)[..., None] if x.shape[-1] else np.zeros((*x.shape[:-1], 1), int)


def masked_scores(
    scores: Array, attn_mask: ArrayLike | None, **choice: Any
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Scores with what an additive mask adds, and the keys that `visible_keys` and a boolean mask
    leave."""
    visible = visible_keys(scores.shape, **choice)
    if attn_mask is None:
        return scores, visible
    if np.asarray(attn_mask).dtype == bool:
        return scores, visible & np.asarray(attn_mask)
    return scores + float64(attn_mask), visible


def weighted_sum(weights: Array, value: Array, visible: npt.NDArray[np.bool_]) -> Array:
    """weights @ value, in which a hidden key has no part, not even as 0 * NaN."""
    if np.isfinite(value).all():
        return weights @ value
    out = np.zeros((*weights.shape[:-1], value.shape[-1]))
    for j in range(weights.shape[-1]):
        out += np.where(visible[..., j, None], weights[..., j, None] * value[..., None, j, :], 0)
    return out


def repeat_kv(x: ArrayLike, n: int, *, axis: int = -3) -> Array:
    """Each head n times in place, a a b b: (...,K,S,D) -> (...,K·n,S,D)."""
    return np.repeat(float64(x), n, axis=axis)


def causal_mask(
    L: int, S: int, *, offset: int | None = None, dtype: DTypeLike = bool
) -> npt.NDArray[Any]:
    """(L,S): query i may attend to key j <= i + offset: True, or in a float dtype 0, else -inf."""
    if offset is None and L != S:
        raise ValueError("causal_mask: L != S needs an offset")
    visible: npt.NDArray[np.bool_] = np.arange(S) <= np.arange(L)[:, None] + (offset or 0)
    return visible if np.dtype(dtype) == bool else np.where(visible, 0.0, -np.inf).astype(dtype)


@ieee
def softmax(x: ArrayLike, axis: int = -1, *, temperature: float = 1.0) -> Array:
    """exp(x/T) / sum exp(x/T); subtracting the maximum first changes nothing but the overflow."""
    scores = float64(x)
    highest = np.max(scores, axis=axis, keepdims=True, initial=-np.inf)
    exponentials: Array = np.exp((scores - highest) / temperature)
    return exponentials / float64(exponentials.sum(axis=axis, keepdims=True))


# ---- layers --------------------------------------------------------------------------------------


@ieee
def linear(
    x: ArrayLike, weight: Any, bias: Any = None, *, arithmetic: str = "int16"
) -> Array | list[Array]:
    """x weightᵀ + bias: x (...,I), weight (O,I), bias (O,) -> (...,O). A list gives a list."""
    if isinstance(weight, list | tuple):
        biases: Any = [None] * len(weight) if bias is None else bias
        return [float64(linear(x, w, b)) for w, b in zip(weight, biases, strict=True)]
    product = float64(x) @ float64(weight).T
    return product if bias is None else product + float64(bias)


def dequantize(blocks: ArrayLike, type: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The values of a quantised weight, from its blocks: quantization/blocks.py, which says how."""
    from simdformer.quantization import blocks as specification  # this file can be read alone

    return specification.dequantize(blocks, type, shape)


def mean(x: Array) -> Array:
    return float64(np.sum(x, axis=-1, keepdims=True) / np.float64(x.shape[-1]))


@ieee
def rms_norm(x: ArrayLike, weight: ArrayLike | None = None, *, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) · weight over the last axis. arXiv:1910.07467."""
    h = float64(x)
    h = h / np.sqrt(mean(h * h) + eps)
    return h if weight is None else h * float64(weight)


@ieee
def layer_norm(
    x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *, eps: float
) -> Array:
    """(x - mean) / sqrt(var + eps) · weight + bias over the last axis. arXiv:1607.06450."""
    h = float64(x)
    h = h - mean(h)
    h = h / np.sqrt(mean(h * h) + eps)
    h = h if weight is None else h * float64(weight)
    return h if bias is None else h + float64(bias)


def embedding(
    ids: ArrayLike, weight: ArrayLike, *, dtype: DTypeLike | None = None
) -> npt.NDArray[Any]:
    """Row ids[...] of weight (V,E): (...,) -> (...,E), as `dtype` when one is given."""
    rows, table = np.asarray(ids), float64(weight)
    for position in np.argwhere((rows < 0) | (rows >= len(table))):
        at = tuple(int(index) for index in position)
        raise IndexError(f"embedding: id {rows[at]} at {at} is not in 0..{len(table) - 1}")
    picked: npt.NDArray[Any] = table[rows].astype(np.float64 if dtype is None else dtype)
    return picked


# ---- rotary position embedding -------------------------------------------------------------------


@ieee
def rope(
    x: ArrayLike,
    *,
    layout: Layout,
    positions: ArrayLike | None = None,
    offset: int = 0,
    theta: float | None = None,
    inv_freq: ArrayLike | None = None,
    attention_factor: float = 1.0,
    rotary_dim: int | None = None,
) -> Array:
    """Pair i of position p is turned by p · theta^(-2i/D). Su et al. 2021, arXiv:2104.09864.

    x (...,T,D). "half" pairs (i, i + D/2), "interleaved" pairs (2i, 2i+1). positions (T,) or (B,T)
    with B the first axis of x, else offset, offset + 1, ... Elements from rotary_dim on, of any
    number, stay.
    """
    plain = float64(x)
    rotary_dim = plain.shape[-1] if rotary_dim is None else rotary_dim
    if inv_freq is None:
        inv_freq = rope_frequencies(rotary_dim, theta=10000.0 if theta is None else theta).inv_freq
    if positions is None:
        positions = offset + np.arange(plain.shape[-2])
    angle = float64(positions)[..., None] * float64(inv_freq)  # (T, rotary_dim/2) or (B, T, ...)
    if angle.ndim == 3:
        angle = angle.reshape(angle.shape[:1] + (1,) * (plain.ndim - 3) + angle.shape[1:])
    cos, sin = np.cos(angle) * attention_factor, np.sin(angle) * attention_factor

    half = rotary_dim // 2
    first = slice(0, half) if layout == "half" else slice(0, rotary_dim, 2)
    second = slice(half, rotary_dim) if layout == "half" else slice(1, rotary_dim, 2)
    a, b, turned = plain[..., first], plain[..., second], plain.copy()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = b * cos + a * sin
    return turned


class RopeFrequencies(NamedTuple):
    inv_freq: Array
    attention_factor: float


def rope_frequencies(
    head_dim: int,
    *,
    theta: float,
    scaling: Mapping[str, Any] | None = None,
    length: int | None = None,
) -> RopeFrequencies:
    """theta^(-2i/D) for i < D/2, then scaled for contexts longer than those of the training.

    scaling is the dict of Hugging Face configs, its "rope_type" (or "type") one of "linear"
    (arXiv:2306.15595), "llama3" (Llama 3.1, arXiv:2407.21783), "yarn" (arXiv:2309.00071) and
    "longrope" (arXiv:2402.13753), for which the length of the text counts; or "divided", a divisor
    for each frequency, as GGUF files have it.
    The attention factor multiplies cos and sin.
    """
    inv_freq = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    scaling = dict(scaling or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return RopeFrequencies(inv_freq, 1.0)
    kinds = {"linear": linear_scaling, "llama3": llama3_scaling, "yarn": yarn_scaling}
    kinds |= {"longrope": longrope_scaling, "divided": divided_scaling}
    scaled = kinds.get(str(kind))
    if scaled is None:
        why = "depends on the length of each call" if kind == "dynamic" else "is unknown"
        raise ValueError(
            f"rope_frequencies: scaling, type {kind!r} {why}; "
            "use one of 'default', 'linear', 'llama3', 'yarn', 'longrope', 'divided'"
        )
    try:
        return scaled(inv_freq, theta, scaling | {"length": length})
    except KeyError as missing:
        raise ValueError(f"rope_frequencies: scaling, type {kind!r} needs {missing}") from None


def linear_scaling(inv_freq: Array, theta: float, scaling: Mapping[str, Any]) -> RopeFrequencies:
    """Positions are divided by the factor."""
    return RopeFrequencies(inv_freq / scaling["factor"], 1.0)


def divided_scaling(inv_freq: Array, theta: float, scaling: Mapping[str, Any]) -> RopeFrequencies:
    """Every frequency has a divisor of its own."""
    return RopeFrequencies(inv_freq / np.asarray(scaling["divisors"], np.float64), 1.0)


def longrope_scaling(inv_freq: Array, theta: float, scaling: Mapping[str, Any]) -> RopeFrequencies:
    """Every frequency has two divisors: one for texts as long as those of the training, one for
    longer ones. Scores are sharpened in both."""
    context, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    which = "long_factor" if (scaling["length"] or 0) > context else "short_factor"
    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        sharper = math.log(factor) / math.log(context) if factor > 1 else 0
        attention_factor = math.sqrt(1 + sharper)
    return RopeFrequencies(inv_freq / np.asarray(scaling[which], np.float64), attention_factor)


def llama3_scaling(inv_freq: Array, theta: float, scaling: Mapping[str, Any]) -> RopeFrequencies:
    """Waves that turn at least high_freq_factor times in the original context stay as they are,
    those that turn less than low_freq_factor times are stretched, between them one fades into the
    other."""
    names = "factor", "low_freq_factor", "high_freq_factor"
    factor, low, high = (scaling[name] for name in names)
    turns = scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return RopeFrequencies(kept * inv_freq + (1 - kept) * inv_freq / factor, 1.0)


def yarn_scaling(inv_freq: Array, theta: float, scaling: Mapping[str, Any]) -> RopeFrequencies:
    """The fade is linear in the index i, between the waves that turn beta_fast and beta_slow times
    in the original context; and scores are sharpened, because softmax over more keys is flatter."""
    factor, context = scaling["factor"], scaling["original_max_position_embeddings"]
    head_dim = 2 * len(inv_freq)

    def index_that_turns(times: float) -> float:
        return head_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(theta))

    start = index_that_turns(scaling.get("beta_fast") or 32)
    stop = index_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        start, stop = math.floor(start), math.ceil(stop)
    start, stop = max(start, 0), min(stop, head_dim - 1)
    stretched = np.clip((np.arange(len(inv_freq)) - start) / ((stop - start) or 0.001), 0, 1)

    def sharpness(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    attention_factor = scaling.get("attention_factor")
    if attention_factor is None and scaling.get("mscale") and scaling.get("mscale_all_dim"):
        attention_factor = sharpness(scaling["mscale"]) / sharpness(scaling["mscale_all_dim"])
    elif attention_factor is None:
        attention_factor = sharpness(1.0)
    return RopeFrequencies(
        (1 - stretched) * inv_freq + stretched * inv_freq / factor, float(attention_factor)
    )


# ---- activations ---------------------------------------------------------------------------------

erfc: Callable[[Array], Array] = np.vectorize(math.erfc, otypes=[np.float64])


@ieee
def silu(x: ArrayLike) -> Array:
    """x · sigmoid(x) = x / (1 + exp(-x)). Elfwing et al. 2017, arXiv:1702.03118."""
    h = float64(x)
    sigmoid: Array = 1 / (1 + np.exp(-h))
    return h * sigmoid


@ieee
def gelu(x: ArrayLike, *, approximate: Literal["none", "tanh"] = "none") -> Array:
    """x · Φ(x), Φ the normal distribution, or its tanh approximation. arXiv:1606.08415."""
    h = float64(x)
    if approximate == "tanh":
        bend: Array = np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))
        return 0.5 * h * (1 + bend)
    return 0.5 * h * erfc(-h / math.sqrt(2))  # 1 + erf(y) = erfc(-y), which cancels nothing


@ieee
def relu(x: ArrayLike) -> Array:
    """max(x, 0); NaN stays NaN."""
    return np.maximum(float64(x), 0)


@ieee
def swiglu(gate: ArrayLike, up: ArrayLike) -> Array:
    """silu(gate) · up. Shazeer 2020, arXiv:2002.05202."""
    return silu(gate) * float64(up)
