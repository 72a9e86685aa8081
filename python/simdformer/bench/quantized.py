"""linear on quantised weights: beside our own in float32, and onnxruntime's MatMulNBits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np

import simdformer as sf
from simdformer.bench.contestants import (
    MICROSOFT,
    ONNXRUNTIME,
    TORCH,
    Contestant,
    Graph,
    Missing,
    Way,
)
from simdformer.bench.layers import MatrixProduct
from simdformer.bench.work import AT_THE_LIMIT, Case, Inputs, numpy_dtype, times
from simdformer.types import Array

__all__ = ["QuantizedLinear"]

FLOATS = "float32"  # ours, on the packed values
OF_ONNXRUNTIME = "q4_0"  # the one type that it has too


@dataclass(frozen=True, kw_only=True)
class QuantizedLinear(MatrixProduct):
    """x (rows, width_in) times the values of a weight (width_out, width_in) of a quantised type.

    >>> QuantizedLinear(rows=1).nbytes / (4096 * 14336)  # 4.5 bits a weight, and a little
    0.5637555803571429
    """

    type: str = "q4_0"

    @classmethod
    def cases(cls) -> Iterator[Case]:
        for name in ("q8_0", "q6_k", "q4_k", "q4_0"):
            peers = (TORCH, ONNXRUNTIME) if name == OF_ONNXRUNTIME else (TORCH,)
            for rows in (1, 4, 16, 512):
                goals = (times(1.0, *peers), AT_THE_LIMIT)
                yield Case(f"linear/{name}/m{rows}", cls(rows=rows, type=name), goals)

    @property
    def nbytes(self) -> int:
        kind = sf.quantization_types()[self.type]
        weight = self.width_in * self.width_out // kind.block * kind.nbytes
        return weight + self.rows * (self.width_in + self.width_out) * self.itemsize

    @property
    def scratch(self) -> int:
        """The weight in float32."""
        return 4 * self.width_in * self.width_out

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """x (rows, width_in), weight (width_out, width_in): the values of a quantised one."""
        weight = some_weight(self.type, self.width_out, self.width_in)
        return {"x": self.normal(rng, self.rows, self.width_in), "weight": weight.dequantize()}

    def smaller(self) -> Self:
        return replace(self, rows=min(self.rows, 40), width_in=256, width_out=88)

    def with_ours(self, x: Array, weight: Array) -> Way:
        quantised = some_weight(self.type, self.width_out, self.width_in)
        out = np.empty((self.rows, self.width_out), numpy_dtype(self.dtype))
        return Way("linear, quantised", lambda: sf.linear(x, quantised, out=out))

    def ours_besides(self, inputs: Inputs) -> dict[str, Way]:
        """The exact arithmetic, and what floats would cost."""
        x, packed = inputs["x"], sf.pack(inputs["weight"])
        quantised = some_weight(self.type, self.width_out, self.width_in)
        out = np.empty((self.rows, self.width_out), x.dtype)
        return {
            FLOATS: Way("linear, packed", lambda: sf.linear(x, packed, out=out)),
            "exact x": Way(
                "linear, quantised, float32",
                lambda: sf.linear(x, quantised, arithmetic="float32", out=out),
            ),
        }

    def with_torch(self, torch: Any, x: Any, weight: Any) -> Iterator[Way]:
        """It knows none of these types: the same product in float32."""
        linear = torch.nn.functional.linear
        yield Way("F.linear, float32", lambda: linear(x, weight))

    def onnxruntime(self, inputs: Inputs) -> Contestant | Missing:
        if self.type != OF_ONNXRUNTIME:
            return Missing(ONNXRUNTIME, f"has no {self.type}")
        return super().onnxruntime(inputs)

    def with_onnxruntime(self, x: Array, weight: Array) -> Iterator[Graph]:
        """Four bits with a scale for 32 are q4_0; it takes x as float32, as ours with exact x."""
        quantised = some_weight(self.type, self.width_out, self.width_in)
        codes = (quantised.codes.view(np.uint8) + np.uint8(8)).reshape(self.width_out, -1, 32)
        sizes = {"K": self.width_in, "N": self.width_out, "bits": 4, "block_size": 32}
        attributes = sizes | {"accuracy_level": 1, "domain": MICROSOFT}
        yield Graph(
            nodes=[("MatMulNBits", ["x", "codes", "scales"], ["out"], attributes)],
            inputs={"x": x},
            constants={
                "codes": codes[..., 0::2] | codes[..., 1::2] << 4,
                "scales": quantised.scales.reshape(-1),
            },
            out=(self.rows, self.width_out),
        )

    def with_numpy(self, x: Array, weight: Array) -> Array:
        return x @ weight.T


@cache
def some_weight(type: str, outputs: int, inputs: int) -> sf.QuantizedWeight:
    """Rows repeat after some hundreds: making a weight should not outlast the measuring."""
    rng = np.random.default_rng(outputs + inputs)
    rows = rng.standard_normal((min(outputs, 256), inputs), dtype=np.float32)
    blocks = sf.quantize(rows * np.float32(inputs**-0.5), type).blocks()
    return sf.QuantizedWeight.from_blocks(
        np.resize(blocks, (outputs, blocks.shape[1])), type, (outputs, inputs)
    )
