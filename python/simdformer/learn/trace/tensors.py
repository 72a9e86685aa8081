"""The weights of a model as plain arrays, one at a time."""

from simdformer.models.config import ModelConfig
from simdformer.models.packing import Matrix
from simdformer.models.weights import LayerWeights, MLPWeights, Weights
from simdformer.types import Array

__all__ = ["Tensors"]

KEPT_BYTES = 2**30


class Tensors:
    """tensors("wq", 3) is wq of layer 3, (out, in), tensors("embed") (V, E).

    None where the model has no such tensor. The packed matrices of the model are unpacked when they
    are asked for, and the last ones kept.
    """

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights
        self._unpacked: dict[tuple[str, int | None], Array] = {}

    def __call__(self, name: str, layer: int | None = None) -> Array | None:
        held = self.held(name, layer)
        if not isinstance(held, Matrix):
            return held
        key = name, layer
        if key not in self._unpacked:
            while self._unpacked and held.nbytes + self.nbytes > KEPT_BYTES:
                self._unpacked.pop(next(iter(self._unpacked)))
            self._unpacked[key] = held.unpack()
        return self._unpacked[key]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._unpacked.values())

    def held(self, name: str, layer: int | None) -> Array | Matrix | None:
        """The tensor as the model keeps it."""
        if layer is None:
            whole: Array | Matrix = getattr(self.weights, name)
            return whole
        one: LayerWeights = self.weights.layers[layer]
        if name in (three := ("wq", "wk", "wv")):
            return one.wq_wk_wv[three.index(name)]
        if name in (biases := ("bq", "bk", "bv")):
            return None if one.qkv_bias is None else one.qkv_bias[biases.index(name)]
        if name in (three := ("gate", "up", "down")):
            mlp = one.mlp  # experts are of no step yet
            whole_mlp = [*mlp.gate_up, mlp.down] if isinstance(mlp, MLPWeights) else [None] * 3
            return whole_mlp[three.index(name)]
        found: Array | Matrix | None = getattr(one, {"bo": "wo_bias"}.get(name, name))
        return found
