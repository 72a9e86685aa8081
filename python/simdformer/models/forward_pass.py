"""What the layers of one forward pass share: positions, cache, who looks on; and how each turns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simdformer.arguments import as_array, shown
from simdformer.functional import RopeFrequencies, rope_frequencies
from simdformer.models.cache import KVCache
from simdformer.models.config import ModelConfig
from simdformer.models.observer import Observer, See, unseen
from simdformer.types import Array, NumpyArrayLike

__all__ = ["Attending", "ForwardPass", "Integers", "checked_ids", "rope_of_layers"]

Integers = npt.NDArray[np.integer]


class Attending(NamedTuple):
    """Queries that attend together, as `scaled_dot_product_attention` takes them: `offset` is its
    causal_offset, `out` a view of where the results go."""

    query: Array
    keys: Array
    values: Array
    offset: int | Integers
    out: Array
    block_table: Integers | None = None
    key_lengths: int | Integers | None = None


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """One call of a model. The positions of its ids are (L,), or (B,L) where the sequences of a
    cache differ in length; `offset` is the position of the first id, one for all or (B,)."""

    positions: Integers
    offset: int | Integers
    cache: KVCache | None
    observer: Observer | None

    @classmethod
    def begin(
        cls, config: ModelConfig, ids: Integers, cache: KVCache | None, observer: Observer | None
    ) -> "ForwardPass":
        """Finds the positions of ids (B,L). ValueError when there is no room for them."""
        batch, new = ids.shape
        if cache is None:
            if new > config.max_seq_len:
                raise ValueError(
                    f"model: {new} ids are more than max_seq_len = {config.max_seq_len}; "
                    "shorten them, or load the model with a larger max_seq_len"
                )
            return cls(np.arange(new), 0, None, observer)
        if not isinstance(cache, KVCache):
            raise TypeError(
                f"model: cache is {shown(cache)}, needed is a KVCache; make one with new_cache()"
            )
        layers, _, sequences, kv_heads, _, head_dim = cache.data.shape
        found = (layers, kv_heads, head_dim, sequences)
        needed = (config.num_layers, config.num_kv_heads, config.head_dim, batch)
        if found != needed:
            raise ValueError(
                f"model: cache has (layers, key/value heads, head_dim, batch) = {found}, "
                f"needed is {needed}; make one with new_cache()"
            )
        cache.require_room(new)
        if config.positions == "learned" and cache.length + new > config.max_seq_len:
            raise ValueError(
                f"model: {new} ids behind {cache.length} are more than the {config.max_seq_len} "
                "positions that it has learned"
            )
        start = cache.common_length
        if start is not None:
            return cls(np.arange(start, start + new), start, cache, observer)
        return cls(cache.lengths[:, None] + np.arange(new), cache.lengths.copy(), cache, observer)

    def at(self, layer: int | None = None) -> See:
        """`see` for the names of a layer, or for those outside of layers."""
        return unseen if self.observer is None else See(self.observer, layer)

    def attending(self, layer: int, q: Array, k: Array, v: Array, z: Array) -> Iterator[Attending]:
        """k and v (B,L,K,D) join the cache; then who attends together: all of q and z (B,L,H,D)."""
        keys, values = k.swapaxes(1, 2), v.swapaxes(1, 2)  # (B,K,S,D)
        if self.cache is not None:
            keys, values = self.cache.write(layer, keys, values)
        yield Attending(q.swapaxes(1, 2), keys, values, self.offset, z.swapaxes(1, 2))


def checked_ids(ids: NumpyArrayLike) -> Integers:
    """ids as an integer array of one or two axes."""
    ids = as_array("model", "ids", ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(
            f"model: ids are {ids.dtype}, needed are integers; the tokenizer's encode gives them"
        )
    if ids.ndim not in (1, 2):
        raise ValueError(f"model: ids have shape {ids.shape}, needed is (L,) or (B,L)")
    return ids if ids.dtype.kind in "iu" else ids.astype(np.int64)


def rope_of_layers(config: ModelConfig) -> list[RopeFrequencies | None]:
    """The frequencies of RoPE of each layer; None for one that has none."""
    size = config.head_dim if config.rotary_dim is None else config.rotary_dim
    far = near = rope_frequencies(size, theta=config.rope_theta, scaling=config.rope_scaling)
    if config.local_rope_theta is not None:
        near = rope_frequencies(size, theta=config.local_rope_theta)
    return [
        None if not config.turns(layer) else far if config.window(layer) is None else near
        for layer in range(config.num_layers)
    ]
