"""Models on ids and arrays: config, weights, transformer, cache, trace.

Where weights come from is one floor above, in `simdformer.checkpoints`; text in `simdformer.text`.
"""

from simdformer.models.activation_table import trace_names
from simdformer.models.cache import KVCache
from simdformer.models.config import ModelConfig
from simdformer.models.paged_cache import PagedKVCache
from simdformer.models.trace import Trace
from simdformer.models.transformer import Transformer
from simdformer.models.weights import weight_shapes

__all__ = [
    "KVCache",
    "ModelConfig",
    "PagedKVCache",
    "Trace",
    "Transformer",
    "trace_names",
    "weight_shapes",
]
__dir__ = __all__.copy  # what dir() and completion show
