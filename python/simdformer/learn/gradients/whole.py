"""What was done to gradients as a whole: a factor that all share, other labels, another's place."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake, words
from simdformer.learn.check.compare import numbers
from simdformer.learn.check.whole import no_numbers
from simdformer.learn.gradients.measure import Measure, norm
from simdformer.learn.gradients.names import Gradient, Names
from simdformer.learn.gradients.steps import WEIGHT
from simdformer.types import Array

__all__ = ["NO_GRADIENT", "Whole"]

Labels = np.ndarray[Any, Any]
LARGE, PROBES, UNLIKE = 10_000, 500, 0.5  # numbers of an array, those looked at first, their error
CERTAIN = 1e-3  # relative: how well a factor has to be met
NORMS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)  # that gradients are clipped to

FOUND = words(
    """
    gradients (08 §3)

    none (-): this parameter has no gradient
        The loss does not depend on it: it is detached, or under no_grad, somewhere on the way, or
        another tensor is used in its place.
        > Follow it forwards: which result has requires_grad = False first?
    added_twice (08 §10): this gradient is added twice
        Two lines add to it, or the parameter is counted twice.
        > Add each part once.
    another_one (-): this is the gradient of {other}
        Two of one shape are swapped, or one is handed over under both names.
        > Look at the order in which they are returned and unpacked.
    clipped (-): all gradients are clipped: their norm is {most:g}, {right:.4g} before that
        clip_grad_norm_ has been called.
        > Compare what backward gives, or the whole step with sf.check_step.
    clipped_one_by_one (-): each gradient is clipped by itself, to a norm of {most:g}
        One by one they lose their sizes beside each other: the step turns.
        > The norm is the root of the sum of squares over all arrays; all are multiplied by one
        factor.
    factor: all gradients are {factor:.6g} times the right ones
        The loss, or its gradient, is multiplied or divided once too often.
        > The right loss is the mean over all labels that count.

    accumulated: {what} twice as large: those of two backward passes are added
        backward() adds to the gradients that are there.
        > Forget them before each backward pass: optimizer.zero_grad().
    of_the_sum: {what} {count} times as large: the loss is a sum over the labels
        The right ones are those of the mean over the labels that count.
        > Divide the loss by the number of labels that count, here {count}.
    averaged_twice: {what} divided by {count}, the number of labels, once too often
        The mean is in the loss, and once more in its gradient.
        > Divide once.
    ignored_counted: {what} divided by {rows} instead of {count}: ignored labels count
        mean() divides by the number of all rows, those with the label -100 as well.
        > Divide the sum by (labels != -100).sum().
    summed_over_batch: {what} {batch} times as large: the losses of {batch} sequences are added
        Each sequence has a mean of its own, and these are summed.
        > Take one mean over all labels that count.
    averaged_over_batch: {what} divided by {batch}, the batch size, once too often
        The mean over all labels is a mean over the batch already.
        > Divide once.
    negative: {what} the right ones with the other sign
        They are those of the log-likelihood; the loss is minus that.
        > The gradient of the logits is p - 1 at the label and p elsewhere.
    loss_scaled: {what} {factor:.0f} times as large: the loss is scaled for float16
        A GradScaler multiplies the loss by a power of two.
        > Call scaler.unscale_(optimizer) before you look at them.

    labels_not_shifted: the labels are the ids themselves, not the next ones
        The model learns to repeat what it reads; its loss falls to 0.
        > Compare row t with ids[t + 1].
    labels_shifted_twice: the labels are shifted twice: each is the token after the next one
        The data shift them, and the model or the loss does so again.
        > Shift once: in the data, or in the model.
    ignored_learnt: rows whose label is -100 are learnt: they have the next id as their label
        The mask of the labels was lost on the way.
        > Give rows whose label is -100 a gradient of 0.
    """
)
NO_GRADIENT = FOUND["gradients.none"]


class Whole:
    """Explanations of a wrong gradient that look at all of them. `entries` are the learner's."""

    def __init__(self, names: Names, measure: Measure, entries: list[Gradient]) -> None:
        self.names, self.measure, self.steps = names, measure, names.steps
        self.entries = [one for one in entries if one.array is not None and names.view(one)]

    def explain(self, entry: Gradient, first: bool) -> tuple[Mistake, ...]:
        """`first`: nothing that comes before it is known to be right."""
        if found := self.no_numbers(entry):
            return found
        factor = self.factor(entry)
        if self.share(factor):
            found = (*self.clipped(), *factors(factor, self.steps.labels))
        else:
            found = tuple(self.clipped_one_by_one())
        if not found and first:
            found = tuple(self.other_labels(entry))
        return found or tuple(self.anothers(entry))

    def no_numbers(self, entry: Gradient) -> tuple[Mistake, ...]:
        """What it shows if it is 0, or not finite; many mistakes would give that."""
        view = self.names.view(entry)
        assert view is not None
        assert entry.array is not None
        mine, right, dtype = entry.array, view.take(self.right(entry)), entry.array.dtype

        def same(a: Any, _: Any) -> bool:
            return self.measure.is_right(entry.name, a.astype(dtype), view)

        is_like = mine.shape == right.shape
        return no_numbers(numbers(mine), numbers(right), same) if is_like else ()

    def rest(self, entry: Gradient) -> tuple[Mistake, ...]:
        """Where no operation's mistake explains it."""
        factor = self.factor(entry)
        if self.share(factor):
            return (FOUND["gradients.factor"].about(factor=factor),)
        return (FOUND["gradients.added_twice"],) if self.is_times(entry, 2.0) else ()

    def share(self, factor: float) -> bool:
        """Whether all gradients have it."""
        several = len(self.entries) > 1
        return several and all(self.is_times(one, factor) for one in self.entries)

    def is_right(self, entry: Gradient, right: Any = None) -> bool:
        view = self.names.view(entry)
        return view is not None and self.measure.is_right(entry.name, entry.array, view, right)

    # ---- a factor --------------------------------------------------------------------------------

    def factor(self, entry: Gradient) -> float:
        """What brings the right gradient nearest to the learner's; 0 where nothing does."""
        view = self.names.view(entry)
        assert view is not None
        right = numbers(view.take(self.right(entry)))
        with np.errstate(all="ignore"):
            found = float((numbers(entry.array) * right).sum() / np.square(right).sum())
        return found if math.isfinite(found) else 0.0

    def is_times(self, entry: Gradient, factor: float) -> bool:
        if factor == 0 or entry.array is None:
            return False
        view = self.names.view(entry)
        if view is None or not is_like(entry.array, factor, view.take(self.right(entry))):
            return False
        mine = (numbers(entry.array) / factor).astype(entry.array.dtype)
        return self.measure.is_right(entry.name, mine, view)

    def right(self, entry: Gradient) -> Any:
        return self.steps.right[entry.name]

    def clipped(self) -> Iterator[Mistake]:
        """Gradients of one factor that have a round number as their norm."""
        mine, right = (math.hypot(*norms) for norms in self.norms())
        for most in NORMS:
            if right > most and abs(mine - most) <= CERTAIN * most:
                yield FOUND["gradients.clipped"].about(most=most, right=right)

    def clipped_one_by_one(self) -> Iterator[Mistake]:
        """The same, each by itself."""
        pairs = list(zip(*self.norms(), strict=True))
        for most in NORMS:
            each = all(abs(a - min(b, most)) <= CERTAIN * min(b, most) for a, b in pairs)
            if each and all(self.is_times(one, self.factor(one)) for one in self.entries):
                yield FOUND["gradients.clipped_one_by_one"].about(most=most)

    def norms(self) -> tuple[list[float], list[float]]:
        """Those of the learner's gradients, and of the right ones."""
        right = [self.steps.right[one.name] for one in self.entries]
        return [norm(one.array) for one in self.entries], list(map(norm, right))

    # ---- other labels, another's place -----------------------------------------------------------

    def other_labels(self, entry: Gradient) -> Iterator[Mistake]:
        """Labels with which the gradient is right."""
        ids, labels = self.steps.ids, self.steps.labels
        for mistake, others in shifted(ids, labels):
            if (others == -100).all() or np.array_equal(others, labels):
                continue
            if self.is_right(entry, self.steps.passed(self.steps.model, others)[2]):
                yield mistake

    def anothers(self, entry: Gradient) -> Iterator[Mistake]:
        """The gradient of another weight."""
        view = self.names.view(entry)
        assert view is not None
        assert entry.array is not None
        for name, right in self.steps.right.items():
            alike = right.shape == self.steps.right[entry.name].shape and name != entry.name
            both = name.startswith(WEIGHT) and entry.name.startswith(WEIGHT)
            if (
                alike
                and both
                and is_like(entry.array, 1.0, view.take(right))
                and self.measure.is_right(entry.name, entry.array, view, {entry.name: right})
            ):
                other = Gradient(entry.key, name, entry.array).short
                yield FOUND["gradients.another_one"].about(other=other)


def is_like(mine: Array, factor: float, right: Array) -> bool:
    """Whether some numbers of a large array may be the right ones times a factor: those of another
    weight, or of other labels, are nowhere near."""
    if mine.shape != right.shape or mine.size < LARGE:
        return mine.shape == right.shape
    step = mine.size // PROBES | 1
    a, b = numbers(np.ravel(mine)[::step]), factor * numbers(np.ravel(right)[::step])
    return bool(np.abs(a - b).sum() < UNLIKE * np.abs(b).sum())


def factors(factor: float, labels: Labels, what: str = "all gradients are") -> Iterator[Mistake]:
    """What multiplies all gradients, or the loss, by such a factor."""
    batch, rows, count = len(labels), labels.size, int((labels != -100).sum())
    scaled = 2.0 ** round(math.log2(factor)) if 256 <= factor < math.inf else 0.0
    for name, times, possible in (
        ("accumulated", 2, True),
        ("of_the_sum", count, count > 1),
        ("averaged_twice", 1 / max(count, 1), count > 1),
        ("ignored_counted", count / rows, count != rows),
        ("summed_over_batch", batch, batch > 1),
        ("averaged_over_batch", 1 / batch, batch > 1),
        ("negative", -1, True),
        ("loss_scaled", scaled, scaled > 0),
    ):
        if possible and abs(factor - times) <= CERTAIN * abs(times):
            found = FOUND[f"gradients.{name}"]
            yield found.about(what=what, factor=factor, batch=batch, rows=rows, count=count)


def shifted(ids: Labels, labels: Labels) -> Iterator[tuple[Mistake, Labels]]:
    """Labels that somebody may have taken, with what went wrong then."""
    nothing = np.full_like(labels[:, :1], -100)
    following = np.concatenate([ids[:, 1:], ids[:, :1]], axis=1)
    twice = np.concatenate([labels[:, 1:], nothing], axis=1)
    yield FOUND["gradients.labels_not_shifted"], ids
    yield FOUND["gradients.labels_shifted_twice"], twice
    yield FOUND["gradients.ignored_learnt"], np.where(labels == -100, following, labels)
