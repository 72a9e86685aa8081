"""Keys and values in pages, which many texts share: how a batch of them fits into memory.

Kwon et al. 2023, "Efficient memory management for large language model serving with
PagedAttention", arXiv:2309.06180.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdformer.arguments import as_array, read_whole
from simdformer.models.cache import check_cache_dtype
from simdformer.types import Array, ArrayLike, DTypeLike

__all__ = ["PagedKVCache", "PagedSequence"]

FIRST_PAGES = 4


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
        A multiple of 16, so that kernels read pages in place.
    dtype : {"float32", "float16", "bfloat16", "float64"}

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
    ) -> None:
        sizes = {"num_layers": num_layers, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        layers, heads, depth = (
            read_whole("PagedKVCache", name, value) for name, value in sizes.items()
        )
        if read_whole("PagedKVCache", "page_size", page_size) % 16:
            raise ValueError(
                f"PagedKVCache: page_size is {page_size}, needed is a multiple of 16: kernels read "
                "so many positions of a page at a time"
            )
        if max_pages is not None:
            read_whole("PagedKVCache", "max_pages", max_pages)
        check_cache_dtype("PagedKVCache", dtype)
        self.max_pages = max_pages
        self.data: Array = np.empty((layers, 2, 0, heads, page_size, depth), dtype)
        self._free: list[int] = []
        self._users: list[int] = []  # of each page
        self._known: dict[Prefix, int] = {}  # the pages that a text may begin with
        self._prefix_of: dict[int, Prefix] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known, used by nobody, oldest first
        self._names: dict[int, int] = {}  # of known pages: what Prefix.parent calls them
        self._last_name = 0

    @property
    def page_size(self) -> int:
        return int(self.data.shape[4])

    @property
    def page_bytes(self) -> int:
        """Of one page, in all layers."""
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
        return self.max_pages - sum(users > 0 for users in self._users)

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

    def take(self) -> int:
        """A page for one sequence alone. MemoryError when all are in use."""
        if not self._free and not self._grow():
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
        return page

    def give_back(self, page: int) -> None:
        """One sequence less uses the page."""
        self._users[page] -= 1
        if self._users[page] == 0:
            if page in self._prefix_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def share(self, page: int) -> None:
        """One sequence more uses the page."""
        self._idle.pop(page, None)
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

    def _grow(self) -> bool:
        """Twice as many pages, as far as allowed: whether there are more."""
        old = len(self._users)
        new = max(FIRST_PAGES, 2 * old)
        new = new if self.max_pages is None else min(new, self.max_pages)
        if new == old:
            return False
        if self.max_pages is None and self._idle and len(self._idle) * 2 >= old:
            return False  # half of what is there serves nobody
        layers, two, _, *shape = self.data.shape
        data: Array = np.empty((layers, two, new, *shape), self.data.dtype)
        data[:, :, :old] = self.data
        self.data = data
        self._users += [0] * (new - old)
        self._free += range(new - 1, old - 1, -1)
        return True


class PagedSequence:
    """One text in a `PagedKVCache`: its ids, and the pages that hold their keys and values.

    `reserve(n)` before n positions are written, into `pages` or with `write`; `advance(ids)` when
    they are.
    """

    def __init__(self, cache: PagedKVCache, long: bool = False) -> None:
        self.cache, self.long = cache, long
        self.ids: list[int] = []
        self.pages: list[int] = []
        self.names: list[
            int | None
        ] = []  # of full pages, as the cache knows them; None: it does not
        self._sharable = 0  # so many ids, from the first on, were advanced as shared

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
            for _ in range(-(-(self.length + new) // size) - had + copied):
                taken.append(self.cache.take())
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

    def write(self, layer: int, key: ArrayLike, value: ArrayLike) -> None:
        """Puts key and value (K,T,D) of one layer behind what is filled, into reserved pages. The
        new positions count only after `advance`, when all layers are written."""
        key, value = as_array("PagedKVCache", "key", key), as_array("PagedKVCache", "value", value)
        positions = np.arange(self.length, self.length + key.shape[1])
        pages, slots = np.divmod(positions, self.cache.page_size)
        pages = np.array(self.pages)[pages]
        self.cache.key_pages(layer)[pages, :, slots] = key.swapaxes(0, 1)
        self.cache.value_pages(layer)[pages, :, slots] = value.swapaxes(0, 1)

    def advance(self, ids: Sequence[int], *, shared: bool = True) -> None:
        """Counts the positions of these ids as written. Pages that become full may be found by
        later texts, unless any of their ids came with `shared=False`."""
        size, ids = self.cache.page_size, listed(ids)
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
                f"PagedSequence.truncate: length is {length}, needed is 0 to {self.length}"
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


def listed(ids: Sequence[int]) -> Sequence[int]:
    """ids as numbers that equal each other: elements of a tensor are tensors."""
    return as_array("PagedKVCache", "ids", ids).tolist() if hasattr(ids, "__dlpack__") else ids
