"""GGUF files that lie: counts, lengths, offsets and types that cannot be are refused before
anything is made of them."""

import struct

import numpy as np
import pytest

import gguf_files
import simdformer as sf
from checkpoints import refusal
from gguf_files import ARRAY, STRING, key_bytes, tensor_bytes
from simdformer.checkpoints import CheckpointError
from simdformer.checkpoints.gguf_file import read_gguf

KEY = key_bytes("a", 4, 1)
ONE = tensor_bytes("a", (2,), 0)
HUGE = struct.pack("<Q", 2**62)


def array_of(element, count):
    return gguf_files.text("a") + struct.pack("<IIQ", ARRAY, element, count)


HOSTILE = {
    "another file": (b"GGML" + bytes(40), "found the first bytes b'GGML'; needed is b'GGUF'"),
    "version 1": (gguf_files.file_bytes([], [], b"", version=1), "found a GGUF file of version 1"),
    "big-endian": (
        gguf_files.file_bytes([], [], b"", version=3 << 24),
        "found a GGUF file that is big-endian",
    ),
    "too many keys": (
        gguf_files.file_bytes([KEY], [], b"", counts=(0, 2**63)),
        "found 0 tensors and 9223372036854775808 keys in ",
    ),
    "too many tensors": (
        gguf_files.file_bytes([], [ONE], bytes(8), counts=(2**63, 0)),
        "found 9223372036854775808 tensors and 0 keys in ",
    ),
    "an endless array": (
        gguf_files.file_bytes([array_of(4, 2**60)], [], bytes(32)),
        "found 1152921504606846976 elements of a in ",
    ),
    "an endless array of texts": (
        gguf_files.file_bytes([array_of(STRING, 2**60)], [], bytes(32)),
        "found 1152921504606846976 elements of a in ",
    ),
    "an array of arrays": (
        gguf_files.file_bytes([array_of(ARRAY, 1)], [], bytes(32)),
        "found an array of arrays as a; needed is an array of strings or numbers",
    ),
    "an endless text": (
        gguf_files.file_bytes([gguf_files.text("a") + struct.pack("<I", STRING) + HUGE], [], b""),
        "found the text a of 4611686018427387904 bytes; needed is at most",
    ),
    "an endless text in an array": (
        gguf_files.file_bytes([array_of(STRING, 2) + HUGE], [], bytes(64)),
        "found the array a that would end at byte 46116860184273",
    ),
    "an endless key": (
        gguf_files.file_bytes([HUGE], [], bytes(64), counts=(0, 1)),
        "found a key of 4611686018427387904 bytes; needed is at most 65535",
    ),
    "a type that nobody knows": (
        gguf_files.file_bytes([gguf_files.text("a") + struct.pack("<I", 13)], [], bytes(32)),
        "found the type 13 of a; needed is 0 to 12",
    ),
    "a key of two lines": (
        gguf_files.file_bytes([key_bytes("a\nb", 7, 7)], [], b""),
        r"found the byte 7 as a bool in 'a\nb'; needed is 0 or 1",
    ),
    "a bool": (
        gguf_files.file_bytes([key_bytes("a", 7, 7)], [], b""),
        "found the byte 7 as a bool in a; needed is 0 or 1",
    ),
    "no UTF-8": (
        gguf_files.file_bytes([key_bytes("a", STRING, b"\xff")], [], b""),
        "found no UTF-8 in the text a",
    ),
    "a key twice": (
        gguf_files.file_bytes([KEY, KEY], [], b""),
        "found the key 'a' twice; needed is each key once",
    ),
    "a tensor twice": (
        gguf_files.file_bytes([], [ONE, tensor_bytes("a", (2,), 32)], bytes(64)),
        "tensor 'a': found its name twice",
    ),
    "a long name": (
        gguf_files.file_bytes([], [tensor_bytes("a" * 64, (2,), 0)], bytes(8)),
        "found the name of a tensor of 64 bytes; needed is at most 63",
    ),
    "no axes": (
        gguf_files.file_bytes([], [tensor_bytes("a", (), 0) + bytes(8)], bytes(8)),
        "tensor 'a': found 0 axes; needed is 1 to 4",
    ),
    "five axes": (
        gguf_files.file_bytes([], [tensor_bytes("a", (1,) * 5, 0)], bytes(8)),
        "tensor 'a': found 5 axes; needed is 1 to 4",
    ),
    "nothing in it": (
        gguf_files.file_bytes([], [tensor_bytes("a", (2, 0), 0)], bytes(8)),
        "tensor 'a': found the shape (2, 0); needed is no axis of length 0",
    ),
    "a product that wraps": (
        gguf_files.file_bytes([], [tensor_bytes("a", (2**32, 2**32), 0)], bytes(8)),
        f"tensor 'a': found {2**66} bytes from byte",
    ),
    "an offset that wraps": (
        gguf_files.file_bytes([], [tensor_bytes("a", (2,), 2**64 - 64)], bytes(8)),
        "tensor 'a': found the offset 18446744073709551552; needed is 0, where the tensor before",
    ),
    "an overlap": (
        gguf_files.file_bytes([], [ONE, tensor_bytes("b", (2,), 0)], bytes(64)),
        "tensor 'b': found the offset 0; needed is 32, where the tensor before it ends",
    ),
    "a hole": (
        gguf_files.file_bytes([], [ONE, tensor_bytes("b", (2,), 64)], bytes(99)),
        "tensor 'b': found the offset 64; needed is 32",
    ),
    "a tensor past the end": (
        gguf_files.file_bytes([], [ONE], bytes(7)),
        "tensor 'a': found 8 bytes from byte 64 on in a file of 71; needed is a tensor that lies",
    ),
    "rows that are no whole blocks": (
        gguf_files.file_bytes([], [tensor_bytes("a", (256, 32), 0, 12)], bytes(9999)),
        "tensor 'a': found rows of 32 elements; needed is whole blocks of 256, the type being q4_k",
    ),
    "a type that is not read": (
        gguf_files.file_bytes([], [tensor_bytes("a", (256,), 0, 16)], bytes(99)),
        "tensor 'a': found the type iq2_xxs (16); needed is one of f32, f16, bf16, q8_0, ",
    ),
    "a number that is no type": (
        gguf_files.file_bytes([], [tensor_bytes("a", (256,), 0, 4)], bytes(99)),
        "tensor 'a': found the type unknown (4)",
    ),
    "an alignment that is none": (
        gguf_files.file_bytes([key_bytes("general.alignment", 4, 48)], [], b""),
        "found general.alignment = 48; needed is a power of two up to 65536",
    ),
    "an endless alignment": (
        gguf_files.file_bytes([key_bytes("general.alignment", 4, 1 << 17)], [], b""),
        "found general.alignment = 131072; needed is a power of two up to 65536",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(case, tmp_path):
    data, message = HOSTILE[case]
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    assert refusal(file, format="gguf").startswith(message)


def test_an_array_is_read_as_what_it_is(tmp_path):
    keys = [key_bytes("n", ARRAY, [1], 4), key_bytes("t", ARRAY, [b"a", b"\xff"], STRING)]
    keys.append(key_bytes("b", ARRAY, [0, 2], 7))
    file = tmp_path / "x.gguf"
    file.write_bytes(gguf_files.file_bytes(keys, [], b""))
    found = read_gguf(file).metadata
    for read, message in (
        (found["n"].texts, "an array of numbers as n; needed is an array of strings"),
        (found["t"].numbers, "an array of strings as t; needed is an array of numbers"),
        (found["t"].texts, r"no UTF-8 in t\[1\]"),
        (found["b"].numbers, "the byte 2 as a bool in b"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read()


def test_a_hundred_thousand_empty_arrays_are_read_at_once(tmp_path):
    keys = [key_bytes(str(number), ARRAY, [], STRING) for number in range(100_000)]
    (tmp_path / "x.gguf").write_bytes(gguf_files.file_bytes(keys, [], b""))
    assert len(read_gguf(tmp_path / "x.gguf").metadata) == 100_000


# ---- tensors of any shape and type ---------------------------------------------------------------

WIDE = ("embedding_length", "feed_forward_length", "attention.key_length", "vocab_size")
WIDE += ("attention.value_length", "rope.dimension_count")
KEYS = {f"{{arch}}.{name}": (4, 64) for name in WIDE} | {"{arch}.attention.head_count": (4, 1)}
SHAPES = {name: tuple(64 if n > 1 else n for n in one.shape) for name, one in
          gguf_files.small_arrays().items()}  # fmt: skip
BIASES = {f"blk.0.attn_{name}.bias": (64,) for name in "qkv"}
SHARED = {"blk.0.ffn_gate_inp_shexp.weight": (64,), "blk.0.ffn_gate_inp.weight": (2, 64)}
SHARED |= {f"blk.0.ffn_{name}_shexp.weight": (64, 64) for name in ("gate", "up", "down")}
SHARED |= {f"blk.0.ffn_{name}_exps.weight": (2, 64, 64) for name in ("gate", "up", "down")}
COUNTS = {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 64}
COUNTS |= {"expert_shared_feed_forward_length": 64}
MODELS = {  # architecture -> its own keys and tensors, and those of SHAPES that it has not
    "qwen2": ({}, BIASES, ()),
    "qwen2moe": (COUNTS, BIASES | SHARED, ("ffn_gate", "ffn_up", "ffn_down")),
}
NUMBERS = {"f32": 0, "q8_0": 8, "i32": 26}


def shapes_instead(shape):
    """The shape, and others: fewer, more and other axes, half and twice as long."""
    *front, last = shape
    size = int(np.prod(shape))
    return {shape, (size,), (1, *shape), (1, 1, *shape), (size // 32, 32), (*front, 2 * last),
            (*front, last // 2)}  # fmt: skip


@pytest.mark.parametrize("arch", MODELS)
def test_a_tensor_of_any_shape_and_type_is_read_or_named(arch, tmp_path):
    keys, own, absent = MODELS[arch]
    named = {name.format(arch=arch): value for name, value in KEYS.items()}
    named |= {f"{arch}.{name}": (4, value) for name, value in keys.items()}
    header = gguf_files.small_keys(arch, **named)
    right = {name: shape for name, shape in SHAPES.items() if name.split(".")[-2] not in absent}
    right |= own
    file, read = tmp_path / "model.gguf", 0
    for name, type in ((name, type) for name in right for type in NUMBERS):
        for shape in shapes_instead(right[name]):
            tensors = {each: (shape, 0) for each, shape in right.items()}
            tensors[name] = shape, NUMBERS[type]
            file.write_bytes(gguf_files.of_shapes(header, tensors))
            same = shape in (right[name], (1, 64) if "inp_shexp" in name else None)
            if same and type != "i32":
                assert sf.from_pretrained(file)([1, 2]).shape == (2, 64)
                read += 1
                continue
            assert name in refusal(file)
    assert read == 2 * (len(right) + ("blk.0.ffn_gate_inp_shexp.weight" in right))
