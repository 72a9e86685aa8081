"""`simdformer.check_step`: what differs in a learner's step of training?"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simdformer import optim
from simdformer.learn.catalogue import Mistake, words
from simdformer.learn.check.blas import one_thread
from simdformer.learn.check.compare import TOLERANCE, numbers, row_size, whole_size
from simdformer.learn.check.entry import check
from simdformer.learn.check.operation import as_array
from simdformer.learn.check.report import Report
from simdformer.learn.check.rounding import F32
from simdformer.learn.gradients.judge import Examination, trainable
from simdformer.learn.gradients.names import Gradient
from simdformer.learn.gradients.report import GradientsReport
from simdformer.learn.gradients.step_report import StepReport
from simdformer.learn.gradients.steps import WEIGHT
from simdformer.learn.gradients.whole import factors, shifted
from simdformer.learn.trace.judge import ids_of
from simdformer.loss import cross_entropy
from simdformer.training.model import TrainableModel
from simdformer.types import Array, ArrayLike

__all__ = ["check_step"]

PARTS = ("loss", "gradients", "norm", "parameters")
FULL = 1e-2  # an update of AdamW's first step is lr up or down: to so much of it
MOST = 0.99  # of the numbers
ALIKE = 5e-3  # a gradient and a multiple of the right one: how far they may be apart
HIDDEN = (
    "the first step of AdamW moves every number by lr, whatever the size of its gradient: clipping "
    "hardly shows in the weights; give the norm or the gradients too"
)
DECAYED = "norms and biases are decayed too: another convention, most leave them out"
NOT_CLIPPED, OTHER_GRADIENT = words(
    """
    step (08 §11)

    not_clipped (-): the gradients are not clipped before the optimizer's step
        The norm is computed and the factor not used, or clipping comes behind the step.
        > Clip after backward() and before optimizer.step().
    other_gradient: AdamW is right: it was given another gradient
        Its numbers move by lr, as in AdamW's first step, but some of them the other way.
        > Compare the gradients: sf.check_gradients, or give them here beside the weights.
    """
).values()


@one_thread()
def check_step(
    mine: Any,
    model: Any,
    ids: ArrayLike | str,
    labels: ArrayLike | None = None,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    max_norm: float | None = None,
    no_decay: Callable[[str, Array], bool] = optim.by_ndim,
) -> StepReport:
    """Compares a learner's first step of training with that of a model, and says whether the loss,
    the gradients, the clipping or AdamW is what differs.

    Parameters
    ----------
    mine : dict, module of PyTorch, TrainableModel, or function
        What the step left: a dict with any of "loss", "gradients", "norm" and "parameters", or the
        weights after it by their names (those of `check_gradients`); or a module behind
        optimizer.step(), whose `.grad` are read as well. A function is called with copies of the
        weights, ids and labels; it may change the weights, and may return what a dict has, the new
        weights, or the loss.
    model : LanguageModel, Transformer or TrainableModel
        As it was before the step.
    ids, labels
        As for `check_gradients`.
    lr, betas, eps, weight_decay, no_decay
        As for `sf.optim.AdamW`, whose moments are 0 before the step.
    max_norm : float, optional
        To which the gradients are clipped, all together. None: they are not.

    Returns
    -------
    StepReport
        `ok`, `first_wrong` ("loss", "gradients", "clipping" or "AdamW"), and the report and the
        diagnosis of that. What mine does not have is not looked at, and named.

    Raises
    ------
    TypeError
        mine is nothing of these.
    ValueError
        No name in mine is known; numbers are out of range, as for `sf.optim.AdamW`.

    >>> import simdformer as sf
    >>> from simdformer.training import TrainableModel
    >>> model = TrainableModel.from_pretrained(sf.demo_path())
    >>> def step(weights, ids, labels):
    ...     own = TrainableModel(model.config, weights)
    ...     loss, gradients = own.loss_and_gradients(ids, labels)
    ...     sf.optim.AdamW(weights, lr=0.001).step(gradients)
    ...     return {"loss": loss, "parameters": weights}
    >>> report = sf.check_step(step, model, [5, 6, 7, 8], lr=0.01)
    >>> report.first_wrong, report.diagnosis[0].title
    ('AdamW', 'lr is 0.001, needs 0.01')
    """
    own = trainable("check_step", model)
    rows = own.batch("check_step", ids_of("check_step", model, ids), labels)
    optim.AdamW({}, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)  # looks at the numbers
    options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    step = OneStep(own, *rows, options, max_norm, no_decay)
    return step.of(parts_of(mine, own, *rows))


def parts_of(mine: Any, model: TrainableModel, ids: Array, labels: Array) -> dict[str, Any]:
    """What there is of loss, gradients, norm and parameters."""
    if isinstance(mine, TrainableModel):
        return {"parameters": mine.parameters()}
    if hasattr(mine, "named_parameters"):
        named = dict(mine.named_parameters())
        grads = {name: p.grad for name, p in named.items() if p.grad is not None}
        found = {"parameters": {name: p.detach() for name, p in named.items()}}
        return found | ({"gradients": grads} if grads else {})
    if callable(mine):
        weights = copy.deepcopy(model.parameters())
        given = mine(weights, ids.copy(), labels.copy())
        if given is None:
            given = {}
        elif not isinstance(given, Mapping) and np.ndim(as_array(given)) == 0:
            given = {"loss": given}
        found = parts_of(given, model, ids, labels) if given else {}
        return {"parameters": weights} | found
    if not isinstance(mine, Mapping):
        raise TypeError(
            f"check_step: mine is a {type(mine).__name__}, needs a dict, a module of PyTorch or a "
            "function"
        )
    return dict(mine) if set(mine) & set(PARTS) else {"parameters": mine}


@dataclass(frozen=True)
class Moved:
    """A parameter before and after the step."""

    entry: Gradient
    before: Array
    after: Array
    gradient: Array
    right: Array  # what it should be
    allowed: Any  # how far it may be off

    @property
    def wrong(self) -> Any:
        return np.abs(numbers(self.after) - numbers(self.right)) > self.allowed


class OneStep:
    """The right step, part by part."""

    def __init__(
        self,
        model: TrainableModel,
        ids: Array,
        labels: Array,
        options: Mapping[str, Any],
        max_norm: float | None,
        no_decay: Callable[[str, Array], bool],
    ) -> None:
        self.model, self.ids, self.labels = model, ids, labels
        self.options, self.max_norm, self.no_decay = options, max_norm, no_decay
        self.examination = Examination(model, ids, labels, {}, "check_step")
        self.steps = self.examination.steps
        self.gradients = {name: self.steps.right[WEIGHT + name] for name in model.weights}
        self.scale = 1.0
        if max_norm is not None:
            norm = optim.clip_grad_norm_(self.gradients, max_norm, apply=False)
            self.scale = min(1.0, max_norm / (norm + 1e-6))

    def of(self, mine: Mapping[str, Any]) -> StepReport:
        parts: list[tuple[str, Any]] = []
        remarks: list[str] = []
        if "loss" in mine:
            parts.append(("loss", self.of_loss(mine["loss"])))
        if "gradients" in mine and all(report.ok for _, report in parts):
            parts += self.of_gradients(mine["gradients"])
        if "norm" in mine and all(report.ok for _, report in parts):
            clipping = check(optim.clip_grad_norm_, mine["norm"], self.gradients, *self.clip)
            parts.append(("clipping", replace(clipping, remarks=())))
        if "parameters" in mine and all(report.ok for _, report in parts):
            report = self.of_parameters(mine["parameters"], remarks)
            unclipped = NOT_CLIPPED in report.diagnosis
            gradients = OTHER_GRADIENT in report.diagnosis and "gradients" not in mine
            part = "clipping" if unclipped else "gradients" if gradients else "AdamW"
            parts.append((part, report))
            if self.scale < 1 and not {"norm", "gradients"} & set(mine):
                remarks.append(HIDDEN)
        return StepReport(tuple(parts), tuple(remarks), self.steps.loss)

    @property
    def clip(self) -> tuple[float]:
        return (self.max_norm or float("inf"),)

    # ---- the loss, the gradients -----------------------------------------------------------------

    def of_loss(self, mine: Any) -> Report:
        """A number is little to go by: a factor is named, and other labels."""
        logits, softcap = self.steps.logits(), self.model.config.logit_softcap
        report = check(cross_entropy, mine, logits, self.labels, softcap=softcap)
        report = replace(report, name="loss", remarks=())
        if report.ok:
            return report
        found = [*factors(float(as_array(mine)) / self.steps.loss, self.labels, "the loss is")]
        for mistake, labels in shifted(self.ids, self.labels):
            if (labels != -100).any():
                other = check(cross_entropy, mine, logits, labels, softcap=softcap)
                found += [mistake] * other.ok
        if not found:
            return report
        return replace(
            report, explanations=tuple((one,) for one in found), observations=(), nearly=""
        )

    def of_gradients(self, mine: Mapping[Any, Any]) -> list[tuple[str, Any]]:
        """They may be given before or after clipping."""
        report = self.examination.of(mine)
        if report.ok or self.max_norm is None:
            return [("gradients", report)]
        whole = self.unscaled(mine, self.scale)
        if whole.ok:
            return [("gradients", whole), ("clipping", Report(True, "clipping"))]
        names = self.examination.names
        entries = names.tied(names.turned(names.read(mine)[0])[0])[0]
        after = {one.short: one.array for one in entries if one.array is not None}
        before = {name: self.gradients[name] for name in after if name in self.gradients}
        if after.keys() != self.gradients.keys():
            return [("gradients", report)]
        if (scale := scale_of_most(after, self.gradients)) is not None:
            return [("gradients", self.unscaled(mine, scale))]
        clipping = check(optim.clip_grad_norm_, {"gradients": after}, before, self.max_norm)
        if clipping.ok or (is_known(clipping) and not names_an_operation(report.diagnosis)):
            return [("clipping", replace(clipping, remarks=()))]
        return [("gradients", report)]

    def unscaled(self, mine: Mapping[Any, Any], scale: float) -> GradientsReport:
        """The report on gradients that were multiplied by `scale`."""
        before = {n: None if g is None else as_array(g) / scale for n, g in mine.items()}
        return Examination(self.model, self.ids, self.labels, {}, "check_step").of(before)

    # ---- AdamW -----------------------------------------------------------------------------------

    def of_parameters(self, mine: Mapping[Any, Any], remarks: list[str]) -> Report:
        """The first of the weights that is wrong, and why."""
        names = self.examination.names
        entries, _ = names.turned(names.read(mine)[0])
        entries = [one for one in entries if one.short in self.gradients and one.array is not None]
        for one in entries:
            if one.array is not None and one.array.shape != self.gradients[one.short].shape:
                expected = self.gradients[one.short].shape
                return Report(
                    False, one.called, one.array.shape, str(one.array.dtype), expected=expected
                )
        moved = [self.moved(one) for one in entries]
        wrong = [one for one in moved if one.wrong.any()]
        if wrong and all(self.is_decayed(one) for one in wrong):
            remarks.append(DECAYED)
            wrong = []
        if not wrong:
            return Report(True, "parameters")
        alike = [one for one in moved if one.before.ndim == wrong[0].before.ndim]
        return self.explained(wrong[0], alone=len(alike) > len(wrong))

    def stepped(self, name: str, gradient: Array, decayed: bool = False) -> Array:
        """The weight after the step."""
        weight: Array = self.model.weights[name].copy()
        optim.adamw_(weight, gradient, *self.zeros(weight), **self.of_weight(name, decayed))
        return weight

    def zeros(self, weight: Array) -> tuple[Array, Array]:
        return np.zeros_like(weight), np.zeros_like(weight)

    def of_weight(self, name: str, decayed: bool = False) -> dict[str, Any]:
        """The options of its step."""
        left_out = self.no_decay(name, self.model.weights[name]) and not decayed
        own = {"weight_decay": 0.0} if left_out else {}
        return {"step": 1, **self.options, "scale": self.scale, **own}

    def moved(self, entry: Gradient) -> Moved:
        """How far it may be off: what an error in the gradient does to it, where one of its numbers
        is next to nothing, and rounding of the weight."""
        name, array = entry.short, np.asarray(entry.array)
        gradient, before = self.gradients[name], self.model.weights[name]
        size = row_size(numbers(gradient))
        error = TOLERANCE[F32] * np.maximum(size, 0.2 * whole_size(size)).astype(np.float32)
        right, up, down = (self.stepped(name, gradient + d) for d in (0 * error, error, -error))
        kind = array.dtype if array.dtype in TOLERANCE else F32
        rounding = max(TOLERANCE[kind] / 100, 4e-7) * np.abs(before)
        lr = self.options["lr"]
        allowed = np.abs(numbers(up) - numbers(down)) + rounding + TOLERANCE[F32] * lr
        return Moved(
            entry, before, array, gradient, right, np.where(gradient == 0, 3 * lr, allowed)
        )

    def is_decayed(self, one: Moved) -> bool:
        """A vector that is right with the decay of matrices."""
        other = replace(one, right=self.stepped(one.entry.short, one.gradient, decayed=True))
        return one.before.ndim < 2 and not other.wrong.any()

    def explained(self, one: Moved, alone: bool) -> Report:
        """By the mistakes in AdamW, on its numbers whose gradient has a sure sign. `alone`: others
        are right, and so AdamW is."""
        sure = np.abs(numbers(one.right) - one.before) > 2 * one.allowed
        sure = sure if sure.any() else np.ones_like(sure)
        before, gradient, after = (
            x[sure][:, None] if x.ndim > 1 else x[sure]  # a vector has no decay
            for x in (one.before, one.gradient, one.after)
        )
        options = self.of_weight(one.entry.short)
        report = check(optim.adamw_, after, before, gradient, *self.zeros(before), **options)
        explanations = tuple(
            (NOT_CLIPPED,) if names_of(group) == ["adamw_step.no_scale"] else group
            for group in report.explanations
        )
        if (alone or not explanations) and self.moves_fully(one):
            explanations = ((OTHER_GRADIENT,),)
        return replace(
            report,
            ok=False,
            name=one.entry.called,
            shape=one.after.shape,
            explanations=explanations,
            observations=() if explanations else report.observations,
            where=None,
            remarks=(),
            parts=(),
            mine=numbers(one.after),
            right=numbers(one.right),
        )

    def moves_fully(self, one: Moved) -> bool:
        """Whether every number moves by lr: AdamW's first step of whatever gradient."""
        decay = self.of_weight(one.entry.short)["weight_decay"]
        lr = self.options["lr"]
        update = np.abs(numbers(one.after) - one.before * (1 - lr * decay)) / lr
        return bool((np.abs(update - 1) < FULL).mean() >= MOST)


def names_of(mistakes: tuple[Mistake, ...]) -> list[str]:
    return [mistake.name for mistake in mistakes]


def is_known(clipping: Report) -> bool:
    """Whether it is a mistake of clipping that explains it."""
    return any(name.startswith("clip_grad_norm.") for name in names_of(clipping.diagnosis))


def names_an_operation(diagnosis: tuple[Mistake, ...]) -> bool:
    return not all(name.startswith("gradients.") for name in names_of(diagnosis))


def scale_of_most(mine: Mapping[str, Array], right: Mapping[str, Array]) -> float | None:
    """Where a few gradients are wrong and move the norm that all are clipped by: what the others
    are multiplied by. None where it is more than a quarter of them, or none."""
    both = [(numbers(x).ravel(), numbers(right[name]).ravel()) for name, x in mine.items()]
    both = [(x, r) for x, r in both if x.shape == r.shape and r.any()]
    scale = float(np.median([x @ r / (r @ r) for x, r in both])) if both else 0.0
    if not scale > 0:
        return None
    off = sum(np.linalg.norm(x / scale - r) > ALIKE * np.linalg.norm(r) for x, r in both)
    return scale if 0 < 4 * off <= len(both) else None
