"""What patching and ablation measure: one number told from the logits of a text."""

from collections.abc import Callable
from typing import Any

from simdformer.arguments import as_array, shown
from simdformer.interpret.subject import Subject, read_target
from simdformer.types import Array

__all__ = ["Metric", "MetricLike", "read_metric"]

Metric = Callable[[Array], float]
MetricLike = Metric | str | int | tuple[str | int, str | int]


def read_metric(subject: Subject, metric: Any) -> Metric:
    """A function of the logits (L,V); or a token, whose logit at the last position is meant; or
    two, for the difference of their logits there."""
    if callable(metric):
        return lambda logits: read_number(subject.function, metric(logits))
    pair = metric if isinstance(metric, tuple | list) else (metric,)
    if not 1 <= len(pair) <= 2:
        raise TypeError(
            f"{subject.function}: metric is {shown(metric)}, needs a function of the logits "
            "(L,V), a token, or a pair of tokens"
        )
    signs = (1.0, -1.0)
    ids = [read_target(subject, "metric", token) for token in pair]
    return lambda logits: sum(
        sign * float(logits[-1, id]) for sign, id in zip(signs, ids, strict=False)
    )


def read_number(function: str, value: Any) -> float:
    number = as_array(function, "metric", value)
    if number.size != 1 or number.dtype.kind not in "fiu":
        raise TypeError(
            f"{function}: metric gave {shown(value)}, needs one number for the logits (L,V)"
        )
    return float(number.item())
