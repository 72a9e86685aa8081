"""A linear layer in steps, and what goes wrong in it. x (...,I), weight (O,I), bias (O,)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import Mistakes, first, instead, skip
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State

linear = Program("linear", of=functional.linear, axes=("position", "output"))


@linear.step
def inputs(s: State) -> None:
    s.h = s.run.array(s.x)
    s.many = isinstance(s.weight, list | tuple) and np.ndim(s.weight[0]) != 1
    weights = s.weight if s.many else [s.weight]
    biases = [None] * len(weights) if s.bias is None else s.bias if s.many else [s.bias]
    s.weights = [s.run.array(w) for w in weights]
    s.biases = [s.run.array(0 if b is None else b) for b in biases]


@linear.step
def multiply(s: State) -> None:
    s.products = [s.h @ w.T for w in s.weights]


@linear.step_if(lambda s: s.bias is not None)
def add_bias(s: State) -> None:
    s.products = [y + b for y, b in zip(s.products, s.biases, strict=True)]


@linear.step
def results(s: State) -> None:
    s.out = s.products if s.many else s.products[0]


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


def reshaped(s: State) -> None:
    turned = [w.T if w.shape[0] == w.shape[1] else w.reshape(w.shape[::-1]) for w in s.weights]
    s.products = [s.h @ w for w in turned]


Mistakes(
    "linear.multiply", see="01 §5", fix="Write x @ W.T: weights are stored as (outputs, inputs)."
)(
    """
    not_transposed: the weight is not transposed
        x @ W runs without a word when W is square, but the rows of W are the outputs.
    reshaped (rare): the weight is read as (inputs, outputs) by reshape
        reshape gives the shape that x @ W needs, but leaves every number where it was.
    first_weight_for_all (rare): the first weight of the list is used for all
        A name in a loop, or a copied line, that was not changed.
        > Use a weight of its own for each result.
    """,
    not_transposed=instead(products=lambda s: [s.h @ w for w in s.weights]),
    reshaped=reshaped,
    first_weight_for_all=instead(products=lambda s: [s.h @ s.weights[0].T for _ in s.weights]),
)

Mistakes("linear.add_bias", see="01 §5", fix="Add the bias once: x @ W.T + b.")(
    """
    no_bias: the bias is forgotten
        The layer has a bias, and the result is the product alone.
    bias_twice: the bias is added twice
        The product has it already, from another place in the code.
    bias_subtracted (rare): the bias is subtracted
        A sign.
    bias_down_the_rows (rare): the bias runs down the rows instead of along them
        b[:, None] adds bias number i to token i, which fits when there are as many of both.
        > Add b itself: broadcasting lines it up with the last axis.
    bias_before_product: the bias is added to the input
        (x + b) @ W.T fits when inputs and outputs are as many.
        > Multiply first, then add: x @ W.T + b.
    """,
    no_bias=skip,
    bias_twice=first(biases=lambda s: [b + b for b in s.biases]),
    bias_subtracted=first(biases=lambda s: [-b for b in s.biases]),
    bias_down_the_rows=first(biases=lambda s: [np.atleast_1d(b)[:, None] for b in s.biases]),
    bias_before_product={
        "multiply": instead(
            products=lambda s: [(s.h + b) @ w.T for w, b in zip(s.weights, s.biases, strict=True)]
        ),
        "add_bias": skip,
    },
)

Mistakes("linear.results", see="01 §5")(
    """
    order_reversed (rare): the weights of the list are mixed up
        Each result belongs to the weight at the same place of the list.
        > Keep weights and results in one order, such as q, k, v.
    """,
    order_reversed=first(products=lambda s: s.products[::-1]),
)
