"""numpy as a contestant: the obvious lines that one writes without a library for it.

16-bit numbers are computed in float32 and rounded at the end, because numpy has no kernels for
them that anybody would wait for.
"""

from collections.abc import Callable

import numpy as np

from simdformer.bench.contestants import Contestant, Missing, Way
from simdformer.bench.operations import (
    EPS,
    POSITION,
    THETA,
    Attention,
    Linear,
    RMSNorm,
    RoPE,
    Softmax,
    SwiGLU,
)
from simdformer.bench.work import Inputs, Work
from simdformer.types import Array

__all__ = ["NAME", "contestant"]

NAME = "numpy"
LARGEST = 512 << 20  # bytes of scores or of a widened weight; a baseline need not fill the memory
MOST_FLOPS = 40e9  # a second, or several where numpy was built without a good BLAS


def contestant(work: Work, inputs: Inputs) -> Contestant | Missing:
    """The naive computation, left out where it would take long or fill the memory."""
    if scratch(work) > LARGEST or work.flops > MOST_FLOPS:
        return Missing(NAME, "too large for the naive way")
    dtype = next(iter(inputs.values())).dtype
    compute = computation(work, inputs)
    call = compute if dtype == np.float32 else lambda: compute().astype(dtype)
    return Contestant(NAME, (Way("naive", call, lambda result: result),), peer=False)


def scratch(work: Work) -> int:
    """Bytes of the largest array that the naive way makes."""
    match work:
        case Attention():
            repeated = work.heads * work.keys * work.head_dim
            return 4 * max(work.heads * work.queries * work.keys, repeated)
        case Linear() if work.weight_dtype != "float32":
            return 4 * work.width_in * work.width_out
    return work.nbytes


def computation(work: Work, inputs: Inputs) -> Callable[[], Array]:
    def wide(name: str) -> Array:
        return np.asarray(inputs[name], np.float32)  # no copy of what is float32 already

    match work:
        case Attention():
            return lambda: attention(wide("q"), wide("k"), wide("v"), work.causal)
        case Linear():
            return lambda: wide("x") @ wide("weight").T
        case RMSNorm():
            return lambda: rms_norm(wide("x"), wide("weight"))
        case Softmax():
            return lambda: softmax(wide("x"))
        case SwiGLU():
            return lambda: swiglu(wide("gate"), wide("up"))
        case RoPE():
            cos, sin = cos_and_sin(work)
            return lambda: rope(wide("x"), cos, sin, work.layout)
    raise TypeError(f"bench: {type(work).__name__} is not written in numpy")


def attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    shared_by = len(q) // len(k)
    if shared_by > 1:
        k, v = np.repeat(k, shared_by, axis=0), np.repeat(v, shared_by, axis=0)
    scores = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    if causal:
        scores = np.where(np.tri(q.shape[-2], k.shape[-2], dtype=bool), scores, -np.inf)
    z: Array = softmax(scores) @ v
    return z


def softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    weights: Array = e / e.sum(axis=-1, keepdims=True)
    return weights


def rms_norm(x: Array, weight: Array) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPS)) * weight
    return normed


def swiglu(gate: Array, up: Array) -> Array:
    act: Array = gate / (1 + np.exp(-gate)) * up
    return act


def cos_and_sin(work: RoPE) -> tuple[Array, Array]:
    """(tokens, head_dim/2) each, in float32; they can be computed once, so they are not timed."""
    inv_freq = THETA ** (-np.arange(0, work.head_dim, 2) / work.head_dim)
    angle = (POSITION + np.arange(work.tokens))[:, None] * inv_freq
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rope(x: Array, cos: Array, sin: Array, layout: str) -> Array:
    if layout == "half":
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
