"""The operations as operators of PyTorch, `torch.ops.simdformer.*`: graphs of torch.compile and
torch.export hold them whole, and know shape and dtype of their results without computing.

`OPERATORS` lists them. The schema of each has the arguments of the function of its name, but for
`out`, tensors first. What may be one thing or two (window, segment_ids, cu_seqlens) is a list, and
lengths and offsets are tensors of one number or of several; an overload (".list", ".parts") gives
several tensors. What a schema cannot hold, packed and quantised weights, is no operator's: calls
with those break a graph in two.

There is no gradient: where one is wanted, calling is an error.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simdformer import functional
from simdformer.tensors.memory import no_gradient
from simdformer.tensors.wrapping import on_tensors

__all__ = ["OPERATORS", "PAIRS", "traced"]

ROPE = (
    "(Tensor x, Tensor? positions=None, Tensor? inv_freq=None, *, str layout, SymInt offset=0, "
    "float? theta=None, float attention_factor=1.0, int? rotary_dim=None"
)
ATTENTION = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "Tensor? causal_offset=None, Tensor? key_starts=None, Tensor? key_lengths=None, "
    "Tensor[]? segment_ids=None, Tensor[]? cu_seqlens=None, Tensor? sinks=None, "
    "Tensor? block_table=None, *, float dropout_p=0.0, bool is_causal=False, float? scale=None, "
    "bool enable_gqa=True, SymInt?[]? window=None, SymInt? chunk=None, float? softcap=None"
)
PARTS = "bool return_weights=False, bool return_scores=False, bool return_lse=False"

# The functions take one number for these too, or a list;
COUNTS = ("positions", "causal_offset", "key_starts", "key_lengths", "block_table")
# and of these one, or one for queries and one for keys (left and right).
PAIRS = ("window", "segment_ids", "cu_seqlens")

# ---- the results, by shape and dtype alone -------------------------------------------------------


def like_first(**given: Any) -> Any:
    x = next(iter(given.values()))
    return x.new_empty(x.shape)


def like_linear(x: Tensor, weight: Tensor, **others: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def like_linears(x: Tensor, weight: list[Tensor], **others: Any) -> list[Tensor]:
    return [like_linear(x, one) for one in weight]


def like_embedding(ids: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return weight.new_empty((*ids.shape, weight.shape[1]), dtype=dtype)


def like_repeat_kv(x: Tensor, n: int, axis: int = -3) -> Tensor:
    shape = list(x.shape)
    shape[axis] *= n
    return x.new_empty(shape)


def like_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_table: Tensor | None = None,
    **others: Any,
) -> Tensor:
    return query.new_empty((*axes_of_rows(query, key, value, block_table), value.shape[-1]))


def axes_of_rows(
    query: Tensor, key: Tensor, value: Tensor, block_table: Tensor | None
) -> tuple[int, ...]:
    """(..., H, L), whose leading axes are those of all together; pools of pages have none."""
    beside = [key.shape[:-3], value.shape[:-3]]
    if block_table is not None:
        beside = [block_table.shape[:-1]]
    broadcast: Any = torch.broadcast_shapes
    return (*broadcast(query.shape[:-3], *beside), *query.shape[-3:-1])


def like_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_table: Tensor | None = None,
    return_weights: bool = False,
    return_scores: bool = False,
    return_lse: bool = False,
    **others: Any,
) -> list[Tensor]:
    keys = key.shape[-2] * (1 if block_table is None else block_table.shape[-1])
    rows = axes_of_rows(query, key, value, block_table)
    parts = [query.new_empty((*rows, value.shape[-1]))]
    for wanted in (return_weights, return_scores):
        parts += [query.new_empty((*rows, keys))] * wanted
    wide = torch.promote_types(query.dtype, torch.float32)
    return parts + [query.new_empty(rows, dtype=wide)] * return_lse


# ---- the operators -------------------------------------------------------------------------------

# Name -> the schema, and the shape of what it gives.
OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "silu": ("(Tensor x) -> Tensor", like_first),
    "relu": ("(Tensor x) -> Tensor", like_first),
    "gelu": ('(Tensor x, *, str approximate="none") -> Tensor', like_first),
    "swiglu": ("(Tensor gate, Tensor up) -> Tensor", like_first),
    "softmax": ("(Tensor x, int axis=-1, *, float temperature=1.0) -> Tensor", like_first),
    "rms_norm": ("(Tensor x, Tensor? weight=None, *, float eps) -> Tensor", like_first),
    "layer_norm": (
        "(Tensor x, Tensor? weight=None, Tensor? bias=None, *, float eps) -> Tensor",
        like_first,
    ),
    "rope": (f"{ROPE}) -> Tensor", like_first),
    "linear": (
        '(Tensor x, Tensor weight, Tensor? bias=None, *, str arithmetic="int16") -> Tensor',
        like_linear,
    ),
    "linear.list": (
        '(Tensor x, Tensor[] weight, Tensor?[]? bias=None, *, str arithmetic="int16") -> Tensor[]',
        like_linears,
    ),
    "embedding": (
        "(Tensor ids, Tensor weight, *, ScalarType? dtype=None) -> Tensor",
        like_embedding,
    ),
    "repeat_kv": ("(Tensor x, SymInt n, *, int axis=-3) -> Tensor", like_repeat_kv),
    "scaled_dot_product_attention": (f"{ATTENTION}) -> Tensor", like_attention),
    "scaled_dot_product_attention.parts": (f"{ATTENTION}, {PARTS}) -> Tensor[]", like_parts),
}

library: Any = torch.library.Library("simdformer", "DEF")  # type: ignore[no-untyped-call]


def register(name: str, schema: str, shaped: Callable[..., Any]) -> None:
    """Makes torch.ops.simdformer.<name> known."""
    base, _, overload = name.partition(".")
    on_the_cpu = on_tensors(getattr(functional, base))
    library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    operator = getattr(getattr(torch.ops.simdformer, base), overload or "default")
    names = [argument.name for argument in operator._schema.arguments]

    def shape(*args: Any, **kwargs: Any) -> Any:
        return shaped(**dict(zip(names, args, strict=False)), **kwargs)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(names, args, strict=False)) | kwargs
        for pair in PAIRS:
            if named.get(pair) is not None:
                named[pair] = tuple(named[pair]) if len(named[pair]) > 1 else named[pair][0]
        results: Any = on_the_cpu(**named)
        return list(results) if schema.endswith("[]") else results

    def refuse(ctx: Any, **kwargs: Any) -> None:
        raise no_gradient(base)

    library.impl(name, kernel, "CPU")
    torch.library.register_fake(f"simdformer::{name}", shape, lib=library)
    torch.library.register_autograd(f"simdformer::{name}", never, setup_context=refuse, lib=library)


def never(*args: Any) -> None:
    """The way back, which `refuse` has closed."""
    raise AssertionError("a gradient of an operator that refuses to have one")


for _name, _definition in OPERATORS.items():
    register(_name, *_definition)


# ---- the functions, while a graph is made --------------------------------------------------------


def traced(name: str) -> Callable[..., Any] | None:
    """What calls the operator of a function with the function's arguments, for `on_tensors`; None
    where there is no such operator."""
    if name not in OPERATORS:
        return None
    operator = getattr(torch.ops.simdformer, name)

    def call(out: Any = None, **given: Any) -> Any:
        named = {
            name: of_a_schema(name, value)
            for name, value in given.items()
            if not (value is None or (name.startswith("return_") and value is False))
        }
        results = operator(**named)
        if any(name.startswith("return_") for name in named):
            results = tuple(results)
        return results if out is None else copied(results, out)

    return call


def of_a_schema(name: str, value: Any) -> Any:
    """An argument of a function as its operator takes it."""
    if name in COUNTS:
        return count_of(value)
    if name not in PAIRS:
        return value
    if name == "window":
        return [value] if isinstance(value, int) else list(value)
    return [count_of(one) for one in (value if isinstance(value, tuple) else (value,))]


def count_of(value: Any) -> Any:
    """A tensor of one number, or of several; one that changes from call to call makes no graph of
    its own."""
    if isinstance(value, int):
        return torch.full((), value, dtype=torch.int64)
    return torch.as_tensor(value)


def copied(results: Any, out: Any) -> Any:
    """Results written into out: a tensor, or one for each of a list or None; a tuple has its own
    result first."""
    if isinstance(results, tuple):
        return (out.copy_(results[0]), *results[1:])
    if isinstance(results, list):
        return [
            result if one is None else one.copy_(result)
            for result, one in zip(results, out, strict=True)
        ]
    return out.copy_(results)
