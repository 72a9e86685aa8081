"""A model's weights as a GGUF file, the format of llama.cpp, for the shapes that are measured.

llama.cpp has a graph for each architecture. That of "llama" lets RoPE turn neighbours (2i, 2i+1),
that of "qwen3" the halves (i, i + D/2). Queries and keys meet only in q·k, so that a checkpoint of
the other kind becomes the same model when the rows of each head change places.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.models import ModelConfig
from simdformer.rope_scaling import rope_frequencies
from simdformer.types import Array

__all__ = ["in_layout", "metadata", "tensors", "write"]

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


def write(library: Any, path: Path, config: ModelConfig, weights: Mapping[str, Array]) -> None:
    """The file of a model without biases and windows; `library` is the package gguf."""
    writer = library.GGUFWriter(path, architecture(config))
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    for key, value in metadata(config).items():
        add[type(value)](key, value)
    for name, array in tensors(config, weights):
        if array.dtype.name == "bfloat16":  # its bytes as they are
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


def tensors(config: ModelConfig, weights: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """The tensors under llama.cpp's names. Matrices stay as they are but for the order of rows;
    vectors must be float32.
    """
    wanted = LAYOUTS[architecture(config)]
    for name, array in weights.items():
        layer, _, last = name.removeprefix("layers.").rpartition(".")
        theirs = f"blk.{layer}.{NAMES[last]}" if layer else NAMES[last]
        if last in TURNED:
            array = in_layout(array, config.head_dim, config.rope_layout, wanted)
        yield f"{theirs}.weight", array.astype(np.float32) if array.ndim == 1 else array
    if config.rope_scaling:  # what each frequency is divided by
        plain = rope_frequencies(config.head_dim, theta=config.rope_theta)
        scaled = rope_frequencies(
            config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling
        )
        yield "rope_freqs.weight", (plain.inv_freq / scaled.inv_freq).astype(np.float32)


def in_layout(rows: Array, head_dim: int, found: str, wanted: str) -> Array:
    """Rows (heads·D, ...) in the order in which another RoPE finds the same pairs.

    >>> in_layout(np.arange(6), 6, "half", "interleaved")
    array([0, 3, 1, 4, 2, 5])
    >>> in_layout(np.arange(6), 6, "interleaved", "half")
    array([0, 2, 4, 1, 3, 5])
    """
    if found == wanted:
        return rows
    pairs = (2, head_dim // 2) if found == "half" else (head_dim // 2, 2)
    order = np.arange(len(rows)).reshape(-1, *pairs).swapaxes(1, 2).ravel()
    return rows[order]
