"""Masks of transformers as rules: which keys a query may see, without a matrix of L by S.

transformers describes a mask by a function of indices and asks the attention implementation to make
of it what it wants. Where the function is one of its own four (causal or not, with a window or
not), `visible_keys` gives a `VisibleKeys`: to transformers a boolean tensor (B,1,L,S), to our
attention the few numbers that stand behind it. Any other mask is a tensor as `sdpa` gets it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

from simdformer.types import Array

__all__ = ["Rule", "VisibleKeys", "visible_keys"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What `scaled_dot_product_attention` has to know."""

    is_causal: bool
    causal_offset: int | None = None  # where query 0 stands among the keys
    window: int | None = None
    key_lengths: Array | None = None  # (B,): the padding stands behind the text
    padding: Array | None = None  # (B,1,1,S), True = a key: it stands anywhere else


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
    if kind is None:
        return dense(
            allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        )
    is_causal, window = kind
    offset = int(q_offset) - kv_offset
    if window is not None and window >= max(offset + q_length, kv_length):
        window = None  # it hides nothing
    lengths, padding = padding_of(attention_mask, kv_length, kv_offset)
    rule = Rule(
        is_causal=is_causal,
        causal_offset=offset if is_causal else None,
        window=window,
        key_lengths=lengths,
        padding=padding,
    )
    may_skip = allow_is_causal_skip if is_causal else allow_is_bidirectional_skip
    if may_skip and goes_without_saying(rule, q_length, kv_length):
        return None
    return VisibleKeys((batch_size, 1, q_length, kv_length), rule, whole)


def goes_without_saying(rule: Rule, queries: int, keys: int) -> bool:
    """Whether a mask of None means the same, see `attention`."""
    if rule.window is not None or rule.key_lengths is not None or rule.padding is not None:
        return False
    if rule.causal_offset is None or (queries == 1 and rule.causal_offset >= keys - 1):
        return True
    return rule.causal_offset == 0 and queries == keys > 1


def kind_of(
    mask_function: Callable[..., Any], local_size: int | None
) -> tuple[bool, int | None] | None:
    """Whether it is causal, and its window; None: it is not one of transformers' own."""
    if mask_function is causal_mask_function:
        return True, None
    if mask_function is bidirectional_mask_function:
        return False, None
    if local_size is not None:
        with_window = sliding_window_causal_mask_function(local_size)
        if same_function(mask_function, with_window):
            return True, local_size
    return None


def same_function(one: Any, other: Any) -> bool:
    """Whether two functions are the same code over the same values, closures included."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_function, one, other))
    if not (hasattr(one, "__code__") and hasattr(other, "__code__")):
        return type(one) is type(other) and bool(one == other)
    closures = (
        tuple(cell.cell_contents for cell in function.__closure__ or ())
        for function in (one, other)
    )
    return one.__code__ is other.__code__ and same_function(*closures)


def padding_of(
    attention_mask: torch.Tensor | None, kv_length: int, kv_offset: int
) -> tuple[Array | None, Array | None]:
    """The keys that belong to the text: their numbers (B,) where they come first in each sequence,
    else which ones (B,1,1,S); neither where all do. attention_mask is (B, positions so far).
    """
    whole: torch.Tensor | None = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if whole is None:
        return None, None
    keys = whole[:, kv_offset : kv_offset + kv_length].numpy().astype(bool, copy=False)
    if keys.all():
        return None, None
    lengths = keys.sum(1)
    if (keys == (np.arange(kv_length) < lengths[:, None])).all():
        return lengths, None
    return None, keys[:, None, None]
