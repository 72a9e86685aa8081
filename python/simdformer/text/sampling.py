"""From logits to the next id.

In this order: repetition penalty, temperature, top_k, top_p, min_p, then one draw. Temperature 0 is
greedy: the penalty, then the highest logit (the lowest id of equals).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simdformer.types import Array

__all__ = ["Sampler"]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """A way to choose the next id. What makes no sense is a ValueError that names the parameter.

    temperature >= 0      logits are divided by it; 0 is greedy
    top_k >= 1            only the k likeliest ids (all that are as likely as the k-th)
    0 < top_p <= 1        only the likeliest ids, until their probabilities sum up to p
    (arXiv:1904.09751) 0 <= min_p <= 1       only ids at least p times as likely as the likeliest
    (arXiv:2407.01082)
    repetition_penalty    > 1 makes ids that already stand in the text, the prompt included, less
                          likely: positive logits are divided by it, negative ones multiplied
                          (arXiv:1909.05858)
    seed                  of `numpy.random.default_rng`; None: another text every time
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None
    random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(
            is_number(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            ">= 0",
        )
        require(
            self.top_k is None or (isinstance(self.top_k, int) and self.top_k >= 1),
            "top_k",
            self.top_k,
            "None or >= 1",
        )
        require(
            self.top_p is None or (is_number(self.top_p) and 0 < self.top_p <= 1),
            "top_p",
            self.top_p,
            "None or in (0, 1]",
        )
        require(
            self.min_p is None or (is_number(self.min_p) and 0 <= self.min_p <= 1),
            "min_p",
            self.min_p,
            "None or in [0, 1]",
        )
        require(
            is_number(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "> 0",
        )
        require(
            self.seed is None or (isinstance(self.seed, int) and self.seed >= 0),
            "seed",
            self.seed,
            "None or >= 0",
        )
        object.__setattr__(self, "random", np.random.default_rng(self.seed))

    def __call__(self, logits: Array, so_far: Sequence[int] = ()) -> int:
        """The next id, given logits (V,) and the ids of the text so far (needed for the repetition
        penalty)."""
        logits = self._penalized(np.asarray(logits, np.float64), so_far)
        if self.temperature == 0:
            return int(np.argmax(logits))
        probabilities = self._distribution(logits)
        # Inverse transform: the first id at which the cumulated probability passes a uniform
        # number.
        cumulated = np.cumsum(probabilities)
        return int(np.searchsorted(cumulated, self.random.random() * cumulated[-1], side="right"))

    def probabilities(self, logits: Array, so_far: Sequence[int] = ()) -> npt.NDArray[np.float64]:
        """The distribution (V,) from which the next id is drawn."""
        logits = self._penalized(np.asarray(logits, np.float64), so_far)
        if self.temperature == 0:
            return np.where(np.arange(len(logits)) == np.argmax(logits), 1.0, 0.0)
        return self._distribution(logits)

    def _penalized(
        self, logits: npt.NDArray[np.float64], so_far: Sequence[int]
    ) -> npt.NDArray[np.float64]:
        if self.repetition_penalty == 1.0 or not so_far:
            return logits
        seen = np.unique(np.asarray(so_far))
        penalized = logits.copy()
        penalty = self.repetition_penalty
        penalized[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        return penalized

    def _distribution(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < len(logits):
            logits = np.where(
                logits >= np.partition(logits, -self.top_k)[-self.top_k], logits, -np.inf
            )
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(-logits, kind="stable")
            before = np.cumsum(softmax(logits[order])) - softmax(logits[order])
            logits = logits.copy()
            logits[
                order[before >= self.top_p]
            ] = -np.inf  # what comes before them is enough already
        probabilities = softmax(logits)
        if self.min_p is not None:
            probabilities = softmax(
                np.where(probabilities >= self.min_p * probabilities.max(), logits, -np.inf)
            )
        return probabilities


def softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # In float64: 150,000 probabilities summed up in float32 would shift the last ids.
    exponentials = np.exp(logits - logits.max())
    return np.asarray(exponentials / exponentials.sum())


def is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and math.isfinite(value)


def require(right: bool, name: str, found: object, needed: str) -> None:
    if not right:
        raise ValueError(f"sampling: {name} is {found!r}, needed is {needed}")
