"""llama.cpp as a contestant for whole models, through llama-cpp-python's C functions.

It gets the same weights in a file of its own format, GGUF, which it reads into its own memory; the
file is gone before anything is timed. Products are of bfloat16: llama.cpp rounds activations to the
dtype of the weights. Its cache is float16, its fastest; with numbers of this size that is three
bits more exact than bfloat16. Ids go in without a vocabulary, logits come out for the last one.

llama.cpp has a graph for each architecture. That of "llama" lets RoPE turn neighbours (2i, 2i+1),
that of "qwen3" the halves (i, i + D/2). Queries and keys meet only in q·k, so that a checkpoint of
the other kind becomes the same model when the rows of each head change places.
"""

import ctypes
import logging
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.bench.contestants import LLAMA_CPP, Contestant, Missing, Way, optional
from simdformer.checkpoints.gguf_export import in_layout
from simdformer.functional import QuantizedWeight
from simdformer.models import ModelConfig
from simdformer.rope_scaling import rope_frequencies
from simdformer.types import Array

__all__ = [
    "Context",
    "Model",
    "contestant",
    "metadata",
    "missing",
    "tensors",
    "write_gguf",
]

Weights = Mapping[str, Array | QuantizedWeight]

FLOAT16 = 1  # ggml's number for it
EVERYTHING = -1  # until the end, as a position
LAYOUTS = {"llama": "interleaved", "qwen3": "half"}  # of RoPE in llama.cpp's graphs
TURNED = ("wq", "wk", "q_norm", "k_norm")  # what RoPE turns, and what scales it before
NAMES = {
    "embed": "token_embd",
    "attn_norm": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "final_norm": "output_norm",
    "lm_head": "output",
}


def missing() -> Missing | None:
    """Why llama.cpp cannot take part; None when it can."""
    try:
        library: Any = optional("llama_cpp")
    except (OSError, RuntimeError) as error:  # built for another machine
        return Missing(LLAMA_CPP, f"llama-cpp-python is installed, but does not load: {error}")
    if library is None or optional("gguf") is None:
        return Missing(LLAMA_CPP, "llama-cpp-python or gguf is not installed")
    if not hasattr(library, "LLAMA_LOAD_MODE_NONE"):
        found = f"llama-cpp-python {library.__version__} is installed"
        return Missing(LLAMA_CPP, f"{found}, needed is 0.3.36 or later")
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
            raise RuntimeError("llama.cpp does not take the file that was made for it")
        self.library, self.handle, self.vocab_size = library, handle, vocab_size
        weakref.finalize(self, library.llama_model_free, handle)

    @classmethod
    def of(cls, config: ModelConfig, weights: Weights) -> "Model":
        """That of a file which is made for it, and gone when it is read."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(optional("gguf"), path, config, weights)
            return cls(path, config.vocab_size)


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


def contestant(
    model: Model, ids: Array, in_cache: int, checked_ids: Array, threads: int
) -> Contestant:
    """All of `ids` behind the first `in_cache` at once; what is compared are the logits after
    `checked_ids`. Its fused attention, and the one made of two products with a softmax between.
    """

    def way(name: str, *, flash: bool) -> Way:
        context = Context(model, len(ids), threads, flash=flash)
        if in_cache:
            context.logits(ids[:in_cache])

        def checked(_: Any) -> Array:
            short = Context(model, len(checked_ids), threads, flash=flash)
            short.logits(checked_ids[:-1])
            return short.logits(checked_ids[-1:], len(checked_ids) - 1)

        return Way(name, context.step(ids[in_cache:], in_cache), checked)

    return Contestant(
        LLAMA_CPP, (way("flash attention", flash=True), way("attention", flash=False))
    )


# ---- its file ------------------------------------------------------------------------------------


def write_gguf(library: Any, path: Path, config: ModelConfig, weights: Weights) -> None:
    """The file of a model without biases and windows; `library` is the package gguf."""
    writer = library.GGUFWriter(path, architecture(config))
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    for key, value in metadata(config).items():
        add[type(value)](key, value)
    for name, array in tensors(config, weights):
        if isinstance(array, QuantizedWeight):
            kind = library.GGMLQuantizationType[array.type.upper()]
            writer.add_tensor(name, array.blocks(), raw_dtype=kind)
        elif array.dtype.name == "bfloat16":  # its bytes as they are
            kind = library.GGMLQuantizationType.BF16
            writer.add_tensor(name, array.view(np.uint8), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def architecture(config: ModelConfig) -> str:
    """What llama.cpp calls it."""
    return "qwen3" if config.qk_norm else "llama"


def metadata(config: ModelConfig) -> dict[str, str | int | float]:
    """What llama.cpp must know besides the tensors. There is no vocabulary: ids go in."""
    sizes: dict[str, int | float] = {
        "context_length": config.max_seq_len,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope_theta),
        "vocab_size": config.vocab_size,
    }
    kind = architecture(config)
    return {f"{kind}.{name}": value for name, value in sizes.items()} | {
        "tokenizer.ggml.model": "no_vocab"
    }


def tensors(config: ModelConfig, weights: Weights) -> Iterator[tuple[str, Array | QuantizedWeight]]:
    """The tensors under llama.cpp's names. Matrices stay as they are but for the order of rows;
    vectors must be float32.
    """
    wanted = LAYOUTS[architecture(config)]
    for name, array in weights.items():
        layer, _, last = name.removeprefix("layers.").rpartition(".")
        theirs = f"blk.{layer}.{NAMES[last]}" if layer else NAMES[last]
        if last in TURNED:
            array = turned_rows(array, config, wanted)
        if isinstance(array, np.ndarray) and array.ndim == 1:
            array = array.astype(np.float32)
        yield f"{theirs}.weight", array
    if config.rope_scaling:  # what each frequency is divided by
        plain = rope_frequencies(config.head_dim, theta=config.rope_theta)
        scaled = rope_frequencies(
            config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling
        )
        yield "rope_freqs.weight", (plain.inv_freq / scaled.inv_freq).astype(np.float32)


def turned_rows(
    weight: Array | QuantizedWeight, config: ModelConfig, wanted: str
) -> Array | QuantizedWeight:
    if config.rope_layout == wanted:
        return weight
    if isinstance(weight, QuantizedWeight):
        blocks = in_layout(weight.blocks(), head_dim=config.head_dim, wanted=wanted)
        return QuantizedWeight.from_blocks(blocks, weight.type, weight.shape)
    return in_layout(weight, head_dim=config.head_dim, wanted=wanted)
