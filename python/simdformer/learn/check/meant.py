"""What was meant, where a call fails or nothing known gives the result: arguments in another order,
the loss in place of its gradient, the result in place of an argument."""

import inspect
from collections.abc import Iterator, Mapping, Set
from itertools import combinations
from typing import Any

import numpy as np

from simdformer import backward, functional, loss
from simdformer.learn.catalogue import Mistake, words
from simdformer.learn.check.asking import as_named
from simdformer.learn.check.compare import TOLERANCE, coarsest, compare, float_dtypes
from simdformer.learn.check.operation import Call, as_array, bind

__all__ = ["in_another_order", "meant", "same_result"]

REFUSALS = (ValueError, TypeError, IndexError, BufferError)
FOUND = words(
    """
    call (-)

    swapped: your result and the argument are swapped in the call of check
        What the operation gives for the array that is called `mine` is the array behind it.
        > Your result comes first: sf.check(operation, mine, x).
    arguments_swapped: {one} and {other} are swapped
        With these two exchanged your result is right.
        > The order is {order}, in the call and in a function of yours.
    forward_result: this is the {of}, not its gradient
        A gradient has a number for each of what it is the gradient of.
        > Give what sf.{asked} gives; sf.check(sf.{other}, ...) checks what you have.
    gradient: this is the gradient, not the {of}
        as above
        > Give what sf.{asked} gives; sf.check(sf.{other}, ...) checks what you have.

    gradient (-)

    of_some_weights (08 §4): {what}
        A second = where += is meant, or a path that was forgotten: x goes into each of them, as
        into query, key and value, and gets a gradient from each.
        > Add up grad @ weight of all of them.
    """
)


def same_result(a: Any, b: Any, *calls: Call) -> bool:
    """Whether two arrays are as good as equal, by the dtypes of calls."""
    inputs = [x for call in calls for x in call.inputs]
    dtype = coarsest(float_dtypes([*inputs, a]))
    return np.shape(a) == np.shape(b) and compare(np.asarray(a), b, TOLERANCE[dtype], dtype).ok


def meant(
    call: Call, mine: Mapping[int, Any], wrong: Set[int], is_function: bool
) -> Mistake | None:
    """What explains all wrong results, by their numbers in the call, where nothing else does."""
    first = mine[0] if len(call.results) == 1 and not is_function else None
    if first is not None and is_result_for(first, call):
        return FOUND["call.swapped"]
    for i, j, other in exchanges(call.operation, call.args, call.kwargs):
        if all(same_result(x, other.results[at], call) for at, x in mine.items()):
            names = [*inspect.signature(call.operation).parameters][: len(call.args)]
            swapped = {"one": names[i], "other": names[j], "order": ", ".join(names)}
            return FOUND["call.arguments_swapped"].about(**swapped)
    found = [of_other_side(call, at, mine[at]) for at in wrong]
    return found[0] if all(found) else None


def is_result_for(mine: Any, call: Call) -> bool:
    """Whether the first argument is what the operation gives for the learner's result."""
    if not call.args or call.several or not isinstance(call.args[0], np.ndarray):
        return False
    try:
        other = bind(call.operation, (mine, *call.args[1:]), call.kwargs)
    except REFUSALS:
        return False
    return same_result(call.args[0], other.results[0], call, other)


def of_some_weights(
    call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], mine: Any
) -> Mistake | None:
    """Whether the gradient of an input that several matrices read is that of some of them, or a
    mean over them; the call is that of all of them in one."""
    given = inspect.signature(call.operation).bind(*args, **kwargs).arguments
    gradients, weights = (
        [np.asarray(as_array(one), np.float64) for one in given[name]]
        for name in ("grad", "weight")
    )
    parts = [one @ w for one, w in zip(gradients, weights, strict=True)]
    count, title = len(parts), ""
    for size in range(1, count):
        for some in combinations(range(count), size):
            if same_result(mine, sum(parts[i] for i in some), call):
                only = ", ".join(map(str, some))
                title = f"it has the part of weight {only} only, of {count} that read x (from 0)"
    if count > 1 and same_result(mine, sum(parts) / count, call):
        title = f"it is the mean over the {count} weights that read x, not the sum"
    if not title:
        return None
    return FOUND["gradient.of_some_weights"].about(what=title)


# ---- arguments in another order ------------------------------------------------------------------


def exchanges(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[int, int, Call]]:
    """The calls with two arrays exchanged that can be made."""
    arrays = [i for i, x in enumerate(args) if isinstance(as_array(x), np.ndarray | list)]
    for i, j in combinations(arrays, 2):
        order = [*args]
        order[i], order[j] = args[j], args[i]
        try:
            yield i, j, bind(op, tuple(order), dict(kwargs))
        except REFUSALS:
            continue


def in_another_order(
    error: Exception, op: Any, mine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """What to say of a call that fails with this error, where it can be made with two arguments
    exchanged; else empty. That this is meant is certain where dtypes tell, or where the learner has
    a gradient of the one that has the other's shape."""
    found = ""
    for i, j, call in exchanges(op, args, kwargs):
        names = [*inspect.signature(call.operation).parameters][: len(args)]
        order, name = ", ".join(names), call.name.removeprefix("optim.")
        mixed_up = f"{name}: {names[i]} and {names[j]} are swapped, needs {order} in this order"
        given = as_named(mine, call.names)
        shapes = {one: np.shape(as_array(x)) for one, x in given.items() if x is not None}
        right = {one: np.shape(x) for one, x in zip(call.names, call.results, strict=False)}
        tells = any(shapes.get(names[k], np.shape(args[k])) != np.shape(args[k]) for k in (i, j))
        if isinstance(error, TypeError) or (tells and shapes.items() <= right.items()):
            return f"{mixed_up}; {names[min(i, j)]} comes first" if i == 0 else mixed_up
        found = found or (
            f"{error}; or are {names[i]} and {names[j]} swapped? The order is {order}"
        )
    return found


# ---- the loss and its gradient -------------------------------------------------------------------


def of_other_side(call: Call, at: int, mine: Any) -> Mistake | None:
    """Whether a gradient is what the forward gives, or the other way round."""
    name = call.name.removeprefix("backward.")
    is_gradient, is_loss = call.name != name, name == "cross_entropy"
    of = "loss" if is_loss else f"result of {name}"
    said, other = ("forward_result", name) if is_gradient else ("gradient", f"backward.{name}")
    found = FOUND[f"call.{said}"].about(of=of, asked=call.name, other=other)
    if is_gradient and is_loss and np.size(mine) == 1 != np.size(call.results[at]):
        return found  # of other options perhaps
    rooms = (functional, loss) if is_gradient else (backward,)
    function = next((getattr(room, name) for room in rooms if hasattr(room, name)), None)
    if function is None:
        return None
    taken = {*inspect.signature(function).parameters} - {"out"}
    try:
        out = function(**{one: x for one, x in call.variables.items() if one in taken})
    except REFUSALS:
        return None
    return found if same_result(mine, out[0] if isinstance(out, tuple) else out, call) else None
