"""Text on top of `simdformer.models`: tokenizers, sampling, generation, language models."""

from simdformer.text.batch import Batch
from simdformer.text.generate import Report, Streamer
from simdformer.text.language_model import LanguageModel
from simdformer.text.pretrained import from_pretrained
from simdformer.text.sampling import Sampler
from simdformer.text.streaming import TextStreamer

__all__ = [
    "Batch",
    "LanguageModel",
    "Report",
    "Sampler",
    "Streamer",
    "TextStreamer",
    "from_pretrained",
]
__dir__ = __all__.copy  # what dir() and completion show
