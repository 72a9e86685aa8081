"""The container of GGUF files, versions 2 and 3: metadata by key, and tensors by name.

    "GGUF", u32 version, u64 number of tensors, u64 number of keys
    each key      string, u32 type, value; a string is u64 length and UTF-8, an array is u32 type,
                  u64 length and its elements
    each tensor   string name, u32 number of axes, u64 lengths (the fastest axis first), u32 type,
                  u64 offset
    zeros up to a multiple of general.alignment, then the tensors, each padded in the same way

Everything is little-endian. Every count and length is compared with the bytes that are left before
anything is made of it, and long arrays stay in the file until somebody asks.
"""

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import InputFile
from simdformer.checkpoints.names import printable
from simdformer.checkpoints.stored_tensor import BlockTensor, StoredTensor
from simdformer.quantization.types import quantization_types

__all__ = ["MAGIC", "GGUFFile", "StoredArray", "read_gguf"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 256 << 20  # bytes; with 256,000 tokens it has 20 MB
MAX_TEXT = 1 << 20  # bytes of one value; chat templates have up to 20 kB
MAX_KEY = (1 << 16) - 1
MAX_NAME = 63  # ggml's
MAX_AXES = 4
MAX_ALIGNMENT = 1 << 16
FIRST_READ = 1 << 16

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
BOOL, STRING, ARRAY = 7, 8, 9
SCALARS = {
    kind: np.dtype(name)
    for kind, name in {
        0: "u1",
        1: "i1",
        2: "<u2",
        3: "<i2",
        4: "<u4",
        5: "<i4",
        6: "<f4",
        BOOL: "u1",
        10: "<u8",
        11: "<i8",
        12: "<f8",
    }.items()
}
SMALLEST_KEY = 8 + 4 + 1  # bytes
SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8

# Names of the types of tensors by number: those that are read, and the others for a refusal.
FLOATS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    30: np.dtype(ml_dtypes.bfloat16),
}
QUANTIZED = {
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    20: "iq4_nl",
    23: "iq4_xs",
    39: "mxfp4",
}
REFUSED = {
    9: "q8_1",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    21: "iq3_s",
    22: "iq2_s",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    34: "tq1_0",
    35: "tq2_0",
    40: "nvfp4",
}


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array among the metadata: `len` knows how long it is, the elements are read when somebody
    asks for them."""

    file: InputFile
    key: str
    kind: int
    start: int
    nbytes: int
    count: int

    def __len__(self) -> int:
        return self.count

    def texts(self) -> list[str]:
        """The elements of an array of strings."""
        data, at, unpack = self._strings(), 0, U64.unpack_from
        texts: list[str] = []
        try:
            for _ in range(self.count):
                start = at + 8
                at = start + unpack(data, at)[0]
                texts.append(data[start:at].decode())
        except UnicodeDecodeError as error:
            raise self._no_text(len(texts), error) from None
        return texts

    def some_texts(self, indices: Collection[int]) -> dict[int, str]:
        """Some of them, by index."""
        data, at, unpack = self._strings(), 0, U64.unpack_from
        texts: dict[int, str] = {}
        for index in range(max(indices, default=-1) + 1):
            start = at + 8
            at = start + unpack(data, at)[0]
            if index in indices:
                try:
                    texts[index] = data[start:at].decode()
                except UnicodeDecodeError as error:
                    raise self._no_text(index, error) from None
        return texts

    def _strings(self) -> bytes:
        if self.kind != STRING:
            raise CheckpointError(f"an array of numbers as {self.key}", "an array of strings")
        return self.file.read(self.start, self.nbytes)

    def _no_text(self, index: int, error: UnicodeDecodeError) -> CheckpointError:
        return CheckpointError(
            f"bytes that are not UTF-8 in {self.key}[{index}] ({error})", "text in UTF-8"
        )

    def numbers(self) -> npt.NDArray[Any]:
        """The elements of an array of numbers or switches."""
        if self.kind == STRING:
            raise CheckpointError(f"an array of strings as {self.key}", "an array of numbers")
        array = self.file.read_array(self.start, self.nbytes).view(SCALARS[self.kind])
        return switches(self.key, array) if self.kind == BOOL else array


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """What a file holds: values by key (numbers, bools, str, StoredArray), tensors by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor | BlockTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Metadata and tensors of one file; the tensors' bytes stay in it."""
    file = InputFile(path)
    with in_file(path):
        header = Header(file)
        num_tensors, num_keys = header.begin()
        metadata = header.metadata(num_keys)
        entries = [header.tensor() for _ in range(num_tensors)]
        return GGUFFile(path, metadata, placed(file, entries, alignment(metadata), header.at))


class Header:
    """Reads a header from its first byte on: `at` is how far. What it asks for lies in the file, or
    there is a CheckpointError that says in what the file ends."""

    def __init__(self, file: InputFile) -> None:
        self.file, self.data, self.at = file, b"", 0

    def need(self, count: int, what: str) -> None:
        """Sees to it that the next `count` bytes are in `data`."""
        end = self.at + count
        if end > self.file.size:
            raise CheckpointError(
                f"{what} that would end at byte {end} of {self.file.size}",
                "one that lies in the file",
                advice="is the download complete?",
            )
        if end > MAX_HEADER:
            raise CheckpointError(
                f"a header of more than {MAX_HEADER >> 20} MB", "one that is shorter"
            )
        if end > len(self.data):  # twice as much as before: few reads, whatever its length
            self.data = self.file.read(0, max(end, 2 * len(self.data), FIRST_READ))

    def number(self, record: struct.Struct, what: str) -> int:
        self.need(record.size, what)
        (value,) = record.unpack_from(self.data, self.at)
        self.at += record.size
        return int(value)

    def text(self, most: int, what: str) -> str:
        length = self.number(U64, what)
        if length > most:
            raise CheckpointError(f"{what} of {length} bytes", f"at most {most}")
        self.need(length, what)
        self.at += length
        try:
            return self.data[self.at - length : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"bytes that are not UTF-8 in {what} ({error})", "text in UTF-8"
            ) from None

    def begin(self) -> tuple[int, int]:
        """How many tensors and keys there are."""
        if self.file.read(0, len(MAGIC)) != MAGIC:
            raise CheckpointError(f"the first bytes {self.file.read(0, 4)!r}", f"{MAGIC!r} (GGUF)")
        self.at = len(MAGIC)
        version = self.number(U32, "a version")
        if version & 0xFFFF == 0:
            raise CheckpointError("a GGUF file that is big-endian", "one that is little-endian")
        if version not in VERSIONS:
            raise CheckpointError(
                f"a GGUF file of version {version}",
                "version 2 or 3",
                advice="convert the model again",
            )
        tensors, keys = self.number(U64, "a count"), self.number(U64, "a count")
        left = self.file.size - self.at
        if tensors * SMALLEST_TENSOR + keys * SMALLEST_KEY > left:
            raise CheckpointError(
                f"{tensors} tensors and {keys} keys in {left} bytes",
                "counts that these are enough for",
                advice="the file is damaged, download it again",
            )
        return tensors, keys

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.text(MAX_KEY, "a key")
            if key in found:
                raise CheckpointError(f"the key {key[:80]!r} twice", "each key once")
            found[key] = self.value(printable(key), self.number(U32, "a type"))
        return found

    def value(self, key: str, kind: int) -> Any:
        if kind == STRING:
            return self.text(MAX_TEXT, f"the text {key}")
        if kind == ARRAY:
            return self.array(key)
        dtype = known(key, kind)
        self.need(dtype.itemsize, f"the value of {key}")
        value = np.frombuffer(self.data, dtype, 1, self.at)
        self.at += dtype.itemsize
        return (switches(key, value) if kind == BOOL else value)[0].item()

    def array(self, key: str) -> StoredArray:
        kind, count = self.number(U32, f"the array {key}"), self.number(U64, f"the array {key}")
        if kind == ARRAY:
            raise CheckpointError(f"an array of arrays as {key}", "an array of strings or numbers")
        smallest = 8 if kind == STRING else known(key, kind).itemsize
        left = self.file.size - self.at
        if count * smallest > left:
            raise CheckpointError(
                f"{count} elements of {key} in {left} bytes",
                "as many as these are enough for",
                advice="the file is damaged, download it again",
            )
        start = self.at
        if kind == STRING:
            self.skip_strings(count, f"the array {key}")
        else:
            self.at += count * smallest
        self.need(0, f"the array {key}")
        return StoredArray(self.file, key, kind, start, self.at - start, count)

    def skip_strings(self, count: int, what: str) -> None:
        """Goes behind so many strings. (A vocabulary has hundreds of thousands.)"""
        data, at, unpack = self.data, self.at, U64.unpack_from
        for _ in range(count):
            if at + 8 > len(data):
                self.at = at
                self.need(8, what)
                data = self.data
            at += 8 + unpack(data, at)[0]
        self.at = at

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, number of the type, and offset from where the tensors begin."""
        name = self.text(MAX_NAME, "the name of a tensor")
        with_name = f"the tensor {name!r}"
        axes = self.number(U32, with_name)
        if not 1 <= axes <= MAX_AXES:
            raise CheckpointError(f"{axes} axes", f"1 to {MAX_AXES}", tensor=name)
        shape = tuple(self.number(U64, with_name) for _ in range(axes))[::-1]
        if 0 in shape:
            raise CheckpointError(f"the shape {shape}", "no axis of length 0", tensor=name)
        return name, shape, self.number(U32, with_name), self.number(U64, with_name)


def known(key: str, kind: int) -> np.dtype[Any]:
    """The dtype of a number among the metadata."""
    if kind not in SCALARS:
        raise CheckpointError(f"the type {kind} of {key}", "0 to 12")
    return SCALARS[kind]


def switches(key: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bytes as bools."""
    if values.max(initial=0) > 1:
        raise CheckpointError(f"the byte {values.max()} as a bool in {key}", "0 or 1")
    return values.astype(bool)


def alignment(metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    whole = type(value) is int and 0 < value <= MAX_ALIGNMENT
    if not whole or value & (value - 1):
        needed = f"a power of two up to {MAX_ALIGNMENT}"
        raise CheckpointError(f"general.alignment = {str(value)[:80]}", needed)
    return int(value)


def placed(
    file: InputFile, entries: list[tuple[str, tuple[int, ...], int, int]], align: int, end: int
) -> dict[str, StoredTensor | BlockTensor]:
    """The tensors of a header that ends at byte `end`: one behind the other, without holes."""
    tensors: dict[str, StoredTensor | BlockTensor] = {}
    start, position = -(-end // align) * align, 0
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise CheckpointError("its name twice", "each name once", tensor=name)
        if offset != position:
            raise CheckpointError(
                f"the offset {offset}",
                f"{position}, where the tensor before it ends",
                tensor=name,
                advice="the file is damaged, download it again",
            )
        whole = StoredTensor.dense(file, name, start + position, *stored_as(name, shape, kind))
        size = whole.nbytes
        if start + position + size > file.size:
            raise CheckpointError(
                f"{size} bytes from byte {start + position} on in a file of {file.size}",
                "a tensor that lies in it",
                tensor=name,
                advice="is the download complete?",
            )
        tensors[name] = whole if kind in FLOATS else BlockTensor(whole, QUANTIZED[kind])
        position += -(-size // align) * align
    return tensors


def stored_as(
    name: str, shape: tuple[int, ...], kind: int
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of what lies in the file: the numbers, or the bytes of their blocks."""
    if kind in FLOATS:
        return shape, FLOATS[kind]
    if kind not in QUANTIZED:
        readable = ", ".join(["f32", "f16", "bf16", *quantization_types()])
        raise CheckpointError(
            f"the type {REFUSED.get(kind, 'unknown')} ({kind})", f"one of {readable}", tensor=name
        )
    type = quantization_types()[QUANTIZED[kind]]
    if shape[-1] % type.block:
        needed = f"whole blocks of {type.block}, the type being {type.name}"
        raise CheckpointError(f"rows of {shape[-1]} elements", needed, tensor=name)
    return (*shape[:-1], shape[-1] // type.block * type.nbytes), np.dtype(np.uint8)
