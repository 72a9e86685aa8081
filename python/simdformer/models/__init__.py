"""Models on ids and arrays: configuration, weights, the transformer, its cache and its trace, and
one reader a format.

Text comes in one floor above, in `simdformer.text`.
"""

from simdformer.models.cache import KVCache
from simdformer.models.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from simdformer.models.config import ModelConfig
from simdformer.models.transformer import Transformer

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "KVCache",
    "ModelConfig",
    "Transformer",
    "read_checkpoint",
]
