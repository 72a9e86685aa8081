"""What generation asks of a model: whatever has this can be continued, batched and draft."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from simdformer.models.batch_pass import BatchPass
from simdformer.models.cache import KVCache
from simdformer.models.config import ModelConfig
from simdformer.models.observer import Edit
from simdformer.models.paged_cache import PagedKVCache
from simdformer.models.ranks import Ranks
from simdformer.types import Array, DTypeLike, NumpyArrayLike

__all__ = ["CausalModel"]


@runtime_checkable
class CausalModel(Protocol):
    """A model on ids, `Transformer` for one. `LanguageModel(model)`, `generate`, `batch` and
    `draft=` take any that has these.

    `config` says max_seq_len, vocab_size and rope_boundary, `ranks` which processes hold it.
    """

    config: ModelConfig
    ranks: Ranks

    def __call__(
        self,
        ids: NumpyArrayLike,
        cache: KVCache | None = None,
        logits_to_keep: int | None = None,
        *,
        edit: Mapping[str, Edit] | None = None,
    ) -> Array:
        """ids (L,) that continue what is in the cache -> float32 logits (L,V)"""
        ...

    def forward_batch(self, run: BatchPass) -> list[Array]:
        """New ids of several texts -> the logits (rows,V) that each piece of them wants"""
        ...

    def new_cache(
        self, max_seq_len: int | None = None, batch: int = 1, dtype: DTypeLike = "float32"
    ) -> KVCache:
        """An empty cache, for the texts of a draft."""
        ...

    def new_pages(
        self,
        memory: int | None = None,
        *,
        page_size: int = 32,
        dtype: DTypeLike = "float32",
        argument: str = "new_pages: memory",
    ) -> PagedKVCache:
        """Empty pages, for the texts of a batch."""
        ...

    def check_pages(self, cache: PagedKVCache) -> None:
        """ValueError when the pages are those of another model."""
        ...
