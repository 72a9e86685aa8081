"""The gradients of the operations: `simdformer.backward.rms_norm` is the way back of `rms_norm`.

A function has the name of its forward. `grad` comes first, the gradient of the output, which has
its shape and dtype; then what the forward took, or the output where that is enough. Several
gradients are a named tuple by argument. There is no tape: a gradient is a formula that can be read,
in float64 numpy in `simdformer.reference.backward`.

- Gradients of inputs have the inputs' dtype. Gradients of parameters (weight, bias) are float32
  beside 16-bit and float32 inputs, float64 beside float64.
- 16-bit numbers are computed in float32 and rounded once, at the store.
- `accumulate={"weight": array}` adds into that array, of the gradient's dtype, and gives it back.
- The same bits for every number of threads, gradients of parameters too: how sums over rows are cut
  depends on sizes alone.
- `out=` takes a gradient, and may be exactly `grad` or the input whose place it takes.
- Strides, other libraries' arrays, lists, empty arrays and errors are those of the forward.

>>> import numpy as np
>>> import simdformer as sf
>>> x, weight = np.array([[1.0, 2.0, 2.0]]), np.array([1.0, 2.0, 3.0])
>>> dx, dweight = sf.backward.rms_norm(np.ones((1, 3)), x, weight, eps=0.0)
>>> bool(abs((x * dx).sum()) < 1e-12)                   # the length of x changes nothing
True
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from simdformer import _core
from simdformer.arguments import as_array, as_floats, is_whole, read_names, read_whole, shown
from simdformer.loss import check_reduction, counted
from simdformer.reference.backward import (
    AttentionGradients,
    LayerNormGradients,
    LinearGradients,
    NormGradients,
    SwigluGradients,
    sum_to,
)
from simdformer.reference.loss import Reduction
from simdformer.types import Array, ArrayLike, Out

__all__ = [
    "AttentionGradients",
    "LayerNormGradients",
    "LinearGradients",
    "NormGradients",
    "SwigluGradients",
    "cross_entropy",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
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

LINEAR_NEEDS = ("x", "weight", "bias")


def plus(function: str, gradient: Array, name: str, accumulate: Mapping[str, Any]) -> Array:
    """The gradient, added into what `accumulate` has under its name."""
    total = accumulate.get(name)
    if total is None:
        return gradient
    if not isinstance(total, np.ndarray) or total.dtype != gradient.dtype:
        found = getattr(total, "dtype", type(total).__name__)
        raise TypeError(
            f"{function}: accumulate[{name!r}] has dtype {found}, "
            f"needs a numpy array of {gradient.dtype}"
        )
    if not total.flags.writeable:
        raise ValueError(f"{function}: accumulate[{name!r}] is read-only, needs a writable array")
    if total.shape != gradient.shape:
        raise ValueError(
            f"{function}: accumulate[{name!r}] has shape {total.shape}, needs {gradient.shape}"
        )
    np.add(total, gradient, out=total)
    return total


# ---- linear, embedding ---------------------------------------------------------------------------


def linear(
    grad: Any,
    x: ArrayLike,
    weight: Any,
    *,
    needs: Sequence[str] = LINEAR_NEEDS,
    accumulate: Mapping[str, Any] | None = None,
) -> LinearGradients:
    """y = x weightᵀ + bias:   dx = dy weight,   dweight = dyᵀ x,   dbias = sum of dy's rows.

    Parameters
    ----------
    grad : (..., O), or a list of them
        Of the result; one for each weight of a list.
    x : (..., I)
    weight : (O, I), or what `pack` or `quantize` makes of it, or a list of those
        A quantised weight has no gradient of its own: needs=("x",).
    needs : names out of "x", "weight", "bias"
        What to compute; the rest is None.
    accumulate : dict by these names, optional
        Arrays to add into; for a list of weights lists of arrays.

    Returns
    -------
    LinearGradients(x, weight, bias)
        x (..., I) in x's dtype, over a list of weights the sum, weight (O, I) and bias (O,) in
        float32 (float64 for float64), lists for a list of weights.

    TypeError: dtypes that differ; the gradient of a quantised weight. ValueError: shapes, unknown
    names.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x, weight, grad = np.ones((5, 3)), np.ones((2, 3)), np.ones((5, 2))
    >>> sf.backward.linear(grad, x, weight, needs=("weight",)).weight
    array([[5., 5., 5.],
           [5., 5., 5.]])
    """
    function = "backward.linear"
    wanted = read_names(function, "needs", needs, LINEAR_NEEDS)
    totals = {} if accumulate is None else accumulate
    if not isinstance(totals, Mapping):
        raise TypeError(
            f"{function}: accumulate is {shown(totals)}, needs a dict of arrays by name"
        )
    read_names(function, "accumulate", list(totals), LINEAR_NEEDS)
    several = isinstance(weight, list | tuple)
    if several and not isinstance(grad, list | tuple):
        raise TypeError(f"{function}: grad is {shown(grad)}, needs a list, one for each weight")
    grads, weights = (tuple(grad), tuple(weight)) if several else ((grad,), (weight,))
    if "weight" in wanted:
        for one in weights:
            if isinstance(one, _core.QuantizedPanels):
                raise TypeError(
                    f"{function}: weight is quantised, needs a float one to have a gradient; "
                    'pass needs=("x",)'
                )
    of_x, of_weights, of_biases = _core.linear_backward(
        grads, x, weights, several, "x" in wanted, "weight" in wanted, "bias" in wanted, False, None
    )

    def of_each(name: str, gradients: list[Array]) -> Any:
        if name not in wanted:
            return None
        given = totals.get(name)
        arrays = given if several and given is not None else [given] * len(gradients)
        if len(arrays) != len(gradients):
            raise ValueError(
                f"{function}: accumulate[{name!r}] has {len(arrays)} arrays, needs {len(gradients)}"
            )
        pairs = zip(gradients, arrays, strict=True)
        summed = [plus(function, one, name, {name: total}) for one, total in pairs]
        return summed if several else summed[0]

    dx = plus(function, of_x, "x", totals) if "x" in wanted else None
    return LinearGradients(dx, of_each("weight", of_weights), of_each("bias", of_biases))


def embedding(
    grad: ArrayLike, ids: ArrayLike, num_embeddings: int, *, accumulate: Array | None = None
) -> Array:
    """y = weight[ids]:   dweight[id] = the sum of dy over all places that hold this id.

    grad (..., E), ids (...) -> (num_embeddings, E) in float32 (float64 for float64), or added into
    `accumulate`. An id that stands in several places gets the sum, in their order.

    TypeError: dtypes. ValueError: shapes. IndexError: an id that is not in 0..num_embeddings - 1.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> sf.backward.embedding(np.ones((3, 2)), [1, 0, 1], 3)
    array([[1., 1.],
           [2., 2.],
           [0., 0.]])
    """
    count = read_whole("backward.embedding", "num_embeddings", num_embeddings)
    if accumulate is None:
        rows = as_floats("backward.embedding", "grad", grad)
        wide = np.float64 if rows.dtype == np.float64 else np.float32
        accumulate = np.zeros((count, rows.shape[-1] if rows.ndim else 0), wide)
    _core.embedding_backward(grad, ids, accumulate)
    return accumulate


# ---- norms ---------------------------------------------------------------------------------------


def rms_norm(
    grad: ArrayLike,
    x: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    eps: float,
    out: Out | None = None,
) -> NormGradients:
    """y = h · weight, h = x r, r = 1 / sqrt(mean(x²) + eps). With g = dy · weight:

    dx = r (g - h mean(g h)),   dweight = sum of dy h over all rows.

    grad and x (..., n), weight (n,) -> NormGradients(x, weight), weight None where there is none.
    `out` takes the gradient of x. The second term takes from g what points along x, because the
    output does not change with the length of x. For Gemma's 1 + weight pass that: its gradient is
    the same.

    TypeError: dtypes. ValueError: shapes; eps < 0.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> sf.backward.rms_norm(np.array([[1.0, 0.0]]), np.array([[3.0, 4.0]]), eps=0.0).x.round(4)
    array([[ 0.181 , -0.1358]])
    """
    of_x, of_weight, _ = _core.rms_norm_backward(grad, x, weight, eps, out)
    return NormGradients(of_x, of_weight)


def layer_norm(
    grad: ArrayLike,
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float,
    out: Out | None = None,
) -> LayerNormGradients:
    """y = h · weight + bias, h = (x - mean) r, r = 1 / sqrt(var + eps). With g = dy · weight:

    dx = r (g - mean(g) - h mean(g h)),   dweight = sum of dy h,   dbias = sum of dy.

    grad and x (..., n), weight and bias (n,) -> LayerNormGradients(x, weight, bias), None for what
    was None. `out` takes the gradient of x. Each row of dx sums to 0.

    TypeError: dtypes. ValueError: shapes; eps < 0.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x, grad = np.array([[1.0, 2.0, 6.0]]), np.array([[1.0, 0.0, 0.0]])
    >>> abs(sf.backward.layer_norm(grad, x, eps=0.0).x.sum()).round(9)
    np.float64(0.0)
    """
    return LayerNormGradients(*_core.layer_norm_backward(grad, x, weight, bias, eps, out))


# ---- rotary position embedding, softmax ----------------------------------------------------------


def rope(
    grad: ArrayLike,
    *,
    layout: Literal["half", "interleaved"],
    positions: ArrayLike | None = None,
    offset: int = 0,
    theta: float | None = None,
    inv_freq: ArrayLike | None = None,
    attention_factor: float = 1.0,
    rotary_dim: int | None = None,
    out: Out | None = None,
) -> Array:
    """A pair was turned by an angle: its gradient is turned back, by the same angle.

    grad (..., T, D) -> (..., T, D); the keywords are those of `rope`. The transpose of a rotation
    is its inverse; the attention factor stays a factor. Nothing is needed of x.

    TypeError, ValueError: as `rope`.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> bool(np.allclose(sf.backward.rope(sf.rope(x, layout="half"), layout="half"), x))
    True
    """
    return _core.rope(
        True, grad, layout, positions, offset, theta, inv_freq, attention_factor, rotary_dim, out
    )


def softmax(
    grad: ArrayLike,
    output: ArrayLike,
    axis: int = -1,
    *,
    temperature: float = 1.0,
    out: Out | None = None,
) -> Array:
    """p = softmax(x / temperature):   dx = p (dp - sum(p dp)) / temperature.

    grad and output (...) -> (...). It needs the output p and nothing else. Rows of dx sum to 0.

    TypeError: dtypes. ValueError: shapes; no such axis; a temperature not > 0 and finite.

    >>> import simdformer as sf
    >>> sf.backward.softmax([1.0, 0.0], [0.25, 0.75])
    array([ 0.1875, -0.1875])
    """
    return _core.softmax_backward(grad, output, axis, temperature, out)


def log_softmax(
    grad: ArrayLike, output: ArrayLike, axis: int = -1, *, out: Out | None = None
) -> Array:
    """y = log_softmax(x):   dx = dy - exp(y) sum(dy).

    grad and output (...) -> (...). It needs the output y and nothing else.

    TypeError: dtypes. ValueError: shapes; no such axis.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> sf.backward.log_softmax([1.0, 0.0], np.log([0.25, 0.75]))
    array([ 0.75, -0.75])
    """
    return _core.log_softmax_backward(grad, output, axis, out)


# ---- activations ---------------------------------------------------------------------------------


def silu(grad: ArrayLike, x: ArrayLike, *, out: Out | None = None) -> Array:
    """dx = dy s (1 + x (1 - s)), s = sigmoid(x). grad and x (...) -> (...). TypeError: dtypes.

    >>> import simdformer as sf
    >>> sf.backward.silu([1.0, 1.0], [0.0, 2.0]).round(4)
    array([0.5   , 1.0908])
    """
    return _core.silu_backward(grad, x, out)


def gelu(
    grad: ArrayLike,
    x: ArrayLike,
    *,
    approximate: Literal["none", "tanh"] = "none",
    out: Out | None = None,
) -> Array:
    """dx = dy (Φ(x) + x φ(x)), or the derivative of the tanh approximation. grad, x (...) -> (...).

    TypeError: dtypes. ValueError: shapes; `approximate` is neither "none" nor "tanh".

    >>> import simdformer as sf
    >>> sf.backward.gelu([1.0, 1.0], [0.0, 2.0]).round(4)
    array([0.5   , 1.0852])
    """
    return _core.gelu_backward(grad, x, approximate, out)


def relu(grad: ArrayLike, x: ArrayLike, *, out: Out | None = None) -> Array:
    """dx = dy where x > 0, else 0. grad and x (...) -> (...). TypeError: dtypes.

    >>> import simdformer as sf
    >>> sf.backward.relu([1.0, 1.0], [0.0, 2.0])
    array([0., 1.])
    """
    return _core.relu_backward(grad, x, out)


def swiglu(
    grad: ArrayLike,
    gate: ArrayLike,
    up: ArrayLike,
    *,
    out: tuple[Out | None, Out | None] | None = None,
) -> SwigluGradients:
    """y = silu(gate) up:   dgate = dy up silu'(gate),   dup = dy silu(gate).

    grad, gate and up (...) -> SwigluGradients(gate, up). `out` is a pair, either of which may be
    one of the three inputs: (gate, up) writes the gradients where those were.

    TypeError: dtypes. ValueError: shapes; arrays that overlap otherwise.

    >>> import simdformer as sf
    >>> dgate, dup = sf.backward.swiglu([1.0], [0.0], [3.0])
    >>> dgate, dup
    (array([1.5]), array([0.]))
    """
    if out is None:
        out = (None, None)
    elif not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"backward.swiglu: out is {shown(out)}, needs a pair: (of gate, of up)")
    return SwigluGradients(*_core.swiglu_backward(grad, gate, up, *out))


def repeat_kv(grad: ArrayLike, n_rep: int, *, axis: int = -3) -> Array:
    """Each head stood n_rep times in place: its gradient is the sum over its copies.

    grad (..., K·n_rep, S, D) -> (..., K, S, D), in grad's dtype.

    TypeError: dtypes. ValueError: n_rep does not divide the axis.

    >>> import simdformer as sf
    >>> sf.backward.repeat_kv([1.0, 2.0, 3.0, 4.0], 2, axis=0)
    array([3., 7.])
    """
    function = "backward.repeat_kv"
    given, copies = as_floats(function, "grad", grad), read_whole(function, "n_rep", n_rep)
    if not is_whole(axis, -given.ndim) or axis >= given.ndim:
        raise ValueError(
            f"{function}: axis is {shown(axis)}, needs one of grad's {given.ndim} axes"
        )
    dy = np.moveaxis(given, axis, 0)
    if len(dy) % copies:
        raise ValueError(
            f"{function}: n_rep is {copies}, needs a number >= 1 that divides the "
            f"{len(dy)} heads of grad"
        )
    wide = dy.dtype if dy.dtype.itemsize > 2 else np.dtype(np.float32)
    pairs = dy.reshape(len(dy) // copies, copies, *dy.shape[1:])
    return np.moveaxis(pairs.sum(axis=1, dtype=wide).astype(dy.dtype, copy=False), 0, axis)


# ---- cross entropy -------------------------------------------------------------------------------


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
    out: Out | None = None,
) -> Array:
    """dlogits = g (softmax(logits) - target), 0 for rows that do not count.

    Parameters
    ----------
    logits : (..., V)
    labels : (...) integers
    grad : number, or (...) for reduction="none"
        Of the loss. g is grad / count for the mean over the rows that count, else grad.
    lse : (...), optional
        From `cross_entropy(..., return_lse=True)`; computed again without it.
    reduction, ignore_index, label_smoothing, z_loss, softcap
        As in `cross_entropy`.
    out : (..., V), optional
        Takes the result; may be `logits` itself, whose place the gradient then takes.

    TypeError: dtypes. ValueError: shapes; a mean over no row. IndexError: a label that is neither
    in 0..V - 1 nor ignore_index.

    >>> import simdformer as sf
    >>> sf.backward.cross_entropy([[0.0, 0.0, 0.0, 0.0]], [1])
    array([[ 0.25, -0.75,  0.25,  0.25]])
    """
    function = "backward.cross_entropy"
    check_reduction(function, reduction)
    scale, scales = 1.0, None
    if reduction == "none":
        scales = as_array(function, "grad", grad)
        if scales.ndim == 0 and scales.dtype.kind in "fiu":
            shape = as_array(function, "labels", labels).shape
            scales = np.broadcast_to(scales.astype(np.float64), shape)
    else:
        given = as_array(function, "grad", grad)
        if given.size != 1 or given.dtype.kind not in "fiu":
            raise TypeError(f"{function}: grad is {shown(grad)}, needs a number")
        scale = float(given.reshape(()))
        if reduction == "mean":
            scale /= counted(function, labels, ignore_index)
    return _core.cross_entropy_backward(
        function, logits, labels, ignore_index, label_smoothing, z_loss, softcap, scale, scales,
        lse, out, 0, 0,
    )  # fmt: skip


# ---- attention -----------------------------------------------------------------------------------

ATTENTION_NEEDS = AttentionGradients._fields


def scaled_dot_product_attention(
    grad: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    out: ArrayLike | None = None,
    lse: ArrayLike | None = None,
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
    segment_ids: Any = None,
    cu_seqlens: Any = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    block_table: Any = None,
    grad_lse: ArrayLike | None = None,
    needs: Sequence[str] = ("query", "key", "value"),
) -> AttentionGradients:
    """The gradients of attention, from what its forward gave: out and the log-sum-exp.

    With s = query keyᵀ scale, m the mask, P = exp(s + m - lse), 0 where a key is not seen, and
    delta = sum(grad out) - grad_lse:

        dvalue = Pᵀ grad          dM = P (grad valueᵀ - delta)          ds = dM
        dquery = ds key scale     dkey = dsᵀ query scale                dmask = dM

    with a softcap ds = dM (1 - (s / softcap)²), and dsink = -exp(sink - lse) delta. Sums over the
    query heads that read a key head, and over the axes along which an array was broadcast, are
    made.

    Parameters
    ----------
    grad : (..., H, L, Dv), the dtype of out
    query, key, value, attn_mask and all keywords : as in the forward
        block_table is refused: pages are a cache, and a cache has no gradient.
    out, lse : (..., H, L, Dv), (..., H, L)
        What `sf.scaled_dot_product_attention(..., return_lse=True)` gave.
    grad_lse : (..., H, L), optional
        The gradient of lse, where something was made of that too.
    needs : names out of "query", "key", "value", "attn_mask", "sinks"
        What to compute; the rest is None. A boolean mask has no gradient.

    Returns
    -------
    AttentionGradients(query, key, value, attn_mask, sinks)
        Each of the shape and dtype of its argument. A query that sees no key gives 0. A hidden NaN
        stays hidden.

    The arithmetic is float32 (float64 for float64). Tiles that nobody sees are skipped, P is never
    held as a whole. The same bits for every number of threads. FlashAttention-2, arXiv:2307.08691.

    TypeError: dtypes; out or lse is None; the gradient of a boolean mask. ValueError: shapes,
    unknown names, a block_table, and what the forward refuses.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> q, k, v, grad = np.random.default_rng(0).standard_normal((4, 2, 5, 8), dtype=np.float32)
    >>> out, lse = sf.scaled_dot_product_attention(q, k, v, is_causal=True, return_lse=True)
    >>> gradients = sf.backward.scaled_dot_product_attention(
    ...     grad, q, k, v, out, lse, is_causal=True
    ... )
    >>> bool(abs(gradients.key.sum(axis=1)).max() < 1e-5)    # the same for all keys changes nothing
    True
    """
    function = "backward.scaled_dot_product_attention"
    wanted = read_names(function, "needs", needs, ATTENTION_NEEDS)
    if out is None or lse is None:
        raise TypeError(
            f"{function}: {'out' if out is None else 'lse'} is None, needs that of the forward; "
            "out, lse = sf.scaled_dot_product_attention(..., return_lse=True)"
        )
    if block_table is not None:
        raise ValueError(
            f"{function}: block_table is given, needs keys and values as arrays; "
            "pages are a cache and have no gradient"
        )
    if "sinks" in wanted and sinks is None:
        raise ValueError(f"{function}: needs has 'sinks', needs sinks for that")
    try:
        *gradients, delta = _core.scaled_dot_product_attention_backward(
            grad, query, key, value, out, lse, attn_mask, dropout_p, is_causal, scale, enable_gqa,
            causal_offset, window, chunk, key_starts, key_lengths, segment_ids, cu_seqlens, softcap,
            sinks, grad_lse, *(name in wanted for name in ATTENTION_NEEDS),
        )  # fmt: skip
    except (TypeError, ValueError, BufferError) as error:  # the forward's checks, in its name
        if str(error).startswith("scaled_dot_product_attention:"):
            raise type(error)(f"backward.{error}") from None
        raise
    given = {"query": query, "key": key, "value": value, "attn_mask": attn_mask}
    arrays = {
        name: gradient if gradient is None else of_argument(gradient, as_array(function, name, one))
        for (name, one), gradient in zip(given.items(), gradients, strict=True)
    }
    if delta is not None:
        arrays["sinks"] = of_sinks(
            as_array(function, "sinks", sinks), as_array(function, "lse", lse), delta
        )
    return AttentionGradients(**{"sinks": None, **arrays})


def of_argument(gradient: Array, array: Array) -> Array:
    """Summed over the axes along which the argument was broadcast, in its dtype."""
    if gradient.shape == array.shape:
        return gradient.astype(array.dtype, copy=False)
    total = sum_to(gradient.astype(np.float64, copy=False), array.shape)
    return total.astype(array.dtype, copy=False)


def of_sinks(sinks: Array, lse: Array, delta: Array) -> Array:
    """A sink has no value: of its weight, exp(sink - lse), comes -weight delta a query."""
    with np.errstate(all="ignore"):
        weights = np.exp(sinks.astype(np.float64)[:, None] - lse)
    return sum_to(-weights * delta, (*sinks.shape, 1))[:, 0].astype(sinks.dtype)
