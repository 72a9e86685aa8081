"""Reader of Hugging Face's layout: `config.json` and `*.safetensors`, and MiniMind's `.pth`.

Llama, Qwen2, Qwen3, Mistral and MiniMind store the same tensors under the same names; what differs
is in the config. RoPE is half-split. What a config asks for and the model does not do is refused by
name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simdformer.models import safetensors_file, torch_file
from simdformer.models.checkpoint import Checkpoint, CheckpointError
from simdformer.models.config import ModelConfig, canonical_tensor_name
from simdformer.models.huggingface_config import make_config
from simdformer.models.input_file import StoredTensor
from simdformer.models.json_file import read_object

__all__ = ["find_pth", "is_here", "read", "read_pth"]

CONFIG = "config.json"
GENERATION = "generation_config.json"
COMPARED = 1 << 22  # elements at a time

IGNORED = ".inv_freq"  # what old versions saved of RoPE; nobody reads it

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | None


def is_here(directory: Path) -> bool:
    return (directory / CONFIG).exists() and any(directory.glob("*.safetensors"))


def find_pth(directory: Path) -> list[Path]:
    """The .pth files that config.json describes; Meta's shards are others."""
    if not (directory / CONFIG).exists():
        return []
    return sorted(
        file for file in directory.glob("*.pth") if not file.name.startswith("consolidated.")
    )


def read(path: Path, config: ConfigSource) -> Checkpoint:
    """The checkpoint in a directory, or the one .safetensors file at `path`."""
    directory = path if path.is_dir() else path.parent
    name, found = read_config(directory, config)
    read_weights = (
        safetensors_file.read_directory if path.is_dir() else safetensors_file.read_tensors
    )
    return make_checkpoint(path, "huggingface", directory, name, found, read_weights(path))


def read_pth(path: Path, config: ConfigSource) -> Checkpoint:
    """The state dict at `path`, or the only .pth file of that directory, with its config."""
    if path.is_dir():
        files = find_pth(path)
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise CheckpointError(
                f"{path}: {len(files)} .pth files ({names}); give the path of one"
            )
        path = files[0]
    if config is None and not (path.parent / CONFIG).exists():
        raise CheckpointError(
            f"{path}: found no {CONFIG} beside it; needed is one, or config=, because the number "
            "of heads does not follow from the tensors",
            file=path,
            found="no config",
            needed=CONFIG,
        )
    name, found = read_config(path.parent, config)
    return make_checkpoint(
        path, "minimind", path.parent, name, found, torch_file.read_tensors(path)
    )


def read_config(directory: Path, config: ConfigSource) -> tuple[str, Mapping[str, Any]]:
    """The config and what messages call it."""
    if isinstance(config, Mapping):
        return f"{directory}: config", config
    file = Path(config) if config is not None else directory / CONFIG
    return str(file), read_object(file)


def make_checkpoint(
    path: Path,
    format: str,
    directory: Path,
    config_name: str,
    found: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
) -> Checkpoint:
    weights = {
        canonical_tensor_name("huggingface", name): tensor
        for name, tensor in tensors.items()
        if not name.endswith(IGNORED)
    }
    try:
        config = make_config(found, weights)
    except ValueError as error:
        raise CheckpointError(f"{config_name}: {error}", file=config_name) from None
    if config.tie_embeddings and "lm_head" in weights:
        if not same(weights.get("embed"), weights["lm_head"]):
            raise CheckpointError(
                f"{config_name}: tie_word_embeddings is true, but {path} has an lm_head that is "
                "not the embedding; needed is false, or a checkpoint without it",
                file=path,
                tensor="lm_head",
            )
        del weights["lm_head"]
    return Checkpoint(path, format, config, weights, eos_ids(directory, config_name, found, config))


def same(a: StoredTensor | None, b: StoredTensor) -> bool:
    """Whether two matrices hold the same bits; compared in pieces, to need no memory of their
    size."""
    if a is None or a.shape != b.shape or a.dtype != b.dtype or a.ndim != 2:
        return False
    rows = max(1, COMPARED // max(1, a.shape[1]))
    return all(
        a.rows(start, start + rows)[...].tobytes() == b.rows(start, start + rows)[...].tobytes()
        for start in range(0, len(a), rows)
    )


def eos_ids(
    directory: Path, config_name: str, found: Mapping[str, Any], config: ModelConfig
) -> tuple[int, ...]:
    """The ids that end a text: of generation_config.json, else of the config; numbers or lists."""
    file = directory / GENERATION
    source, given = config_name, found.get("eos_token_id")
    if file.exists():
        generation = read_object(file).get("eos_token_id")
        if generation is not None:
            source, given = str(file), generation
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if any(type(id) is not int or id < 0 for id in ids):
        raise CheckpointError(
            f"{source}: eos_token_id is {repr(given)[:60]}, needed is an id or a list of ids",
            file=source,
        )
    # Ids past the vocabulary never come.
    return tuple(dict.fromkeys(int(id) for id in ids if id < config.vocab_size))
