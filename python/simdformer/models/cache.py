"""The keys and values of what a model has read, so that the next token costs one token's work."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from simdformer.arguments import as_array, is_whole, read_whole, shown
from simdformer.models.paged_cache import (
    PagedKVCache,
    PagedSequence,
    check_cache_dtype,
    gathered,
    new_of_layer,
    read_layer,
)
from simdformer.types import Array, ArrayLike, DTypeLike, NumpyArrayLike

__all__ = ["KVCache"]


class KVCache:
    """The keys and values of up to `max_seq_len` positions of a text, or of a batch of them.

    `model.new_cache()` makes one. A model given a cache reads its ids as the continuation of what
    is in it, and appends them; an interrupted call leaves the cache as it was. `generate`, `chat`
    and `batch` take the same cache: whatever has been read with it, by them or by the model, is not
    read again when a prompt begins with it.

    The texts of a batch may differ in length: `lengths` (batch,) says how many positions of each
    are filled. `texts` are their `PagedSequence`s, in the `PagedKVCache` that is `pages`.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim, max_seq_len, batch : int
    dtype : {"float32", "float16", "bfloat16", "float64"}
        16 bits take half of the memory; arithmetic stays float32.
    page_size : int
        Memory is shared in pieces of so many positions. Kernels are fast where it is a multiple
        of 16.
    max_pages : int, optional
        The most pages that the cache takes for all texts; None: as many as there is memory for.

    >>> import numpy as np
    >>> from simdformer.models import KVCache
    >>> cache = KVCache(num_layers=2, num_kv_heads=1, head_dim=4, max_seq_len=100)
    >>> key = np.ones((1, 1, 3, 4), np.float32)
    >>> for layer in range(2):
    ...     keys, values = cache.write(layer, key, -key)
    >>> cache.advance(3)
    >>> keys.shape, cache.length, cache.data.shape, cache.nbytes
    ((1, 1, 3, 4), 3, (2, 2, 4, 1, 32, 4), 8192)
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        max_seq_len: int,
        batch: int = 1,
        dtype: DTypeLike = "float32",
        page_size: int = 32,
        max_pages: int | None = None,
    ) -> None:
        sizes = {"num_layers": num_layers, "batch": batch, "num_kv_heads": num_kv_heads}
        sizes |= {"max_seq_len": max_seq_len, "head_dim": head_dim, "page_size": page_size}
        if max_pages is not None:
            sizes["max_pages"] = max_pages
        checked = {name: read_whole("KVCache", name, value) for name, value in sizes.items()}
        check_cache_dtype("KVCache", dtype)
        needed = checked["batch"] * -(-checked["max_seq_len"] // checked["page_size"])
        pages = PagedKVCache(
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_pages=max_pages,
            page_size=page_size,
            dtype=dtype,
            set_aside=min(needed, checked.get("max_pages", needed)),
        )
        self._prepare(pages, [PagedSequence(pages) for _ in range(checked["batch"])], max_seq_len)

    def _prepare(self, pages: PagedKVCache, texts: list[PagedSequence], max_seq_len: int) -> None:
        self.pages, self.texts, self.max_seq_len = pages, texts, int(max_seq_len)

    @classmethod
    def of(cls, texts: list[PagedSequence], max_seq_len: int) -> Self:
        """Texts of one `PagedKVCache` as a cache that a model reads on with."""
        cache = object.__new__(cls)
        cache._prepare(texts[0].cache, texts, max_seq_len)
        return cache

    def __repr__(self) -> str:
        several = f", batch={self.batch}" if self.batch > 1 else ""
        filled = self.length if self.common_length is not None else self.lengths.tolist()
        return f"KVCache({filled} of {self.max_seq_len} positions{several}, {self.data.dtype})"

    @property
    def data(self) -> Array:
        """The memory: (layers, 2, pages, K, page_size, D), keys and values by pages."""
        return self.pages.data

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Positions filled of each sequence: (batch,)."""
        return np.array([text.length for text in self.texts], np.int64)

    @property
    def length(self) -> int:
        """Positions filled; in a batch, those of the longest sequence."""
        return max(text.length for text in self.texts)

    @property
    def common_length(self) -> int | None:
        """The length of every sequence; None when they differ."""
        first = self.texts[0].length
        return first if all(text.length == first for text in self.texts) else None

    @property
    def batch(self) -> int:
        return len(self.texts)

    @property
    def nbytes(self) -> int:
        """The bytes of all pages that have their place, filled or not."""
        return self.pages.nbytes

    def reset(self) -> None:
        """Forgets everything."""
        self.truncate(0)

    def truncate(self, length: int | NumpyArrayLike) -> None:
        """Forgets all positions from `length` on (one number, or one a sequence)."""
        lengths, own = as_array("KVCache.truncate", "length", length), self.lengths
        fits = lengths.dtype.kind in "iu" and lengths.shape in ((), (1,), own.shape)
        if not fits or (lengths < 0).any() or (lengths > own).any():
            raise ValueError(
                f"KVCache.truncate: length is {shown(length)}, needs 0 to {own.tolist()}"
            )
        for text, end in zip(self.texts, np.broadcast_to(lengths, own.shape), strict=True):
            text.truncate(int(end))

    def sequence(self, index: int) -> "KVCache":
        """One sequence of the batch as a cache of its own that shares the memory and the length."""
        return KVCache.of([self.texts[index]], self.max_seq_len)

    def require_room(self, new: int) -> None:
        """ValueError when `new` more positions do not fit."""
        if self.length + new > self.max_seq_len:
            raise ValueError(
                f"KVCache: {new} more positions do not fit, {self.length} of {self.max_seq_len} "
                "are filled; make room with .truncate(n) or .reset(), or create a longer one with "
                "new_cache(max_seq_len)"
            )

    def reserve(self, new: int) -> None:
        """Takes the pages for `new` more positions of each sequence, if they do not have them.
        ValueError: they do not fit; MemoryError: the cache may take no more pages."""
        self.require_room(new)
        for text in self.texts:
            text.reserve(new)

    def write(self, layer: int, key: ArrayLike, value: ArrayLike) -> tuple[Array, Array]:
        """Puts key and value (B,K,T,D) of one layer behind what is filled.

        Gives copies (B,K,length + T,D) of everything. The new positions count only after
        `advance`, when all layers are written. ValueError: they do not fit, or have another shape;
        TypeError: not the cache's dtype, float32 or a smaller one.
        """
        key, value = new_of_layer("KVCache.write", self.data, layer, key, value, self.batch)
        new = key.shape[2]
        self.reserve(new)
        for text, own_key, own_value in zip(self.texts, key, value, strict=True):
            text.write(layer, own_key, own_value)
        return self.everything(layer, new)

    def gather(self, layer: int) -> tuple[Array, Array]:
        """Copies of the keys and values (B,K,length,D) of one layer. What lies behind the end of a
        shorter sequence is garbage."""
        read_layer("KVCache.gather", self.data, layer)
        return self.everything(layer, 0)

    def everything(self, layer: int, new: int) -> tuple[Array, Array]:
        """`gather` with `new` positions that do not count yet."""
        table, length = self.table(), self.length + new
        keys, values = self.pages.key_pages(layer), self.pages.value_pages(layer)
        return gathered(keys, table, length), gathered(values, table, length)

    def table(self) -> npt.NDArray[np.int64]:
        """The pages of each sequence (B,n), as `block_table=` has them; 0 behind their end."""
        table = np.zeros((self.batch, max(len(text.pages) for text in self.texts)), np.int64)
        for row, text in zip(table, self.texts, strict=True):
            row[: len(text.pages)] = text.pages
        return table

    def advance(self, new: int | NumpyArrayLike) -> None:
        """Counts `new` positions of every sequence as filled; or those of these ids, one row for
        all or one a sequence, which later texts that begin alike then find. ValueError: they do not
        fit, or have no pages, which `write` and `reserve` take."""
        if isinstance(new, int | np.integer):
            if not is_whole(new, 0):
                raise ValueError(f"KVCache.advance: found {shown(new)}, needs a number >= 0")
            rows: Any = [int(new)] * self.batch
            count = int(new)
        else:
            ids = as_array("KVCache.advance", "new", new)
            rows = np.broadcast_to(ids, (self.batch, ids.shape[-1])).tolist()
            count = ids.shape[-1]
        self.require_room(count)
        for text, row in zip(self.texts, rows, strict=True):
            text.advance(row)
