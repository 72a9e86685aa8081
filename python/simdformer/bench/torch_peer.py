"""PyTorch as a contestant: inference mode, its fused operations, outputs in place where it can."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from simdformer.bench import numpy_peer
from simdformer.bench.contestants import Contestant, Missing, Way, optional
from simdformer.bench.operations import (
    EPS,
    Attention,
    Linear,
    RMSNorm,
    RoPE,
    Softmax,
    SwiGLU,
)
from simdformer.bench.work import Inputs, Work
from simdformer.types import Array

__all__ = ["NAME", "contestants", "tensor", "threads"]

NAME = "torch"
REGROUPED = "torch, regrouped"


def contestants(work: Work, inputs: Inputs) -> list[Contestant | Missing]:
    """torch; beside decode attention with shared heads also its call regrouped by hand."""
    torch = optional("torch")
    if torch is None:
        return [Missing(NAME, "PyTorch is not installed")]
    if isinstance(work, Linear) and work.weight_dtype != work.dtype:
        return [Missing(NAME, f"takes no {work.weight_dtype} weight beside {work.dtype}")]
    on_torch = {name: tensor(array) for name, array in inputs.items()}
    found: list[Contestant | Missing] = [
        Contestant(NAME, tuple(ways(torch, work, on_torch))),
    ]
    if isinstance(work, Attention) and not work.causal and work.heads > work.kv_heads:
        found.append(Contestant(REGROUPED, (regrouped(torch, work, on_torch),), peer=False))
    return found


@contextmanager
def threads(count: int) -> Iterator[None]:
    """As many threads for torch as ours have, and afterwards as many as before."""
    torch = optional("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tensor(array: Array) -> Any:
    """A tensor in the memory of an array; numpy lends torch no bfloat16, but its bits."""
    torch: Any = optional("torch")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(result: Any) -> Array:
    """float32 holds what any of the three dtypes does."""
    array: Array = result.float().numpy()
    return array


def without_batch(result: Any) -> Array:
    return as_array(result[0])


def ways(torch: Any, work: Work, inputs: Inputs) -> Iterator[Way]:
    F = torch.nn.functional
    way = partial(Way, context=torch.inference_mode)
    match work:
        case Attention():
            q, k, v = (inputs[name][None] for name in "qkv")
            causal, shared = work.causal, work.heads > work.kv_heads
            yield way(
                "F.scaled_dot_product_attention",
                lambda: F.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=shared
                ),
                without_batch,
            )
        case Linear():
            x, weight = inputs["x"], inputs["weight"]
            out = torch.empty(work.rows, work.width_out, dtype=x.dtype)
            transposed = weight.t()
            yield way("F.linear", lambda: F.linear(x, weight), as_array)
            yield way("torch.mm, out", lambda: torch.mm(x, transposed, out=out), as_array)
        case RMSNorm():
            x, weight, shape = inputs["x"], inputs["weight"], (work.width,)
            yield way("F.rms_norm", lambda: F.rms_norm(x, shape, weight, EPS), as_array)
        case Softmax():
            x = inputs["x"]
            out = torch.empty_like(x)
            yield way("torch.softmax, out", lambda: torch.softmax(x, -1, out=out), as_array)
        case SwiGLU():
            gate, up = inputs["gate"], inputs["up"]
            act, silu = torch.empty_like(gate), torch.ops.aten.silu.out
            yield way("F.silu(gate) * up", lambda: F.silu(gate) * up, as_array)
            yield way("silu and mul, out", lambda: silu(gate, out=act).mul_(up), as_array)
        case RoPE():
            yield from rope_ways(torch, work, inputs["x"])


def rope_ways(torch: Any, work: RoPE, x: Any) -> Iterator[Way]:
    """As model code writes it, and without new tensors; cos and sin exist already."""
    cos, sin = map(torch.from_numpy, numpy_peer.cos_and_sin(work))
    way = partial(Way, context=torch.inference_mode)
    out = torch.empty_like(x)
    if work.layout == "interleaved":
        turns = torch.complex(cos, sin)
        pairs, turned = (torch.view_as_complex(y.unflatten(-1, (-1, 2))) for y in (x, out))

        def complex_product() -> Any:
            torch.mul(pairs, turns, out=turned)
            return out

        yield way("complex product, out", complex_product, as_array)
        return

    twice_cos, twice_sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)

    def rotate_half() -> Any:
        a, b = x.chunk(2, -1)
        return x * twice_cos + torch.cat([-b, a], -1) * twice_sin

    (a, b), (first, second) = x.chunk(2, -1), out.chunk(2, -1)

    def in_place() -> Any:
        torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=second).addcmul_(a, sin)
        return out

    yield way("x cos + rotate_half(x) sin", rotate_half, as_array)
    yield way("halves, out", in_place, as_array)


def regrouped(torch: Any, work: Attention, inputs: Inputs) -> Way:
    """The query heads of a key/value head as if they were its queries: for one token the same."""
    shape = (1, work.kv_heads, work.heads // work.kv_heads, work.head_dim)
    q, k, v = inputs["q"].reshape(shape), inputs["k"][None], inputs["v"][None]
    attention = torch.nn.functional.scaled_dot_product_attention
    return Way(
        "F.scaled_dot_product_attention, query (1, K, H/K, D)",
        lambda: attention(q, k, v),
        lambda result: as_array(result).reshape(work.heads, 1, work.head_dim),
        torch.inference_mode,
    )
