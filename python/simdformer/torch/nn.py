"""The layers of `simdformer.nn` as modules of PyTorch, on tensors.

    from simdformer.torch import nn

    mlp = nn.MLP(gate.weight, up.weight, down.weight)     tensors, parameters, packed weights
    y = mlp(x)

Weights are read where they lie, and stay whose they are: what changes them is seen. Those that are
`torch.nn.Parameter` are parameters of the layer too, under the names of its arguments, so that an
optimizer and `state_dict` find them. Gradients go to whatever wants one, of inputs and of weights;
packed and quantised weights have none, their inputs do.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, cast

import torch
from torch import Tensor

from simdformer import nn
from simdformer.arguments import as_array
from simdformer.layer_checks import each_of
from simdformer.tensors import experts, functional
from simdformer.tensors.memory import tensor_of
from simdformer.tensors.wrapping import documented, signature_on_tensors, wants_gradient

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


class OnTensors:
    """The functions that layers are made of, see `simdformer.nn.OnArrays`."""

    linear = staticmethod(functional.linear)
    embedding = staticmethod(functional.embedding)
    rms_norm = staticmethod(functional.rms_norm)
    layer_norm = staticmethod(functional.layer_norm)
    rope = staticmethod(functional.rope)
    scaled_dot_product_attention = staticmethod(functional.scaled_dot_product_attention)
    top_k = staticmethod(experts.top_k)
    expert_weights = staticmethod(experts.expert_weights)
    expert_linear = staticmethod(experts.expert_linear)
    combine_experts = staticmethod(experts.combine_experts)

    @staticmethod
    def swiglu(gate: Tensor, up: Tensor, *, out: Tensor) -> Tensor:
        return functional.swiglu(gate, up, out=None if wants_gradient((gate, up)) else out)

    @staticmethod
    def as_array(layer: str, name: str, x: Any) -> Tensor:
        return x if isinstance(x, Tensor) else tensor_of(as_array(layer, name, x))

    @staticmethod
    def linear_of(x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        if isinstance(weight, list | tuple):  # of rows
            weight = OnTensors.as_array("linear", "weight", weight)
        found: Tensor = functional.linear(x, weight, bias)
        return found

    @staticmethod
    def each_of(layer: str, name: str, weights: Any, count: int) -> Any:
        """Experts along the axis of a tensor stay there: a parameter is one."""
        if isinstance(weights, Tensor) and len(weights) == count:
            return weights
        return each_of(layer, name, weights, count)


class Layer(torch.nn.Module):
    """A layer of `simdformer.nn`, its `kind`, made of functions on tensors."""

    kind: ClassVar[Any]
    f = OnTensors

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.kind.__init__(self, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Parameters in a list are parameters too."""
        if isinstance(value, list) and any(isinstance(one, torch.nn.Parameter) for one in value):
            tensors = [one for one in value if isinstance(one, Tensor)]
            if all(isinstance(one, torch.nn.Parameter) for one in tensors):
                value = torch.nn.ParameterList(value)
        super().__setattr__(name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.__call__(self, *args, **kwargs)

    def __repr__(self) -> str:
        shown: str = self.kind.__repr__(self)
        return shown


def layer(kind: Callable[P, Callable[..., Any]]) -> Callable[P, Layer]:
    """The class of a layer on tensors, made like the one on arrays and with its methods."""
    title = getattr(kind, "__name__", "")
    about = {
        "kind": kind,
        "__doc__": documented(kind.__doc__, f"`simdformer.nn.{title}`"),
        "__module__": __name__,
        "__signature__": signature_on_tensors(inspect.signature(kind)),
    }
    methods = {
        name: method(function)
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    bases: Any = (Layer, kind)
    return cast("Callable[P, Layer]", type(title, bases, about | methods))


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method besides the call, as `Embedding.as_linear`, on tensors."""

    def on_tensors(self: Layer, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    shown: Any = on_tensors
    shown.__name__, shown.__doc__ = function.__name__, function.__doc__
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
