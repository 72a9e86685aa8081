"""Text on top of `simdformer.models`: tokenizers, sampling, generation, language models."""

from simdformer.text.generate import Report
from simdformer.text.language_model import LanguageModel, from_pretrained
from simdformer.text.sampling import Sampler

__all__ = ["LanguageModel", "Report", "Sampler", "from_pretrained"]
