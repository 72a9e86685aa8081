"""One activation of a trace as a question for `check`, with the mistakes of whole models."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake, words, wrong_steps
from simdformer.learn.check.compare import compare, numbers
from simdformer.learn.check.evidence import Evidence, Verdict
from simdformer.learn.check.judge import Check
from simdformer.learn.check.operation import Asked
from simdformer.learn.check.rounding import F32
from simdformer.learn.check.search import Explanation, Search
from simdformer.learn.mistakes.model_weights import STEPS, called, of_layer
from simdformer.learn.program import Step

__all__ = ["ExpectedActivation", "OfModel"]

COLUMNS = 1000  # of a vocabulary are looked at closely, and
WORST = 24  # more of them, the worst
FOUND = words(
    """
    layer (02 §8)

    another_layer: this is what layer {index}{what}
        The weights of the layers have the same names but for the number, and the wrong number was
        taken.
        > Take the index of the layer that is being computed.
    left_out: {layers} left out
        The loop over the layers begins late, ends early, or steps over one.
        > Go through all layers, in range(num_layers), and let each read what the one before left.
    """
)


@dataclass(frozen=True)
class ExpectedActivation(Asked):
    """What an activation should be: computed from the learner's own last right values."""

    wanted: Any
    arithmetic = F32  # as the weights are multiplied
    in_bits = "hand it over in {}, as it is computed"

    @property
    def inputs(self) -> list[Any]:
        """For their dtypes: the model itself computes in float32, so nobody can be asked for more.
        What is coarser than the learner's array is its own affair."""
        return [np.zeros(0, np.float32)]

    def right(self) -> list[Any]:
        return [self.wanted]


@dataclass(frozen=True, kw_only=True)
class OfModel(Check):
    """An activation of a model. Looks for weights of other layers too, and for layers that are left
    out; of logits some of the vocabulary answer for all of it.

    weights : the names of those that take part
    layer : the one that the activation belongs to, if it does
    streams : what each layer leaves, that of number -1 is the embedding
    doubts : within what is usual, wrong only where a mistake explains more of it than rounding
    """

    call: ExpectedActivation
    weights: list[str]
    layer: int | None
    streams: Mapping[int, Any]
    doubts: bool = False
    # A whole model may compute in them, wherever its arrays are widened.
    in_16_bits: Callable[[], bool] = lambda: True

    @cached_property
    @np.errstate(all="ignore")
    def is_right(self) -> bool:
        """Right or wrong, without asking why."""
        if self.part is not self:
            return self.part.is_right
        found = self.compare(self.mine, right := self.call.right())
        if not all(c.ok for c in found):
            spreads = self.own_evidence.spreads(right, self.coarsest)
            found = self.compare(self.mine, right, spreads)
        return all(c.ok for c in found)

    def verdict(self, right: list[Any]) -> Verdict:
        if self.part is self and self.doubts:
            return self.own_evidence.doubted(right, self.compare(self.mine, right))
        if self.part is self:
            return super().verdict(right)
        verdict = self.part.verdict(self.part.call.right())
        return replace(verdict, found=self.compare(self.mine, right))

    # ---- some of the vocabulary ------------------------------------------------------------------

    @cached_property
    def part(self) -> "OfModel":
        """The same for some columns of logits."""
        columns = self.columns()
        if columns is None:
            return self
        call = replace(
            self.call,
            wanted=self.call.wanted[..., columns],
            variables=self.call.variables | {"vocabulary": columns},
        )
        return replace(self, call=call, mine=[self.mine[0][..., columns]])

    def columns(self) -> Any:
        """Those that are most off, and evenly spaced ones; None where all are needed: they are
        few, or mine are shares, which show what they are by their sum."""
        mine, right = numbers(self.mine[0]), self.call.wanted
        if "vocabulary" not in self.call.variables or mine.shape != right.shape:
            return None
        if mine.shape[-1] <= COLUMNS + WORST:
            return None
        if any(np.allclose(shares.sum(-1), 1, 1e-2) for shares in (mine, np.exp(mine))):
            return None
        off = compare(mine, right, 0.0, F32).relative
        worst = np.argsort(off.reshape(-1, mine.shape[-1]).max(axis=0))[-WORST:]
        return np.union1d(np.linspace(0, mine.shape[-1] - 1, COLUMNS).astype(int), worst)

    # ---- mistakes that are not in the catalogue --------------------------------------------------

    def evidence(self, mine: list[Any]) -> Evidence:
        """Mistakes are made in float32 alone: in 16 bits a run takes many times as long."""
        if mine is self.mine:
            return self.own_evidence
        return replace(super().evidence(mine), dtypes=[F32])

    @cached_property
    def own_evidence(self) -> Evidence:
        return replace(super().evidence(self.mine), dtypes=[F32])

    def known(self, evidence: Evidence, right: list[Any] | None = None) -> tuple[Explanation, ...]:
        del right
        search = evidence.search
        return (
            search.singles()
            or tuple(self.of_layers_left_out(search))
            or tuple(self.of_other_layers(search))
            or evidence.constants(self.coarsest)
        )

    def of_other_layers(self, search: Search) -> Iterator[Explanation]:
        """All weights of another layer, or one of them. (Most of the first are known.)"""
        sets = [self.weights] * (len(self.weights) > 1) + [[weight] for weight in self.weights]
        for weights in sets:
            for index in range(len(self.streams) - 1):
                lines = {STEPS[one]: of_layer(one, index) for one in weights}
                steps = wrong_steps(lines)
                if index != self.layer and search.gives(steps, {}):
                    yield (wrong_layer(weights, index, steps),)

    def of_layers_left_out(self, search: Search) -> Iterator[Explanation]:
        """The loop ends early, begins late, or leaves some out."""
        problem = search.problem
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
            given = {"plan": rest, "begin": stream, "resid_post": stream}
            if end != self.layer and search.gives({}, given):
                yield (left_out(begin, end),)


def wrong_layer(weights: list[str], index: int, steps: Mapping[str, Step]) -> Mistake:
    name, what = f"{weights[0]}_of_layer_{index}", f"'s {called(weights[0])} gives"
    if len(weights) > 1:
        name, what = f"layer_{index}_instead", " gives: all weights are its own"
    found = FOUND["layer.another_layer"].about(index=index, what=what)
    return replace(found, name=f"layer.{name}", replaces=steps)


def left_out(first: int, last: int) -> Mistake:
    layers = f"layer {first} is" if first == last else f"layers {first} to {last} are"
    return FOUND["layer.left_out"].about(layers=layers)
