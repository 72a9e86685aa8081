"""The layers of `simdformer.nn` as modules of PyTorch, on tensors.

    from simdformer.torch import nn

    mlp = nn.MLP(gate.weight, up.weight, down.weight)     tensors, parameters, packed weights
    with torch.inference_mode():
        y = mlp(x)

Weights are read where they lie: what changes them in place is seen. They stay whose they are: a
layer has no parameters of its own, and nothing is trained here. Where a gradient is wanted, of an
input or of a weight, a call is a RuntimeError.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, ParamSpec, cast

import torch
from torch import Tensor

from simdformer import nn
from simdformer.tensors.memory import array_of, refuse_gradients, tensor_of
from simdformer.tensors.wrapping import call, documented, outside_graphs, signature_on_tensors
from simdformer.types import Array

__all__ = [
    "MLP",
    "Embedding",
    "GroupedQueryAttention",
    "LayerNorm",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "RMSNorm",
    "TransformerBlock",
]
__dir__ = __all__.copy  # what dir() and completion show

P = ParamSpec("P")


class Layer(torch.nn.Module):
    """A layer of `simdformer.nn`, which `arrays` is, called with tensors."""

    kind: ClassVar[Any]
    inputs: ClassVar[dict[str, tuple[str, ...]]]  # of each method

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        given = [*args, *kwargs.values()]
        self.parts = torch.nn.ModuleList(x for x in given if isinstance(x, torch.nn.Module))
        self.weights = list(tensors_among(given))
        each = [of_arrays(value) for value in args]
        self.arrays = self.kind(*each, **{name: of_arrays(value) for name, value in kwargs.items()})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.called("__call__", args, kwargs)

    def called(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A method of the layer of arrays, on tensors."""
        title = self.kind.__name__
        refuse_gradients(title, *self.weights)
        run = outside_graphs(call) if torch.compiler.is_compiling() else call
        return run(getattr(self.arrays, method), title, self.inputs[method], args, kwargs)

    def __repr__(self) -> str:
        return repr(self.arrays)


def tensors_among(values: Iterable[Any]) -> Iterable[Tensor]:
    """Those in lists, and those of layers, too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Layer):
            yield from value.weights
        elif isinstance(value, list | tuple):
            yield from tensors_among(value)


class OnArrays:
    """A module of PyTorch's as a function of arrays."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def __call__(self, x: Array) -> Array:
        return array_of(self.module(tensor_of(x)), type(self.module).__name__, "what it gave")

    def __repr__(self) -> str:
        return repr(self.module)


def of_arrays(value: Any) -> Any:
    """What a layer of tensors is made of as what one of arrays is made of."""
    if isinstance(value, Tensor):
        return array_of(value.detach())
    if isinstance(value, Layer):
        return value.arrays
    if isinstance(value, torch.nn.Module):
        return OnArrays(value)
    if isinstance(value, list | tuple):
        return [of_arrays(item) for item in value]
    return value


def layer(kind: Callable[P, Callable[..., Array]]) -> Callable[P, Layer]:
    """The class of a layer on tensors, made like the one on arrays and with its methods."""
    title = getattr(kind, "__name__", "")
    functions = dict(inspect.getmembers(kind, inspect.isfunction))
    public = {name: function for name, function in functions.items() if not name.startswith("_")}
    about = {
        "kind": kind,
        "inputs": {
            name: tuple(inspect.signature(function).parameters)[1:]
            for name, function in (public | {"__call__": functions["__call__"]}).items()
        },
        "__doc__": documented(kind.__doc__, f"`simdformer.nn.{title}`"),
        "__module__": __name__,
        "__signature__": signature_on_tensors(inspect.signature(kind)),
    }
    methods = {name: method(name, function) for name, function in public.items()}
    return cast("Callable[P, Layer]", type(title, (Layer,), about | methods))


def method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A method besides the call, as `Embedding.as_linear`, on tensors."""

    def on_tensors(self: Layer, *args: Any, **kwargs: Any) -> Any:
        return self.called(name, args, kwargs)

    shown: Any = on_tensors
    shown.__name__, shown.__doc__ = name, function.__doc__
    shown.__signature__ = signature_on_tensors(inspect.signature(function))
    return on_tensors


MLP = layer(nn.MLP)
Embedding = layer(nn.Embedding)
GroupedQueryAttention = layer(nn.GroupedQueryAttention)
LayerNorm = layer(nn.LayerNorm)
MixtureOfExperts = layer(nn.MixtureOfExperts)
MultiHeadAttention = layer(nn.MultiHeadAttention)
RMSNorm = layer(nn.RMSNorm)
TransformerBlock = layer(nn.TransformerBlock)
