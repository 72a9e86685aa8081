"""Mixtures of experts: which experts each token goes through, and each expert on all its tokens.

`simdformer.nn` shows MixtureOfExperts; models take the parts that it is made of. Letters in shapes:
X experts, k of them a token, E hidden_size.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from simdformer.arguments import as_array, is_whole, shown
from simdformer.functional import linear, softmax, swiglu
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

__all__ = ["Chosen", "MixtureOfExperts", "expert_weights", "likeliest"]

Step = Callable[[list[int], Array], Sequence[Array]]


def likeliest(logits: Array, count: int) -> Array:
    """The experts (..., k) with the largest logits (..., X), the largest first; of equals the one
    with the lower number."""
    order = np.argsort(-widened(logits), axis=-1, kind="stable")
    return order[..., :count]


def expert_weights(logits: Array, ids: Array, *, normalize: bool) -> Array:
    """How much each of the experts ids (..., k) counts: softmax(logits)[ids], divided by their sum
    where they are normalised, which is the softmax of their logits alone."""
    wide = widened(logits)
    if normalize:
        return softmax(np.take_along_axis(wide, ids, axis=-1))
    return np.take_along_axis(softmax(wide), ids, axis=-1)


class Chosen:
    """The experts ids (..., k) that tokens go through, no token twice through one.

    Each expert is called once, on all its tokens; those of a single token, where they read the
    same, all at once. What a token gets does not depend on the others. `held`: only these experts
    are here, and are called by their place among them; what the others would make is 0.
    """

    def __init__(self, ids: Array, held: range | None = None) -> None:
        self.shape = ids.shape
        self.ids = ids.reshape(-1, ids.shape[-1])
        first = 0 if held is None else held.start
        self.places: list[tuple[int, Any, Any]] = [  # expert, tokens, places among their k
            (expert - first, tokens, places)
            for expert, tokens, places in self.by_expert()
            if held is None or expert in held
        ]
        self.complete = held is None
        if not self.places:  # an expert is asked all the same, for the shape of nothing
            nobody = np.arange(0)
            self.places = [(0, nobody, nobody)]

    def by_expert(self) -> Iterator[tuple[int, Any, Any]]:
        """Each expert that is asked, its tokens, and which of their k it is."""
        if len(self.ids) == 1:
            for place in np.argsort(self.ids[0]).tolist():
                yield int(self.ids[0, place]), slice(1), place
            return
        order = np.argsort(self.ids, axis=None, kind="stable")
        experts, starts = np.unique(self.ids.ravel()[order], return_index=True)
        for expert, part in zip(experts.tolist(), np.split(order, starts[1:]), strict=False):
            yield expert, *np.divmod(part, self.shape[-1])

    def each(self, x: Array, step: Step) -> list[Array]:
        """What step(experts, rows (n, I)), as many arrays (n, O) for each of the experts, makes of
        the rows of x (..., k, I), or of x (..., 1, I), which all experts of a token read: arrays
        (..., k, O)."""
        x, shared = x.reshape(len(self.ids), *x.shape[-2:]), x.shape[-2] == 1
        at_once = shared and len(self.ids) == 1
        results: list[Array] = []
        for asked in [self.places] if at_once else [[one] for one in self.places]:
            experts, tokens, places = zip(*asked, strict=True)
            found = step(list(experts), x[tokens[0], 0 if shared else places[0]])
            count = len(found) // len(asked)
            if not results:
                new = np.empty if self.complete else np.zeros
                shape = self.ids.shape
                results = [new((*shape, one.shape[-1]), one.dtype) for one in found[:count]]
            for number, one in enumerate(found):
                of_expert, which = divmod(number, count)
                results[which][tokens[of_expert], places[of_expert]] = one
        return [result.reshape(*self.shape, result.shape[-1]) for result in results]

    def total(self, x: Array, weights: Array) -> Array:
        """x (..., k, E), weights (..., k) -> (..., E): their weighted sum in float32 at least, for
        each token from its first expert to its last."""
        x = x.reshape(*self.ids.shape, x.shape[-1])
        weights = weights.reshape(self.ids.shape)
        total = np.zeros((len(x), x.shape[-1]), np.promote_types(x.dtype, np.float32))
        for _, tokens, places in self.places:
            total[tokens] += weights[tokens, places][:, None] * x[tokens, places]
        return total.reshape(*self.shape[:-1], x.shape[-1]).astype(x.dtype, copy=False)


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
    called on every token too and added (an MLP: DeepSeek, MiniMind). Of equal logits that of the
    lower number wins.

    Calling it: x (..., E) -> (..., E). Each expert is called once, on all its tokens; what a token
    gets does not depend on which others come with it. `route(x)` tells which experts those are and
    how much they count.

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
        experts = likeliest(logits, self.num_experts_per_tok)
        return experts, expert_weights(logits, experts, normalize=self.normalize)

    def __call__(self, x: ArrayLike) -> Array:
        experts, weights = self.route(x)
        x, chosen = as_array("MixtureOfExperts", "x", x), Chosen(experts)
        gate, up = chosen.each(
            x[..., None, :],
            lambda experts, rows: linear(
                rows, [one[i] for i in experts for one in (self.gate, self.up)]
            ),
        )
        act = swiglu(gate, up, out=gate)
        (out,) = chosen.each(
            act, lambda experts, rows: linear(rows, [self.down[i] for i in experts])
        )
        total = chosen.total(out, weights)
        return total if self.shared is None else np.asarray(total + self.shared(x))

    def __repr__(self) -> str:
        inner, hidden_size = shape_of(self.gate[0])
        return (
            f"MixtureOfExperts(hidden_size={hidden_size}, intermediate_size={inner}, "
            f"num_experts={len(self.gate)}, num_experts_per_tok={self.num_experts_per_tok})"
        )
