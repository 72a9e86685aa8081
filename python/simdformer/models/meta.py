"""Reader of checkpoints as Meta publishes them: `params.json`, `consolidated.00.pth`, `...01.pth`.

Large models are cut into shards, one for each GPU that trained them. Matrices whose outputs were
split (wq, wk, wv, w1, w3, output) are joined along axis 0, those whose inputs were split (wo, w2)
along axis 1, the embedding along axis 0 in Llama 3 and along axis 1 in Llama 2; norms are the same
in every shard. RoPE is interleaved.

`use_scaled_rope` (Llama 3.1 and later) names no numbers. Meta's own code stretches the wavelengths
of Llama 3.1 and of Llama 3.2 by 8, and so does this reader; Hugging Face's configs of Llama 3.2 say
32. A params.json that says `"rope_scaling_factor": 32.0` is obeyed; so is `rope_high_freq_factor`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simdformer.models.checkpoint import Checkpoint, CheckpointError, Tensor
from simdformer.models.config import ALIASES, ModelConfig, canonical_tensor_name, is_count
from simdformer.models.input_file import StoredTensor
from simdformer.models.json_file import read_object
from simdformer.models.torch_file import read_tensors

__all__ = ["PARAMS", "is_here", "is_shard", "read"]

PARAMS = "params.json"
SHARD = re.compile(r"consolidated\.\d\d\.pth")
MAX_SHARDS = 64
MAX_WIDTH = 1 << 30
LLAMA31_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
REQUIRED = ("dim", "n_layers", "n_heads", "multiple_of", "norm_eps")
OPTIONAL = (
    "n_kv_heads",
    "vocab_size",
    "ffn_dim_multiplier",
    "rope_theta",
    "use_scaled_rope",
    "rope_scaling_factor",
    "rope_high_freq_factor",
    "max_seq_len",
    "max_batch_size",
)
JOIN_AXIS = {"wq": 0, "wk": 0, "wv": 0, "gate": 0, "up": 0, "lm_head": 0, "wo": 1, "down": 1}


@dataclass(frozen=True, slots=True)
class Joined:
    """One tensor in several shards, joined when `np.asarray` asks for it, and not kept."""

    parts: list[StoredTensor]
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        length = sum(part.shape[self.axis] for part in self.parts)
        return (*first[: self.axis], length, *first[self.axis + 1 :])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, /, *, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a tensor in several shards cannot be had without a copy")
        whole = np.empty(self.shape, dtype or self.dtype)
        start = 0
        for part in self.parts:
            stop = start + part.shape[self.axis]
            whole[(slice(None),) * self.axis + (slice(start, stop),)] = part
            start = stop
        return whole


def is_shard(file: Path) -> bool:
    return SHARD.fullmatch(file.name) is not None


def is_here(directory: Path) -> bool:
    return (directory / PARAMS).exists() and any(map(is_shard, directory.iterdir()))


def read(directory: Path) -> Checkpoint:
    """The checkpoint in a directory; tensors of several shards as `Joined`."""
    params_file = directory / PARAMS
    params = read_object(params_file)
    files = sorted(filter(is_shard, directory.iterdir()))
    needed = [f"consolidated.{number:02d}.pth" for number in range(max(len(files), 1))]
    if [file.name for file in files] != needed or len(files) > MAX_SHARDS:
        found = ", ".join(file.name for file in files[:8])
        raise CheckpointError(
            f"{directory}: found the shards {found or 'none'}; needed are {', '.join(needed[:8])}",
            file=directory,
            found=found,
            needed=", ".join(needed),
        )
    shards = [read_tensors(file) for file in files]
    for file, shard in zip(files[1:], shards[1:], strict=True):
        if shard.keys() != shards[0].keys():
            odd = sorted(shard.keys() ^ shards[0].keys())
            raise CheckpointError(
                f"{file}: found a disagreement with {files[0].name} on "
                f"{', '.join(repr(name[:80]) for name in odd[:4])}; needed are the same names"
            )
    weights: dict[str, Tensor] = {
        canonical_tensor_name("meta", name): join(
            name, [shard[name] for shard in shards], params, files[0]
        )
        for name in shards[0]
        if name != "rope.freqs"
    }
    try:
        config = make_config(params, weights)
    except ValueError as error:
        raise CheckpointError(f"{params_file}: {error}", file=params_file) from None
    return Checkpoint(directory, "meta", config, weights)


def join(name: str, parts: list[StoredTensor], params: Mapping[str, Any], file: Path) -> Tensor:
    """The parts of one tensor as one."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    kind = canonical_tensor_name("meta", name).split(".")[-1]
    if kind == "embed":
        # Llama 3 splits the vocabulary, Llama 2 the width: the part's own shape says which.
        axis = 0 if first.shape[-1:] == (params.get("dim"),) else 1
    elif kind in JOIN_AXIS:
        axis = JOIN_AXIS[kind]
    elif all(part[...].tobytes() == first[...].tobytes() for part in parts[1:]):
        return first
    else:
        raise misfit(name, parts, file, "the same numbers in every shard")
    alike = [(part.ndim, part.dtype, part.shape[1 - axis : 2 - axis]) for part in parts]
    if first.ndim != 2 or alike != alike[:1] * len(parts):
        raise misfit(name, parts, file, f"matrices that fit together along axis {axis}")
    return Joined(parts, axis)


def misfit(name: str, parts: list[StoredTensor], file: Path, needed: str) -> CheckpointError:
    found = ", ".join(f"{part.dtype} {part.shape}" for part in parts[:4])
    return CheckpointError(
        f"{file}: tensor {name[:80]!r}: found in the shards {found}; needed are {needed}",
        file=file,
        tensor=name,
        found=found,
        needed=needed,
    )


def make_config(params: Mapping[str, Any], weights: Mapping[str, Tensor]) -> ModelConfig:
    """Meta's parameters, and the defaults that Meta's own code has; ValueError names a field."""
    missing = [name for name in REQUIRED if name not in params]
    unknown = [repr(name[:40]) for name in params if name not in REQUIRED + OPTIONAL]
    if missing or unknown:
        raise ValueError(
            f"missing: {', '.join(missing) or 'nothing'}; "
            f"not understood: {', '.join(unknown[:8]) or 'nothing'}"
        )
    for name in ("dim", "n_heads", "multiple_of"):
        if not is_count(params[name]) or params[name] > MAX_WIDTH:
            raise ValueError(f"{name} is {shown(params[name])}, needed is a whole number > 0")
    dim, heads = params["dim"], params["n_heads"]
    if dim % heads:
        raise ValueError(f"n_heads is {heads}, needed is a divisor of dim = {dim}")
    scaling = rope_scaling(params)
    fields = {"n_kv_heads": heads, "rope_theta": 10000.0, "vocab_size": -1}
    # No file of Meta's says how long a text may be: what the generations were trained on. A file of
    # somebody else may (`max_seq_len`).
    fields["max_seq_len"] = 131072 if scaling else 8192 if "rope_theta" in params else 4096
    fields |= {name: params[name] for name in ALIASES["meta"] if params.get(name) is not None}
    if fields["vocab_size"] == -1 and "embed" in weights:  # Llama 2 leaves it to the tokenizer
        fields["vocab_size"] = (*weights["embed"].shape, -1)[0]
    return ModelConfig.from_aliases(
        "meta",
        fields,
        head_dim=dim // heads,
        intermediate_size=inner_width(params),
        rope_layout="interleaved",
        rope_scaling=scaling,
        tie_embeddings="lm_head" not in weights,
    )


def rope_scaling(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Llama 3.1's rule where `use_scaled_rope` asks for it, with the factors that the file has."""
    scaled = params.get("use_scaled_rope", False)
    if not isinstance(scaled, bool):
        raise ValueError(f"use_scaled_rope is {shown(scaled)}, needed is true or false")
    names = {"rope_scaling_factor": "factor", "rope_high_freq_factor": "high_freq_factor"}
    given = {name: params[name] for name in names if params.get(name) is not None}
    for name, value in given.items():
        if type(value) not in (int, float) or not 0 < value < 1e6:
            raise ValueError(f"{name} is {shown(value)}, needed is a number from 0 to a million")
        if not scaled:
            raise ValueError(f"{name} is {shown(value)}, which needs use_scaled_rope to be true")
    own = {names[name]: float(value) for name, value in given.items()}
    return LLAMA31_SCALING | own if scaled else None


def inner_width(params: Mapping[str, Any]) -> int:
    """The width of the MLP as Meta's code derives it: 8/3 dim, times a factor, rounded up."""
    inner = int(2 * 4 * params["dim"] / 3)
    multiplier = params.get("ffn_dim_multiplier")
    if multiplier is not None:
        if type(multiplier) not in (int, float) or not 0 < multiplier < 1000:
            raise ValueError(
                f"ffn_dim_multiplier is {shown(multiplier)}, needed is a number from 0 to 1000"
            )
        inner = int(multiplier * inner)
    multiple: int = params["multiple_of"]
    return multiple * math.ceil(inner / multiple)


def shown(value: object) -> str:
    """What a stranger wrote, in one short line."""
    return repr(value)[:60]
