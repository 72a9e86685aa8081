"""Training: a model's loss and gradients, and runs that survive whatever ends them."""

from simdformer.training.model import TrainableModel

__all__ = ["TrainableModel"]
__dir__ = __all__.copy  # what dir() and completion show
