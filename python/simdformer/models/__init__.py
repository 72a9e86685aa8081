"""Models on ids and arrays: config, weights, transformer, cache, trace, and a reader a format.

Text comes in one floor above, in `simdformer.text`.
"""

from simdformer.models.cache import KVCache
from simdformer.models.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from simdformer.models.config import ModelConfig
from simdformer.models.trace import trace_names
from simdformer.models.transformer import Transformer
from simdformer.models.weights import weight_shapes

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "KVCache",
    "ModelConfig",
    "Transformer",
    "read_checkpoint",
    "trace_names",
    "weight_shapes",
]
__dir__ = __all__.copy  # what dir() and completion show
