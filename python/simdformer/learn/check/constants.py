"""A wrong constant: the one scale, eps, theta, temperature or softcap with which the operation
gives this array, found by least squares."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simdformer.learn.catalogue import CATALOGUE, Mistake
from simdformer.learn.check.compare import TOLERANCE, Float64, numbers, row_size
from simdformer.learn.check.problem import Problem, Target, evaluate
from simdformer.learn.check.rounding import BF16, F16, F32, F64
from simdformer.learn.check.search import BETTER, Explanation
from simdformer.learn.mistakes.attention import scale_of
from simdformer.learn.program import Program, Run, State, Step, Tape

__all__ = ["Fit", "fits", "is_factor", "is_fitted"]

REACH = np.linspace(-12, 12, 25)  # logarithms of the factors that are tried first
ROUNDS = 25  # of Newton's method
CERTAIN = 4.0  # standard errors
EXACT = 1e-9  # relatively: below, two constants are the same
WIDTH = {F64: 1e-5, F32: 3e-3}  # of a difference that stands for a derivative, by arithmetic
OF_GRADIENTS = "scale of the gradients"
MEANINGFUL = 8  # numbers, at least, that a constant has to explain


@dataclass(frozen=True)
class Constant:
    """A constant of an operation, at the step where it is used.

    step : the full name of that step
    name : what it is called
    read : its value; None where the call has none
    write : puts another value in its place
    see : notebook and section
    """

    step: str
    name: str
    read: Callable[[State], Any]
    write: Callable[[State, float], None]
    see: str


def argument(step: str, name: str, see: str) -> Constant:
    """One that is an argument of the operation."""
    return Constant(
        step, name, lambda s: getattr(s, name), lambda s, value: setattr(s, name, value), see
    )


CONSTANTS = [
    *(
        Constant(step, "scale", scale_of, lambda s, value: setattr(s, "scale", value), "01 §4")
        for step in ("attention.scale", "attention_backward.scale")
    ),
    argument("rms_norm.add_eps", "eps", "02 §4"),
    argument("layer_norm.add_eps", "eps", "04 §3"),
    argument("rope_frequencies.power", "theta", "02 §5"),
    argument("softmax.temper", "temperature", "04 §6"),
    argument("attention.cap", "softcap", "01 §4"),
    argument("rms_norm_backward.root", "eps", "02 §4"),
    argument("layer_norm_backward.root", "eps", "04 §3"),
    argument("softmax_backward.temper", "temperature", "04 §6"),
    Constant(
        "attention_backward.of_query",
        OF_GRADIENTS,
        lambda s: s.factor,
        lambda s, value: setattr(s, "factor", s.run.dtype(value)),
        "08 §9",
    ),
    argument("attention_backward.cap", "softcap", "01 §4"),
    argument("cross_entropy_backward.cap", "softcap", "02 §10"),
    argument("cross_entropy_backward.smooth", "label_smoothing", "02 §10"),
    argument("cross_entropy_backward.square", "z_loss", "02 §10"),
    *(
        argument("adamw_step.inputs", name, "")
        for name in ("lr", "beta1", "beta2", "weight_decay", "eps")
    ),
    argument("clip_grad_norm.inputs", "max_norm", ""),
    *(argument("cosine_lr.inputs", name, "") for name in ("lr", "min_lr", "warmup", "total")),
]


def is_fitted(known: Explanation) -> bool:
    """Whether what is named is a number that was fitted."""
    return any(".fitted_" in one.name for one in known)


def is_factor(known: Explanation) -> bool:
    """Whether what is named is but a factor of the whole, for which there may be better words."""
    return all(one.name.endswith(f".fitted_{OF_GRADIENTS.replace(' ', '_')}") for one in known)


@dataclass(frozen=True)
class Fit:
    """The value of a constant with which the operation gives the results.

    value, right : the one that was found, and the one that is asked for
    error : standard error of the value, relatively
    rounding : how far rounding may have moved it if all errors point the same way, relatively
    replaces : the step with that value
    sizes : lengths at that step, by name
    """

    constant: Constant
    value: float
    right: float
    error: float
    rounding: float
    replaces: dict[str, Step]
    sizes: dict[str, int]

    def is_near(self, other: float) -> bool:
        return abs(self.value - other) <= max(CERTAIN * self.error, EXACT) * abs(other)

    def may_be(self, other: float) -> bool:
        """Whether the value may be spelled so. Errors of rounding are no independent ones: which
        kernels multiplied the matrices moves the value by more than its standard error."""
        known = max(CERTAIN * self.error, self.rounding, EXACT)
        is_another = abs(other - self.right) > EXACT * abs(self.right)
        return is_another and abs(self.value - other) <= known * abs(other)

    @property
    def rounded_to(self) -> np.dtype[Any] | None:
        """The dtype whose number nearest to the right value this is, or of whose numbers it was
        made, 1 / sqrt(8) in float32 for one."""
        if abs(self.value - self.right) <= float(np.finfo(F32).eps) * abs(self.right):
            return F32
        for dtype in (F32, F16, BF16):
            with np.errstate(over="ignore"):
                few = float(np.asarray(self.right).astype(dtype))
            if np.isfinite(few) and few != self.right and self.is_near(few):
                return dtype
        return None

    @property
    def explanation(self) -> Explanation:
        name = self.constant.name
        operation = self.constant.step.partition(".")[0]
        if name.startswith("scale"):
            what = "the scores are" if name == "scale" else "the gradients of query and key are"
            title = f"{what} {as_scale(self.value, self)}"
            as_divisor = title.startswith(f"{what} divided")
            title += f", needs {divisor(self.right) if as_divisor else said(self.right)}"
            if self.said == "1":
                where = "" if name == "scale" else " in the gradients of query and key"
                title = f"the scale is missing{where}"
        else:
            title = f"{name} is {self.said}, needs {said(self.right)}"
        return (
            Mistake(
                f"{operation}.fitted_{name.replace(' ', '_')}",
                title,
                self.cause,
                f"Use {name.split()[0]} = {said(self.right)}, from where the call has it.",
                self.constant.see,
                self.replaces,
            ),
        )

    @property
    def said(self) -> str:
        """The value with as many digits as are known of it."""
        if abs(self.value) < EXACT * abs(self.right):
            return "0"
        for digits in range(1, 13):
            text = f"{self.value:.{digits}g}"
            if self.may_be(float(text)) and said(float(text)) != said(self.right):
                return said(float(text))
        return said(self.value)

    @property
    def cause(self) -> str:
        typed = float(self.said.replace(",", ""))
        for decimals in range(2, 7):
            if round(self.right, decimals) == typed:
                return f"{said(self.right)}, typed in with {decimals} decimals."
        if self.constant.name == "eps":
            return "Each model has its own eps; a default is easily left in the code."
        return "A constant that was typed in, belongs to another model, or is made of another size."


def said(value: float) -> str:
    if abs(value) >= 1000 and value == int(value):
        return f"{int(value):,}"
    return f"{value:.6g}"


def divisor(scale: float) -> str:
    """What a scale divides by: 4, sqrt(8), 5.3"""
    over = 1 / scale if scale else float("inf")
    for number, text in ((over, "{}"), (over * over, "sqrt({})")):
        if np.isfinite(number) and abs(number - round(number)) < EXACT * number:
            return text.format(round(number))
    return said(over)


def as_scale(value: float, fit: Fit) -> str:
    """divided by sqrt(50), the number of keys; divided by 8; multiplied by 0.1768"""
    over = 1 / value if value else float("inf")
    for number, text, power in ((over, "{}", -1.0), (over * over, "sqrt({})", -0.5)):
        whole = round(number) if np.isfinite(number) and abs(number) < 1e9 else 0
        if whole > 1 and fit.may_be(whole**power):
            size = next((name for name, n in fit.sizes.items() if n == whole), "")
            return f"divided by {text.format(whole)}" + (f", the {size}" if size else "")
    return f"multiplied by {fit.said}"


def fits(problem: Problem) -> Iterator[Fit]:
    """The constants of the operation, one after the other, each with the value that brings it
    nearest to the results, where that is much nearer than the right one."""
    base = Run(problem.dtype)
    right = evaluate(base, problem)
    if right is None or sum(np.size(x) for x in right) < MEANINGFUL:
        return
    plain = Target(right, TOLERANCE[problem.dtype], problem.dtype, problem.floor)
    habits = [one for one in CATALOGUE.among(base.visited) if one.habit]
    for written in ({}, *(one.replaces for one in habits)):
        run = Run(problem.dtype, written) if written else base
        if written and ((out := evaluate(run, problem)) is None or plain.distance(out) > 0):
            continue  # for this call it would be a mistake
        some = False
        for constant in CONSTANTS:
            if constant.step in run.visited and constant.step not in written and run.tape:
                found = Fitting(problem, constant, run.tape, written).found()
                if found is not None:
                    some = True
                    yield found
        if some:
            return


class Fitting:
    """The search for the value of one constant."""

    def __init__(
        self, problem: Problem, constant: Constant, tape: Tape, written: Mapping[str, Step]
    ) -> None:
        self.problem, self.constant, self.tape, self.written = problem, constant, tape, written
        self.original = step_of(tape, constant.step)
        self.right: float | None = None
        self.sizes: dict[str, int] = {}
        self.mine = [np.atleast_1d(numbers(x)) for x in problem.mine]

    def with_factor(self, factor: float) -> dict[str, Step]:
        """The step with the constant times a factor."""

        def step(s: State) -> None:
            value = self.constant.read(s)
            if value:
                self.right = float(value)
                self.constant.write(s, value * factor)
                self.sizes = sizes_at(s)
            self.original(s)

        return {**self.written, self.constant.step: step}

    def off(self, t: float) -> Float64 | None:
        """Results minus those with the constant times exp(t), relative to their rows."""
        steps = self.with_factor(float(np.exp(t)))
        run = Run(
            self.problem.dtype,
            steps,
            earlier=self.tape,
            differing={self.constant.step},
            record=False,
        )
        out = evaluate(run, self.problem)
        if out is None or [np.shape(x) for x in out] != [np.shape(x) for x in self.problem.mine]:
            return None
        parts = []
        for x, y in zip(self.mine, out, strict=True):
            y = np.atleast_1d(numbers(y))
            size = row_size(y)
            with np.errstate(all="ignore"):
                part = (x - y) / np.where(size == 0, 1, size)
            parts.append(np.where(x == y, 0, part).ravel())
        found = np.concatenate(parts)
        return found if np.isfinite(found).all() else None

    def found(self) -> Fit | None:
        start = self.off(0.0)
        if start is None or self.right is None or not self.matters(start):
            return None
        lengths = [norm(self.off(t)) for t in REACH]
        best = min([0.0, float(REACH[int(np.argmin(lengths))])], key=lambda t: norm(self.off(t)))
        for t in dict.fromkeys((0.0, best)):
            t, off, slope = self.newton(t)
            if norm(off) * BETTER > norm(start) or off is None or slope == 0:
                continue
            rounding = norm(off) / slope
            error = rounding / max(np.sqrt(off.size - 1), 1)
            if abs(t) > max(CERTAIN * error, EXACT):
                value = self.right * float(np.exp(t))
                steps = self.with_factor(float(np.exp(t)))
                return Fit(self.constant, value, self.right, error, rounding, steps, self.sizes)
        return None

    def matters(self, start: Float64) -> bool:
        """Whether these results depend on the constant at all."""
        ends = (self.off(float(t)) for t in (REACH[0], 1.0, REACH[-1]))
        return any(end is None or not np.array_equal(end, start) for end in ends)

    def newton(self, t: float) -> tuple[float, Float64 | None, float]:
        """The nearest minimum, what is left there, and the length of the derivative."""
        off, slope = self.off(t), 0.0
        for _ in range(ROUNDS):
            if off is None:
                break
            width = WIDTH[self.problem.dtype]
            beside = self.off(t + width)
            if beside is None:
                break
            derivative = (beside - off) / width
            slope = norm(derivative)
            if not slope:
                break
            step = float(np.clip(-(derivative @ off) / slope**2, -1, 1))
            moved = self.off(t + step)
            while norm(moved) > norm(off) and abs(step) > EXACT:
                step /= 4
                moved = self.off(t + step)
            if not norm(moved) < norm(off):
                break
            t, off = t + step, moved
        return t, off, slope


def norm(x: Float64 | None) -> float:
    return float("inf") if x is None else float(np.sqrt(x @ x))


def step_of(tape: Tape, name: str) -> Step:
    """The function of a step, of this program or of one that it runs."""

    def programs(tape: Tape) -> Iterator[Program]:
        yield tape.program
        for inner in tape.nested:
            for one in inner:
                yield from programs(one)

    return next(one.steps[name] for one in programs(tape) if name in one.steps)


def sizes_at(s: State) -> dict[str, int]:
    """The lengths that a constant may have been made of by mistake."""
    if not hasattr(s, "head_dim") or not hasattr(s, "S"):
        return {}
    return {
        "size of a head": int(s.head_dim),
        "number of keys": int(s.S),
        "number of queries": int(s.L),
        "number of heads": int(s.num_heads),
        "width of all heads": int(s.num_heads * s.head_dim),
    }
