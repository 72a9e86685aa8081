"""What `check` is asked about: the operation or layer, the call, and what it should give."""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar

import numpy as np

from simdformer import arguments, backward, functional, loss, nn, reference
from simdformer.learn import mistakes
from simdformer.learn.check.asking import nearest, refuse
from simdformer.learn.check.compare import float_dtypes
from simdformer.learn.mistakes import linear_cross_entropy as linear_loss
from simdformer.learn.mistakes.optimizers import PURE
from simdformer.learn.program import OPERATIONS, Program
from simdformer.quantization.weight import QuantizedWeight

__all__ = ["Asked", "Call", "as_array", "bind", "checkable", "joined", "takes"]

# Programs and mistakes register themselves when their modules are loaded.
for _module in iter_modules(mistakes.__path__):
    import_module(f"{mistakes.__name__}.{_module.name}")

LOSSES = ("cross_entropy", "log_softmax")
# What can be checked by name, and what says in float64 what is right.
KNOWN: dict[Any, tuple[str, Callable[..., Any]]] = (
    {
        getattr(functional, name): (name, getattr(reference, name))
        for name in reference.forward.__all__
        if name != "RopeFrequencies"
    }
    | {getattr(loss, name): (name, getattr(reference.loss, name)) for name in LOSSES}
    | {
        getattr(backward, name): (f"backward.{name}", getattr(reference.backward, name))
        for name in backward.__all__
        if name.islower()
    }
    | {function: (f"optim.{function.__name__}", pure) for function, pure in PURE.items()}
    | {loss.linear_cross_entropy: ("linear_cross_entropy", linear_loss.right_by_name)}
)
# What is asked in place of a function: it changes no argument, and gives a dict by name.
ASKED = PURE | {loss.linear_cross_entropy: linear_loss.by_name}
NAMED = {name: function for function, (name, _) in KNOWN.items()}
LARGE = 4_000_000  # numbers in one array, from which on the kernels are the judge


@dataclass(frozen=True)
class Asked:
    """What a check is asked about.

    variables are what its program starts from; program is None where no mistakes are known.
    """

    name: str
    variables: dict[str, Any]
    program: Program | None
    arithmetic: ClassVar[np.dtype[Any]] = np.dtype(np.float64)  # where exactness counts
    in_bits: ClassVar[str] = 'say dtype="{}", or give your function'  # what tells of such a dtype

    @property
    def inputs(self) -> list[Any]:
        """All arrays that go in, those of a layer too."""
        return list(_arrays(self.variables.values()))

    @property
    def is_quantized(self) -> bool:
        """Whether a weight has few bits: x is rounded to 16 beside it."""
        return any(isinstance(x, QuantizedWeight) for x in _leaves(self.variables.values()))

    def right(self) -> list[Any]:
        """What should come out, in float64."""
        raise NotImplementedError

    @property
    def asked(self) -> dict[str, Any]:
        """What a run of the program starts from."""
        return self.variables

    def part(self, results: list[Any]) -> list[Any]:
        """Those of the program's results that are asked about."""
        return results

    @property
    def subject(self) -> str:
        """What is asked about, as the subject of a sentence."""
        return "the result"

    @property
    def floor(self) -> float:
        """The part of the whole array's size that each row counts for at least."""
        return 0.0

    @property
    def sizes(self) -> dict[str, int] | None:
        """The lengths that a gradient may have been divided by, by what they count."""
        return None

    @property
    def is_formula(self) -> bool:
        """Whether slips in the formulas of its program are looked for."""
        return False

    @property
    def longest(self) -> int:
        """How many numbers the longest sum may have."""
        return max((n for x in self.inputs for n in np.shape(x)[-2:]), default=1)


@dataclass(frozen=True)
class Call(Asked):
    """One call of an operation or a layer, its arguments as numpy arrays.

    results is what the function gives for this call, always as a list; where they have names, as
    gradients of several arguments do, `names` are those, and `only` may be the number of one of
    them. operation is what was asked about: the function, or what it stands for because that
    changes its arguments.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Any]
    several: bool
    names: tuple[str, ...] = ()
    only: int | None = None
    operation: Any = None

    def right(self) -> list[Any]:
        """What should come out, in float64.

        For large arrays a kernel says it, in float32 at least: its error is a hundredth of what is
        allowed to others, and it does not need the memory of a whole array of scores.
        """
        if not inspect.isfunction(self.function):
            out = self._converted(np.float64)
        elif max(self._sizes(), default=0) <= LARGE:
            out = KNOWN[self.operation][1](*self.args, **self.kwargs)
        elif all(dtype.itemsize > 2 for dtype in float_dtypes(self.inputs)):
            return self.part(self.results)
        else:
            out = self._converted(np.float32)
        return self.part(listed(out) if self.several else [out])

    @property
    def is_whole(self) -> bool:
        """Whether results are sums over all rows, of which no part can be judged alone."""
        return self.operation is loss.linear_cross_entropy

    @property
    def is_gradient(self) -> bool:
        """Whether what is asked about is one; linear_cross_entropy gives a loss first."""
        return self.name.startswith("backward.") or (self.is_whole and bool(self.only))

    @property
    def subject(self) -> str:
        if self.only is None:
            return super().subject
        name = self.names[self.only]
        return f"the gradient of {name}" if self.is_gradient else name

    @property
    def asked(self) -> dict[str, Any]:
        """With the number of the result that is meant: how a problem is sampled depends on it."""
        return self.variables | {"only": self.only}

    def part(self, results: list[Any]) -> list[Any]:
        return results if self.only is None else [results[self.only]]

    @property
    def floor(self) -> float:
        """Some rows of a gradient are next to nothing beside the others: p - 1 where the model is
        sure of its label, 0 of padding."""
        return 0.2 if self.is_gradient else 0.0

    @property
    def sizes(self) -> dict[str, int] | None:
        given = (self.variables.get(name, 0.0) for name in ("grad", "logits", "x"))
        shape = next(filter(None, map(np.shape, given)), ())
        if not self.is_gradient or not shape:
            return None
        sizes = {"the number of rows": int(np.prod(shape[:-1])), "the width of a row": shape[-1]}
        if len(shape) > 2:
            sizes |= {"the batch size": shape[0], "the number of positions": shape[-2]}
        if len(shape) > 3:
            sizes |= {"the number of heads": shape[-3]}
        return sizes

    @property
    def is_formula(self) -> bool:
        of_losses = (*LOSSES, "linear_cross_entropy")
        return self.name.startswith(("backward.", "optim.")) or self.name in of_losses

    @property
    def longest(self) -> int:
        """The rows as well for a gradient: it may be a sum over all of them."""
        if not (self.is_gradient or self.is_whole):
            return super().longest
        rows = (np.size(x) // np.shape(x)[-1] for x in self.inputs if np.size(x) and np.ndim(x))
        return int(max(super().longest, 1, *rows))

    def _converted(self, dtype: Any) -> Any:
        """The call in another dtype."""
        args = [_in_dtype(x, dtype) for x in self.args]
        kwargs = {name: _in_dtype(value, dtype) for name, value in self.kwargs.items()}
        return _in_dtype(self.function, dtype)(*args, **kwargs)

    def _sizes(self) -> Iterator[int]:
        """Numbers in the arrays that the operation takes, gives, and has on the way."""
        yield from (np.size(x) for x in (*self.inputs, *self.results))
        query, key = (self.variables.get(name, ()) for name in ("query", "key"))
        if np.ndim(query) > 1 and np.shape(query)[-1]:
            yield np.size(query) // np.shape(query)[-1] * np.shape(key)[-2]


def checkable() -> list[str]:
    """What `check` knows: the operations, gradients of some, and the layers of `nn`."""
    return [*NAMED, *(f"nn.{name}" for name in nn.__all__)]


def bind(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call, made once to see that it is one: a wrong argument raises what it always raises."""
    function = as_array(_operation(op))
    if "out" in kwargs and not needs_out(function):
        raise TypeError("check: out is given, needs a call that allocates its result; leave it out")
    args = tuple(map(as_array, args))
    kwargs = {name: as_array(value) for name, value in kwargs.items()}
    refuse(name_of(function).removeprefix("optim."), function, args, kwargs)
    if "accumulate" in kwargs:
        raise TypeError("check: accumulate is given, needs a call that adds nothing; leave it out")
    operation, function = function, ASKED.get(function, function)
    answer = function(*args, **kwargs)
    several = isinstance(answer, tuple | list | dict)
    kind = type(function) if type(function) in OPERATIONS or _is_layer(function) else function
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    variables = dict(bound.arguments)
    if not needs_out(function):
        variables.pop("out", None)
    if kind is not function:
        variables = vars(function) | variables
    name = name_of(operation)
    results = listed(answer) if several else [answer]
    program = OPERATIONS.get(kind)
    names = tuple(answer) if isinstance(answer, dict) else ()
    names = getattr(answer, "_fields", ()) if name.startswith("backward.") else names
    if lists := [one for one, x in zip(names, results, strict=False) if isinstance(x, list)]:
        raise TypeError(f"check: {lists[0]} is a list, needs one array; check them one by one")
    return Call(
        name, variables, program, function, args, kwargs, results, several, names,
        operation=operation,
    )  # fmt: skip


def joined(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call of linear's gradient with one weight in place of a list of them: their rows, and the
    columns of their gradients, one after the other. Others as they are."""
    if _operation(op) is not backward.linear:
        return args, kwargs
    try:
        bound = inspect.signature(backward.linear).bind(*args, **kwargs)
    except TypeError:  # bind says what is missing
        return args, kwargs
    given = bound.arguments
    lists = [as_array(given[name]) for name in ("grad", "weight")]
    arrays = (isinstance(x, list | tuple) and all(hasattr(one, "ndim") for one in x) for x in lists)
    if not all(arrays) or any(hasattr(one, "unpack") for one in lists[1]):
        return args, kwargs
    backward.linear(*map(as_array, bound.args), **bound.kwargs)  # it refuses what does not fit
    given["grad"], given["weight"] = (
        np.concatenate(x, axis) for x, axis in zip(lists, (-1, 0), strict=True)
    )
    return bound.args, bound.kwargs


def listed(answer: Any) -> list[Any]:
    """Several results, which may have names."""
    return list(answer.values() if isinstance(answer, dict) else answer)


def needs_out(function: Any) -> bool:
    """Whether `out` is what the forward gave, as in attention's gradient, and no place to write."""
    return {"out", "lse"} <= {*inspect.signature(function).parameters}


def takes(op: Any, name: str) -> bool:
    """Whether an operation has an argument of that name."""
    return name in inspect.signature(_operation(op)).parameters


def _operation(op: Any) -> Any:
    """The function or the layer that is meant."""
    found = op
    if isinstance(op, str):
        found = NAMED.get(op.removeprefix("sf.").removeprefix("simdformer."))
    if _is_layer(found) or (inspect.isfunction(found) and found in KNOWN):
        return found
    if isinstance(found, type) and _is_layer_class(found):
        raise TypeError(f"check: op is the class nn.{found.__name__}, needs a layer made from it")
    called = op if isinstance(op, str) else getattr(op, "__name__", type(op).__name__)
    kind = "class" if isinstance(op, type) else "function"
    found = f"the {kind} {called}" if hasattr(op, "__name__") else arguments.shown(op)
    if hasattr(op, "shape") or isinstance(op, list | tuple):
        raise TypeError(
            f"check: op is a {called}, needs an operation; it comes first, then your result, then "
            "the arguments: sf.check(sf.softmax, mine, x)"
        )
    near = ", ".join(nearest(called, checkable()))
    raise TypeError(
        f"check: op is {found}, needs an operation that it knows"
        + (f", such as {near}" if near else "")
        + "; help(sf.check) lists all"
    )


def name_of(operation: Any) -> str:
    """ "softmax", "backward.softmax", "MLP"."""
    return KNOWN[operation][0] if inspect.isfunction(operation) else type(operation).__name__


def _is_layer(x: Any) -> bool:
    return _is_layer_class(type(x))


def _is_layer_class(kind: type) -> bool:
    return kind.__name__ in nn.__all__ and getattr(nn, kind.__name__) is kind


def as_array(x: Any) -> Any:
    """Tensors of other libraries as numpy arrays, bfloat16 too, whether they need gradients or not,
    those in layers too; other things as they are."""
    if _is_layer(x):
        layer = copy.copy(x)
        vars(layer).update({name: as_array(value) for name, value in vars(x).items()})
        return layer
    if isinstance(x, dict):
        return {name: as_array(value) for name, value in x.items()}
    if isinstance(x, list | tuple) and any(hasattr(item, "__dlpack__") for item in x):
        return type(x)(map(as_array, x)) if type(x) in (list, tuple) else x
    if isinstance(x, np.ndarray) or not hasattr(x, "__dlpack__"):
        return x
    return arguments.as_array("check", "a tensor", x.detach() if hasattr(x, "detach") else x)


def _in_dtype(x: Any, dtype: Any) -> Any:
    """Arrays of floats, packed weights, layers and lists of those with all their numbers in another
    dtype; other things as they are."""
    if hasattr(x, "unpack"):
        return x.unpack().astype(dtype)
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biu":
        return x.astype(dtype)
    if isinstance(x, dict):
        return {name: _in_dtype(value, dtype) for name, value in x.items()}
    if type(x) in (list, tuple):
        items = [_in_dtype(item, dtype) for item in x]
        return type(x)(items) if any(a is not b for a, b in zip(items, x, strict=True)) else x
    if _is_layer(x):
        x = copy.copy(x)
        for name, value in vars(x).items():
            setattr(x, name, _in_dtype(value, dtype))
    return x


def _arrays(values: Any) -> Any:
    for value in _leaves(values):
        if hasattr(value, "unpack"):
            yield value.unpack()
        elif isinstance(value, np.ndarray):
            yield value


def _leaves(values: Any) -> Any:
    """What lists and layers hold."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        elif isinstance(value, dict):
            yield from _leaves(value.values())
        elif _is_layer(value):
            yield from _leaves(vars(value).values())
        else:
            yield value
