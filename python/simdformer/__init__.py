"""A transformer you can see through: SIMD kernels as numpy functions, and real models made of them.

    import simdformer as sf

    sf.scaled_dot_product_attention(q, k, v, is_causal=True)      operations: simdformer.functional
    sf.nn.MultiHeadAttention(64, 4, wq, wk, wv, wo)(x, x, x)      as layers: simdformer.nn
    sf.from_pretrained(sf.demo_path()).generate("Once upon")      whole models: simdformer.text
    sf.look(model, "Once upon"), sf.explore(model, "Once upon")   seen through: simdformer.interpret
    sf.show_config(), sf.num_threads(1), sf.use_isa("baseline")   threads and instruction sets

`simdformer.reference` holds every operation once more in plain float64 numpy, to be read.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simdformer import starting  # noqa: F401 - before what takes time, see there

# isort: split
from simdformer import _core, functional, runtime
from simdformer.functional import *  # noqa: F403
from simdformer.loss import cross_entropy, linear_cross_entropy, log_softmax
from simdformer.mpiexec import end_all_on_errors
from simdformer.runtime import *  # noqa: F403

if TYPE_CHECKING:
    from simdformer import backward, checkpoints, interpret, models, nn, optim, reference, text
    from simdformer.checkpoints import CheckpointError
    from simdformer.data import demo_path
    from simdformer.interpret import ablate, attribute, head_scores, logit_lens, look, patch
    from simdformer.interpret.explorer import explore
    from simdformer.learn import exercises, mistakes, plots, testing
    from simdformer.learn.check import CheckError, check
    from simdformer.learn.gradcheck import gradcheck
    from simdformer.learn.gradients import check_gradients, check_step
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
    "check_gradients": "simdformer.learn.gradients",
    "check_step": "simdformer.learn.gradients",
    "check_trace": "simdformer.learn.trace",
    "checkpoints": "simdformer.",
    "demo_path": "simdformer.data",
    "exercises": "simdformer.learn.",
    "explore": "simdformer.interpret",
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
    "Trace",
    "__version__",
    "ablate",
    "attribute",
    "backward",
    "check",
    "check_gradients",
    "check_step",
    "check_trace",
    "checkpoints",
    "cross_entropy",
    "demo_path",
    "exercises",
    "explore",
    "from_pretrained",
    "gradcheck",
    "head_scores",
    "interpret",
    "linear_cross_entropy",
    "log_softmax",
    "logit_lens",
    "look",
    "mistakes",
    "models",
    "nn",
    "optim",
    "patch",
    "plots",
    "reference",
    "testing",
    "text",
    "tokenizer",
]
__all__ += functional.__all__
__all__ += runtime.__all__
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
