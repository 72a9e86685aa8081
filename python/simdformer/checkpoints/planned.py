"""The types that the tensors of a model would have in a file that is not written yet."""

from simdformer.checkpoints.gguf_encode import FLOAT_TYPES
from simdformer.checkpoints.gguf_mixtures import MIXTURES, type_of
from simdformer.checkpoints.names import Names
from simdformer.checkpoints.tensor_names import LLAMA
from simdformer.models.config import ModelConfig
from simdformer.models.weights import weight_shapes

__all__ = ["planned_types"]

NAMES = Names({}, LLAMA.gguf)


def planned_types(config: ModelConfig, type: str) -> dict[str, str]:
    """The type of each tensor of `weight_shapes(config)`: the dtype that is asked for, or what
    `simdformer quantize --type` would give it in a GGUF file."""
    shapes = weight_shapes(config)
    if type not in MIXTURES:
        return dict.fromkeys(shapes, type)
    last = "embed" if config.tie_embeddings else "lm_head"
    found = {}
    for name, shape in shapes.items():
        given = type_of(
            MIXTURES[type],
            NAMES.theirs(name),
            shape,
            layers=config.num_layers,
            experts=config.num_experts,
            is_last=name == last,
        )
        found[name] = str(FLOAT_TYPES.get(given, given))
    return found
