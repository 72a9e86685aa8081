"""The gradients of every operation in plain float64 numpy: the specification, to be read.

A function has the name of its forward. `grad` comes first, the gradient of the output; then what
the forward took, or what it gave where that is enough. Where there are several gradients, they are
a named tuple by argument, with None for what was not asked for. Weights add up the gradients of all
rows. `simdformer.backward` has the same functions as kernels.

Shapes: `...` any leading axes, B batch, H query heads, K key/value heads, L query length,
S key length, D head_dim, I inputs, O outputs, V vocabulary, E hidden_size.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from simdformer.reference.forward import (
    Array,
    ArrayLike,
    Layout,
    Window,
    erfc,
    float64,
    ieee,
    masked_scores,
    mean,
    weighted_sum,
)
from simdformer.reference.forward import rope as rope_forward
from simdformer.reference.loss import Reduction, counted, logsumexp, softcapped
from simdformer.reference.loss import cross_entropy as cross_entropy_forward

__all__ = [
    "AttentionGradients",
    "LayerNormGradients",
    "LinearGradients",
    "LossAndGradients",
    "NormGradients",
    "SwigluGradients",
    "cross_entropy",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "relu",
    "repeat_kv",
    "rms_norm",
    "rope",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "swiglu",
]
__dir__ = __all__.copy  # what dir() and completion show


class LinearGradients(NamedTuple):
    x: Any
    weight: Any
    bias: Any


class NormGradients(NamedTuple):
    x: Any
    weight: Any


class LayerNormGradients(NamedTuple):
    x: Any
    weight: Any
    bias: Any


class SwigluGradients(NamedTuple):
    gate: Any
    up: Any


class AttentionGradients(NamedTuple):
    query: Any
    key: Any
    value: Any
    attn_mask: Any
    sinks: Any


class LossAndGradients(NamedTuple):
    loss: Any
    count: int  # type: ignore[assignment]  # of the labels; tuple.count is of no use here
    x: Any
    weight: Any


def rows_of(x: Array) -> Array:
    """(..., n) -> (rows, n)"""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum over all axes along which an array of `shape` was broadcast to that of x."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    stretched = tuple(axis for axis, extent in enumerate(shape) if x.shape[axis] != extent)
    return float64(x.sum(axis=stretched, keepdims=True))


def plus(gradient: Array, name: str, accumulate: Mapping[str, Any] | None) -> Array:
    """The gradient; where `accumulate` has an array of that name, added into it."""
    if accumulate is None or accumulate.get(name) is None:
        return gradient
    total: Array = accumulate[name]
    total += gradient
    return total


# ---- linear, embedding ---------------------------------------------------------------------------


@ieee
def linear(
    grad: Any,
    x: ArrayLike,
    weight: Any,
    *,
    needs: Sequence[str] = ("x", "weight", "bias"),
    accumulate: Mapping[str, Any] | None = None,
) -> LinearGradients:
    """y = x weightᵀ + bias:   dx = dy weight,   dweight = dyᵀ x,   dbias = sum dy.

    grad (...,O), x (...,I), weight (O,I) -> x (...,I), weight (O,I), bias (O,). A list of weights
    takes a list of grads: x's gradient is the sum over the list, those of weight and bias are
    lists. What `accumulate` names is added into the arrays given there.
    """
    several = isinstance(weight, list | tuple)
    grads = [float64(dy) for dy in (grad if several else [grad])]
    weights = [float64(w) for w in (weight if several else [weight])]
    rows = rows_of(float64(x))
    dx = dw = db = None
    if "x" in needs:
        products = [dy @ w for dy, w in zip(grads, weights, strict=True)]
        dx = plus(float64(sum(products)), "x", accumulate)

    def of_each(name: str, gradients: list[Array]) -> Any:
        given = (accumulate or {}).get(name)
        arrays = given if several and given is not None else [given] * len(gradients)
        pairs = zip(gradients, arrays, strict=True)
        summed = [plus(gradient, name, {name: array}) for gradient, array in pairs]
        return summed if several else summed[0]

    if "weight" in needs:
        dw = of_each("weight", [rows_of(dy).T @ rows for dy in grads])
    if "bias" in needs:
        db = of_each("bias", [rows_of(dy).sum(axis=0) for dy in grads])
    return LinearGradients(dx, dw, db)


def embedding(
    grad: ArrayLike, ids: ArrayLike, num_embeddings: int, *, accumulate: Any = None
) -> Array:
    """y = weight[ids]:   dweight[id] = the sum of dy over all places that hold this id.

    grad (...,E), ids (...) -> (num_embeddings, E). Ids that occur twice add up, which
    `dweight[ids] += dy` does not do.
    """
    dy = float64(grad)
    total = np.zeros((num_embeddings, dy.shape[-1])) if accumulate is None else accumulate
    np.add.at(total, np.asarray(ids), dy)
    return total


# ---- norms ---------------------------------------------------------------------------------------


@ieee
def rms_norm(
    grad: ArrayLike, x: ArrayLike, weight: ArrayLike | None = None, *, eps: float
) -> NormGradients:
    """y = h · weight, h = x r, r = 1 / sqrt(mean(x²) + eps). With g = dy · weight:

    dx = r (g - h mean(g h)),   dweight = sum dy h over all rows.

    grad, x (...,n), weight (n,) -> x (...,n), weight (n,) or None. The second term takes from g
    what points along x: the output does not change with the length of x.
    """
    dy, h = float64(grad), float64(x)
    r = 1 / np.sqrt(mean(h * h) + eps)
    h = h * r
    g = dy if weight is None else dy * float64(weight)
    dx = r * (g - h * mean(g * h))
    return NormGradients(dx, None if weight is None else rows_of(dy * h).sum(axis=0))


@ieee
def layer_norm(
    grad: ArrayLike,
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float,
) -> LayerNormGradients:
    """y = h · weight + bias, h = (x - mean) r, r = 1 / sqrt(var + eps). With g = dy · weight:

    dx = r (g - mean(g) - h mean(g h)),   dweight = sum dy h,   dbias = sum dy.

    grad, x (...,n), weight and bias (n,) -> the same, or None for what was None.
    """
    dy, h = float64(grad), float64(x)
    h = h - mean(h)
    r = 1 / np.sqrt(mean(h * h) + eps)
    h = h * r
    g = dy if weight is None else dy * float64(weight)
    dx = r * (g - mean(g) - h * mean(g * h))
    dw = None if weight is None else rows_of(dy * h).sum(axis=0)
    return LayerNormGradients(dx, dw, None if bias is None else rows_of(dy).sum(axis=0))


# ---- rotary position embedding -------------------------------------------------------------------


def rope(
    grad: ArrayLike,
    *,
    layout: Layout,
    positions: ArrayLike | None = None,
    offset: int = 0,
    theta: float | None = None,
    inv_freq: ArrayLike | None = None,
    attention_factor: float = 1.0,
    rotary_dim: int | None = None,
) -> Array:
    """A pair was turned by an angle, so its gradient is turned back, by the same angle.

    grad (...,T,D) -> (...,T,D). A rotation's transpose is its inverse; the attention factor stays a
    factor and does not become a divisor. The gradient needs nothing of x.
    """
    if positions is None:
        positions = offset + np.arange(np.shape(grad)[-2])
    return rope_forward(
        grad, layout=layout, positions=-np.asarray(positions, np.int64), theta=theta,
        inv_freq=inv_freq, attention_factor=attention_factor, rotary_dim=rotary_dim,
    )  # fmt: skip


# ---- softmax -------------------------------------------------------------------------------------


@ieee
def softmax(
    grad: ArrayLike, output: ArrayLike, axis: int = -1, *, temperature: float = 1.0
) -> Array:
    """p = softmax(x / temperature):   dx = p (dp - sum(p dp)) / temperature.

    grad, output (...) -> (...). Needs the output p alone. The rows of dx sum to 0: adding a number
    to a row of x changes nothing.
    """
    dp, p = float64(grad), float64(output)
    return p * float64(dp - (p * dp).sum(axis=axis, keepdims=True)) / temperature


@ieee
def log_softmax(grad: ArrayLike, output: ArrayLike, axis: int = -1) -> Array:
    """y = x - log sum exp x:   dx = dy - exp(y) sum(dy). Needs the output y alone."""
    dy = float64(grad)
    return dy - np.exp(float64(output)) * float64(dy.sum(axis=axis, keepdims=True))


# ---- activations ---------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@ieee
def silu(grad: ArrayLike, x: ArrayLike) -> Array:
    """y = x s, s = sigmoid(x):   dx = dy s (1 + x (1 - s))."""
    h = float64(x)
    s = sigmoid(h)
    return float64(grad) * s * (1 + h * sigmoid(-h))  # sigmoid(-h) is 1 - s without cancellation


@ieee
def gelu(grad: ArrayLike, x: ArrayLike, *, approximate: Literal["none", "tanh"] = "none") -> Array:
    """y = x Φ(x):   dx = dy (Φ(x) + x φ(x)), φ the density of the normal distribution; or the
    derivative of the tanh approximation."""
    dy, h = float64(grad), float64(x)
    if approximate == "tanh":
        c = math.sqrt(2 / math.pi)
        u = c * (h + 0.044715 * h**3)
        s = sigmoid(2 * u)  # (1 + tanh u) / 2
        bend = 2 * s * sigmoid(-2 * u)  # (1 - tanh² u) / 2 without cancellation
        return dy * (s + h * bend * c * (1 + 3 * 0.044715 * h * h))
    density = np.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    return dy * (0.5 * erfc(-h / math.sqrt(2)) + h * density)


@ieee
def relu(grad: ArrayLike, x: ArrayLike) -> Array:
    """dx = dy where x > 0, else 0; 0 at 0 as in PyTorch."""
    return np.where(float64(x) > 0, float64(grad), 0)


@ieee
def swiglu(grad: ArrayLike, gate: ArrayLike, up: ArrayLike) -> SwigluGradients:
    """y = silu(gate) up:   dgate = dy up silu'(gate),   dup = dy silu(gate)."""
    dy, g, u = float64(grad), float64(gate), float64(up)
    return SwigluGradients(silu(dy * u, g), dy * g * sigmoid(g))


def repeat_kv(grad: ArrayLike, n_rep: int, *, axis: int = -3) -> Array:
    """Each head was repeated n_rep times in place: its gradient is the sum over its copies.

    grad (...,K·n_rep,S,D) -> (...,K,S,D)
    """
    dy = np.moveaxis(float64(grad), axis, 0)
    folded = dy.reshape(len(dy) // n_rep, n_rep, *dy.shape[1:]).sum(axis=1)
    return np.moveaxis(folded, 0, axis)


# ---- attention -----------------------------------------------------------------------------------


@ieee
def scaled_dot_product_attention(
    grad: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
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
    grad_lse: ArrayLike | None = None,
    needs: Sequence[str] = ("query", "key", "value"),
) -> AttentionGradients:
    """Gradients of softmax(s + mask) value, s = query keyᵀ scale, from out and lse of the forward:

        P      = exp(s + mask - lse)                  the weights again
        dvalue = Pᵀ dout
        dP     = dout valueᵀ
        dM     = P (dP - delta)                       delta = sum(dout out) - dlse, one a query
        ds     = dM                                   with a softcap: dM (1 - (s / softcap)²)
        dquery = ds key scale,   dkey = dsᵀ query scale

    grad, out (...,H,L,Dv), query (...,H,L,D), key (...,K,S,D), value (...,K,S,Dv), lse (...,H,L)
    -> gradients of the shapes of what they belong to: sums over the query heads that read a key
    head, and over all axes along which an array was broadcast. An additive mask's is the sum of dM,
    that of sinks (H,) is -exp(sink - lse) delta, summed. What a query does not see has no part in
    anything, not even as 0 · NaN; a query that sees nothing gives 0. FlashAttention-2,
    arXiv:2307.08691.
    """
    q, k, v, do, o = (float64(a) for a in (query, key, value, grad, out))
    no_heads = q.ndim == 2
    if no_heads:
        q, k, v, do, o = (a[None] for a in (q, k, v, do, o))
    log_sums, of_lse = (np.zeros(()) if a is None else float64(a) for a in (lse, grad_lse))
    if no_heads:
        log_sums, of_lse = log_sums[None], of_lse[None] if of_lse.ndim else of_lse
    heads, kv_heads = q.shape[-3], k.shape[-3]
    group = heads // max(kv_heads, 1)
    keys, values = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)

    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    capped = softcapped(q @ np.swapaxes(keys, -1, -2) * factor, softcap)
    masked, visible = masked_scores(
        capped, attn_mask, is_causal=is_causal, causal_offset=causal_offset, window=window,
        chunk=chunk, key_starts=key_starts, key_lengths=key_lengths,
        segment_ids=segment_ids, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    if masked is not capped:
        visible = visible & (masked != -np.inf)

    def seen(x: Array) -> Array:
        return np.where(visible, x, 0)

    shape = np.broadcast_shapes(visible.shape, masked.shape)
    visible = np.broadcast_to(visible, shape)
    weights = seen(np.exp(masked - log_sums[..., None]))
    delta = np.where(do == 0, 0, do * o).sum(axis=-1) - of_lse
    d_masked = seen(weights * (do @ np.swapaxes(values, -1, -2) - delta[..., None]))
    d_scores = d_masked if softcap is None else seen(d_masked * (1 - (capped / softcap) ** 2))
    seen_by = np.swapaxes(visible, -1, -2)

    def folded(x: Array, shape: tuple[int, ...]) -> Array:
        per_head = x.reshape(*x.shape[:-3], kv_heads, group, *x.shape[-2:]).sum(axis=-3)
        return sum_to(per_head, shape)

    dq = dk = dv = dm = ds = None
    if "query" in needs:
        dq = sum_to(weighted_sum(d_scores, keys, visible) * factor, np.shape(query))
    if "key" in needs:
        per_head = weighted_sum(np.swapaxes(d_scores, -1, -2), q, seen_by) * factor
        dk = folded(per_head, np.shape(key) if not no_heads else k.shape).reshape(np.shape(key))
    if "value" in needs:
        per_head = weighted_sum(np.swapaxes(weights, -1, -2), do, seen_by)
        dv = folded(per_head, np.shape(value) if not no_heads else v.shape).reshape(np.shape(value))
    if "attn_mask" in needs and attn_mask is not None:
        dm = sum_to(d_masked, np.shape(attn_mask))
    if "sinks" in needs and sinks is not None:
        shares = np.exp(float64(sinks)[:, None] - log_sums)
        of_rows = np.where(np.isneginf(log_sums), 0, -shares * delta)
        ds = np.moveaxis(of_rows, -2, 0).reshape(heads, -1).sum(axis=-1)
    return AttentionGradients(dq, dk, dv, dm, ds)


# ---- cross entropy -------------------------------------------------------------------------------


@ieee
def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    grad: ArrayLike = 1.0,
    lse: ArrayLike | None = None,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Array:
    """dlogits = g (p (1 + 2 z_loss lse) - target) of each row that counts, 0 of the others.

    logits (...,V), labels (...) -> (...,V); p = softmax(z). g is grad / count for the mean, grad
    for the sum, and one number a row (...) without a reduction. target is 1 - label_smoothing at
    the label plus label_smoothing / V everywhere. A softcap's derivative 1 - (z / softcap)² comes
    last. Each row sums to 0 where z_loss is 0.
    """
    z, count = softcapped(logits, softcap), counted(labels, ignore_index)
    log_sums = logsumexp(z) if lse is None else float64(lse)[..., None]
    if reduction == "mean" and not count.any():
        raise ValueError("backward.cross_entropy: labels has none that counts, needs at least one")
    g = float64(grad) * count / (count.sum() if reduction == "mean" else 1)
    label = np.where(count, labels, 0)[..., None]
    dz = np.exp(z - log_sums) * (1 + 2 * z_loss * log_sums) - label_smoothing / z.shape[-1]
    at_label = np.take_along_axis(dz, label, axis=-1) - (1 - label_smoothing)
    np.put_along_axis(dz, label, at_label, axis=-1)
    dz = np.where(count[..., None], dz * g[..., None], 0)
    return dz if softcap is None else dz * (1 - (z / softcap) ** 2)


@ieee
def linear_cross_entropy(
    x: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    *,
    count: int | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> LossAndGradients:
    """cross_entropy(linear(x, weight), labels), with the gradients of x and weight.

    x (...,E), weight (V,E), labels (...). `count` is how many labels the mean divides by, where
    that is not the number of those that count here: the labels of a whole batch of which this is a
    part.
    """
    h, w = float64(x), float64(weight)
    keep = counted(labels, ignore_index)
    found = int(keep.sum())
    if reduction == "mean" and not (found if count is None else count):
        raise ValueError("linear_cross_entropy: labels has none that counts, needs at least one")
    divisor = 1 if reduction == "sum" else found if count is None else count
    options: dict[str, Any] = {
        "reduction": "sum",
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "z_loss": z_loss,
        "softcap": softcap,
    }
    logits = h @ w.T
    dz = cross_entropy(logits, labels, grad=1 / divisor, **options)
    loss = cross_entropy_forward(logits, labels, **options) / divisor
    return LossAndGradients(loss, found, dz @ w, rows_of(dz).T @ rows_of(h))
