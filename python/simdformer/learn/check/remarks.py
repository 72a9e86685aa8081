"""What is worth knowing about a check beyond its answer."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from simdformer.learn.check.compare import TOLERANCE, coarsest, float_dtypes
from simdformer.learn.check.operation import Asked

__all__ = ["remarks"]


def remarks(call: Asked, mine: list[Any], typed: bool, ok: bool) -> tuple[str, ...]:
    """typed : whether the results have a dtype"""
    said = tuple(_dtypes(call, mine, ok)) if typed else ()
    return (*_nothing_seen(call, mine), *said, *_blind_spots(call)) if ok else said


def _nothing_seen(call: Asked, mine: list[Any]) -> Iterator[str]:
    """What a right answer does not show, because of what it is itself."""
    if not any(map(np.size, mine)):
        yield f"{call.subject} has no numbers: nothing was compared"
    elif not any(np.isfinite(x).any() for x in mine):
        yield f"no number of {call.subject} is finite: no mistake would show; choose other inputs"
    elif sum(map(np.size, mine)) > 1 and not any(map(np.any, mine)):
        yield f"all numbers of {call.subject} are 0: many mistakes would not show"


def _dtypes(call: Asked, mine: list[Any], ok: bool) -> Iterator[str]:
    inputs, outputs = float_dtypes(call.inputs), float_dtypes(mine)
    if not inputs or not outputs:
        return
    coarse, own = coarsest(inputs), coarsest(outputs)
    if own == np.float64 and coarse != np.float64:
        yield (
            f"your result is float64, made from {coarse}: a float64 has come in on the way, such "
            "as np.sqrt of an integer array, or np.zeros without a dtype"
        )
    if TOLERANCE[own] > TOLERANCE[coarse] and ok:
        bits = "16 bits" if own.itemsize == 2 else str(own)
        yield f"right to {bits} only: your result is {own}, made from {coarse}"


def _blind_spots(call: Asked) -> Iterator[str]:
    """What a right answer does not show, because of the inputs that it was tried on."""
    given = call.variables
    query, key, value, weight = (given.get(n, ()) for n in ("query", "key", "value", "weight"))
    attention = call.name == "scaled_dot_product_attention"
    if attention and _alike(key, value):
        yield "key and value are the same array: key used as value would not show"
    if attention and _alike(query, key):
        yield "query and key are the same array: query used as key would not show"
    telling = ["query", "x", "gate"]
    if call.name.startswith("backward."):
        telling += ["grad", "weight", "up"]
    constant = [name for name, x in given.items() if name in telling and _flat(x)]
    if constant:
        yield f"all numbers of {constant[0]} are equal: many mistakes would not show"
    if attention and np.ndim(query) > 2:
        sizes = dict(zip(("H", "L", "D"), np.shape(query)[-3:], strict=True))
        alike = [name for name in sizes if list(sizes.values()).count(sizes[name]) > 1]
        if alike:
            which = f"{' and '.join(alike)} are {'both' if len(alike) == 2 else 'all'}"
            yield (
                f"{which} {sizes[alike[0]]}: a transpose too many would keep the shape; "
                "try lengths that differ"
            )
    if call.name == "linear" and not isinstance(weight, list | tuple):
        matrix = np.asarray(weight.unpack() if hasattr(weight, "unpack") else weight)
        if len(matrix) > 1 and np.array_equal(matrix, matrix.T):
            yield "weight is symmetric: a forgotten transpose would not show"


def _alike(a: Any, b: Any) -> bool:
    return a is b or (np.shape(a) == np.shape(b) and np.array_equal(np.asarray(a), np.asarray(b)))


def _flat(x: Any) -> bool:
    x = np.asarray(x)
    return x.size > 1 and x.dtype.kind not in "OUS" and bool((x == x.flat[0]).all())
