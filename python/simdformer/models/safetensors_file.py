"""Reader of safetensors: eight bytes of length, a JSON header, then the tensors' bytes.

https://huggingface.co/docs/safetensors describes the format. A tensor is read when somebody
asks for it. The header is data of a stranger: its size is limited, no key repeats, and the tensors
cover the rest of the file exactly, without an overlap and without a hole.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from simdformer.models.checkpoint import CheckpointError
from simdformer.models.input_file import InputFile, StoredTensor
from simdformer.models.json_file import parse_object, read_object

__all__ = ["INDEX", "read_directory", "read_tensors"]

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
class Entry:
    """What the header says about one tensor; begin and end count bytes after the header."""

    begin: int
    end: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name, in the file's dtypes."""
    file = InputFile(path)
    length = int.from_bytes(file.read(0, LENGTH), "little")
    if file.size < LENGTH or length > min(MAX_HEADER, file.size - LENGTH):
        refuse(
            path,
            f"a header of {length} bytes in a file of {file.size}",
            f"a header inside the file, of at most {MAX_HEADER} bytes; is the download complete?",
        )
    start = LENGTH + length
    header = parse_object(path, file.read(LENGTH, length))
    header.pop("__metadata__", None)
    entries = [check_entry(path, name, entry) for name, entry in header.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    position = 0
    for entry in entries:
        if entry.begin != position:
            found = f"its first byte is {entry.begin}"
            refuse(path, found, f"{position}, where the tensor before it ends", entry.name)
        position = entry.end
    if start + position != file.size:
        refuse(
            path,
            f"{file.size} bytes",
            f"the {start + position} that the header speaks of; is the download complete?",
        )
    return {
        entry.name: StoredTensor.dense(file, start + entry.begin, entry.shape, entry.dtype)
        for entry in entries
    }


def check_entry(path: Path, name: str, entry: Any) -> Entry:
    """One entry of the header, checked against itself."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        refuse(path, "other fields", "dtype, shape and data_offsets", name)
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        refuse(path, f"dtype {str(kind)[:40]!r}", f"one of {', '.join(DTYPES)}", name)
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or any(type(n) is not int or n < 0 for n in numbers):
            refuse(path, "another shape or offset", "lists of whole numbers >= 0", name)
    if len(offsets) != 2 or len(shape) > MAX_RANK:
        found = f"{len(offsets)} offsets and {len(shape)} axes"
        refuse(path, found, f"2 offsets and at most {MAX_RANK} axes", name)
    begin, end = offsets
    needed = math.prod(shape) * DTYPES[kind].itemsize
    if needed == 0:
        refuse(path, "a tensor without elements", "at least one", name)
    if end - begin != needed:
        refuse(path, f"{end - begin} bytes", f"{needed} for {kind} of shape {tuple(shape)}", name)
    return Entry(begin, end, name, tuple(shape), DTYPES[kind])


def read_directory(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of a directory: of the files that its index names, else of `model.safetensors`,
    else of every .safetensors file there."""
    index = directory / INDEX
    if index.exists():
        return read_indexed(directory, index)
    single = directory / SINGLE
    if single.exists():
        return read_tensors(single)
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        part = read_tensors(file)
        if twice := sorted(part.keys() & tensors.keys()):
            refuse(file, "a tensor that another file there has too", "each name once", twice[0])
        tensors |= part
    return tensors


def read_indexed(directory: Path, index: Path) -> dict[str, StoredTensor]:
    placed = read_object(index).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
        refuse(index, "no weight_map", "one from tensor names to file names")
    tensors: dict[str, StoredTensor] = {}
    names: dict[str, set[str]] = {}
    for name, file in placed.items():
        names.setdefault(file, set()).add(name)
    for file in sorted(names):
        # A plain name, though the file may be a link: hub caches are made of links.
        plain = Path(file).name == file and file not in ("", ".", "..") and "\0" not in file
        if not plain or len(file) > 100:
            refuse(index, f"the file {file[:120]!r}", "plain file names")
        if not (directory / file).exists():
            refuse(index, f"no file {file[:120]!r}", "it beside the index; download it too")
        part = read_tensors(directory / file)
        if part.keys() != names[file]:
            odd = ", ".join(repr(name[:80]) for name in sorted(part.keys() ^ names[file])[:4])
            refuse(directory / file, f"a disagreement with the index on {odd}", "the same names")
        tensors |= part
    return tensors


def refuse(path: Path, found: str, needed: str, tensor: str | None = None) -> NoReturn:
    where = f"{path}: " if tensor is None else f"{path}: tensor {tensor[:120]!r}: "
    raise CheckpointError(
        f"{where}found {found}; needed is {needed}",
        file=path,
        tensor=tensor,
        found=found,
        needed=needed,
    )
