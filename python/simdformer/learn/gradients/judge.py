"""`simdformer.check_gradients`: where do a learner's gradients go wrong first, and why?"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simdformer.learn.check.blas import one_thread
from simdformer.learn.check.constants import is_fitted
from simdformer.learn.check.evidence import Evidence
from simdformer.learn.check.judge import Check
from simdformer.learn.check.report import Report
from simdformer.learn.check.rounding import F32
from simdformer.learn.gradients.measure import FLOOR, Measure, dtype_of, tolerance
from simdformer.learn.gradients.names import Gradient, Names, gradients_of
from simdformer.learn.gradients.report import GradientsReport
from simdformer.learn.gradients.steps import WEIGHT, BackwardSteps
from simdformer.learn.gradients.whole import NO_GRADIENT, Whole
from simdformer.learn.trace.axes import as_it_is
from simdformer.learn.trace.judge import Waiting, ids_of
from simdformer.learn.trace.places import read_aliases
from simdformer.learn.trace.question import ExpectedActivation
from simdformer.models.transformer import Transformer
from simdformer.training.model import TrainableModel
from simdformer.types import ArrayLike

__all__ = ["Examination", "check_gradients", "trainable"]

# After so much work no more mistakes are tried, all that comes before included; and at least.
SECONDS, LEAST = 4.0, 1.5
BESIDE = 4  # gradients before the first wrong one, and behind it, that tell mistakes apart


@one_thread()
def check_gradients(
    mine: Any,
    model: Any,
    ids: ArrayLike | str,
    labels: ArrayLike | None = None,
    *,
    aliases: Mapping[Any, Any] | None = None,
) -> GradientsReport:
    """Compares a learner's gradients with those of a model, and names the first mistake.

    Parameters
    ----------
    mine : dict of arrays, or a module of PyTorch
        The gradients of the mean loss over the labels that count: a dict by our names of weights
        (`weight_shapes`), those of Hugging Face or of Meta, and by the names of a trace for
        activations; or a module, whose parameters' `.grad` are read. None is a parameter without a
        gradient. As many or as few as there are.
    model : LanguageModel, Transformer or TrainableModel
        Gives the weights, and the right gradients.
    ids : (L,) or (B,L), or str
        What the learner's model read; a text stands for the ids of the model's tokenizer.
    labels : array of the same shape, optional
        -100 counts for nothing. None: each id's successor.
    aliases : dict, optional
        The learner's own names: {"head.w": "lm_head"}.

    Returns
    -------
    GradientsReport
        `ok`, and if it is not: the first wrong gradient on the way from the logits back to the
        embedding, with a report and a diagnosis. The mistakes of the operations on the way to it
        are tried on the right activations and the right gradients that come in.

    Raises
    ------
    TypeError
        mine is neither a dict nor a module; model is no model; ids are neither integers nor a text.
    ValueError
        No name in mine is known, or nothing has a gradient; ids and labels differ in shape.

    >>> import simdformer as sf
    >>> from simdformer.training import TrainableModel
    >>> model = TrainableModel.from_pretrained(sf.demo_path())
    >>> loss, mine = model.loss_and_gradients([5, 6, 7, 8])
    >>> mine["layers.3.wo"] /= 4                                         # a mean over 4 rows
    >>> sf.check_gradients(mine, model, [5, 6, 7, 8]).sentence
    'layers.3.wo is wrong while layers.3.mlp_norm is right'
    """
    function = "check_gradients"
    named = read_aliases(function, aliases)
    own = trainable(function, model)
    rows = own.batch(function, ids_of(function, model, ids), labels)
    return Examination(own, *rows, named).of(gradients_of(function, mine))


def trainable(function: str, model: Any) -> TrainableModel:
    """The model with its way back. Weights of 16 bits, or fewer, become float32."""
    if isinstance(model, TrainableModel):
        return model
    transformer = getattr(model, "transformer", model)
    if not isinstance(transformer, Transformer):
        raise TypeError(
            f"{function}: model is a {type(model).__name__}, needs what from_pretrained gives, or "
            "a TrainableModel"
        )
    transformer.require_whole(function)
    config = replace(transformer.config, norm_offset=0.0)  # it is in the weights already
    return TrainableModel(config, transformer.weights)


@dataclass(frozen=True)
class ExpectedGradient(ExpectedActivation):
    """What a gradient should be, computed from right ones."""

    @property
    def floor(self) -> float:
        return FLOOR


class OfGradient(Check):
    """A gradient of a model. Mistakes are made in float32, as in a trace."""

    def evidence(self, mine: list[Any]) -> Evidence:
        return replace(super().evidence(mine), dtypes=[F32])


@dataclass(frozen=True)
class Plain(Check):
    """A gradient that needs no explanation, whose axes are called `names`."""

    names: tuple[str, ...] = ()

    def axes(self, i: int) -> tuple[str, ...]:
        return self.names


class Examination:
    """One check of the gradients of a model: what is known to be right grows on the way back."""

    def __init__(
        self,
        model: TrainableModel,
        ids: Any,
        labels: Any,
        aliases: Mapping[Any, Any],
        function: str = "check_gradients",
    ) -> None:
        self.begun = time.thread_time()
        self.steps = BackwardSteps(model, ids, labels)
        self.names, self.measure = Names(function, self.steps, aliases), Measure(self.steps)
        self.known: set[str] = set()  # gradients of activations that are right
        self.proofs: dict[str, str] = {}  # by which of the learner's
        self.earlier: dict[str, frozenset[str]] = {}  # what was known before each of the learner's

    def of(self, mine: Mapping[Any, Any]) -> GradientsReport:
        entries, unknown = self.names.read(mine)
        entries, of_matrices = self.names.turned(entries)
        entries, of_head = self.names.tied(entries)
        short = [one.short for one in entries]
        missing = tuple(name for name in self.names.shapes if name not in short)
        found = GradientsReport(
            tuple(short),
            unknown=unknown,
            missing=missing,
            remarks=(*of_matrices, *of_head),
            loss=self.steps.loss,
        )
        for number, entry in enumerate(entries):
            report = self.judged(entry, entries)
            remarks = (f"{entry.called}: {remark}" for remark in report.remarks)
            found = replace(found, remarks=(*found.remarks, *remarks))
            if not report.ok:
                return replace(
                    found,
                    checked=tuple(short[:number]),
                    first_wrong=entry.called,
                    report=report,
                    after=self.after(entry),
                    not_checked=tuple(short[number + 1 :]),
                    way=() if report.diagnosis else tuple(self.steps.way(entry.name, self.known)),
                )
            self.learn(entry)
        return found

    def learn(self, entry: Gradient) -> None:
        """What a right gradient is made of is right, and all that comes before that."""
        made_of = self.steps.made_of(entry.name)
        self.proofs[made_of] = entry.short
        self.earlier[entry.name] = frozenset(self.known)
        self.known |= self.steps.before(made_of)

    def after(self, entry: Gradient) -> tuple[str, ...]:
        """The learner's last gradients that are right, on the way to this one."""
        border = self.steps.border(entry.name, self.known)
        found = tuple(self.proofs[name] for name in border if name in self.proofs)
        return found or tuple([*self.proofs.values()][-1:])

    # ---- one gradient ----------------------------------------------------------------------------

    def judged(self, entry: Gradient, entries: list[Gradient]) -> Report:
        if entry.array is None:
            return missing_one(entry, self.steps.right[entry.name].shape)
        view = self.names.view(entry)
        if view is not None and self.measure.is_right(entry.name, entry.array, view):
            return Report(True, entry.called)
        left = SECONDS - (time.thread_time() - self.begun)
        with Waiting(max(left, LEAST)) as work:
            whole = Whole(self.names, self.measure, entries)
            found = () if view is None else whole.explain(entry, first=not self.known)
            if found:
                report = self.plainly(entry)
            else:
                report = self.question(entry, work).report()
                if report.ok:  # by another convention
                    return report
                report = self.agreed(report, neighbours(entries, entry), work)
                report = self.unless_it_would_show(report, entries, entry, work)
                plain = all(map(is_fitted, report.explanations))  # twice as large has other reasons
                found = whole.rest(entry) if plain and view is not None else ()
                if not (found or report.diagnosis) and entry.name in self.names.shapes:
                    other = replace(entry, name=WEIGHT + entry.name)  # it is called like a weight
                    meant = self.question(other, work).report()
                    report = meant if meant.diagnosis else report
        if found:
            reasons = tuple((mistake,) for mistake in found)
            report = replace(report, explanations=reasons, observations=(), nearly="")
        return replace(report, ok=False, remarks=())

    def plainly(self, entry: Gradient) -> Report:
        """How far off it is; no mistake is tried."""
        expected = self.expected(entry)
        call = replace(expected, program=None)
        names = () if expected.program is None else expected.program.axes
        return Plain(call, [entry.array], None, names=names).report()

    def question(self, entry: Gradient, work: Waiting) -> OfGradient:
        """What the array is, by the steps on the way to it."""
        call = self.expected(entry)
        rtol = tolerance(dtype_of(entry.array))
        return OfGradient(call, [entry.array], rtol, until=work.until, begun=work.go_on)

    def questions(self, entries: list[Gradient], work: Waiting) -> list[OfGradient]:
        """The same of several, where they have the right shape."""
        return [self.question(one, work) for one in entries if self.names.view(one) is not None]

    def expected(self, entry: Gradient) -> ExpectedGradient:
        view = self.names.view(entry)
        take = as_it_is if view is None else view.take
        known = self.earlier.get(entry.name, self.known)
        program, variables = self.steps.part(entry.name, known, take)
        if program is not None and view is not None:
            program.axes = view.axes
        right = take(self.steps.right[entry.name])
        return ExpectedGradient(entry.called, variables, program, right)

    def agreed(self, report: Report, others: list[Gradient], work: Waiting) -> Report:
        """Keeps the explanations that explain most of the gradients beside this one."""
        if len(report.explanations) < 2:
            return report
        asked = self.questions(others, work)
        scores = [
            sum(one.agrees_with(group, one.call.right()[0]) for one in asked)
            for group in report.explanations
        ]
        kept = zip(report.explanations, scores, strict=True)
        return replace(
            report, explanations=tuple(group for group, score in kept if score == max(scores))
        )

    def unless_it_would_show(
        self, report: Report, entries: list[Gradient], entry: Gradient, work: Waiting
    ) -> Report:
        """Without a number that was fitted, if right gradients before this one do not show it."""
        if not report.explanations or not all(map(is_fitted, report.explanations)):
            return report
        asked = self.questions(those_before(entries, entry), work)
        left = tuple(
            group
            for group in report.explanations
            if all(one.has_made(group, one.call.right()) for one in asked)
        )
        own = self.question(entry, work)
        return replace(report, explanations=left or own.by_itself(own.call.right()[0]))


def those_before(entries: list[Gradient], entry: Gradient) -> list[Gradient]:
    at = entries.index(entry)
    return entries[max(at - BESIDE, 0) : at]


def neighbours(entries: list[Gradient], entry: Gradient) -> list[Gradient]:
    at = entries.index(entry)
    return [*those_before(entries, entry), *entries[at + 1 : at + 1 + BESIDE]]


def missing_one(entry: Gradient, needed: tuple[int, ...]) -> Report:
    return Report(False, entry.called, explanations=((NO_GRADIENT,),), expected=needed)
