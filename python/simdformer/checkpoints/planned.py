"""What the tensors of a model would be held in that nobody has written yet."""

import re

from simdformer.checkpoints.gguf_architectures import (
    ATTENTION,
    EXPERTS,
    GATE_AND_UP,
    OUTPUTS,
    OUTSIDE,
    SHARED_EXPERT,
)
from simdformer.checkpoints.gguf_mixtures import MIXTURES, type_of
from simdformer.models.config import ModelConfig
from simdformer.models.weights import weight_shapes

__all__ = ["planned_types"]

THEIRS = {
    ours: theirs
    for theirs, ours in (
        OUTSIDE | ATTENTION | OUTPUTS | GATE_AND_UP | EXPERTS | SHARED_EXPERT
    ).items()
}
LAYER, EXPERT = re.compile(r"^layers\.(\d+)\."), re.compile(r"\.experts\.\d+\.")
FLOATS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def planned_types(config: ModelConfig, type: str) -> dict[str, str]:
    """The type of each tensor of `weight_shapes(config)`: the dtype that is asked for, or what
    `simdformer quantize --type` would give it in a GGUF file."""
    shapes = weight_shapes(config)
    if type not in MIXTURES:
        return dict.fromkeys(shapes, type)
    last = "embed" if config.tie_embeddings else "lm_head"
    found = {}
    for name, shape in shapes.items():
        layer = LAYER.match(name)
        pattern = EXPERT.sub(".experts.", LAYER.sub("layers.{}.", name))
        theirs = THEIRS.get(pattern, "").format(layer[1] if layer else "")
        given = type_of(
            MIXTURES[type],
            theirs,
            shape,
            layers=config.num_layers,
            experts=config.num_experts,
            is_last=name == last,
        )
        found[name] = FLOATS.get(given, given)
    return found
