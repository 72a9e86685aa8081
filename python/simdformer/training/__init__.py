"""Training: a model's loss and gradients, and runs that survive whatever ends them."""

from simdformer.training.lora import LoRAModel
from simdformer.training.model import TrainableModel

__all__ = ["LoRAModel", "TrainableModel"]
__dir__ = __all__.copy  # what dir() and completion show
