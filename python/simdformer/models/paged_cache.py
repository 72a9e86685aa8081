"""Keys and values in pages, which many texts share: what lies below every cache.

Kwon et al. 2023, "Efficient memory management for large language model serving with
PagedAttention", arXiv:2309.06180.
"""

import math
import mmap
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from simdformer import _core
from simdformer.arguments import as_array, is_whole, read_whole, shown
from simdformer.types import Array, ArrayLike, DTypeLike

__all__ = ["PagedKVCache", "PagedSequence", "Span", "new_of_layer", "write_spans"]

DTYPES = tuple(map(np.dtype, ("float64", "float32", "float16", ml_dtypes.bfloat16)))
FIRST_PAGES = 4
HUGE_PAGE = 2 << 20
UNKNOWN = -1  # the id of a position of which only the keys and values are known


# What Prefix.parent says of a first page: its text is a short one, or a long one.
FIRST = {False: 0, True: -1}


class Prefix(NamedTuple):
    """A page by what it holds: the page before it (FIRST: none), and its own ids."""

    parent: int
    ids: tuple[int, ...]


class PagedKVCache:
    """Keys and values of many sequences, in pages of `page_size` positions.

    A sequence takes a page when it needs one and gives its pages back when it is closed. What a
    text begins with is stored and computed once: a page that is full and whose ids are known is
    found again by the next sequence with the same beginning, until its memory is needed.

    `data` is (layers, 2, pages, K, page_size, D) and grows, up to `max_pages`; `key_pages(layer)`
    and `value_pages(layer)` are what `scaled_dot_product_attention(..., block_table=)` reads.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim : int
    max_pages : int, optional
        None: as many as there is memory for.
    page_size : int
        Kernels read pages in place where it is a multiple of 16, and else copy them first.
    dtype : {"float32", "float16", "bfloat16", "float64"}
    set_aside : int
        So many pages get their place at once; they take memory as they are filled, from a size on
        where that makes a difference.

    >>> from simdformer.models import PagedKVCache
    >>> cache = PagedKVCache(num_layers=2, num_kv_heads=1, head_dim=4, max_pages=8)
    >>> text = cache.open(range(40))
    >>> text.reserve(40), text.pages, cache.free_pages
    (None, [0, 1], 6)
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        max_pages: int | None = None,
        page_size: int = 32,
        dtype: DTypeLike = "float32",
        set_aside: int = 0,
    ) -> None:
        sizes = {"num_layers": num_layers, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        sizes["page_size"] = page_size
        layers, heads, depth, page = (
            read_whole("PagedKVCache", name, value) for name, value in sizes.items()
        )
        if max_pages is not None:
            read_whole("PagedKVCache", "max_pages", max_pages)
        check_cache_dtype("PagedKVCache", dtype)
        self.max_pages = max_pages
        shape = (layers, 2, set_aside, heads, page, depth)
        run = set_aside * page * depth * np.dtype(dtype).itemsize  # the positions of one head
        check_bytes(shape, dtype)
        self.data: Array = untouched(shape, dtype) if run >= HUGE_PAGE else np.empty(shape, dtype)
        self._free: list[int] = []
        self._users: list[int] = []  # of each page
        self.used_pages = 0  # those that have any
        self._known: dict[Prefix, int] = {}  # the pages that a text may begin with
        self._prefix_of: dict[int, Prefix] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known, used by nobody, oldest first
        self._names: dict[int, int] = {}  # of known pages: what Prefix.parent calls them
        self._last_name = 0

    def __repr__(self) -> str:
        most = "" if self.max_pages is None else f" of {self.max_pages}"
        kind = f"{self.page_size} positions, {self.data.dtype}"
        return f"PagedKVCache({self.used_pages}{most} pages of {kind})"

    @property
    def page_size(self) -> int:
        return int(self.data.shape[4])

    @property
    def page_bytes(self) -> int:
        """The bytes of one page, in all layers."""
        layers, two, _, heads, page, depth = self.data.shape
        return math.prod((layers, two, heads, page, depth)) * self.data.itemsize

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def free_pages(self) -> int | None:
        """How many more pages may be taken; None where memory is the only limit."""
        if self.max_pages is None:
            return None
        return self.max_pages - self.used_pages

    def key_pages(self, layer: int) -> Array:
        """(pages, K, page_size, D)"""
        pages: Array = self.data[layer, 0]
        return pages

    def value_pages(self, layer: int) -> Array:
        """(pages, K, page_size, D)"""
        pages: Array = self.data[layer, 1]
        return pages

    def open(self, ids: Sequence[int] = (), *, long: bool = False) -> "PagedSequence":
        """A sequence for a text that begins with these ids. Its `length` says how many of them need
        not be read: what other texts have left here, in whole pages, and at most all but two.
        `long` texts, which longrope turns otherwise, share pages with each other alone."""
        sequence, ids = PagedSequence(self, long), listed(ids)
        size, parent = self.page_size, FIRST[long]
        for start in range(0, (len(ids) - 2) // size * size, size):
            prefix = Prefix(parent, tuple(ids[start : start + size]))
            page = self._known.get(prefix)
            if page is None:
                break
            self.share(page)
            parent = self._names[page]
            sequence.pages.append(page)
            sequence.names.append(parent)
            sequence.ids += prefix.ids
        sequence._sharable = sequence.length
        return sequence

    # ---- for sequences ---------------------------------------------------------------------------

    def take(self, wanted: int = 1) -> int:
        """A page for one sequence alone, the first of so many that are `wanted`. MemoryError when
        all are in use."""
        if not self._free and not self._grow(wanted):
            if not self._idle:
                raise MemoryError(
                    f"PagedKVCache: all {self.max_pages} pages of {self.page_size} positions are "
                    "in use; close a sequence, or give it more"
                )
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            self._free.append(page)
        page = self._free.pop()
        self._users[page] = 1
        self.used_pages += 1
        return page

    def give_back(self, page: int) -> None:
        """One sequence less uses the page."""
        self._users[page] -= 1
        if self._users[page] == 0:
            self.used_pages -= 1
            if page in self._prefix_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def share(self, page: int) -> None:
        """One sequence more uses the page."""
        self._idle.pop(page, None)
        self.used_pages += self._users[page] == 0
        self._users[page] += 1

    def is_shared(self, page: int) -> bool:
        return self._users[page] > 1 or page in self._prefix_of

    def remember(self, page: int, prefix: Prefix) -> int:
        """Lets later texts find a full page; its name."""
        if prefix in self._known:  # two texts had it computed
            return self._names[self._known[prefix]]
        self._last_name += 1
        self._known[prefix], self._prefix_of[page] = page, prefix
        self._names[page] = self._last_name
        return self._last_name

    def _forget(self, page: int) -> None:
        del self._known[self._prefix_of.pop(page)], self._names[page]

    def _grow(self, wanted: int) -> bool:
        """Twice as many pages, or as many more as are wanted, as far as allowed: whether there are
        more. Those that were set aside come first."""
        old, there = len(self._users), self.data.shape[2]
        new = max(FIRST_PAGES, 2 * old, old + wanted)
        new = min(new, there) if there > old else new
        new = new if self.max_pages is None else min(new, self.max_pages)
        if new == old:
            return False
        if self.max_pages is None and self._idle and len(self._idle) * 2 >= old:
            return False  # half of what is there serves nobody
        if new > there:
            layers, two, _, *shape = self.data.shape
            data: Array = np.empty((layers, two, new, *shape), self.data.dtype)
            data[:, :, :old] = self.data[:, :, :old]
            self.data = data
        self._users += [0] * (new - old)
        self._free += range(new - 1, old - 1, -1)
        return True


class PagedSequence:
    """One text in a `PagedKVCache`: its ids, and the pages that hold their keys and values.

    `reserve(n)` before n positions are written, into `pages` or with `write`; `advance` when they
    are, with their ids or how many they are.
    """

    def __init__(self, cache: PagedKVCache, long: bool = False) -> None:
        self.cache, self.long = cache, long
        self.ids: list[int] = []
        self.pages: list[int] = []
        self.names: list[
            int | None
        ] = []  # of full pages, as the cache knows them; None: it does not
        self._sharable = 0  # so many ids, from the first on, were advanced as shared

    def __repr__(self) -> str:
        return f"PagedSequence({self.length} positions, {len(self.pages)} pages)"

    @property
    def length(self) -> int:
        """Positions filled."""
        return len(self.ids)

    def reserve(self, new: int) -> None:
        """Takes the pages for `new` more positions, and one of its own for a page that others read
        too and that would be written. MemoryError: there are not as many; nothing is changed."""
        size, had = self.cache.page_size, len(self.pages)
        taken: list[int] = []
        begun = self.length // size
        copied = new > 0 and begun < had and self.cache.is_shared(self.pages[begun])
        try:
            needed = max(-(-(self.length + new) // size) - had, 0) + copied
            while len(taken) < needed:
                taken.append(self.cache.take(needed - len(taken)))
        except MemoryError:
            for page in taken:
                self.cache.give_back(page)
            raise
        if copied:
            own, shared = taken.pop(), self.pages[begun]
            self.cache.data[:, :, own] = self.cache.data[:, :, shared]
            self.pages[begun] = own
            self.cache.give_back(shared)
        self.pages += taken

    @property
    def room(self) -> int:
        """How many positions more the reserved pages have."""
        return len(self.pages) * self.cache.page_size - self.length

    def write(self, layer: int, key: ArrayLike, value: ArrayLike) -> None:
        """Puts key and value (K,T,D) of one layer behind what is filled, into reserved pages. The
        new positions count only after `advance`, when all layers are written. ValueError for other
        shapes, TypeError for other dtypes than `new_of_layer` takes."""
        function = "PagedSequence.write"
        key, value = new_of_layer(function, self.cache.data, layer, key, value)
        if key.shape[1] > self.room:
            raise ValueError(
                f"{function}: key has {key.shape[1]} positions, needs at most the "
                f"{self.room} that are reserved; call reserve({key.shape[1]}) first"
            )
        spans = list(self.spans(key.shape[1]))
        write_spans(self.cache.key_pages(layer), spans, key)
        write_spans(self.cache.value_pages(layer), spans, value)

    def spans(self, new: int) -> "Iterator[Span]":
        """Where `new` positions behind what is filled go, in reserved pages."""
        size, done = self.cache.page_size, 0
        while done < new:
            at, slot = divmod(self.length + done, size)
            page, last = self.pages[at], at
            count = min(size - slot, new - done)
            if count == size:
                while new - done - count >= size and self.pages[last + 1] == self.pages[last] + 1:
                    last, count = last + 1, count + size
            pages = slice(page, page + last - at + 1)
            width = min(count, size)
            yield Span(slice(done, done + count), pages, slice(slot, slot + width))
            done += count

    def gather(self, layer: int) -> tuple[Array, Array]:
        """Copies of the keys and values (K,length,D) of one layer, one behind the other."""
        read_layer("PagedSequence.gather", self.cache.data, layer)
        keys, values = (
            gathered(pages(layer), np.array(self.pages, np.int64), self.length)
            for pages in (self.cache.key_pages, self.cache.value_pages)
        )
        return keys, values

    def advance(self, ids: Sequence[int] | int, *, shared: bool = True) -> None:
        """Counts the positions of these ids as written. Pages that become full may be found by
        later texts, unless any of their ids came with `shared=False`. A number counts so many
        positions whose ids nobody knows, and which are not shared. ValueError: they have no
        pages."""
        if isinstance(ids, int | np.integer):
            if not is_whole(ids, 0):
                raise ValueError(f"PagedSequence.advance: found {shown(ids)}, needs ids, or >= 0")
            ids, shared = [UNKNOWN] * int(ids), False
        size, ids = self.cache.page_size, listed(ids)
        if len(ids) > self.room:
            raise ValueError(
                f"PagedSequence.advance: found {len(ids)} positions, needs at most the "
                f"{self.room} that are reserved; call reserve({len(ids)}) before they are written"
            )
        if shared and self._sharable == self.length:
            self._sharable += len(ids)
        self.ids += ids
        for at in range(len(self.names), self.length // size):
            start, stop, parent, name = (
                at * size,
                (at + 1) * size,
                self.names[at - 1] if at else FIRST[self.long],
                None,
            )
            if parent is not None and stop <= self._sharable:
                name = self.cache.remember(
                    self.pages[at], Prefix(parent, tuple(self.ids[start:stop]))
                )
            self.names.append(name)

    def fork(self) -> "PagedSequence":
        """The same text once more: pages are shared until one of the two writes into them."""
        other = PagedSequence(self.cache, self.long)
        other.ids, other.pages, other.names = self.ids[:], self.pages[:], self.names[:]
        other._sharable = self._sharable
        for page in other.pages:
            self.cache.share(page)
        return other

    def truncate(self, length: int) -> None:
        """Forgets all positions from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(
                f"PagedSequence.truncate: length is {length}, needs 0 to {self.length}"
            )
        size = self.cache.page_size
        kept = -(-length // size)
        for page in self.pages[kept:]:
            self.cache.give_back(page)
        del self.pages[kept:], self.names[length // size :], self.ids[length:]
        self._sharable = min(self._sharable, length)

    def close(self) -> None:
        """Gives all pages back."""
        self.truncate(0)


class Span(NamedTuple):
    """New positions of a text that lie side by side: which of them, in which pages, and at which
    places of a page."""

    new: slice
    pages: slice
    slots: slice


def write_spans(memory: Array, spans: Sequence[Span], new: Array) -> None:
    """new (K,T,D) goes into memory (pages,K,page_size,D), on all threads: new pages of memory take
    longest"""
    for span in spans:
        if span.pages.stop - span.pages.start == 1:
            _core.convert(new[:, span.new], memory[span.pages.start, :, span.slots])
        else:
            place = memory[span.pages]
            part = new[:, span.new].reshape(len(new), *place.shape[::2], new.shape[-1])
            _core.convert(part.swapaxes(0, 1), place)


def gathered(memory: Array, table: Array, length: int) -> Array:
    """The first `length` positions (...,K,length,D) of texts whose pages (...,n) are in memory
    (pages,K,page_size,D), as a copy."""
    pages = np.moveaxis(memory[table], -4, -3)  # (...,K,n,page_size,D)
    *front, n, size, depth = pages.shape
    every: Array = pages.reshape(*front, n * size, depth)[..., :length, :]
    return every


def new_of_layer(
    function: str,
    data: Array,
    layer: int,
    key: ArrayLike,
    value: ArrayLike,
    batch: int | None = None,
) -> tuple[Array, Array]:
    """key and value (K,T,D), or (batch,K,T,D), as arrays. TypeError, ValueError: they are none of
    `data` (layers,2,pages,K,page_size,D). What is converted on the way is float32, which a cache of
    16 bits is there to round, and what has fewer bits than the cache."""
    read_layer(function, data, layer)
    _, _, _, heads, _, depth = data.shape
    front = () if batch is None else (batch,)
    found = {"key": as_array(function, "key", key), "value": as_array(function, "value", value)}
    small = [kind for kind in DTYPES if kind.itemsize < data.itemsize]
    allowed = list(dict.fromkeys([data.dtype, np.dtype(np.float32), *small]))
    for name, x in found.items():
        if x.dtype not in allowed:
            raise TypeError(
                f"{function}: {name} is {x.dtype}, needs one of "
                f"{', '.join(map(str, allowed))}; convert it first"
            )
        if x.ndim != 3 + len(front) or (*x.shape[:-2], x.shape[-1]) != (*front, heads, depth):
            axes = ", ".join(map(str, (*front, heads, "T", depth)))
            raise ValueError(f"{function}: {name} has shape {x.shape}, needs ({axes})")
    if found["key"].shape != found["value"].shape:
        raise ValueError(
            f"{function}: value has shape {found['value'].shape}, needs that of key, "
            f"{found['key'].shape}"
        )
    return found["key"], found["value"]


def read_layer(function: str, data: Array, layer: Any) -> None:
    """IndexError for what is no layer of data."""
    if not is_whole(layer, 0) or layer >= len(data):
        raise IndexError(f"{function}: layer is {shown(layer)}, needs 0 to {len(data) - 1}")


def untouched(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An array of no particular content, which takes memory where it is written, 4 KB at a time.

    np.empty asks for pages of 2 MB, of which each layer would touch one for the shortest text.
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


def check_bytes(shape: tuple[int, ...], dtype: DTypeLike) -> None:
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes >= 1 << 63:
        raise ValueError(
            f"KVCache: {nbytes:.3g} bytes are more than any memory, needs fewer; has {shape}"
        )


def check_cache_dtype(function: str, dtype: DTypeLike) -> None:
    """TypeError for what is none of the dtypes that keys and values may have."""
    try:
        known = np.dtype(dtype) in DTYPES
    except (TypeError, ValueError, SyntaxError):
        known = False
    if not known:
        raise TypeError(
            f"{function}: dtype is {shown(dtype)}, needs one of {', '.join(map(str, DTYPES))}"
        )


def listed(ids: Sequence[int]) -> Sequence[int]:
    """ids as numbers that equal each other: elements of a tensor are tensors."""
    return as_array("PagedKVCache", "ids", ids).tolist() if hasattr(ids, "__dlpack__") else ids
