"""A model once more with every number in float64, which others are compared with.

Its weights are those of the model itself, packed and quantised as they are. A matrix becomes
float64 when its turn comes, a few rows at a time, so that all this takes little memory of its own.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from simdformer.functional import linear
from simdformer.models import Transformer
from simdformer.types import Array

__all__ = ["Exact"]

ROWS = 4096  # of a matrix, at a time


class Exact(Transformer):
    """What `model`, which stays as it is, would say if nothing were rounded but the logits, which
    are float32 as always.
    """

    def __init__(self, model: Transformer) -> None:
        vars(self).update(vars(model))
        self.activations = np.dtype(np.float64)
        self.weights = in_float64(model.weights)

    def linear(self, x: Array, weight: Any, bias: Any = None) -> Any:
        """x (...,I) weight (O,I) -> (...,O), or a list of them"""
        if isinstance(weight, list):
            biases = bias or [None] * len(weight)
            return [self.linear(x, *each) for each in zip(weight, biases, strict=True)]
        values = weight.unpack()
        parts = np.split(values, range(ROWS, len(values), ROWS))
        out = np.concatenate([linear(x, part.astype(np.float64)) for part in parts], axis=-1)
        return out if bias is None else out + bias

    def expert_linear(self, x: Array, ids: Array, weights: Any, biases: Any = None) -> list[Array]:
        """x (B,L,k,I), or (B,L,1,I) for all k, ids (B,L,k) -> (B,L,k,O) by each list of experts"""
        x = np.broadcast_to(x, (*ids.shape, x.shape[-1]))
        found = []
        for experts, several in zip(weights, biases or [None] * len(weights), strict=True):
            out = np.empty((*ids.shape, experts[0].shape[0]))
            for expert in np.unique(ids):
                where = ids == expert
                bias = None if several is None else several[expert]
                out[where] = self.linear(x[where], experts[expert], bias)
            found.append(out)
        return found


def in_float64(weights: Any) -> Any:
    """Weights, or a part of them, with norms, biases and sinks in float64; matrices as they are."""
    if isinstance(weights, np.ndarray):
        return weights.astype(np.float64)
    if isinstance(weights, list):
        return [in_float64(each) for each in weights]
    if is_dataclass(weights) and not isinstance(weights, type):
        parts = {field.name: in_float64(getattr(weights, field.name)) for field in fields(weights)}
        return replace(weights, **parts)
    return weights
