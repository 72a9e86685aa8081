"""One activation of a trace as a question for `check`, with the mistakes of whole models."""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.learn.check.compare import TOLERANCE, compare, finfo
from simdformer.learn.check.judge import Check
from simdformer.learn.check.operation import Asked
from simdformer.learn.check.search import Explanation, evaluate, spread
from simdformer.learn.mistakes.model_weights import STEPS, called, using
from simdformer.learn.program import Mistake, Run

__all__ = ["Activation", "Glance", "Thorough"]

F16, BF16, F32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


@dataclass(frozen=True)
class Activation(Asked):
    """What an activation should be: computed from the learner's own last right values."""

    wanted: Any

    @property
    def inputs(self) -> list[Any]:
        """For their dtypes: the model itself computes in float32, so nobody can be asked for more.
        What is coarser than the learner's array is its own affair."""
        return [np.zeros(0, np.float32)]

    def right(self) -> list[Any]:
        return [self.wanted]


class Glance(Check):
    """Right or wrong, without asking why."""

    def search(self, mine: list[Any], pairs: bool = True) -> tuple[Explanation, ...]:
        return ()

    def describe(self, i: int, right: Any) -> list[str]:
        return []


@dataclass(frozen=True, kw_only=True)
class Thorough(Check):
    """Looks for weights of other layers too, and for arithmetic of few bits.

    weights : the names of those that take part
    layer : the one that the activation belongs to, if it does
    num_layers : how many there are
    """

    weights: list[str]
    layer: int | None
    num_layers: int

    def search(self, mine: list[Any], pairs: bool = True) -> tuple[Explanation, ...]:
        found = super().search(mine, pairs=False) or self.of_other_layers(mine)
        if found or (found := self.of_few_bits(mine)) or not pairs:
            return found
        return super().search(mine)

    def of_other_layers(self, mine: list[Any]) -> tuple[Explanation, ...]:
        """Weights of another layer than the first, which is in the catalogue."""
        problem, found = replace(self.problem(mine), until=self.until), []
        dtype = mine[0].dtype if mine[0].dtype in TOLERANCE else F32
        for weight in self.weights:
            for index in range(1, self.num_layers):
                if index == self.layer:
                    continue
                step = {f"layer.{STEPS[weight]}": using(STEPS[weight], {}, index)}
                out = evaluate(Run(dtype, step), problem)
                if out is not None and self.compare(mine, out)[0].ok:
                    found.append((wrong_layer(weight, index),))
        return tuple(found)

    def of_few_bits(self, mine: list[Any]) -> tuple[Explanation, ...]:
        """Whether an array of many bits is right as far as one of few goes."""
        problem = self.problem(mine)
        for few in (F16, BF16):
            if TOLERANCE[few] <= self.tolerance:
                continue
            (moved,) = spread(lambda run: evaluate(run, problem) or [], {}, float(finfo(few).eps))
            if compare(mine[0], self.call.right()[0], self.tolerance, self.coarsest, moved).ok:
                return ((few_bits(str(few)),),)
        return ()


def wrong_layer(weight: str, index: int) -> Mistake:
    return Mistake(
        f"layer.{weight}_of_layer_{index}",
        f"this is what layer {index}'s {called(weight)} gives",
        "The weights of the layers have the same names but for the number, and the wrong number "
        "was taken.",
        "Take the index of the layer that is being computed.",
        "02 §8",
    )


def few_bits(name: str) -> Mistake:
    return Mistake(
        f"model.{name}",
        f"it is right only as far as {name} goes: somewhere on the way it was rounded to that",
        f"A norm, a softmax or a product was computed in {name}, or its result stored in it.",
        f"Compute in float32 and go back to {name} only to store; sums, norms and softmax need it.",
        "02 §4",
    )
