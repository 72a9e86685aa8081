"""A checkpoint of any format as the keys and tensors of a GGUF file of llama.cpp.

The architecture is not looked up: the keys that a file would have are read as those of every file
are, and the architecture that gives the same model again is the one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from simdformer.arguments import shown
from simdformer.checkpoints.checkpoint import Checkpoint
from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.gguf import GGUF, all_tensors
from simdformer.checkpoints.gguf_architectures import ARCHITECTURES
from simdformer.checkpoints.gguf_file import read_gguf
from simdformer.checkpoints.gguf_keys import divisors_of, keys_of, not_held
from simdformer.checkpoints.rope_rows import TURNED, in_layout
from simdformer.models.config import ModelConfig
from simdformer.models.tensors import AnyTensor, CompositeTensor, JoinedTensor
from simdformer.models.weights import weight_shapes
from simdformer.quantization.weight import QuantizedWeight
from simdformer.types import Array

__all__ = ["Source", "of_model", "source_of"]

IN_PAIRS = (*TURNED, "q_norm", "k_norm")  # what RoPE turns, and their like
OWN_KEYS = ("general.file_type", "general.quantization_version", "general.alignment", "split.")


@dataclass(frozen=True)
class Source:
    """What goes into a file: its keys but for the tokenizer, and its tensors by the names that
    they get. `has_tokenizer`: whether the keys hold one already."""

    keys: Mapping[str, Any]
    tensors: Mapping[str, JoinedTensor]
    layers: int
    experts: int
    tied: bool
    has_tokenizer: bool


def source_of(checkpoint: Checkpoint, name: str) -> Source:
    """CheckpointError for a model that no file written here can hold."""
    if checkpoint.format is GGUF:
        return of_gguf(checkpoint)
    with in_file(checkpoint.path):
        return of_model(checkpoint.config, checkpoint.weights, name)


def of_gguf(checkpoint: Checkpoint) -> Source:
    """The keys and tensors of a file of the same format, under the same names."""
    first, config = read_gguf(checkpoint.path), checkpoint.config
    keys = {name: value for name, value in first.metadata.items() if not name.startswith(OWN_KEYS)}
    tensors = {name: JoinedTensor((one,)) for name, one in all_tensors(first).items()}
    return Source(
        keys,
        tensors,
        config.num_layers,
        config.num_experts,
        config.tie_embeddings,
        has_tokenizer=True,
    )


def of_model(config: ModelConfig, weights: Mapping[str, AnyTensor], name: str) -> Source:
    """Those of a model of this config with tensors under our names."""
    lost = not_held(config, weights, fused=lie_together(weights))
    *_, arch = lost
    if lost[arch]:
        arch = min(lost, key=lambda one: len(lost[one]))
        found = ", ".join(f"{field} = {shown(getattr(config, field))}" for field in lost[arch])
        raise CheckpointError(
            f"a model with {found}",
            f"one that a GGUF file can hold; the closest, of {arch}, cannot",
            advice="llama.cpp's own converter may know it",
        )
    general = {"general.architecture": arch, "general.type": "model", "general.name": name}
    return Source(
        general | keys_of(arch, config),
        tensors_of(arch, config, weights),
        config.num_layers,
        config.num_experts,
        config.tie_embeddings,
        has_tokenizer=False,
    )


def lie_together(weights: Mapping[str, AnyTensor]) -> bool:
    """Whether wq and wk of a layer are one tensor of the file that they come from."""
    q, k = (getattr(weights[f"layers.0.{name}"], "name", None) for name in ("wq", "wk"))
    return q is not None and q == k


# ---- tensors -------------------------------------------------------------------------------------


def tensors_of(
    arch: str, config: ModelConfig, weights: Mapping[str, AnyTensor]
) -> dict[str, JoinedTensor]:
    """The tensors under their names, rows in the order and norms as they are stored."""
    names = ARCHITECTURES[arch].names(arch)
    parts: dict[str, list[str]] = {}
    for ours in weight_shapes(config):
        parts.setdefault(names.theirs(ours), []).append(ours)
    tensors = {
        theirs: JoinedTensor(
            tuple(stored(arch, config, weights, one) for one in several),
            None if ".experts." in several[0] else 0,
        )
        for theirs, several in parts.items()
    }
    return tensors | {name: JoinedTensor((one,)) for name, one in divisors_of(config).items()}


def stored(
    arch: str, config: ModelConfig, weights: Mapping[str, AnyTensor], name: str
) -> AnyTensor:
    """A tensor of ours as it is stored there."""
    tensor, kind = weights[name], name.split(".")[-1]
    wanted = ARCHITECTURES[arch].rope_layout
    if kind in IN_PAIRS and config.rope_layout != wanted:
        order = partial(in_layout, head_dim=config.head_dim, wanted=wanted)
        if not isinstance(tensor, QuantizedWeight):
            return ChangedTensor(tensor, order, tensor.shape)
        return QuantizedWeight.from_blocks(order(tensor.blocks()), tensor.type, tensor.shape)
    if kind.endswith("_norm") and config.norm_offset:
        offset = np.float32(config.norm_offset)
        return ChangedTensor(tensor, lambda weight: weight + offset, tensor.shape)
    if name.endswith("shared.router"):  # a row by itself
        return ChangedTensor(tensor, np.ravel, tensor.shape[1:])
    return tensor


@dataclass(frozen=True, slots=True)
class ChangedTensor(CompositeTensor):
    """A tensor whose values, or their order, change when it is read."""

    tensor: AnyTensor
    change: Callable[[Array], Array]
    shape: tuple[int, ...]

    @property
    def parts(self) -> tuple[AnyTensor]:
        return (self.tensor,)

    def _read(self, dtype: np.dtype[Any]) -> Array:
        return self.change(np.asarray(self.tensor, dtype))
