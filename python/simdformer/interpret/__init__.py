"""Looking into a model: what it would say after each layer, which part writes what into a logit,
what is enough and what is needed for an answer, what each head attends to."""

from simdformer.interpret.attribution import Attribution, attribute
from simdformer.interpret.explorer import explore
from simdformer.interpret.heads import head_scores
from simdformer.interpret.lens import LogitLens, logit_lens
from simdformer.interpret.page import Page, look
from simdformer.interpret.patching import ablate, patch

__all__ = [
    "Attribution",
    "LogitLens",
    "Page",
    "ablate",
    "attribute",
    "explore",
    "head_scores",
    "logit_lens",
    "look",
    "patch",
]
__dir__ = __all__.copy  # what dir() and completion show
