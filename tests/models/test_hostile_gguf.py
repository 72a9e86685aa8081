"""GGUF files that lie: counts, lengths, offsets and types that cannot be are refused before
anything is made of them."""

import numpy as np
import pytest

import gguf_files
import simdformer as sf
from checkpoints import refusal
from gguf_files import ARRAY, STRING, key_bytes
from simdformer.checkpoints import CheckpointError
from simdformer.checkpoints.gguf_file import read_gguf


def test_an_array_is_read_as_what_it_is(tmp_path):
    keys = [key_bytes("n", ARRAY, [1], 4), key_bytes("t", ARRAY, [b"a", b"\xff"], STRING)]
    keys.append(key_bytes("b", ARRAY, [0, 2], 7))
    file = tmp_path / "x.gguf"
    file.write_bytes(gguf_files.file_bytes(keys, [], b""))
    found = read_gguf(file).metadata
    for read, message in (
        (found["n"].texts, "an array of numbers as n, needs an array of strings"),
        (found["t"].numbers, "an array of strings as t, needs an array of numbers"),
        (found["t"].texts, r"not UTF-8 in t\[1\]"),
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
