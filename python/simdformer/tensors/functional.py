"""The operations of `simdformer.functional` on tensors: `simdformer.torch` shows them."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, Protocol, cast, overload

from torch import Tensor

from simdformer import functional
from simdformer.functional import PackedWeight, QuantizedWeight, RopeFrequencies
from simdformer.tensors.operators import traced
from simdformer.tensors.wrapping import on_tensors

__all__ = [
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


P = ParamSpec("P")


def wrapped(function: Callable[P, Any]) -> Callable[P, Tensor]:
    """A function on tensors; in graphs the operator of its name, where there is one."""
    return on_tensors(function, traced(function.__name__))


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


linear = cast("Linear", wrapped(functional.linear))
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
