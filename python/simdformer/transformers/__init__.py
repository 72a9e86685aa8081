"""Attention of transformers' models by our kernels.

    import simdformer.transformers

    simdformer.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="simdformer")

Every model that takes its attention from transformers' AttentionInterface can be had so: prompts
and single tokens, dynamic and static caches, padding on either side, sliding windows, soft caps,
sinks, position biases, encoders; float32, float16 and bfloat16. Queries, keys and values are read
where they lie, no key is repeated for grouped heads, and causal masks, windows and the padding of a
batch are rules instead of matrices of (L,S). `simdformer.torch.accelerate` takes the rest of a
model too.

It computes on the CPU. Where autograd records it has a gradient; dropout is an error.
"""

import inspect
from typing import Any

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from simdformer.attention import scaled_dot_product_attention
from simdformer.tensors import functional as on_tensors
from simdformer.tensors.memory import array_of, no_gradient, tensor_of
from simdformer.tensors.wrapping import wants_gradient
from simdformer.transformers.visible_keys import Rule, VisibleKeys, visible_keys
from simdformer.types import Array

__all__ = ["register"]
__dir__ = __all__.copy  # what dir() and completion show

NAME = "simdformer"


def register() -> None:
    """Makes `attn_implementation="simdformer"` known to transformers; once or often.

    It is for `from_pretrained`, `from_config` and `model.set_attn_implementation`. Results are
    those of "eager" and "sdpa" but for rounding: 16-bit numbers are computed in float32 and rounded
    once, at the store. A query that sees no key, padding for instance, gives 0.

    Where autograd records, it has a gradient: that of `sf.backward`, in eager mode and in graphs.

    What a call of such a model raises: RuntimeError, "no gradient", where autograd records and
    weights are asked for or dropout is on. ValueError: dropout in training (use model.eval()).
    BufferError: tensors that are not on the CPU.

    Raises ImportError itself where transformers is older than 5.4: its masks ask otherwise.
    """
    if "q_length" not in inspect.signature(sdpa_mask).parameters:
        raise ImportError(
            f"simdformer.transformers: found transformers {transformers.__version__}, needs "
            "5.4 or newer"
        )
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, visible_keys)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    output_attentions: bool | None = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """query (B,H,L,D), key (B,K,S,D), value (B,K,S,Dv) -> (B,L,H,Dv), and the weights (B,H,L,S)
    where output_attentions asks for them. s_aux (H,) are sinks, position_bias is added to scores.

    Without a mask it is causal where the module is (or is_causal says so), first position on first
    position, and a single query sees everything; that is how transformers calls `sdpa`.
    """
    wanted = wants_gradient((query, key, value, attention_mask, s_aux, position_bias))
    if wanted and dropout:
        raise no_gradient("simdformer attention", f"dropout is {dropout}, needs 0")
    if wanted or (torch.compiler.is_compiling() and dropout == 0):  # an operator has a gradient
        rule, mask = seen(module, is_causal, attention_mask, position_bias, query.shape[2])
        z = on_tensors.scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            **rule.options,
            scale=scaling,
            softcap=softcap,
            sinks=s_aux,
            return_weights=bool(output_attentions),
        )
        z, pattern = z if output_attentions else (z, None)
        return z.transpose(1, 2).contiguous(), pattern
    batch, heads, queries, _ = query.shape
    out = query.new_empty(batch, queries, heads, value.shape[-1])
    weights = attend(
        module,
        array_of(query),
        array_of(key),
        array_of(value),
        attention_mask,
        out=array_of(out),
        dropout=dropout,
        scaling=scaling,
        is_causal=is_causal,
        softcap=softcap,
        sinks=None if s_aux is None else array_of(s_aux.detach()),
        position_bias=position_bias,
        output_attentions=output_attentions,
    )
    return out, weights


def attend(
    module: torch.nn.Module,
    query: Array,
    key: Array,
    value: Array,
    attention_mask: torch.Tensor | None,
    *,
    out: Array,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    position_bias: torch.Tensor | None = None,
    output_attentions: bool | None = False,
    **others: Any,
) -> torch.Tensor | None:
    """`attention` on arrays, into out (B,L,H,Dv): the weights, where they are asked for."""
    if dropout > 0:
        raise ValueError(
            f"simdformer attention: dropout is {dropout}, but the kernels have none; "
            "call model.eval()"
        )
    rule, mask = seen(module, is_causal, attention_mask, position_bias, query.shape[2])
    found: Any = scaled_dot_product_attention(
        query,
        key,
        value,
        None if mask is None else array_of(mask),
        **rule.options,
        scale=scaling,
        softcap=softcap,
        sinks=sinks,
        return_weights=bool(output_attentions),  # None is no
        out=out.swapaxes(1, 2),
    )
    return tensor_of(found[1]) if output_attentions else None


def seen(
    module: torch.nn.Module,
    is_causal: bool | None,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    queries: int,
) -> tuple[Rule, torch.Tensor | None]:
    """Which keys the queries see: the rule, and what of it is a matrix."""
    if isinstance(mask, VisibleKeys) and mask.rule is not None:
        rule, mask = mask.rule, None
    else:
        rule = unmasked(module, is_causal, mask, queries)
    return rule, combined(rule.padding, mask, position_bias)


def unmasked(
    module: torch.nn.Module, is_causal: bool | None, mask: torch.Tensor | None, queries: int
) -> Rule:
    """What a call means whose mask is no rule."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and mask is None and queries > 1
    return Rule(is_causal=causal, causal_offset=0 if causal else None)


def combined(
    padding: Array | None, mask: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """One mask of up to three: keys that are text, where padding stands between them; keys that may
    be seen (or what is added to their scores); and what a model adds for the distance.
    """
    if padding is not None:
        mask = torch.from_numpy(padding)
    elif isinstance(mask, VisibleKeys):
        mask = mask.matrix()
    if mask is None or bias is None:
        return bias if mask is None else mask
    if mask.dtype is torch.bool:
        return torch.where(mask, bias, -torch.inf)
    return mask + bias
