"""Reader of llama2.c checkpoints (github.com/karpathy/llama2.c): `.bin`, legacy and version 1.

legacy     7 int32: dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size (negative: the
           classifier is not the embedding), max_seq_len; float32 tensors, among them two tables of
           RoPE angles that are not needed
version 1  "ak42", int32 1, the same 7 int32 (vocab_size positive), byte shared_classifier, zeros
           up to byte 256; float32 tensors, the norms first
version 2  as version 1, but with weights quantised to int8: refused

Everything is little-endian. Tensors of one kind lie together, layer after layer. RoPE is
interleaved; norm_eps is 1e-5 and rope_theta 10000, which no file says.
"""

import itertools
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.checkpoints.checkpoint import Checkpoint, ConfigSource, Format
from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import InputFile, only
from simdformer.checkpoints.names import Names, require, width_of_heads
from simdformer.checkpoints.stored_tensor import StoredTensor
from simdformer.models.config import ModelConfig

__all__ = ["LLAMA2C"]

FLOAT32: np.dtype[Any] = np.dtype("<f4")
MAGIC = 0x616B3432  # "ak42"
NAMES = Names(
    fields={
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "n_kv_heads": "num_kv_heads",
        "vocab_size": "vocab_size",
        "max_seq_len": "max_seq_len",
        "shared_classifier": "tie_embeddings",
    },
    tensors={},  # it is their order that says which is which
    derived={"head_dim": "dim / n_heads"},
)
SIZES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
LEGACY_HEADER = struct.Struct("<7i")
V1_HEADER = struct.Struct("<Ii7iB")
V1_HEADER_SIZE = 256
OTHERS = ("tok", "pytorch_model", "training_args", "optimizer", "scheduler")  # are no llama2.c
DOUBT = "is this a llama2.c checkpoint?"


def candidates(directory: Path) -> list[str]:
    """The .bin files in a directory that may be of llama2.c: no tokenizers, nothing of PyTorch."""
    there = sorted(entry.name for entry in directory.iterdir())
    return [name for name in there if name.endswith(".bin") and not name.startswith(OTHERS)]


def read(path: Path, config: ConfigSource) -> Checkpoint:
    """Checks the header against the file's size. The weights stay in the file."""
    if path.is_dir():
        path = path / only(path, "checkpoints", candidates(path), "one .bin file of llama2.c")
    file = InputFile(path)
    with in_file(path):
        made, weights = tensors_of(file)
    return Checkpoint(path, LLAMA2C, made, weights)


def tensors_of(file: InputFile) -> tuple[ModelConfig, dict[str, StoredTensor]]:
    version, fields, start = parse_header(file.read(0, V1_HEADER_SIZE), file.size)
    config = make_config(file.path, fields)
    tensors = layout(config, version)
    needed = start + sum(4 * math.prod(shape) for _, shape in tensors)
    if needed != file.size:
        kind = "legacy header" if version == 0 else "header of version 1"
        raise CheckpointError(
            f"{file.size} bytes: {describe_gap(tensors, start, file.size, needed)}",
            f"{needed} (llama2.c, {kind}: {fields})",
            advice="the file is damaged or of another format, download or export it again",
        )
    weights: dict[str, StoredTensor] = {}
    for name, shape in tensors:
        size = 4 * math.prod(shape)
        if name.startswith("layers."):
            kind = name.removeprefix("layers.")
            for layer in range(config.num_layers):
                at, full = start + layer * size // config.num_layers, f"layers.{layer}.{kind}"
                weights[full] = StoredTensor.dense(file, full, at, shape[1:], FLOAT32)
        elif name != "rope_tables":
            weights[name] = StoredTensor.dense(file, name, start, shape, FLOAT32)
        start += size
    return config, weights


def parse_header(data: bytes, size: int) -> tuple[int, dict[str, int | bool], int]:
    """Version (0 = legacy), the fields under llama2.c's names, and where the tensors start."""
    if size < LEGACY_HEADER.size:
        raise CheckpointError(
            f"{size} bytes", f"at least the {LEGACY_HEADER.size} of the shortest llama2.c header"
        )
    magic, version = struct.unpack_from("<Ii", data)
    if magic != MAGIC:
        *sizes, vocab_size, max_seq_len = LEGACY_HEADER.unpack_from(data)
        fields = dict(zip(SIZES, [*sizes, abs(vocab_size), max_seq_len], strict=True))
        return 0, fields | {"shared_classifier": vocab_size > 0}, LEGACY_HEADER.size
    if version == 2:
        raise CheckpointError(
            "a llama2.c file of version 2, quantised to int8, which is not supported",
            "an export as version 0 or 1",
        )
    if version != 1:
        raise CheckpointError(
            f"a llama2.c file of version {version}", "one with the legacy header or of version 1"
        )
    if size < V1_HEADER_SIZE:
        raise CheckpointError(
            f"{size} bytes", f"at least the {V1_HEADER_SIZE} of the header of version 1"
        )
    _, _, *values, shared = V1_HEADER.unpack_from(data)
    require(shared <= 1, "shared_classifier", shared, "0 or 1")
    fields = dict(zip(SIZES, values, strict=True)) | {"shared_classifier": shared == 1}
    return 1, fields, V1_HEADER_SIZE


def make_config(file: str, fields: dict[str, int | bool]) -> ModelConfig:
    """The config that a header stands for."""
    with in_file(file, advice=DOUBT):
        for name in SIZES:
            require(fields[name] > 0, name, fields[name], "a number > 0")
        both = "dim", "n_heads"
        head_dim = width_of_heads(fields["dim"], fields["n_heads"], both)
        return NAMES.config(
            fields,
            head_dim=head_dim,
            norm_eps=1e-5,
            rope_theta=10000.0,
            rope_layout="interleaved",
        )


def layout(config: ModelConfig, version: int) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors in the order of the file, those of all layers stacked."""
    n, width, inner = config.num_layers, config.hidden_size, config.intermediate_size
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    embed = ("embed", (config.vocab_size, width))
    attn_norm, mlp_norm = ("layers.attn_norm", (n, width)), ("layers.mlp_norm", (n, width))
    final_norm = ("final_norm", (width,))
    attention = [
        ("layers.wq", (n, q_width, width)),
        ("layers.wk", (n, kv_width, width)),
        ("layers.wv", (n, kv_width, width)),
        ("layers.wo", (n, width, q_width)),
    ]
    mlp = [  # w1, w2, w3
        ("layers.gate", (n, inner, width)),
        ("layers.down", (n, width, inner)),
        ("layers.up", (n, inner, width)),
    ]
    rope_tables = ("rope_tables", (2, config.max_seq_len, config.head_dim // 2))
    lm_head = [] if config.tie_embeddings else [("lm_head", (config.vocab_size, width))]
    if version == 0:
        return [embed, attn_norm, *attention, mlp_norm, *mlp, final_norm, rope_tables, *lm_head]
    return [attn_norm, mlp_norm, final_norm, embed, *attention, *mlp, *lm_head]


def describe_gap(
    tensors: list[tuple[str, tuple[int, ...]]], start: int, found: int, needed: int
) -> str:
    """Where a file of `found` bytes ends, when its header asks for `needed`."""
    if found > needed:
        return f"{found - needed} are left over after the last tensor"
    ends = itertools.accumulate((4 * math.prod(shape) for _, shape in tensors), initial=start)
    complete = sum(end <= found for end in ends) - 1
    name, shape = tensors[max(complete, 0)]
    return f"the file ends in tensor {name} of shape {shape}"


def found_in(directory: Path) -> bool:
    return bool(candidates(directory))


def has_file(file: Path) -> bool:
    """Any: a legacy file has no mark. So this format is asked last."""
    return True


def tokenizer_files(checkpoint: Checkpoint) -> list[Path]:
    """All of them; those under the usual names first."""
    path, vocab_size = checkpoint.path, checkpoint.config.vocab_size
    usual = (f"tok{vocab_size}.bin", "tokenizer.bin")
    there = sorted(set(path.parent.glob("tok*.bin")) - {path})
    return sorted(
        there, key=lambda file: usual.index(file.name) if file.name in usual else len(usual)
    )


LLAMA2C = Format(
    name="llama2.c",
    files="a .bin of llama2.c",
    found_in=found_in,
    has_file=has_file,
    read=read,
    tokenizer_files=tokenizer_files,
    whole_vocabulary=True,
)
