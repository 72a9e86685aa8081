"""`simdformer.check`: is this array right, and if not, which mistake was made?"""

from typing import Any

import numpy as np

from simdformer.learn.compare import TOLERANCE, Comparison, coarsest, compare, finfo, float_dtypes
from simdformer.learn.operation import Call, as_array, bind
from simdformer.learn.report import CheckError, Report, Where
from simdformer.learn.search import Problem, Search, evaluate, spread

__all__ = ["CheckError", "Report", "check"]


def check(op: Any, mine: Any, *args: Any, rtol: float | None = None, **kwargs: Any) -> Report:
    """Compare a result with the right one; when it is wrong, name the mistake.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
    >>> mine = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
    >>> bool(sf.check(sf.softmax, mine, x))
    True
    """
    call = bind(op, args, kwargs)
    given = _results(mine, call)
    right = call.right()
    dtypes = float_dtypes([*call.inputs, *given])
    coarse = coarsest(dtypes)
    tolerance = TOLERANCE[coarse] if rtol is None else rtol
    mine_dtype = coarsest(float_dtypes(given))
    shapes = [np.shape(x) for x in given], [np.shape(x) for x in right]
    if shapes[0] != shapes[1]:
        bad = next(i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b)
        return Report(
            False, call.name, shapes[0][bad], str(given[bad].dtype), np.nan, np.nan,
            expected=shapes[1][bad],
        )  # fmt: skip
    found = [compare(a, b, tolerance, coarse) for a, b in zip(given, right, strict=True)]
    if not all(c.ok for c in found) and rtol is None and call.program is not None:
        problem = Problem(call.program, call.variables, given)
        eps = float(finfo(coarse).eps)
        spreads = spread(lambda run: evaluate(run, problem) or [], {}, eps)
        found = [
            compare(a, b, tolerance, coarse, c)
            for a, b, c in zip(given, right, spreads, strict=True)
        ]
    ok = all(c.ok for c in found)
    worst = max(range(len(found)), key=lambda i: found[i].excess)
    explanations: Any = ()
    if not ok and call.program is not None:
        search = Search([mine_dtype], tolerance, coarse)
        explanations = search(Problem(call.program, call.variables, given))
    return Report(
        ok,
        call.name,
        np.shape(given[worst]),
        str(given[worst].dtype),
        max(c.max_abs for c in found),
        max(float(c.relative.max(initial=0)) for c in found),
        None if ok else _where(found[worst], given[worst], right[worst], worst),
        explanations,
    )


def _results(mine: Any, call: Call) -> list[Any]:
    if call.several:
        return [np.asarray(as_array(x)) for x in mine]
    return [np.asarray(as_array(mine))]


def _where(c: Comparison, mine: Any, right: Any, result: int) -> Where:
    at = np.unravel_index(np.argmax(np.where(c.wrong, c.error / c.allowed, 0)), c.error.shape)
    return Where(
        tuple(map(int, at)), float(mine[at]), float(right[at]), "", int(c.wrong.sum()),
        c.wrong.size, result,
    )  # fmt: skip
