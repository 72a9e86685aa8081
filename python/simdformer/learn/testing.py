"""`simdformer.testing`: the measure of `simdformer.check` for your own tests, as numpy.testing.

    import simdformer as sf

    def test_my_attention(q, k, v):
        sf.testing.assert_right(sf.scaled_dot_product_attention, my_attention(q, k, v), q, k, v)

    def test_two_ways(x):
        sf.testing.assert_close(fast(x), slow(x), names=("fast", "slow"))

Both pass silently, or raise an AssertionError (a `simdformer.CheckError`) that says where an array
is wrong; `assert_right` says also which mistake gives it.
"""

from typing import Any

import numpy as np

from simdformer.arguments import shown
from simdformer.learn.check import check
from simdformer.learn.check.compare import (
    TOLERANCE,
    coarsest,
    compare,
    float_dtypes,
    numbers,
    read_rtol,
)
from simdformer.learn.check.operation import as_array
from simdformer.learn.check.report import CheckError, numbers_are

__all__ = ["CheckError", "assert_close", "assert_right"]
__dir__ = __all__.copy  # what dir() and completion show

SHOWN = 5  # of the wrong numbers


def assert_right(op: Any, mine: Any, *args: Any, rtol: float | None = None, **kwargs: Any) -> None:
    """Raises a `CheckError` with the report of `simdformer.check` unless `mine` is right.

    Parameters and errors are those of `simdformer.check`.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
    >>> sf.testing.assert_right(sf.silu, x / (1 + np.exp(-x)), x)
    """
    __tracebackhide__ = True  # pytest shows the line of the test, not this one
    check(op, mine, *args, rtol=rtol, **kwargs).raise_if_wrong()


def assert_close(
    mine: Any,
    right: Any,
    *,
    rtol: float | None = None,
    names: tuple[str, str] = ("mine", "right"),
) -> None:
    """Raises a `CheckError` unless two arrays are as good as equal.

    Parameters
    ----------
    mine, right : array
        In any float dtype, or integers; tensors on the CPU too. Their dtypes may differ, their
        shapes may not.
    rtol : float, optional
        How large an error may be, relative to the root mean square of its row of `right` (what lies
        along the last axis). Without it, what the coarser of the two dtypes is good for: 1e-9 for
        float64, 1e-4 for float32, 5e-3 for float16, 4e-2 for bfloat16. Two arrays of integers have
        to be equal.
    names : pair of str
        What the message calls them.

    NaN and infinities have to be in the same places. Measuring by the row means that a number near
    zero beside large ones need not be exact to its own size, as `numpy.testing.assert_allclose`
    would have it.

    TypeError: one of them holds no numbers. ValueError: rtol is negative, or no number.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.array([1000.0, 0.001], np.float32)
    >>> sf.testing.assert_close(x + 1e-5, x)
    >>> sf.testing.assert_close(x + 1, x)
    Traceback (most recent call last):
    simdformer.learn.check.report.CheckError: mine is not close to right: 2 of 2 numbers ...
    """
    __tracebackhide__ = True
    rtol = read_rtol("assert_close", rtol)
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise TypeError(f"assert_close: names is {shown(names)}, needs two texts")
    found, wanted = (array_of(x, name) for x, name in zip((mine, right), names, strict=True))
    if found.shape != wanted.shape:
        raise CheckError(f"{names[0]} has shape {found.shape}, {names[1]} {wanted.shape}")
    found, wanted = np.atleast_1d(found), np.atleast_1d(wanted)
    dtypes = float_dtypes([found, wanted])
    whole = not dtypes
    dtype = coarsest(dtypes)
    measure = (0.0 if whole else TOLERANCE[dtype]) if rtol is None else rtol
    compared = compare(found, wanted, measure, dtype)
    if compared.ok:
        return
    size = np.broadcast_to(compared.size, found.shape)
    raise CheckError(
        "\n".join(message(found, wanted, compared.wrong, compared.error, size, measure, names))
    )


def message(
    mine: Any, right: Any, wrong: Any, error: Any, size: Any, rtol: float, names: tuple[str, str]
) -> list[str]:
    count = int(wrong.sum())
    row = "its size" if wrong.size == 1 else f"the size of {'its' if count == 1 else 'their'} row"
    off = f"{numbers_are(count, wrong.size)} off by more than {rtol:g} of {row}"
    lines = [
        f"{names[0]} is not close to {names[1]}: {off}",
        f"  {names[0]}: {mine.shape} {mine.dtype}, {names[1]}: {right.shape} {right.dtype}",
    ]
    with np.errstate(all="ignore"):
        relative = np.where(wrong, error / np.where(size == 0, np.finfo(float).tiny, size), -1)
    worst = np.argsort(-np.nan_to_num(relative, nan=np.inf), axis=None, kind="stable")
    width = max(map(len, names))
    for flat in worst[: min(count, SHOWN)]:
        at = tuple(int(i) for i in np.unravel_index(flat, wrong.shape))
        lines.append(
            f"  at {list(at)}: {names[0]:>{width}} {number(mine[at])}, "
            f"{names[1]:>{width}} {number(right[at])}"
        )
    if count > SHOWN:
        lines.append(f"  ... and {count - SHOWN} more; these are the worst")
    if int(np.isnan(numbers(mine)).sum()) > int(np.isnan(numbers(right)).sum()):
        first = tuple(int(i) for i in np.argwhere(np.isnan(numbers(mine)) & wrong)[0])
        lines.append(f"  {names[0]} is NaN from {list(first)} on")
    return lines


def number(x: Any) -> str:
    return f"{float(x):.9g}"


def array_of(x: Any, name: str) -> Any:
    array = np.asarray(as_array(x))
    if array.dtype in TOLERANCE or array.dtype.kind in "iub":
        return array
    raise TypeError(f"assert_close: {name} is of dtype {array.dtype}, needs an array of numbers")
