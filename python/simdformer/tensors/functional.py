"""The operations of `simdformer.functional` on tensors: `simdformer.torch` shows them."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast, overload

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


linear = cast("Linear", on_tensors(functional.linear, traced("linear")))
embedding = on_tensors(functional.embedding, traced("embedding"))
rms_norm = on_tensors(functional.rms_norm, traced("rms_norm"))
layer_norm = on_tensors(functional.layer_norm, traced("layer_norm"))
rope = on_tensors(functional.rope, traced("rope"))
silu = on_tensors(functional.silu, traced("silu"))
gelu = on_tensors(functional.gelu, traced("gelu"))
relu = on_tensors(functional.relu, traced("relu"))
swiglu = on_tensors(functional.swiglu, traced("swiglu"))
softmax = on_tensors(functional.softmax, traced("softmax"))
repeat_kv = on_tensors(functional.repeat_kv, traced("repeat_kv"))
causal_mask = on_tensors(functional.causal_mask)
rope_frequencies = cast("Callable[..., RopeFrequencies]", on_tensors(functional.rope_frequencies))
# With return_weights and the like it gives a tuple.
scaled_dot_product_attention = cast(
    "Callable[..., Any]",
    on_tensors(functional.scaled_dot_product_attention, traced("scaled_dot_product_attention")),
)
