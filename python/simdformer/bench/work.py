"""What is measured: work of certain sizes, its inputs, how much it is, what is right, who does it.

A `Work` makes its contestants from its inputs; what they give is compared with `expected`, a sample
of the result in float64.

A goal is a ratio to others in the same run, or a share of what this machine can do; the only time
among them is that of a call that has nothing to compute. Nothing should be behind anybody, and what
takes long should be at a limit of the machine.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from simdformer import reference
from simdformer.bench.contestants import ONNXRUNTIME, TORCH, Contestant, Missing
from simdformer.functional import QuantizedWeight, quantize
from simdformer.types import Array

__all__ = [
    "AT_THE_LIMIT",
    "BESIDE_WEIGHTS",
    "BOTH",
    "LONG",
    "NOT_BEHIND",
    "SEED",
    "TOLERANCE",
    "Case",
    "Dtype",
    "Goal",
    "Inputs",
    "Unit",
    "Work",
    "another_result",
    "random_array",
    "relative_error",
    "some_weight",
    "spread",
    "times",
]

Dtype = Literal["float32", "float16", "bfloat16"]
Unit = Literal["GFLOPS", "GB/s", "tok/s"]
Inputs = Mapping[str, Any]

BOTH: tuple[Dtype, ...] = ("float32", "bfloat16")
# An RMS error above this is no rounding. In 16 bits PyTorch rounds the weights of attention too,
# and a sum of many such numbers is good for two digits.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
SAMPLED = 16  # rows, heads or columns looked at in float64: ends, and some between
BESIDE_WEIGHTS = 100e6  # bytes of a process with a model: Python, numpy, ours
SEED = 20240601  # of all inputs
REPEATED = 256  # rows that all others of a quantised matrix repeat


def random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0
) -> Array:
    """Normally distributed numbers."""
    numbers: Array = rng.standard_normal(shape, dtype=np.float32)
    numbers *= np.float32(scale)
    return numbers if dtype == "float32" else numbers.astype(dtype)


def some_weight(type: str, outputs: int, inputs: int) -> QuantizedWeight:
    """A quantised one, the same in every call. Rows repeat after some hundreds, because making
    a weight should not outlast the measuring."""
    blocks = some_rows(type, min(outputs, REPEATED), inputs)
    repeated = np.resize(blocks, (outputs, blocks.shape[1]))
    return QuantizedWeight.from_blocks(repeated, type, (outputs, inputs))


@lru_cache(maxsize=8)
def some_rows(type: str, outputs: int, inputs: int) -> Array:
    rows = random_array(np.random.default_rng(inputs), (outputs, inputs), "float32", inputs**-0.5)
    return quantize(rows, type).blocks()


def relative_error(got: Array, expected: Array) -> float:
    """RMS of the differences, relative to the RMS of what is right. NaN when `got` holds one.

    >>> import numpy as np
    >>> from simdformer.bench import relative_error
    >>> relative_error(np.array([1.0, 2.2]), np.array([1.0, 2.0])) < 0.1
    True
    """
    right = reference.forward.float64(expected)
    off = reference.forward.float64(got) - right
    return float(np.sqrt(np.mean(off * off)) / np.sqrt(np.mean(right * right)))


def another_result(error: float) -> str:
    """Why somebody does not race."""
    return f"gives another result, {error:.1e} away from float64"


def spread(count: int, most: int = SAMPLED) -> Array:
    """Up to `most` indices of `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.intp))


# ---- goals ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """At least `least` ... times the speed of the best of `peers`, or that share of a limit; or
    what `otherwise` says.

    of "call": at most so many seconds. "memory": at most so many times the bytes of the weights,
    and BESIDE_WEIGHTS more.
    """

    least: float
    of: Literal["peers", "arithmetic", "read", "call", "memory"]
    peers: tuple[str, ...] = ()
    otherwise: "Goal | None" = None

    def __or__(self, otherwise: "Goal") -> "Goal":
        """
        >>> from simdformer.bench.work import Goal
        >>> print(Goal(0.85, "arithmetic") | Goal(0.9, "read"))
        85% FMA or 90% read
        """
        return replace(self, otherwise=otherwise)

    @property
    def at_most(self) -> bool:
        """Whether `least` is the most."""
        return self.of in ("call", "memory")

    def __str__(self) -> str:
        return f"{self.wanted} or {self.otherwise}" if self.otherwise else self.wanted

    @property
    def wanted(self) -> str:
        """Without `otherwise`."""
        match self.of:
            case "peers":
                return f"{self.least:g}× {self.peers[0] if len(self.peers) == 1 else 'peers'}"
            case "arithmetic":
                return f"{self.least:.0%} FMA"
            case "read":
                return f"{self.least:.0%} read"
            case "memory":
                return f"≤ {self.least:g}× weights + {BESIDE_WEIGHTS / 1e6:g} MB"
        return f"≤ {self.least * 1e6:g} µs"

    def amount(self, found: float) -> str:
        """A ratio or a share, as the goal speaks of it.

        >>> from simdformer.bench.work import Goal
        >>> Goal(1.5, "peers", ("torch",)).amount(1.234), Goal(0.9, "read").amount(0.5)
        ('1.2×', '50%')
        """
        return f"{found:.1f}×" if self.of == "peers" else f"{found:.0%}"


def times(least: float, *peers: str) -> Goal:
    """So many times the speed of the better of these, or of PyTorch and onnxruntime."""
    return Goal(least, "peers", peers or (TORCH, ONNXRUNTIME))


NOT_BEHIND = times(1.0)
# What takes LONG enough that starting threads, and their ends, do not count.
AT_THE_LIMIT = Goal(0.85, "arithmetic") | Goal(0.90, "read")
LONG = 1e-3  # seconds


# ---- work ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Work(ABC):
    """Something to compute, with its sizes. `dtype` is that of activations and result."""

    dtype: Dtype = "float32"

    @property
    @abstractmethod
    def peers(self) -> tuple[str, ...]:
        """Whom ours is compared with, each in a column of tables."""

    @property
    def errors_of(self) -> tuple[str, ...]:
        """The peers whose errors stand beside ours."""
        return self.peers

    @property
    @abstractmethod
    def operation(self) -> str:
        """What it is called in tables and JSON."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations that cannot be avoided; an exp, a root, a division is one."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that must be read or written at least once."""

    @property
    @abstractmethod
    def counted_in(self) -> Unit:
        """What its speed is called: by what such work is usually bound."""

    @abstractmethod
    def inputs(self, rng: np.random.Generator) -> Inputs:
        """Random inputs, the same for all contestants."""

    @abstractmethod
    def sample(self, result: Array) -> Array:
        """The part of a result that `expected` speaks of."""

    @abstractmethod
    def expected(self, inputs: Inputs) -> Array:
        """That part in float64."""

    @abstractmethod
    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        """Ours first, then the others, all on the same inputs."""

    @property
    def tolerance(self) -> float:
        """The relative error from which on a result is another one, and not a rounding."""
        return TOLERANCE[self.dtype]

    @property
    def token_count(self) -> int:
        """What is counted in tok/s."""
        raise NotImplementedError

    def speed(self, seconds: float) -> float:
        """In what `counted_in` names."""
        if self.counted_in == "tok/s":
            return self.token_count / seconds
        return (self.flops if self.counted_in == "GFLOPS" else self.nbytes) / seconds / 1e9

    @property
    def intensity(self) -> float:
        """Floating-point operations a byte: few means bound by memory, many by arithmetic."""
        return self.flops / self.nbytes

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def normal(self, rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
        """Normally distributed numbers in this work's dtype."""
        return random_array(rng, shape, self.dtype, scale)


@dataclass(frozen=True)
class Case:
    """A piece of work with a name for `--only`, and what it should reach: on every machine and with
    every instruction set the same, a limit only where it takes LONG.
    """

    name: str
    work: Work
    goals: tuple[Goal, ...] = (NOT_BEHIND, AT_THE_LIMIT)

    @property
    def tiny(self) -> bool:
        """Nothing but the cost of a call, so that no speed and no share is worth showing."""
        return self.name.startswith("call/")
