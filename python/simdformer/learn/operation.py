"""What `check` is asked about: the operation or layer, the call, and what it should give."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

from simdformer import functional, nn, reference
from simdformer.learn import mistakes
from simdformer.learn.compare import numbers
from simdformer.learn.program import OPERATIONS, Program

__all__ = ["Call", "as_array", "bind", "checkable"]

# Programs and mistakes register themselves when their modules are loaded.
for _module in iter_modules(mistakes.__path__):
    import_module(f"{mistakes.__name__}.{_module.name}")

LARGE = 4_000_000  # numbers in one array, from which on the kernels in float64 are the judge


@dataclass(frozen=True)
class Call:
    """One call of an operation or a layer, its arguments as numpy arrays.

    variables are what the program of the operation starts from; program is None where no mistakes
    are known. results is what the operation itself gives for this call, always as a list.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    variables: dict[str, Any]
    program: Program | None
    results: list[Any]
    several: bool

    @property
    def inputs(self) -> list[Any]:
        """All arrays that go in, those of a layer too."""
        return list(_arrays(self.variables.values()))

    def right(self) -> list[Any]:
        """What should come out, in float64."""
        largest = max((np.size(x) for x in (*self.inputs, *self.results)), default=0)
        scores = self.variables.get("query"), self.variables.get("key")
        if not isinstance(self.function, type(lambda: 0)):
            out = _in_float64(self.function)(*map(_in_float64, self.args), **self._kwargs64())
        elif largest > LARGE or _number_of_scores(*scores) > LARGE:
            out = self.function(*map(_in_float64, self.args), **self._kwargs64())
        else:
            out = getattr(reference, self.name)(*self.args, **self.kwargs)
        return [np.asarray(x) for x in (out if self.several else [out])]

    def _kwargs64(self) -> dict[str, Any]:
        return {name: _in_float64(value) for name, value in self.kwargs.items()}


def checkable() -> list[str]:
    """What `check` knows: the operations, and the layers of `nn`."""
    operations = [name for name in reference.__all__ if name != "RopeFrequencies"]
    return operations + [f"nn.{name}" for name in nn.__all__]


def bind(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call, made once to see that it is one: a wrong argument raises what it always raises."""
    if "out" in kwargs:
        raise TypeError("check: out is given, needs a call that allocates its result; leave it out")
    function = _operation(op)
    args = tuple(map(as_array, args))
    kwargs = {name: as_array(value) for name, value in kwargs.items()}
    answer = function(*args, **kwargs)
    several = isinstance(answer, tuple | list)
    kind = type(function) if type(function) in OPERATIONS or _is_layer(function) else function
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    variables = {name: value for name, value in bound.arguments.items() if name != "out"}
    if kind is not function:
        variables = {name: as_array(value) for name, value in vars(function).items()} | variables
    name = kind.__name__
    results = list(answer) if several else [answer]
    program = OPERATIONS.get(kind)
    return Call(name, function, args, kwargs, variables, program, results, several)


def _operation(op: Any) -> Any:
    """The function or the layer that is meant."""
    found = op
    if isinstance(op, str):
        found = getattr(functional, op.removeprefix("sf.").removeprefix("simdformer."), None)
    known = [getattr(functional, name) for name in checkable() if "." not in name]
    if _is_layer(found) or any(found is function for function in known):
        return found
    if isinstance(found, type) and found.__module__ == nn.__name__:
        raise TypeError(f"check: op is the class nn.{found.__name__}, needs a layer made from it")
    raise TypeError(f"check: op is {op!r}, needs one of " + ", ".join(checkable()))


def _is_layer(x: Any) -> bool:
    return type(x).__module__ == nn.__name__ and type(x).__name__ in nn.__all__


def as_array(x: Any) -> Any:
    """Tensors of other libraries as numpy arrays, bfloat16 too, whether they need gradients or not;
    other things as they are."""
    if isinstance(x, list | tuple) and any(hasattr(item, "__dlpack__") for item in x):
        return type(x)(map(as_array, x)) if type(x) in (list, tuple) else x
    if isinstance(x, np.ndarray | np.generic) or not hasattr(x, "__dlpack__"):
        return x
    x = x.detach() if hasattr(x, "detach") else x
    try:
        return np.from_dlpack(x)
    except (TypeError, RuntimeError, BufferError):  # bfloat16, or not on the CPU: the kernels know
        flat = x.reshape(-1)
        return functional.repeat_kv(flat, 1, axis=0).reshape(tuple(x.shape))


def _in_float64(x: Any) -> Any:
    """Arrays of floats, packed weights, layers and lists of those with all their numbers in
    float64; other things as they are."""
    if hasattr(x, "unpack"):
        return numbers(x.unpack())
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biu":
        return numbers(x)
    if isinstance(x, list | tuple) and type(x) in (list, tuple):
        items = [_in_float64(item) for item in x]
        return type(x)(items) if any(a is not b for a, b in zip(items, x, strict=True)) else x
    if _is_layer(x):
        x = copy.copy(x)
        for name, value in vars(x).items():
            setattr(x, name, _in_float64(value))
    return x


def _arrays(values: Any) -> Any:
    for value in values:
        if hasattr(value, "unpack"):
            yield value.unpack()
        elif isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, list | tuple):
            yield from _arrays(value)
        elif _is_layer(value):
            yield from _arrays(vars(value).values())


def _number_of_scores(query: Any, key: Any) -> int:
    if query is None or key is None or np.ndim(query) < 2:
        return 0
    return int(np.asarray(query).size // max(np.shape(query)[-1], 1) * np.shape(key)[-2])
