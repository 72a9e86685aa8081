"""`simdformer.gradcheck`: a backward of your own against differences of its forward, in float64."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simdformer.arguments import is_whole, shown
from simdformer.learn.check.report import Verdict, numbers_are, told_apart

__all__ = ["GradcheckReport", "InputGradient", "gradcheck"]
__dir__ = __all__.copy  # what dir() and completion show

Array = npt.NDArray[Any]

DIRECTIONS = 3  # for each input
STEP = 2.0**-9  # of a direction whose numbers are about 1; a power of two, so that x + h - x is h
AGREES = 1e-6  # of the size of the slope; a right gradient comes to 1e-9 or so
ROUNDED = 1e-2  # of it: more than a float32 inside of f does to the differences
NEAR = "next to these inputs"
TINY = 2.0**-24  # of a direction: a smooth f goes straight so far, one that is rounded in jumps
# A slope counts as 0 if it is as small as this, and as this part of f: the rounding of f hides it.
NOTHING, NOTHING_OF_F = 1e-12, 1e-10
LOCATED = 1000  # an input of up to so many numbers is also asked for each of them, if it is wrong


@dataclass(frozen=True)
class InputGradient:
    """What was found for one input: whether its gradient is right, how far it is off, in words."""

    name: str
    ok: bool
    error: float
    message: str


class GradcheckReport(Verdict):
    """What `gradcheck` found: `ok`, whether all is right, and `inputs`, a line for each input."""

    def __init__(self, name: str, inputs: list[InputGradient]) -> None:
        self.name, self.inputs = name, inputs

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.inputs)

    def __repr__(self) -> str:
        lines = [f"{'✓' if self.ok else '✗'} gradcheck of {self.name}"]
        width = max((len(one.name) for one in self.inputs), default=0)
        lines += [
            f"  {'✓' if one.ok else '✗'} {one.name:{width}}  {one.message}" for one in self.inputs
        ]
        return "\n".join(lines)


def gradcheck(
    f: Callable[..., Any], backward: Callable[..., Any], *inputs: Any, seed: int = 0
) -> GradcheckReport:
    """Compares the gradients of `backward` with differences of `f`.

    Parameters
    ----------
    f : function
        f(*inputs) gives an array, or a tuple of arrays.
    backward : function
        backward(grad, *inputs) gives the gradient of each input, in their order: an array where
        there is one input, else a tuple or list. `grad` is that of f's output, a tuple where f
        gives one. None stands for an input that has no gradient.
    *inputs : float64 arrays; integers (ids, labels) have no gradient
        Random numbers, as unlike as possible: a weight of ones hides a forgotten weight.
    seed : int
        For the random gradient of the output and the directions.

    Returns
    -------
    GradcheckReport
        `.ok`, `.inputs`, a line for each input when printed, `.raise_if_wrong()`.

    For each input the slope of sum(grad · f) along three random directions is measured by central
    differences at two steps (Richardson's extrapolation), and compared with the gradient's product
    with the direction. A right gradient agrees to about 1e-9; more than 1e-6 is wrong. float32
    cannot be checked this way: its differences are good for two digits.

    TypeError: a float input, or an output of f, is not float64. ValueError: no input is float64; f
    gives NaN or infinity, which have no differences; what comes back does not fit.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.random.default_rng(0).standard_normal((3, 5))
    >>> def softmax_backward(grad, x):
    ...     p = sf.softmax(x)
    ...     return p * (grad - (p * grad).sum(-1, keepdims=True))
    >>> sf.gradcheck(sf.softmax, softmax_backward, x).ok
    True
    >>> sf.gradcheck(sf.softmax, lambda grad, x: sf.softmax(x) * grad, x).ok
    False
    """
    arrays = [read(x, place) for place, x in enumerate(inputs)]
    if not any(x.dtype == np.float64 for x in arrays):
        raise ValueError("gradcheck: no input is float64, needs one that has a gradient")
    if not is_whole(seed, 0):
        raise ValueError(f"gradcheck: seed is {shown(seed)}, needs a whole number >= 0")
    rng = np.random.default_rng(seed)
    out = f(*arrays)
    outs = outputs(out, "at these inputs")
    grads = [rng.standard_normal(out.shape) for out in outs]
    found = gradients(backward, tuple(grads) if isinstance(out, tuple) else grads[0], arrays)

    def value(changed: list[Array]) -> float:
        pairs = zip(grads, outputs(f(*changed), NEAR), strict=True)
        return math.fsum(float((grad * out).sum()) for grad, out in pairs)

    size = sum(float(np.abs(grad * out).sum()) for grad, out in zip(grads, outs, strict=True))
    nothing = min(NOTHING, NOTHING_OF_F * size)
    names = names_of(f, len(arrays))
    report = [
        judge(name, place, arrays, gradient, value, nothing, rng)
        for place, (name, gradient) in enumerate(zip(names, found, strict=True))
        if arrays[place].dtype == np.float64
    ]
    return GradcheckReport(getattr(f, "__name__", "f"), report)


def read(x: Any, place: int) -> Array:
    array = np.asarray(x)
    if array.dtype.kind in "iub" or array.dtype == np.float64:
        return array
    raise TypeError(
        f"gradcheck: inputs[{place}] has dtype {array.dtype}, needs float64 (or integers); "
        f"convert it: np.asarray(x, np.float64)"
    )


def outputs(out: Any, where: str) -> list[Array]:
    """What f gave, one array or several, if there are differences of it: float64 or integers, and
    finite. `where` says at which inputs."""
    arrays = [np.asarray(o) for o in (out if isinstance(out, tuple) else (out,))]
    for array in arrays:
        if array.dtype.kind not in "iub" and array.dtype != np.float64:
            raise TypeError(
                f"gradcheck: f gives {array.dtype} for inputs of float64, needs float64: its "
                "differences would be rounding; look for the line that converts"
            )
        if bad := int((~np.isfinite(array)).sum()):
            raise ValueError(
                f"gradcheck: f gives NaN or infinity {where} ({bad} of {array.size} numbers), "
                "needs finite numbers, which have differences; choose other inputs"
            )
    return [array.astype(np.float64) for array in arrays]


def gradients(backward: Callable[..., Any], grad: Any, arrays: list[Array]) -> list[Any]:
    """One for each input; those of integers may be left out."""
    given = backward(grad, *(array.copy() for array in arrays))
    found = list(given) if isinstance(given, tuple | list) else [given]
    floats = [place for place, array in enumerate(arrays) if array.dtype == np.float64]
    if len(found) == len(floats) != len(arrays):
        by_place = dict(zip(floats, found, strict=True))
        found = [by_place.get(place) for place in range(len(arrays))]
    if len(found) != len(arrays):
        raise ValueError(
            f"gradcheck: backward gives {len(found)} gradient{'s' * (len(found) != 1)}, needs "
            f"{len(arrays)}, one for each input; None for one that has none"
        )
    return found


def names_of(f: Callable[..., Any], count: int) -> list[str]:
    try:
        names = [name for name in inspect.signature(f).parameters if name not in ("args", "kwargs")]
    except (TypeError, ValueError):
        names = []
    return [*names, *(f"inputs[{place}]" for place in range(len(names), count))][:count]


def slope(
    value: Callable[[list[Array]], float], place: int, arrays: list[Array], d: Array
) -> float:
    """The derivative of `value` along direction d of one input, to the fourth order."""

    def difference(h: float) -> float:
        ends = [[*arrays] for _ in range(2)]
        ends[0][place], ends[1][place] = arrays[place] + h * d, arrays[place] - h * d
        return (value(ends[0]) - value(ends[1])) / (2 * h)

    return (4 * difference(STEP / 2) - difference(STEP)) / 3


def judge(
    name: str,
    place: int,
    arrays: list[Array],
    gradient: Any,
    value: Callable[[list[Array]], float],
    nothing: float,
    rng: np.random.Generator,
) -> InputGradient:
    x = arrays[place]
    given = np.zeros_like(x) if gradient is None else np.asarray(gradient, np.float64)
    if given.shape != x.shape:
        message = f"has shape {given.shape}, needs {x.shape}, that of the input"
        return InputGradient(name, False, math.inf, message)
    if not x.size:
        return InputGradient(name, True, 0.0, "has no numbers, so nothing was compared")
    if bad := int((~np.isfinite(given)).sum()):
        message = f"{numbers_are(bad, x.size)} not finite"
        return InputGradient(name, False, math.inf, message)
    directions = [rng.standard_normal(x.shape) for _ in range(DIRECTIONS)]
    wanted = np.array([slope(value, place, arrays, d) for d in directions])
    mine = np.array([(given * d).sum() for d in directions])
    right, found = float(np.abs(wanted).max()), float(np.abs(mine).max())
    size = max(right, found)
    if size <= nothing:
        return InputGradient(name, True, 0.0, "is 0, as it should be")
    error = float(np.abs(mine - wanted).max()) / size
    if error <= AGREES:
        return InputGradient(name, True, error, f"agrees to {max(error, 1e-16):.0e}")
    if gradient is None:
        return InputGradient(name, False, error, "is None, but the output depends on this input")
    if min(right, found) <= nothing:
        message = "is not 0, the right one is" if found > right else "is 0, the right one is not"
        return InputGradient(name, False, error, message)
    factor = mine / np.where(wanted == 0, np.inf, wanted)
    if np.ptp(factor) <= AGREES * np.abs(factor).max():
        message = f"is {factor.mean():.6g} times the right one"
        return InputGradient(name, False, error, message)
    message = located(place, arrays, given, value, error)
    if error <= ROUNDED and is_rough(value, place, arrays, directions[0], size):
        message += (
            "; but f is not smooth here, and differences tell no more: is there a float32 inside "
            "of it, or a corner at these inputs?"
        )
    return InputGradient(name, False, error, message)


def is_rough(
    value: Callable[[list[Array]], float], place: int, arrays: list[Array], d: Array, size: float
) -> bool:
    """Whether f is so uneven next to the inputs that slopes of this size cannot agree."""
    at = [[*arrays] for _ in range(3)]
    for moved, step in zip(at, (-TINY, 0.0, TINY), strict=True):
        moved[place] = arrays[place] + step * d
    before, here, after = map(value, at)
    return abs(before - 2 * here + after) / STEP > AGREES * size


def located(
    place: int,
    arrays: list[Array],
    given: Array,
    value: Callable[[list[Array]], float],
    error: float,
) -> str:
    """Which numbers are wrong, where there are few enough to ask for each."""
    off = f"is {error:.2g} of its size off"
    if given.size > LOCATED:
        return off
    right: Array = np.empty(given.size)
    for index in range(given.size):
        d = np.zeros(given.size)
        d[index] = 1
        right[index] = slope(value, place, arrays, d.reshape(given.shape))
    right = right.reshape(given.shape)
    wrong = np.abs(given - right) > AGREES * np.sqrt(np.mean(right**2) + np.mean(given**2))
    if not wrong.any():
        return off
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    first = f", the first at {list(at)}" if wrong.size > 1 else ""
    return (
        f"{off}; {numbers_are(int(wrong.sum()), wrong.size)} wrong{first}: "
        f"{', needs '.join(told_apart(given[at], right[at], least=6))}"
    )
