"""What the layers of `simdformer.nn` ask of their weights and inputs, each once."""

from typing import Any, Literal

from simdformer.arguments import as_array, is_whole, shown
from simdformer.functional import PackedWeight, QuantizedWeight, linear
from simdformer.types import Array, ArrayLike

__all__ = [
    "Mask",
    "Weight",
    "check_heads",
    "check_input",
    "check_shape",
    "each_of",
    "linear_of",
    "mask_of",
    "shape_of",
    "two_axes",
]

Weight = ArrayLike | PackedWeight | QuantizedWeight
Mask = ArrayLike | Literal["causal"] | None


def linear_of(x: ArrayLike, weight: Any, bias: ArrayLike | None = None) -> Array:
    """linear with one weight, which may be a list of rows here as everywhere else."""
    many = isinstance(weight, list | tuple)
    return linear(x, as_array("linear", "weight", weight) if many else weight, bias)


def each_of(layer: str, name: str, weights: Any, count: int) -> list[Any]:
    """The weights of `count` experts, of a list or along the first axis of an array."""
    stacked = not isinstance(weights, list | tuple)
    each = list(as_array(layer, name, weights) if stacked else weights)
    if len(each) != count:
        raise ValueError(
            f"{layer}: {name} holds {len(each)} weights, needs {count}, one for each row of router"
        )
    return [as_array(layer, name, one) if isinstance(one, list | tuple) else one for one in each]


def mask_of(layer: str, mask: Mask) -> dict[str, Any]:
    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(f'{layer}: mask is {shown(mask)}, needs "causal", an array or None')
        return {"is_causal": True}
    return {"attn_mask": mask}


def shape_of(weight: Any, layer: str = "nn", name: str = "weight") -> tuple[int, ...]:
    shape = getattr(weight, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) else as_array(layer, name, weight).shape


def two_axes(layer: str, name: str, weight: Weight) -> tuple[int, int]:
    shape = shape_of(weight, layer, name)
    if len(shape) != 2:
        raise ValueError(f"{layer}: {name} has shape {shape}, needs two axes")
    return shape[0], shape[1]


def check_shape(
    layer: str, name: str, weight: Weight, needed: tuple[int, int], letters: str
) -> None:
    if (shape := shape_of(weight, layer, name)) != needed:
        raise ValueError(f"{layer}: {name} has shape {shape}, needs {needed}, {letters}")


def check_input(layer: str, name: str, x: ArrayLike, axes: str, width: int) -> None:
    """axes: "(..., L, {})" or "(..., {})", the width of the last one left open."""
    shape = shape_of(x, layer, name)
    if len(shape) < axes.count(",") or shape[-1] != width:
        raise ValueError(f"{layer}: {name} has shape {shape}, needs {axes.format(width)}")


def check_heads(layer: str, heads: int, name: str, size: int) -> None:
    for number in (heads, size):
        if not is_whole(number, least=-(1 << 63)):
            raise TypeError(f"{layer}: {shown(number)} among its sizes, needs whole numbers")
    if heads < 1 or size < 1 or size % heads:
        raise ValueError(
            f"{layer}: {shown(heads)} heads do not divide {name} = {shown(size)}, needs a divisor"
        )
