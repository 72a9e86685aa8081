"""The forwards that `accelerate` gives to modules.

Each stands in place of a module's own `forward`, computes the same and holds the weights as our
kernels read them. Tensors go in and come out, `on_array` is the same on arrays. Those of attention
and of a whole layer of transformers: simdformer.transformers.forwards.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from simdformer.functional import (
    PackedWeight,
    QuantizedWeight,
    embedding,
    linear,
    rms_norm,
    swiglu,
)
from simdformer.tensors.memory import array_of, refuse_gradients, tensor_of
from simdformer.tensors.wrapping import outside_graphs
from simdformer.types import Array

__all__ = [
    "Embedding",
    "Forward",
    "Held",
    "Linear",
    "RMSNorm",
    "SwiGLU",
    "Weight",
    "is_ours",
    "linear_together",
    "ours",
    "shared",
]

Weight = Array | PackedWeight | QuantizedWeight


WATCHED = 32  # numbers of a packed matrix, side by side: one or two cache lines


class Held:
    """A parameter of a module as our kernels read it; made again after the parameter has changed.

    Operations in place count up the version of a tensor, and a tensor in another memory has another
    address. What is written through `.data` does neither: where the parameter was copied, a few
    numbers in its middle are compared, so that a change of the whole matrix is seen.
    """

    def __init__(
        self, module: Any, name: str, make: Callable[[torch.Tensor], Any], value: Any = None
    ) -> None:
        """`value`: what `make` gives, where it was made already."""
        self.module, self.name, self.make = module, name, make
        self.value = make(self.parameter) if value is None else value
        self.watch()

    @property
    def parameter(self) -> torch.Tensor:
        found: torch.Tensor | None = self.module._parameters.get(self.name)
        if found is None:  # something makes it, a parametrisation for instance
            found = getattr(self.module, self.name)
        return found

    def now(self) -> Any:
        """What the kernels read of the parameter as it is now."""
        parameter = self.parameter
        if stamp_of(parameter) != self.stamp or self.sample.tobytes() != self.seen:
            if parameter.is_meta:
                raise RuntimeError(
                    f"{type(self.module).__name__}: {self.name} was written, but its memory was "
                    "released; load it by load_state_dict(..., assign=True), or call "
                    "restore(model) first"
                )
            self.value = self.make(parameter)
            self.watch()
        return self.value

    def watch(self) -> None:
        """Remembers what the parameter is now."""
        parameter = self.parameter
        self.stamp = stamp_of(parameter)
        copied = not isinstance(self.value, np.ndarray) and not parameter.is_meta
        self.sample = sample_of(parameter) if copied else np.empty(0)
        self.seen = self.sample.tobytes()


def stamp_of(parameter: torch.Tensor) -> tuple[int, int]:
    """Its version, which tensors made in inference mode do not have, and its address."""
    version = 0 if parameter.is_inference() else parameter._version
    return version, parameter.data_ptr()


def sample_of(matrix: torch.Tensor) -> Array:
    """Some numbers of a matrix (O,I), where they lie."""
    array = array_of(matrix.detach())
    rows, columns = array.shape
    return array[rows // 2, columns // 2 : columns // 2 + WATCHED]


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

    def __init__(self, module: Any, weight: Held) -> None:
        super().__init__(module)
        self.held_weight = weight
        self.held_bias = None if module.bias is None else Held(module, "bias", shared)

    @property
    def weight(self) -> Weight:
        found: Weight = self.held_weight.now()
        return found

    @property
    def bias(self) -> Array | None:
        return None if self.held_bias is None else self.held_bias.now()

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        return tensor_of(self.on_array(array_of(input)))

    def on_array(self, x: Array) -> Array:
        return linear(x, self.weight, self.bias)


class Embedding(Forward):
    """ids (...) -> (...,E), of a weight that is packed for a lm_head anyway"""

    def __init__(self, module: Any, weight: Held) -> None:
        super().__init__(module)
        self.held_weight, self.dtype = weight, array_of(module.weight.detach()[:0]).dtype

    @property
    def weight(self) -> Weight:
        found: Weight = self.held_weight.now()
        return found

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        return tensor_of(embedding(input.numpy(), self.weight, dtype=self.dtype))


class RMSNorm(Forward):
    """x (...,n) -> (...,n)"""

    def __init__(self, module: Any, eps: float) -> None:
        super().__init__(module)
        self.weight, self.eps = Held(module, "weight", shared), eps

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return tensor_of(self.on_array(array_of(x)))

    def on_array(self, x: Array) -> Array:
        return rms_norm(x, self.weight.now(), eps=self.eps)


class SwiGLU(Forward):
    """x (B,L,E) -> (B,L,E): down(silu(gate x) * up x), gate and up in one pass over x"""

    def __init__(self, module: Any) -> None:
        super().__init__(module, (module.gate_proj, module.up_proj, module.down_proj))
        self.gate, self.up, self.down = map(ours, self.parts)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return tensor_of(self.on_array(array_of(x)))

    def on_array(self, x: Array) -> Array:
        gate, up = linear_together(x, (self.gate, self.up))
        out: Array = self.down.on_array(swiglu(gate, up, out=gate))
        return out


def linear_together(x: Array, projections: tuple[Linear, ...]) -> list[Array]:
    """x (...,I) -> (...,O) by each, in one pass over x"""
    weights: Any = [one.weight for one in projections]
    return linear(x, weights, [one.bias for one in projections])


def shared(parameter: torch.Tensor) -> Array:
    """A parameter that is read where it lies."""
    return array_of(parameter.detach())


def ours(module: Any) -> Any:
    """The forward that `accelerate` gave to a module; those inside another are first."""
    return module.__dict__["forward"]


def is_ours(module: torch.nn.Module) -> bool:
    return isinstance(module.__dict__.get("forward"), Forward)
