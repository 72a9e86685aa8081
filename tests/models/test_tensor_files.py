"""Reading safetensors files and PyTorch's .pth files: what was written comes out. Files that lie
stand in test_hostile_files.py."""

import collections
import json
import struct
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save

import checkpoints
from lies import FULL, a_tensor, entry, file_of, rezipped, saved, sharing, with_pickle
from operations import traced_peak
from simdformer.checkpoints import safetensors_file, torch_file
from simdformer.checkpoints.safetensors_file import INDEX, read_directory

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


FORMATS = {
    "safetensors": (partial(save, metadata={"format": "pt"}), safetensors_file.read_tensors),
    "pth": (saved, torch_file.read_tensors),
}


@pytest.fixture(params=FORMATS)
def format(request):
    """What makes the bytes of a file, and what reads one."""
    return FORMATS[request.param]


@pytest.fixture
def write(write):
    return lambda data, name="model": write(data, name)


refusal = partial(checkpoints.refusal, read=torch_file.read_tensors)


def tiny():
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(4, 6, generator=generator)
    return {"weight": weight, "half": weight[1].bfloat16(), "scalar": torch.tensor(2.5)}


# ---- good files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read(format, write, dtype):
    make, read_tensors = format
    tensor = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    read = read_tensors(write(make({"x": tensor})))
    assert list(read) == ["x"]
    for x in (read["x"], np.asarray(read["x"])):
        found = x.dtype, x.shape, x.nbytes
        assert found == (np.dtype(DTYPES[dtype]), (3, 4), 12 * tensor.itemsize)
    np.testing.assert_array_equal(np.asarray(read["x"], np.float64), tensor.double().numpy())


def test_several_tensors_are_read(format, write):
    make, read_tensors = format
    read = read_tensors(write(make(tiny())))
    assert read.keys() == tiny().keys()
    for name, tensor in tiny().items():
        np.testing.assert_array_equal(
            np.asarray(read[name], np.float64), tensor.double().numpy(), err_msg=name
        )


def test_a_tensor_may_begin_at_any_byte(write):
    header = {"a": entry(0, 3, [3], "U8"), "b": entry(3, 11)}
    data = b"abc" + struct.pack("<2f", 1.5, -2.0)
    read = safetensors_file.read_tensors(write(file_of(header, data)))
    np.testing.assert_array_equal(read["b"], [1.5, -2.0])


# ---- PyTorch's files -----------------------------------------------------------------------------


def test_views_parameters_and_scalars_are_read(write):
    base = torch.randn(6, 8)
    content = collections.OrderedDict(
        base=base,
        transposed=base.t(),
        part=base[2:5, 1:7:2],
        row=base[3:4].t(),
        parameter=torch.nn.Parameter(torch.randn(3)),
        scalar=torch.tensor(2.5),
    )
    read = torch_file.read_tensors(write(saved(content)))
    assert list(read) == list(content)
    for name, tensor in content.items():
        np.testing.assert_array_equal(read[name], tensor.detach().numpy(), err_msg=name)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_state_dict_of_a_module_is_read(write, protocol):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    read = torch_file.read_tensors(write(saved(module.state_dict(), pickle_protocol=protocol)))
    assert read.keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(read[name], tensor.numpy(), err_msg=name)


def test_a_tensor_is_read_when_somebody_asks_for_it(write):
    path = write(saved({"big": torch.zeros(1 << 20), "row": torch.zeros(1 << 10, 8)[3]}))

    def read(name):
        return traced_peak(lambda: np.asarray(torch_file.read_tensors(path)[name]))

    assert 4 << 20 <= read("big") < 5 << 20
    assert read("row") < 1 << 20


def test_a_pickle_written_by_hand_is_read(write):
    assert torch_file.read_tensors(write(with_pickle(a_tensor())))["x"].shape == (24,)
    strided = a_tensor(offset=3, shape=(2, 1, 5), strides=(10, 10**15, 2))
    assert torch_file.read_tensors(write(with_pickle(strided)))["x"][...].strides == (40, 0, 8)


def test_two_tensors_may_share_their_bytes(write):
    assert len(torch_file.read_tensors(write(sharing(2)))) == 2


def test_an_archive_of_another_program_is_read_if_it_is_not_compressed(write):
    assert torch_file.read_tensors(write(rezipped(saved(tiny())))).keys() == tiny().keys()


def test_the_64_bit_record_at_the_end_holds_where_the_short_one_is_full(write):
    assert torch_file.read_tensors(write(FULL)).keys() == {"x"}


# ---- safetensors: a long header, an index and its files ------------------------------------------


def test_a_header_of_more_than_100_megabytes_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 1 << 30))
        file.truncate(2 << 30)  # a hole: takes no room on the disk
    assert "found a header of 1073741824 bytes" in refusal(path, read=safetensors_file.read_tensors)


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


def test_files_without_an_index_may_not_repeat_a_tensor(tmp_path, sharded):
    sharded(RIGHT)
    (tmp_path / INDEX).unlink()
    assert read_directory(tmp_path).keys() == {"a", "b"}
    (tmp_path / "c.safetensors").write_bytes(file_of({"b": entry()}, bytes(8)))
    assert "found a tensor that another file there has too" in refusal(
        tmp_path, read=read_directory
    )
