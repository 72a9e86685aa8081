"""An array under the name of another activation: variables that are overwritten, words that mean
several things.

What a learner calls `xq` may be turned already, `scores` may be shares, `attention_output` what the
heads give or what wo makes of it. Such an array is no mistake if it is a later activation, for then
everything up to that is right; nor if the word is used for both; nor if what follows is right.
"""

from collections.abc import Callable, Iterator

from simdformer.learn.check.compare import TOLERANCE, compare
from simdformer.learn.check.problem import distance
from simdformer.learn.check.rounding import F32
from simdformer.learn.trace.axes import View, views
from simdformer.learn.trace.entry import Entry, hidden
from simdformer.learn.trace.places import Place, heads_of, other_meanings
from simdformer.learn.trace.steps import ModelSteps
from simdformer.models.activation_table import layer_of

__all__ = ["Neighbours"]

DRIFT = 0.3  # of the size of a row, how far rounding may have taken a model in 16 bits


class Neighbours:
    """The activations of a model around each of a learner's arrays."""

    def __init__(self, steps: ModelSteps, entries: list[Entry]) -> None:
        self.steps, self.entries = steps, entries

    def found(
        self, entry: Entry, is_right: Callable[[Entry, View], bool]
    ) -> tuple[Entry, View] | None:
        """What the array is, where it is not what it is called and nothing is wrong with it.

        is_right says the same of an array by the learner's own values.
        """
        name = entry.place.name
        for other in self.around(name):
            harmless = self.follows(other, name) or (
                other.split(".", 2)[-1] in other_meanings(entry.key)
            )
            found = self.matching(entry, other, is_right if harmless else None)
            if found is not None and (harmless or self.something_follows_right(name)):
                return found
        return None

    def meant(self, entry: Entry) -> Iterator[tuple[Entry, View]]:
        """What else may be meant by the name, where something is wrong with the array: q and k are
        often overwritten when they are turned."""
        layer, _, short = entry.place.name.partition(".attn.")
        turned = (f"attn.{short}_rot",) if short in ("q", "k") else ()
        layer = ".".join(layer.split(".")[:2])
        for other in (*turned, *other_meanings(entry.key)):
            if (name := f"{layer}.{other}") in self.steps.names:
                renamed = Entry(entry.key, Place(name, entry.place.head), entry.array)
                found = views(entry.array.shape, renamed.place, self.steps.config, self.steps.ids)
                yield from ((renamed, view) for view in found)

    def around(self, name: str) -> Iterator[str]:
        """The other activations of the layer, those after this one first; then this one in the
        layers beside it, and what the layers leave."""
        names, layer = self.steps.names, layer_of(name)
        at = names.index(name)
        if layer is None:
            yield from (other for other in names[at + 1 :] + names[:at] if layer_of(other) is None)
            return
        same = [other for other in names if layer_of(other) == layer]
        yield from same[same.index(name) + 1 :]
        yield from same[: same.index(name)]
        short = name.split(".", 2)[2]
        for beside in (layer + 1, layer - 1):
            for what in (short, "resid_pre", "resid_post"):
                if (other := f"layers.{beside}.{what}") in names:
                    yield other
        yield from ("embed", "final_norm")

    def matching(
        self, entry: Entry, other: str, is_right: Callable[[Entry, View], bool] | None
    ) -> tuple[Entry, View] | None:
        """The array as that other activation, if it is that."""
        head = entry.place.head
        if head is not None and head >= heads_of(other, self.steps.config):
            return None
        renamed = Entry(entry.key, Place(other, head), entry.array)
        for view in views(entry.array.shape, renamed.place, self.steps.config, self.steps.ids):
            if self.equals(renamed, view):
                return renamed, view
            right = view.take(self.steps.right[other])
            near = distance([hidden(entry.array, right)], [right]) < DRIFT
            if near and is_right is not None and is_right(renamed, view):
                return renamed, view
        return None

    def equals(self, entry: Entry, view: View) -> bool:
        """Whether the array is what the model computes there."""
        dtype = entry.array.dtype
        if dtype not in TOLERANCE:
            return False
        rtol = max(TOLERANCE[dtype], TOLERANCE[F32])
        right = self.steps.right[entry.place.name]
        return compare(hidden(entry.array, view.take(right)), view.take(right), rtol, dtype).ok

    def follows(self, later: str, name: str) -> bool:
        """Whether one is computed from the other."""
        return later != name and name in self.steps.needed(later, {})

    def something_follows_right(self, name: str) -> bool:
        """Whether one of the learner's arrays that are computed from this one is right: then this
        one was."""
        for entry in self.entries:
            if self.follows(entry.place.name, name):
                found = views(entry.array.shape, entry.place, self.steps.config, self.steps.ids)
                if any(self.equals(entry, view) for view in found):
                    return True
        return False
