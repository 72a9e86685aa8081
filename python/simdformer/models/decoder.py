"""What a model on ids is to those who call it: made of weights, asked for logits, looked into.

The computation itself is `forward`, in models/transformer.py.
"""

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np

from simdformer.arguments import read_whole, shown
from simdformer.functional import QuantizedWeight
from simdformer.models.activation_table import layer_of
from simdformer.models.adapters import Adapter, adapted, check_adapters
from simdformer.models.cache import KVCache
from simdformer.models.communicator import Communicator
from simdformer.models.config import ModelConfig
from simdformer.models.forward_pass import checked_ids, rope_of_layers
from simdformer.models.observer import Edit, Observer
from simdformer.models.paged_cache import PagedKVCache, check_cache_dtype
from simdformer.models.ranks import Ranks, config_of, deal, tensors_of
from simdformer.models.tensors import AnyTensor, block_of, kind_of
from simdformer.models.trace import Trace
from simdformer.models.weights import Weights, arrays_of, check_dtypes, check_weights
from simdformer.types import Array, ArrayLike, DTypeLike, NumpyArrayLike

__all__ = ["Decoder"]


class Decoder(ABC):
    """A decoder-only model with its config and weights, whose `forward` gives logits of ids."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, ArrayLike | QuantizedWeight],
        *,
        dtype: DTypeLike | None = None,
        activations: DTypeLike = "float32",
        arithmetic: Literal["int16", "float32"] = "int16",
        communicator: Communicator | None = None,
    ) -> None:
        tensors = arrays_of(weights)
        check_weights(config, tensors)
        self._prepare(config, tensors, dtype, activations, arithmetic, communicator)

    @classmethod
    def of_fitting(
        cls,
        config: ModelConfig,
        weights: Mapping[str, AnyTensor],
        *,
        dtype: DTypeLike | None = None,
        activations: DTypeLike = "float32",
        arithmetic: Literal["int16", "float32"] = "int16",
        communicator: Communicator | None = None,
    ) -> Self:
        """The same of weights that are known to fit the config, as those of a Checkpoint are."""
        model = object.__new__(cls)
        model._prepare(config, weights, dtype, activations, arithmetic, communicator)
        return model

    def _prepare(
        self,
        config: ModelConfig,
        weights: Mapping[str, AnyTensor],
        dtype: DTypeLike | None,
        activations: DTypeLike,
        arithmetic: Literal["int16", "float32"],
        communicator: Communicator | None,
    ) -> None:
        if arithmetic not in ("int16", "float32"):
            raise ValueError(f"model: arithmetic is {shown(arithmetic)}, needs int16 or float32")
        self.config, self.arithmetic = config, arithmetic
        self.activations: np.dtype[Any] = np.dtype(activations)
        check_dtypes(weights, dtype, self.activations)
        communicator = communicator or Communicator()
        parts = deal(config, lambda name: block_of(kind_of(weights[name])), communicator.size)
        self.ranks = Ranks(communicator, parts)
        self.own = config  # with the numbers of heads that this rank holds
        if communicator.size > 1:
            part = self.ranks.own
            weights = tensors_of(part, config, weights, is_first=communicator.rank == 0)
            self.own = config_of(part, config)
        self.weights = Weights.prepare(config, weights, dtype, self.ranks.own.experts)
        self.rope_of_layers = rope_of_layers(config)
        self.adapters: Mapping[str, Adapter] = {}

    def with_adapters(self, adapters: Mapping[str, Adapter]) -> Self:
        """The same model, of the same memory, whose matrices have these adapters by name, and no
        others. ValueError: they do not fit; several ranks hold the model."""
        self.require_whole("adapter")
        check_adapters(self.config, adapters)
        model = copy.copy(self)
        model.weights, model.adapters = adapted(self.weights, self.config, adapters), dict(adapters)
        return model

    def __call__(
        self,
        ids: NumpyArrayLike,
        cache: KVCache | None = None,
        logits_to_keep: int | None = None,
        *,
        edit: Mapping[str, Edit] | None = None,
    ) -> Array:
        """ids (L,) or (B,L) -> float32 logits (L,V) or (B,L,V).

        With a cache the ids continue what is in it and are appended to it. `logits_to_keep` n
        gives the logits of the last n positions only. TypeError for ids that are no integers,
        IndexError for one outside the vocabulary, ValueError when the cache is full or belongs to
        another model.

        `edit` changes activations on their way: a dict of names of `run_with_cache`, or globs, to
        arrays, which take their place (broadcast to their shape), or to functions of an array. A
        function is given a copy in the shape of the trace, in float32 (float64 where activations
        are; ids of experts as they are). What it returns, of the same shape and dtype, is used from
        there on; None stands for the copy, which it may have written into. An unknown name:
        KeyError. Another shape or dtype: ValueError.
        """
        ids = checked_ids(ids)
        if logits_to_keep is not None:
            read_whole("model", "logits_to_keep", logits_to_keep, "None (all) or n >= 1")
        observer = None
        if edit:
            observer = Observer(self.ranks, self.config, (), edit, batched=ids.ndim == 2)
        logits = self.forward(np.atleast_2d(ids), cache, logits_to_keep, observer)
        return logits if ids.ndim == 2 else logits[0]

    def run_with_cache(
        self,
        ids: NumpyArrayLike,
        names: str | Iterable[str] | None = None,
        *,
        edit: Mapping[str, Edit] | None = None,
    ) -> tuple[Array, Trace]:
        """The logits, and every activation by name, as a `Trace`; with `names` (globs) only those.

        embed, layers.{i}.{resid_pre, attn_norm, attn.q, attn.k, attn.v, attn.q_rot, attn.k_rot,
        attn.scores, attn.pattern, attn.z, attn.out, resid_mid, mlp_norm, mlp.gate, mlp.up,
        mlp.act, mlp.out, resid_post}, final_norm, logits; attn.q_normed and attn.k_normed where
        the model has them, attn_norm and mlp_norm unless it has norms behind attention and MLP
        only; with learned positions pos_embed, which is added to embed; without a gate no mlp.gate,
        and mlp.act is the activation of mlp.up. attn.out and mlp.out are what is added to the
        residual stream, after such a norm and residual_scale; embed, scores and logits are those
        after their scales and softcaps. q, k, v, z are (L,H,D) or (L,K,D), scores (-inf where
        hidden) and pattern (H,L,S), mlp.gate, up, act (L,intermediate_size), the others (L,E), with
        a batch axis in front when ids have one.
        An unknown name: KeyError that lists near ones.

        In a layer with X experts, of which a token goes through k: mlp.router (L,X), their logits;
        mlp.experts (L,k), whole numbers, the chosen ones; mlp.expert_weights (L,k), how much each
        counts; mlp.gate, up, act (L,k,I) and mlp.expert_out (L,k,E) of each, before it is weighed.
        For an MLP beside them mlp.shared.gate, up, act, mlp.shared.weight (L,1) where it has a
        router, and mlp.shared.out, what it adds. A changed mlp.router changes who is chosen.

        Computed only for a name or a glob that fits nothing else: layers.{i}.attn.result (L,H,E),
        what each head writes, its z through its part of wo (with the bias of wo they add up to
        what attention gives, before such a norm and scale), and final_norm_scale (L,1), what the
        final norm divides by.

        `edit` as in `__call__`; the trace holds the activations as they were used, after it.
        """
        ids = checked_ids(ids)
        observer = Observer(self.ranks, self.config, names, edit, batched=ids.ndim == 2)
        logits = self.forward(np.atleast_2d(ids), None, None, observer)
        trace = Trace(observer.activations, ids=ids, model=self.config.summary)
        return logits if ids.ndim == 2 else logits[0], trace

    def run_from(
        self,
        layer: int,
        trace: Trace,
        names: str | Iterable[str] | None = None,
        *,
        edit: Mapping[str, Edit] | None = None,
    ) -> tuple[Array, Trace]:
        """`run_with_cache` of what a trace has read, with edits in this layer and behind it: what
        lies in front of it is not computed again, but that of the trace, which has the layer's
        resid_pre. The same numbers, in less time."""
        if self.activations == np.float64:  # a trace has its float32
            return self.run_with_cache(trace.ids, names, edit=edit)
        ids = checked_ids(trace.ids)
        stream = trace[f"layers.{layer}.resid_pre"].astype(self.activations, copy=False)
        batched = ids.ndim == 2
        start = layer, stream if batched else stream[None]
        observer = Observer(self.ranks, self.config, names, edit, batched=batched, start=start)
        logits = self.forward(np.atleast_2d(ids), None, None, observer)
        front = {name: array for name, array in trace.items() if is_in_front(name, layer)}
        again = Trace(front | observer.activations, ids=ids, model=self.config.summary)
        return logits if batched else logits[0], again

    def require_whole(self, function: str) -> None:
        """ValueError where others hold the weights with this process, which has its part alone."""
        if self.ranks.size > 1:
            raise ValueError(
                f"{function}: found a model that {self.ranks.size} ranks hold together, needs "
                "one with all of its weights here; load it without comm"
            )

    def new_cache(
        self,
        max_seq_len: int | None = None,
        batch: int = 1,
        dtype: DTypeLike = "float32",
        *,
        memory: int | None = None,
        page_size: int = 32,
    ) -> KVCache:
        """An empty cache for this model, for `max_seq_len` positions (None: the config's) of a text
        or of `batch` of them. `model(ids, cache)`, `generate`, `chat` and `batch` take it.

        `memory` bounds the bytes of all texts in it, in pages of `page_size` positions. ValueError:
        a page takes more.
        """
        return KVCache(
            num_layers=self.config.num_layers,
            num_kv_heads=self.own.num_kv_heads,
            head_dim=self.config.head_dim,
            max_seq_len=self.config.max_seq_len if max_seq_len is None else max_seq_len,
            batch=batch,
            dtype=dtype,
            page_size=page_size,
            max_pages=self.most_pages("new_cache: memory", memory, page_size, dtype),
        )

    def new_pages(
        self,
        memory: int | None = None,
        *,
        page_size: int = 32,
        dtype: DTypeLike = "float32",
        argument: str = "new_pages: memory",
    ) -> PagedKVCache:
        """The pages of a cache without a text of its own, as `generate` makes them where it is
        given none. Errors as of `new_cache`; `argument` is what they call the memory."""
        return PagedKVCache(
            num_layers=self.config.num_layers,
            num_kv_heads=self.own.num_kv_heads,
            head_dim=self.config.head_dim,
            max_pages=self.most_pages(argument, memory, page_size, dtype),
            page_size=page_size,
            dtype=dtype,
        )

    def most_pages(
        self, argument: str, memory: int | None, page_size: int, dtype: DTypeLike
    ) -> int | None:
        """How many pages so many bytes hold; on several ranks, where they hold the fewest."""
        if memory is None:
            return None
        function, name = argument.split(": ")
        read_whole(function, name, memory)
        each = math.prod((self.config.num_layers, 2, self.own.num_kv_heads, self.config.head_dim))
        check_cache_dtype("KVCache", dtype)
        each *= np.dtype(dtype).itemsize * read_whole("KVCache", "page_size", page_size)
        if memory < each:
            raise ValueError(
                f"{argument} is {memory} bytes, needs at least {each}, for one page of "
                f"{page_size} positions; each text takes whole pages"
            )
        return self.ranks.communicator.all_reduce_min(memory // each)

    def new_paged_cache(
        self, memory: int | None = None, *, page_size: int = 32, dtype: DTypeLike = "float32"
    ) -> PagedKVCache:
        """The name of `new_pages` in 0.1; `new_cache` makes what `generate` takes too."""
        warnings.warn(
            "new_paged_cache is new_cache(memory=...) now, which generate and the model take both",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.new_pages(memory, page_size=page_size, dtype=dtype)

    def check_pages(self, cache: PagedKVCache) -> None:
        """ValueError when the pages belong to another model."""
        layers, _, _, kv_heads, _, head_dim = cache.data.shape
        config = self.own
        found, needed = (
            (layers, kv_heads, head_dim),
            (config.num_layers, config.num_kv_heads, config.head_dim),
        )
        if found != needed:
            raise ValueError(
                f"model: cache has (layers, key/value heads, head_dim) = {found}, needs "
                f"{needed}; make one with new_cache()"
            )

    @abstractmethod
    def forward(
        self,
        ids: Array,
        cache: KVCache | None,
        logits_to_keep: int | None,
        observer: Observer | None,
    ) -> Array:
        """ids (B,L) -> logits (B,L,V)"""


def is_in_front(name: str, layer: int) -> bool:
    """Whether an activation is computed in front of a layer."""
    own = layer_of(name)
    return name in ("embed", "pos_embed") if own is None else own < layer
