"""llama.cpp as a contestant for whole models, through llama-cpp-python's C functions.

It gets the same weights in a file of its own format, which it reads into its own memory; the file
is gone before anything is timed. Products are of bfloat16: llama.cpp rounds activations to the
dtype of the weights. Its cache is float16, its fastest; with numbers of this size that is three
bits more exact than bfloat16. Ids go in without a vocabulary, logits come out for the last one.
"""

import ctypes
import logging
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.bench import gguf_file
from simdformer.bench.contestants import Contestant, Missing, Way, optional
from simdformer.bench.models import ModelRun
from simdformer.bench.work import Inputs
from simdformer.models import ModelConfig
from simdformer.types import Array

__all__ = ["NAME", "Context", "Model", "contestant", "missing"]

NAME = "llama.cpp"
FLOAT16 = 1  # ggml's number for it
EVERYTHING = -1  # until the end, as a position


def missing() -> Missing | None:
    """Why llama.cpp cannot take part; None when it can."""
    try:
        library: Any = optional("llama_cpp")
    except (OSError, RuntimeError) as error:  # built for another machine
        return Missing(NAME, f"llama-cpp-python is installed, but does not load: {error}")
    if library is None or optional("gguf") is None:
        return Missing(NAME, "llama-cpp-python or gguf is not installed")
    if not hasattr(library, "LLAMA_LOAD_MODE_NONE"):
        version = library.__version__
        return Missing(NAME, f"llama-cpp-python {version} is installed, needed is 0.3.36 or later")
    return None


class Model:
    """Weights in llama.cpp's memory. RuntimeError when it does not take them."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Array]) -> None:
        library: Any = optional("llama_cpp")
        # Its warnings (that there is no vocabulary) reach the logger as errors.
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
        library.llama_backend_init()
        options = library.llama_model_default_params()
        options.load_mode = library.LLAMA_LOAD_MODE_NONE  # read, not mapped
        options.n_gpu_layers = 0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            gguf_file.write(optional("gguf"), path, config, weights)
            handle = library.llama_model_load_from_file(bytes(path), options)
        if not handle:
            raise RuntimeError("llama.cpp does not take the file that was made for it")
        self.library, self.handle, self.vocab_size = library, handle, config.vocab_size
        weakref.finalize(self, library.llama_model_free, handle)


class Context:
    """A sequence: a cache for `room` ids and what llama.cpp computes with."""

    def __init__(self, model: Model, room: int, threads: int, *, flash: bool = True) -> None:
        library = model.library
        options = library.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = room  # a prompt goes through at once
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = FLOAT16
        options.flash_attn_type = (
            library.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if flash
            else library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        options.n_outputs_max = 1
        options.offload_kqv = options.op_offload = False
        handle = library.llama_init_from_model(model.handle, options)
        if not handle:
            raise RuntimeError(f"llama.cpp has no memory for {room} ids")
        self.model, self.handle = model, handle  # the model lives as long as its contexts
        self.memory = library.llama_get_memory(handle)
        weakref.finalize(self, library.llama_free, handle)

    def step(self, ids: Array, after: int = 0) -> Callable[[], Any]:
        """A call that puts ids behind the first `after` that the cache holds.

        It gives a pointer to the logits of the last one.
        """
        library = self.model.library
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        batch = library.llama_batch_get_one(tokens, len(tokens))
        batch.token = tokens  # the batch keeps them alive now, not only their address

        def call() -> Any:
            library.llama_memory_seq_rm(self.memory, 0, after, EVERYTHING)
            if library.llama_decode(self.handle, batch) != 0:
                raise RuntimeError(f"llama.cpp does not take {len(tokens)} ids")
            return library.llama_get_logits_ith(self.handle, -1)

        return call

    def logits(self, ids: Array, after: int = 0) -> Array:
        """What `step` gives, as an array (V,)."""
        pointer = self.step(ids, after)()
        return np.ctypeslib.as_array(pointer, (self.model.vocab_size,)).copy()


def contestant(work: ModelRun, inputs: Inputs, model: Model, threads: int) -> Contestant:
    """Its fused attention, and the one made of two products with a softmax between them."""
    first, ids = work.in_cache, inputs["ids"]

    def way(name: str, *, flash: bool) -> Way:
        context = Context(model, first + work.new, threads, flash=flash)
        if first:
            context.logits(ids[:first])

        def checked(_: Any) -> Array:
            few = work.checked_ids(inputs)
            short = Context(model, len(few), threads, flash=flash)
            short.logits(few[:-1])
            return short.logits(few[-1:], len(few) - 1)

        return Way(name, context.step(ids[first:], first), checked)

    return Contestant(NAME, (way("flash attention", flash=True), way("attention", flash=False)))
