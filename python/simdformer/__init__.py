"""A transformer you can see through: SIMD kernels as numpy functions, and real models made of them.

    import simdformer as sf

    sf.scaled_dot_product_attention(q, k, v, is_causal=True)      operations: simdformer.functional
    sf.nn.MultiHeadAttention(64, 4, wq, wk, wv, wo)(x, x, x)      as layers: simdformer.nn
    sf.from_pretrained(sf.demo_path()).generate("Once upon")      whole models: simdformer.text
    sf.look(model, "Once upon"), sf.patch(model, ...)             seen through: simdformer.interpret
    sf.show_config(), sf.num_threads(1), sf.use_isa("baseline")   threads and instruction sets

`simdformer.reference` holds every operation once more in plain float64 numpy, to be read.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simdformer import _core
from simdformer.functional import (
    PackedWeight,
    QuantizationType,
    QuantizedWeight,
    RopeFrequencies,
    causal_mask,
    embedding,
    gelu,
    layer_norm,
    linear,
    pack,
    quantization_types,
    quantize,
    relu,
    repeat_kv,
    rms_norm,
    rope,
    rope_frequencies,
    scaled_dot_product_attention,
    silu,
    softmax,
    swiglu,
)
from simdformer.loss import cross_entropy, linear_cross_entropy, log_softmax
from simdformer.mpiexec import end_all_on_errors
from simdformer.runtime import (
    get_num_threads,
    isa,
    isas,
    num_threads,
    set_isa,
    set_num_threads,
    show_config,
    use_isa,
)

if TYPE_CHECKING:
    from simdformer import backward, checkpoints, interpret, models, nn, optim, reference, text
    from simdformer.checkpoints import CheckpointError
    from simdformer.data import demo_path
    from simdformer.interpret import ablate, attribute, head_scores, logit_lens, look, patch
    from simdformer.learn import exercises, mistakes, plots, testing
    from simdformer.learn.check import CheckError, check
    from simdformer.learn.gradcheck import gradcheck
    from simdformer.learn.trace import check_trace
    from simdformer.models import Trace
    from simdformer.text import LanguageModel, from_pretrained, tokenizer

__version__: str = _core.build_info()["version"]

# What is imported when it is first asked for, and from where (a dot at the end: a module of that
# package): models and text are of no use to somebody who wants functions, and take time to load.
_LAZY = {
    "backward": "simdformer.",
    "CheckError": "simdformer.learn.check",
    "CheckpointError": "simdformer.checkpoints",
    "LanguageModel": "simdformer.text",
    "Trace": "simdformer.models",
    "ablate": "simdformer.interpret",
    "attribute": "simdformer.interpret",
    "check": "simdformer.learn.check",
    "check_trace": "simdformer.learn.trace",
    "checkpoints": "simdformer.",
    "demo_path": "simdformer.data",
    "exercises": "simdformer.learn.",
    "from_pretrained": "simdformer.text",
    "gradcheck": "simdformer.learn.gradcheck",
    "head_scores": "simdformer.interpret",
    "interpret": "simdformer.",
    "logit_lens": "simdformer.interpret",
    "look": "simdformer.interpret",
    "mistakes": "simdformer.learn.",
    "models": "simdformer.",
    "nn": "simdformer.",
    "optim": "simdformer.",
    "patch": "simdformer.interpret",
    "plots": "simdformer.learn.",
    "reference": "simdformer.",
    "testing": "simdformer.learn.",
    "text": "simdformer.",
    "tokenizer": "simdformer.text",
}

__all__ = [
    "CheckError",
    "CheckpointError",
    "LanguageModel",
    "PackedWeight",
    "QuantizationType",
    "QuantizedWeight",
    "RopeFrequencies",
    "Trace",
    "__version__",
    "ablate",
    "attribute",
    "backward",
    "causal_mask",
    "check",
    "check_trace",
    "checkpoints",
    "cross_entropy",
    "demo_path",
    "embedding",
    "exercises",
    "from_pretrained",
    "gelu",
    "get_num_threads",
    "gradcheck",
    "head_scores",
    "interpret",
    "isa",
    "isas",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "logit_lens",
    "look",
    "mistakes",
    "models",
    "nn",
    "num_threads",
    "optim",
    "pack",
    "patch",
    "plots",
    "quantization_types",
    "quantize",
    "reference",
    "relu",
    "repeat_kv",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "scaled_dot_product_attention",
    "set_isa",
    "set_num_threads",
    "show_config",
    "silu",
    "softmax",
    "swiglu",
    "testing",
    "text",
    "tokenizer",
    "use_isa",
]
__dir__ = __all__.copy  # what dir() and completion show


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'simdformer' has no attribute {name!r}")
    home = _LAZY[name]
    is_module = home.endswith(".")
    found = import_module(home + name) if is_module else getattr(import_module(home), name)
    globals()[name] = found
    return found


end_all_on_errors()
