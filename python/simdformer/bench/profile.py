"""Where the time of a model goes: each operation of a prompt and of decoding, beside what this
machine could do at most.

Time is counted where it is spent: that of `attention` is without the products and norms that it
calls for. What is read, and multiplied, is counted for the matrices, which is nearly all of it.
"""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, Unpack

import numpy as np

from simdformer.bench.machine import Limits, measure_limits, this_machine
from simdformer.bench.stopwatch import Stopwatch
from simdformer.models.batch_pass import BatchPass
from simdformer.models.cache import KVCache
from simdformer.models.forward_pass import ForwardPass
from simdformer.models.observer import Observer, See
from simdformer.models.transformer import Transformer
from simdformer.text import LanguageModel, Report
from simdformer.text.language_model import GenerateOptions
from simdformer.types import Array

__all__ = ["Phase", "Profile", "Spent", "profile"]

T = TypeVar("T")

OTHER = "adding, cutting, Python"
OUTSIDE = "choosing ids, text"
BUDGET = 0.4  # seconds in which the limits of the machine are measured
NEW_TOKENS = 32


@dataclass
class Spent:
    """What went into one operation: calls, seconds, bytes of weights and float operations."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    flops: int = 0


@dataclass
class Phase:
    """A prompt, or the decoding behind it: what each operation took for all of its ids together."""

    name: str
    ids: int = 0
    spent: dict[str, Spent] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(spent.seconds for spent in self.spent.values())

    @property
    def nbytes(self) -> int:
        return sum(spent.nbytes for spent in self.spent.values())

    @property
    def flops(self) -> int:
        return sum(spent.flops for spent in self.spent.values())

    def of(self, name: str) -> Spent:
        return self.spent.setdefault(name, Spent())


@dataclass
class Profile:
    """What `profile` measured. `str(...)` is a table of 80 columns."""

    prompt: Phase
    decode: Phase
    limits: Limits

    def __str__(self) -> str:
        parts = [table(phase, self.limits) for phase in (self.prompt, self.decode) if phase.ids]
        return "\n\n".join([*parts, f"of the limit: {self.limits}"])


def profile(
    model: LanguageModel,
    prompt: str | Sequence[int],
    max_new_tokens: int = NEW_TOKENS,
    **options: Unpack[GenerateOptions],
) -> Profile:
    """Continues a text, as `model.generate` does with the same options, and tells what each
    operation took.

    >>> import simdformer as sf
    >>> from simdformer.bench import profile
    >>> found = profile(sf.from_pretrained(sf.demo_path()), "Once upon a time", 8)
    >>> found.decode.ids, found.decode.of("lm_head").calls
    (7, 7)
    """
    watched = copy(model)
    watched.transformer = Watched.of(model.transformer)
    report = options.get("report") or Report()
    options["report"] = report
    continues: Any = watched.generate
    continues(prompt, max_new_tokens, **options)
    prompts, decode = watched.transformer.phases
    prompts.of(OUTSIDE).seconds = max(report.prefill_seconds - prompts.seconds, 0.0)
    decode.of(OUTSIDE).seconds = max(report.decode_seconds - decode.seconds, 0.0)
    return Profile(prompts, decode, measure_limits(this_machine(), BUDGET, Stopwatch()))


# ---- the model that is watched -------------------------------------------------------------------


class Watched(Transformer):
    """A model that notes what its operations take, in `phases`: of prompts, and of decoding."""

    phases: tuple[Phase, Phase]
    _phase: Phase
    _names: dict[int, str]  # of matrices, by id
    _inner: float  # seconds of what the operation under way has called

    @classmethod
    def of(cls, model: Transformer) -> "Watched":
        """The same model on the same weights."""
        watched = object.__new__(cls)
        watched.__dict__.update(model.__dict__)
        watched.phases = Phase("prompt"), Phase("decode")
        watched._phase, watched._inner = watched.phases[0], 0.0
        watched._names = matrix_names(model.weights)
        return watched

    def _measured(self, name: str, call: Callable[..., T], *arguments: Any) -> T:
        outside, self._inner = self._inner, 0.0
        started = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            seconds = time.perf_counter() - started
            spent = self._phase.of(name)
            spent.calls += 1
            spent.seconds += seconds - self._inner
            self._inner = outside + seconds

    def forward(
        self,
        ids: Array,
        cache: KVCache | None,
        logits_to_keep: int | None,
        observer: Observer | None,
    ) -> Array:
        self._phase = self.phases[ids.shape[1] == 1]
        self._phase.ids += ids.size
        return self._measured(OTHER, super().forward, ids, cache, logits_to_keep, observer)

    def forward_batch(self, run: BatchPass) -> list[Array]:
        self._phase = self.phases[all(p.one_by_one or len(p.ids) == 1 for p in run.pieces)]
        self._phase.ids += run.ids.size
        return self._measured(OTHER, super().forward_batch, run)

    def norm(self, x: Array, weight: Array | None, bias: Array | None = None) -> Array:
        if weight is None:
            return x
        return self._measured("norms", super().norm, x, weight, bias)

    def rotated(self, layer: int, x: Array, run: ForwardPass | BatchPass) -> Array:
        return self._measured("rope", super().rotated, layer, x, run)

    def attention(self, layer: int, x: Array, run: ForwardPass | BatchPass) -> Array:
        return self._measured("attention, cache", super().attention, layer, x, run)

    def activated(self, inner: list[Array], see: See, name: str) -> Array:
        return self._measured(self.config.activation, super().activated, inner, see, name)

    def linear(self, x: Array, weight: Any, bias: Any = None) -> Any:
        weights = weight if isinstance(weight, list | tuple) else [weight]
        name = self._names[id(weights[0])]
        spent = self._phase.of(name)
        spent.nbytes += sum(one.nbytes for one in weights)
        spent.flops += 2 * int(np.prod(x.shape)) * sum(one.shape[0] for one in weights)
        return self._measured(name, super().linear, x, weight, bias)


def matrix_names(weights: Any, before: str = "") -> dict[int, str]:
    """What the matrices are called in the table, by id: one name for those that a call takes."""
    names: dict[int, str] = {}
    for part in fields(weights):
        value = getattr(weights, part.name)
        for one in value if isinstance(value, list) else [value]:
            if is_dataclass(one):
                inside = {"experts": "experts ", "shared": "shared "}.get(part.name, before)
                names |= matrix_names(one, inside)
            elif one is not None:
                names[id(one)] = before + part.name.replace("_", " ")
    return {**names, id(weights.lm_head): "lm_head"} if hasattr(weights, "lm_head") else names


# ---- the table -----------------------------------------------------------------------------------


def table(phase: Phase, limits: Limits) -> str:
    """A line an operation, the longest first, and one for all of them, for one id each."""
    total = Spent(0, phase.seconds, phase.nbytes, phase.flops)
    title = f"{phase.name}, {phase.ids} id{'' if phase.ids == 1 else 's'}"
    head = f"{title:<26}{'calls':>8}{'ms an id':>11}{'time':>7}{'work':>16}{'limit':>9}"
    lines = [
        line(name, spent, phase, limits)
        for name, spent in sorted(phase.spent.items(), key=lambda item: -item[1].seconds)
    ]
    return "\n".join([head, *lines, line("all", total, phase, limits)])


def line(name: str, spent: Spent, phase: Phase, limits: Limits) -> str:
    calls = f"{spent.calls}" if spent.calls else ""
    share = spent.seconds / max(phase.seconds, 1e-12)
    each = spent.seconds / phase.ids * 1e3
    work, limit = nearer_limit(spent, phase, limits)
    return f"  {name:<24}{calls:>8}{each:>11.3f}{share:>7.0%}{work:>16}{limit:>9}"


def nearer_limit(spent: Spent, phase: Phase, limits: Limits) -> tuple[str, str]:
    """What was done for an id, and the share of the machine's limit that it reached: bytes that
    were read from where all weights of a pass fit in, or operations, whichever is nearer."""
    if not spent.nbytes or not spent.seconds:
        return "", ""
    memory = limits.level(phase.nbytes // max(phase.of(OTHER).calls, 1)).gigabytes_per_second
    read = spent.nbytes / spent.seconds / 1e9 / memory
    computed = spent.flops / spent.seconds / 1e9 / limits.gflops
    if read >= computed:
        return f"{spent.nbytes / phase.ids / 1e6:,.1f} MB", f"{read:.0%}"
    return f"{spent.flops / phase.ids / 1e6:,.1f} MFLOP", f"{computed:.0%}"
