"""transformers' DynamicCache, grown in place: by itself it copies all keys for every new token.

Memory is taken for more positions than there are, and what a layer of the cache holds is a view of
its beginning. Only what has never been handed out is written: views that somebody has kept, from
before the cache was cropped for instance, stay what they are.
"""

from typing import Any

import numpy as np
from transformers.cache_utils import Cache, DynamicLayer

from simdformer.tensors.memory import array_of, tensor_of
from simdformer.types import Array

__all__ = ["with_new"]

LEAST = 64  # positions more than there are; or a quarter of them


class Room:
    """Memory for more positions than the `filled` ones, of keys or values."""

    def __init__(self, old: Array, new: Array) -> None:
        batch, heads, self.filled, width = old.shape
        length = self.filled + new.shape[2]
        self.memory = np.empty((batch, heads, length + max(length // 4, LEAST), width), old.dtype)
        self.memory[:, :, : self.filled] = old
        self.address = self.memory.ctypes.data

    def can_take(self, old: Any, new: Array) -> bool:
        """Whether the tensor `old` is all that was written here, and `new` fits behind it."""
        return (
            int(old.data_ptr()) == self.address
            and tuple(old.shape[:3]) == (*new.shape[:2], self.filled)
            and self.filled + new.shape[2] <= self.memory.shape[2]
        )

    def take(self, new: Array) -> Array:
        """new (B,K,T,D) -> (B,K,filled + T,D)"""
        start, self.filled = self.filled, self.filled + new.shape[2]
        self.memory[:, :, start : self.filled] = new
        return self.memory[:, :, : self.filled]


def with_new(cache: Any, key: Array, value: Array, layer_idx: int) -> tuple[Array, Array]:
    """What cache.update(key, value, layer_idx) gives and leaves behind; key, value (B,K,T,D)."""
    layer: Any = cache.layers[layer_idx] if layer_idx < len(cache.layers) else None
    if not (
        type(layer) is DynamicLayer
        and type(cache).update is Cache.update
        and not cache.offloading
        and layer.get_seq_length() > 0
        and layer.keys.dtype == tensor_of(key[:0]).dtype
    ):
        keys, values = cache.update(tensor_of(key), tensor_of(value), layer_idx)
        return array_of(keys), array_of(values)
    rooms = layer.__dict__.setdefault("rooms", {})
    grown = []
    for name, new in (("keys", key), ("values", value)):
        old = getattr(layer, name)
        if name not in rooms or not rooms[name].can_take(old, new):
            rooms[name] = Room(array_of(old), new)
        grown.append(rooms[name].take(new))
        setattr(layer, name, tensor_of(grown[-1]))
    return grown[0], grown[1]
