"""What `accelerate` gives to the attention and the layers of transformers' Llama and its kin.

Letters in shapes: B sequences, L positions, H query heads, K key/value heads, D head_dim, E
hidden_size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from simdformer.tensors.forwards import F, Forward, OnArrays, OnTensors, linear_together, ours
from simdformer.tensors.memory import array_of
from simdformer.transformers import attend, attention
from simdformer.transformers.growing_cache import with_new
from simdformer.types import Array

__all__ = ["Attention", "Layer", "Rotary", "Turn"]


@dataclass(frozen=True)
class Turn:
    """The angles of a call, for all layers; taken apart it is (cos, sin), as it is to others."""

    positions: Array  # (L,) or (B,L)
    inv_freq: Array
    factor: float
    cos_sin: Callable[[], tuple[torch.Tensor, torch.Tensor]]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.cos_sin())

    def __call__(self, f: F, x: Any) -> Any:
        """x (B,heads,L,D) -> the same, turned"""
        return f.rope(
            x,
            layout="half",
            positions=self.positions,
            inv_freq=self.inv_freq,
            attention_factor=self.factor,
        )


class Rotary(Forward):
    """x, position_ids (1,L) or (B,L) -> the `Turn` of this call"""

    def compute(self, f: F, x: torch.Tensor, position_ids: torch.Tensor) -> Turn:
        rotary = self.module
        if "dynamic" in rotary.rope_type or rotary.rope_type == "longrope":
            self.as_written(x, position_ids)  # the frequencies depend on the length
        positions = position_ids.numpy()
        return Turn(
            positions[0] if len(positions) == 1 else positions,
            array_of(rotary.inv_freq.float()),
            float(rotary.attention_scaling),
            lambda: self.as_written(x, position_ids),
        )


class WithAttentionOnArrays(OnArrays):
    """The functions of a forward, attention among them."""

    with_new: Any = staticmethod(with_new)

    @staticmethod
    def attended(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        """What `simdformer.transformers.attention` gives."""
        batch, heads, length, _ = q.shape
        z = np.empty((batch, length, heads, v.shape[-1]), q.dtype)
        return z, attend(module, q, k, v, mask, out=z, **options)


class WithAttentionOnTensors(OnTensors, WithAttentionOnArrays):
    """The same where autograd records."""

    @staticmethod
    def with_new(cache: Any, k: Any, v: Any, layer_idx: int) -> Any:
        return cache.update(k, v, layer_idx)

    @staticmethod
    def attended(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        return attention(module, q, k, v, mask, **options)


class BehindRotary(Forward):
    """What is given the `Turn` of a call. Where rotary_emb was replaced and gives something else,
    the module does as it is written.
    """

    functions = WithAttentionOnArrays, WithAttentionOnTensors

    def called(self, *inputs: Any, **options: Any) -> Any:
        if not isinstance(options.get("position_embeddings"), Turn):
            return self.as_written(*inputs, **options)
        return super().called(*inputs, **options)


class Attention(BehindRotary):
    """x (B,L,E) -> (B,L,E), as LlamaAttention and its kin: q, k and v in one pass over x; norms of
    heads where there are some; RoPE; the cache of transformers; attention; the last projection.
    """

    def __init__(self, module: Any) -> None:
        projections = (module.q_proj, module.k_proj, module.v_proj)
        norms = (module.q_norm, module.k_norm) if hasattr(module, "q_norm") else ()
        super().__init__(module)
        self.qkv = tuple(map(ours, projections))
        self.norms, self.out = [ours(norm) for norm in norms], ours(module.o_proj)

    def compute(
        self,
        f: F,
        hidden_states: torch.Tensor,
        position_embeddings: Any = None,
        attention_mask: Any = None,
        past_key_values: Any = None,  # the name of `cache` before transformers 5.24
        cache: Any = None,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        cache = past_key_values if cache is None else cache
        x, mask = f.of(hidden_states), attention_mask
        out, pattern = self.made(f, x, position_embeddings, mask, cache, **options)
        return f.out(out), pattern

    def made(
        self, f: Any, x: Any, turn: Turn, mask: Any, cache: Any, **options: Any
    ) -> tuple[Any, torch.Tensor | None]:
        module = self.module
        batch, length, _ = x.shape
        q, k, v = (
            projected.reshape(batch, length, -1, module.head_dim)
            for projected in linear_together(f, x, self.qkv)
        )
        if self.norms:
            q, k = (norm.made(f, x) for norm, x in zip(self.norms, (q, k), strict=True))
        q, k, v = turn(f, q.swapaxes(1, 2)), turn(f, k.swapaxes(1, 2)), v.swapaxes(1, 2)
        options["dropout"] = module.attention_dropout if module.training else 0.0
        options["scaling"] = module.scaling
        if cache is not None:
            k, v = f.with_new(cache, k, v, module.layer_idx)
        z, pattern = f.attended(module, q, k, v, mask, **options)
        return self.out.made(f, z.reshape(batch, length, -1)), pattern


class Layer(BehindRotary):
    """x (B,L,E) -> (B,L,E): x + attention(norm(x)), and on that x + mlp(norm(x))"""

    def __init__(self, module: Any) -> None:
        steps = (
            module.input_layernorm,
            module.self_attn,
            module.post_attention_layernorm,
            module.mlp,
        )
        super().__init__(module)
        self.attn_norm, self.attention, self.mlp_norm, self.mlp = map(ours, steps)

    def called(self, *inputs: Any, **options: Any) -> Any:
        """What a layer is written as computes it again on the way back, where that is asked for."""
        if self.module.training and getattr(self.module, "gradient_checkpointing", False):
            return self.as_written(*inputs, **options)
        return super().called(*inputs, **options)

    def compute(
        self,
        f: F,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: Any = None,
        position_embeddings: Any = None,
        cache: Any = None,
        **options: Any,
    ) -> torch.Tensor:
        x = hidden_states
        cache = past_key_values if cache is None else cache
        normed = self.attn_norm.made(f, f.of(x))
        out, _ = self.attention.made(
            f, normed, position_embeddings, attention_mask, cache, **options
        )
        x = x + f.out(out)
        return x + f.out(self.mlp.made(f, self.mlp_norm.made(f, f.of(x))))
