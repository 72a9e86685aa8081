"""Reading safetensors files: what is in them comes out, and no file, however broken, does harm."""

import json
import struct
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save

import checkpoints
from simdformer.checkpoints.safetensors_file import INDEX, read_directory, read_tensors

DTYPES = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


@pytest.fixture
def write(tmp_path):
    def write(data, name="model.safetensors"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def file_of(header, data=b""):
    """A file with that header: bytes, or an object for json."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


refusal = partial(checkpoints.refusal, read=read_tensors)


def entry(begin=0, end=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def tiny():
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(4, 6, generator=generator)
    return {"weight": weight, "half": weight[1].bfloat16(), "scalar": torch.tensor(2.5)}


# ---- good files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read(write, dtype):
    tensor = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    read = read_tensors(write(save({"x": tensor}, metadata={"format": "pt"})))
    assert list(read) == ["x"]
    for x in (read["x"], np.asarray(read["x"])):
        assert (x.dtype, x.shape, x.nbytes) == (
            np.dtype(DTYPES[dtype]),
            (3, 4),
            12 * tensor.itemsize,
        )
    np.testing.assert_array_equal(np.asarray(read["x"], np.float64), tensor.double().numpy())


def test_several_tensors_are_read(write):
    read = read_tensors(write(save(tiny())))
    assert read.keys() == tiny().keys()
    for name, tensor in tiny().items():
        np.testing.assert_array_equal(
            np.asarray(read[name], np.float64), tensor.double().numpy(), err_msg=name
        )


def test_a_tensor_may_begin_at_any_byte(write):
    header = {"a": entry(0, 3, [3], "U8"), "b": entry(3, 11)}
    data = b"abc" + struct.pack("<2f", 1.5, -2.0)
    np.testing.assert_array_equal(read_tensors(write(file_of(header, data)))["b"], [1.5, -2.0])


# ---- headers that lie ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": entry(), "b": entry(4, 12)}, 12, "'b': found its first byte is 4; needed is 8"),
        ({"a": entry(), "b": entry(0, 8)}, 8, "'b': found its first byte is 0; needed is 8"),
        ({"a": entry(), "b": entry(12, 20)}, 20, "'b': found its first byte is 12; needed is 8"),
        ({"a": entry(4, 12)}, 12, "'a': found its first byte is 4; needed is 0"),
        ({"a": entry()}, 7, "bytes; needed is the"),
        ({"a": entry()}, 9, "bytes; needed is the"),
        ({}, 1, "bytes; needed is the"),
        ({"a": entry(0, 2**63, [2**61])}, 8, "bytes; needed is the 92233720368547"),
        ({"a": entry(0, 2**66, [2**32, 2**32])}, 8, "bytes; needed is the 737869762948382"),
        ({"a": entry(0, 8, [2**62, 4])}, 8, "found 8 bytes; needed is 73786976294838206464 for"),
        ({"a": entry(8, 0)}, 8, "found -8 bytes; needed is 8 for F32 of shape (2,)"),
        ({"a": entry(-8, 0)}, 8, "found another shape or offset; needed is lists of whole"),
        ({"a": entry(0, 8, [-2])}, 8, "found another shape or offset"),
        ({"a": entry(0, 8, [2.0])}, 8, "found another shape or offset"),
        ({"a": entry(0, 8, [True, 2])}, 8, "found another shape or offset"),
        ({"a": entry(0, 0, [0, 2**62])}, 0, "found a tensor without elements"),
        ({"a": entry(0, 8, [1] * 16 + [2])}, 8, "found 2 offsets and 17 axes"),
        ({"a": entry() | {"data_offsets": [0, 4, 8]}}, 8, "found 3 offsets and 1 axes"),
        ({"a": entry(dtype="F8_E4M3")}, 8, "found dtype 'F8_E4M3'; needed is one of F64, F32"),
        ({"a": entry(dtype=["F32"])}, 8, "found dtype"),
        ({"a": entry() | {"more": 1}}, 8, "found other fields; needed is dtype, shape and"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "found other fields"),
        ({"a": 3}, 8, "found other fields"),
        ({"new\nline": 3}, 8, "tensor 'new\\nline': found other fields"),
        ({"x" * 1000: 3}, 8, "found other fields"),
        ([], 0, "found a JSON list; needed is a JSON object"),
        (b"{", 0, "found no JSON object"),
        (b'{"a": NaN}', 0, "found no JSON object (NaN is no JSON)"),
        (b"\xff{}", 0, "found no JSON object"),
        (b'{"a": ' + b"[" * 200_000, 0, "found no JSON object"),
        (b'{"a": ' + b"9" * 5000 + b"}", 0, "found no JSON object (a number of 5000 digits)"),
        (b'{"a": 1' + b"0" * 400 + b"}", 0, "found no JSON object (a number of 401 digits)"),
        (b'{"a": {}, "a": {}}', 0, "found no JSON object (a key appears twice)"),
        (b'{"a": {"dtype": "F32", "dtype": "F16"}}', 0, "a key appears twice"),
    ],
)
def test_a_header_that_lies_is_refused(write, header, size, message):
    assert message in refusal(write(file_of(header, bytes(size))))


@pytest.mark.parametrize("length", [100, 2**31, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_refused(write, length):
    message = refusal(write(struct.pack("<Q", length) + b"{}"))
    assert message.startswith(f"found a header of {length} bytes in a file of 10; needed is")


def test_a_header_of_more_than_100_megabytes_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 1 << 30))
        file.truncate(2 << 30)  # a hole: takes no room on the disk
    assert "found a header of 1073741824 bytes" in refusal(path)


# ---- an index and its files ----------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path):
    """sharded(weight_map) writes the index beside two files with a tensor each."""
    for name in "ab":
        (tmp_path / f"{name}.safetensors").write_bytes(file_of({name: entry()}, bytes(8)))

    def sharded(weight_map):
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return tmp_path

    return sharded


RIGHT = {"a": "a.safetensors", "b": "b.safetensors"}


def test_an_index_names_the_files(sharded, tmp_path):
    assert read_directory(sharded(RIGHT)).keys() == {"a", "b"}
    # hub caches are made of links
    (tmp_path / "b.safetensors").rename(tmp_path / "blob")
    (tmp_path / "b.safetensors").symlink_to("blob")
    assert read_directory(tmp_path).keys() == {"a", "b"}
    (tmp_path / "other.safetensors").write_bytes(b"not in the index")
    assert read_directory(tmp_path).keys() == {"a", "b"}


@pytest.mark.parametrize(
    "file",
    ["../b.safetensors", "/etc/passwd", "x/../b.safetensors", ".", "..", "", "a\0b", "b" * 5000],
)
def test_an_index_may_not_point_elsewhere(sharded, file):
    message = refusal(sharded(RIGHT | {"b": file}), read=read_directory)
    assert "needed is plain file names" in message


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (
            RIGHT | {"c": "b.safetensors"},
            "found a disagreement with model.safetensors.index.json on 'c'",
        ),
        (
            {"a": "a.safetensors", "c": "b.safetensors"},
            "a disagreement with model.safetensors.index.json on 'b', 'c'",
        ),
        (
            RIGHT | {"c": "c.safetensors"},
            "found no file 'c.safetensors' beside it; needed is every",
        ),
        (RIGHT | {"c": 3}, "found no weight_map"),
        ([], "found no weight_map"),
        (None, "found no weight_map"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(sharded, weight_map, message):
    assert message in refusal(sharded(weight_map), read=read_directory)


def test_files_without_an_index_may_not_repeat_a_tensor(tmp_path, sharded):
    sharded(RIGHT)
    (tmp_path / INDEX).unlink()
    assert read_directory(tmp_path).keys() == {"a", "b"}
    (tmp_path / "c.safetensors").write_bytes(file_of({"b": entry()}, bytes(8)))
    assert "found a tensor that another file there has too" in refusal(
        tmp_path, read=read_directory
    )
