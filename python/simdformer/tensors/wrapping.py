"""A function of arrays as the same function of tensors."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec

import numpy as np
import torch
from torch import Tensor

from simdformer.functional import PackedWeight, QuantizedWeight
from simdformer.tensors.memory import array_of, dtype_of, no_gradient, tensor_of
from simdformer.types import Alias, spelled

__all__ = [
    "call",
    "documented",
    "on_arrays",
    "on_tensors",
    "outside_graphs",
    "requires_gradient",
    "signature_on_tensors",
    "tensors_of",
    "wants_gradient",
]

P = ParamSpec("P")

ARRAY = re.compile(r"\b(ArrayLike|Array|Out)\b")  # what arrays are called in signatures


def on_arrays(value: Any, function: str, name: str) -> Any:
    """An argument for a function of arrays: tensors, those in a list too, and dtypes become
    numpy's."""
    if isinstance(value, Tensor):
        return array_of(value, function, name)
    if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
        each = (on_arrays(item, function, f"{name}[{at}]") for at, item in enumerate(value))
        return tuple(each) if isinstance(value, tuple) else list(each)
    return dtype_of(value) if isinstance(value, torch.dtype) else value


def tensors_of(results: Any) -> Any:
    """What a function of arrays gave: arrays, those in lists and tuples too, become tensors."""
    if isinstance(results, np.ndarray | np.floating):
        return tensor_of(np.asarray(results))
    if isinstance(results, list):
        return [tensors_of(result) for result in results]
    if isinstance(results, tuple):  # a named one too, as RopeFrequencies
        each = map(tensors_of, results)
        return type(results)(*each) if hasattr(results, "_fields") else tuple(each)
    return results


def call(
    function: Callable[..., Any],
    title: str,
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """What a function of arrays gives of tensors; messages call its arguments by `names`."""
    arrays = [on_arrays(value, title, name) for value, name in zip(args, names, strict=False)]
    options = {name: on_arrays(value, title, name) for name, value in kwargs.items()}
    # Arguments that are too many the function refuses itself.
    results = function(*arrays, *args[len(arrays) :], **options)
    if kwargs.get("out") is None:
        return tensors_of(results)
    return in_place_of(results, kwargs["out"], options["out"])


def on_tensors(
    function: Callable[P, Any],
    traced: Callable[..., Any] | None = None,
    of_packed: Callable[..., Any] | None = None,
) -> Callable[P, Tensor]:
    """A function of arrays as one of tensors, with the same arguments: they are read where they
    lie, what it gives are tensors, and what was given as `out` comes back.

    Autograd, torch.compile and torch.export see nothing but PyTorch's operators: where a gradient
    is wanted, or they look on, `traced` is called with the arguments by their names. Where it is
    None there is no gradient, and the graph is broken in two. A weight that is packed is no tensor:
    it breaks the graph too, and where a gradient is wanted `of_packed` is called, if there is one.
    """
    title = function.__name__
    signature = inspect.signature(function)
    names = tuple(signature.parameters)

    def called(*args: Any, **kwargs: Any) -> Any:
        return call(function, title, names, args, kwargs)

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        wanted = wants_gradient((*args, *kwargs.values()))
        if not (wanted or torch.compiler.is_compiling()):
            return called(*args, **kwargs)
        named = dict(zip(names, args, strict=False)) | kwargs
        if wanted and named.get("out") is not None:
            raise no_gradient(title, "what is written into out has none")
        if len(args) > len(names) or not named.keys() <= set(names):
            return called(*args, **kwargs)  # which names the argument
        if traced is not None and not has_packed(named.get("weight")):
            return traced(**named)
        outside: Callable[..., Any] = called  # which refuses a gradient
        if wanted and of_packed is not None:
            outside = of_packed
        if torch.compiler.is_compiling():
            outside = outside_graphs(outside)
        return outside(**named)

    shown: Any = wrapped
    del shown.__wrapped__  # or help() would show its signature
    shown.__module__ = "simdformer.torch"
    shown.__doc__ = documented(function.__doc__, f"`simdformer.{title}`")
    shown.__signature__ = signature_on_tensors(signature)
    return wrapped


def wants_gradient(values: Iterable[Any]) -> bool:
    """Whether autograd records, and one of the values requires a gradient."""
    return torch.is_grad_enabled() and any(map(requires_gradient, values))


def requires_gradient(value: Any) -> bool:
    """Whether a tensor, or one of a list, does."""
    each = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(one, Tensor) and one.requires_grad for one in each)


def has_packed(weight: Any) -> bool:
    """Whether a weight, or one of a list, is packed or quantised."""
    each = weight if isinstance(weight, list | tuple) else [weight]
    return any(isinstance(one, PackedWeight | QuantizedWeight) for one in each)


def outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as torch.compile leaves it alone: asked for while that looks on, since it takes
    seconds to load."""
    torch._dynamo.graph_break(
        msg="simdformer: experts, and functions of packed weights, are no operators of PyTorch"
    )
    disable: Any = torch.compiler.disable
    outside: Callable[..., Any] = disable(function)
    return outside


def in_place_of(results: Any, given: Any, written: Any) -> Any:
    """Results as tensors; what was written into is what was given."""
    if not isinstance(results, list | tuple):
        return given
    several = isinstance(written, list | tuple)
    pairs = zip(written, given, strict=True) if several else [(written, given)]
    outs = {id(array): tensor for array, tensor in pairs if array is not None}
    return type(results)(
        outs[id(result)] if id(result) in outs else tensors_of(result) for result in results
    )


def documented(text: str | None, name: str) -> str:
    """What is said of a function or class of arrays, without the examples: they have arrays."""
    said = re.split(r"\n\s*(?:Examples\n\s*-+\n\s*)?>>> ", inspect.cleandoc(text or ""))[0]
    return f"{name} on tensors: they are read where they lie, and so are arrays.\n\n{said.rstrip()}"


def signature_on_tensors(signature: inspect.Signature) -> inspect.Signature:
    """The signature with tensors where arrays are."""
    parameters = [
        parameter.replace(annotation=on_tensor(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(
        parameters=parameters, return_annotation=on_tensor(signature.return_annotation)
    )


def on_tensor(annotation: Any) -> Any:
    text = spelled(annotation)
    named = ARRAY.sub("Tensor", text).replace("DTypeLike", "dtype | str")
    return annotation if named == text else Alias(named, Tensor)
