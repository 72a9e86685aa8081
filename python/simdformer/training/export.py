"""A model as Hugging Face lays it out: config.json, model.safetensors, the tokenizer's files.

The config is written for each architecture in turn, and taken where the reader of such files makes
the same ModelConfig of it: what is written can be read, or it is refused before anything is.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.huggingface_architectures import ARCHITECTURES
from simdformer.checkpoints.huggingface_config import architecture_of, make_config
from simdformer.checkpoints.rope_rows import TURNED, in_layout
from simdformer.checkpoints.safetensors_file import DTYPES
from simdformer.checkpoints.stacked import JOINED, join_stacked
from simdformer.models.config import FieldError, ModelConfig
from simdformer.training.files import write_text, write_whole
from simdformer.types import Array

__all__ = ["SHARD", "export"]

SHARD = 5 * 10**9  # bytes of a file at most, unless one tensor is larger
WRITTEN = (
    "llama", "mistral", "qwen2", "qwen3", "granite", "smollm3", "olmo2", "olmo3", "gemma2",
    "gemma3_text", "gpt2", "phi3", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "minimind",
)  # fmt: skip
SAYS_ROPE = ("gpt_oss",)  # where transformers would guess a scaled RoPE if none were said
KINDS = ("full_attention", "sliding_attention")
ACTIVATIONS = {
    ("", "silu"): "silu",
    ("", "gelu_tanh"): "gelu_pytorch_tanh",
    ("gpt2", "gelu_tanh"): "gelu_new",
    ("", "clamped_swiglu"): "silu",
}
# What fields of a config.json must say so that these of ours follow from them.
DERIVED: dict[str, Callable[[ModelConfig], dict[str, Any]]] = {
    "attention_scale": lambda config: {
        "query_pre_attn_scalar": round((config.attention_scale or config.head_dim**-0.5) ** -2)
    },
    "intermediate_size": lambda config: {"n_inner": config.intermediate_size},
    "rotary_dim": lambda config: {
        "partial_rotary_factor": (config.rotary_dim or config.head_dim) / config.head_dim
    },
    "expert_intermediate_size": lambda config: {
        "intermediate_size": config.expert_intermediate_size
    },
    "expert_layers": lambda config: {
        "moe_intermediate_size": config.expert_intermediate_size,
        "qkv_bias": config.qkv_bias,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [
            layer for layer in range(config.num_layers) if not config.has_experts(layer)
        ],
    },
    # MiniMind's earlier generation, which may have an MLP beside the experts and no gate before it
    "normalize_expert_weights": lambda config: {
        "use_moe": bool(config.num_experts),
        "n_routed_experts": config.num_experts,
        "n_shared_experts": int(config.shared_intermediate_size > 0),
        "num_experts_per_tok": config.num_experts_per_tok,
        "norm_topk_prob": config.normalize_expert_weights,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.expert_intermediate_size,
    },
}
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
    found["torch_dtype"] = next(iter(weights.values())).dtype.name
    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        copy_tokenizer(Path(tokenizer), directory)
    write_weights(directory, stored(kind, weights), shard)
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
        name: in_layout(weight, head_dim=config.head_dim, wanted="half")
        if name.rpartition(".")[2] in TURNED
        else weight
        for name, weight in weights.items()
    }
    return ModelConfig(**values | {"rope_layout": "half"}), moved


def config_json(
    config: ModelConfig, weights: Mapping[str, Array], eos_ids: tuple[int, ...]
) -> tuple[str, dict[str, Any]]:
    """The model_type, and what config.json says, of the first architecture that it fits."""
    for kind in WRITTEN:
        found = config_of(kind, config)
        found["eos_token_id"] = [*eos_ids] or None
        try:
            if make_config(found, architecture_of(found), list(weights)) == config:
                return kind, found
        except (CheckpointError, FieldError):
            continue
    raise CheckpointError(f"config = {config}", f"a model as {', '.join(WRITTEN)} are", file=None)


def config_of(kind: str, config: ModelConfig) -> dict[str, Any]:
    """What config.json would say if the model were of that type."""
    architecture = ARCHITECTURES[kind]
    both = (architecture.fields | architecture.numbers).items()
    found: dict[str, Any] = {name: getattr(config, ours) for name, ours in both}
    found |= {
        "architectures": [architecture.model],
        "model_type": kind,
        "bos_token_id": None,  # else each type has its own, which may be no id here
        "pad_token_id": None,
        "attention_bias": config.wo_bias,
        architecture.activation: ACTIVATIONS.get((kind, config.activation))
        or ACTIVATIONS["", config.activation],
    }
    for derived in architecture.derived:
        found |= DERIVED[derived](config) if derived in DERIVED else {}
    if architecture.rope:
        found |= rope_of(config)
        if kind in SAYS_ROPE and config.rope_scaling is None:
            found["rope_scaling"] = {"rope_type": "default"}
    if config.rope_layers is not None:
        found["no_rope_layers"] = [int(turns) for turns in config.rope_layers]
    windows = [config.window(layer) for layer in range(config.num_layers)]
    size = next(filter(None, windows), None)
    if size is not None and architecture.windows is not None:
        found["sliding_window"] = size
        found["layer_types"] = [KINDS[window is not None] for window in windows]
        if architecture.window_switch:
            found["use_sliding_window"] = True
    elif architecture.windows is not None:
        found["sliding_window"] = None
    return found


def rope_of(config: ModelConfig) -> dict[str, Any]:
    """RoPE, in the older dialect unless layers differ."""
    scaling = None if config.rope_scaling is None else dict(config.rope_scaling)
    found: dict[str, Any] = {"rope_theta": config.rope_theta}
    if config.local_rope_theta is not None:
        of_all = {"rope_type": "default", **(scaling or {}), "rope_theta": config.rope_theta}
        local = {"rope_type": "default", "rope_theta": config.local_rope_theta}
        return {"rope_parameters": dict(zip(KINDS, (of_all, local), strict=True))}
    if scaling is not None:
        found["rope_scaling"] = scaling
        if (original := scaling.get("original_max_position_embeddings")) is not None:
            found["original_max_position_embeddings"] = original
    return found


def stored(kind: str, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors as files of that model_type have them: some together, some transposed."""
    architecture = ARCHITECTURES[kind]
    parts: dict[str, dict[str, Array]] = {}
    for name, weight in weights.items():
        parts.setdefault(architecture.names.theirs(name), {})[name] = weight
    tensors = {}
    for theirs, some in parts.items():
        ours = architecture.names.ours(theirs) or ""
        of_experts = ours.partition(".experts.")[2]
        if of_experts in JOINED:
            tensors[theirs] = join_stacked(of_experts, some)
            continue
        whole = np.concatenate(list(some.values())) if len(some) > 1 else next(iter(some.values()))
        turned = ours.rpartition(".")[2] in architecture.transposed
        tensors[theirs] = whole.T if turned else whole
    return tensors


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
    """Tensors behind a JSON header, which is padded with spaces to whole 8 bytes."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        about = {"dtype": names[tensor.dtype], "shape": [*tensor.shape]}
        header[name] = {**about, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).view(np.uint8).data)

    write_whole(path, write)


def copy_tokenizer(source: Path, directory: Path) -> None:
    """The tokenizer's files in a folder, or beside one of them. CheckpointError: there are none."""
    folder = source if source.is_dir() else source.parent
    there = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not there:
        raise CheckpointError(f"{folder}: no tokenizer", f"one of {', '.join(TOKENIZER_FILES)}")
    for file in there:
        if file.parent.resolve() != directory.resolve():
            with file.open("rb") as stored:
                write_whole(directory / file.name, partial(shutil.copyfileobj, stored))
