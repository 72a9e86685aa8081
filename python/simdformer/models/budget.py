"""Where the parameters of a model are, and the memory that it will take."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from simdformer.functional import QuantizedWeight
from simdformer.models.config import ModelConfig
from simdformer.models.tensors import AnyTensor, Quantized, kind_of
from simdformer.models.weight_table import weight_rows
from simdformer.models.weights import Weights, weight_shapes

__all__ = [
    "active_parameters",
    "cache_bytes",
    "decode_bytes",
    "kinds_by_part",
    "parameter_budget",
    "weight_bytes",
]

FLOAT32 = 4
PANEL = 16  # `simdformer.pack` rounds a matrix up to so many rows
PARTS = ("embedding", "attention", "mlp", "norms", "lm_head")


def parameter_budget(config: ModelConfig) -> dict[str, int]:
    """How many parameters each part has: embedding, attention, mlp, norms, lm_head (0 when it is
    the embedding), and experts where there are some. They add up to all that the model has.

    >>> from simdformer.models import ModelConfig
    >>> parameter_budget(ModelConfig(
    ...     hidden_size=4096, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128,
    ...     intermediate_size=12288, vocab_size=151936, max_seq_len=40960, norm_eps=1e-6,
    ...     rope_theta=1e6, rope_layout="half", tie_embeddings=False, qk_norm=True)) # Qwen3-8B
    {'embedding': 622329856, 'attention': 1509949440, 'mlp': 5435817984, 'norms': 308224,
     'lm_head': 622329856}
    """
    budget, shapes = dict.fromkeys(PARTS, 0), weight_shapes(config)
    for name, row in weight_rows(config).items():
        budget[row.part] = budget.get(row.part, 0) + math.prod(shapes[name])
    return budget


def active_parameters(config: ModelConfig) -> int:
    """How many of them a token goes through: of the experts those that it chooses."""
    budget = parameter_budget(config)
    experts = budget.pop("experts", 0)
    active = experts * config.num_experts_per_tok // max(config.num_experts, 1)
    return sum(budget.values()) + active


def kinds_by_part(config: ModelConfig, weights: Mapping[str, AnyTensor]) -> dict[str, list[str]]:
    """What the matrices and vectors of each part are held in: dtypes, and quantised types."""
    kinds: dict[str, set[str]] = {}
    for name, row in weight_rows(config).items():
        kinds.setdefault(row.part, set()).add(kind_of(weights[name]))
    return {part: sorted(found) for part, found in kinds.items()}


def weight_bytes(
    config: ModelConfig, weights: Mapping[str, AnyTensor], itemsize: int | None
) -> int:
    """What the weights take in memory once they are packed: `itemsize` bytes each, or as they are
    where it is None."""
    total, rows = 0, weight_rows(config)
    for name, shape in weight_shapes(config).items():
        tensor, row = weights[name], rows[name]
        if row.is_matrix and itemsize is None and isinstance(tensor, Quantized):
            total += tensor.nbytes if isinstance(tensor, QuantizedWeight) else tensor.packed_nbytes
            continue
        size = itemsize or tensor.dtype.itemsize
        if config.norm_offset and row.is_norm:
            size = max(size, FLOAT32)  # the sum is not rounded
        height = -(-shape[0] // PANEL) * PANEL if row.is_matrix else shape[0]
        total += math.prod((height, *shape[1:])) * size
    return total


def cache_bytes(config: ModelConfig, positions: int, itemsize: int) -> int:
    """What a KV cache for so many positions takes."""
    heads = 2 * config.num_layers * config.num_kv_heads
    return heads * positions * config.head_dim * itemsize


def decode_bytes(config: ModelConfig, weights: Weights, position: int, itemsize: int) -> int:
    """What is read to choose the id behind `position` others: every weight once, of the embedding
    one row, and the keys and values that are in sight."""
    embed = weights.embed
    plain = 8 * embed.dtype.itemsize
    bits = embed.bits_per_weight if isinstance(embed, QuantizedWeight) else plain
    total = int(config.hidden_size * bits / 8) + weights.final_norm.nbytes + weights.lm_head.nbytes
    if weights.pos_embed is not None:
        total += weights.pos_embed[:1].nbytes
    if weights.final_norm_bias is not None:
        total += weights.final_norm_bias.nbytes
    for index, layer in enumerate(weights.layers):
        total += read_of(config, layer)
        in_sight = min(position, config.window(index) or position)
        total += 2 * config.num_kv_heads * in_sight * config.head_dim * itemsize
    return total


def read_of(config: ModelConfig, weights: Any) -> int:
    """The bytes of a part of the weights; of experts those of as many as a token goes through."""
    total = 0
    for name, part in ((field.name, getattr(weights, field.name)) for field in fields(weights)):
        arrays = part if isinstance(part, list) else [] if part is None else [part]
        size = sum(a.nbytes if hasattr(a, "nbytes") else read_of(config, a) for a in arrays)
        total += size * config.num_experts_per_tok // len(arrays) if name == "experts" else size
    return total
