"""A model as Hugging Face lays it out: config.json, model.safetensors, the tokenizer's files.

The config is written for each architecture in turn, and taken where the reader of such files makes
the same ModelConfig of it: what is written can be read, or it is refused before anything is.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.huggingface_architectures import ARCHITECTURES
from simdformer.checkpoints.huggingface_config import architecture_of, make_config
from simdformer.checkpoints.rope_rows import TURNED, halves
from simdformer.models.config import FieldError, ModelConfig
from simdformer.training.files import write_text, write_whole
from simdformer.types import Array

__all__ = ["SHARD", "export"]

SHARD = 5 * 10**9  # bytes of a file at most, unless one tensor is larger
WRITTEN = ("llama", "mistral", "qwen2", "qwen3")
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model",
    "vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja",
)  # fmt: skip


def export(
    directory: Path,
    config: ModelConfig,
    weights: Mapping[str, Array],
    tokenizer: str | os.PathLike[str] | None,
    eos_ids: tuple[int, ...],
    shard: int = SHARD,
) -> None:
    """Writes the files. CheckpointError: no architecture that is written has such a config."""
    config, weights = with_halves(config, weights)
    kind, found = config_json(config, weights, eos_ids)
    theirs = {ours: name for name, ours in ARCHITECTURES[kind].tensors.huggingface.items()}
    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        copy_tokenizer(Path(tokenizer), directory)
    write_weights(directory, {their_name(name, theirs): w for name, w in weights.items()}, shard)
    if eos_ids:
        write_text(directory / "generation_config.json", json.dumps({"eos_token_id": [*eos_ids]}))
    write_text(directory / "config.json", json.dumps(found, indent=2) + "\n")


def with_halves(
    config: ModelConfig, weights: Mapping[str, Array]
) -> tuple[ModelConfig, dict[str, Array]]:
    """Rows of wq and wk in the order in which Hugging Face pairs them for RoPE."""
    values = dict(vars(config))
    if config.rope_layout == "half":
        return config, dict(weights)
    if config.qk_norm or config.rotary_dim is not None:
        raise CheckpointError(
            "rope_layout = 'interleaved' beside qk_norm or rotary_dim", "rope_layout = 'half'"
        )
    moved = {
        name: halves(weight, config.head_dim) if name.rpartition(".")[2] in TURNED else weight
        for name, weight in weights.items()
    }
    return ModelConfig(**values | {"rope_layout": "half"}), moved


def config_json(
    config: ModelConfig, weights: Mapping[str, Array], eos_ids: tuple[int, ...]
) -> tuple[str, dict[str, Any]]:
    """The model_type, and what config.json says, of the first architecture that it fits."""
    for kind in WRITTEN:
        found: dict[str, Any] = {
            "architectures": [ARCHITECTURES[kind].model],
            "model_type": kind,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_seq_len,
            "rms_norm_eps": config.norm_eps,
            "rope_theta": config.rope_theta,
            "hidden_act": "silu",
            "tie_word_embeddings": config.tie_embeddings,
            "attention_bias": config.wo_bias,
            "torch_dtype": "float32",
        }
        if config.rope_scaling is not None:
            found["rope_scaling"] = dict(config.rope_scaling)
        if kind == "mistral":
            found["sliding_window"] = config.sliding_window
        if eos_ids:
            found["eos_token_id"] = [*eos_ids]
        try:
            if make_config(found, architecture_of(found), list(weights)) == config:
                return kind, found
        except (CheckpointError, FieldError):
            continue
    raise CheckpointError(f"config = {config}", f"a model as {', '.join(WRITTEN)} are", file=None)


def their_name(ours: str, theirs: Mapping[str, str]) -> str:
    """layers.3.wq -> model.layers.3.self_attn.q_proj.weight"""
    parts = ours.split(".")
    if parts[0] != "layers":
        return theirs[ours]
    return theirs[f"layers.{{}}.{parts[2]}"].format(parts[1])


def write_weights(directory: Path, tensors: Mapping[str, Array], shard: int) -> None:
    """model.safetensors, or several files and their index where there is more than `shard`."""
    files = list(shards(tensors, shard))
    single = len(files) == 1
    names = [
        "model.safetensors" if single else f"model-{n:05d}-of-{len(files):05d}.safetensors"
        for n in range(1, len(files) + 1)
    ]
    for name, part in zip(names, files, strict=True):
        write_safetensors(directory / name, part)
    index = directory / "model.safetensors.index.json"
    if single:
        index.unlink(missing_ok=True)
        return
    places = {key: name for name, part in zip(names, files, strict=True) for key in part}
    size = sum(tensor.nbytes for tensor in tensors.values())
    write_text(index, json.dumps({"metadata": {"total_size": size}, "weight_map": places}))


def shards(tensors: Mapping[str, Array], most: int) -> Iterator[dict[str, Array]]:
    part: dict[str, Array] = {}
    size = 0
    for name, tensor in tensors.items():
        size += tensor.nbytes
        if part and size > most:
            yield part
            part, size = {}, tensor.nbytes
        part[name] = tensor
    yield part


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Float32 tensors behind a JSON header, which is padded with spaces to whole 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, "<f4").data)

    write_whole(path, write)


def copy_tokenizer(source: Path, directory: Path) -> None:
    """The tokenizer's files in a folder, or beside one of them. CheckpointError: there are none."""
    folder = source if source.is_dir() else source.parent
    there = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not there:
        raise CheckpointError(f"{folder}: no tokenizer", f"one of {', '.join(TOKENIZER_FILES)}")
    for file in there:
        if file.parent.resolve() != directory.resolve():
            shutil.copyfile(file, directory / file.name)
