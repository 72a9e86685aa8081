"""The keys and values of what a model has read, so that the next token costs one token's work."""

import math
import mmap
from contextlib import suppress

import ml_dtypes
import numpy as np
import numpy.typing as npt

from simdformer import _core
from simdformer.arguments import as_array, read_whole, shown
from simdformer.types import Array, ArrayLike, DTypeLike, NumpyArrayLike

__all__ = ["KVCache", "check_cache_dtype"]


HUGE_PAGE = 2 << 20
DTYPES = tuple(map(np.dtype, ("float64", "float32", "float16", ml_dtypes.bfloat16)))


class KVCache:
    """The keys and values of up to `max_seq_len` positions, preallocated.

    `data` is head-major: (layers, 2, batch, K, max_seq_len, D). `model.new_cache()` makes one. A
    model given a cache reads its ids as the continuation of what is in it, and appends them. An
    interrupted call leaves the cache as it was.

    Sequences of a batch may differ in length: `lengths` (batch,) says how many positions of each
    are filled. What lies behind them is garbage that attention never looks at.

    dtype is float32, or float16 or bfloat16 for half of the memory (arithmetic stays float32).

    >>> from simdformer.models import KVCache
    >>> cache = KVCache(num_layers=2, num_kv_heads=1, head_dim=4, max_seq_len=100)
    >>> cache.data.shape, cache.length, cache.nbytes
    ((2, 2, 1, 1, 100, 4), 0, 6400)
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
    ) -> None:
        sizes = {"num_layers": num_layers, "batch": batch, "num_kv_heads": num_kv_heads}
        sizes |= {"max_seq_len": max_seq_len, "head_dim": head_dim}
        layers, *shape = (read_whole("KVCache", name, value) for name, value in sizes.items())
        check_cache_dtype("KVCache", dtype)
        needed = math.prod((layers, 2, *shape)) * np.dtype(dtype).itemsize
        if needed >= 1 << 63:
            raise ValueError(
                f"KVCache: {needed:.3g} bytes are more than any memory; {shown(sizes)}"
            )
        run = shape[2] * shape[3] * np.dtype(dtype).itemsize  # the positions of one head
        make = untouched if run >= HUGE_PAGE else np.empty
        self.data: Array = make((layers, 2, *shape), dtype)
        self.lengths: npt.NDArray[np.int64] = np.zeros(shape[0], np.int64)

    @property
    def length(self) -> int:
        """Positions filled; in a batch, those of the longest sequence."""
        return int(self.lengths.max())

    @property
    def common_length(self) -> int | None:
        """The length of every sequence; None when they differ."""
        first = int(self.lengths[0])
        return first if self.batch == 1 or (self.lengths == first).all() else None

    @property
    def max_seq_len(self) -> int:
        return int(self.data.shape[4])

    @property
    def batch(self) -> int:
        return int(self.data.shape[2])

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def reset(self) -> None:
        """Forgets everything."""
        self.lengths[:] = 0

    def truncate(self, length: int | NumpyArrayLike) -> None:
        """Forgets all positions from `length` on (one number, or one a sequence)."""
        lengths = as_array("KVCache.truncate", "length", length)
        fits = lengths.dtype.kind in "iu" and lengths.shape in ((), (1,), self.lengths.shape)
        if not fits or (lengths < 0).any() or (lengths > self.lengths).any():
            raise ValueError(
                f"KVCache.truncate: length is {shown(length)}, needed is 0 to "
                f"{self.lengths.tolist()}"
            )
        self.lengths[:] = lengths

    def sequence(self, index: int) -> "KVCache":
        """One sequence of the batch as a cache of its own that shares the memory and the length."""
        one = object.__new__(KVCache)
        one.data = self.data[:, :, index : index + 1]
        one.lengths = self.lengths[index : index + 1]
        return one

    def require_room(self, new: int) -> None:
        """ValueError when `new` more positions do not fit."""
        if self.length + new > self.max_seq_len:
            raise ValueError(
                f"KVCache: {new} more positions do not fit, {self.length} of {self.max_seq_len} "
                "are filled; make room with .truncate(n) or .reset(), or create a longer one with "
                "new_cache(max_seq_len)"
            )

    def write(self, layer: int, key: ArrayLike, value: ArrayLike) -> tuple[Array, Array]:
        """Puts key and value (B,K,T,D) of one layer behind what is filled.

        Gives views (B,K,length + T,D) of everything. The new positions count only after
        `advance`, when all layers are written.
        """
        key, value = as_array("KVCache", "key", key), as_array("KVCache", "value", value)
        new = key.shape[2]
        data, start = self.data, self.common_length
        if start is not None:
            filled = start + new
            put(data[layer, 0, :, :, start:filled], key)
            put(data[layer, 1, :, :, start:filled], value)
        else:
            filled = self.length + new
            for index, start in enumerate(self.lengths.tolist()):
                put(data[layer, 0, index, :, start : start + new], key[index])
                put(data[layer, 1, index, :, start : start + new], value[index])
        return data[layer, 0, :, :, :filled], data[layer, 1, :, :, :filled]

    def advance(self, new: int) -> None:
        """Counts `new` positions as filled."""
        self.lengths += new


def put(place: Array, x: Array) -> None:
    """place[...] = x, on all threads where they are alike: new pages of memory take longest"""
    if x.shape == place.shape and x.dtype in DTYPES:
        _core.convert(x, place)
    else:
        place[...] = x


def untouched(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An array of no particular content, which takes memory where it is written, 4 KB at a time.

    np.empty asks for pages of 2 MB, which are read faster, by up to a half where what is read lies
    in short pieces. But each head of each layer would touch one of its own for the shortest text.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"KVCache: there is no memory for {nbytes:.3g} bytes") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # of a kernel that has no such pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


def check_cache_dtype(function: str, dtype: DTypeLike) -> None:
    """TypeError for what is none of the dtypes that keys and values may have."""
    try:
        known = np.dtype(dtype) in DTYPES
    except (TypeError, ValueError, SyntaxError):
        known = False
    if not known:
        raise TypeError(
            f"{function}: dtype is {shown(dtype)}, needed is one of {', '.join(map(str, DTYPES))}"
        )
