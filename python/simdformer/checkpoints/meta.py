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
from pathlib import Path
from typing import Any

from simdformer.arguments import is_whole
from simdformer.checkpoints.checkpoint import Checkpoint, ConfigSource, Format
from simdformer.checkpoints.error import CheckpointError, in_file, misfit
from simdformer.checkpoints.files import read_object
from simdformer.checkpoints.names import Names, check_present, check_rope, require, width_of_heads
from simdformer.checkpoints.stored_tensor import StoredTensor
from simdformer.checkpoints.tensor_names import LLAMA
from simdformer.checkpoints.torch_file import read_tensors
from simdformer.models.config import ModelConfig
from simdformer.models.tensors import JoinedTensor

__all__ = ["META"]

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
NAMES = Names(
    fields={
        "dim": "hidden_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "n_kv_heads": "num_kv_heads",
        "vocab_size": "vocab_size",
        "max_seq_len": "max_seq_len",
        "norm_eps": "norm_eps",
        "rope_theta": "rope_theta",
    },
    tensors=LLAMA.meta,
    derived={
        "head_dim": "(dim / n_heads)",
        "intermediate_size": "width by multiple_of and ffn_dim_multiplier",
    },
)
JOIN_AXIS = {"wq": 0, "wk": 0, "wv": 0, "gate": 0, "up": 0, "lm_head": 0, "wo": 1, "down": 1}


def is_shard(file: Path) -> bool:
    return SHARD.fullmatch(file.name) is not None


def found_in(directory: Path) -> bool:
    return (directory / PARAMS).exists() and any(map(is_shard, directory.iterdir()))


def has_file(file: Path) -> bool:
    return is_shard(file) and (file.parent / PARAMS).exists()


def read(path: Path, config: ConfigSource) -> Checkpoint:
    """The checkpoint in a directory; tensors of several shards as `JoinedTensor`."""
    directory = path if path.is_dir() else path.parent
    params_file = directory / PARAMS
    params = read_object(params_file)
    files = shards_in(directory)
    shards = [read_tensors(file) for file in files]
    for file, shard in zip(files[1:], shards[1:], strict=True):
        if shard.keys() != shards[0].keys():
            odd = sorted(shard.keys() ^ shards[0].keys())
            raise CheckpointError(
                f"a disagreement with {files[0].name} on "
                f"{', '.join(repr(name[:80]) for name in odd[:4])}",
                "the same names",
                file=file,
            )
    weights = NAMES.under_ours(
        {
            name: join(name, [shard[name] for shard in shards], params)
            for name in shards[0]
            if name != "rope.freqs"
        }
    )
    with in_file(params_file):
        made = make_config(params, weights)
    check_number_of_shards(made, shards[0], files)
    NAMES.check(made, weights, params_file, files[0])
    return Checkpoint(directory, META, made, weights)


def shards_in(directory: Path) -> list[Path]:
    """The shards of a directory in their order, without a gap."""
    files = sorted(filter(is_shard, directory.iterdir()))
    needed = [f"consolidated.{number:02d}.pth" for number in range(max(len(files), 1))]
    missing = sorted(set(needed) - {file.name for file in files})
    if missing:
        found = ", ".join(file.name for file in files[:8]) or "none"
        raise CheckpointError(
            f"the shards {found}", f"{', '.join(missing[:8])} too", file=directory
        )
    if len(files) > MAX_SHARDS:
        raise CheckpointError(f"{len(files)} shards", f"at most {MAX_SHARDS}", file=directory)
    return files


def check_number_of_shards(
    config: ModelConfig, first: Mapping[str, StoredTensor], files: list[Path]
) -> None:
    """CheckpointError where the matrices of a shard are too small a part of those that the config
    asks for: shards behind the last one are missing, which no gap in their numbers shows."""
    name, norm = NAMES.theirs("layers.0.wo"), NAMES.theirs("final_norm")
    whole = config.num_heads * config.head_dim
    if not {name, norm} <= first.keys() or first[norm].shape != (whole,):  # is whole in each
        return
    part = (first[name].shape or (whole,))[-1]
    needed = whole // part if whole % part == 0 else 1
    if len(files) < needed <= MAX_SHARDS:
        last = f"consolidated.{needed - 1:02d}.pth"
        absent = f"consolidated.{len(files):02d}.pth"
        raise CheckpointError(
            f"{len(files)} of {needed} shards: {name} in {files[0].name} is {first[name].shape}, "
            f"and {PARAMS} asks for {whole} columns",
            absent if absent == last else f"{absent} to {last}",
            file=files[0].parent,
            advice="download the others too",
        )


def join(
    name: str, parts: list[StoredTensor], params: Mapping[str, Any]
) -> StoredTensor | JoinedTensor:
    """The parts of one tensor as one."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    kind = (NAMES.ours(name) or "").split(".")[-1]
    if kind == "embed":
        # Llama 3 splits the vocabulary, Llama 2 the width: the part's own shape says which.
        axis = 0 if first.shape[-1:] == (params.get("dim"),) else 1
    elif kind in JOIN_AXIS:
        axis = JOIN_AXIS[kind]
    elif all(part[...].tobytes() == first[...].tobytes() for part in parts[1:]):
        return first
    else:
        raise shards_misfit(parts, "the same numbers in every shard")
    alike = [(part.ndim, part.dtype, part.shape[1 - axis : 2 - axis]) for part in parts]
    if first.ndim != 2 or alike != alike[:1] * len(parts):
        raise shards_misfit(parts, f"matrices that fit together along axis {axis}")
    return JoinedTensor(tuple(parts), axis)


def shards_misfit(parts: list[StoredTensor], needed: str) -> CheckpointError:
    found = ", ".join(f"{part.dtype} {part.shape}" for part in parts[:4])
    return misfit(parts[0], f"in the shards {found}", needed)


def make_config(
    params: Mapping[str, Any], weights: Mapping[str, StoredTensor | JoinedTensor]
) -> ModelConfig:
    """Meta's parameters, and the defaults that Meta's own code has."""
    check_present(params, REQUIRED)
    unknown = [repr(name[:40]) for name in params if name not in REQUIRED + OPTIONAL]
    if unknown:
        raise CheckpointError(
            f"entries that are not understood: {', '.join(unknown[:8])}", "a model without them"
        )
    for name in ("dim", "n_heads", "multiple_of"):
        right = is_whole(params[name]) and params[name] <= MAX_WIDTH
        require(right, name, params[name], "a whole number > 0")
    heads = params["n_heads"]
    head_dim = width_of_heads(params["dim"], heads, ("dim", "n_heads"))
    scaling = rope_scaling(params)
    fields = {"n_kv_heads": heads, "rope_theta": 10000.0, "vocab_size": -1}
    # No file of Meta's says how long a text may be: what the generations were trained on. A file of
    # somebody else may (`max_seq_len`).
    fields["max_seq_len"] = 131072 if scaling else 8192 if "rope_theta" in params else 4096
    fields |= {name: params[name] for name in NAMES.fields if params.get(name) is not None}
    if fields["vocab_size"] == -1 and "embed" in weights:  # Llama 2 leaves it to the tokenizer
        fields["vocab_size"] = (*weights["embed"].shape, -1)[0]
    check_rope(fields["rope_theta"], scaling)
    return NAMES.config(
        fields,
        head_dim=head_dim,
        intermediate_size=inner_width(params),
        rope_layout="interleaved",
        rope_scaling=scaling,
        tie_embeddings="lm_head" not in weights,
    )


def rope_scaling(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Llama 3.1's rule where `use_scaled_rope` asks for it, with the factors that the file has."""
    scaled = params.get("use_scaled_rope", False)
    require(isinstance(scaled, bool), "use_scaled_rope", scaled, "true or false")
    names = {"rope_scaling_factor": "factor", "rope_high_freq_factor": "high_freq_factor"}
    own: dict[str, float] = {}
    for name, canonical in names.items():
        value = params.get(name)
        if value is not None:
            right = type(value) in (int, float) and 0 < value < 1e6
            require(right, name, value, "a number from 0 to a million")
            require(scaled, name, value, "no such entry where use_scaled_rope is not true")
            own[canonical] = float(value)
    return LLAMA31_SCALING | own if scaled else None


def inner_width(params: Mapping[str, Any]) -> int:
    """The width of the MLP as Meta's code derives it: 8/3 dim, times a factor, rounded up."""
    inner = int(2 * 4 * params["dim"] / 3)
    multiplier = params.get("ffn_dim_multiplier")
    if multiplier is not None:
        right = type(multiplier) in (int, float) and 0 < multiplier < 1000
        require(right, "ffn_dim_multiplier", multiplier, "a number from 0 to 1000")
        inner = int(multiplier * inner)
    multiple: int = params["multiple_of"]
    return multiple * math.ceil(inner / multiple)


def tokenizer_files(checkpoint: Checkpoint) -> list[Path]:
    file = checkpoint.path / "tokenizer.model"
    return [file] if file.exists() else []


META = Format(
    name="meta",
    files="params.json with consolidated.00.pth (Meta)",
    found_in=found_in,
    has_file=has_file,
    read=read,
    tokenizer_files=tokenizer_files,
    llama3_chat=True,
)
