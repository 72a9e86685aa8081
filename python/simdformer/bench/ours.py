"""simdformer as a contestant: outputs in place, weights packed."""

import numpy as np

from simdformer import functional as sf
from simdformer.bench.contestants import Contestant, Way
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

__all__ = ["NAME", "TWIN", "contestants", "way"]

NAME = "simdformer"
TWIN = "in float32"  # ours, on the same numbers in float32


def contestants(work: Work, inputs: Inputs) -> list[Contestant]:
    """Ours; beside decode attention in 16 bits also ours on the same numbers in float32."""
    found = [Contestant(NAME, (way(work, inputs),))]
    if isinstance(work, Attention) and not work.causal and work.dtype != "float32":
        wide = {name: np.asarray(array, np.float32) for name, array in inputs.items()}
        found.append(Contestant(TWIN, (way(work, wide),), peer=False))
    return found


def way(work: Work, inputs: Inputs) -> Way:
    """One call of ours into an output that exists already."""
    match work:
        case Attention():
            q, k, v, causal = inputs["q"], inputs["k"], inputs["v"], work.causal
            out = np.empty_like(q)
            return Way(
                "scaled_dot_product_attention",
                lambda: sf.scaled_dot_product_attention(q, k, v, is_causal=causal, out=out),
                same,
            )
        case Linear():
            x, weight = inputs["x"], inputs["weight"]
            out = np.empty((work.rows, work.width_out), x.dtype)
            if work.packed:
                packed = sf.pack(weight)
                return Way("linear, packed", lambda: sf.linear(x, packed, out=out), same)
            return Way("linear", lambda: sf.linear(x, weight, out=out), same)
        case RMSNorm():
            x, weight = inputs["x"], inputs["weight"]
            out = np.empty_like(x)
            return Way("rms_norm", lambda: sf.rms_norm(x, weight, eps=EPS, out=out), same)
        case Softmax():
            x, out = inputs["x"], np.empty_like(inputs["x"])
            return Way("softmax", lambda: sf.softmax(x, out=out), same)
        case SwiGLU():
            gate, up, out = inputs["gate"], inputs["up"], np.empty_like(inputs["up"])
            return Way("swiglu", lambda: sf.swiglu(gate, up, out=out), same)
        case RoPE():
            x, layout, out = inputs["x"], work.layout, np.empty_like(inputs["x"])
            return Way(
                "rope",
                lambda: sf.rope(x, layout=layout, offset=POSITION, theta=THETA, out=out),
                same,
            )
    raise TypeError(f"bench: {type(work).__name__} is no operation of ours")


def same(result: Array) -> Array:
    return result
