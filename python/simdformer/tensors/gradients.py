"""The way back of the operators of PyTorch: each an operator too, so that a graph of torch.compile
holds it, over the function of its name in `simdformer.backward`.

`GRADIENTS` lists them. An operator keeps for its way back what the arguments of that are, and
nothing else. There is no second derivative: where one is wanted, calling is an error.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from simdformer import backward, functional
from simdformer.tensors.memory import no_gradient, tensor_of
from simdformer.tensors.wrapping import call, on_arrays, requires_gradient, tensors_of

__all__ = [
    "ATTENTION",
    "GRADIENTS",
    "LOSS",
    "PAIRS",
    "ROPE",
    "define",
    "differentiate",
    "has_gaps",
    "linear_of_packed",
    "several",
]

# The arguments that the way there and the way back have in common.
ROPE = (
    "Tensor? positions=None, Tensor? inv_freq=None, *, str layout, SymInt offset=0, "
    "float? theta=None, float attention_factor=1.0, int? rotary_dim=None"
)
SEEN = (
    "Tensor? attn_mask=None, Tensor? causal_offset=None, Tensor? key_starts=None, "
    "Tensor? key_lengths=None, Tensor[]? segment_ids=None, Tensor[]? cu_seqlens=None, "
    "Tensor? sinks=None"
)
RULES = (
    "float dropout_p=0.0, bool is_causal=False, float? scale=None, bool enable_gqa=True, "
    "SymInt?[]? window=None, SymInt? chunk=None, float? softcap=None"
)
LOSS = (
    'str reduction="mean", int ignore_index=-100, float label_smoothing=0.0, float z_loss=0.0, '
    "float? softcap=None"
)
ATTENTION = f"{SEEN}, Tensor? block_table=None, *, {RULES}"

# The functions take one of these, or one for queries and one for keys (left and right).
PAIRS = ("window", "segment_ids", "cu_seqlens")


class Gradient(NamedTuple):
    """The schema of the way back, what its results look like, the arguments of the operator that
    have a gradient, in the order of the results, and what the way back takes that is no argument,
    made of these and of the operator's results."""

    schema: str
    shaped: Callable[..., list[Tensor]]
    of: tuple[str, ...]
    kept: Callable[[dict[str, Any], list[Tensor]], dict[str, Any]] = lambda given, results: {}
    first_alone: bool = False  # of several results has a gradient


# ---- the results, by shape and dtype alone -------------------------------------------------------


def like(*names: str) -> Callable[..., list[Tensor]]:
    """Each gradient as the argument of a name."""
    return lambda **given: [given[name].new_empty(given[name].shape) for name in names]


def like_parameters(x: Tensor, **others: Any) -> list[Tensor]:
    """x's as x; a weight's and a bias's at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    parameters = [others[name] for name in ("weight", "bias") if others.get(name) is not None]
    return [x.new_empty(x.shape), *(one.new_empty(one.shape, dtype=wide) for one in parameters)]


def like_linear(grad: Any, x: Tensor, weight: Any, needs: list[str]) -> list[Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    weights = [weight] if isinstance(weight, Tensor) else weight
    shapes = {"weight": [one.shape for one in weights], "bias": [one.shape[:1] for one in weights]}
    of_x = [x.new_empty(x.shape)] if "x" in needs else []
    return of_x + [
        x.new_empty(shape, dtype=wide)
        for name in ("weight", "bias")
        if name in needs
        for shape in shapes[name]
    ]


def like_embedding(grad: Tensor, ids: Tensor, num_embeddings: int) -> list[Tensor]:
    wide = torch.promote_types(grad.dtype, torch.float32)
    return [grad.new_empty((num_embeddings, grad.shape[-1]), dtype=wide)]


def like_repeat_kv(grad: Tensor, n_rep: int, axis: int = -3) -> list[Tensor]:
    shape = list(grad.shape)
    shape[axis] //= n_rep
    return [grad.new_empty(shape)]


def out_and_lse(given: dict[str, Any], results: list[Tensor]) -> dict[str, Any]:
    return {"out": results[0], "lse": results[1] if len(results) > 1 else None}


def output(given: dict[str, Any], results: list[Tensor]) -> dict[str, Any]:
    return {"output": results[0]}


def like_each(grad: Tensor, gradients: list[Tensor]) -> list[Tensor]:
    return [one.new_empty(one.shape) for one in gradients]


def like_needed(needs: list[str], **given: Any) -> list[Tensor]:
    return like(*(name for name in NEEDED if name in needs))(**given)


# ---- the operators -------------------------------------------------------------------------------

NEEDED = ("query", "key", "value", "attn_mask", "sinks")
OF_X = Gradient("(Tensor grad, Tensor x) -> Tensor[]", like("x"), ("x",))
OF_ATTENTION = Gradient(
    "(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor? lse=None, "
    f"{SEEN}, Tensor? grad_lse=None, *, {RULES}, str[] needs) -> Tensor[]",
    like_needed,
    NEEDED,
    out_and_lse,
)
OF_LOSS = Gradient(
    f"(Tensor grad, Tensor logits, Tensor labels, Tensor? lse=None, *, {LOSS}) -> Tensor[]",
    like("logits"),
    ("logits",),
    out_and_lse,
    first_alone=True,
)

GRADIENTS = {
    "silu": OF_X,
    "relu": OF_X,
    "gelu": OF_X._replace(schema='(Tensor grad, Tensor x, *, str approximate="none") -> Tensor[]'),
    "swiglu": Gradient(
        "(Tensor grad, Tensor gate, Tensor up) -> Tensor[]", like("gate", "up"), ("gate", "up")
    ),
    "softmax": Gradient(
        "(Tensor grad, Tensor output, int axis=-1, *, float temperature=1.0) -> Tensor[]",
        like("output"),
        ("x",),
        output,
    ),
    "log_softmax": Gradient(
        "(Tensor grad, Tensor output, int axis=-1) -> Tensor[]", like("output"), ("x",), output
    ),
    "rms_norm": Gradient(
        "(Tensor grad, Tensor x, Tensor? weight=None, *, float eps) -> Tensor[]",
        like_parameters,
        ("x", "weight"),
    ),
    "layer_norm": Gradient(
        "(Tensor grad, Tensor x, Tensor? weight=None, Tensor? bias=None, *, float eps) -> Tensor[]",
        like_parameters,
        ("x", "weight", "bias"),
    ),
    "rope": Gradient(f"(Tensor grad, {ROPE}) -> Tensor[]", like("grad"), ("x",)),
    "linear": Gradient(
        "(Tensor grad, Tensor x, Tensor weight, *, str[] needs) -> Tensor[]",
        like_linear,
        ("x", "weight", "bias"),
    ),
    "linear.list": Gradient(
        "(Tensor[] grad, Tensor x, Tensor[] weight, *, str[] needs) -> Tensor[]",
        like_linear,
        ("x", "weight", "bias"),
    ),
    "embedding": Gradient(
        "(Tensor grad, Tensor ids, SymInt num_embeddings) -> Tensor[]",
        like_embedding,
        ("weight",),
        lambda given, results: {"num_embeddings": given["weight"].shape[0]},
    ),
    "repeat_kv": Gradient(
        "(Tensor grad, SymInt n_rep, *, int axis=-3) -> Tensor[]",
        like_repeat_kv,
        ("x",),
        lambda given, results: {"n_rep": given["n"]},
    ),
    "scaled_dot_product_attention": OF_ATTENTION,
    "scaled_dot_product_attention.parts": OF_ATTENTION,
    "cross_entropy": OF_LOSS,
    "cross_entropy.parts": OF_LOSS,
    # which the way there has made
    "linear_cross_entropy": Gradient(
        "(Tensor grad, Tensor[] gradients) -> Tensor[]",
        like_each,
        ("x", "weight"),
        lambda given, results: {"gradients": results[1:]},
        first_alone=True,
    ),
}

library: Any = torch.library.Library("simdformer", "DEF")  # type: ignore[no-untyped-call]


def define(name: str, schema: str, kernel: Callable[..., Any], shaped: Callable[..., Any]) -> None:
    """Makes torch.ops.simdformer.<name> known; both functions take its arguments by name."""
    library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    names = arguments_of(name)

    def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
        def named(*args: Any, **kwargs: Any) -> Any:
            return function(**dict(zip(names, args, strict=False)), **kwargs)

        return named

    library.impl(name, by_name(kernel), "CPU")
    torch.library.register_fake(f"simdformer::{name}", by_name(shaped), lib=library)


def operator_of(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.simdformer, base), overload or "default")


def arguments_of(name: str) -> list[str]:
    return [argument.name for argument in operator_of(name)._schema.arguments]


def several(named: dict[str, Any]) -> dict[str, Any]:
    """What is one or two as the functions take it: a list of one is that one, of two a pair."""
    for pair in PAIRS:
        if named.get(pair) is not None:
            named[pair] = tuple(named[pair]) if len(named[pair]) > 1 else named[pair][0]
    return named


def name_of_way_back(name: str) -> str:
    """ "linear.list" -> "linear_backward.list"; both of attention have one."""
    base, dot, overload = name.partition(".")
    return f"{base}_backward" if overload == "parts" else f"{base}_backward{dot}{overload}"


def define_way_back(name: str, gradient: Gradient) -> None:
    base = name.partition(".")[0]

    def kernel(**named: Any) -> list[Tensor]:
        named = several(named)
        if base == "scaled_dot_product_attention" and named.get("lse") is None:
            beside = ("grad", "out", "lse", "grad_lse", "needs")
            rest = {name: value for name, value in named.items() if name not in beside}
            forward = functional.scaled_dot_product_attention
            named["lse"] = call(forward, base, (), (), rest | {"return_lse": True})[1]
        if base == "linear_cross_entropy":
            return [one * named["grad"] for one in named["gradients"]]
        arrays = {one: on_arrays(value, f"backward.{base}", one) for one, value in named.items()}
        results = tensors_of(getattr(backward, base)(**arrays))
        # An operator's results lie as its fake's do.
        return [one.contiguous() for one in pytree.tree_leaves(results) if one is not None]

    def close(ctx: Any, **kwargs: Any) -> None:
        raise no_gradient(f"backward.{base}", "there is no second derivative")

    back = name_of_way_back(name)
    define(back, gradient.schema, kernel, gradient.shaped)
    torch.library.register_autograd(f"simdformer::{back}", never, setup_context=close, lib=library)


def never(*args: Any) -> None:
    """The way back, which `close` has closed."""
    raise AssertionError("a gradient of an operator that refuses to have one")


for _name, _gradient in GRADIENTS.items():
    if not _name.endswith(".parts"):
        define_way_back(_name, _gradient)


# ---- autograd ------------------------------------------------------------------------------------


def differentiate(name: str) -> None:
    """Gives the operator of a name its gradient."""
    base = name.partition(".")[0]
    gradient, names = GRADIENTS[name], arguments_of(name)
    way_back = operator_of(name_of_way_back(name))
    takes = arguments_of(name_of_way_back(name))[1:]  # without grad

    def wanted(given: dict[str, Any]) -> list[str]:
        """The arguments whose gradients the way back gives."""
        if "needs" in takes:
            return [one for one in gradient.of if requires_gradient(given[one])]
        needs = given.get("needs", gradient.of)
        return [one for one in gradient.of if one in needs and given[one] is not None]

    def keep(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        given = dict(zip(names, inputs, strict=False)) | (keyword_only_inputs or {})
        refuse(base, gradient.of, given)
        if gradient.first_alone:
            ctx.set_materialize_grads(False)
        ctx.wanted = wanted(given)
        ctx.dtypes = {
            one: pytree.tree_map(lambda leaf: leaf.dtype, given[one]) for one in ctx.wanted
        }
        results = list(output) if isinstance(output, list | tuple) else [output]
        given |= gradient.kept(given, results) | {"needs": ctx.wanted, "grad_lse": None}
        leaves, ctx.spec = pytree.tree_flatten({one: given.get(one) for one in takes})
        ctx.others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        ctx.save_for_backward(*(leaf if isinstance(leaf, Tensor) else None for leaf in leaves))

    def back(ctx: Any, grad: Any) -> tuple[Any, ...]:
        pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
        taken = pytree.tree_unflatten(
            [other if kept is None else kept for kept, other in pairs], ctx.spec
        )
        if gradient.first_alone and isinstance(grad, list):
            if any(one is not None for one in grad[1:]):
                raise no_gradient(base, "the loss alone has one")
            grad = grad[0]
        elif name.endswith(".parts"):
            taken["grad_lse"] = grad[1] if len(grad) > 1 else None
            grad = grad[0]
        if grad is None:
            return tuple(None for _ in ctx.needs_input_grad)
        results = iter(way_back(grad, **taken))
        gradients = {
            one: pytree.tree_map(lambda dtype: next(results).to(dtype), ctx.dtypes[one])
            for one in ctx.wanted
        }
        # Arguments that are their defaults PyTorch has left out at the end; a list needs a list.
        return tuple(
            gradients.get(one, [None] * len(need) if isinstance(need, list) else None)
            for one, need in zip(names, ctx.needs_input_grad, strict=False)
        )

    torch.library.register_autograd(f"simdformer::{name}", back, setup_context=keep, lib=library)


def refuse(base: str, of: tuple[str, ...], given: dict[str, Any]) -> None:
    """RuntimeError where a gradient is wanted that a call does not have."""
    for argument, value in given.items():
        if not requires_gradient(value):
            continue
        if argument not in of:
            raise no_gradient(base, f"{argument} has none")
        if argument not in given.get("needs", of):
            raise no_gradient(base, f"needs does not have {argument!r}")
    if has_gaps(given.get("bias")) and requires_gradient(given["bias"]):
        raise no_gradient(base, "a list of biases with None in it has none")
    for argument in ("block_table", "return_weights", "return_scores"):
        value = given.get(argument)
        if isinstance(value, Tensor) or value:
            raise no_gradient(base, f"a call with {argument} has none")


def has_gaps(value: Any) -> bool:
    """Whether None is in a list; autograd does not look for tensors in such a list."""
    return isinstance(value, list | tuple) and any(one is None for one in value)


# ---- packed and quantised weights, which no operator holds ---------------------------------------


class OfPacked(torch.autograd.Function):
    """`linear` of weights some of which are no tensors: x has a gradient, and so do biases and the
    weights that are tensors."""

    @staticmethod
    def forward(ctx: Any, spec: Any, *leaves: Any) -> Any:
        given = pytree.tree_unflatten(list(leaves), spec)
        ctx.spec, ctx.others = spec, [None if isinstance(one, Tensor) else one for one in leaves]
        ctx.save_for_backward(*(one if isinstance(one, Tensor) else None for one in leaves))
        results = call(functional.linear, "linear", (), (), given)
        return tuple(results) if isinstance(results, list) else results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        function = "backward.linear"
        if torch.is_grad_enabled():
            raise no_gradient(function, "there is no second derivative")
        pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
        leaves = [other if kept is None else kept for kept, other in pairs]
        places = iter(range(1, 1 + len(leaves)))
        at = pytree.tree_map(lambda leaf: next(places), pytree.tree_unflatten(leaves, ctx.spec))
        given = pytree.tree_unflatten(leaves, ctx.spec)
        x, weights = (on_arrays(given[one], function, one) for one in ("x", "weight"))
        arrays = [on_arrays(one, function, "grad") for one in grads]
        found: list[Any] = [None] * (1 + len(leaves))

        def needed(place: Any) -> bool:
            return isinstance(place, int) and bool(ctx.needs_input_grad[place])

        def keep(place: int, gradient: Any) -> None:
            found[place] = tensor_of(gradient).to(leaves[place - 1].dtype)

        each, several = weights, isinstance(weights, list | tuple)
        if not several:
            each, at["weight"], at["bias"] = [weights], [at["weight"]], [at.get("bias")]
        if needed(at["x"]):
            keep(at["x"], backward.linear(arrays, x, each, needs=("x",)).x)
        biases = at.get("bias") or [None] * len(each)
        for grad, weight, *beside in zip(arrays, each, at["weight"], biases, strict=True):
            for name, place in zip(("weight", "bias"), beside, strict=True):
                if needed(place):
                    keep(place, getattr(backward.linear(grad, x, weight, needs=(name,)), name))
        return tuple(found)


def linear_of_packed(**given: Any) -> Any:
    leaves, spec = pytree.tree_flatten(
        {name: one for name, one in given.items() if one is not None}
    )
    results = OfPacked.apply(spec, *leaves)  # type: ignore[no-untyped-call]
    return list(results) if isinstance(given["weight"], list | tuple) else results
