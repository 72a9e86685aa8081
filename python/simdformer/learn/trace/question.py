"""One activation of a trace as a question for `check`, with the mistakes of whole models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake, wrong_steps
from simdformer.learn.check.compare import TOLERANCE
from simdformer.learn.check.evidence import Evidence, Verdict
from simdformer.learn.check.judge import Check
from simdformer.learn.check.operation import Asked
from simdformer.learn.check.rounding import F32
from simdformer.learn.check.search import Explanation, Problem, evaluate
from simdformer.learn.mistakes.model_weights import STEPS, called, of_layer
from simdformer.learn.program import Run, Step

__all__ = ["Activation", "Glance", "Thorough"]


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

    def verdict(self, right: list[Any]) -> Verdict:
        found = self.compare(self.mine, right)
        if not all(c.ok for c in found):
            spreads = self.evidence(self.mine).spreads(right, self.coarsest)
            found = self.compare(self.mine, right, spreads)
        return Verdict(all(c.ok for c in found), found)

    def describe(self, i: int, right: Any) -> list[str]:
        return []


@dataclass(frozen=True, kw_only=True)
class Thorough(Check):
    """Looks for weights of other layers too.

    weights : the names of those that take part
    layer : the one that the activation belongs to, if it does
    num_layers : how many there are
    """

    weights: list[str]
    layer: int | None
    num_layers: int

    def known(self, evidence: Evidence) -> tuple[Explanation, ...]:
        return (
            evidence.search.singles()
            or self.of_other_layers(evidence.problem)
            or evidence.constants(self.coarsest)
        )

    def of_other_layers(self, problem: Problem) -> tuple[Explanation, ...]:
        """Weights of another layer than the first, which is in the catalogue."""
        mine, found = problem.mine, []
        dtype = mine[0].dtype if mine[0].dtype in TOLERANCE else F32
        for weight in self.weights:
            for index in range(1, self.num_layers):
                if index == self.layer:
                    continue
                step = wrong_steps({f"layer.{STEPS[weight]}": of_layer(weight, index)})
                out = evaluate(Run(dtype, step), problem)
                if out is not None and self.compare(mine, out)[0].ok:
                    found.append((wrong_layer(weight, index, step),))
        return tuple(found)


def wrong_layer(weight: str, index: int, step: Mapping[str, Step]) -> Mistake:
    return Mistake(
        f"layer.{weight}_of_layer_{index}",
        f"this is what layer {index}'s {called(weight)} gives",
        "The weights of the layers have the same names but for the number, and the wrong number "
        "was taken.",
        "Take the index of the layer that is being computed.",
        "02 §8",
        step,
    )
