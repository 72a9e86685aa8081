"""Mixtures of experts on tensors: what `simdformer.experts` has, with gradients.

Where none is wanted each function is that on arrays. Where one is, PyTorch's own gathers and sums
stand between our products, so that autograd finds its way.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from simdformer import experts
from simdformer.tensors import functional
from simdformer.tensors.wrapping import call, outside_graphs, requires_gradient

__all__ = ["combine_experts", "expert_linear", "expert_weights", "top_k"]


def on_arrays(function: Callable[..., Any], *args: Any) -> Any:
    """What a function on arrays gives; none of these is an operator for graphs."""
    run = outside_graphs(call) if torch.compiler.is_compiling() else call
    return run(function, function.__name__, ("x", "ids", "weights"), args, {})


def wanted(values: Iterable[Any]) -> bool:
    return torch.is_grad_enabled() and any(map(requires_gradient, values))


def top_k(logits: Tensor, k: int) -> Tensor:
    """logits (..., X) -> ids (..., k), which have no gradient"""
    found: Tensor = on_arrays(experts.top_k, logits.detach(), k)
    return found


def expert_weights(logits: Tensor, ids: Tensor, *, normalize: bool) -> Tensor:
    """logits (..., X), ids (..., k) -> (..., k), in float32 at least"""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if normalize:
        return functional.softmax(wide.gather(-1, ids))
    return functional.softmax(wide).gather(-1, ids)


def expert_linear(x: Tensor, ids: Tensor, weights: Sequence[Any]) -> list[Tensor]:
    """x (..., k, I) or (..., 1, I), ids (..., k), weights: for each result the experts', in a list
    or along the first axis of a tensor -> (..., k, O) of each"""
    each = [list(experts_of_one) for experts_of_one in weights]
    if not wanted([x, *(one for experts_of_one in each for one in experts_of_one)]):
        found: list[Tensor] = on_arrays(experts.expert_linear, x, ids, each)
        return found
    rows, chosen = x.flatten(0, -2), ids.flatten()
    share = len(chosen) // max(len(rows), 1)
    out = [rows.new_zeros(len(chosen), experts_of_one[0].shape[0]) for experts_of_one in each]
    for expert in sorted(set(chosen.tolist())):
        places = (chosen == expert).nonzero().squeeze(1)
        made = functional.linear(rows[places // share], [one[expert] for one in each])
        out = [total.index_copy_(0, places, one) for total, one in zip(out, made, strict=True)]
    return [one.reshape(*ids.shape, one.shape[-1]) for one in out]


def combine_experts(x: Tensor, weights: Tensor) -> Tensor:
    """x (..., k, E), weights (..., k) -> (..., E)"""
    if not wanted((x, weights)):
        found: Tensor = on_arrays(experts.combine_experts, x, weights)
        return found
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * weights.to(wide).unsqueeze(-1)).sum(-2).to(x.dtype)
