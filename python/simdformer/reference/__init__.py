"""Every operation of the package in plain float64 numpy: the specification, the oracle, to be read.

    forward.py     the operations
    loss.py        log-softmax and the cross entropy
    backward.py    their gradients: reference.backward.rms_norm(grad, x, weight, eps=...)

Nothing here is fast, and nothing here needs the compiled module.
"""

from simdformer.reference import backward
from simdformer.reference.forward import (
    RopeFrequencies,
    causal_mask,
    embedding,
    gelu,
    layer_norm,
    linear,
    relu,
    repeat_kv,
    rms_norm,
    rope,
    rope_frequencies,
    scaled_dot_product_attention,
    silu,
    softmax,
    swiglu,
)

__all__ = [
    "RopeFrequencies",
    "backward",
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
