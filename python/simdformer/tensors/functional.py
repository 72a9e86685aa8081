"""The operations of `simdformer.functional` on tensors: `simdformer.torch` shows them."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, Protocol, cast, overload

from torch import Tensor

from simdformer import functional, loss
from simdformer.functional import PackedWeight, QuantizedWeight, RopeFrequencies
from simdformer.tensors import operators
from simdformer.tensors.gradients import linear_of_packed
from simdformer.tensors.wrapping import on_tensors, wants_gradient

__all__ = [
    "causal_mask",
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
    "rope_frequencies",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "swiglu",
]


P = ParamSpec("P")


def wrapped(
    function: Callable[P, Any], of_packed: Callable[..., Any] | None = None
) -> Callable[P, Tensor]:
    """A function on tensors; in graphs the operator of its name, where there is one."""
    return on_tensors(function, operators.traced(function.__name__), of_packed)


class Linear(Protocol):
    """The types of `linear`: one weight gives a tensor, several a list."""

    @overload
    def __call__(
        self,
        x: Tensor,
        weight: Tensor | PackedWeight | QuantizedWeight,
        bias: Tensor | None = None,
        *,
        arithmetic: Literal["int16", "float32"] = "int16",
        out: Tensor | None = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        weight: list[Any] | tuple[Any, ...],
        bias: Sequence[Tensor | None] | None = None,
        *,
        arithmetic: Literal["int16", "float32"] = "int16",
        out: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor]: ...


linear = cast("Linear", wrapped(functional.linear, linear_of_packed))
embedding = wrapped(functional.embedding)
rms_norm = wrapped(functional.rms_norm)
layer_norm = wrapped(functional.layer_norm)
rope = wrapped(functional.rope)
silu = wrapped(functional.silu)
gelu = wrapped(functional.gelu)
relu = wrapped(functional.relu)
swiglu = wrapped(functional.swiglu)
softmax = wrapped(functional.softmax)
repeat_kv = wrapped(functional.repeat_kv)
causal_mask = wrapped(functional.causal_mask)
rope_frequencies = cast("Callable[..., RopeFrequencies]", wrapped(functional.rope_frequencies))
# With return_weights and the like it gives a tuple.
scaled_dot_product_attention = cast(
    "Callable[..., Any]",
    wrapped(functional.scaled_dot_product_attention),
)

log_softmax = wrapped(loss.log_softmax)
cross_entropy = cast("Callable[..., Any]", wrapped(loss.cross_entropy))  # a pair with return_lse
loss_and_gradients = wrapped(operators.linear_cross_entropy)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    count: int | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """cross_entropy(linear(x, weight), labels), without the logits in memory.

    x (..., E), weight (V, E), labels (...) -> the loss, float32 (float64 for float64). Arguments
    and errors are those of `simdformer.linear_cross_entropy`. Where autograd records, the gradients
    of x and weight are made together with the loss; the way back multiplies them.
    """
    needs = [name for name, one in (("x", x), ("weight", weight)) if wants_gradient([one])]
    return loss_and_gradients(
        x,
        weight,
        labels,
        count=count,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        softcap=softcap,
        needs=needs,
    )[0]


linear_cross_entropy.__module__ = "simdformer.torch"
