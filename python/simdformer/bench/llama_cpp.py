"""llama.cpp as a contestant for whole models, through llama-cpp-python's C functions.

It gets the same weights in a file of its own format, GGUF, which it reads into its own memory; the
file is gone before anything is timed. Products are of bfloat16: llama.cpp rounds activations to the
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

from simdformer.bench.contestants import LLAMA_CPP, Contestant, Missing, Way, optional
from simdformer.checkpoints.gguf_encode import as_they_are
from simdformer.checkpoints.gguf_export import of_model
from simdformer.checkpoints.gguf_writer import write_gguf
from simdformer.functional import QuantizedWeight
from simdformer.models import ModelConfig
from simdformer.runtime import get_num_threads
from simdformer.types import Array

__all__ = [
    "NAME",
    "Context",
    "Model",
    "contestant",
    "missing",
    "model_of",
    "open_model",
    "write_model",
]

NAME = LLAMA_CPP

Weights = Mapping[str, Array | QuantizedWeight]

FLOAT16 = 1  # ggml's number for it
EVERYTHING = -1  # until the end, as a position
EVERY_TEXT = -1  # as the number of a sequence


def missing() -> Missing | None:
    """Why llama.cpp cannot take part; None when it can."""
    try:
        library: Any = optional("llama_cpp")
    except (OSError, RuntimeError) as error:  # built for another machine
        return Missing(LLAMA_CPP, f"llama-cpp-python is installed, but does not load: {error}")
    if library is None:
        return Missing(LLAMA_CPP, "llama-cpp-python is not installed")
    if not hasattr(library, "LLAMA_LOAD_MODE_NONE"):
        found = f"llama-cpp-python {library.__version__} is installed"
        return Missing(LLAMA_CPP, f"{found}, needs 0.3.36 or later")
    return None


class Model:
    """A GGUF file in llama.cpp's memory. RuntimeError when it does not take it."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        library: Any = optional("llama_cpp")
        # Its warnings (that there is no vocabulary) reach the logger as errors.
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
        library.llama_backend_init()
        options = library.llama_model_default_params()
        options.load_mode = library.LLAMA_LOAD_MODE_NONE  # read, not mapped
        options.n_gpu_layers = 0
        handle = library.llama_model_load_from_file(bytes(path), options)
        if not handle:
            raise RuntimeError(f"llama.cpp does not take {path.name}")
        self.library, self.handle, self.vocab_size = library, handle, vocab_size
        weakref.finalize(self, library.llama_model_free, handle)


def model_of(config: ModelConfig, weights: Weights) -> Model:
    """That of a file which is made for it, and gone when it is read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, config, weights)
        return Model(path, config.vocab_size)


def open_model(path: Path, config: ModelConfig) -> Model:
    """That of a file of yours."""
    if path.is_dir():
        raise IsADirectoryError("it opens files")
    return Model(path, config.vocab_size)


def write_model(path: Path, config: ModelConfig, weights: Weights) -> None:
    """The file of a model: matrices as they are, and no vocabulary, because ids go in."""
    source = of_model(config, weights, path.stem)
    write_gguf(path, {**source.keys, "tokenizer.ggml.model": "no_vocab"}, as_they_are(source))


class Context:
    """`texts` sequences: a cache for `room` ids of each, and what llama.cpp computes with."""

    def __init__(
        self,
        model: Model,
        room: int,
        threads: int | None = None,
        *,
        flash: bool = True,
        texts: int = 1,
    ) -> None:
        library = model.library
        options = library.llama_context_default_params()
        options.n_ctx, options.n_seq_max = room * texts, texts
        options.kv_unified = False  # each text has cells of its own, which is faster
        options.n_batch = options.n_ubatch = max(room, texts)  # a prompt goes through at once
        options.n_threads = options.n_threads_batch = threads or get_num_threads()
        options.type_k = options.type_v = FLOAT16
        options.flash_attn_type = (
            library.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if flash
            else library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        options.n_outputs_max = texts
        options.offload_kqv = options.op_offload = False
        handle = library.llama_init_from_model(model.handle, options)
        if not handle:
            raise RuntimeError(f"llama.cpp has no memory for {room} ids")
        self.model, self.handle = model, handle  # the model lives as long as its contexts
        self.texts = texts
        self.memory = library.llama_get_memory(handle)
        weakref.finalize(self, library.llama_free, handle)

    def step(self, ids: Array, after: int = 0, *, each: bool = False) -> Callable[[], Any]:
        """A call that puts ids behind the first `after` that the cache holds: of the first text, or
        `each` one behind a text of its own.

        It gives a pointer to the logits of the last one.
        """
        library, count = self.model.library, len(ids)
        batch = library.llama_batch_init(count, 0, 1)
        weakref.finalize(self, library.llama_batch_free, batch)
        batch.n_tokens = count
        for i, id in enumerate(ids):
            text, further = (i, 0) if each else (0, i)
            batch.token[i], batch.pos[i] = int(id), after + further
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, text
            batch.logits[i] = each or i == count - 1

        def call() -> Any:
            library.llama_memory_seq_rm(self.memory, EVERY_TEXT, after, EVERYTHING)
            if library.llama_decode(self.handle, batch) != 0:
                raise RuntimeError(f"llama.cpp does not take {count} ids")
            return library.llama_get_logits_ith(self.handle, -1)

        return call

    def logits(self, ids: Array, after: int = 0) -> Array:
        """What `step` gives, as an array (V,)."""
        return self.array(self.step(ids, after)())

    def array(self, pointer: Any) -> Array:
        """The logits (V,) that a call has left, until the next one."""
        return np.ctypeslib.as_array(pointer, (self.model.vocab_size,)).copy()

    def copy(self) -> None:
        """What the first text holds for the others, in cells of their own."""
        library = self.model.library
        size = library.llama_state_seq_get_size(self.handle, 0)
        state = (ctypes.c_uint8 * size)()
        library.llama_state_seq_get_data(self.handle, state, size, 0)
        for text in range(1, self.texts):
            if library.llama_state_seq_set_data(self.handle, state, size, text) != size:
                raise RuntimeError(f"llama.cpp does not copy a text of {size} bytes")


def contestant(
    model: Model, ids: Array, in_cache: int, checked_ids: Array, *, each: bool = False
) -> Contestant:
    """All of `ids` behind the first `in_cache` at once, or `each` of them behind a text of its own
    that begins so; what is compared are the (last) logits after `checked_ids`. Its fused attention,
    and the one made of two products with a softmax between.
    """
    texts = len(ids) - in_cache if each else 1

    def begun(beginning: Array, new: Array, *, flash: bool) -> tuple[Context, Callable[[], Any]]:
        room = len(beginning) + len(new) // texts
        context = Context(model, room, flash=flash, texts=texts)
        if len(beginning):
            context.logits(beginning)
        if each:
            context.copy()
        return context, context.step(new, len(beginning), each=each)

    def way(name: str, *, flash: bool) -> Way:
        def checked(_: Any) -> Array:
            last = np.repeat(checked_ids[-1:], texts)
            short, call = begun(checked_ids[:-1], last, flash=flash)
            return short.array(call())

        return Way(name, begun(ids[:in_cache], ids[in_cache:], flash=flash)[1], checked)

    ways = [way("flash attention", flash=True)]
    if not each:  # where it is slower, with one text and with 64
        ways.append(way("attention", flash=False))
    return Contestant(LLAMA_CPP, tuple(ways))
