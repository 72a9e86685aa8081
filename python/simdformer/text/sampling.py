"""From logits to the next id.

In this order: repetition penalty, temperature, top_k, top_p, min_p, then one draw. Temperature 0 is
greedy: the penalty, then the highest logit (the lowest id of equals).
"""

import difflib
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from simdformer.arguments import LARGEST, as_array, is_whole, shown
from simdformer.types import Array, ArrayLike

__all__ = [
    "OPTIONS",
    "Option",
    "Sampler",
    "SamplingOptions",
    "check_names",
    "nucleus",
    "shows_sampling",
]


def is_number(value: Any) -> bool:
    if not isinstance(value, int | float | np.floating | np.integer) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


class Option(NamedTuple):
    """One thing that can be said about how the next id is chosen: what it may be, in words and as
    a test (`least` of a whole number, None for others); what it does; and how the command line
    calls it. A default of None leaves it out."""

    name: str
    default: float | None
    needed: str
    allowed: Callable[[Any], bool]
    least: int | None
    about: str
    metavar: str
    help: str

    def check(self, value: Any) -> None:
        """ValueError for what it may not be."""
        optional = self.default is None
        right = is_number(value) if self.least is None else is_whole(value, self.least)
        if not (right and self.allowed(value)) and not (optional and value is None):
            needed = f"None or {self.needed}" if optional else self.needed
            raise ValueError(f"sampling: {self.name} is {shown(value)}, needs {needed}")


# In the order in which they are applied.
OPTIONS = (
    Option(
        "temperature",
        default=0.0,
        needed=">= 0",
        allowed=lambda t: t >= 0,
        least=None,
        about="Logits are divided by it; 0 is greedy: the likeliest id every time.",
        metavar="T",
        help="0 (default): the likeliest token every time; 1: each as often as it is likely",
    ),
    Option(
        "top_k",
        default=None,
        needed="in [1, 2**63)",
        allowed=lambda k: k <= LARGEST,
        least=1,
        about="Only the k likeliest ids, and those as likely as the k-th.",
        metavar="K",
        help="choose among the K likeliest tokens",
    ),
    Option(
        "top_p",
        default=None,
        needed="in (0, 1]",
        allowed=lambda p: 0 < p <= 1,
        least=None,
        about="Only the nucleus, the likeliest ids until their probabilities sum up to p: "
        "arXiv:1904.09751.",
        metavar="P",
        help="choose among the likeliest that sum up to P",
    ),
    Option(
        "min_p",
        default=None,
        needed="in [0, 1]",
        allowed=lambda p: 0 <= p <= 1,
        least=None,
        about="Only ids that are at least p times as likely as the likeliest: arXiv:2407.01082.",
        metavar="P",
        help="leave out what is less than P times as likely as the likeliest",
    ),
    Option(
        "repetition_penalty",
        default=1.0,
        needed="> 0",
        allowed=lambda x: x > 0,
        least=None,
        about="Above 1 it makes ids less likely that stand in the text already, the prompt "
        "included: their logits are divided by it, or multiplied where negative. "
        "arXiv:1909.05858.",
        metavar="X",
        help="above 1: say less again (default: 1)",
    ),
    Option(
        "seed",
        default=None,
        needed=">= 0",
        allowed=lambda seed: True,
        least=0,
        about="For `numpy.random.default_rng`; None: another text every time.",
        metavar="N",
        help="makes a temperature above 0 repeatable",
    ),
)


def described(options: Iterable[Option]) -> str:
    """What they may be and do, as a docstring has it."""
    rows = [
        f"    {option.name} : {option.needed}{', optional' if option.default is None else ''}\n"
        + textwrap.fill(option.about, 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
        for option in options
    ]
    return "\n".join(rows) + "\n"


class SamplingOptions(TypedDict, total=False):
    """The OPTIONS as keywords of functions, for type checkers."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int | Sequence[int] | None


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """A way to choose the next id. ValueError names a parameter that makes no sense.

    OPTIONS

    >>> from simdformer.text import Sampler
    >>> Sampler()([1.0, 4.0, 3.0])
    1
    >>> Sampler(temperature=1.0, top_k=2).probabilities([1.0, 4.0, 3.0]).round(3)
    array([0.   , 0.731, 0.269])
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None
    random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in OPTIONS:
            option.check(getattr(self, option.name))
        object.__setattr__(self, "random", np.random.default_rng(self.seed))

    def __call__(self, logits: ArrayLike, so_far: Sequence[int] = ()) -> int:
        """The next id after logits (V,); repetition_penalty needs the ids of the text so far."""
        scores = self._penalized(as_array("sampling", "logits", logits), so_far)
        if self.temperature == 0:
            return int(np.argmax(scores))
        ids, probabilities = self._likely(scores)
        # Inverse transform: the first id at which the cumulated probability passes a uniform one.
        cumulated = np.cumsum(probabilities, out=probabilities)
        drawn = np.searchsorted(cumulated, self.random.random() * cumulated[-1], side="right")
        return int(ids[drawn])

    def probabilities(
        self, logits: ArrayLike, so_far: Sequence[int] = ()
    ) -> npt.NDArray[np.float64]:
        """The distribution (V,) from which the next id is drawn."""
        scores = self._penalized(as_array("sampling", "logits", logits), so_far)
        found = np.zeros(len(scores))
        if self.temperature == 0:
            found[np.argmax(scores)] = 1
        else:
            ids, probabilities = self._likely(scores)
            found[ids] = probabilities
        return found

    def _penalized(self, logits: Array, so_far: Sequence[int]) -> Array:
        if self.repetition_penalty == 1.0 or not so_far:
            return logits
        seen = np.unique(np.asarray(so_far))
        penalized = logits.astype(np.float64)
        found, penalty = penalized[seen], self.repetition_penalty
        penalized[seen] = np.where(found > 0, found / penalty, found * penalty)
        return penalized

    def _likely(self, logits: Array) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """The ids that may be drawn, ascending, and their probabilities, which add up to 1. What a
        step has cut off the next does not see: with 150,000 ids that is where time goes."""
        ids = np.arange(len(logits))
        if self.top_k is not None and self.top_k < len(logits):
            ids = np.flatnonzero(logits >= np.partition(logits, -self.top_k)[-self.top_k])
            logits = logits[ids]
        # In float64: 150,000 probabilities summed up in float32 would shift the last ids.
        probabilities = logits.astype(np.float64)
        # The highest becomes 0, so that no temperature, however low, makes it infinite.
        probabilities -= probabilities.max()
        with np.errstate(over="ignore"):
            probabilities /= self.temperature
        np.exp(probabilities, out=probabilities)
        probabilities /= probabilities.sum()
        if self.top_p is not None and self.top_p < 1:
            kept = nucleus(probabilities, self.top_p)
            ids, probabilities = ids[kept], probabilities[kept] / probabilities[kept].sum()
        if self.min_p is not None:
            kept = np.flatnonzero(probabilities >= self.min_p * probabilities.max())
            ids, probabilities = ids[kept], probabilities[kept] / probabilities[kept].sum()
        return ids, probabilities


Sampler.__doc__ = (Sampler.__doc__ or "").replace("    OPTIONS\n", described(OPTIONS))

FAR = 1e-3  # so much less likely than the likeliest
ROUNDING = 1e-9  # more than sums of probabilities are wrong by


def nucleus(probabilities: npt.NDArray[np.float64], share: float) -> npt.NDArray[np.intp]:
    """Where the likeliest are that are needed to sum up to `share`; of equals the first.

    >>> nucleus(np.array([0.1, 0.4, 0.1, 0.4]), 0.85)
    array([0, 1, 3])
    """
    # A few hundred of 150,000 ids are nearly always enough, and sorting is what takes time.
    some = probabilities[probabilities >= FAR * probabilities.max()]
    if some.sum() < share + ROUNDING:
        some = probabilities
    descending = np.sort(some)[::-1]
    count = int(np.searchsorted(np.cumsum(descending), share)) + 1
    least = descending[min(count, len(descending)) - 1]
    kept = np.flatnonzero(probabilities >= least)
    equals = kept[probabilities[kept] == least]
    too_many = max(len(kept) - count, 0)
    return np.setdiff1d(kept, equals[len(equals) - too_many :], assume_unique=True)


Function = TypeVar("Function", bound=Callable[..., Any])


def shows_sampling(function: Function) -> Function:
    """The same function, whose signature shows `**sampling` option by option."""
    signature = inspect.signature(function)
    types = SamplingOptions.__annotations__
    options = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=types[option.name],
        )
        for option in OPTIONS
    ]
    before = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    function.__signature__ = signature.replace(parameters=[*before, *options])  # type: ignore[attr-defined]
    return function


# What other programs call these options.
ELSEWHERE = {
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "num_predict": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "temp": "temperature",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "repeat_penalty": "repetition_penalty",
    "random_state": "seed",
    "past_key_values": "cache",
    "assistant_model": "draft",
    "draft_model": "draft",
}


def check_names(function: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """TypeError for an option that there is not, with the one that may be meant."""
    known = list(known)
    for name in given:
        if name not in known:
            near = (
                [ELSEWHERE[name]] if name in ELSEWHERE else difflib.get_close_matches(name, known)
            )
            meant = f"; {near[0]}?" if near else f", needs some of {', '.join(known)}"
            raise TypeError(f"{function}: there is no option {name}{meant}")
