"""A linear layer in steps, and what goes wrong in it. x (...,I), weight (O,I), bias (O,)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State, mistake

linear = Program("linear", of=functional.linear, axes=("position", "output"))


@linear.step
def inputs(s: State) -> None:
    s.h = s.run.array(s.x)
    s.many = isinstance(s.weight, list | tuple) and np.ndim(s.weight[0]) != 1
    weights = s.weight if s.many else [s.weight]
    biases = [None] * len(weights) if s.bias is None else s.bias if s.many else [s.bias]
    s.weights, s.biases = [s.run.array(w) for w in weights], [s.run.array(b) for b in biases]


@linear.step
def multiply(s: State) -> None:
    s.products = [s.h @ w.T for w in s.weights]


@linear.step
def bias(s: State) -> None:
    if any(b is not None for b in s.biases):
        s.products = s.run(with_bias, products=s.products, biases=s.biases).products


@linear.step
def results(s: State) -> None:
    s.out = s.products if s.many else s.products[0]


# Run where there is a bias: what goes wrong with it is tried there only.
with_bias = Program("linear")


@with_bias.step
def add_bias(s: State) -> None:
    s.products = [y if b is None else y + b for y, b in zip(s.products, s.biases, strict=True)]


@linear.thin
def some_rows(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """Some rows of x; all outputs."""
    x = np.asarray(variables["x"])
    weights = variables["weight"] if isinstance(variables["weight"], list) else []
    outputs = max([x.shape[-1], *(w.shape[0] for w in weights if np.ndim(w) == 2)])
    index = rows_of((*x.shape[:-1], outputs), limit)
    if index is None:
        return None

    def part(out: Any) -> Any:
        return [y[index] for y in out] if isinstance(out, tuple | list) else out[index]

    return variables | {"x": x[index]}, part


# ---- mistakes ------------------------------------------------------------------------------------


@mistake(
    "linear.multiply",
    title="the weight is not transposed",
    cause="x @ W runs without a word when W is square, but the rows of W are the outputs.",
    fix="Write x @ W.T: weights are stored as (outputs, inputs).",
    step="01 §5",
)
def not_transposed(s: State) -> None:
    s.products = [s.h @ w for w in s.weights]


@mistake(
    "linear.multiply",
    title="the weight is read as (inputs, outputs) by reshape",
    cause="reshape gives the shape that x @ W needs, but leaves every number where it was.",
    fix="Transpose instead: x @ W.T.",
    step="01 §5",
    rare=True,
)
def reshaped(s: State) -> None:
    turned = [w.T if w.shape[0] == w.shape[1] else w.reshape(w.shape[::-1]) for w in s.weights]
    s.products = [s.h @ w for w in turned]


@mistake(
    "linear.add_bias",
    title="the bias is forgotten",
    cause="The layer has a bias, and the result is the product alone.",
    fix="Add the bias after the product.",
    step="01 §5",
)
def no_bias(s: State) -> None:
    pass


@mistake(
    "linear.add_bias",
    title="the bias is added twice",
    cause="The product has it already, from another place in the code.",
    fix="Add the bias once.",
    step="01 §5",
)
def bias_twice(s: State) -> None:
    add_bias(s)
    add_bias(s)


@mistake(
    "linear.add_bias",
    title="the bias is subtracted",
    cause="A sign.",
    fix="Add the bias: x @ W.T + b.",
    step="01 §5",
    rare=True,
)
def bias_subtracted(s: State) -> None:
    s.products = [y if b is None else y - b for y, b in zip(s.products, s.biases, strict=True)]


@mistake(
    "linear.add_bias",
    title="the bias runs down the rows instead of along them",
    cause="b[:, None] adds bias number i to token i, which fits when there are as many of both.",
    fix="Add b itself: broadcasting lines it up with the last axis.",
    step="01 §5",
    rare=True,
)
def bias_down_the_rows(s: State) -> None:
    s.products = [
        y if b is None else y + b[:, None] for y, b in zip(s.products, s.biases, strict=True)
    ]


@mistake(
    "linear.multiply", "linear.add_bias",
    title="the bias is added to the input",
    cause="(x + b) @ W.T fits when inputs and outputs are as many.",
    fix="Multiply first, then add: x @ W.T + b.",
    step="01 §5",
)  # fmt: skip
class BiasBeforeProduct:
    @staticmethod
    def multiply(s: State) -> None:
        s.products = [
            (s.h if b is None else s.h + b) @ w.T for w, b in zip(s.weights, s.biases, strict=True)
        ]

    @staticmethod
    def add_bias(s: State) -> None:
        pass


@mistake(
    "linear.results",
    title="the weights of the list are mixed up",
    cause="Each result belongs to the weight at the same place of the list.",
    fix="Keep weights and results in one order, such as q, k, v.",
    step="01 §5",
    rare=True,
)
def order_reversed(s: State) -> None:
    s.out = s.products[::-1] if s.many else s.products[0]


@mistake(
    "linear.multiply",
    title="the first weight of the list is used for all",
    cause="A name in a loop, or a copied line, that was not changed.",
    fix="Use a weight of its own for each result.",
    step="01 §5",
    rare=True,
)
def first_weight_for_all(s: State) -> None:
    s.products = [s.h @ s.weights[0].T for _ in s.weights]
