"""The forwards that `accelerate` gives to modules.

Each stands in place of a module's own `forward`, computes the same and holds the weights as our
kernels read them. Tensors go in and come out, `on_array` is the same on arrays. Those of attention
and of a whole layer of transformers: simdformer.transformers.forwards.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch

from simdformer.functional import (
    PackedWeight,
    QuantizedWeight,
    embedding,
    linear,
    rms_norm,
    swiglu,
)
from simdformer.torch.memory import array_of, refuse_gradients, tensor_of
from simdformer.torch.wrapping import outside_graphs
from simdformer.types import Array

__all__ = ["Embedding", "Forward", "Linear", "RMSNorm", "SwiGLU", "Weight", "is_ours", "ours"]

Weight = Array | PackedWeight | QuantizedWeight


class Forward(ABC):
    """What stands in place of a module's own `forward`: deleting it brings that back.

    `parts` are modules that are computed here instead of being called: as long as one of them has
    hooks, the module does as it is written, so that they run.
    """

    def __init__(self, module: Any, parts: tuple[Any, ...] = ()) -> None:
        self.module, self.parts = module, parts
        self.hooks = [
            hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)
        ]

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return outside_graphs(self.called)(*inputs, **options)
        return self.called(*inputs, **options)

    def called(self, *inputs: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            given = (*inputs, *options.values(), *self.module.parameters())
            refuse_gradients(type(self.module).__name__, *given)
        if any(self.hooks):
            return self.as_written(*inputs, **options)
        return self.compute(*inputs, **options)

    def as_written(self, *inputs: Any, **options: Any) -> Any:
        return type(self.module).forward(self.module, *inputs, **options)

    @abstractmethod
    def compute(self, *inputs: Any, **options: Any) -> Any: ...


class Linear(Forward):
    """x (...,I) -> (...,O)"""

    def __init__(self, module: Any, weight: Weight) -> None:
        super().__init__(module)
        self.weight = weight
        self.bias = None if module.bias is None else array_of(module.bias.detach())

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        return tensor_of(self.on_array(array_of(input)))

    def on_array(self, x: Array) -> Array:
        return linear(x, self.weight, self.bias)


class Embedding(Forward):
    """ids (...) -> (...,E), of a weight that is packed for a lm_head anyway"""

    def __init__(self, module: Any, weight: Weight) -> None:
        super().__init__(module)
        self.weight, self.dtype = weight, array_of(module.weight.detach()[:0]).dtype

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        return tensor_of(embedding(input.numpy(), self.weight, dtype=self.dtype))


class RMSNorm(Forward):
    """x (...,n) -> (...,n)"""

    def __init__(self, module: Any, eps: float) -> None:
        super().__init__(module)
        self.weight, self.eps = array_of(module.weight.detach()), eps

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return tensor_of(self.on_array(array_of(x)))

    def on_array(self, x: Array) -> Array:
        return rms_norm(x, self.weight, eps=self.eps)


class SwiGLU(Forward):
    """x (B,L,E) -> (B,L,E): down(silu(gate x) * up x), gate and up in one pass over x"""

    def __init__(self, module: Any) -> None:
        super().__init__(module, (module.gate_proj, module.up_proj, module.down_proj))
        gate, up, self.down = map(ours, self.parts)
        self.gate_up, self.bias = [gate.weight, up.weight], [gate.bias, up.bias]

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return tensor_of(self.on_array(array_of(x)))

    def on_array(self, x: Array) -> Array:
        gate, up = linear(x, self.gate_up, self.bias)
        out: Array = self.down.on_array(swiglu(gate, up, out=gate))
        return out


def ours(module: Any) -> Any:
    """The forward that `accelerate` gave to a module; those inside another are first."""
    return module.__dict__["forward"]


def is_ours(module: torch.nn.Module) -> bool:
    return isinstance(module.__dict__.get("forward"), Forward)
