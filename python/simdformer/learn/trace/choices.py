"""Which experts the tokens of a layer go through, where rounding decides.

A token's k experts are those with the largest logits. Where the last of them is as good as equal to
the next, rounding decides, and who goes through the other one is right.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simdformer.learn.check.compare import finfo
from simdformer.learn.check.problem import distance
from simdformer.learn.check.rounding import Noise
from simdformer.learn.trace.decided import Decided, Float64, Integers
from simdformer.learn.trace.steps import ModelSteps

__all__ = ["Choices"]

UNITS = 4.0  # relative to 1 and to the logit: what rounding a logit, or its share, comes to
TRIED = 16  # near ties of a layer; each costs a run


@dataclass(frozen=True)
class Ranking:
    """The logits (B,L,X) of the experts of a layer, and how far apart two of them are (B,L) that
    rounding may exchange."""

    logits: Float64
    margin: Float64

    def shortfall(self, ids: Integers) -> Float64:
        """(B,L): by how much the best of the others is better than the worst of ids (B,L,k)."""
        others = self.logits.copy()
        np.put_along_axis(others, ids, -np.inf, axis=-1)
        worst = np.take_along_axis(self.logits, ids, axis=-1).min(axis=-1)
        found: Float64 = others.max(axis=-1) - worst
        return found

    def exchanged(self, ids: Integers, token: tuple[int, int]) -> Integers:
        """ids, but for one token the best of the others in the place of the worst."""
        logits, those = self.logits[token], ids[token]
        others = np.delete(np.arange(len(logits)), those)
        changed = ids.copy()
        changed[token][np.argmin(logits[those])] = others[np.argmax(logits[others])]
        return changed


@dataclass
class Choices:
    """Which experts the learner's tokens go through: the model's, or as good ones."""

    steps: ModelSteps
    remarks: list[str] = field(default_factory=list)

    def ranking(self, layer: int, known: Any, dtype: np.dtype[Any]) -> Ranking:
        """By what is known, in that dtype."""
        router = f"layers.{layer}.mlp.router"
        unit = UNITS * float(finfo(dtype).eps)
        if router in known:
            logits = known[router]
            return Ranking(logits, unit * (1 + np.abs(logits).max(axis=-1)))
        program, variables = self.steps.part(router, known, lambda x: x)
        noise = Noise(lambda run: [run(program, **variables).out])
        with np.errstate(all="ignore"):
            (logits,), (spread,) = noise.exact() or [], noise.spreads(dtype) or []
        return Ranking(logits, spread.max(axis=-1) + unit * (1 + np.abs(logits).max(axis=-1)))

    def accepted(self, layer: int, ids: Integers, known: Any, dtype: np.dtype[Any]) -> bool:
        """Whether ids (B,L,k), in any order, are the likeliest experts, or as good ones."""
        config = self.steps.config
        inside = ((ids >= 0) & (ids < config.num_experts)).all()
        if not inside or (np.diff(np.sort(ids, axis=-1)) == 0).any():
            return False
        if ids.shape[-1] == config.num_experts:
            return True
        ranking = self.ranking(layer, known, dtype)
        short = ranking.shortfall(ids)
        if (short > ranking.margin).any():
            return False
        self.remark(layer, short > 0)
        return True

    def settled(
        self,
        name: str,
        known: Any,
        mine: Any,
        take: Callable[[Any], Any],
        dtype: np.dtype[Any],
        accept: Callable[[], bool],
    ) -> bool:
        """Whether an array is right if some near ties on the way to it, near in that dtype, are
        decided otherwise; then they are from now on."""
        before, found = dict(self.steps.decided), {}
        off = distance([mine], [self.steps.value(name, known, take)])
        for layer in self.undecided(name, known):
            ranking = self.ranking(layer, known, dtype)
            ids = self.steps.decided[layer].ids
            if ids.shape[-1] == ranking.logits.shape[-1]:
                continue
            gap = -ranking.shortfall(ids)
            changed = np.zeros(gap.shape, bool)
            for flat in np.argsort(gap / ranking.margin, axis=None)[:TRIED]:
                token = divmod(int(flat), gap.shape[1])
                if gap[token] > ranking.margin[token]:
                    break
                old, other = self.steps.decided[layer], ranking.exchanged(ids, token)
                ahead = np.maximum(ranking.shortfall(other), 0) * (1 + 1e-6) + 1e-12
                self.steps.decided[layer] = Decided(other, ahead)
                now = distance([mine], [self.steps.value(name, known, take)])
                if now < off:
                    off, ids, changed[token] = now, other, True
                else:
                    self.steps.decided[layer] = old
            if changed.any():
                found[layer] = changed
        if found and accept():
            for layer, changed in found.items():
                self.remark(layer, changed)
            return True
        self.steps.decided = before
        return False

    def undecided(self, name: str, known: Any) -> list[int]:
        """The layers on the way to an activation whose experts the learner has not told."""
        needed = self.steps.needed(name, known)
        return [int(one.split(".")[1]) for one in needed if one.endswith("mlp.experts")]

    def remark(self, layer: int, tokens: Any) -> None:
        """That some tokens (B,L) go through other experts."""
        if not tokens.any():
            return
        which = sorted({int(token) for _, token in np.argwhere(tokens)})
        places = ", ".join(map(str, which[:TRIED])) + (", ..." if len(which) > TRIED else "")
        self.remarks.append(
            f"layers.{layer}.mlp.experts: at position{'s' * (len(which) > 1)} {places} another "
            "expert is asked than in the model; the router's logits are as good as equal, and "
            "rounding decides"
        )
