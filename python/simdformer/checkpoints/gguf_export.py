"""A checkpoint of any format as the keys and tensors of a GGUF file of llama.cpp.

Which architecture of theirs it is, nobody looks up: the keys that a file would have are read as
those of every file are, and the architecture is the one that gives the same model again.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from simdformer.checkpoints.checkpoint import Checkpoint, StoredTensor
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.gguf import GGUF, all_tensors
from simdformer.checkpoints.gguf_architectures import ARCHITECTURES
from simdformer.checkpoints.gguf_config import FREQUENCIES, make_config
from simdformer.checkpoints.gguf_file import FLOATS, read_gguf
from simdformer.checkpoints.gguf_mixtures import MIXTURES, type_of
from simdformer.checkpoints.gguf_writer import NewTensor
from simdformer.functional import quantize, rope_frequencies
from simdformer.models.config import ModelConfig
from simdformer.models.packing import BlockTensor, Tensor
from simdformer.quantization.types import quantization_types
from simdformer.types import Array

__all__ = ["Losses", "Source", "in_layout", "new_tensors", "source_of"]

# Architectures, and the biases that llama.cpp reads in their files.
WRITTEN = {"qwen3": (), "qwen2": ("bq", "bk", "bv"), "llama": ("bq", "bk", "bv", "bo")}
TURNED = ("wq", "wk", "bq", "bk", "q_norm", "k_norm")  # what RoPE turns, and their like
OWN_KEYS = ("general.file_type", "general.quantization_version", "general.alignment", "split.")
AT_ONCE = 1 << 22  # numbers that are in memory as floats
FLOAT_TYPES = dict(zip(("f32", "f16", "bf16"), FLOATS.values(), strict=True))


@dataclass(frozen=True)
class Source:
    """What goes into a file: its keys but for the tokenizer, and its tensors by the names that
    they get. `has_tokenizer`: whether the keys hold one already."""

    keys: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    layers: int
    tied: bool
    has_tokenizer: bool


class Losses:
    """What rounding costs, by kind of tensor (attn_q, ffn_down, ...): the types that it got, and
    the relative RMS error of all of them together."""

    def __init__(self) -> None:
        self.types: dict[str, list[str]] = {}
        self.squares: dict[str, tuple[float, float]] = {}  # of what is missed, and of all there was

    def add(self, name: str, type: str, missed: float, all: float) -> None:
        kind = kind_of_name(name)
        types = self.types.setdefault(kind, [])
        if type not in types:
            types.append(type)
        before = self.squares.get(kind, (0.0, 0.0))
        self.squares[kind] = before[0] + missed, before[1] + all

    def error(self, kind: str) -> float:
        missed, all = self.squares[kind]
        return float(np.sqrt(missed / all)) if all > 0 else 0.0


def source_of(checkpoint: Checkpoint, name: str) -> Source:
    """CheckpointError for a model that no file written here can hold."""
    if checkpoint.format is GGUF:
        return of_gguf(checkpoint)
    config = checkpoint.config
    differences: dict[str, list[str]] = {}
    for arch in WRITTEN:
        keys = keys_of(arch, config)
        again = make_config(arch, keys, checkpoint.weights, {})
        differences[arch] = different_fields(config, again)
        if config.qkv_bias and "bq" not in WRITTEN[arch]:
            differences[arch].append("qkv_bias")
        if config.rope_boundary is not None:
            differences[arch].append("rope_scaling")
        if config.wo_bias and "bo" not in WRITTEN[arch]:
            differences[arch].append("wo_bias")
        if config.num_experts:  # which lie in one tensor there
            differences[arch].append("num_experts")
        if not differences[arch]:
            general = {"general.architecture": arch, "general.type": "model", "general.name": name}
            return Source(
                general | keys,
                tensors_of(arch, checkpoint),
                config.num_layers,
                config.tie_embeddings,
                has_tokenizer=False,
            )
    closest = min(differences.values(), key=len)
    found = ", ".join(f"{field} = {getattr(config, field)!r}" for field in closest)
    raise CheckpointError(
        f"a model with {found}",
        f"one that a GGUF file of {' or '.join(WRITTEN)} can hold",
        file=checkpoint.path,
        advice="llama.cpp's own converter may know it",
    )


def of_gguf(checkpoint: Checkpoint) -> Source:
    """The keys and tensors of a file of the same format, under the same names."""
    first, config = read_gguf(checkpoint.path), checkpoint.config
    keys = {name: value for name, value in first.metadata.items() if not name.startswith(OWN_KEYS)}
    tensors = all_tensors(first)
    return Source(keys, tensors, config.num_layers, config.tie_embeddings, has_tokenizer=True)


# ---- keys ----------------------------------------------------------------------------------------


def keys_of(arch: str, config: ModelConfig) -> dict[str, Any]:
    """The config as the keys of an architecture."""
    names = ARCHITECTURES[arch].names(arch)
    keys = {theirs: getattr(config, ours) for theirs, ours in names.fields.items()}
    keys[f"{arch}.attention.value_length"] = config.head_dim
    keys[f"{arch}.rope.dimension_count"] = config.head_dim
    if isinstance(config.sliding_window, int):
        keys[f"{arch}.attention.sliding_window"] = config.sliding_window
    return keys | {f"{arch}.rope.scaling.{name}": v for name, v in scaling_keys(config).items()}


def scaling_keys(config: ModelConfig) -> dict[str, Any]:
    """Of RoPE's scalings those that have keys; the others are divisors, in a tensor."""
    scaling = config.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        return {"type": kind, "factor": float(scaling["factor"])}
    if kind != "yarn":
        return {}
    sharpness = 1 + 0.1 * np.log(scaling["factor"])  # which ggml multiplies the factor with
    length = scaling.get("original_max_position_embeddings", config.max_seq_len)
    return {
        "type": kind,
        "factor": float(scaling["factor"]),
        "original_context_length": int(length),
        "yarn_beta_fast": float(scaling.get("beta_fast") or 32.0),
        "yarn_beta_slow": float(scaling.get("beta_slow") or 1.0),
        "attn_factor": float(frequencies(config).attention_factor / sharpness),
    }


def frequencies(config: ModelConfig) -> Any:
    return rope_frequencies(config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling)


def divisors_of(config: ModelConfig) -> Array | None:
    """What the frequencies of theta are divided by, where no key says it."""
    if config.rope_scaling is None or scaling_keys(config):
        return None
    plain = rope_frequencies(config.head_dim, theta=config.rope_theta).inv_freq
    return np.asarray(plain / frequencies(config).inv_freq, np.float32)


def different_fields(config: ModelConfig, again: ModelConfig) -> list[str]:
    """The fields in which two models differ; the order of rows in the file is none of them."""
    free = {"rope_layout", "rope_scaling"}
    names = [field.name for field in fields(config) if field.name not in free]
    found = [name for name in names if getattr(config, name) != getattr(again, name)]
    if divisors_of(config) is None:
        close = zip(frequencies(config), frequencies(again), strict=True)
        if not all(np.allclose(one, other, rtol=1e-6, atol=0) for one, other in close):
            found.append("rope_scaling")
    return found


# ---- tensors -------------------------------------------------------------------------------------


def tensors_of(arch: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """The tensors under their names, rows in the order in which they are stored."""
    config, architecture = checkpoint.config, ARCHITECTURES[arch]
    names = architecture.names(arch)
    order = partial(in_layout, head_dim=config.head_dim, wanted=architecture.rope_layout)
    tensors: dict[str, Any] = {}
    for ours, tensor in checkpoint.weights.items():
        turned = ours.split(".")[-1] in TURNED and config.rope_layout != architecture.rope_layout
        tensors[names.theirs(ours)] = Reordered(tensor, order) if turned else tensor
    divisors = divisors_of(config)
    return tensors if divisors is None else tensors | {FREQUENCIES: divisors}


def in_layout(rows: Array, *, head_dim: int, wanted: str) -> Array:
    """Rows (heads·D, ...) of the other layout in the order in which RoPE of the wanted one finds
    the same pairs.

    >>> import numpy as np
    >>> in_layout(np.arange(6), head_dim=6, wanted="interleaved")
    array([0, 3, 1, 4, 2, 5])
    >>> in_layout(np.arange(6), head_dim=6, wanted="half")
    array([0, 2, 4, 1, 3, 5])
    """
    pairs = (2, head_dim // 2) if wanted == "interleaved" else (head_dim // 2, 2)
    order = np.arange(len(rows)).reshape(-1, *pairs).swapaxes(1, 2).ravel()
    return rows[order]


@dataclass(frozen=True)
class Reordered:
    """A tensor whose rows change places when it is read."""

    tensor: Any
    order: Callable[[Array], Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.tensor.dtype
        return found

    @property
    def nbytes(self) -> int:
        return int(self.tensor.nbytes)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, /, *, copy: bool | None = None
    ) -> Array:
        return self.order(np.asarray(self.tensor, dtype))


def new_tensors(
    source: Source, mixture: str, losses: Losses, advance: Callable[[int], None]
) -> list[NewTensor]:
    """The tensors as they will be written; `advance` is told the bytes that were read."""
    last = "token_embd" if source.tied else "output"
    made = []
    for name, tensor in source.tensors.items():
        type = type_of(
            MIXTURES[mixture],
            name,
            tuple(tensor.shape),
            layers=source.layers,
            is_last=name == f"{last}.weight",
        )
        pieces = partial(pieces_of, name, tensor, type, losses, advance)
        made.append(NewTensor(name, tuple(tensor.shape), type, pieces))
    return made


def pieces_of(
    name: str, tensor: Any, type: str, losses: Losses, advance: Callable[[int], None]
) -> Iterator[Array]:
    """The bytes of a tensor in a type, some rows at a time. Blocks of that type stay as they
    are."""
    for rows in parts_of(tensor):
        if isinstance(rows, BlockTensor) and rows.type == type:
            yield rows.blocks()
        else:
            values = np.asarray(rows, np.float32).reshape(-1, rows.shape[-1])
            if type in quantization_types():
                made = quantize(values, type)
                error, blocks = made.error or 0.0, made.blocks()
            else:
                blocks = values.astype(FLOAT_TYPES[type])
                error = relative(blocks.astype(np.float32) - values, values)
            if len(tensor.shape) > 1:
                size = float(np.vdot(values, values))
                losses.add(name, type, error * error * size, size)
            yield blocks
        advance(rows.nbytes)


def relative(missed: Array, values: Array) -> float:
    size = float(np.vdot(values, values))
    return float(np.sqrt(np.vdot(missed, missed) / size)) if size > 0 else 0.0


def parts_of(tensor: Any) -> Iterator[Any]:
    """Rows of a tensor, so many that they fit into memory as floats; whole where it cannot be read
    in parts."""
    if not isinstance(tensor, StoredTensor) or not tensor.by_rows or tensor.ndim == 1:
        yield tensor
        return
    step = max(1, AT_ONCE // (tensor.size // len(tensor)))
    for start in range(0, len(tensor), step):
        yield tensor.rows(start, start + step)


def kind_of_name(name: str) -> str:
    """What a tensor is, whatever its layer: "blk.3.attn_q.weight" -> "attn_q"."""
    return name.split(".")[-2] if "." in name else name
