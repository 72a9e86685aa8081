"""Reader of safetensors: eight bytes of length, a JSON header, then the tensors' bytes.

https://huggingface.co/docs/safetensors describes the format. A tensor is read when somebody
asks for it. The header is data of a stranger: its size is limited, no key repeats, and the tensors
cover the rest of the file exactly, without an overlap and without a hole.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.arguments import shown
from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import InputFile, parse_object, read_object
from simdformer.checkpoints.stored_tensor import StoredTensor

__all__ = ["INDEX", "list_of_tensors", "read_directory", "read_tensors"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LENGTH = 8  # bytes that hold the length of the header
MAX_HEADER = 100 << 20
MAX_RANK = 16
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """What the header says about one tensor; begin and end count bytes after the header."""

    begin: int
    end: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name, in the file's dtypes."""
    file = InputFile(path)
    with in_file(path):
        return tensors_of(file)


def tensors_of(file: InputFile) -> dict[str, StoredTensor]:
    length = int.from_bytes(file.read(0, LENGTH), "little")
    if file.size < LENGTH or length > min(MAX_HEADER, file.size - LENGTH):
        raise CheckpointError(
            f"a header of {length} bytes in a file of {file.size}",
            f"a header inside the file, of at most {MAX_HEADER} bytes; is the download complete?",
        )
    start = LENGTH + length
    header = parse_object(file.read(LENGTH, length))
    header.pop("__metadata__", None)
    entries = [check_entry(name, entry) for name, entry in header.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    position = 0
    for entry in entries:
        if entry.begin != position:
            raise CheckpointError(
                f"its first byte is {entry.begin}",
                f"{position}, where the tensor before it ends",
                tensor=entry.name,
            )
        position = entry.end
    if start + position != file.size:
        raise CheckpointError(
            f"{file.size} bytes",
            f"the {start + position} that the header speaks of",
            advice="is the download complete?",
        )
    if not entries:
        raise CheckpointError("a header without tensors", "at least one tensor")
    return {
        entry.name: StoredTensor.dense(
            file, entry.name, start + entry.begin, entry.shape, entry.dtype
        )
        for entry in entries
    }


def check_entry(name: str, entry: Any) -> HeaderEntry:
    """One entry of the header, checked against itself."""

    def require(right: bool, found: str, needed: str) -> None:
        if not right:
            raise CheckpointError(found, needed, tensor=name)

    right = isinstance(entry, dict) and set(entry) == {"dtype", "shape", "data_offsets"}
    require(right, f"the entry {shown(entry)}", "one of dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    known = isinstance(kind, str) and kind in DTYPES
    require(known, f"dtype {str(kind)[:40]!r}", f"one of {', '.join(DTYPES)}")
    for field, numbers in (("shape", shape), ("data_offsets", offsets)):
        right = isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)
        require(right, f"{field} = {shown(numbers)}", "a list of whole numbers >= 0")
    require(
        len(offsets) == 2 and len(shape) <= MAX_RANK,
        f"{len(offsets)} offsets and {len(shape)} axes",
        f"2 offsets and at most {MAX_RANK} axes",
    )
    begin, end = offsets
    needed = math.prod(shape) * DTYPES[kind].itemsize
    require(needed != 0, "a tensor without elements", "at least one")
    of_shape = f"{needed} for {kind} of shape {tuple(shape)}"
    require(end - begin == needed, f"{end - begin} bytes", of_shape)
    return HeaderEntry(begin, end, name, tuple(shape), DTYPES[kind])


def list_of_tensors(path: Path) -> Path:
    """What says which tensors a checkpoint has: its index, its one file, or the directory."""
    if not path.is_dir():
        return path
    there = (path / name for name in (INDEX, SINGLE) if (path / name).exists())
    return next(there, path)


def read_directory(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of a directory: of the files that its index names, else of `model.safetensors`,
    else of every .safetensors file there."""
    found = list_of_tensors(directory)
    if found.name == INDEX:
        return read_indexed(directory, found)
    if found != directory:
        return read_tensors(found)
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        part = read_tensors(file)
        if twice := sorted(part.keys() & tensors.keys()):
            raise CheckpointError(
                "a tensor that another file there has too",
                "each name once",
                file=file,
                tensor=twice[0],
            )
        tensors |= part
    if not tensors:
        raise CheckpointError("no .safetensors file", "at least one", file=directory)
    return tensors


def read_indexed(directory: Path, index: Path) -> dict[str, StoredTensor]:
    placed = read_object(index).get("weight_map")
    with in_file(index):
        names = files_of(directory, placed)
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(names):
        part = read_tensors(directory / file)
        if part.keys() != names[file]:
            odd = ", ".join(repr(name[:80]) for name in sorted(part.keys() ^ names[file])[:4])
            raise CheckpointError(
                f"a disagreement with {INDEX} on {odd}", "the same names", file=directory / file
            )
        tensors |= part
    return tensors


def files_of(directory: Path, placed: Any) -> dict[str, set[str]]:
    """The names of tensors by file."""
    if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
        raise CheckpointError("no weight_map", "one from tensor names to file names")
    if not placed:
        raise CheckpointError("a weight_map without tensors", "at least one tensor")
    names: dict[str, set[str]] = {}
    for name, file in placed.items():
        names.setdefault(file, set()).add(name)
    for file in sorted(names):
        # A plain name, though the file may be a link: hub caches are made of links.
        plain = Path(file).name == file and file not in ("", ".", "..") and "\0" not in file
        if not plain or len(file) > 100:
            raise CheckpointError(f"the file {file[:120]!r}", "plain file names")
        if not (directory / file).exists():
            raise CheckpointError(
                f"no file {file[:120]!r} beside it", "every file that it names; download it too"
            )
    return names
