"""The functions, layers and models of simdformer on PyTorch's tensors.

    import simdformer.torch as sft

    y = sft.rms_norm(x, weight, eps=1e-6)                 functions, as in simdformer.functional
    mlp = sft.nn.MLP(gate, up, down)                      layers, as modules of PyTorch
    model = sft.from_pretrained("Qwen/Qwen3-0.6B")        models: ids in, logits out
    torch.ops.simdformer.rms_norm(x, weight, eps=1e-6)    operators, for graphs
    sft.accelerate(model), sft.restore(model)             a model of PyTorch, on our kernels

Tensors lie on the CPU and are read there, in float32, float64, float16 and bfloat16, contiguous or
not; results are tensors of the first argument's dtype. Nothing is copied on the way in or out.
torch.compile and torch.export hold the functions as operators and their graphs stay whole; packed
weights, experts and models break them.

Functions and layers have gradients. Models have none; packed weights have none, their inputs do.
With one wanted that is not there, calling is a RuntimeError; torch.no_grad(),
torch.inference_mode() or .detach() is what to do.
"""

from importlib.util import find_spec

from simdformer.functional import (
    PackedWeight,
    QuantizationType,
    QuantizedWeight,
    RopeFrequencies,
    pack,
    quantization_types,
    quantize,
)

if find_spec("torch") is None:
    raise ImportError("simdformer.torch: the package torch is missing; pip install torch")

from simdformer.tensors import functional
from simdformer.tensors.functional import *  # noqa: F403
from simdformer.torch import nn
from simdformer.torch.accelerate import Acceleration, accelerate, restore
from simdformer.torch.models import LanguageModel, Trace, Transformer, from_pretrained

__all__ = [
    "Acceleration",
    "LanguageModel",
    "PackedWeight",
    "QuantizationType",
    "QuantizedWeight",
    "RopeFrequencies",
    "Trace",
    "Transformer",
    "accelerate",
    "from_pretrained",
    "nn",
    "pack",
    "quantization_types",
    "quantize",
    "restore",
]
__all__ += functional.__all__
__dir__ = __all__.copy  # what dir() and completion show
