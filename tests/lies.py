"""Files that lie, each with what is said of it, by the target of fuzz/targets.py that reads it. The
bytes are made here, independently of the readers; tokenizer_lies.py has those of tokenizers."""

import io
import json
import pickle
import re
import struct
import zipfile
import zlib

import numpy as np
import torch

import gguf_files
import seeds
from gguf_files import ARRAY, STRING, file_bytes, key_bytes, tensor_bytes, text
from simdformer.checkpoints import safetensors_file

# ---- safetensors: (header, how many bytes lie behind it, what is said) ---------------------------


def file_of(header, data=b""):
    """A file with that header: bytes, or an object for json."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(begin=0, end=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


HEADERS = [
    ({"a": entry(), "b": entry(4, 12)}, 12, "'b': found its first byte is 4, needs 8"),
    ({"a": entry(), "b": entry(0, 8)}, 8, "'b': found its first byte is 0, needs 8"),
    ({"a": entry(), "b": entry(12, 20)}, 20, "'b': found its first byte is 12, needs 8"),
    ({"a": entry(4, 12)}, 12, "'a': found its first byte is 4, needs 0"),
    ({"a": entry()}, 7, "bytes, needs the"),
    ({"a": entry()}, 9, "bytes, needs the"),
    ({}, 1, "bytes, needs the"),
    ({"a": entry(0, 2**63, [2**61])}, 8, "bytes, needs the 92233720368547"),
    ({"a": entry(0, 2**66, [2**32, 2**32])}, 8, "bytes, needs the 737869762948382"),
    ({"a": entry(0, 8, [2**62, 4])}, 8, "found 8 bytes, needs 73786976294838206464 for"),
    ({"a": entry(8, 0)}, 8, "found -8 bytes, needs 8 for F32 of shape (2,)"),
    ({"a": entry(-8, 0)}, 8, "found data_offsets = [-8, 0], needs a list of whole"),
    ({"a": entry(0, 8, [-2])}, 8, "found shape = [-2], needs a list of whole"),
    ({"a": entry(0, 8, [2.0])}, 8, "found shape = [2.0]"),
    ({"a": entry(0, 8, [True, 2])}, 8, "found shape = [True, 2]"),
    ({"a": entry(0, 0, [0, 2**62])}, 0, "found a tensor without elements"),
    ({"a": entry(0, 8, [1] * 16 + [2])}, 8, "found 2 offsets and 17 axes"),
    ({"a": entry() | {"data_offsets": [0, 4, 8]}}, 8, "found 3 offsets and 1 axes"),
    ({"a": entry(dtype="F8_E4M3")}, 8, "found dtype 'F8_E4M3', needs one of F64, F32"),
    ({"a": entry(dtype=["F32"])}, 8, "found dtype"),
    ({"a": entry() | {"more": 1}}, 8, ", needs one of dtype, shape and data_offsets"),
    ({"a": {"dtype": "F32", "shape": [2]}}, 8, "found the entry {'dtype': 'F32', 'shape': [2]}"),
    ({"a": 3}, 8, "found the entry 3, needs"),
    ({"new\nline": 3}, 8, "tensor 'new\\nline': found the entry 3"),
    ({"x" * 1000: 3}, 8, "found the entry 3"),
    ([], 0, "found a JSON list, needs a JSON object"),
    (b"{", 0, "found no JSON object"),
    (b'{"a": NaN}', 0, "found no JSON object (NaN is not JSON)"),
    (b"\xff{}", 0, "found no JSON object"),
    (b'{"a": ' + b"[" * 200_000, 0, "found no JSON object"),
    (b'{"a": ' + b"9" * 5000 + b"}", 0, "found no JSON object (a number of 5000 digits)"),
    (b'{"a": 1' + b"0" * 400 + b"}", 0, "found no JSON object (a number of 401 digits)"),
    (b'{"a": {}, "a": {}}', 0, "found no JSON object (a key appears twice)"),
    (b'{"a": {"dtype": "F32", "dtype": "F16"}}', 0, "a key appears twice"),
]
LENGTHS = [100, 2**31, 2**63, 2**64 - 1]
SAFETENSORS = [(file_of(header, bytes(size)), message) for header, size, message in HEADERS]
SAFETENSORS += [
    (struct.pack("<Q", length) + b"{}", f"found a header of {length} bytes in a file of 10, needs")
    for length in LENGTHS
]

RIGHT = seeds.INDEX["weight_map"]
ELSEWHERE = ["../2.safetensors", "/etc/passwd", "x/../2.safetensors"]
ELSEWHERE += [".", "..", "", "a\0b", "b" * 5000]
INDEXES = [(RIGHT | {"b": file}, "needs plain file names") for file in ELSEWHERE]
INDEXES += [
    (RIGHT | {"c": "c.safetensors"}, "found no file 'c.safetensors' beside it, needs every"),
    (RIGHT | {"c": 3}, "found no weight_map"),
    ([], "found no weight_map"),
    (None, "found no weight_map"),
]
INDEXES = [(json.dumps({"weight_map": files}), message) for files, message in INDEXES]
DISAGREEMENTS = [  # of which the last of its files is accused
    (RIGHT | {"c": "2.safetensors"}, "found a disagreement with {} on 'c'"),
    ({"a": "1.safetensors", "c": "2.safetensors"}, "found a disagreement with {} on 'b', 'c'"),
]
INDEXES += [
    (
        {
            "2.safetensors": seeds.indexed_files()["2.safetensors"],
            safetensors_file.INDEX: json.dumps({"weight_map": files}),
        },
        message.format(safetensors_file.INDEX),
    )
    for files, message in DISAGREEMENTS
]

# ---- PyTorch's files: zip archives ---------------------------------------------------------------


def archive(members, *, comment=b"", count=None):
    """A zip archive out of (name, data, changes): changes are of the fields of the directory."""
    body, directory = b"", b""
    for name, data, changes in members:
        local = {"flags": 0, "method": 0, "crc": zlib.crc32(data), "size": len(data), "extra": b""}
        entry = local | {"packed": len(data), "offset": len(body), "extra": b""} | changes
        inner = local | {key[6:]: value for key, value in changes.items() if key[:6] == "local_"}
        inner_name = inner.get("name", name)
        body += struct.pack("<4s5H3I2H", b"PK\3\4", 20, inner["flags"], inner["method"], 0, 0,
                            inner["crc"], len(data), inner["size"], len(inner_name),
                            inner.get("extra_size", 0)) + inner_name + data  # fmt: skip
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, entry["flags"], entry["method"],
                                 0, 0, entry["crc"], entry["packed"], entry["size"], len(name),
                                 len(entry["extra"]), 0, 0, 0, 0, entry["offset"])  # fmt: skip
        directory += name + entry["extra"]
    count = len(members) if count is None else count
    end = struct.pack(
        "<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), len(body), len(comment)
    )
    return body + directory + end + comment


def state_dict(**changes):
    """The members of a small state dict; `changes` are of the member of its numbers."""
    tensors = {"a": np.arange(6, dtype=np.float32)}
    return [
        (b"x/data.pkl", seeds.pickle_bytes(tensors), {}),
        (b"x/data/0", tensors["a"].tobytes(), changes),
    ]


BIG = b"\1\0\x08\0" + struct.pack("<Q", 2**63)  # the offset in 64 bits
LYING_ARCHIVES = {
    "a name twice": (state_dict() + state_dict()[1:], "two members 'x/data/0'"),
    "compressed": (state_dict(method=8), "a compressed or encrypted member 'x/data/0'"),
    "encrypted": (state_dict(flags=1), "a compressed or encrypted member 'x/data/0'"),
    "sizes that differ": (state_dict(packed=12), "a compressed or encrypted member"),
    "a bomb": (state_dict(size=2**31, packed=2**31), "reaches past the end"),
    "beyond the file": (state_dict(offset=2**31), "a record lies outside the file"),
    "before the file": (state_dict(offset=2**32 - 1, extra=BIG), "a record lies outside the file"),
    "in the directory": (state_dict(offset=200), "a record is not where it should be"),
    "64 bits missing": (state_dict(offset=2**32 - 1), "a record lies outside the file"),
    "64 bits cut": (state_dict(offset=2**32 - 1, extra=b"\1\0\xff\xff"), "outside the file"),
    "another name inside": (state_dict(local_name=b"x/data/1"), "has another name inside"),
    "a long extra field": (state_dict(local_extra_size=65535), "reaches past the end"),
    "over another member": (state_dict(offset=0), "has another name inside"),
    "other numbers": (state_dict(size=20, packed=20), "tensor 'a': found 20 bytes"),
    "no root": ([(b"/data.pkl", b"", {})], "a pickle that ends too early"),
    "two roots": ([(b"x/data.pkl", b"", {}), (b"y/data.pkl", b"", {})], "2 members NAME/data.pkl"),
}


def saved(content, **options):
    """The bytes that torch.save makes."""
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def rezipped(data, compression=zipfile.ZIP_STORED, change=None, **add):
    """The same members in an archive of Python's zipfile, some of them with other content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for name in old.namelist():
            content = old.read(name)
            if change is not None:
                content = change(name, content)
            if content is not None:
                new.writestr(name, content)
        for name, content in add.items():
            new.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def with_pickle(pickled, count=24):
    """A .pth file whose index is `pickled`, over one storage of 24 float32."""
    data = saved({"x": torch.zeros(count)})
    return rezipped(data, change=lambda name, old: pickled if name.endswith("data.pkl") else old)


# ---- PyTorch's files: what is pickled ------------------------------------------------------------

CONTENTS = [
    ([torch.ones(2)], "found something other than a dict of tensors"),
    (torch.ones(2), "found something other than a dict of tensors"),
    ({"model": {"w": torch.ones(2)}}, "tensor 'model': found something other than a tensor"),
    ({"epoch": 3}, "tensor 'epoch': found something other than a tensor"),
    ({3: torch.ones(2)}, "tensor '3': found something other than a tensor"),
    ({"x": torch.ones(2, 0)}, "tensor 'x': found a tensor without elements"),
    ({"x": torch.ones(1).expand(5)}, "tensor 'x': found a tensor of 5 elements that reaches"),
    (
        {"a": torch.ones(2), "x": torch.ones(2, dtype=torch.complex64)},
        "tensor 'x': found the name 'torch.ComplexFloatStorage', which no tensor needs",
    ),
    ({"x": np.ones(2)}, "tensor 'x': found the name 'numpy"),
    (
        {"x": torch.nn.Linear(2, 2)},
        "tensor 'x': found the name 'torch.nn.modules.linear.Linear'",
    ),
    ({"x": torch.float32}, "tensor 'x': found the name 'torch.float32', which no tensor needs"),
]

REFERENCE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpu%stQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + REFERENCE + b"%s%s%s\x89)tR"


def number(n):
    return b"\x8a\x09" + n.to_bytes(9, "little") if n > 2**62 else pickle.dumps(n, 2)[2:-1]


def a_tensor(count=24, offset=0, shape=(24,), strides=(1,)):
    """A pickle of {'x': tensor}, written by hand."""
    numbers = [b"(" + b"".join(number(n) for n in axes) + b"t" for axes in (shape, strides)]
    return b"\x80\2}X\1\0\0\0x" + TENSOR % (number(count), number(offset), *numbers) + b"s."


OUTSIDE_OF_STORAGE = [
    ({"offset": 1}, "24 elements that reaches element 24 of a storage of 24"),
    ({"strides": (2,)}, "reaches element 46 of a storage of 24"),
    ({"shape": (25,)}, "25 elements that reaches element 24"),
    ({"shape": (25,), "strides": (0,)}, "25 elements that reaches element 0"),
    ({"shape": (2**40,)}, "a storage of 24"),
    ({"shape": (2**31, 2**31, 2**31), "strides": (0, 0, 0)}, "a storage of 24"),
    ({"offset": 2**62}, "a storage of 24"),
    ({"offset": 2**63}, "more than 64 bits"),
    ({"shape": (2**64,)}, "more than 64 bits"),
    ({"shape": (0, 2**62), "strides": (1, 1)}, "a tensor without elements"),
    (
        {"count": 25},
        "tensor 'x': found 96 bytes, needs 100 for the 25 elements of its storage",
    ),
    ({"count": 2**61}, "tensor 'x': found 96 bytes, needs"),
    ({"shape": (4, 6)}, "2 sizes and 1 strides"),
    ({"shape": (1,) * 17, "strides": (1,) * 17}, "17 sizes and 17 strides"),
    ({"offset": -1}, "not whole numbers >= 0"),
    ({"shape": (-24,)}, "not whole numbers >= 0"),
    ({"strides": (-1,)}, "not whole numbers >= 0"),
    ({"count": -24}, "whose count is not a whole number >= 0"),
]
PICKLES = [
    (b"\x80\2" + b"]" * 100_000 + b".", "piles up more than 65536 values"),
    (b"\x80\2" + b"(" * 100_000 + b".", "piles up more than 65536 values"),
    (b"\x80\2N" + b"h\0" * 3 + b".", "recalls what it never remembered"),
    (b"\x80\2q\0.", "remembers what is not there"),
    (b"\x80\2(q\0.", "remembers what is not there"),
    (b"\x80\2.", "takes what is not there"),
    (b"\x80\2(.", "takes what is not there"),
    (b"\x80\2t.", "takes what is not there"),
    (b"\x80\2R.", "takes what is not there"),
    (b"\x80\2)NR.", "a call of something other than a name"),
    (b"\x80\2N)R.", "a call of something other than a name"),
    (b"\x80\2ccollections\nOrderedDict\n(K\1tR.", "an OrderedDict with arguments"),
    (b"\x80\2ccollections\nOrderedDict\n)R)Rs.", "a call of something other than a name"),
    (b"\x80\2}))s.", "a key that is neither text nor a number"),
    (b"\x80\2}(K\1u.", "a key without a value"),
    (b"\x80\2K\1(K\1e.", "adds to something other than a list"),
    (b"\x80\2NQ.", "a reference that is not to a storage"),
    (b"\x80\2N}b.", "adds to something other than a dict"),
    (b"\x80\1N.", "a pickle of protocol 1"),
    (b"\x80\6N.", "a pickle of protocol 6"),
    (b"\x80\2\x8a\xff" + bytes(255) + b".", "more than 64 bits"),
    (b"\x80\2X\xff\xff\xff\xff.", "ends too early"),
    (b"\x80\2X\1\0\0\0\xff.", "text that is not UTF-8"),
    (b"\x80\2cos\nsystem\n.", "found the name 'os.system', which no tensor needs"),
    (b"\x80\2cos\n" + b"a" * 300 + b"\n.", "a name without an end"),
    (b"\x80\2ccollections\nOrderedDict\n(X\1\0\0\0atb.", "to something other than a dict"),
    (b"\x80\2(ios\nsystem\n.", "the pickle opcode b'i'"),
    (b"\x80\2cos\nsystem\n)\x81.", "found the name 'os.system'"),
    (b"\x80\2)\x81.", "the pickle opcode b'\\x81', which torch.save does not write"),
    (b"\x80\2P1\n.", "the pickle opcode b'P'"),
    (b"\x80\2\x82\1.", "the pickle opcode b'\\x82'"),
    (b"\x80\2ctorch\nFloatStorage\n)R.", "a call of something other than a name"),
    (b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor described by 0 values"),
    (b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR.", "a tensor without a storage"),
    (b"\x80\2ctorch._utils\n_rebuild_parameter\n(N\x89NtR.", "a parameter without a tensor"),
    (b"\x80\2N" + b"K\1" * 9, "ends too early"),
]
NO_DICT = "found something other than a dict"
# Each tuple holds the one before twice: 2**1000 elements, should anybody count them.
BOMB = b"\x80\2)" + b"".join(b"r%sh%s\x86" % (struct.pack("<I", i), bytes([i])) for i in range(200))
PICKLES += [
    (BOMB + b".", NO_DICT),
    (b"\x80\2}" + BOMB[2:] + b"Ns.", "a key that is neither text nor a number"),
    (b"\x80\2}X\1\0\0\0x" + BOMB[2:] + b"s.", "tensor 'x': found something other than a tensor"),
    (b"\x80\2)" + b"\x85" * 1_000_000 + b".", NO_DICT),
]


def sharing(count):
    """So many tensors over the same 40,000 bytes."""
    entry = TENSOR % (number(10_000), b"K\0", b"M\x10\x27\x85", b"K\1\x85")
    entries = [b"X\2\0\0\0%02d" % i + entry + b"s" for i in range(count)]
    return with_pickle(b"\x80\2}" + b"".join(entries) + b".", 10_000)


WHOLE = saved({"x": torch.zeros(24)})
END = WHOLE.rindex(b"PK\5\6")


def dropped(part):
    return rezipped(WHOLE, change=lambda name, content: None if part in name else content)


def replaced(part, new):
    return rezipped(WHOLE, change=lambda name, old: new if name.endswith(part) else old)


def end_record(at, format, value):
    """With another number in the record at the end of the archive."""
    changed = bytearray(WHOLE)
    struct.pack_into(format, changed, END + at, value)
    return bytes(changed)


FULL = end_record(16, "<I", 2**32 - 1)  # so that a 64-bit record holds, which torch.save writes too
OUTSIDE = "directory does not lie inside the file"
OF_OTHERS = [
    (
        saved({"x": torch.zeros(24)}, _use_new_zipfile_serialization=False),
        "found no zip archive (torch.save has written one since PyTorch 1.6), needs a state dict",
    ),
    (b"\x93NUMPY" + bytes(100), "found no zip archive"),
    (rezipped(WHOLE, zipfile.ZIP_DEFLATED), "found a compressed or encrypted member"),
    (dropped("data.pkl"), "found a zip archive with 0 members NAME/data.pkl"),
    (
        rezipped(WHOLE, b__data_pkl=b"").replace(b"b/data_pkl", b"b/data.pkl"),
        "2 members NAME/data.pkl",
    ),
    (dropped("data/0"), "tensor 'x': found no bytes in the archive"),
    (replaced("byteorder", b"big"), "tensors that are not little-endian"),
    (replaced("data/0", bytes(95)), "found 95 bytes, needs 96 for the 24 elements"),
    (replaced(".pkl", bytes(5_000_000)), "found a member of 5000000 bytes, needs at most"),
    (replaced(".pkl", b""), "found a pickle that ends too early"),
    (end_record(10, "<H", 60000), OUTSIDE),
    (end_record(12, "<I", 2**31), OUTSIDE),
    (end_record(16, "<I", 2**31), "directory"),
    (end_record(4, "<H", 1), "of several volumes"),
    (end_record(20, "<H", 5), "bytes after its end"),
    (WHOLE + b"\0", "bytes after its end"),
    (FULL.replace(b"PK\6\6", b"PK\6\5"), "a record is not where"),
    (FULL.replace(b"PK\6\7", b"PK\6\5"), "a record is not where"),
]

PTH = [(sharing(50), "found tensors of 2000000 bytes in a file of")]
PTH += OF_OTHERS
PTH += [(archive(members), message) for members, message in LYING_ARCHIVES.values()]
PTH += [(saved(content), message) for content, message in CONTENTS]
PTH += [(with_pickle(a_tensor(**changes)), message) for changes, message in OUTSIDE_OF_STORAGE]
PTH += [(with_pickle(pickled), message) for pickled, message in PICKLES]

# ---- GGUF ----------------------------------------------------------------------------------------

KEY = key_bytes("a", 4, 1)
ONE = tensor_bytes("a", (2,), 0)
HUGE = struct.pack("<Q", 2**62)


def array_of(element, count):
    return text("a") + struct.pack("<IIQ", ARRAY, element, count)


GGUF_KEYS = [  # how many bytes lie behind them, what is said
    ([array_of(4, 2**60)], 32, "found 1152921504606846976 elements of a in "),
    ([array_of(STRING, 2**60)], 32, "found 1152921504606846976 elements of a in "),
    (
        [array_of(ARRAY, 1)],
        32,
        "found an array of arrays as a, needs an array of strings or numbers",
    ),
    (
        [text("a") + struct.pack("<I", STRING) + HUGE],
        0,
        "found the text a of 4611686018427387904 bytes, needs at most",
    ),
    ([array_of(STRING, 2) + HUGE], 64, "found the array a that would end at byte 46116860184273"),
    ([text("a") + struct.pack("<I", 13)], 32, "found the type 13 of a, needs 0 to 12"),
    ([key_bytes("a\nb", 7, 7)], 0, r"found the byte 7 as a bool in 'a\nb', needs 0 or 1"),
    ([key_bytes("a", 7, 7)], 0, "found the byte 7 as a bool in a, needs 0 or 1"),
    ([key_bytes("a", STRING, b"\xff")], 0, "found bytes that are not UTF-8 in the text a"),
    ([KEY, KEY], 0, "found the key 'a' twice, needs each key once"),
    (
        [key_bytes("general.alignment", 4, 48)],
        0,
        "found general.alignment = 48, needs a power of two up to 65536",
    ),
    (
        [key_bytes("general.alignment", 4, 1 << 17)],
        0,
        "found general.alignment = 131072, needs a power of two up to 65536",
    ),
]
GGUF_TENSORS = [
    ([ONE, tensor_bytes("a", (2,), 32)], 64, "tensor 'a': found its name twice"),
    (
        [tensor_bytes("a" * 64, (2,), 0)],
        8,
        "found the name of a tensor of 64 bytes, needs at most 63",
    ),
    ([tensor_bytes("a", (), 0) + bytes(8)], 8, "tensor 'a': found 0 axes, needs 1 to 4"),
    ([tensor_bytes("a", (1,) * 5, 0)], 8, "tensor 'a': found 5 axes, needs 1 to 4"),
    (
        [tensor_bytes("a", (2, 0), 0)],
        8,
        "tensor 'a': found the shape (2, 0), needs no axis of length 0",
    ),
    ([tensor_bytes("a", (2**32, 2**32), 0)], 8, f"tensor 'a': found {2**66} bytes from byte"),
    (
        [tensor_bytes("a", (2,), 2**64 - 64)],
        8,
        "tensor 'a': found the offset 18446744073709551552, needs 0, where the tensor before",
    ),
    (
        [ONE, tensor_bytes("b", (2,), 0)],
        64,
        "tensor 'b': found the offset 0, needs 32, where the tensor before it ends",
    ),
    ([ONE, tensor_bytes("b", (2,), 64)], 99, "tensor 'b': found the offset 64, needs 32"),
    (
        [ONE],
        7,
        "tensor 'a': found 8 bytes from byte 64 on in a file of 71, needs a tensor that lies",
    ),
    (
        [tensor_bytes("a", (256, 32), 0, 12)],
        9999,
        "tensor 'a': found rows of 32 elements, needs whole blocks of 256, the type being q4_k",
    ),
    (
        [tensor_bytes("a", (256,), 0, 16)],
        99,
        "tensor 'a': found the type iq2_xxs (16), needs one of f32, f16, bf16, q8_0, ",
    ),
    ([tensor_bytes("a", (256,), 0, 4)], 99, "tensor 'a': found the type unknown (4)"),
]
GGUF = [
    (b"GGML" + bytes(40), "found the first bytes b'GGML', needs b'GGUF'"),
    (file_bytes([], [], b"", version=1), "found a GGUF file of version 1"),
    (file_bytes([], [], b"", version=3 << 24), "found a GGUF file that is big-endian"),
    (
        file_bytes([KEY], [], b"", counts=(0, 2**63)),
        "found 0 tensors and 9223372036854775808 keys in ",
    ),
    (
        file_bytes([], [ONE], bytes(8), counts=(2**63, 0)),
        "found 9223372036854775808 tensors and 0 keys in ",
    ),
    (
        file_bytes([HUGE], [], bytes(64), counts=(0, 1)),
        "found a key of 4611686018427387904 bytes, needs at most 65535",
    ),
]
GGUF += [(file_bytes(keys, [], bytes(size)), message) for keys, size, message in GGUF_KEYS]
GGUF += [(file_bytes([], tensors, bytes(size)), message) for tensors, size, message in GGUF_TENSORS]

OWN_KEYS = {
    "olmo2": {"olmo2.attention.sliding_window": (4, 4)},
    "granite": {"granite.logit_scale": (6, 2.0)},
}


def changed_gguf(changes):
    """A small model, with these keys; of the architecture whose keys they are."""
    arch = next(iter(changes)).split(".")[0]
    arch = "llama" if arch in ("general", "tokenizer", "split") else arch
    return gguf_files.small_file(arch, **OWN_KEYS.get(arch, {}) | changes)


GGUF_MODELS = [
    (
        {"general.architecture": (STRING, "gemma3n")},
        "found general.architecture = 'gemma3n', which does not run here, needs one of llama, ",
    ),
    ({"general.architecture": None}, "found general.architecture = None"),
    (
        {"llama.expert_count": (4, 8)},
        "found llama.expert_used_count = 0, needs from 1 to llama.expert_count = 8",
    ),
    (
        {"llama.attention.head_count_kv": (ARRAY, [1], 4)},
        "found llama.attention.head_count_kv that differs by layer, needs one for all layers",
    ),
    ({"llama.block_count": None}, "found no llama.block_count, needs a value"),
    (
        {"llama.block_count": (4, 2**32 - 1)},
        "found llama.block_count = 4294967295, needs a whole number that the 11 tensors are ",
    ),
    (
        {"llama.embedding_length": (STRING, "8")},
        "found llama.embedding_length = '8', needs a whole number > 0",
    ),
    (
        {"llama.attention.key_length": None, "llama.attention.head_count": (4, 3)},
        "found llama.attention.head_count = 3, needs a divisor of llama.embedding_length = 8",
    ),
    (
        {"llama.attention.value_length": (4, 8)},
        "found llama.attention.value_length = 8, needs 4, the length of a head",
    ),
    (
        {"llama.rope.dimension_count": (4, 2)},
        "found llama.rope.dimension_count = 2, needs 4, the length of a head",
    ),
    (
        {"llama.attention.layer_norm_rms_epsilon": (6, float("nan"))},
        "found llama.attention.layer_norm_rms_epsilon = nan, needs finite and >= 0",
    ),
    (
        {"llama.rope.scaling.type": (STRING, "dynamic")},
        "found RoPE without frequencies: scaling is of type 'dynamic', needs one of",
    ),
    (
        {"llama.attention.sliding_window": (4, 4)}
        | {"llama.attention.sliding_window_pattern": (4, 2)},
        "found llama.attention.sliding_window_pattern, which is not supported",
    ),
    (
        {"olmo2.attention.sliding_window_pattern": (ARRAY, [1, 0], 7)},
        "found olmo2.attention.sliding_window_pattern = [True, False], needs true or false for",
    ),
    (
        {"olmo2.attention.sliding_window_pattern": (4, 0)},
        "found olmo2.attention.sliding_window_pattern = 0, needs a whole number > 0",
    ),
    (
        {"olmo2.rope.freq_base_swa": (STRING, "x")},
        "found olmo2.rope.freq_base_swa = 'x', needs None, or finite and > 0",
    ),
    (
        {"granite.rope.scaling.finetuned": (7, 0)},
        "found granite.rope.scaling.finetuned = False, needs true",
    ),
    ({"granite.logit_scale": None}, "found no granite.logit_scale, needs a value"),
    ({"granite.logit_scale": (6, 0.0)}, "found granite.logit_scale = 0.0, needs finite and > 0"),
    (
        {"gemma3.attention.key_length": (6, 0.5)},
        "found gemma3.attention.key_length = 0.5, needs a whole number > 0",
    ),
    (
        {"tokenizer.ggml.eos_token_id": (4, 12)},
        "found tokenizer.ggml.eos_token_id = 12, needs an id below 12",
    ),
    (
        {"llama.feed_forward_length": (4, 16)},
        "found tensors that do not fit it: misshapen: blk.0.ffn_gate.weight (8, 8) [layers.0.gate]",
    ),
    (
        {"split.count": (2, 2), "split.no": (2, 0)},
        "found part 1 of 2 under another name, needs NAME-00001-of-00002.gguf",
    ),
    (
        {"split.tensors.count": (5, 12)},
        "found 11 tensors in 1 parts, needs the 12 of split.tensors.count",
    ),
]
GGUF += [(changed_gguf(changes), message) for changes, message in GGUF_MODELS]

# ---- adapters ------------------------------------------------------------------------------------


def adapter(**shapes):
    """The bytes of adapter_model.safetensors, whose tensors A and B have these shapes."""
    right = seeds.adapter_tensors().items()
    tensors = {name: np.ones(shapes.get(name[-8], x.shape), np.float32) for name, x in right}
    return seeds.safetensors_bytes(tensors)


ADAPTERS = [
    (adapter(A=(2, 9)), "found float32 (2, 9), needs floats (2, 8)"),
    (adapter(B=(9, 2)), "found float32 (9, 2), needs floats (8, 2)"),
    (adapter(B=(8, 3)), "found float32 (8, 3), needs floats (8, 2)"),
    (adapter(A=(3, 8)), "found the shape (3, 8), needs the r = 2 of adapter_config.json"),
    (adapter(A=(16,)), "found the shape (16,), needs the r = 2 of adapter_config.json"),
]

# ---- config.json and params.json: what is changed in one that is right ---------------------------

QWEN = {"model_type": "qwen3", "architectures": None}
CONFIGS = [
    (
        {"model_type": "gpt_neox"},
        "model_type = 'gpt_neox' (architectures: ['LlamaForCausalLM']), needs",
    ),
    ({"model_type": ["llama"]}, "model_type = ['llama']"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "architectures = ['LlamaForSequence"),
    ({"hidden_size": None}, "found no hidden_size, needs"),
    ({"rms_norm_eps": None, "vocab_size": None}, "found no vocab_size, no rms_norm_eps, needs"),
    (QWEN | {"mlp_bias": True}, "mlp_bias = True, which is not supported, needs"),
    ({"mlp_bias": 1}, "mlp_bias = 1, needs True or False"),
    ({"hidden_act": "gelu"}, "hidden_act = 'gelu', which is not supported, needs 'silu'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config.quant_method = None, needs "),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5, which is not supported"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, needs a whole number"),
    ({"num_hidden_layers": "3"}, "num_hidden_layers = '3'"),
    (
        {"num_hidden_layers": 4},
        "missing: model.layers.1.input_layernorm.weight (8,) [layers.1.attn_norm] in model.safe",
    ),
    (
        {"hidden_size": 10**12},
        "(12, 8) [embed] in model.safetensors, needs (12, 1000000000000) = (vocab_size, hidden_s",
    ),
    (
        {"head_dim": 10**9},
        "[layers.0.wq] in model.safetensors, needs (2000000000, 8) = (num_attention_heads * head",
    ),
    ({"vocab_size": 2**63}, "in model.safetensors, needs (9223372036854775808, 8)"),
    (
        {"max_position_embeddings": 10**18},
        "max_position_embeddings = 1000000000000000000, needs at most",
    ),
    ({"num_attention_heads": 0}, "num_attention_heads = 0, needs a whole number > 0"),
    ({"num_attention_heads": 5, "head_dim": None}, "num_attention_heads = 5, needs a divisor"),
    (
        {"num_key_value_heads": 3},
        "num_key_value_heads = 3, needs a divisor of num_attention_heads = 2",
    ),
    ({"rms_norm_eps": -1}, "rms_norm_eps = -1, needs finite and >= 0"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes', needs True or False"),
    ({"attention_bias": True}, "missing: model.layers.0.self_attn.q_proj.bias (8,) [layers.0.bq]"),
    ({"attention_bias": 1}, "attention_bias = 1, needs true or false"),
    ({"sliding_window": 4}, "sliding_window = 4, needs null or layer_types: llama has none"),
    ({"sliding_window": -4}, "sliding_window = -4, needs a whole number > 0 or null"),
    ({"layer_types": ["chunked_attention"]}, "layer_types = ['chunked_attention'"),
    ({"layer_types": ["full_attention"] * 3}, "for each of 1 layers"),
    ({"layer_types": ["sliding_attention"]}, "but sliding_window is off"),
    ({"eos_token_id": "end"}, "eos_token_id = 'end', needs an id or a list of ids"),
    ({"eos_token_id": [-1]}, "eos_token_id = [-1], needs an id or a list of ids"),
    (
        {"rope_parameters": {"rope_theta": 1.0}},
        "rope_theta and rope_parameters that disagree on 'rope_theta'",
    ),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": "x"}}, "theta is of type str"),
    ({"rope_parameters": [1]}, "rope_parameters = [1], needs an object"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "scaling is of type 'dynamic'"),
    ({"rope_parameters": {"rope_type": "longrope"}}, '"longrope" has no short_factor'),
    ({"rope_parameters": {"rope_type": "new"}}, "scaling is of type 'new', needs one of"),
    ({"rope_parameters": {"rope_type": ["linear"]}}, "rope_type = ['linear'], needs text"),
    ({"rope_parameters": {"rope_type": "linear"}}, 'scaling of type "linear" has no factor'),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary"),
    (
        {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
        "rope_parameters that differs from layer to layer",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"factor": 4.0}},
        "rope_scaling and rope_parameters that disagree on 'factor': 2.0 and 4.0",
    ),
    (
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        "has no original_max_position_embeddings",
    ),
]


def with_a_tensor_more(name, shape):
    """The files of a checkpoint whose config does not know of one of its tensors."""
    tensors = seeds.named_weights("huggingface") | {name: np.ones(shape, np.float32)}
    files = {"model.safetensors": seeds.safetensors_bytes(tensors)}
    return {"config.json": json.dumps(seeds.HUGGINGFACE), **files}


MISFITS = [
    (
        with_a_tensor_more("lm_head.weight", (12, 8)),
        "tie_word_embeddings = True, but lm_head.weight in model.safetensors is not the embedding",
    ),
    (
        with_a_tensor_more("model.layers.1.input_layernorm.weight", (8,)),
        "left over: model.layers.1.",
    ),
]
FEW_PARAMS = {name: seeds.META[name] for name in (*[*seeds.META][:6], "ffn_dim_multiplier")}
PARAMS = [
    ({"norm_eps": None}, "found no norm_eps, needs a value for each"),
    ({"moe": {"experts": 8}}, "entries that are not understood: 'moe', needs"),
    ({"quantization_args": {}, "lora_args": {}}, "'quantization_args', 'lora_args'"),
    ({"dim": 10**12}, "dim = 1000000000000, needs a whole number > 0"),
    ({"dim": True}, "dim = True, needs a whole number > 0"),
    ({"n_heads": 5}, "n_heads = 5, needs a divisor of dim = 8"),
    (
        {"n_layers": 10**9},
        "n_layers = 1000000000, but 11 tensors in consolidated.00.pth, needs several",
    ),
    ({"n_layers": 10**18}, "n_layers = 1000000000000000000, but 11 tensors in"),
    ({"multiple_of": 0}, "multiple_of = 0, needs a whole number > 0"),
    (
        {"multiple_of": 2**29},
        "[layers.0.gate] in consolidated.00.pth, needs (536870912, 8) = (width by",
    ),
    ({"ffn_dim_multiplier": "1.3"}, "ffn_dim_multiplier = '1.3'"),
    ({"ffn_dim_multiplier": 1e300}, "ffn_dim_multiplier = 1e+300"),
    (
        {"vocab_size": 95},
        "tok_embeddings.weight (12, 8) [embed] in consolidated.00.pth, needs (95, ",
    ),
    ({"use_scaled_rope": 1}, "use_scaled_rope = 1, needs true or false"),
    ({"rope_theta": 0}, "theta is 0, needs a finite number > 0"),
    (
        {"rope_scaling_factor": 32},
        "rope_scaling_factor = 32, needs no such entry where use_scaled_rope is not",
    ),
    ({"use_scaled_rope": True, "rope_high_freq_factor": "4"}, "rope_high_freq_factor = '4'"),
    ({"max_seq_len": 10**10}, "max_seq_len = 10000000000, needs at most 16777216"),
]


def changed(right, table):
    """A file for each row; an entry of None is left out."""
    for changes, message in table:
        found = {name: value for name, value in (right | changes).items() if value is not None}
        yield json.dumps(found), message


# ---- data for training -----------------------------------------------------------------------


def lines(*objects):
    return "".join(json.dumps(line) + "\n" for line in objects)


def pattern(text):
    return re.compile(text)


TURNS = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]
JSON_LINES = [
    ('{"text": "x"}\n{"text": \n', pattern("data.jsonl, line 2: found .*, needs a JSON object")),
    (lines({"text": "x"}, {"other": 1}), pattern("data.jsonl, line 2: .*, needs text as in the")),
    (
        lines({"messages": TURNS}, {"messages": TURNS[:1]}),
        pattern("line 2: .*no turn of the assist"),
    ),
    (
        lines({"messages": TURNS[:1]}),
        pattern('line 1: .*no turn of the assistant, needs {"messag'),
    ),
    (lines({"text": 5}), 'line 1: found {\'text\': 5}, needs {"text": "..."}'),
    (lines({"body": "x"}), pattern("data.jsonl, line 1: found .*, needs {")),
]
TEXTS = [
    (" \n", "data.txt: found an empty file"),
    (b"good\nb\xffd", "data.txt, line 2: found bytes that are not UTF-8"),
]

FILES = {
    "safetensors": SAFETENSORS,
    "pth": PTH,
    "gguf": GGUF,
    "adapter": ADAPTERS,
    "config": [*changed(seeds.HUGGINGFACE | {"layer_types": None}, CONFIGS), *MISFITS],
    "ids": [(b"123", "data.bin: found 3 bytes")],
    "json-lines": JSON_LINES,
    "params": [*changed(FEW_PARAMS, PARAMS)],
    "safetensors-index": INDEXES,
    "text": TEXTS,
}
LIES = [(name, *lie) for name, lies in FILES.items() for lie in lies]
