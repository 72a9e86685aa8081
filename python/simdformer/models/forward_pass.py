"""What the layers of one forward pass share: positions, cache, who looks on; and how each turns."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from simdformer.arguments import as_array, shown
from simdformer.functional import RopeFrequencies, rope_frequencies
from simdformer.models.cache import KVCache
from simdformer.models.config import ModelConfig
from simdformer.models.observer import Observer, See, unseen
from simdformer.models.paged_cache import Span, write_spans
from simdformer.types import Array, NumpyArrayLike

__all__ = [
    "Attending",
    "ByLength",
    "ForwardPass",
    "Integers",
    "by_length",
    "checked_ids",
    "is_ragged",
    "rope_of_layers",
]

# So many queries of a key/value head are decoded, without pages (cpp/base/attention_args.hpp). From
# pages only single ones are; what several ids get with a cache are the bits that they get without.
DECODE_ROWS = 16

Integers = npt.NDArray[np.integer]
ByLength = tuple[RopeFrequencies, RopeFrequencies]  # of short texts, and of long ones


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
class InCache:
    """Where the new positions of a call go in a cache: the spans of each sequence, the pages of all
    of them (B,n), and their lengths (B,) with what is new."""

    cache: KVCache
    spans: list[list[Span]]
    table: Integers
    lengths: Integers

    @classmethod
    def reserve(cls, cache: KVCache, new: int) -> "InCache":
        cache.reserve(new)
        spans = [list(text.spans(new)) for text in cache.texts]
        return cls(cache, spans, cache.table(), cache.lengths + new)

    def write(self, layer: int, k: Array, v: Array) -> tuple[Array, Array]:
        """k and v (B,K,T,D) into the pages of a layer; gives all pages (pages,K,page_size,D)."""
        keys, values = self.cache.pages.key_pages(layer), self.cache.pages.value_pages(layer)
        for spans, key, value in zip(self.spans, k, v, strict=True):
            write_spans(keys, spans, key)
            write_spans(values, spans, value)
        return keys, values


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """One call of a model with ids (B,L). Their positions are (L,), or (B,L) where the sequences of
    a cache differ in length; `offset` is the position of the first id, one for all or (B,). `long`
    says of which sequences, or of all of them, RoPE's frequencies are those of long texts."""

    ids: Integers
    positions: Integers
    offset: int | Integers
    place: InCache | None
    observer: Observer | None
    long: bool | npt.NDArray[np.bool_]

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
            return cls(ids, np.arange(new), 0, None, observer, are_long(config, new))
        if not isinstance(cache, KVCache):
            raise TypeError(
                f"model: cache is {shown(cache)}, needs a KVCache; make one with new_cache()"
            )
        layers, _, _, kv_heads, _, head_dim = cache.data.shape
        found = (layers, kv_heads, head_dim, cache.batch)
        needed = (config.num_layers, config.num_kv_heads, config.head_dim, batch)
        if found != needed:
            raise ValueError(
                f"model: cache has (layers, key/value heads, head_dim, batch) = {found}, "
                f"needs {needed}; make one with new_cache()"
            )
        cache.require_room(new)
        if config.positions == "learned" and cache.length + new > config.max_seq_len:
            raise ValueError(
                f"model: {new} ids behind {cache.length} are more than the {config.max_seq_len} "
                "positions that it has learned"
            )
        start = cache.common_length
        place = InCache.reserve(cache, new)
        if start is not None:
            long = are_long(config, start + new) or cache.texts[0].long
            return cls(ids, np.arange(start, start + new), start, place, observer, long)
        starts = cache.lengths
        long = are_long(config, starts + new)
        return cls(ids, starts[:, None] + np.arange(new), starts, place, observer, long)

    @property
    def start(self) -> tuple[int, Array] | None:
        """Where it starts, if not at the embeddings: a layer, and the stream (B,L,E) before it."""
        return None if self.observer is None else self.observer.start

    def by_length(self, rotated: Callable[[RopeFrequencies], Array], tables: ByLength) -> Array:
        """rotated(table) (B,L,H,D) by the table for short texts, and for long ones by the other."""
        return by_length(self.long, rotated, tables)

    def at(self, layer: int | None = None) -> See:
        """`see` for the names of a layer, or for those outside of layers."""
        return unseen if self.observer is None else See(self.observer, layer)

    def attending(self, layer: int, q: Array, k: Array, v: Array, z: Array) -> Iterator[Attending]:
        """k and v (B,L,K,D) join the cache; then who attends together: all of q and z (B,L,H,D)."""
        queries, keys, values = q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)  # (B,K,S,D)
        if self.place is None:
            yield Attending(queries, keys, values, self.offset, z.swapaxes(1, 2))
            return
        batch, new, heads, depth = q.shape
        keys, values = self.place.write(layer, keys, values)
        table, lengths = self.place.table, self.place.lengths
        if self.at(layer).wants("attn.scores", "attn.pattern"):  # which are not those of pages
            keys, values = self.place.cache.everything(layer, new)
            yield Attending(queries, keys, values, self.offset, z.swapaxes(1, 2))
        elif 1 < new <= DECODE_ROWS * k.shape[2] // heads:
            each = (batch * new, heads, 1, depth)  # a text for each id, as without pages
            positions = np.broadcast_to(self.positions, (batch, new)).reshape(-1)
            table = np.repeat(table, new, axis=0)
            q, z = q.reshape(each), z.reshape(each)
            yield Attending(q, keys, values, positions, z, table, positions + 1)
        else:
            yield Attending(queries, keys, values, self.offset, z.swapaxes(1, 2), table, lengths)

    def advance(self) -> None:
        """Counts the new positions as filled. Other texts may begin with what is as the model has
        it: with the frequencies of short texts, and edited by nobody."""
        if self.place is None:
            return
        texts = self.place.cache.texts
        long = np.broadcast_to(self.long, len(texts))
        for text, ids, far in zip(texts, self.ids.tolist(), long, strict=True):
            text.advance(ids, shared=self.observer is None and not far)


def are_long(config: ModelConfig, lengths: Any) -> Any:
    """Whether texts of these lengths are longer than RoPE's frequencies for short ones are for."""
    return config.rope_boundary is not None and lengths > config.rope_boundary


def by_length(
    long: bool | npt.NDArray[np.bool_],
    rotated: Callable[[RopeFrequencies], Array],
    tables: ByLength,
) -> Array:
    """rotated(table) (B,L,H,D) by the second table where a text is `long`, one for all, (B,) or
    (B,L), by the first elsewhere."""
    if isinstance(long, bool):
        return rotated(tables[long])
    if np.all(long):
        return rotated(tables[1])
    if not np.any(long):
        return rotated(tables[0])
    short, far = map(rotated, tables)
    of_each = np.expand_dims(long, tuple(range(np.ndim(long), short.ndim)))
    return np.where(of_each, far, short)


def is_ragged(ids: Any) -> TypeGuard[Sequence[Sequence[int]]]:
    """Whether it is a list of lists of different lengths."""
    return (
        isinstance(ids, list | tuple)
        and all(isinstance(row, list | tuple) for row in ids)
        and len(set(map(len, ids))) > 1
    )


def checked_ids(ids: NumpyArrayLike) -> Integers:
    """ids as an integer array of one or two axes."""
    if is_ragged(ids):
        lengths = ", ".join(str(len(row)) for row in ids)
        raise ValueError(
            f"model: ids have rows of {lengths[:80]} ids, needs (L,) or (B,L), rows of one "
            "length; give each row by itself"
        )
    ids = as_array("model", "ids", ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(
            f"model: ids are {ids.dtype}, needs integers; the tokenizer's encode gives them"
        )
    if ids.ndim not in (1, 2):
        raise ValueError(f"model: ids have shape {ids.shape}, needs (L,) or (B,L)")
    return ids if ids.dtype.kind in "iu" else ids.astype(np.int64)


def rope_of_layers(config: ModelConfig) -> list[ByLength | None]:
    """The frequencies of RoPE of each layer; None for one that has none."""
    size = config.head_dim if config.rotary_dim is None else config.rotary_dim

    def scaled(length: int) -> RopeFrequencies:
        theta, scaling = config.rope_theta, config.rope_scaling
        return rope_frequencies(size, theta=theta, scaling=scaling, length=length)

    far = near = scaled(1), scaled((config.rope_boundary or 0) + 1)
    if config.local_rope_theta is not None:
        near = (rope_frequencies(size, theta=config.local_rope_theta),) * 2
    return [
        None if not config.turns(layer) else far if config.window(layer) is None else near
        for layer in range(config.num_layers)
    ]
