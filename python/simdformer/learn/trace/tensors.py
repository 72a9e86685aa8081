"""The weights of a model as plain arrays, one at a time."""

from simdformer.models.config import ModelConfig
from simdformer.models.packing import Matrix
from simdformer.models.weights import ExpertWeights, LayerWeights, MLPWeights, Weights
from simdformer.types import Array

__all__ = ["Tensors"]

KEPT_BYTES = 2**30
INNER = ("gate", "gate_bias", "up", "up_bias", "down", "down_bias")


class Tensors:
    """tensors("wq", 3) is wq of layer 3, (out, in), tensors("up", 3, 7) up of its expert 7,
    tensors("shared.up", 3) up of the MLP beside them, tensors("embed") (V, E).

    None where the model has no such tensor. The packed matrices of the model are unpacked when they
    are asked for, and the last ones kept.
    """

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights
        self._unpacked: dict[tuple[str, int | None, int | None], Array] = {}

    def __call__(
        self, name: str, layer: int | None = None, expert: int | None = None
    ) -> Array | None:
        held = self.held(name, layer, expert)
        if not isinstance(held, Matrix):
            return held
        key = name, layer, expert
        if key not in self._unpacked:
            while self._unpacked and held.nbytes + self.nbytes > KEPT_BYTES:
                self._unpacked.pop(next(iter(self._unpacked)))
            self._unpacked[key] = held.unpack()
        return self._unpacked[key]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._unpacked.values())

    def held(self, name: str, layer: int | None, expert: int | None) -> Array | Matrix | None:
        """The tensor as the model keeps it."""
        if layer is None:
            whole: Array | Matrix = getattr(self.weights, name)
            return whole
        one: LayerWeights = self.weights.layers[layer]
        if name in (three := ("wq", "wk", "wv")):
            return one.wq_wk_wv[three.index(name)]
        if name in (biases := ("bq", "bk", "bv")):
            return None if one.qkv_bias is None else one.qkv_bias[biases.index(name)]
        if isinstance(one.mlp, MLPWeights):
            tensors = of_mlp(one.mlp)
        else:
            tensors = of_mixture(one.mlp, expert)
        if name in tensors:
            return tensors[name]
        found: Array | Matrix | None = getattr(one, {"bo": "wo_bias"}.get(name, name), None)
        return found


def of_mixture(mixture: ExpertWeights, expert: int | None) -> dict[str, Array | Matrix | None]:
    """The matrices and biases of a router, of the MLP beside the experts, and of one of these."""
    found: dict[str, Array | Matrix | None] = {}
    if mixture.shared is not None:
        found |= {f"shared.{name}": tensor for name, tensor in of_mlp(mixture.shared).items()}
    found |= {"router": mixture.router, "router_bias": mixture.router_bias}
    found |= {"shared.router": mixture.shared_router}
    return found if expert is None else found | of_mlp(mixture.experts[expert])


def of_mlp(mlp: MLPWeights) -> dict[str, Array | Matrix | None]:
    """Its matrices and biases by name."""
    gate_up = ("gate", "up")[-len(mlp.gate_up) :]
    found: dict[str, Array | Matrix | None] = dict.fromkeys(INNER)
    found |= zip(gate_up, mlp.gate_up, strict=True)
    if mlp.gate_up_bias is not None:
        found |= zip((f"{name}_bias" for name in gate_up), mlp.gate_up_bias, strict=True)
    return found | {"down": mlp.down, "down_bias": mlp.down_bias}
