"""The tensors of a GGUF file in the types that they get: a few rows at a time in memory, and what
rounding them costs."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from simdformer.checkpoints.gguf_export import Source
from simdformer.checkpoints.gguf_file import FLOATS
from simdformer.checkpoints.gguf_mixtures import MIXTURES, type_of
from simdformer.checkpoints.gguf_writer import NewTensor
from simdformer.functional import quantize
from simdformer.models.tensors import AnyTensor, JoinedTensor, LazyTensor, Quantized, kind_of
from simdformer.quantization.types import quantization_types
from simdformer.quantization.weight import QuantizedWeight
from simdformer.types import Array

__all__ = ["Losses", "as_they_are", "in_mixture"]

AT_ONCE = 1 << 22  # numbers that are in memory as floats
FLOAT_TYPES = dict(zip(("f32", "f16", "bf16"), FLOATS.values(), strict=True))
TYPES = {str(dtype): name for name, dtype in FLOAT_TYPES.items()}  # of numbers that are no blocks
MXFP4 = "mxfp4"


class Losses:
    """What rounding costs, by kind of tensor (attn_q, ffn_down, ...): the types that it got, and
    the relative RMS error of all of them together."""

    def __init__(self) -> None:
        self.types: dict[str, list[str]] = {}
        self.squares: dict[str, tuple[float, float]] = {}  # of what is missed, and of all there was

    def add(self, name: str, type: str, missed: float, all: float) -> None:
        kind = kind_of_name(name)
        types = self.types.setdefault(kind, [])
        if type not in types:
            types.append(type)
        before = self.squares.get(kind, (0.0, 0.0))
        self.squares[kind] = before[0] + missed, before[1] + all

    def error(self, kind: str) -> float:
        missed, all = self.squares[kind]
        return float(np.sqrt(missed / all)) if all > 0 else 0.0


def in_mixture(
    source: Source, mixture: str, losses: Losses, advance: Callable[[int], None]
) -> list[NewTensor]:
    """The tensors as they will be written; `advance` is told the bytes that were read. Experts that
    were trained in MXFP4 stay in it: there is nothing to gain from other blocks."""
    last = "token_embd" if source.tied else "output"
    made = []
    for name, tensor in source.tensors.items():
        type = type_of(
            MIXTURES[mixture],
            name,
            tensor.shape,
            layers=source.layers,
            experts=source.experts,
            is_last=name == f"{last}.weight",
        )
        if "_exps." in name and all(kind_of(part) == MXFP4 for part in tensor.parts):
            type = MXFP4
        pieces = partial(pieces_of, name, tensor, type, losses, advance)
        made.append(NewTensor(name, tensor.shape, type, pieces))
    return made


def as_they_are(source: Source) -> list[NewTensor]:
    """The tensors in the types that they have, vectors in float32."""
    made = []
    for name, tensor in source.tensors.items():
        type = own_type(tensor.parts[0]) if len(tensor.shape) > 1 else "f32"
        pieces = partial(pieces_of, name, tensor, type, Losses(), lambda nbytes: None)
        made.append(NewTensor(name, tensor.shape, type, pieces))
    return made


def own_type(tensor: AnyTensor) -> str:
    """What it is in a file: "bf16", "q4_k"."""
    return TYPES.get(kind_of(tensor), kind_of(tensor))


def pieces_of(
    name: str, tensor: JoinedTensor, type: str, losses: Losses, advance: Callable[[int], None]
) -> Iterator[Array]:
    """The bytes of a tensor in a type, some rows at a time. What is of that type stays as it is."""
    for part in tensor.parts:
        for rows in some_rows(part):
            missed = size = 0.0
            if own_type(rows) == type:
                in_blocks = isinstance(rows, Quantized)
                yield rows.blocks() if in_blocks else np.asarray(rows)
            else:
                values = values_of(rows)
                blocks, error = encoded(values, type)
                size = float(np.vdot(values, values))
                missed = error * error * size
                yield blocks
            if len(tensor.shape) > 1 and not name.endswith(".bias"):
                losses.add(name, type, missed, size)
            advance(rows.nbytes)


def values_of(rows: Any) -> Array:
    """Rows (..., I) as floats (O, I)."""
    values = rows.dequantize() if isinstance(rows, QuantizedWeight) else rows
    return np.asarray(values, np.float32).reshape(-1, rows.shape[-1])


def encoded(values: Array, type: str) -> tuple[Array, float]:
    """The bytes of floats (O, I) in a type, and the relative RMS error that rounding makes."""
    if type in quantization_types():
        made = quantize(values, type)
        return made.blocks(), made.error or 0.0
    rounded = values.astype(FLOAT_TYPES[type])
    size = float(np.vdot(values, values))
    missed = rounded.astype(np.float32) - values
    return rounded, float(np.sqrt(np.vdot(missed, missed) / size)) if size > 0 else 0.0


def some_rows(tensor: Any) -> Iterator[Any]:
    """Rows of a tensor, so many that they fit into memory as floats; whole where it cannot be read
    in parts."""
    if not isinstance(tensor, LazyTensor) or not tensor.by_rows or tensor.ndim == 1:
        yield tensor
        return
    step = max(1, AT_ONCE // (tensor.size // len(tensor)))
    for start in range(0, len(tensor), step):
        yield tensor.rows(start, start + step)


def kind_of_name(name: str) -> str:
    """What a tensor is, whatever its layer: "blk.3.attn_q.weight" -> "attn_q"."""
    return name.split(".")[-2] if "." in name else name
