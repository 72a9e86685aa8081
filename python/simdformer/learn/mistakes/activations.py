"""The activations in steps, and what goes wrong in them.

The meaning is that of `reference.silu`, `gelu`, `relu` and `swiglu`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State, mistake
from simdformer.reference import erfc

MLP = "02 §7"
GELU = "04 §8"

silu = Program("silu", of=functional.silu, axes=("position", "channel"))
gelu = Program("gelu", of=functional.gelu, axes=("position", "channel"))
relu = Program("relu", of=functional.relu, axes=("position", "channel"))
swiglu = Program("swiglu", of=functional.swiglu, axes=("position", "channel"))


@gelu.step
@relu.step
@silu.step
def inputs(s: State) -> None:
    s.h = s.run.array(s.x)


@silu.step
def sigmoid(s: State) -> None:
    s.share = 1 / (1 + np.exp(-s.h))


@gelu.step
def normal(s: State) -> None:
    if s.approximate == "tanh":
        bent = np.tanh(s.run.dtype(math.sqrt(2 / math.pi)) * (s.h + s.run.dtype(0.044715) * s.h**3))
        s.share = (1 + bent) / 2
    else:
        s.share = s.run.array(erfc(-s.h / s.run.dtype(math.sqrt(2)))) / 2


@gelu.step
@silu.step
def product(s: State) -> None:
    s.out = s.h * s.share


@relu.step
def maximum(s: State) -> None:
    s.out = np.maximum(s.h, 0)


@swiglu.step
def activate(s: State) -> None:
    s.g, s.u = s.run.array(s.gate), s.run.array(s.up)
    s.act = s.run(silu, x=s.g).out


@swiglu.step
def gated(s: State) -> None:
    s.out = s.act * s.u


@gelu.thin
@relu.thin
@silu.thin
@swiglu.thin
def some_rows(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    names = [name for name in ("x", "gate", "up") if name in variables]
    arrays = {name: np.asarray(variables[name]) for name in names}
    index = rows_of(arrays[names[0]].shape, limit)
    if index is None:
        return None
    return variables | {name: x[index] for name, x in arrays.items()}, lambda out: out[index]


# ---- mistakes: another function ------------------------------------------------------------------


def sigmoid_of(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


# name: (as it is called in a title, the function, the functions it may be taken for)
FUNCTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "silu": ("silu", lambda x: x * sigmoid_of(x)),
    "gelu": ("gelu", lambda x: x * erfc(-x / math.sqrt(2)).astype(x.dtype) / 2),
    "gelu_tanh": (
        "gelu in its tanh form",
        lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    ),
    "quick_gelu": ("x * sigmoid(1.702 x), the quick gelu,", lambda x: x * sigmoid_of(1.702 * x)),
    "relu": ("relu", lambda x: np.maximum(x, 0)),
    "leaky_relu": ("leaky relu (slope 0.01)", lambda x: np.where(x > 0, x, 0.01 * x)),
    "relu_squared": ("the square of relu", lambda x: np.maximum(x, 0) ** 2),
    "elu": ("elu", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "softplus": ("softplus", lambda x: np.logaddexp(x, 0)),
    "mish": ("mish", lambda x: x * np.tanh(np.logaddexp(x, 0))),
    "tanh": ("tanh", np.tanh),
    "sigmoid": ("sigmoid", sigmoid_of),
    "x_tanh": ("x * tanh(x)", lambda x: x * np.tanh(x)),
    "step": ("a step from 0 to 1", lambda x: np.where(x > 0, 1, 0).astype(x.dtype)),
    "absolute": ("the absolute value", np.abs),
}
USUAL = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")
# What is not said in general words, as (cause, fix).
SPECIAL = {
    ("silu", "sigmoid"): (
        "silu(x) is x * sigmoid(x): the x in front is missing.",
        "Multiply the sigmoid by x.",
    ),
    ("silu", "quick_gelu"): (
        "x * sigmoid(1.702 x) is an approximation of gelu; silu has no factor inside.",
        "Write x * sigmoid(x), or x / (1 + exp(-x)).",
    ),
    ("relu", "leaky_relu"): (
        "Negative numbers become exactly 0, not a hundredth of themselves.",
        "Write np.maximum(x, 0).",
    ),
}
WHERE = {
    "silu": "x * sigmoid(x), or x / (1 + exp(-x)) (torch.nn.functional.silu)",
    "gelu": "x * Phi(x), Phi the normal distribution (torch.nn.functional.gelu)",
    "relu": "np.maximum(x, 0) (torch.nn.functional.relu)",
}


def instead(function: Callable[[Any], Any]) -> Callable[[State], None]:
    def other(s: State) -> None:
        s.out = s.run.array(function(s.h))

    return other


for op, last in {"silu": "product", "gelu": "product", "relu": "maximum"}.items():
    for name, (called, function) in FUNCTIONS.items():
        if name == op or (op, name) == ("gelu", "gelu_tanh"):
            continue
        cause, fix = SPECIAL.get(
            (op, name),
            (
                "Activations look alike; the config of a model says which one it was trained with.",
                f"Use {WHERE[op]}.",
            ),
        )
        mistake(
            f"{op}.{last}",
            name=f"{name}_instead",
            title=f"this is {called} instead of {op}".replace(", instead", " instead"),
            cause=cause,
            fix=fix,
            step=MLP if op == "silu" else GELU,
            rare=name not in USUAL,
        )(instead(function))
    mistake(
        f"{op}.{last}",
        name="not_applied",
        title=f"{op} is not applied: x comes back as it was",
        cause=f"The call of {op} is missing, or its result is not used.",
        fix=f"Use {WHERE[op]}.",
        step=MLP if op == "silu" else GELU,
    )(instead(lambda x: x))


# ---- mistakes: silu ------------------------------------------------------------------------------


@mistake(
    "silu.sigmoid",
    title="the sigmoid has the wrong sign: x / (1 + exp(x))",
    cause="sigmoid(x) is 1 / (1 + exp(-x)); without the minus large x are pushed to 0.",
    fix="Write x / (1 + np.exp(-x)).",
    step=MLP,
)
def sigmoid_of_minus_x(s: State) -> None:
    s.share = 1 / (1 + np.exp(s.h))


@mistake(
    "silu.sigmoid",
    title="exp overflows: NaN where x is large",
    cause="exp(x) / (1 + exp(x)) is infinity over infinity from x = 89 on in float32.",
    fix="Write 1 / (1 + np.exp(-x)): there infinity gives 0, as it should.",
    step=MLP,
)
def sigmoid_overflows(s: State) -> None:
    e = np.exp(s.h)
    s.share = e / (1 + e)


@mistake(
    "silu.sigmoid",
    title="softmax is used instead of the sigmoid",
    cause="The sigmoid looks at one number; softmax makes all of a row share.",
    fix="Write x / (1 + np.exp(-x)).",
    step=MLP,
    rare=True,
)
def softmax_for_sigmoid(s: State) -> None:
    e = np.exp(s.h - np.max(s.h, axis=-1, keepdims=True, initial=-np.inf))
    s.share = e / np.sum(e, axis=-1, keepdims=True)


@mistake(
    "silu.product",
    title="silu is applied twice",
    cause="The layer applies it, and so does the function that the layer calls.",
    fix="Apply it once.",
    step=MLP,
    rare=True,
)
def silu_twice(s: State) -> None:
    once = s.h * s.share
    s.out = once * sigmoid_of(once)
