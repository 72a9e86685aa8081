"""The operations on rows of numbers: the linear layer, RMSNorm, softmax and SwiGLU."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from simdformer import functional as sf
from simdformer import reference
from simdformer.bench.contestants import MICROSOFT, Graph, Node, Way
from simdformer.bench.work import (
    AT_THE_LIMIT,
    Case,
    Dtype,
    Inputs,
    Operation,
    Unit,
    numpy_dtype,
    random_array,
    spread,
)
from simdformer.types import Array

__all__ = ["EPS", "Linear", "MatrixProduct", "RMSNorm", "Softmax", "SwiGLU"]

EPS = 1e-6  # of the norm


@dataclass(frozen=True, kw_only=True)
class MatrixProduct(Operation):
    """x (rows, width_in) times weightᵀ (width_out, width_in), whatever the weight is stored as."""

    operation: ClassVar[str] = "linear"
    rows: int
    width_in: int = 4096
    width_out: int = 14336

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.width_in * self.width_out

    @property
    def counted_in(self) -> Unit:
        return "GB/s" if self.rows == 1 else "GFLOPS"

    def sample(self, result: Array) -> Array:
        return result[spread(self.rows)[:, None], spread(self.width_out)]

    def expected(self, inputs: Inputs) -> Array:
        rows, columns = spread(self.rows), spread(self.width_out)
        return reference.forward.float64(
            reference.linear(inputs["x"][rows], inputs["weight"][columns])
        )


@dataclass(frozen=True, kw_only=True)
class Linear(MatrixProduct):
    """x (rows, width_in) times weightᵀ (width_out, width_in). `packed`: ours is packed before.

    >>> Linear(rows=1).intensity < 1, Linear(rows=512).intensity > 100
    (True, True)
    """

    weight_dtype: Dtype = "float32"
    packed: bool = True

    @classmethod
    def cases(cls) -> Iterator[Case]:
        dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
        for dtype in dtypes:
            for rows in (1, 4, 16, 64, 512):
                work = cls(rows=rows, dtype=dtype, weight_dtype=dtype)
                yield Case(f"linear/{dtype}/m{rows}", work)
        narrow: tuple[Dtype, ...] = ("bfloat16", "float16")  # as models keep them beside float32
        for weight_dtype in narrow:
            for rows in (1, 16, 512):
                work = cls(rows=rows, weight_dtype=weight_dtype)
                yield Case(f"linear/{weight_dtype}-weight/m{rows}", work, (AT_THE_LIMIT,))
        for rows in (1, 16, 512):
            yield Case(f"linear/not-packed/m{rows}", cls(rows=rows, packed=False))

    @property
    def nbytes(self) -> int:
        weight = self.width_in * self.width_out * numpy_dtype(self.weight_dtype).itemsize
        return weight + self.rows * (self.width_in + self.width_out) * self.itemsize

    @property
    def scratch(self) -> int:
        """The weight in float32, where it is not."""
        if self.weight_dtype == "float32":
            return super().scratch
        return 4 * self.width_in * self.width_out

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """x (rows, width_in), weight (width_out, width_in)"""
        shape = (self.width_out, self.width_in)
        return {
            "x": self.normal(rng, self.rows, self.width_in),
            "weight": random_array(rng, shape, self.weight_dtype, self.width_in**-0.5),
        }

    def smaller(self) -> Self:
        return replace(self, rows=min(self.rows, 40), width_in=72, width_out=88)

    def with_ours(self, x: Array, weight: Array) -> Way:
        out = np.empty((self.rows, self.width_out), x.dtype)
        if self.packed:
            packed = sf.pack(weight)
            return Way("linear, packed", lambda: sf.linear(x, packed, out=out))
        return Way("linear", lambda: sf.linear(x, weight, out=out))

    def with_torch(self, torch: Any, x: Any, weight: Any) -> Iterator[Way]:
        linear, transposed = torch.nn.functional.linear, weight.t()
        out = torch.empty(self.rows, self.width_out, dtype=x.dtype)
        yield Way("F.linear", lambda: linear(x, weight))
        yield Way("torch.mm, out", lambda: torch.mm(x, transposed, out=out))

    def with_onnxruntime(self, x: Array, weight: Array) -> Iterator[Graph]:
        """A constant weight is packed when the session is made."""
        yield Graph(
            nodes=[("MatMul", ["x", "weight"], ["out"], {})],
            inputs={"x": x},
            constants={"weight": np.ascontiguousarray(weight.T)},
            out=(self.rows, self.width_out),
        )

    def with_numpy(self, x: Array, weight: Array) -> Array:
        return x @ weight.T


@dataclass(frozen=True, kw_only=True)
class RowWise(Operation):
    """An operation that treats each of `rows` rows of `width` numbers alike."""

    counted_in: ClassVar[Unit] = "GB/s"
    rows: int
    width: int

    @property
    def nbytes(self) -> int:
        """One array is read, one is written."""
        return 2 * self.rows * self.width * self.itemsize

    def sample(self, result: Array) -> Array:
        return result[spread(self.rows)]

    @staticmethod
    @abstractmethod
    def exact(**inputs: Any) -> Array:
        """The result in float64."""

    def expected(self, inputs: Inputs) -> Array:
        rows = spread(self.rows)
        return self.exact(**{name: x[rows] if x.ndim > 1 else x for name, x in inputs.items()})

    def smaller(self) -> Self:
        return replace(self, rows=min(self.rows, 5), width=min(self.width, 72))


@dataclass(frozen=True, kw_only=True)
class RMSNorm(RowWise):
    """x / sqrt(mean(x²) + eps) · weight"""

    operation: ClassVar[str] = "RMSNorm"

    @classmethod
    def cases(cls) -> Iterator[Case]:
        for rows, width in ((1, 1024), (128, 1024), (2048, 4096)):
            yield Case(f"rms_norm/{rows}x{width}", cls(rows=rows, width=width))

    @property
    def flops(self) -> int:
        """Square and add, then two products; a root and a division a row."""
        return self.rows * (4 * self.width + 3)

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """x (rows, width), weight (width,)"""
        return {
            "x": self.normal(rng, self.rows, self.width),
            "weight": self.normal(rng, self.width),
        }

    @staticmethod
    def exact(**inputs: Any) -> Array:
        return reference.rms_norm(**inputs, eps=EPS)

    def with_ours(self, x: Array, weight: Array) -> Way:
        out = np.empty_like(x)
        return Way("rms_norm", lambda: sf.rms_norm(x, weight, eps=EPS, out=out))

    def with_torch(self, torch: Any, x: Any, weight: Any) -> Iterator[Way]:
        rms_norm, shape = torch.nn.functional.rms_norm, (self.width,)
        yield Way("F.rms_norm", lambda: rms_norm(x, shape, weight, EPS))

    def with_onnxruntime(self, x: Array, weight: Array) -> Iterator[Graph]:
        attributes = {"axis": -1, "epsilon": EPS}
        for operator in ("SimplifiedLayerNormalization", "RMSNormalization"):
            nodes: list[Node] = [(operator, ["x", "weight"], ["out"], attributes)]
            yield Graph(nodes=nodes, inputs={"x": x, "weight": weight}, out=x.shape)

    def with_numpy(self, x: Array, weight: Array) -> Array:
        y: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPS)) * weight
        return y


@dataclass(frozen=True, kw_only=True)
class Softmax(RowWise):
    """exp(x) / sum exp(x) along the rows"""

    operation: ClassVar[str] = "softmax"

    @classmethod
    def cases(cls) -> Iterator[Case]:
        for rows in (128, 4096):
            yield Case(f"softmax/{rows}x4096", cls(rows=rows, width=4096))

    @property
    def flops(self) -> int:
        """Maximum, difference, exp, sum, product."""
        return 5 * self.rows * self.width

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """x (rows, width)"""
        return {"x": self.normal(rng, self.rows, self.width, scale=3.0)}

    @staticmethod
    def exact(**inputs: Any) -> Array:
        return reference.softmax(**inputs)

    def with_ours(self, x: Array) -> Way:
        out = np.empty_like(x)
        return Way("softmax", lambda: sf.softmax(x, out=out))

    def with_torch(self, torch: Any, x: Any) -> Iterator[Way]:
        out = torch.empty_like(x)
        yield Way("torch.softmax, out", lambda: torch.softmax(x, -1, out=out))

    def with_onnxruntime(self, x: Array) -> Iterator[Graph]:
        yield Graph(nodes=[("Softmax", ["x"], ["out"], {"axis": -1})], inputs={"x": x}, out=x.shape)

    def with_numpy(self, x: Array) -> Array:
        e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
        weights: Array = e / e.sum(axis=-1, keepdims=True)
        return weights


@dataclass(frozen=True, kw_only=True)
class SwiGLU(RowWise):
    """silu(gate) · up"""

    operation: ClassVar[str] = "SwiGLU"

    @classmethod
    def cases(cls) -> Iterator[Case]:
        for rows in (1, 128, 2048):
            yield Case(f"swiglu/{rows}x11008", cls(rows=rows, width=11008))

    @property
    def flops(self) -> int:
        """exp, sum, division, two products."""
        return 5 * self.rows * self.width

    @property
    def nbytes(self) -> int:
        """Two arrays are read, one is written."""
        return 3 * self.rows * self.width * self.itemsize

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """gate and up (rows, width)"""
        return {name: self.normal(rng, self.rows, self.width) for name in ("gate", "up")}

    @staticmethod
    def exact(**inputs: Any) -> Array:
        return reference.swiglu(**inputs)

    def with_ours(self, gate: Array, up: Array) -> Way:
        out = np.empty_like(up)
        return Way("swiglu", lambda: sf.swiglu(gate, up, out=out))

    def with_torch(self, torch: Any, gate: Any, up: Any) -> Iterator[Way]:
        silu, silu_out = torch.nn.functional.silu, torch.ops.aten.silu.out
        act = torch.empty_like(gate)
        yield Way("F.silu(gate) * up", lambda: silu(gate) * up)
        yield Way("silu and mul, out", lambda: silu_out(gate, out=act).mul_(up))

    def with_onnxruntime(self, gate: Array, up: Array) -> Iterator[Graph]:
        silu = {"alpha": 1.0, "domain": MICROSOFT}
        yield Graph(
            nodes=[("QuickGelu", ["gate"], ["silu"], silu), ("Mul", ["silu", "up"], ["out"], {})],
            inputs={"gate": gate, "up": up},
            out=gate.shape,
        )

    def with_numpy(self, gate: Array, up: Array) -> Array:
        act: Array = gate / (1 + np.exp(-gate)) * up
        return act
