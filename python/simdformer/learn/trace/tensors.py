"""The weights of a model for the steps of `learn`, which multiply with them as they lie in memory:
copies of all of them, in float64 even, would take longer than everything else together."""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import functional
from simdformer.functional import QuantizedWeight
from simdformer.models.config import ModelConfig
from simdformer.models.packing import Matrix
from simdformer.models.weights import Weights
from simdformer.types import Array

__all__ = ["Held", "Tensors"]

MOST = 2**26  # numbers of a matrix that may be copied


class Held:
    """A matrix (out, in) as a model holds it, for steps that take it for an array: `x @ held.T` and
    `held[ids]` leave it where it is, anything else makes an array of it.

    dtype : of results
    noise : what is done to x before it is multiplied. An error in each number of x does to the
        product what one as large in each number of the matrix does.
    """

    __array_ufunc__ = None  # so that x @ held asks the matrix

    def __init__(
        self,
        matrix: Matrix,
        dtype: Any = np.float32,
        turned: bool = False,
        noise: Callable[[Any], Any] | None = None,
    ) -> None:
        self.matrix, self.dtype, self.turned, self.noise = matrix, np.dtype(dtype), turned, noise
        self.shape = matrix.shape[::-1] if turned else matrix.shape

    def astype(self, dtype: Any, copy: bool = False) -> "Held":
        """With results of another dtype; nothing is copied."""
        return Held(self.matrix, dtype, self.turned, self.noise)

    def beside(self, noise: Callable[[Any], Any]) -> "Held":
        return Held(self.matrix, self.dtype, self.turned, noise)

    @property
    def T(self) -> "Held":
        return Held(self.matrix, self.dtype, not self.turned, self.noise)

    def transpose(self, axes: None = None) -> "Held":
        return self.T

    def reshape(self, *shape: Any) -> Array:
        return np.asarray(self).reshape(*shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if np.prod(self.shape) > MOST:
            raise ValueError("a mistake that needs a copy of so large a matrix is not tried")
        whole = self.rows(np.arange(self.matrix.shape[0])).astype(dtype or self.dtype)
        return whole.T if self.turned else whole

    def __getitem__(self, index: Any) -> Array:
        if self.turned or not isinstance(index, np.ndarray):
            found: Array = np.asarray(self)[index]
            return found
        return self.rows(np.where(index < 0, index + len(self), index)).astype(self.dtype)

    def __rmatmul__(self, x: Any) -> Array:
        if not self.turned:
            whole: Array = x @ np.asarray(self)
            return whole
        x = np.asarray(x if self.noise is None else self.noise(x))
        product = functional.linear(x.astype(self.wide), self.matrix, arithmetic="float32")
        return product.astype(self.dtype)

    def rows(self, ids: Any) -> Array:
        return functional.embedding(ids, self.matrix, dtype=self.wide)

    @property
    def operand(self) -> Matrix | Array:
        """What a function of the package takes for it."""
        return np.asarray(self) if self.turned else self.matrix

    @property
    def wide(self) -> Any:
        """What x has to be beside the matrix, so that nothing is lost."""
        quantized = isinstance(self.matrix, QuantizedWeight)
        return np.float32 if quantized or self.matrix.dtype.itemsize < 8 else np.float64


class Tensors:
    """tensors("wq", 3) is wq of layer 3, (out, in), tensors("up", 3, 7) up of its expert 7,
    tensors("shared.up", 3) up of the MLP beside them, tensors("embed") (V, E): matrices as `Held`,
    others as arrays, None where the model has no such tensor."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights

    def __call__(
        self, name: str, layer: int | None = None, expert: int | None = None
    ) -> Array | Held | None:
        held = self.held(name, layer, expert)
        return Held(held) if isinstance(held, Matrix) else held

    def held(self, name: str, layer: int | None, expert: int | None) -> Array | Matrix | None:
        """The tensor as the model keeps it."""
        if name == "lm_head" and self.config.tie_embeddings:
            name = "embed"
        at = "" if layer is None else f"layers.{layer}."
        of_expert = None if expert is None else self.weights.held(f"{at}experts.{expert}.{name}")
        return self.weights.held(at + name) if of_expert is None else of_expert
