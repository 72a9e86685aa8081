"""Mixtures of experts: which experts each token goes through, and all of them in one call.

`simdformer.nn` shows MixtureOfExperts; models take the parts that it is made of. Letters in shapes:
X experts, k of them a token, E hidden_size.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from simdformer import _core
from simdformer.arguments import as_array, is_whole, shown
from simdformer.functional import softmax, swiglu
from simdformer.layer_checks import (
    Weight,
    check_input,
    check_shape,
    each_of,
    linear_of,
    shape_of,
    two_axes,
)
from simdformer.types import Array, ArrayLike

__all__ = ["MixtureOfExperts", "combine_experts", "expert_linear", "expert_weights", "top_k"]


def top_k(logits: ArrayLike, k: int) -> Array:
    """The experts (..., k) with the largest logits (..., X), the largest first; of equals the one
    with the lower number. NaN counts as minus infinity.

    ValueError: k is not 1 to X.

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


class MixtureOfExperts:
    """X MLPs, of which each token goes through the k that a router likes best: the sum of what they
    write, down (silu(gate x) · up x), times their weights.

    Shazeer et al. 2017, with the SwiGLU of Mixtral and Qwen3-MoE. router: (X, E), whose logits are
    router x + router_bias. gate, up, down: for each expert a weight, (intermediate_size, E) twice
    and (E, intermediate_size): a list, or an array (X, ...). The weights are the softmax over the
    logits of the k chosen, or, without `normalize`, that over all X. `shared`, if there is one, is
    called on every token too and added (an MLP: DeepSeek, MiniMind). Where logits are equal the
    lower number wins.

    Calling it: x (..., E) -> (..., E). Each expert is read once, for all its tokens. With packed
    or quantised weights what a token gets does not depend on which others come with it. `route(x)`
    tells which experts those are and how much they count.

    ValueError: num_experts_per_tok is not 1 to X; a shape does not fit.

    >>> import numpy as np
    >>> from simdformer import nn
    >>> router = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    >>> gate = up = np.ones((3, 4, 2), np.float32)
    >>> down = np.ones((3, 2, 4), np.float32)
    >>> moe = nn.MixtureOfExperts(router, gate, up, down, num_experts_per_tok=2)
    >>> experts, weights = moe.route(np.array([[0, 1], [-1, 0]], np.float32))
    >>> experts
    array([[1, 0],
           [2, 1]])
    >>> moe(np.ones((5, 2), np.float32)).shape
    (5, 2)
    """

    def __init__(
        self,
        router: Weight,
        gate: Sequence[Weight] | ArrayLike,
        up: Sequence[Weight] | ArrayLike,
        down: Sequence[Weight] | ArrayLike,
        *,
        num_experts_per_tok: int,
        normalize: bool = True,
        router_bias: ArrayLike | None = None,
        shared: Callable[[Any], Array] | None = None,
    ) -> None:
        me = "MixtureOfExperts"
        count, hidden_size = two_axes(me, "router", router)
        self.gate, self.up, self.down = (
            each_of(me, *one, count) for one in (("gate", gate), ("up", up), ("down", down))
        )
        inner = (*shape_of(self.gate[0], me, "gate[0]"), 0)[0]
        for number, (one, two, three) in enumerate(zip(self.gate, self.up, self.down, strict=True)):
            check_shape(me, f"gate[{number}]", one, (inner, hidden_size), "(intermediate_size, E)")
            check_shape(me, f"up[{number}]", two, (inner, hidden_size), "(intermediate_size, E)")
            check_shape(
                me, f"down[{number}]", three, (hidden_size, inner), "(E, intermediate_size)"
            )
        if not is_whole(num_experts_per_tok) or num_experts_per_tok > count:
            raise ValueError(
                f"{me}: num_experts_per_tok is {shown(num_experts_per_tok)}, needs 1 to {count}, "
                "the number of experts"
            )
        self.router, self.router_bias = router, router_bias
        self.num_experts_per_tok, self.normalize = num_experts_per_tok, normalize
        self.shared = shared

    def route(self, x: ArrayLike) -> tuple[Array, Array]:
        """x (..., E) -> the experts (..., k), the likeliest first, and their weights (..., k)."""
        check_input("MixtureOfExperts", "x", x, "(..., {})", shape_of(self.router)[1])
        logits = linear_of(x, self.router, self.router_bias)
        experts = top_k(logits, self.num_experts_per_tok)
        return experts, expert_weights(logits, experts, normalize=self.normalize)

    def __call__(self, x: ArrayLike) -> Array:
        experts, weights = self.route(x)
        x = as_array("MixtureOfExperts", "x", x)
        gate, up = expert_linear(x[..., None, :], experts, [self.gate, self.up])
        (out,) = expert_linear(swiglu(gate, up, out=gate), experts, [self.down])
        total = combine_experts(out, weights)
        return total if self.shared is None else np.asarray(total + self.shared(x))

    def __repr__(self) -> str:
        inner, hidden_size = shape_of(self.gate[0])
        return (
            f"MixtureOfExperts(hidden_size={hidden_size}, intermediate_size={inner}, "
            f"num_experts={len(self.gate)}, num_experts_per_tok={self.num_experts_per_tok})"
        )
