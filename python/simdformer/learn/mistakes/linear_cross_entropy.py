"""The cross entropy of linear's result, with its gradients, in steps; and what goes wrong in them.

x (...,E), weight (V,E), labels (...); the meaning is that of `reference.backward`. The loss, the
gradient of the logits and those of linear are the programs of these.
"""

import functools
from typing import Any

import numpy as np

from simdformer import loss
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.backward_cross_entropy import LEAST, cross_entropy_backward
from simdformer.learn.mistakes.backward_linear import linear_backward, rows_of
from simdformer.learn.mistakes.losses import at_labels, cross_entropy
from simdformer.learn.mistakes.sampling import Thinned, Variables
from simdformer.learn.program import Program, State
from simdformer.reference import backward as reference

__all__ = ["by_name", "linear_cross_entropy", "right_by_name"]

X = 1  # the number of its gradient among the results
OPTIONS = ("ignore_index", "label_smoothing", "z_loss", "softcap")


@functools.wraps(loss.linear_cross_entropy)
def by_name(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """What it gives, but for the count, which is no sum of rounded numbers."""
    return named(loss.linear_cross_entropy(*args, **kwargs))


def right_by_name(*args: Any, needs: Any = None, **kwargs: Any) -> dict[str, Any]:
    """The same in float64, whatever is asked for."""
    del needs
    return named(reference.linear_cross_entropy(*args, **kwargs))


def named(found: loss.LossAndGradients) -> dict[str, Any]:
    return {"loss": found.loss, "x": found.x, "weight": found.weight}


def some_rows(variables: Variables, limit: int) -> Thinned | None:
    """Some rows, for the gradient of x; the others sum over all of them. All labels, for the mean
    counts them."""
    x, labels = np.asarray(variables["x"]), np.asarray(variables["labels"]).ravel()
    width = len(variables["weight"])
    if variables["only"] != X or labels.size <= LEAST or labels.size * width <= limit:
        return None
    even = np.linspace(0, labels.size - 1, max(LEAST, limit // width)).astype(int)
    ignored = np.flatnonzero(labels == variables["ignore_index"])[:1]
    index = np.unique(np.concatenate([even, ignored]))
    flat = x.reshape(-1, x.shape[-1])

    def part(out: Any) -> Any:
        return out.reshape(flat.shape)[index] if np.shape(out) == x.shape else out

    return variables | {"x": flat[index], "rows": index}, part


def options(s: State) -> dict[str, Any]:
    """Those of the loss: where the whole batch is counted elsewhere, it is a sum first."""
    given = {name: getattr(s, name) for name in OPTIONS}
    reduction = s.reduction if s.count is None else "sum"
    return given | {"reduction": reduction, "rows": vars(s).get("rows")}


def sizes_of_terms(s: State) -> tuple[Any, Any, Any]:
    """The size of the terms of each result: of p - target, of what rounding of the logits does to
    p, of lse - z at the label."""
    counts = np.asarray(s.labels) != s.ignore_index
    label = np.where(counts, s.labels, 0)
    z = s.z if s.softcap is None else s.softcap * np.tanh(s.z / s.softcap)
    highest = z.max(axis=-1, keepdims=True)
    lse = highest + np.log(np.exp(z - highest).sum(axis=-1, keepdims=True))
    p, size = np.exp(z - lse), np.abs(z)
    target = np.arange(z.shape[-1]) == label[..., None]
    each = target + p * (1 + size + (p * size).sum(axis=-1, keepdims=True))
    each = np.where(counts[..., None], each, 0)
    rows = np.where(counts, np.abs(lse[..., 0]) + np.abs(at_labels(z, label)), 0)
    if s.reduction == "mean":
        divisor = counts.sum() if s.count is None else s.count
        each, rows = each / divisor, rows / divisor
    return rows.sum(), each @ np.abs(s.w), rows_of(each).T @ rows_of(np.abs(s.h))


linear_cross_entropy = Program(
    "linear_cross_entropy",
    """
    inputs: h, w = array(x), array(weight)
    logits: z = h @ w.T
    loss: loss = run(cross_entropy, logits=z, labels=labels, **options(s)).out
    of_logits:
        dz = run(cross_entropy_backward, logits=z, labels=labels, grad=1.0, **options(s)).out
    count if count is not None and reduction == "mean":
        loss, dz = loss / real(count), dz / real(count)
    back: dx, dw, _ = run(linear_backward, grad=dz, x=h, weight=w).out
    give: out = loss, dx, dw
    """,
    calls=(options, sizes_of_terms, cross_entropy, cross_entropy_backward, linear_backward),
    of=by_name,
    axes=("sequence", "row", "channel"),
    thin=some_rows,
    terms="sizes_of_terms(s)",
)
mistakes(
    """
    linear_cross_entropy.count (08 §3) > Divide by count, the labels of the whole batch.

    count_of_this_part: it is divided by the labels of this part, not by those of the batch
        Parts of a batch then weigh alike, however many of their labels count.
        | n = real((np.asarray(labels) != ignore_index).sum()); loss, dz = loss / n, dz / n
    count_forgotten: the sum is not divided by count
        The gradients of all parts add up to that of the sum, not of the mean.
        | pass

    linear_cross_entropy.back (08 §4) > Go back through linear with the gradient of the logits.

    logits_for_gradient (rare): the logits stand for their gradient
        The wrong saved array: both have the same shape.
        | dx, dw, _ = run(linear_backward, grad=z, x=h, weight=w).out
    """
)
