"""The activations in steps, and others that are taken for them.

The meaning is that of `reference.silu`, `gelu`, `relu` and `swiglu`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import Mistakes
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State, Step
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


@gelu.step_if(lambda s: s.approximate == "none")
def normal(s: State) -> None:
    s.share = s.run.array(erfc(-s.h / s.run.dtype(math.sqrt(2)))) / 2


@gelu.step_if(lambda s: s.approximate == "tanh")
def bend(s: State) -> None:
    s.bent = s.run.dtype(math.sqrt(2 / math.pi)) * (s.h + s.run.dtype(0.044715) * s.h**3)


@gelu.step_if(lambda s: s.approximate == "tanh")
def nearly_normal(s: State) -> None:
    s.share = (1 + np.tanh(s.bent)) / 2


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


# name: (as it is called in a title, the function)
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

ALIKE = "Activations look alike; the config of a model says which one it was trained with."
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


def another(function: Callable[[Any], Any]) -> Step:
    def other(s: State) -> None:
        s.out = s.run.array(function(s.h))

    return other


for op, last in {"silu": "product", "gelu": "product", "relu": "maximum"}.items():
    in_last = Mistakes(f"{op}.{last}", see=MLP if op == "silu" else GELU, fix=f"Use {WHERE[op]}.")
    in_last.add(
        "not_applied",
        another(lambda x: x),
        f"{op} is not applied: x comes back as it was",
        f"The call of {op} is missing, or its result is not used.",
    )
    for name, (called, function) in FUNCTIONS.items():
        if name == op or (op, name) == ("gelu", "gelu_tanh"):
            continue
        cause, fix = SPECIAL.get((op, name), (ALIKE, ""))
        in_last.add(
            f"{name}_instead",
            another(function),
            f"this is {called} instead of {op}".replace(", instead", " instead"),
            cause,
            fix,
            rare=name not in USUAL,
        )
