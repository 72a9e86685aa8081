"""Mixtures of experts: which experts each token goes through, and all of them in one call.

Models and `nn.MixtureOfExperts` are made of these. Letters in shapes: X experts, k of them a token,
E hidden_size.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from simdformer import _core
from simdformer.functional import softmax
from simdformer.types import Array, ArrayLike

__all__ = ["combine_experts", "expert_linear", "expert_weights", "top_k"]


def top_k(logits: ArrayLike, k: int) -> Array:
    """The experts (..., k) with the largest logits (..., X), the largest first; of equals the one
    with the lower number. NaN counts as minus infinity.

    ValueError: k is not 1 to X.

    >>> import numpy as np
    >>> from simdformer.experts import top_k
    >>> top_k(np.array([0.5, 2.0, 1.0]), 2)
    array([1, 2])
    """
    return _core.top_k(logits, k)


def expert_weights(logits: Array, ids: Array, *, normalize: bool) -> Array:
    """How much each of the experts ids (..., k) counts: softmax(logits)[ids], divided by their sum
    where they are normalised, which is the softmax of their logits alone."""
    wide = widened(logits)
    if normalize:
        return softmax(taken(wide, ids))
    return taken(softmax(wide), ids)


def expert_linear(
    x: ArrayLike,
    ids: ArrayLike,
    weights: Sequence[Sequence[Any]],
    biases: Sequence[Sequence[Any] | None] | None = None,
    *,
    arithmetic: Literal["int16", "float32"] = "int16",
) -> list[Array]:
    """x (..., k, I), or x (..., 1, I), which all experts of a token read; ids (..., k) -> for each
    of the weights, a list (O, I) over the experts, what they make of it, (..., k, O).

    One call for all experts, each of which has all its tokens: what a token gets does not depend on
    the others. For ids without a place in the lists, experts that others hold, it is 0.

    TypeError, ValueError: as `linear`; the leading axes of x and ids differ, or the lists' lengths.

    >>> import numpy as np
    >>> from simdformer.experts import expert_linear
    >>> experts = [np.full((1, 2), n, np.float32) for n in range(3)]
    >>> (y,) = expert_linear(np.ones((4, 1, 2), np.float32), [[2, 1]] * 4, [experts])
    >>> y[0]
    array([[4.],
           [2.]], dtype=float32)
    """
    return _core.expert_linear(x, ids, weights, biases, arithmetic)


def combine_experts(x: ArrayLike, weights: ArrayLike) -> Array:
    """x (..., k, E), weights (..., k) -> (..., E): their weighted sum, in float32 at least and in
    this order.

    ValueError: weights do not have the shape of x without its last axis.

    >>> import numpy as np
    >>> from simdformer.experts import combine_experts
    >>> combine_experts(np.ones((2, 3), np.float32), np.array([0.25, 0.5], np.float32))
    array([0.75, 0.75, 0.75], dtype=float32)
    """
    return _core.combine_experts(x, weights)


# The names until 0.1: for one release.
FORMER = {"likeliest": "top_k", "linear_chosen": "expert_linear", "mixed": "combine_experts"}


def __getattr__(name: str) -> Any:
    if name not in FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"simdformer.experts.{name} is called {FORMER[name]} now",
        DeprecationWarning,
        stacklevel=2,
    )
    return globals()[FORMER[name]]


def taken(x: Array, ids: Array) -> Array:
    """The elements ids (..., k) of each row of x (..., X)."""
    rows = x.reshape(-1, x.shape[-1])
    found: Array = rows[np.arange(len(rows))[:, None], ids.reshape(-1, ids.shape[-1])]
    return found.reshape(ids.shape)


def widened(x: Array) -> Array:
    """In float32 at least."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)
