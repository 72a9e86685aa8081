"""The forwards that `accelerate` gives to modules.

Each stands in place of a module's own `forward`, computes the same and holds the weights as our
kernels read them. Tensors go in and come out. In between stand the functions of `f`: those of
arrays, or those of tensors where autograd records, which it does where `accelerate` was told to
train. Those of attention and of a whole layer of transformers: simdformer.transformers.forwards.
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
    rope,
    swiglu,
)
from simdformer.tensors import functional
from simdformer.tensors.memory import array_of, dtype_of, no_gradient, tensor_of
from simdformer.tensors.wrapping import outside_graphs, wants_gradient
from simdformer.types import Array

__all__ = [
    "Embedding",
    "Forward",
    "Held",
    "Linear",
    "OnArrays",
    "OnTensors",
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

    It may be another tensor by now. Operations in place count up the version of a tensor, and one
    in another memory has another address. What is written through `.data` does neither: where the
    parameter was copied, a few numbers in its middle are compared, so that a change of the whole
    matrix is seen.
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
        found: torch.Tensor = parameter_of(self.module, self.name)
        return found

    def now(self) -> Any:
        """What the kernels read of the parameter as it is now."""
        parameter = self.parameter
        if (
            parameter is not self.watched
            or stamp_of(parameter) != self.stamp
            or self.sample.tobytes() != self.seen
        ):
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
        self.watched = parameter = self.parameter
        self.stamp = stamp_of(parameter)
        copied = not isinstance(self.value, np.ndarray) and not parameter.is_meta
        self.sample = sample_of(parameter) if copied else np.empty(0)
        self.seen = self.sample.tobytes()


def parameter_of(module: Any, name: str) -> Any:
    """A parameter of a module, None where it has none of that name."""
    parameters = module._parameters
    # one that is not among them is made by something, a parametrisation for instance
    return parameters[name] if name in parameters else getattr(module, name)


def stamp_of(parameter: torch.Tensor) -> tuple[int, int]:
    """Its version, which tensors made in inference mode do not have, and its address."""
    version = 0 if parameter.is_inference() else parameter._version
    return version, parameter.data_ptr()


def sample_of(matrix: torch.Tensor) -> Array:
    """Some numbers of a matrix (O,I), where they lie."""
    array = array_of(matrix.detach())
    rows, columns = array.shape
    return array[rows // 2, columns // 2 : columns // 2 + WATCHED]


class OnArrays:
    """The functions of a forward, on arrays."""

    linear: Any = staticmethod(linear)
    rms_norm: Any = staticmethod(rms_norm)
    swiglu: Any = staticmethod(swiglu)
    rope: Any = staticmethod(rope)

    @staticmethod
    def of(x: torch.Tensor) -> Any:
        """What goes into a function."""
        return array_of(x)

    @staticmethod
    def out(x: Any) -> torch.Tensor:
        """What came out of one."""
        return tensor_of(x)

    @staticmethod
    def weight(held: Held) -> Any:
        return held.now()


class OnTensors(OnArrays):
    """The same where autograd records: weights that learn are read as they are."""

    linear = staticmethod(functional.linear)
    rms_norm = staticmethod(functional.rms_norm)
    rope = staticmethod(functional.rope)

    @staticmethod
    def swiglu(gate: torch.Tensor, up: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        """`out` has the bits that the way back needs, and stays."""
        return functional.swiglu(gate, up)

    @staticmethod
    def of(x: torch.Tensor) -> Any:
        return x

    @staticmethod
    def out(x: Any) -> torch.Tensor:
        found: torch.Tensor = x
        return found

    @staticmethod
    def weight(held: Held) -> Any:
        if held.parameter.requires_grad:
            return held.parameter
        value = held.now()
        return held.parameter if isinstance(value, np.ndarray) else value


F = type[OnArrays]
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class Forward(ABC):
    """What stands in place of a module's own `forward`: deleting it brings that back.

    The modules inside are computed here instead of being called. Where one of them has hooks, or
    another one stands in its place by now, an adapter for instance, the module does as it is
    written and calls them.
    """

    trains = False  # whether autograd may record
    functions: tuple[F, F] = OnArrays, OnTensors  # the second where it does

    def __init__(self, module: Any) -> None:
        self.module = module
        modules = list(module.modules())
        self.inside = modules[1:]
        self.forwards = [one.__dict__.get("forward") for one in self.inside]
        self.children = [one._modules for one in modules if one._modules]
        self.known = [list(children.values()) for children in self.children]
        self.hooks = [getattr(one, hooks) for one in self.inside for hooks in HOOKS]

    def is_whole(self) -> bool:
        """Whether the modules inside are those that it was made of, without hooks.

        Every call looks at this; lists that are compared as a whole take the least time.
        """
        return (
            not any(self.hooks)
            and [list(children.values()) for children in self.children] == self.known
            and [one.__dict__.get("forward") for one in self.inside] == self.forwards
        )

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return outside_graphs(self.called)(*inputs, **options)
        return self.called(*inputs, **options)

    def called(self, *inputs: Any, **options: Any) -> Any:
        recorded = torch.is_grad_enabled() and wants_gradient(
            (*inputs, *options.values(), *self.module.parameters())
        )
        if recorded and not self.trains:
            raise no_gradient(
                type(self.module).__name__,
                "it was accelerated for forwards; accelerate(model, training=True) has gradients",
            )
        if not self.is_whole():
            return self.as_written(*inputs, **options)
        return self.compute(self.functions[recorded], *inputs, **options)

    def as_written(self, *inputs: Any, **options: Any) -> Any:
        return type(self.module).forward(self.module, *inputs, **options)

    @abstractmethod
    def compute(self, f: F, *inputs: Any, **options: Any) -> Any: ...


class Linear(Forward):
    """x (...,I) -> (...,O)"""

    def __init__(self, module: Any, weight: Held) -> None:
        super().__init__(module)
        self.held_weight = weight
        self.held_bias: Held | None = None

    def weight(self, f: F) -> Any:
        return f.weight(self.held_weight)

    def bias(self, f: F) -> Any:
        if parameter_of(self.module, "bias") is None:
            return None
        if self.held_bias is None:
            self.held_bias = Held(self.module, "bias", shared)
        return f.weight(self.held_bias)

    def compute(self, f: F, input: torch.Tensor) -> torch.Tensor:
        return f.out(self.made(f, f.of(input)))

    def made(self, f: F, x: Any) -> Any:
        return f.linear(x, self.weight(f), self.bias(f))


class Embedding(Forward):
    """ids (...) -> (...,E), of a weight that is packed for a lm_head anyway"""

    def __init__(self, module: Any, weight: Held) -> None:
        super().__init__(module)
        self.held_weight = weight

    def compute(self, f: F, input: torch.Tensor) -> torch.Tensor:
        dtype = dtype_of(self.held_weight.parameter.dtype)
        return tensor_of(embedding(input.numpy(), self.held_weight.now(), dtype=dtype))


class RMSNorm(Forward):
    """x (...,n) -> (...,n)"""

    def __init__(self, module: Any, eps: str) -> None:
        """`eps`: the name of it in the module"""
        super().__init__(module)
        self.weight, self.eps = Held(module, "weight", shared), eps

    def compute(self, f: F, x: torch.Tensor) -> torch.Tensor:
        return f.out(self.made(f, f.of(x)))

    def made(self, f: F, x: Any) -> Any:
        return f.rms_norm(x, f.weight(self.weight), eps=getattr(self.module, self.eps))


class SwiGLU(Forward):
    """x (B,L,E) -> (B,L,E): down(silu(gate x) * up x), gate and up in one pass over x"""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        projections = (module.gate_proj, module.up_proj, module.down_proj)
        self.gate, self.up, self.down = map(ours, projections)

    def compute(self, f: F, x: torch.Tensor) -> torch.Tensor:
        return f.out(self.made(f, f.of(x)))

    def made(self, f: F, x: Any) -> Any:
        gate, up = linear_together(f, x, (self.gate, self.up))
        return self.down.made(f, f.swiglu(gate, up, out=gate))


def linear_together(f: F, x: Any, projections: tuple[Linear, ...]) -> list[Any]:
    """x (...,I) -> (...,O) by each, in one pass over x"""
    weights = [one.weight(f) for one in projections]
    made: list[Any] = f.linear(x, weights, [one.bias(f) for one in projections])
    return made


def shared(parameter: torch.Tensor) -> Array:
    """A parameter that is read where it lies."""
    return array_of(parameter.detach())


def ours(module: Any) -> Any:
    """The forward that `accelerate` gave to a module; those inside another are first."""
    return module.__dict__["forward"]


def is_ours(module: torch.nn.Module) -> bool:
    return isinstance(module.__dict__.get("forward"), Forward)
