"""The experts of a layer that a file keeps in one tensor: taken apart, without reading them, and
put together again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simdformer.checkpoints.error import misfit
from simdformer.checkpoints.stored_tensor import StoredTensor
from simdformer.models.config import ModelConfig
from simdformer.models.tensors import QuantizedTensor
from simdformer.types import Array

__all__ = ["JOINED", "STACKED", "MXFP4Tensor", "join_stacked", "split_stacked"]

MXFP4, BLOCK = "mxfp4", 32  # numbers under one scale


@dataclass(frozen=True, slots=True)
class MXFP4Tensor(QuantizedTensor):
    """A matrix in the MXFP4 of gpt-oss: bytes (O, I/32, 16) of two numbers each, which follow each
    other, and for 32 of them an exponent in `scales` (O, I/32)."""

    bytes: StoredTensor
    scales: StoredTensor

    type = MXFP4
    by_rows = True

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.bytes, self.scales

    @property
    def shape(self) -> tuple[int, int]:
        return self.bytes.shape[0], self.bytes.shape[1] * BLOCK

    def rows(self, start: int, stop: int) -> "MXFP4Tensor":
        return MXFP4Tensor(self.bytes.rows(start, stop), self.scales.rows(start, stop))

    def columns(self, start: int, stop: int) -> "MXFP4Tensor":
        first, last = start // BLOCK, stop // BLOCK
        return MXFP4Tensor(self.bytes.columns(first, last), self.scales.columns(first, last))

    def blocks(self) -> Array:
        """The first half of 32 numbers goes to the low bits of the bytes, the second half to the
        high ones, with the scale in front."""
        pairs = np.asarray(self.bytes)
        numbers = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:2], BLOCK)
        half = numbers[..., : BLOCK // 2] | numbers[..., BLOCK // 2 :] << 4
        whole = np.concatenate([np.asarray(self.scales)[..., None], half], axis=-1)
        blocks: Array = whole.reshape(len(pairs), -1)
        return blocks


Parts = Callable[[StoredTensor], dict[str, StoredTensor]]
SCALES = "_scales"


def alone(kind: str) -> Parts:
    return lambda one: {kind: one}


def by_turns(gate: str, up: str) -> Parts:
    """Rows of gate and of up by turns."""
    return lambda one: {gate: every_second(one, 0), up: every_second(one, 1)}


def every_second(tensor: StoredTensor, first: int) -> StoredTensor:
    """The rows first, first + 2, ..."""
    step, *others = tensor.strides
    return replace(
        tensor,
        offset=tensor.offset + first * step * tensor.dtype.itemsize,
        shape=((tensor.shape[0] - first + 1) // 2, *tensor.shape[1:]),
        strides=(2 * step, *others),
    )


# What a tensor of all experts is called here: how many axes it has, our parts of an expert, and how
# they are had from its piece of the tensor.
STACKED: dict[str, tuple[int, tuple[str, ...], Parts]] = {
    "gate": (3, ("gate",), alone("gate")),
    "up": (3, ("up",), alone("up")),
    "down": (3, ("down",), alone("down")),
    "gate_bias": (2, ("gate_bias",), alone("gate_bias")),
    "up_bias": (2, ("up_bias",), alone("up_bias")),
    "down_bias": (2, ("down_bias",), alone("down_bias")),
    "gate_up_columns": (3, ("gate", "up"), lambda one: by_turns("gate", "up")(one.T)),
    "gate_up_bias": (2, ("gate_bias", "up_bias"), by_turns("gate_bias", "up_bias")),
    "gate_up_blocks": (4, ("gate", "up"), by_turns("gate", "up")),
    "gate_up_scales": (3, (), by_turns("gate_scales", "up_scales")),
    "down_columns": (3, ("down",), lambda one: {"down": one.T}),
    "down_blocks": (4, ("down",), alone("down")),
    "down_scales": (3, (), alone("down_scales")),
}


def rows_by_turns(gate: Array, up: Array) -> Array:
    rows: Array = np.stack([gate, up], axis=1).reshape(-1, *gate.shape[1:])
    return rows


# The piece of an expert in such a tensor, of its parts in the order of STACKED.
JOINED: dict[str, Callable[..., Array]] = {
    "gate_up_columns": lambda gate, up: rows_by_turns(gate, up).T,
    "gate_up_bias": rows_by_turns,
    "down_columns": lambda down: down.T,
    "down_bias": lambda down: down,
}


def join_stacked(kind: str, weights: Mapping[str, Array]) -> Array:
    """The tensor `kind` of all experts of a layer, from our weights of each."""
    layer = next(iter(weights)).partition(".experts.")[0]
    _, parts, _ = STACKED[kind]
    pieces = [
        JOINED[kind](*(weights[f"{layer}.experts.{number}.{part}"] for part in parts))
        for number in range(len(weights) // len(parts))
    ]
    return np.stack(pieces)


def split_stacked(weights: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The weights under our names, each expert by itself."""
    split: dict[str, Any] = {}
    scales: dict[str, StoredTensor] = {}
    for name, tensor in weights.items():
        layer, _, kind = name.partition(".experts.")
        if kind not in STACKED:
            split[name] = tensor
            if name.endswith(".shared.router") and len(tensor.shape) == 1:  # a vector for its row
                split[name] = tensor.as_row()
            continue
        axes, _, parts = STACKED[kind]
        if len(tensor.shape) != axes or tensor.shape[0] != config.num_experts:
            raise misfit(
                tensor,
                f"shape {tensor.shape}",
                f"{axes} axes, the first of them {config.num_experts} experts long",
            )
        for number in range(config.num_experts):
            for part, one in parts(tensor.entry(number)).items():
                held = scales if part.endswith(SCALES) else split
                held[f"{layer}.experts.{number}.{part.removesuffix(SCALES)}"] = one
    for name, exponents in scales.items():
        if name in split:
            split[name] = mxfp4(split[name], exponents)
    return split


def mxfp4(blocks: StoredTensor, scales: StoredTensor) -> MXFP4Tensor:
    """A matrix of both, which must belong together."""
    for tensor, shape in ((blocks, (*scales.shape, BLOCK // 2)), (scales, scales.shape)):
        if tensor.shape != shape or tensor.dtype != np.uint8:
            what = f"{tensor.dtype} {tensor.shape} of an expert beside scales {scales.shape}"
            raise misfit(tensor, what, f"uint8 {shape}")
    return MXFP4Tensor(blocks, scales)
