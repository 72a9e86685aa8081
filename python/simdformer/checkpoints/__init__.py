"""Checkpoints: files of strangers in several formats, read into a config and weights.

The models that they are for are one floor below, in `simdformer.models`.
"""

from simdformer.checkpoints.checkpoint import Checkpoint, Format
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.formats import FORMATS, read_checkpoint
from simdformer.checkpoints.stored_tensor import StoredTensor

__all__ = [
    "FORMATS",
    "Checkpoint",
    "CheckpointError",
    "Format",
    "StoredTensor",
    "read_checkpoint",
]
__dir__ = __all__.copy  # what dir() and completion show
