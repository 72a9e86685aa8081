"""One activation of a trace as a question for `check`, with the mistakes of whole models."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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

__all__ = ["Activation", "Doubt", "Glance", "Thorough"]


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


class Doubt(Check):
    """Within what is usual: wrong only where a mistake explains more of it than rounding."""

    def verdict(self, right: list[Any]) -> Verdict:
        found = self.compare(self.mine, right)
        return self.evidence(self.mine).doubted(right, found)


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
    """Looks for weights of other layers too, and for layers that are left out.

    weights : the names of those that take part
    layer : the one that the activation belongs to, if it does
    streams : what each layer leaves, that of number -1 is the embedding
    """

    weights: list[str]
    layer: int | None
    streams: Mapping[int, Any]

    def known(self, evidence: Evidence) -> tuple[Explanation, ...]:
        problem = evidence.problem
        return (
            evidence.search.singles()
            or tuple(self.of_other_layers(problem))
            or tuple(self.of_layers_left_out(problem))
            or evidence.constants(self.coarsest)
        )

    def gives(self, problem: Problem, steps: Mapping[str, Step]) -> bool:
        mine = problem.mine
        dtype = mine[0].dtype if mine[0].dtype in TOLERANCE else F32
        out = evaluate(Run(dtype, steps), problem)
        return out is not None and self.compare(mine, out)[0].ok

    def of_other_layers(self, problem: Problem) -> Iterator[Explanation]:
        """One weight of another layer, or all of them. (Most of the first are in the catalogue.)"""
        sets = [[weight] for weight in self.weights] + [self.weights] * (len(self.weights) > 1)
        for weights in sets:
            for index in range(len(self.streams) - 1):
                lines = {STEPS[one]: of_layer(one, index) for one in weights}
                steps = wrong_steps(lines)
                if index != self.layer and self.gives(problem, steps):
                    yield (wrong_layer(weights, index, steps),)

    def of_layers_left_out(self, problem: Problem) -> Iterator[Explanation]:
        """The loop ends early, begins late, or leaves some out."""
        plan = [
            (index, program, dict(known)) for index, program, known in problem.variables["plan"]
        ]
        for _, _, known in plan:
            known.pop("came_in", None)
        first = plan[0][0] if plan else len(self.streams) - 1
        tried = [(i + 1, first - 1, i, plan) for i in range(-1, first - 1)]
        for n, (index, _, _) in enumerate(plan):
            tried.append((index, index, first - 1, [*plan[:n], *plan[n + 1 :]]))
        for begin, end, before, rest in tried:
            stream = self.streams[before]
            variables = problem.variables | {"plan": rest, "begin": stream, "resid_post": stream}
            if end != self.layer and self.gives(replace(problem, variables=variables), {}):
                yield (left_out(begin, end),)


def wrong_layer(weights: list[str], index: int, steps: Mapping[str, Step]) -> Mistake:
    name, title = f"{weights[0]}_of_layer_{index}", f"layer {index}'s {called(weights[0])} gives"
    if len(weights) > 1:
        name, title = f"layer_{index}_instead", f"layer {index} gives: all weights are its own"
    return Mistake(
        f"layer.{name}",
        f"this is what {title}",
        "The weights of the layers have the same names but for the number, and the wrong number "
        "was taken.",
        "Take the index of the layer that is being computed.",
        "02 §8",
        steps,
    )


def left_out(first: int, last: int) -> Mistake:
    layers = f"layer {first} is" if first == last else f"layers {first} to {last} are"
    return Mistake(
        "layer.left_out",
        f"{layers} left out",
        "The loop over the layers begins late, ends early, or steps over one.",
        "Go through all layers, in range(num_layers), and let each read what the one before left.",
        "02 §8",
    )
