"""Masks of transformers as rules: which keys a query may see, without a matrix of L by S.

transformers describes a mask by a function of indices and asks the attention implementation to make
of it what it wants. Where the function is one of its own five (causal or not, with a window or not;
in chunks), `visible_keys` gives a `VisibleKeys`: to transformers a boolean tensor (B,1,L,S), to our
attention the few numbers that stand behind it. Any other mask is a tensor as `sdpa` gets it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from simdformer.types import Array

__all__ = ["Rule", "VisibleKeys", "visible_keys"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What `scaled_dot_product_attention` has to know."""

    is_causal: bool
    causal_offset: int | None = None  # where query 0 stands among the keys
    window: int | tuple[int, int] | None = None
    chunk: int | None = None
    key_starts: Array | None = None  # (B,): the padding stands before the text,
    key_lengths: Array | None = None  # (B,): or behind it
    padding: Array | None = None  # (B,1,1,S), True = a key: or between

    @property
    def options(self) -> dict[str, Any]:
        """Its keyword arguments; `padding` is part of a mask."""
        return {name: value for name, value in vars(self).items() if name != "padding"}


class VisibleKeys(torch.Tensor):
    """A boolean mask (B,1,L,S) that is made when somebody computes with it.

    From then on it is that matrix, which may have been written into, and no rule.
    """

    rule: Rule | None
    make: Callable[[], torch.Tensor]
    made: torch.Tensor

    @staticmethod
    def __new__(
        cls, shape: tuple[int, int, int, int], rule: Rule, make: Callable[[], torch.Tensor]
    ) -> "VisibleKeys":
        mask: VisibleKeys = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool)
        mask.rule, mask.make = rule, make
        return mask

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"VisibleKeys({tuple(self.shape)}, {self.rule or self.made})"

    def matrix(self) -> torch.Tensor:
        if self.rule is not None:
            self.rule, self.made = None, self.make()
        return self.made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def whole(x: Any) -> Any:
            return x.matrix() if isinstance(x, cls) else x

        args, kwargs = tree_map(whole, (args, kwargs or {}))
        return function(*args, **kwargs)


def visible_keys(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **options: Any,
) -> torch.Tensor | None:
    """What transformers' AttentionMaskInterface asks for; its names, its meaning.

    None where the attention sees it without being told: every key is visible, or those up to the
    query's own position where there are as many queries as keys.
    """

    def dense(**skips: bool) -> torch.Tensor | None:
        mask: torch.Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            **skips,
            **options,
        )
        return mask

    def whole() -> torch.Tensor:
        mask = dense(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        assert mask is not None  # what it gives where it may skip nothing
        return mask

    kind = None if torch.compiler.is_compiling() else kind_of(mask_function, local_size)
    rule = None
    if kind is not None:
        offset = int(q_offset) - kv_offset
        text = padding_of(attention_mask, kv_length, kv_offset)
        rule = rule_of(kind, text, q_length, kv_length, offset, kv_offset)
    if rule is None:
        return dense(
            allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        )
    may_skip = allow_is_causal_skip if rule.is_causal else allow_is_bidirectional_skip
    if may_skip and goes_without_saying(rule, q_length, kv_length):
        return None
    return VisibleKeys((batch_size, 1, q_length, kv_length), rule, whole)


def goes_without_saying(rule: Rule, queries: int, keys: int) -> bool:
    """Whether a mask of None means the same, see `attention`."""
    others = (rule.window, rule.chunk, rule.key_starts, rule.key_lengths, rule.padding)
    if any(other is not None for other in others):
        return False
    if rule.causal_offset is None or (queries == 1 and rule.causal_offset >= keys - 1):
        return True
    return rule.causal_offset == 0 and queries == keys > 1


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a mask function says of positions; `width` is that of its window or of its chunks.
    Chunks are counted from behind so many positions of padding, (B,)."""

    is_causal: bool
    width: int | None = None
    chunks_from: Array | None = None


def kind_of(mask_function: Callable[..., Any], local_size: int | None) -> Kind | None:
    """None: it is not one of transformers' own."""
    if mask_function is causal_mask_function:
        return Kind(is_causal=True)
    if mask_function is bidirectional_mask_function:
        return Kind(is_causal=False)
    if local_size is None:
        return None
    if same_function(mask_function, sliding_window_causal_mask_function(local_size)):
        return Kind(is_causal=True, width=local_size)
    if same_function(mask_function, sliding_window_bidirectional_mask_function(local_size)):
        return Kind(is_causal=False, width=local_size)
    left_padding = left_padding_of(mask_function)
    if same_function(mask_function, chunked_causal_mask_function(local_size, left_padding)):
        return Kind(is_causal=True, width=local_size, chunks_from=left_padding.numpy())
    return None


def rule_of(
    kind: Kind, text: Rule, queries: int, keys: int, offset: int, kv_offset: int
) -> Rule | None:
    """`text` says which keys are text; key 0 stands at the position `kv_offset`, query 0 `offset`
    further. None: chunks that begin elsewhere than the texts."""
    width, end = kind.width, max(offset + queries, keys)
    unbounded = replace(
        text, is_causal=kind.is_causal, causal_offset=offset if kind.is_causal else None
    )
    rule = replace(unbounded, causal_offset=offset)
    if kind.chunks_from is None:
        if width is None or width >= end:  # a window that hides nothing
            return unbounded
        return replace(rule, window=width if kind.is_causal else (width, width))
    assert width is not None  # of a chunk
    first = kind.chunks_from - kv_offset  # where chunks begin among the keys
    starts = np.zeros_like(first) if text.key_starts is None else text.key_starts
    if (first <= starts).all() and end - first.min() <= width:  # all is in the first chunk
        return unbounded
    if queries == 1:  # of a single query a chunk is a beginning
        own = first + (offset - first) // width * width
        return replace(rule, key_starts=np.clip(own, starts, keys))
    return replace(rule, chunk=width) if (first == starts).all() else None


def left_padding_of(mask_function: Any) -> Any:
    """What `chunked_causal_mask_function` was given; anything where it is another function."""
    both = closure_of(mask_function).get("mask_functions", (None,))
    return closure_of(both[0]).get("left_padding")


def closure_of(function: Any) -> dict[str, Any]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def same_function(one: Any, other: Any) -> bool:
    """Whether two functions are the same code over the same values, closures included."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_function, one, other))
    if not (hasattr(one, "__code__") and hasattr(other, "__code__")):
        return one is other or (type(one) is type(other) and bool(one == other))
    closures = (tuple(closure_of(function).values()) for function in (one, other))
    return one.__code__ is other.__code__ and same_function(*closures)


def padding_of(attention_mask: torch.Tensor | None, kv_length: int, kv_offset: int) -> Rule:
    """The keys that belong to the text, as the rule of an encoder: from where on and up to where in
    each sequence where they stand together, else which ones. attention_mask is (B, positions so
    far).
    """
    everything = Rule(is_causal=False)
    whole: torch.Tensor | None = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if whole is None:
        return everything
    keys = whole[:, kv_offset : kv_offset + kv_length].numpy().astype(bool, copy=False)
    starts = np.where(keys.any(1), keys.argmax(1), kv_length)
    ends = starts + keys.sum(1)
    at = np.arange(kv_length)
    if (keys != ((starts[:, None] <= at) & (at < ends[:, None]))).any():
        return replace(everything, padding=keys[:, None, None])
    return replace(
        everything,
        key_starts=starts if starts.any() else None,
        key_lengths=ends if (ends < kv_length).any() else None,
    )
