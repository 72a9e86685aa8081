"""Adapters of LoRA as the package peft keeps them: adapter_config.json, adapter_model.safetensors.

The base model that the config names is not looked at: an adapter fits any model of its shapes, such
as the GGUF file of the checkpoint that it was trained on.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.arguments import is_whole
from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import read_object
from simdformer.checkpoints.huggingface_config import supported
from simdformer.checkpoints.names import check_present, printable, renamed, require
from simdformer.checkpoints.rope_rows import TURNED, in_layout
from simdformer.checkpoints.safetensors_file import read_tensors
from simdformer.checkpoints.stored_tensor import StoredTensor
from simdformer.checkpoints.tensor_names import LLAMA
from simdformer.models.adapters import ADAPTABLE, Adapter
from simdformer.models.config import ModelConfig
from simdformer.models.weights import weight_shapes

__all__ = ["CONFIG", "MODULES", "PREFIX", "WEIGHTS", "read_adapters"]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
TENSOR = re.compile(re.escape(PREFIX) + r"(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
# Ours -> the module's name within a model: layers.{}.wq -> model.layers.{}.self_attn.q_proj
MODULES = {
    ours: theirs.removesuffix(".weight")
    for theirs, ours in LLAMA.huggingface.items()
    if ours.removeprefix("layers.{}.") in ADAPTABLE
}
OURS = {theirs: ours for ours, theirs in MODULES.items()}
# What is not done, with the values that ask for nothing; null does not either.
REFUSED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "use_qalora": (False,),
    "use_bdlora": (False,),
    "lora_bias": (False,),
    "fan_in_fan_out": (False,),
    "bias": ("none",),
    "alpha_pattern": ({},),
    "modules_to_save": ([],),
    "layer_replication": (),
    "trainable_token_indices": (),
    "target_parameters": ([],),
    "alora_invocation_tokens": (),
    "arrow_config": (),
    # others change the base model too
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}


def read_adapters(directory: Path, config: ModelConfig) -> dict[str, Adapter]:
    """The adapters in a directory by the names of the matrices of a model of this config.
    FileNotFoundError: there are none. CheckpointError: they are damaged, do not fit the model, or
    ask for what is not done."""
    found = read_object(directory / CONFIG)
    with in_file(directory / CONFIG):
        scale = scale_of(found)
    file = directory / WEIGHTS
    tensors = read_tensors(file)
    with in_file(file):
        pairs = pairs_of(tensors)
        return {name: adapter_of(name, pair, config, scale, found) for name, pair in pairs.items()}


def scale_of(found: Mapping[str, Any]) -> Any:
    """rank -> scale, as the config says."""
    check_present(found, ("peft_type", "r", "lora_alpha"))
    require(found["peft_type"] == "LORA", "peft_type", found["peft_type"], "LORA")
    for name, harmless in REFUSED.items():
        supported(found, name, *harmless)
    alpha = found["lora_alpha"]
    right = isinstance(alpha, int | float) and not isinstance(alpha, bool) and 0 < alpha < 1e6
    require(right, "lora_alpha", alpha, "a number > 0")
    require(is_whole(found["r"]), "r", found["r"], "a whole number > 0")
    root = found.get("use_rslora") is True
    return lambda rank: alpha / (math.sqrt(rank) if root else rank)


def pairs_of(tensors: Mapping[str, StoredTensor]) -> dict[str, dict[str, StoredTensor]]:
    """Our name of a matrix -> its tensors "A" and "B"."""
    pairs: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        match = TENSOR.fullmatch(name)
        ours = renamed(match["module"], OURS) if match else None
        if match is None or ours is None:
            raise CheckpointError(
                f"a tensor {printable(name)!r}",
                f"lora_A and lora_B of {', '.join(one.rpartition('.')[2] for one in OURS)}",
            )
        pairs.setdefault(ours, {})[match["part"]] = tensor
    for pair in pairs.values():
        if len(pair) < 2:
            [alone] = pair.values()
            raise CheckpointError("it alone", "lora_A and lora_B", tensor=alone.name)
    return pairs


def adapter_of(
    name: str,
    pair: Mapping[str, StoredTensor],
    config: ModelConfig,
    scale: Any,
    found: Mapping[str, Any],
) -> Adapter:
    shape = weight_shapes(config).get(name)
    first = pair["A"]
    if shape is None:
        raise CheckpointError(
            "no such matrix in the model", "an adapter of this model", tensor=first.name
        )
    rank = first.shape[0] if first.ndim == 2 else 0
    if not found.get("rank_pattern") and rank != found["r"]:
        raise CheckpointError(
            f"the shape {first.shape}", f"the r = {found['r']} of {CONFIG}", tensor=first.name
        )
    for part, needed in (("A", (rank, shape[1])), ("B", (shape[0], rank))):
        tensor = pair[part]
        if tensor.shape != needed or tensor.dtype.kind not in "fV":
            raise CheckpointError(
                f"{tensor.dtype} {tensor.shape}", f"floats {needed}", tensor=tensor.name
            )
    a, b = (np.asarray(pair[part]).astype(np.float32) for part in "AB")
    if config.rope_layout == "interleaved" and name.rpartition(".")[2] in TURNED:
        b = in_layout(b, head_dim=config.head_dim, wanted="interleaved")
    return Adapter(a, b, scale(rank))
