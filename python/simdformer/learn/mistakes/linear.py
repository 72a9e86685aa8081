"""A linear layer in steps, and what goes wrong in it. x (...,I), weight (O,I), bias (O,)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program

SQUARE = (
    "x @ W runs without a word when W is square, but the rows of W are the outputs. In GPT-2's own "
    "files (Conv1D) they are the columns: there x @ W is right."
)


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


linear = Program(
    "linear",
    """
    inputs:
        h = array(x)
        many = isinstance(weight, list | tuple) and np.ndim(weight[0]) != 1
        weights = [array(w) for w in (weight if many else [weight])]
        biases = [None] * len(weights) if bias is None else bias if many else [bias]
        biases = [array(0 if b is None else b) for b in biases]
    multiply: products = [h @ w.T for w in weights]
    add_bias if bias is not None: products = [y + b for y, b in zip(products, biases, strict=True)]
    results: out = products if many else products[0]
    """,
    of=functional.linear,
    axes=("position", "output"),
    thin=some_rows,
)


mistakes(
    f"""
    linear.multiply (01 §5) > Write x @ W.T: weights are stored as (outputs, inputs).

    not_transposed: the weight is not transposed
        {SQUARE}
        | products = [h @ w for w in weights]
    reshaped (rare): the weight is read as (inputs, outputs) by reshape
        reshape gives the shape that x @ W needs, but leaves every number where it was.
        | turned = [w.T if w.shape[0] == w.shape[1] else w.reshape(w.shape[::-1]) for w in weights]
        | products = [h @ w for w in turned]
    first_weight_for_all (rare): the first weight of the list is used for all
        A name in a loop, or a copied line, that was not changed.
        > Use a weight of its own for each result.
        | products = [h @ weights[0].T for _ in weights]

    linear.add_bias (01 §5) > Add the bias once: x @ W.T + b.

    no_bias: the bias is forgotten
        The layer has a bias, and the result is the product alone.
        | pass
    bias_twice: the bias is added twice
        The product has it already, from another place in the code.
        | biases = [b + b for b in biases]; ...
    bias_subtracted (rare): the bias is subtracted
        A sign.
        | biases = [-b for b in biases]; ...
    bias_down_the_rows (rare): the bias runs down the rows instead of along them
        b[:, None] adds bias number i to token i, which fits when there are as many of both.
        > Add b itself: broadcasting lines it up with the last axis.
        | biases = [np.atleast_1d(b)[:, None] for b in biases]; ...
    bias_before_product: the bias is added to the input
        (x + b) @ W.T fits when inputs and outputs are as many.
        > Multiply first, then add: x @ W.T + b.
        multiply | products = [(h + b) @ w.T for w, b in zip(weights, biases, strict=True)]
        | pass

    linear.results (01 §5)

    order_reversed (rare): the weights of the list are mixed up
        Each result belongs to the weight at the same place of the list.
        > Keep weights and results in one order, such as q, k, v.
        | products = products[::-1]; ...
    """
)
