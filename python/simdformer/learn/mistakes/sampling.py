"""A part of a large problem that still shows what is wrong with it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["Thinned", "Variables", "first_tokens", "rows_of", "some_rows"]

Variables = dict[str, Any]
Thinned = tuple[Variables, Callable[[Any], Any]]  # of a smaller problem, and its part of a result


def rows_of(shape: tuple[int, ...], limit: int) -> tuple[Any, ...] | None:
    """An index that leaves about `limit` numbers of an array (..., n): evenly spaced rows of its
    last leading axis, the first few entries of the ones before it, and the whole last axis.

    None: the array is small enough as it is.

    >>> rows_of((64, 100, 16), 1000)
    (slice(0, 7, None), slice(None, None, 13), slice(None, None, None))
    """
    size = int(np.prod(shape))
    if size <= limit or len(shape) < 2:
        return None
    index: list[Any] = []
    for length in shape[:-2]:
        size //= length
        count = max(1, min(length, limit // (8 * max(size // max(shape[-2], 1), 1))))
        index.append(slice(0, count))
        limit //= count
    kept = max(1, limit // max(shape[-1], 1))
    step = -(-shape[-2] // kept)
    step += step % 2 == 0  # positions that are all even would hide what is rounded
    return (*index, slice(None, None, step), slice(None))


def some_rows(variables: Variables, limit: int) -> Thinned | None:
    """Some rows of all arrays of rows; where a row is what lies along the last axis."""
    names = [name for name in ("x", "gate", "up", "grad", "output") if name in variables]
    arrays = {name: np.asarray(variables[name]) for name in names}
    x = next(iter(arrays.values()))
    index = rows_of(x.shape, limit) if variables.get("axis", -1) in (-1, x.ndim - 1) else None
    if index is None:
        return None
    return variables | {name: x[index] for name, x in arrays.items()}, lambda out: out[index]


def first_tokens(variables: Variables, names: Sequence[str], work: int, limit: int) -> Thinned:
    """The first sequences of the arrays (...,L,E) of these names, and where no token sees a later
    one and `work` is far beyond the limit, the first tokens.

    What makes tokens see later ones does not show in the first tokens: these are the last resort.
    """
    mask, positions = variables["mask"], variables["positions"]
    shape = np.shape(variables[names[0]])
    batch = min(shape[0], max(1, limit * shape[0] // work)) if len(shape) > 2 else None
    work //= shape[0] // batch if batch else 1
    first, causal = slice(0, batch), isinstance(mask, str) and work > 10 * limit
    tokens = max(2, 10 * limit * shape[-2] // work) if causal else shape[-2]

    def take(x: Any) -> Any:
        x = np.asarray(x)
        return (x[first] if batch and x.ndim == len(shape) else x)[..., :tokens, :]

    fewer = variables | {name: take(variables[name]) for name in names}
    if np.ndim(positions):
        of_some = np.asarray(positions)[first] if np.ndim(positions) == 2 else np.asarray(positions)
        fewer["positions"] = of_some[..., :tokens]
    if batch and np.ndim(mask) == len(shape) + 1:
        fewer["mask"] = np.asarray(mask)[first]
    return fewer, take
