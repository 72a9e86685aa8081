"""Every operation of the package in plain float64 numpy: the specification, the oracle, to be read.

    forward.py     the operations
    loss.py        log-softmax and the cross entropy
    backward.py    their gradients: reference.backward.rms_norm(grad, x, weight, eps=...)

Nothing here is fast, and nothing here needs the compiled module.
"""

from simdformer.reference import backward, forward
from simdformer.reference.forward import *  # noqa: F403

__all__ = ["backward"]
__all__ += forward.__all__
__dir__ = __all__.copy  # what dir() and completion show
