"""Which type each tensor of a GGUF file gets: the mixtures that llama.cpp's files are known by.

A mixture has one type for most matrices and more bits for those that errors hurt most: the last
matrix, in half of the layers attn_v and ffn_down, and the small ones beside eight experts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simdformer.quantization.types import quantization_types

__all__ = ["MIXTURES", "Mixture", "type_of"]

SomeLayers = Callable[[int, int], bool]  # (layer, number of layers)


def important(layer: int, layers: int) -> bool:
    """The first and the last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def first_four(layer: int, layers: int) -> bool:
    return layer < 4


def first_eighth(layer: int, layers: int) -> bool:
    return layer < layers // 8


def everywhere(layer: int, layers: int) -> bool:
    return True


def more_bits(fused: str) -> Mapping[str, tuple[str, SomeLayers]]:
    """Those of ..._m; `fused` is the type of wq, wk and wv in one tensor."""
    some = ("q6_k", important)
    return {"attn_v": some, "ffn_down": some, "attn_qkv": (fused, everywhere)}


@dataclass(frozen=True)
class Mixture:
    """file_type : general.file_type in the file
    most : the type of most matrices
    last : that of the last matrix, be it the embedding or not
    better : kind of tensor -> (its type, in which layers)
    beside_experts : that of what are no experts, where there are some; None: no other
    """

    file_type: int
    most: str
    last: str
    better: Mapping[str, tuple[str, SomeLayers]] = field(default_factory=dict)
    beside_experts: str | None = None


MIXTURES = {
    "f16": Mixture(1, "f16", "f16"),
    "bf16": Mixture(32, "bf16", "bf16"),
    "q8_0": Mixture(7, "q8_0", "q8_0"),
    "q6_k": Mixture(18, "q6_k", "q6_k"),
    "q5_k_m": Mixture(17, "q5_k", "q6_k", more_bits("q6_k")),
    "q5_k_s": Mixture(16, "q5_k", "q6_k"),
    "q5_1": Mixture(9, "q5_1", "q6_k"),
    "q5_0": Mixture(8, "q5_0", "q6_k"),
    "q4_k_m": Mixture(15, "q4_k", "q6_k", more_bits("q5_k")),
    "q4_k_s": Mixture(
        14, "q4_k", "q6_k", {"attn_v": ("q5_k", first_four), "ffn_down": ("q5_k", first_eighth)}
    ),
    "q4_1": Mixture(3, "q4_1", "q6_k"),
    "q4_0": Mixture(2, "q4_0", "q6_k"),
    "mxfp4": Mixture(38, "mxfp4", "q8_0", beside_experts="q8_0"),
}
# Beside as many experts as Mixtral's these are a small part of all weights.
EIGHT = 8
BESIDE_EIGHT = {"attn_k": "q8_0", "attn_v": "q8_0"}
EXACT = ("position_embd", "ffn_gate_inp")  # positions, and what chooses experts
# For rows that blocks of 256 do not divide; and where those of 32 do not either, f16.
FALLBACK = {"q6_k": "q8_0", "q5_k": "q5_1", "q4_k": "q5_0"}


def type_of(
    mixture: Mixture,
    name: str,
    shape: tuple[int, ...],
    *,
    layers: int,
    experts: int = 0,
    is_last: bool,
) -> str:
    """The type of one tensor: "blk.3.attn_v.weight" (O, I) -> "q6_k". Vectors, positions, and what
    chooses experts, stay float32; the experts' matrices are as those of an MLP.

    >>> type_of(MIXTURES["q4_k_m"], "blk.0.attn_v.weight", (256, 512), layers=16, is_last=False)
    'q6_k'
    >>> type_of(MIXTURES["q4_k_m"], "blk.0.attn_q.weight", (256, 96), layers=16, is_last=False)
    'q5_0'
    """
    part = name.split(".")
    tensor = part[-2] if len(part) > 1 else name
    kind = tensor.removesuffix("_exps")
    is_matrix = len(shape) > 1 and part[-1] == "weight" and not kind.endswith("_norm")
    if not is_matrix or kind.startswith(EXACT):
        return "f32"
    type = mixture.last if is_last else mixture.most
    if experts and mixture.beside_experts and kind == tensor:
        type = mixture.beside_experts
    if kind in mixture.better and part[0] == "blk":
        better, there = mixture.better[kind]
        type = better if there(int(part[1]), layers) else type
    if experts == EIGHT and type in quantization_types():
        type = BESIDE_EIGHT.get(kind, type)
    return fitting(type, shape[-1])


def fitting(type: str, width: int) -> str:
    """The type, or the one that stands in for it where blocks do not divide rows of that width."""
    types = quantization_types()
    while type in types and width % types[type].block:
        type = FALLBACK.get(type, "f16")
    return type
