"""Reader of Hugging Face's layout: `config.json` and `*.safetensors`.

What its model_type says of a config's fields and of the names of tensors is a table in
huggingface_architectures.py. RoPE is half-split. What a config asks for and the model does not do
is refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.checkpoints import huggingface_quantized, huggingface_text, safetensors_file
from simdformer.checkpoints.checkpoint import Checkpoint, ConfigSource, Format
from simdformer.checkpoints.error import CheckpointError, file_name, in_file
from simdformer.checkpoints.files import read_object
from simdformer.checkpoints.fused import split_fused
from simdformer.checkpoints.huggingface_config import architecture_of, make_config
from simdformer.checkpoints.names import require
from simdformer.checkpoints.stacked import split_stacked
from simdformer.checkpoints.stored_tensor import StoredTensor
from simdformer.models.config import ModelConfig
from simdformer.models.tensors import LazyTensor

__all__ = ["CONFIG", "HUGGINGFACE", "config_alone", "make_checkpoint", "read_config"]

CONFIG = "config.json"
GENERATION = "generation_config.json"
COMPARED = 1 << 22  # elements at a time


def found_in(directory: Path) -> bool:
    return (directory / CONFIG).exists() and any(directory.glob("*.safetensors"))


def has_file(file: Path) -> bool:
    return file.suffix == ".safetensors"


def read(path: Path, config: ConfigSource) -> Checkpoint:
    """The checkpoint in a directory, or the one .safetensors file at `path`."""
    directory = path if path.is_dir() else path.parent
    name, found = read_config(directory, config)
    read_weights = (
        safetensors_file.read_directory if path.is_dir() else safetensors_file.read_tensors
    )
    tensors, index = read_weights(path), safetensors_file.list_of_tensors(path)
    return make_checkpoint(HUGGINGFACE, path, name, found, tensors, index)


def read_config(directory: Path, config: ConfigSource) -> tuple[str, Mapping[str, Any]]:
    """The config and what messages call it."""
    if isinstance(config, Mapping):
        return f"{directory}: config", config
    file = Path(config) if config is not None else directory / CONFIG
    return str(file), read_object(file)


def config_alone(file: Path) -> tuple[ModelConfig, str | None]:
    """What a config.json says without any weights, and the dtype that it has them in, where it is
    one of ours."""
    found = read_object(file)
    with in_file(str(file)):
        config = make_config(found, architecture_of(found), None)
    dtype = found.get("dtype", found.get("torch_dtype"))
    return config, dtype if dtype in ("float32", "float16", "bfloat16") else None


def make_checkpoint(
    format: Format,
    path: Path,
    config_name: str,
    found: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    index: Path,
) -> Checkpoint:
    """`index` is the file that says which tensors there are."""
    with in_file(config_name):
        architecture = architecture_of(found)
        scheme = huggingface_quantized.read_scheme(found, architecture.quant_method)
        if scheme is not None:
            tensors = huggingface_quantized.joined(tensors, scheme)
        names = architecture.names_among(tensors)
        ignored = architecture.ignored
        weights = names.under_ours(
            {name: tensor for name, tensor in tensors.items() if not name.endswith(ignored)}
        )
        for name, tensor in weights.items():
            # What is quantised is stored as (out, in) wherever it comes from.
            stored = isinstance(tensor, StoredTensor)
            if stored and name.rpartition(".")[2] in architecture.transposed:
                weights[name] = tensor.T
        config = make_config(found, architecture, weights)
        if config.tie_embeddings and "lm_head" in weights:
            drop_tied(weights)
    weights = split_stacked(split_fused(weights, config), config)
    names.check(config, weights, config_name, index)
    directory = path if path.is_dir() else path.parent
    return Checkpoint(path, format, config, weights, eos_ids(directory, config_name, found, config))


def drop_tied(weights: dict[str, Any]) -> None:
    """Takes away the last matrix where the embedding stands for it, which must be the same."""
    last = weights.pop("lm_head")
    if not same(weights.get("embed"), last):
        raise CheckpointError(
            f"tie_word_embeddings = True, but {last.name} in {file_name(last.path)} is not "
            "the embedding",
            "False, or a checkpoint without it",
        )


def same(a: LazyTensor | None, b: LazyTensor) -> bool:
    """Whether two matrices hold the same bits; compared in pieces, to need no memory of their
    size."""
    if a is None or a.shape != b.shape or a.dtype != b.dtype or a.ndim != 2:
        return False
    rows = max(1, COMPARED // max(1, a.shape[1]))
    return all(
        np.asarray(a.rows(start, start + rows)).tobytes()
        == np.asarray(b.rows(start, start + rows)).tobytes()
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
    with in_file(source):
        right = all(type(id) is int and id >= 0 for id in ids)
        require(right, "eos_token_id", given, "an id or a list of ids")
    # Ids past the vocabulary never come.
    return tuple(dict.fromkeys(int(id) for id in ids if id < config.vocab_size))


HUGGINGFACE = Format(
    name="huggingface",
    files="config.json with .safetensors (Hugging Face)",
    found_in=found_in,
    has_file=has_file,
    read=read,
    takes_config=True,
    tokenizer_files=huggingface_text.tokenizer_files,
    chat_template=huggingface_text.chat_template,
)
