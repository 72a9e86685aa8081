"""What is measured: work of certain sizes, its inputs, how much it is, what is right, who does it.

A `Work` makes its contestants from its inputs; what they give is compared with `expected`, a sample
of the result in float64. An `Operation` is the work of one function: its class says in one place
how ours, PyTorch, onnxruntime and numpy do it, in which sizes it is measured, and with which goals.

A goal is a ratio to others in the same run, or a share of what this machine can do; the only time
among them is that of a call that has nothing to compute. Nothing should be behind anybody, and what
takes long should be at a limit of the machine.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import ml_dtypes
import numpy as np

from simdformer import reference
from simdformer.bench.contestants import (
    NUMPY,
    ONNXRUNTIME,
    OURS,
    TORCH,
    Contestant,
    Graph,
    Missing,
    Way,
    optional,
    tensor,
    torch_way,
)
from simdformer.runtime import get_num_threads
from simdformer.types import Array

__all__ = [
    "AT_THE_LIMIT",
    "BESIDE_WEIGHTS",
    "LONG",
    "NOT_BEHIND",
    "TOLERANCE",
    "Case",
    "Dtype",
    "Goal",
    "Inputs",
    "Operation",
    "Unit",
    "Work",
    "numpy_dtype",
    "random_array",
    "relative_error",
    "spread",
    "times",
]

Dtype = Literal["float32", "float16", "bfloat16"]
Unit = Literal["GFLOPS", "GB/s", "tok/s"]
Inputs = Mapping[str, Any]

# An RMS error above this is no rounding. In 16 bits PyTorch rounds the weights of attention too,
# and a sum of many such numbers is good for two digits.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
SAMPLED = 16  # rows, heads or columns looked at in float64: ends, and some between
LARGEST_NAIVE = 512 << 20  # bytes that numpy may make; a baseline need not fill the memory
BESIDE_WEIGHTS = 100e6  # bytes of a process with a model: Python, numpy, ours
MOST_NAIVE_FLOPS = 40e9  # a second, or several where numpy was built without a good BLAS


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of that name; numpy itself knows no bfloat16."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0
) -> Array:
    """Normally distributed numbers."""
    numbers: Array = rng.standard_normal(shape, dtype=np.float32)
    numbers *= np.float32(scale)
    return numbers if dtype == "float32" else numbers.astype(numpy_dtype(dtype))


def relative_error(got: Array, expected: Array) -> float:
    """RMS of the differences, relative to the RMS of what is right. NaN when `got` holds one.

    >>> relative_error(np.array([1.0, 2.2]), np.array([1.0, 2.0])) < 0.1
    True
    """
    right = reference.forward.float64(expected)
    off = reference.forward.float64(got) - right
    return float(np.sqrt(np.mean(off * off)) / np.sqrt(np.mean(right * right)))


def spread(count: int) -> Array:
    """Up to SAMPLED indices of `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, SAMPLED).round().astype(np.intp))


# ---- goals ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """At least `least` ... times the speed of the best of `peers`, or that share of a limit; or
    what `otherwise` says.

    of "call": at most so many seconds. "reading": at most so many times as long as reading the file
    takes. "memory": at most so many times the bytes of the weights, and BESIDE_WEIGHTS more.
    """

    least: float
    of: Literal["peers", "arithmetic", "read", "call", "reading", "memory"]
    peers: tuple[str, ...] = ()
    otherwise: "Goal | None" = None

    def __or__(self, otherwise: "Goal") -> "Goal":
        """
        >>> print(Goal(0.85, "arithmetic") | Goal(0.9, "read"))
        85% FMA or 90% read
        """
        return replace(self, otherwise=otherwise)

    @property
    def at_most(self) -> bool:
        """Whether `least` is the most."""
        return self.of in ("call", "reading", "memory")

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
            case "reading":
                return f"≤ {self.least:g}× reading"
            case "memory":
                return f"≤ {self.least:g}× weights + {BESIDE_WEIGHTS / 1e6:g} MB"
        return f"≤ {self.least * 1e6:g} µs"

    def amount(self, found: float) -> str:
        """A ratio or a share, as the goal speaks of it.

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

    @abstractmethod
    def smaller(self) -> Self:
        """The same work in a size that takes no time: for tests, and for a first look."""

    @property
    def tolerance(self) -> float:
        """The relative error from which on a result is another one, and not a rounding."""
        return TOLERANCE[self.dtype]

    def speed(self, seconds: float) -> float:
        """In what `counted_in` names."""
        return (self.flops if self.counted_in == "GFLOPS" else self.nbytes) / seconds / 1e9

    @property
    def intensity(self) -> float:
        """Floating-point operations a byte: few means bound by memory, many by arithmetic."""
        return self.flops / self.nbytes

    @property
    def itemsize(self) -> int:
        return numpy_dtype(self.dtype).itemsize

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


# ---- operations ----------------------------------------------------------------------------------


class Operation(Work):
    """Work of one function of ours, which other libraries have too.

    A subclass is all there is to say about it: sizes, flops and bytes, inputs, what is right, how
    each library does it, and the cases. The inputs come by name, as `inputs` gives them.
    """

    @classmethod
    @abstractmethod
    def cases(cls) -> Iterator[Case]:
        """The sizes that are measured."""

    @abstractmethod
    def with_ours(self, *arrays: Any, **inputs: Any) -> Way:
        """One call into an output that exists already."""

    @abstractmethod
    def with_torch(self, torch: Any, *arrays: Any, **inputs: Any) -> Iterator[Way]:
        """On tensors: fused operations, outputs in place where it can."""

    @abstractmethod
    def with_onnxruntime(self, *arrays: Any, **inputs: Any) -> Iterator[Graph]:
        """One fused operator, or two."""

    @abstractmethod
    def with_numpy(self, *arrays: Any, **inputs: Any) -> Array:
        """The obvious lines that one writes without a library for it, on float32."""

    @property
    def scratch(self) -> int:
        """Bytes of the largest array that the obvious lines make."""
        return self.nbytes

    def ours_besides(self, inputs: Inputs) -> dict[str, Way]:
        """Other calls of ours that are worth looking at, by the name that they get."""
        return {}

    def torch_besides(self, torch: Any, inputs: Inputs) -> dict[str, Way]:
        """Calls of PyTorch that one has to think of, by the name that they get."""
        return {}

    # How each library is asked, the same for all operations.

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        return [
            *self.ours(inputs),
            *self.torch(inputs),
            self.onnxruntime(inputs),
            self.numpy(inputs),
        ]

    def ours(self, inputs: Inputs) -> list[Contestant]:
        more = self.ours_besides(inputs).items()
        return [
            Contestant(OURS, (self.with_ours(**inputs),)),
            *(Contestant(name, (way,), peer=False) for name, way in more),
        ]

    def torch(self, inputs: Inputs) -> list[Contestant | Missing]:
        torch = optional("torch")
        if torch is None:
            return [Missing(TORCH, "PyTorch is not installed")]
        for name, array in inputs.items():
            if array.dtype.name != self.dtype:
                return [Missing(TORCH, f"takes no {array.dtype.name} {name} beside {self.dtype}")]
        tensors = {name: tensor(array) for name, array in inputs.items()}
        ways = tuple(torch_way(torch, way) for way in self.with_torch(torch, **tensors))
        more = self.torch_besides(torch, tensors).items()
        return [
            Contestant(TORCH, ways),
            *(Contestant(name, (torch_way(torch, way),), peer=False) for name, way in more),
        ]

    def onnxruntime(self, inputs: Inputs) -> Contestant | Missing:
        """Those of the operators that this onnxruntime has. Only float32: its CPU kernels for 16
        bits convert back and forth, or do not exist.
        """
        if optional("onnxruntime") is None:
            return Missing(ONNXRUNTIME, "onnxruntime is not installed")
        if optional("onnx") is None:
            return Missing(ONNXRUNTIME, "onnx (it makes the models) is not installed")
        if any(array.dtype != np.float32 for array in inputs.values()):
            return Missing(ONNXRUNTIME, "has no CPU kernels for 16 bits")
        found, refused = [], []
        for graph in self.with_onnxruntime(**inputs):
            try:
                found.append(graph.way(get_num_threads()))
            except Exception as error:  # of classes of its own, which say nothing better
                refused.append(str(error).strip().splitlines()[0])
        if not found:
            return Missing(ONNXRUNTIME, "; ".join(refused))
        return Contestant(ONNXRUNTIME, tuple(found))

    def numpy(self, inputs: Inputs) -> Contestant | Missing:
        """The naive computation, left out where it would take long or fill the memory.

        16-bit numbers are computed in float32 and rounded at the end, because numpy has no kernels
        for them that anybody would wait for.
        """
        if self.scratch > LARGEST_NAIVE or self.flops > MOST_NAIVE_FLOPS:
            return Missing(NUMPY, "too large for the naive way")
        dtype = next(iter(inputs.values())).dtype

        def call() -> Array:  # no copy of what is float32 already
            wide = {name: np.asarray(array, np.float32) for name, array in inputs.items()}
            return self.with_numpy(**wide).astype(dtype, copy=False)

        return Contestant(NUMPY, (Way("naive", call),), peer=False)
