"""A checkpoint as a GGUF file in few bits."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simdformer.checkpoints.checkpoint import Checkpoint
from simdformer.checkpoints.formats import read_checkpoint
from simdformer.checkpoints.gguf_encode import Losses, in_mixture
from simdformer.checkpoints.gguf_export import source_of
from simdformer.checkpoints.gguf_mixtures import MIXTURES
from simdformer.checkpoints.gguf_writer import write_gguf
from simdformer.checkpoints.locate import locate
from simdformer.models.progress import Progress
from simdformer.text.chat import find_template
from simdformer.text.gguf_vocabulary import vocabulary_keys
from simdformer.text.pretrained import find_tokenizer

__all__ = ["QuantizedFile", "quantize_checkpoint"]

QUANTIZATION_VERSION = 2  # ggml's, of the blocks
NO_TOKENIZER = "no_vocab"  # without which llama.cpp would ask for one


@dataclass(frozen=True)
class QuantizedFile:
    """What was written: the file, its size in bytes, how many parameters, and `losses`: for each
    kind of tensor the types that it got and the relative RMS error that they make."""

    path: Path
    nbytes: int
    parameters: int
    losses: Mapping[str, tuple[tuple[str, ...], float]]

    @property
    def bits_per_parameter(self) -> float:
        return 8 * self.nbytes / self.parameters


def quantize_checkpoint(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str = "q4_k_m",
    *,
    tokenizer: bool = True,
    format: str | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> QuantizedFile:
    """Writes a GGUF file of llama.cpp (version 3) with the weights of a checkpoint in few bits, its
    config, tokenizer and chat template.

    Parameters
    ----------
    path, format, config
        The checkpoint, as for `from_pretrained`, of any architecture that GGUF files have.
    out : path
        The file that is written, under another name until it is whole.
    type : str
        q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, mxfp4, bf16 or f16. The
        last matrix has more bits than its type says, and in ..._m and ..._s some others: the
        mixtures of llama.cpp. Where rows are not divided by blocks of 256 it is q8_0 for q6_k, q5_1
        for q5_k, q5_0 for q4_k. Beside experts mxfp4 means q8_0 for all else, and experts that are
        in mxfp4 already stay so in every type.
    tokenizer : bool
        Whether it is written too; a file without one takes and gives ids.

    Returns
    -------
    QuantizedFile

    Raises
    ------
    ValueError, CheckpointError
        No such type; a model or tokenizer that no such file can hold. Nothing is written then.
    OSError
        The disk has no room, or takes no more. No part of a file is left behind.
    """
    if type not in MIXTURES:
        raise ValueError(f"type is {type!r}, needs one of {', '.join(MIXTURES)}")
    target = Path(out)
    target.parent.stat()  # FileNotFoundError
    checkpoint = read_checkpoint(locate(path), format, config)
    source = source_of(checkpoint, target.stem)
    keys = dict(source.keys)
    if not source.has_tokenizer and tokenizer:
        keys |= text_keys(checkpoint)
    if not tokenizer:
        keys = {name: value for name, value in keys.items() if not name.startswith("tokenizer.")}
    if not any(name.startswith("tokenizer.") for name in keys):
        keys["tokenizer.ggml.model"] = NO_TOKENIZER
    keys["general.file_type"] = MIXTURES[type].file_type
    keys["general.quantization_version"] = QUANTIZATION_VERSION
    losses, parameters = (
        Losses(),
        sum(math.prod(tensor.shape) for tensor in source.tensors.values()),
    )
    total = sum(tensor.nbytes for tensor in source.tensors.values())
    with Progress("quantising", total) as progress:
        new = in_mixture(source, type, losses, progress.advance)
        nbytes = write_gguf(target, keys, new)
    found = {kind: (tuple(types), losses.error(kind)) for kind, types in losses.types.items()}
    return QuantizedFile(target, nbytes, parameters, found)


def text_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """Tokenizer and chat template of a checkpoint; nothing where it has none."""
    tokenizer = find_tokenizer(checkpoint)
    if tokenizer is None:
        return {}
    size, ends = checkpoint.config.vocab_size, checkpoint.eos_ids
    keys = vocabulary_keys(tokenizer, size, ends, checkpoint.path)
    template = find_template(checkpoint, tokenizer)
    return keys if template is None else keys | {"tokenizer.chat_template": template.template}
