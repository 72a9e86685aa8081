"""Reader of GGUF files (ggml, llama.cpp): config, weights, tokenizer and chat template in one file,
or in parts NAME-00001-of-00004.gguf that lie beside each other.

Rows are never permuted: the files of Llama hold wq and wk with neighbours as pairs (RoPE's
"interleaved"), those of Qwen with halves. The frequencies of Llama 3.1 are in no key; they are the
tensor rope_freqs.weight, which divides those of theta.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simdformer.arguments import is_whole, shown
from simdformer.checkpoints.checkpoint import Checkpoint, ConfigSource, Format, StoredTemplate
from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import begins_with, only
from simdformer.checkpoints.fused import split_fused
from simdformer.checkpoints.gguf_config import (
    DIVISORS,
    TOKENS,
    architecture_of,
    make_config,
)
from simdformer.checkpoints.gguf_file import MAGIC, GGUFFile, StoredArray, read_gguf
from simdformer.checkpoints.names import require
from simdformer.checkpoints.stacked import split_stacked
from simdformer.models.tensors import LazyTensor

__all__ = ["END_KEYS", "GGUF", "all_tensors", "candidates", "id_of"]

SUFFIX = ".gguf"
PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
PROJECTOR = "mmproj"  # how files begin that turn pictures into activations: no language models
MAX_TEMPLATE = 1 << 20  # characters

END_KEYS = ("eos", "eot", "eom")  # tokenizer.ggml.*_token_id that end a text
TEMPLATE = "tokenizer.chat_template"
NAMED = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token"}  # in templates


def candidates(directory: Path) -> list[Path]:
    """The models in a directory; of one in parts the first that is there."""
    found: dict[str, Path] = {}
    for file in sorted(directory.glob(f"*{SUFFIX}")):
        part = PART.fullmatch(file.name)
        if not file.name.startswith(PROJECTOR):
            found.setdefault(f"{part[1]} of {part[3]}" if part else file.name, file)
    return list(found.values())


def find(directory: Path) -> Path:
    """The one model in a directory."""
    names = [file.name for file in candidates(directory)]
    needed = f"one {SUFFIX} file, or all parts of one"
    return directory / only(directory, "models", names, needed)


def has_file(file: Path) -> bool:
    """By its name, or by its first bytes."""
    return file.suffix == SUFFIX or begins_with(file, MAGIC)


def read(path: Path, config: ConfigSource) -> Checkpoint:
    """The model at `path`: a file, any part of one, or the directory that it is in."""
    path = first_part(find(path) if path.is_dir() else path)
    first = read_gguf(path)
    tensors = all_tensors(first)
    with in_file(path):
        arch, architecture = architecture_of(first.metadata)
        divisors = {name: tensors.pop(name) for name in DIVISORS if name in tensors}
        names = architecture.names(arch)
        weights = names.under_ours(tensors)
        made = make_config(arch, first.metadata, weights, divisors)
        weights = split_stacked(split_fused(weights, made), made)
        names.check(made, weights, path, path)
        ends = (id_of(first.metadata, name, made.vocab_size) for name in END_KEYS)
        eos_ids = tuple(dict.fromkeys(id for id in ends if id is not None))
    return Checkpoint(path, GGUF, made, weights, eos_ids, first.metadata)


# ---- files in parts ------------------------------------------------------------------------------


def part_of(path: Path, number: int) -> Path:
    """The part of that number, from 1 on, of the file that `path` is a part of."""
    name = PART.fullmatch(path.name)
    return path if name is None else path.with_name(f"{name[1]}-{number:05d}-of-{name[3]}{SUFFIX}")


def first_part(path: Path) -> Path:
    """The part that has the metadata; CheckpointError when it does not lie beside this one."""
    first = part_of(path, 1)
    if first != path and path.exists() and not first.exists():
        raise CheckpointError(
            f"no file {first.name!r} beside it", "all parts; download it too", file=path
        )
    return first


def all_tensors(first: GGUFFile) -> dict[str, LazyTensor]:
    """The tensors of all parts."""
    return dict(first.tensors) | other_parts(first)


def other_parts(first: GGUFFile) -> dict[str, LazyTensor]:
    """The tensors of the parts behind the first."""
    count = check_part(first, 0, first.metadata.get("split.count", 0))
    tensors: dict[str, LazyTensor] = {}
    seen = set(first.tensors)
    for number in range(1, count):
        path = part_of(first.path, number + 1)
        if not path.exists():
            raise CheckpointError(
                f"no file {path.name!r} beside it", "all parts; download it too", file=first.path
            )
        part = read_gguf(path)
        check_part(part, number, count)
        if twice := sorted(seen & part.tensors.keys()):
            raise CheckpointError(
                "a tensor that another part has too", "each name once", file=path, tensor=twice[0]
            )
        seen |= part.tensors.keys()
        tensors |= part.tensors
    total = first.metadata.get("split.tensors.count", len(seen))
    if total != len(seen):
        raise CheckpointError(
            f"{len(seen)} tensors in {max(count, 1)} parts",
            f"the {shown(total)} of split.tensors.count",
            file=first.path,
        )
    return tensors


def check_part(part: GGUFFile, number: int, count: Any) -> int:
    """How many parts there are (0 or 1: it is whole), as metadata and name say alike."""
    name = PART.fullmatch(part.path.name)
    with in_file(part.path):
        require(is_whole(count, 0), "split.count", count, "a whole number")
        if count < 2:
            return int(count)
        found = part.metadata.get("split.no", 0), part.metadata.get("split.count")
        if found != (number, count):
            raise CheckpointError(
                f"split.no = {shown(found[0])} and split.count = {shown(found[1])}",
                f"{number} and {count}",
            )
        if name is None or (int(name[2]), int(name[3])) != (number + 1, count):
            raise CheckpointError(
                f"part {number + 1} of {count} under another name",
                f"NAME-{number + 1:05d}-of-{count:05d}{SUFFIX}",
                advice="give the parts the names that they were published under",
            )
    return int(count)


# ---- text ----------------------------------------------------------------------------------------


def id_of(metadata: Mapping[str, Any], name: str, vocab_size: int) -> int | None:
    """The id of the token that is called bos, eos, ... if there is one."""
    key = f"tokenizer.ggml.{name}_token_id"
    id = metadata.get(key)
    right = id is None or (is_whole(id, 0) and id < vocab_size)
    require(right, key, id, f"an id below {vocab_size}")
    return id


def tokenizer_files(checkpoint: Checkpoint) -> list[Path]:
    """The file itself, where there is a tokenizer in it."""
    return [checkpoint.path] if TOKENS in checkpoint.metadata else []


def chat_template(checkpoint: Checkpoint) -> StoredTemplate | None:
    path, metadata = checkpoint.path, checkpoint.metadata
    template, tokens = metadata.get(TEMPLATE), metadata.get(TOKENS)
    if template is None:
        return None
    with in_file(path):
        right = isinstance(template, str) and len(template) <= MAX_TEMPLATE
        require(right, TEMPLATE, template, f"text of at most {MAX_TEMPLATE} characters")
        known = tokens if isinstance(tokens, StoredArray) else ()
        ids = {name: id_of(metadata, key, len(known)) for key, name in NAMED.items()}
        found = {name: id for name, id in ids.items() if id is not None}
        texts = tokens.some_texts(found.values()) if isinstance(tokens, StoredArray) else {}
    return StoredTemplate(template, path, {name: texts[id] for name, id in found.items()})


GGUF = Format(
    name="gguf",
    files="a .gguf (llama.cpp)",
    found_in=lambda directory: bool(candidates(directory)),
    has_file=has_file,
    read=read,
    tokenizer_files=tokenizer_files,
    chat_template=chat_template,
)
