"""The operations, on numpy arrays: each checks its arguments and runs a SIMD kernel.

Names and keywords are those of torch.nn.functional where it has them. What all of them share:

- dtypes are float32, float64, float16 and bfloat16 (`ml_dtypes`); the result has that of the first
  argument. 16-bit numbers are computed in float32 and rounded once. Integers, and a float64 beside
  a float32, are a TypeError: nothing is cast behind your back. Beside a float32 `x`, parameters may
  be 16-bit; beside a 16-bit `x` they may be float32.
- numpy arrays with any strides on the leading axes, and CPU tensors of other libraries that speak
  DLPack, are read where they lie; results are numpy arrays. Lists go through `np.asarray`.
- `out=` takes the result: a writable array of its shape and dtype, or a tensor on the CPU, which is
  returned. It may be the input itself where the operation goes element by element or row by row.
- What does not fit raises TypeError (kind, dtype), ValueError (shape, value), IndexError (ids) or
  BufferError (a tensor that is not on the CPU), and the message says what to do.

The same operations in a few lines of plain numpy each: `simdformer.reference`. Those on attention
are defined in attention.py, rope_frequencies in rope_scaling.py.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

from simdformer import _core
from simdformer._core import PackedWeight
from simdformer.attention import causal_mask, repeat_kv, scaled_dot_product_attention, softmax
from simdformer.quantization.types import QuantizationType, quantization_types
from simdformer.quantization.weight import QuantizedWeight, quantize
from simdformer.reference import RopeFrequencies
from simdformer.rope_scaling import rope_frequencies
from simdformer.types import Array, ArrayLike, DTypeLike, Out, SupportsDLPack

__all__ = [
    "PackedWeight",
    "QuantizationType",
    "QuantizedWeight",
    "RopeFrequencies",
    "causal_mask",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "pack",
    "quantization_types",
    "quantize",
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


# ---- linear --------------------------------------------------------------------------------------


@overload
def linear(
    x: ArrayLike,
    weight: Array | SupportsDLPack | PackedWeight | QuantizedWeight,
    bias: ArrayLike | None = None,
    *,
    arithmetic: Literal["int16", "float32"] = "int16",
    out: Out | None = None,
) -> Array: ...
@overload
def linear(
    x: ArrayLike,
    weight: list[Any] | tuple[Any, ...],
    bias: Sequence[ArrayLike | None] | None = None,
    *,
    arithmetic: Literal["int16", "float32"] = "int16",
    out: Sequence[Out | None] | None = None,
) -> list[Array]: ...
def linear(
    x: ArrayLike,
    weight: Any,
    bias: Any = None,
    *,
    arithmetic: Literal["int16", "float32"] = "int16",
    out: Any = None,
) -> Any:
    """x weightᵀ + bias, as torch.nn.functional.linear.

    Parameters
    ----------
    x : (..., I)
    weight : (O, I), or what `pack` or `quantize` makes of it, or a list of those
        A row for each output. A list shares one pass over x (wq, wk, wv; gate, up): bias and out
        are then lists too (None, or with None for those that have none), and a list comes back.
    bias : (O,), optional
    arithmetic : "int16" or "float32"
        How x, which is not float64 then, meets a quantised weight; others take no notice. "int16"
        rounds x to 16-bit integers, with a scale for every 32 inputs: an error of 2e-5 to 5e-5 of
        the result, whose bits are the same for every number of rows and threads. "float32" takes
        it as it is: the bits are those of the packed weight.dequantize().
    out : (..., O) ndarray or tensor, optional
        Takes the result. May not share memory with an input. A float32 ndarray beside an x of 16
        bits takes the sums before they are rounded.

    Returns
    -------
    ndarray (..., O) in the dtype of x, or a list of them. With I = 0 it is the bias, or 0.

    TypeError: dtypes that do not fit, such as a float64 weight beside a float32 x. ValueError:
    shapes that do not, such as a weight (I, O): transpose it.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x, w = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)
    >>> sf.linear(x, w).shape
    (2, 4)
    >>> q, k = sf.linear(x, [w, sf.pack(w[:2])])
    >>> k
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    return _core.linear(x, weight, bias, arithmetic, out)


@overload
def pack(weight: Array | SupportsDLPack) -> PackedWeight: ...
@overload
def pack(weight: QuantizedWeight) -> QuantizedWeight: ...
def pack(weight: Any) -> Any:
    """A weight (O, I) repacked once for the speed of every later `linear`.

    The result has .shape, .dtype, .nbytes and .unpack(); its pickle can be read on any machine.
    Packing changes no bits. Later changes of `weight` are not seen. Beside a bfloat16 x, packed
    bfloat16 weights use the CPU's own dot product where it has one (AVX512-BF16), which takes
    subnormal numbers for zero. A quantised weight is packed already and comes back as it is.

    TypeError: weight is not of a float dtype. ValueError: it does not have two axes.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> packed = sf.pack(np.eye(3, dtype=np.float16))
    >>> packed
    PackedWeight(shape=(3, 3), dtype=float16)
    >>> bool((packed.unpack() == np.eye(3)).all())
    True
    """
    return weight if isinstance(weight, QuantizedWeight) else _core.pack(weight)


def embedding(
    ids: ArrayLike,
    weight: ArrayLike | PackedWeight | QuantizedWeight,
    *,
    dtype: DTypeLike | None = None,
    out: Out | None = None,
) -> Array:
    """The rows of weight (V,E) that ids (...) name: (..., E), as `dtype` when one is given.

    For a packed weight they are those that were packed, for a quantised one what its `dequantize`
    gives, in float32 without a `dtype`.

    IndexError: an id outside 0 ... V-1, negative ones too; the message names it and its place.
    TypeError: ids that are not integers, a weight that is not of a float dtype. ValueError: a
    weight that does not have two axes.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> sf.embedding([2, 0], np.array([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]), dtype=np.float32)
    array([[2. , 2.5],
           [0. , 0.5]], dtype=float32)
    """
    return _core.embedding(ids, weight, dtype, out)


# ---- norms ---------------------------------------------------------------------------------------


def rms_norm(
    x: ArrayLike, weight: ArrayLike | None = None, *, eps: float, out: Out | None = None
) -> Array:
    """x / sqrt(mean(x²) + eps) · weight over the last axis. Zhang and Sennrich 2019.

    x (..., n), weight (n,). eps has no default, because guessing it is a common silent error:
    a config calls it rms_norm_eps or norm_eps. 16-bit inputs are computed in float32 throughout.

    TypeError: dtypes. ValueError: shapes; eps is not >= 0 and finite.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> sf.rms_norm(np.array([3.0, 4.0]), eps=0.0).round(4)
    array([0.8485, 1.1314])
    """
    return _core.rms_norm(x, weight, eps, out)


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float,
    out: Out | None = None,
) -> Array:
    """(x - mean) / sqrt(var + eps) · weight + bias over the last axis. Ba et al. 2016.

    x (..., n), weight and bias (n,). The variance is the mean of the squares, not divided by n-1.
    eps has no default. 16-bit inputs are computed in float32 throughout.

    TypeError: dtypes. ValueError: shapes; eps is not >= 0 and finite.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> sf.layer_norm(np.array([1.0, 2.0, 3.0]), eps=0.0).round(4)
    array([-1.2247,  0.    ,  1.2247])
    """
    return _core.layer_norm(x, weight, bias, eps, out)


# ---- rotary position embedding -------------------------------------------------------------------


def rope(
    x: ArrayLike,
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
    """Rotary position embedding: pair i of position p is turned by p · theta^(-2i/D).

    Su et al. 2021, "RoFormer", arXiv:2104.09864.

    Parameters
    ----------
    x : (..., T, D), D even where there is no rotary_dim
        Queries or keys, heads split.
    layout : "half" or "interleaved"
        Which elements are a pair: (i, i + D/2) as in Hugging Face checkpoints, or (2i, 2i + 1) as
        in Meta's. No default: the wrong one gives plausible nonsense.
    positions : (T,) or (B, T) integers, optional
        B is the first axis of x. Without them: offset, offset + 1, ...
    offset : int
        Position of the first token, the length of the cache for instance.
    theta : float, optional
        10000 if neither it nor inv_freq is given.
    inv_freq : (rotary_dim/2,), optional
        The frequencies themselves, from `rope_frequencies`; excludes theta.
    attention_factor : float
        Multiplies cos and sin (YaRN).
    rotary_dim : int, optional
        An even number: only the first rotary_dim elements are turned, the others are copied.

    TypeError: dtypes, positions that are not integers. ValueError: an odd D or rotary_dim, shapes,
    a layout that is neither, positions beside an offset, inv_freq beside theta.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.array([[1.0, 0.0], [1.0, 0.0]])             # two positions, one pair
    >>> sf.rope(x, layout="half").round(4)                 # the second is turned by 1 radian
    array([[1.    , 0.    ],
           [0.5403, 0.8415]])
    """
    return _core.rope(
        False, x, layout, positions, offset, theta, inv_freq, attention_factor, rotary_dim, out
    )


# ---- activations ---------------------------------------------------------------------------------


def silu(x: ArrayLike, *, out: Out | None = None) -> Array:
    """x · sigmoid(x) = x / (1 + exp(-x)), also called swish. TypeError: not a float dtype.

    >>> import simdformer as sf
    >>> sf.silu([-1.0, 0.0, 1.0]).round(4)
    array([-0.2689,  0.    ,  0.7311])
    """
    return _core.silu(x, out)


def gelu(
    x: ArrayLike, *, approximate: Literal["none", "tanh"] = "none", out: Out | None = None
) -> Array:
    """x · Φ(x), Φ the normal distribution, or its tanh approximation. Hendrycks and Gimpel 2016.

    TypeError: not a float dtype. ValueError: `approximate` is neither "none" nor "tanh".

    >>> import simdformer as sf
    >>> sf.gelu([-1.0, 0.0, 1.0]).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    return _core.gelu(x, approximate, out)


def relu(x: ArrayLike, *, out: Out | None = None) -> Array:
    """max(x, 0); NaN stays NaN. TypeError: not a float dtype.

    >>> import simdformer as sf
    >>> sf.relu([-1.0, 0.0, 1.0])
    array([0., 0., 1.])
    """
    return _core.relu(x, out)


def swiglu(gate: ArrayLike, up: ArrayLike, *, out: Out | None = None) -> Array:
    """silu(gate) · up, the inside of a Llama MLP: down(swiglu(gate(x), up(x))). Shazeer 2020.

    gate and up have the same shape and dtype; out may be either of them.
    TypeError: dtypes. ValueError: shapes.

    >>> import simdformer as sf
    >>> sf.swiglu([-1.0, 0.0, 1.0], [2.0, 2.0, 2.0]).round(4)
    array([-0.5379,  0.    ,  1.4621])
    """
    return _core.swiglu(gate, up, out)
