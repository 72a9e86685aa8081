"""From logits to the next id.

In this order: repetition penalty, temperature, top_k, top_p, min_p, then one draw. Temperature 0 is
greedy: the penalty, then the highest logit (the lowest id of equals).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simdformer.arguments import LARGEST, as_array, is_whole, shown
from simdformer.types import Array, ArrayLike

__all__ = ["Sampler"]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """A way to choose the next id. ValueError names a parameter that makes no sense.

    temperature : >= 0
        Logits are divided by it; 0 is greedy.
    top_k : in [1, 2**63), optional
        Only the k likeliest ids, and those as likely as the k-th.
    top_p : in (0, 1], optional
        Only the likeliest ids, until their probabilities sum up to p: arXiv:1904.09751.
    min_p : in [0, 1], optional
        Only ids that are at least p times as likely as the likeliest: arXiv:2407.01082.
    repetition_penalty : > 0
        Above 1 it makes ids less likely that stand in the text already, the prompt included:
        their logits are divided by it, or multiplied where negative. arXiv:1909.05858.
    seed : >= 0, optional
        Of `numpy.random.default_rng`; None: another text every time.

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
        allowed = {
            "temperature": (is_number(self.temperature) and self.temperature >= 0, ">= 0"),
            "top_k": (self.top_k is None or is_count(self.top_k), "None or in [1, 2**63)"),
            "top_p": (self.top_p is None or is_share(self.top_p, above=0), "None or in (0, 1]"),
            "min_p": (self.min_p is None or is_share(self.min_p), "None or in [0, 1]"),
            "repetition_penalty": (
                is_number(self.repetition_penalty) and self.repetition_penalty > 0,
                "> 0",
            ),
            "seed": (self.seed is None or is_whole(self.seed, 0), "None or >= 0"),
        }
        for name, (right, needed) in allowed.items():
            if not right:
                found = shown(getattr(self, name))
                raise ValueError(f"sampling: {name} is {found}, needed is {needed}")
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
            kept = likeliest(probabilities, self.top_p)
            ids, probabilities = ids[kept], probabilities[kept] / probabilities[kept].sum()
        if self.min_p is not None:
            kept = np.flatnonzero(probabilities >= self.min_p * probabilities.max())
            ids, probabilities = ids[kept], probabilities[kept] / probabilities[kept].sum()
        return ids, probabilities


FAR = 1e-3  # so much less likely than the likeliest
ROUNDING = 1e-9  # more than sums of probabilities are wrong by


def likeliest(probabilities: npt.NDArray[np.float64], share: float) -> npt.NDArray[np.intp]:
    """Where the likeliest are that are needed to sum up to `share`; of equals the first.

    >>> likeliest(np.array([0.1, 0.4, 0.1, 0.4]), 0.85)
    array([0, 1, 3])
    """
    # Of 150,000 ids a few hundred are enough, nearly always, and sorting is what takes time.
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


def is_number(value: Any) -> bool:
    if not isinstance(value, int | float | np.floating | np.integer) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def is_share(value: Any, above: float = -1) -> bool:
    return is_number(value) and bool(0 <= value <= 1 and value > above)


def is_count(value: Any) -> bool:
    return is_whole(value) and bool(value <= LARGEST)
