"""`simdformer.check_trace`: where does a learner's transformer go wrong first, and why?"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake, words
from simdformer.learn.check.compare import TOLERANCE, compare, float_dtypes, numbers
from simdformer.learn.check.problem import distance
from simdformer.learn.check.report import Report
from simdformer.learn.check.rounding import F32, coarser
from simdformer.learn.trace.axes import (
    View,
    array_of,
    needed_shape,
    taken_apart,
    views,
    whole,
)
from simdformer.learn.trace.choices import Choices
from simdformer.learn.trace.entry import Entry, hidden, in_few_bits
from simdformer.learn.trace.neighbours import Neighbours
from simdformer.learn.trace.places import (
    Place,
    heads_of,
    near,
    none_known,
    place,
    read_aliases,
)
from simdformer.learn.trace.question import ExpectedActivation, OfModel
from simdformer.learn.trace.report import TraceReport
from simdformer.learn.trace.steps import ModelSteps
from simdformer.models.activation_table import layer_and_short_name, layer_of, trace_names
from simdformer.models.forward_pass import checked_ids
from simdformer.models.progress import Progress
from simdformer.models.transformer import Transformer
from simdformer.types import NumpyArrayLike

__all__ = ["check_trace"]

Array = np.ndarray[Any, Any]
SECONDS = 4.0  # of work, after which no more mistakes are tried; steps in between make it one
FOUND = words(
    """
    model (02 §1)

    without_bos: the first id is left out: this is right for the ids after it
        The tokenizer was called without special tokens, so that the sequence is one shorter.
        > Put the bos first: encode(text, bos=True), or add_special_tokens=True.
    two_bos: the first id is there twice: this is right for one more of it
        The tokenizer puts a bos in front, and so did somebody before it.
        > Put the bos first, once.
    """
)
NOTICED = 1e-5  # of a row: an array of 32 or 64 bits that is off by more is looked at closely
WAYS = 4  # of understanding an array, which are looked at thoroughly


def check_trace(
    mine: Mapping[Any, Any],
    model: Any,
    ids: NumpyArrayLike | str,
    aliases: Mapping[Any, Any] | None = None,
) -> TraceReport:
    """Compares a learner's activations with those of a model, and names the first mistake.

    Parameters
    ----------
    mine : dict of arrays
        The learner's activations (numpy arrays, tensors, lists with an array a head), under the
        names of a trace (see `Transformer.run_with_cache`), or what Llama's walkthroughs, Meta,
        Hugging Face and TransformerLens call them; "q_layer0_head3" or ("attn.q", 3) is one head.
        As many or as few as there are. A batch axis of 1 may be missing or there; heads may come
        before positions or after them, or lie side by side.
    model : LanguageModel or Transformer
        Gives the weights, and the right values.
    ids : (L,) or (B,L), or str
        What the learner's model read; a text stands for the ids that the model's tokenizer gives.
    aliases : dict, optional
        The learner's own names: {"x_after_attention": "layers.0.resid_mid"}.

    Returns
    -------
    TraceReport
        `ok`, and if it is not: the first wrong activation in the order of computation, with a
        report and a diagnosis. An activation is right when it is what the model computes, or what
        comes of the learner's own last right values: rounding that adds up is nobody's mistake.

    Raises
    ------
    TypeError
        mine is no dict; ids are neither integers nor a text.
    ValueError
        No name in mine is known; ids is a text, and the model has no tokenizer.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> logits, trace = model.run_with_cache([5, 6, 7])
    >>> mine = {"layers.0.resid_mid": trace["layers.0.resid_mid"],
    ...         "layers.0.mlp_norm": trace["layers.0.resid_mid"]}
    >>> sf.check_trace(mine, model, [5, 6, 7]).sentence
    'layers.0.mlp_norm is wrong while layers.0.resid_mid is right'
    """
    transformer: Transformer = getattr(model, "transformer", model)
    if not isinstance(mine, Mapping):
        raise TypeError(f"check_trace: mine is a {type(mine).__name__}, needs a dict of arrays")
    if not isinstance(transformer, Transformer):
        raise TypeError(
            f"check_trace: model is a {type(model).__name__}, needs what from_pretrained gives"
        )
    named = read_aliases("check_trace", aliases)
    numbers_of_ids = checked_ids(ids_of("check_trace", model, ids))
    if not numbers_of_ids.size:
        raise ValueError("check_trace: ids is empty, needs at least one id")
    return Examination(transformer, numbers_of_ids, named).of(mine)


def ids_of(function: str, model: Any, ids: Any) -> Any:
    """The ids of a text, by the model's tokenizer; others as they are."""
    if not isinstance(ids, str):
        return ids
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError(
            f"{function}: ids is a text, and this model has no tokenizer; give its ids"
        )
    return tokenizer.encode(ids)


def in_any_order(entry: Entry, view: View) -> tuple[Entry, View]:
    """Numbers of experts as sets."""
    if not entry.place.name.endswith("mlp.experts"):
        return entry, view
    take = view.take
    ids = replace(entry, array=np.sort(entry.array))
    return ids, replace(view, take=lambda ours: np.sort(take(ours)), back=None)


class Waiting(Progress):
    """A progress bar over the seconds that a search may take, whatever it takes them for."""

    def __init__(self, seconds: float) -> None:
        super().__init__("trying known mistakes", round(10 * seconds), unit=" tenths of a second")
        self.worked = time.thread_time()
        self.until = self.worked + seconds

    def go_on(self) -> None:
        """As far as the clock says."""
        passed = min(round(10 * (time.thread_time() - self.worked)), self.total)
        self.advance(passed - self.done)

    def __enter__(self) -> "Waiting":
        return self


class Examination:
    """One check of a trace: what is known to be right grows from step to step."""

    def __init__(
        self, transformer: Transformer, ids: np.ndarray[Any, Any], aliases: Mapping[Any, Any]
    ) -> None:
        self.batched = ids.ndim == 2
        self.transformer = transformer
        self.steps = ModelSteps(transformer, np.atleast_2d(ids))
        self.config = transformer.config
        self.aliases = aliases
        self.known: dict[str, Any] = {}
        self.remarks: list[str] = []
        self.choices = Choices(self.steps, self.remarks)

    def of(self, mine: Mapping[Any, Any]) -> TraceReport:
        entries, unknown, weights = self.sorted(mine)
        names = [str(entry.place) for entry in entries]
        there = {entry.place.name for entry in entries}
        missing = tuple(name for name in trace_names(self.config) if name not in there)
        self.remarks += [f"{key!r} is a weight, no activation, and is left out" for key in weights]
        found = TraceReport((), unknown=unknown, missing=missing)
        self.entries, self.neighbours = entries, Neighbours(self.steps, entries)
        for number, entry in enumerate(entries):
            entry, view, wrong = self.judged(entry)
            names[number] = str(entry.place)
            if view is None or wrong is not None:
                return replace(
                    found,
                    checked=tuple(names[:number]),
                    first_wrong=entry.called,
                    report=wrong,
                    after=tuple(self.steps.border(entry.place.name, self.known)),
                    not_checked=tuple(names[number + 1 :]),
                    remarks=tuple(self.remarks),
                )
            self.learn(entry.place.name, entry.array, view)
        return replace(found, checked=tuple(names), remarks=tuple(self.remarks))

    def sorted(
        self, mine: Mapping[Any, Any]
    ) -> tuple[list[Entry], dict[Any, list[str]], list[Any]]:
        """What is known by name in the order of computation; unknown names with near ones; and
        keys of weights."""
        entries, unknown, weights = [], {}, []
        for key, value in mine.items():
            meant = place(key, self.config, self.aliases)
            if meant is None:
                unknown[key] = near(key, self.config)
                continue
            array = self.with_weight(key, array_of(value), meant.name)
            array = in_few_bits(array, meant.name)
            if self.is_weight(array, meant):
                weights.append(key)
            else:
                entries += [Entry(key, *part) for part in taken_apart(array, meant, self.config)]
        if not entries:
            raise none_known("check_trace", mine, trace_names(self.config))
        order = {name: number for number, name in enumerate(self.steps.names)}
        entries.sort(key=lambda entry: (order[entry.place.name], entry.place.head or 0))
        return entries, unknown, weights

    def with_weight(self, key: Any, array: Array, name: str) -> Array:
        """TransformerLens' hook_normalized of an RMSNorm is x over its root mean square; here, as
        in its LayerNorm, the weight is in it."""
        if not str(key).endswith("hook_normalized") or self.config.norm != "rms_norm":
            return array
        layer, norm = layer_and_short_name(name)
        weight = self.steps.tensors(norm, layer)
        if weight is None or array.dtype not in TOLERANCE or array.shape[-1:] != weight.shape:
            return array
        weighed = (numbers(array) * numbers(weight)).astype(array.dtype)
        right = self.steps.right[name].reshape(-1)
        if right.size != array.size:
            return array
        off = [distance([one.reshape(-1)], [right]) for one in (numbers(weighed), numbers(array))]
        if off[0] >= off[1]:
            return array
        self.remarks.append(f"{key!r} is what the norm gives before its weight")
        return weighed

    def is_weight(self, array: Array, place: Place) -> bool:
        """Walkthroughs call wq of layer 0, cut into heads, q_layer0."""
        heads, size = heads_of(place.name, self.config), self.config.head_dim
        width = self.config.hidden_size
        return (
            place.name.endswith((".q", ".k", ".v"))
            and array.shape in ((heads, size, width), (heads * size, width), (size, width))
            and not any(views(array.shape, place, self.config, self.steps.ids))
        )

    def learn(self, name: str, array: Any, view: View) -> None:
        """From now on the learner's value counts."""
        if view.back is not None:
            self.known[name] = view.back(numbers(array))
            if name.endswith("mlp.experts"):
                self.steps.reorder(layer_of(name) or 0, self.known[name])
        elif view.head is not None:
            value = np.array(self.known.get(name, self.steps.right[name]))
            view.take(value)[...] = array
            self.known[name] = value

    # ---- one array -------------------------------------------------------------------------------

    def judged(self, entry: Entry) -> tuple[Entry, View | None, Report | None]:
        """What the array is, how it is to be understood, and a report if it is wrong."""
        self.work = Waiting(SECONDS)
        place, array = entry.place, entry.array
        found = list(views(array.shape, place, self.config, self.steps.ids))
        if f"layers.{layer_of(place.name)}.mlp.experts" in self.known:  # they have that order
            found = [view for view in found if not view.top_last]
        numeric = array.dtype.kind in "fiub" or array.dtype in TOLERANCE
        right = self.steps.right[place.name]
        if numeric and found and place.name.endswith("mlp.experts"):
            return self.judged_experts(entry, found[0])
        if numeric and found:
            array = hidden(array, found[0].take(right))
            entry = replace(entry, array=array)
            rtol = max(TOLERANCE[array.dtype], TOLERANCE[F32])
            tried = [compare(array, view.take(right), rtol, array.dtype) for view in found]
            best = min(range(len(found)), key=lambda i: (tried[i].excess, tried[i].max_abs))
            if tried[best].ok:
                return self.doubted(entry, found[best])
            found = found[:WAYS]
        with self.work:
            questions = [self.question(entry, view) for view in found if numeric]
            # Another way to be right: what comes of the learner's own values.
            for view, question in zip(found, questions, strict=False):
                if question.is_right or self.settled(entry, view):
                    return entry, view, None
            if numeric and (other := self.neighbours.found(entry, self.is_right)):
                self.remarks.append(f"what you call {entry.key!r} is {other[0].place}")
                return *other, None
            if not questions:
                return entry, None, self.misshapen(entry)
            reports = []
            for view, question in zip(found, questions, strict=True):
                reports.append(self.explained(question))
                if reports[-1].ok:
                    self.remarks += [f"{entry.called}: {remark}" for remark in reports[-1].remarks]
                    return entry, view, None
                if reports[-1].diagnosis:
                    return entry, None, reports[-1]
                if self.settled(entry, view, in_fewer_bits=True):
                    return entry, view, None
            for renamed, view in self.neighbours.meant(entry):
                report = self.explained(self.question(renamed, view))
                if report.diagnosis:
                    return renamed, None, report
            return entry, None, reports[min(best, WAYS - 1)]

    def doubted(self, entry: Entry, view: View) -> tuple[Entry, View | None, Report | None]:
        """What is right, unless it is off by more than rounding makes and a mistake explains it:
        an exact gelu for that of tanh, where other channels are large."""
        array, right = entry.array, view.take(self.steps.right[entry.place.name])
        if array.dtype.itemsize < 4 or compare(array, right, NOTICED, array.dtype).ok:
            return entry, view, None
        with self.work:
            report = replace(self.question(entry, view), doubts=True).report()
        return (entry, view, None) if report.ok else (entry, None, report)

    def judged_experts(self, entry: Entry, view: View) -> tuple[Entry, View | None, Report | None]:
        """The same for numbers of experts, whose order is free; and which of two that are as good
        as equal is the likeliest."""
        assert view.back is not None
        layer, ids = layer_of(entry.place.name) or 0, view.back(numbers(entry.array))
        beside = [
            other.array
            for other in self.entries
            if layer_of(other.place.name) == layer
            and not other.place.name.endswith(("resid_pre", "mlp.experts"))
        ]
        bits = max((F32, *float_dtypes(beside)), key=TOLERANCE.__getitem__)
        whole_numbers = (ids == np.rint(ids)).all()
        if whole_numbers and self.choices.accepted(layer, ids.astype(int), self.known, bits):
            return entry, view, None
        report = self.explained(self.question(*in_any_order(entry, view)))
        by_number = "a token's experts are compared in the order of their numbers"
        return entry, None, replace(report, dtype="int64", remarks=(by_number,))

    def settled(self, entry: Entry, view: View, *, in_fewer_bits: bool = False) -> bool:
        """Whether the array is right if rounding, to its own dtype or to coarser ones, decides
        otherwise who is asked."""
        if not self.choices.undecided(entry.place.name, self.known):
            return False
        own = max(entry.array.dtype, F32, key=TOLERANCE.__getitem__)
        given = entry.place.name, self.known, entry.array, view.take
        if not in_fewer_bits:
            return self.choices.settled(*given, own, lambda: self.is_right(entry, view))

        def rounded() -> bool:  # what is right in its own dtype then was not rounded before either
            question = self.question(entry, view)
            return not question.is_right and self.explained(question).ok

        return any(self.choices.settled(*given, few, rounded) for few in coarser(own))

    def question(self, entry: Entry, view: View) -> OfModel:
        """Whether the array is what comes of the learner's own right values."""
        name = entry.place.name
        program, variables = self.steps.part(name, self.known, view.take)
        right = self.steps.value(name, self.known, view.take)
        program.axes = view.axes
        self.steps.shorten(program, entry.array, right)
        return OfModel(
            call=ExpectedActivation(entry.called, variables, program, right),
            mine=[entry.array],
            rtol=None,
            until=self.work.until,
            begun=self.work.go_on,
            weights=self.steps.weights(name, self.known),
            layer=layer_of(name),
            streams=self.steps.streams(self.known),
        )

    def is_right(self, entry: Entry, view: View) -> bool:
        return self.question(entry, view).is_right

    def explained(self, question: OfModel) -> Report:
        report = question.report()
        if report.ok:
            return report
        report = replace(report, remarks=())
        if report.diagnosis or time.thread_time() < self.work.until:
            return report
        given_up = (
            f"a search ends after {SECONDS:g} seconds: give more of the activations in between"
        )
        return replace(report, observations=(*report.observations, given_up))

    def misshapen(self, entry: Entry) -> Report:
        view = whole(entry.place, self.config, entry.array.ndim, self.steps.ids)
        if view is not None and entry.array.dtype in TOLERANCE:  # of other experts, more or fewer
            report = self.explained(self.question(*in_any_order(entry, view)))
            if report.diagnosis:
                return report
        return Report(
            False,
            entry.called,
            entry.array.shape,
            str(entry.array.dtype),
            np.nan,
            np.nan,
            explanations=tuple((mistake,) for mistake in self.of_other_ids(entry)),
            expected=needed_shape(entry.place, self.config, self.steps.ids, self.batched),
        )

    def of_other_ids(self, entry: Entry) -> Iterator[Mistake]:
        """The first id is missing, or there twice: then everything has another length."""
        ids = self.steps.ids
        twice = np.concatenate([ids[:, :1], ids], 1)
        for name, others in (("model.without_bos", ids[:, 1:]), ("model.two_bos", twice)):
            found = views(entry.array.shape, entry.place, self.config, others)
            if others.shape[1] and entry.array.dtype in TOLERANCE and (view := next(found, None)):
                right = ModelSteps(self.transformer, others).right[entry.place.name]
                rtol = max(TOLERANCE[entry.array.dtype], TOLERANCE[F32])
                if compare(entry.array, view.take(right), rtol, entry.array.dtype).ok:
                    yield FOUND[name]
