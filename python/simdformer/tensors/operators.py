"""The operations as operators of PyTorch, `torch.ops.simdformer.*`: graphs of torch.compile and
torch.export hold them whole, and know shape and dtype of their results without computing.

`OPERATORS` lists them. The schema of each has the arguments of the function of its name, but for
`out`, tensors first. What may be one thing or two (window, segment_ids, cu_seqlens) is a list, and
lengths and offsets are tensors of one number or of several; an overload (".list", ".parts") gives
several tensors. What a schema cannot hold, packed and quantised weights, is no operator's: calls
with those break a graph in two.

The way back of an operator is one more operator, `torch.ops.simdformer.rms_norm_backward`: graphs
hold that too. `gradients.py` has them.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simdformer import functional, loss
from simdformer.arguments import as_array
from simdformer.tensors.gradients import (
    ATTENTION,
    LOSS,
    PAIRS,
    ROPE,
    define,
    differentiate,
    has_gaps,
    several,
)
from simdformer.tensors.wrapping import on_tensors, wants_gradient
from simdformer.types import Array

__all__ = ["OPERATORS", "PAIRS", "linear_cross_entropy", "traced"]

QKV = "Tensor query, Tensor key, Tensor value"
RETURNS = ("return_weights", "return_scores", "return_lse")
PARTS = ", ".join(f"bool {name}=False" for name in RETURNS)

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
    return parts + [query.new_empty(rows, dtype=wide_of(query))] * return_lse


def wide_of(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def like_loss(logits: Tensor, labels: Tensor, reduction: str = "mean", **others: Any) -> Tensor:
    shape = labels.shape if reduction == "none" else ()
    return logits.new_empty(shape, dtype=wide_of(logits))


def like_loss_and_lse(
    logits: Tensor, labels: Tensor, return_lse: bool = False, **others: Any
) -> list[Tensor]:
    lse = logits.new_empty(labels.shape, dtype=wide_of(logits))
    return [like_loss(logits, labels, **others)] + [lse] * return_lse


def like_loss_and_gradients(
    x: Tensor, weight: Tensor, labels: Tensor, *, needs: list[str], **others: Any
) -> list[Tensor]:
    wide = wide_of(x)
    gradients = {"x": x.new_empty(x.shape), "weight": weight.new_empty(weight.shape, dtype=wide)}
    return [x.new_empty((), dtype=wide), *(gradients[one] for one in gradients if one in needs)]


# ---- the operators -------------------------------------------------------------------------------

# Name -> the schema, and the shape of what it gives.
OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "silu": ("(Tensor x) -> Tensor", like_first),
    "relu": ("(Tensor x) -> Tensor", like_first),
    "gelu": ('(Tensor x, *, str approximate="none") -> Tensor', like_first),
    "swiglu": ("(Tensor gate, Tensor up) -> Tensor", like_first),
    "softmax": ("(Tensor x, int axis=-1, *, float temperature=1.0) -> Tensor", like_first),
    "log_softmax": ("(Tensor x, int axis=-1) -> Tensor", like_first),
    "rms_norm": ("(Tensor x, Tensor? weight=None, *, float eps) -> Tensor", like_first),
    "layer_norm": (
        "(Tensor x, Tensor? weight=None, Tensor? bias=None, *, float eps) -> Tensor",
        like_first,
    ),
    "rope": (f"(Tensor x, {ROPE}) -> Tensor", like_first),
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
    "scaled_dot_product_attention": (f"({QKV}, {ATTENTION}) -> Tensor", like_attention),
    "scaled_dot_product_attention.parts": (
        f"({QKV}, {ATTENTION}, {PARTS}) -> Tensor[]",
        like_parts,
    ),
    "cross_entropy": (f"(Tensor logits, Tensor labels, *, {LOSS}) -> Tensor", like_loss),
    "cross_entropy.parts": (
        f"(Tensor logits, Tensor labels, *, {LOSS}, bool return_lse=False) -> Tensor[]",
        like_loss_and_lse,
    ),
    "linear_cross_entropy": (
        (
            f"(Tensor x, Tensor weight, Tensor labels, *, SymInt? count=None, {LOSS}, str[] needs) "
            "-> Tensor[]"
        ),
        like_loss_and_gradients,
    ),
}


@functools.wraps(loss.linear_cross_entropy)
def linear_cross_entropy(x: Any, weight: Any, labels: Any, **options: Any) -> list[Array]:
    """The loss, and the gradients that are needed, on arrays."""
    made = loss.linear_cross_entropy(x, weight, labels, **options)
    wide = np.promote_types(as_array("linear_cross_entropy", "x", x).dtype, np.float32)
    return [np.asarray(made.loss, wide), *(one for one in made[2:] if one is not None)]


def function_of(name: str) -> Callable[..., Any]:
    """The function on arrays behind an operator."""
    base = name.partition(".")[0]
    if base == "linear_cross_entropy":
        return linear_cross_entropy
    found: Callable[..., Any] = getattr(functional if hasattr(functional, base) else loss, base)
    return found


def register(name: str, schema: str, shaped: Callable[..., Any]) -> None:
    """Makes torch.ops.simdformer.<name> known."""
    on_the_cpu = on_tensors(function_of(name))

    def kernel(**named: Any) -> Any:
        results: Any = on_the_cpu(**several(named))
        if schema.endswith("[]"):
            return list(results) if isinstance(results, list | tuple) else [results]
        return results

    define(name, schema, kernel, shaped)
    differentiate(name)


for _name, _definition in OPERATORS.items():
    register(_name, *_definition)


# ---- the functions, where a graph is made or a gradient is wanted --------------------------------


def traced(name: str) -> Callable[..., Any] | None:
    """What calls the operator of a function with the function's arguments, for `on_tensors`; None
    where there is no such operator."""
    if name not in OPERATORS:
        return None
    operator = getattr(torch.ops.simdformer, name)
    kinds = {one.name: str(one.type) for one in operator.default._schema.arguments}
    tensors = {name for name, kind in kinds.items() if kind in ("Tensor", "Optional[Tensor]")}
    keeps_lse = f"{name}.parts" in OPERATORS

    def call(out: Any = None, **given: Any) -> Any:
        if keeps_lse and wants_gradient(given.values()) and not any(map(given.get, RETURNS)):
            return call(out, **{**given, "return_lse": True})[0]  # kept for the way back
        biases = given.get("bias")
        if isinstance(biases, list | tuple) and all(one is None for one in biases):
            biases = given["bias"] = None
        if has_gaps(biases) and wants_gradient(given.values()):
            pairs = zip(given.pop("weight"), given.pop("bias"), strict=True)
            return [call(**given, weight=weight, bias=bias) for weight, bias in pairs]
        named = {
            name: count_of(value) if name in tensors else of_a_schema(name, value)
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
    if name not in PAIRS:
        return value
    if name == "window":
        return [value] if isinstance(value, int) else list(value)
    return [count_of(one) for one in (value if isinstance(value, tuple) else (value,))]


def count_of(value: Any) -> Any:
    """A tensor, of one number or of several; a number that changes from call to call makes no
    graph of its own."""
    if isinstance(value, int):
        return torch.full((), value, dtype=torch.int64)
    several_tensors = isinstance(value, list | tuple) and any(
        one is None or isinstance(one, Tensor) for one in value
    )
    if several_tensors or isinstance(value, Tensor):  # a list is what an overload takes
        return value
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
