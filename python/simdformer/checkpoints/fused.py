"""Tensors that some formats keep in one: their rows stand below each other."""

from collections.abc import Mapping
from typing import Any

from simdformer.models.config import ModelConfig
from simdformer.models.tensors import LazyTensor

__all__ = ["FUSED", "split_fused"]

FUSED = {
    "wq_wk_wv": ("wq", "wk", "wv"),
    "bq_bk_bv": ("bq", "bk", "bv"),
    "gate_up": ("gate", "up"),
}


def split_fused(weights: Mapping[str, LazyTensor], config: ModelConfig) -> dict[str, Any]:
    """The weights under our names, each by itself."""
    rows = dict.fromkeys(("wq", "bq"), config.num_heads * config.head_dim)
    rows |= dict.fromkeys(("wk", "bk"), config.num_kv_heads * config.head_dim)
    rows["gate"] = config.intermediate_size
    split: dict[str, Any] = {}
    for name, tensor in weights.items():
        layer, _, kind = name.rpartition(".")
        start, parts = 0, FUSED.get(kind, ())
        if not parts or not tensor.shape:
            split[name] = tensor
            continue
        for part in parts[:-1]:
            split[f"{layer}.{part}"] = tensor.rows(start, start + rows[part])
            start += rows[part]
        split[f"{layer}.{parts[-1]}"] = tensor.rows(start, len(tensor))  # whose shape is checked
    return split
