"""LoRA: a matrix stays as it is, and the product of two small ones is added to what it gives.

    y = W x + scale b (a x)          W (O,I), a (r,I), b (O,r)

Hu et al. 2021, arXiv:2106.09685. W may be quantised. Letters in shapes: r the rank of an adapter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from simdformer.functional import PackedWeight, QuantizedWeight, linear, pack
from simdformer.models.config import ModelConfig
from simdformer.models.packing import Matrix
from simdformer.models.weight_table import weight_rows
from simdformer.models.weights import LayerWeights, MLPWeights, Weights, weight_shapes
from simdformer.types import Array

__all__ = ["ADAPTABLE", "Adapted", "Adapter", "adapted", "check_adapters", "linear_of"]

# The matrices of a layer that may have an adapter, by their names within it.
ADAPTABLE = ("wq", "wk", "wv", "wo", "gate", "up", "down")


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """What is added to one matrix: a (r,I), b (O,r) and their scale, which is alpha / r."""

    a: Array
    b: Array
    scale: float

    @property
    def delta(self) -> Array:
        """scale b a (O,I), in float32"""
        product: Array = self.scale * (self.b.astype(np.float32) @ self.a.astype(np.float32))
        return product


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """A matrix with its adapter, packed; `up` has the scale in it."""

    matrix: Matrix
    adapter: Adapter
    down: PackedWeight  # (r,I)
    up: PackedWeight  # (O,r)

    @classmethod
    def of(cls, matrix: Matrix, adapter: Adapter) -> "Adapted":
        down, up = adapter.a, adapter.b * np.float32(adapter.scale)
        return cls(matrix, adapter, pack(down), pack(up))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + self.down.nbytes + self.up.nbytes

    def unpack(self) -> Array:
        """Both as one matrix (O,I), in float32."""
        found = self.matrix
        whole = found.dequantize() if isinstance(found, QuantizedWeight) else found.unpack()
        return whole.astype(np.float32) + self.adapter.delta


def linear_of(
    x: Array, weight: Any, bias: Any = None, *, arithmetic: Literal["int16", "float32"] = "int16"
) -> Any:
    """`linear`, of matrices some of which may have an adapter."""
    several = isinstance(weight, list)
    weights = weight if several else [weight]
    plain = [one.matrix if isinstance(one, Adapted) else one for one in weights]
    made = linear(x, plain if several else plain[0], bias, arithmetic=arithmetic)
    for y, one in zip(made if several else [made], weights, strict=True):
        if isinstance(one, Adapted):
            y += linear(linear(x, one.down), one.up)
    return made


def check_adapters(config: ModelConfig, adapters: Mapping[str, Adapter]) -> None:
    """ValueError: an adapter of what is no matrix of the model, or of another shape."""
    rows, shapes = weight_rows(config), weight_shapes(config)
    for name, adapter in adapters.items():
        if name not in rows or name.split(".")[2:] not in [[one] for one in ADAPTABLE]:
            raise ValueError(
                f"adapter: found one for {name}, needs matrices of the model's layers: "
                f"{', '.join(ADAPTABLE)}"
            )
        outputs, inputs = shapes[name]
        rank = len(adapter.a)
        found, needed = (adapter.a.shape, adapter.b.shape), ((rank, inputs), (outputs, rank))
        if found != needed:
            raise ValueError(f"adapter: {name} has matrices {found}, needs {needed}")


def adapted(weights: Weights, config: ModelConfig, adapters: Mapping[str, Adapter]) -> Weights:
    """The same weights, in the same memory, with adapters; those that they had go."""

    def of(at: str, name: str, matrix: Any) -> Any:
        matrix = matrix.matrix if isinstance(matrix, Adapted) else matrix
        adapter = adapters.get(at + name)
        return matrix if adapter is None else Adapted.of(matrix, adapter)

    def layer(index: int, found: LayerWeights) -> LayerWeights:
        at, mlp = f"layers.{index}.", found.mlp
        if isinstance(mlp, MLPWeights):
            inputs = ("gate", "up") if config.gated_mlp else ("up",)
            mlp = replace(
                mlp,
                gate_up=[of(at, *one) for one in zip(inputs, mlp.gate_up, strict=True)],
                down=of(at, "down", mlp.down),
            )
        qkv = zip(("wq", "wk", "wv"), found.wq_wk_wv, strict=True)
        return replace(
            found, wq_wk_wv=[of(at, *one) for one in qkv], wo=of(at, "wo", found.wo), mlp=mlp
        )

    layers = [layer(index, found) for index, found in enumerate(weights.layers)]
    return replace(weights, layers=layers)
