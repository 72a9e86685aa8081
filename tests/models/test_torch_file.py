"""Reading PyTorch's .pth files: what torch.save wrote comes out, and no file, however broken or
malicious, does harm."""

import collections
import io
import os
import pickle
import struct
import zipfile
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import torch

import checkpoints
from operations import traced_peak
from simdformer.checkpoints.torch_file import read_tensors

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
    def write(data, name="model.pth"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def saved(content, **options):
    """The bytes that torch.save makes."""
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


refusal = partial(checkpoints.refusal, read=read_tensors)


def tiny():
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(4, 6, generator=generator)
    return {"weight": weight, "tied": weight, "half": weight[1].bfloat16()}


# ---- good files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read(write, dtype):
    tensor = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    read = read_tensors(write(saved({"x": tensor})))["x"]
    assert (read.dtype, read.shape) == (np.dtype(DTYPES[dtype]), (3, 4))
    np.testing.assert_array_equal(np.asarray(read, np.float64), tensor.double().numpy())


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
    read = read_tensors(write(saved(content)))
    assert list(read) == list(content)
    for name, tensor in content.items():
        np.testing.assert_array_equal(read[name], tensor.detach().numpy(), err_msg=name)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_state_dict_of_a_module_is_read(write, protocol):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    read = read_tensors(write(saved(module.state_dict(), pickle_protocol=protocol)))
    assert read.keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(read[name], tensor.numpy(), err_msg=name)


def test_a_tensor_is_read_when_somebody_asks_for_it(write):
    path = write(saved({"big": torch.zeros(1 << 20), "row": torch.zeros(1 << 10, 8)[3]}))

    def read(name):
        return traced_peak(lambda: np.asarray(read_tensors(path)[name]))

    assert 4 << 20 <= read("big") < 5 << 20
    assert read("row") < 1 << 20


# ---- what is not a state dict --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "found something that is no dict of tensors"),
        (torch.ones(2), "found something that is no dict of tensors"),
        ({"model": {"w": torch.ones(2)}}, "tensor 'model': found something that is no tensor"),
        ({"epoch": 3}, "tensor 'epoch': found something that is no tensor"),
        ({3: torch.ones(2)}, "tensor '3': found something that is no tensor"),
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
    ],
)
def test_other_content_is_refused(write, content, message):
    assert refusal(write(saved(content))).startswith(message)


def test_files_of_before_pytorch_1_6_and_others_are_refused(write):
    old = saved(tiny(), _use_new_zipfile_serialization=False)
    message = refusal(write(old))
    assert message == (
        "found no zip archive (torch.save has written one since PyTorch 1.6); needed is a state "
        "dict of tensors as torch.save writes it"
    )
    assert "found no zip archive" in refusal(write(b"\x93NUMPY" + bytes(100)))


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


def test_an_archive_of_another_program_is_read_if_it_is_not_compressed(write):
    data = saved(tiny())
    assert read_tensors(write(rezipped(data))).keys() == tiny().keys()
    message = refusal(write(rezipped(data, zipfile.ZIP_DEFLATED)))
    assert message.startswith("found a compressed or encrypted member")


def test_an_archive_that_is_none_of_torch_is_refused(write):
    data = saved(tiny())

    def dropped(part):
        return rezipped(data, change=lambda name, content: None if part in name else content)

    def replaced(part, new):
        return rezipped(data, change=lambda name, old: new if name.endswith(part) else old)

    assert "found a zip archive with 0 members NAME/data.pkl" in refusal(write(dropped("data.pkl")))
    assert "2 members NAME/data.pkl" in refusal(
        write(rezipped(data, b__data_pkl=b"").replace(b"b/data_pkl", b"b/data.pkl"))
    )
    assert "tensor 'weight': found no bytes in the archive" in refusal(write(dropped("data/0")))
    assert "tensors that are not little-endian" in refusal(write(replaced("byteorder", b"big")))
    assert "found 95 bytes; needed is 96 for the 24 elements" in refusal(
        write(replaced("data/0", bytes(95)))
    )
    assert "found a member of 5000000 bytes; needed is at most" in refusal(
        write(replaced(".pkl", bytes(5_000_000)))
    )
    assert "found a pickle that ends too early" in refusal(write(replaced(".pkl", b"")))


def test_an_end_record_that_lies_is_refused(write):
    data = saved(tiny())
    end = data.rindex(b"PK\x05\x06")

    def changed(at, format, value):
        return (
            data[: end + at]
            + struct.pack(format, value)
            + data[end + at + struct.calcsize(format) :]
        )

    assert "directory does not lie inside the file" in refusal(write(changed(10, "<H", 60000)))
    assert "directory does not lie inside the file" in refusal(write(changed(12, "<I", 2**31)))
    assert "directory" in refusal(write(changed(16, "<I", 2**31)))
    assert "of several volumes" in refusal(write(changed(4, "<H", 1)))
    assert "bytes after its end" in refusal(write(changed(20, "<H", 5)))
    assert "bytes after its end" in refusal(write(data + b"\0"))
    # torch.save writes a 64-bit record too, which holds when the short one is full
    full = changed(16, "<I", 2**32 - 1)
    assert read_tensors(write(full)).keys() == tiny().keys()
    assert "a record is not where" in refusal(write(full.replace(b"PK\x06\x06", b"PK\x06\x05")))
    assert "a record is not where" in refusal(write(full.replace(b"PK\x06\x07", b"PK\x06\x05")))


# ---- pickles that want more ----------------------------------------------------------------------


def with_pickle(pickled, count=24):
    """A .pth file whose index is `pickled`, over one storage of 24 float32."""
    data = saved({"x": torch.zeros(count)})
    return rezipped(data, change=lambda name, old: pickled if name.endswith("data.pkl") else old)


class Calls:
    """Pickled, it is a call of `name` with `arguments`."""

    def __init__(self, name, *arguments):
        self.name, self.arguments = name, arguments

    def __reduce__(self):
        return self.name, self.arguments


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (os.system, ("touch {marker}",)),
        (eval, ("open('{marker}', 'w')",)),
        (exec, ("open('{marker}', 'w')",)),
        (open, ("{marker}", "w")),
        (getattr, (collections, "OrderedDict")),
        (__import__, ("os",)),
        (torch.load, ("{marker}",)),
        (torch._utils._rebuild_tensor, (1, 2, 3, 4)),
        (collections.deque, ()),
        (np.ndarray, ((2,),)),
    ],
)
def test_nothing_in_a_pickle_is_called(write, tmp_path, protocol, name, arguments):
    marker = tmp_path / "executed"
    arguments = [a.format(marker=marker) if isinstance(a, str) else "x" for a in arguments]
    for content in (Calls(name, *arguments), {"x": Calls(name, *arguments)}):
        message = refusal(write(with_pickle(pickle.dumps(content, protocol))))
        assert message.removeprefix("tensor 'x': ").startswith("found the name '")
        assert "which no tensor needs" in message
    assert not marker.exists()


REFERENCE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpu%stQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + REFERENCE + b"%s%s%s\x89)tR"


def number(n):
    return b"\x8a\x09" + n.to_bytes(9, "little") if n > 2**62 else pickle.dumps(n, 2)[2:-1]


def a_tensor(count=24, offset=0, shape=(24,), strides=(1,)):
    """A pickle of {'x': tensor}, written by hand."""
    numbers = [b"(" + b"".join(number(n) for n in axes) + b"t" for axes in (shape, strides)]
    return b"\x80\2}X\1\0\0\0x" + TENSOR % (number(count), number(offset), *numbers) + b"s."


def test_a_pickle_written_by_hand_is_read(write):
    assert read_tensors(write(with_pickle(a_tensor())))["x"].shape == (24,)
    strided = a_tensor(offset=3, shape=(2, 1, 5), strides=(10, 10**15, 2))
    assert read_tensors(write(with_pickle(strided)))["x"][...].strides == (40, 0, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
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
            "tensor 'x': found 96 bytes; needed is 100 for the 25 elements of its storage",
        ),
        ({"count": 2**61}, "tensor 'x': found 96 bytes; needed is"),
        ({"shape": (4, 6)}, "2 sizes and 1 strides"),
        ({"shape": (1,) * 17, "strides": (1,) * 17}, "17 sizes and 17 strides"),
        ({"offset": -1}, "not whole numbers >= 0"),
        ({"shape": (-24,)}, "not whole numbers >= 0"),
        ({"strides": (-1,)}, "not whole numbers >= 0"),
        ({"count": -24}, "whose count is not a whole number >= 0"),
    ],
)
def test_a_tensor_outside_its_storage_is_refused(write, changes, message):
    assert message in refusal(write(with_pickle(a_tensor(**changes))))


def test_tensors_that_share_their_bytes_thousands_of_times_are_refused(write):
    entry = TENSOR % (number(10_000), b"K\0", b"M\x10\x27\x85", b"K\1\x85")
    entries = [b"X\2\0\0\0%02d" % i + entry + b"s" for i in range(50)]
    two, all_of_them = (b"\x80\2}" + b"".join(entries[:n]) + b"." for n in (2, 50))
    assert len(read_tensors(write(with_pickle(two, 10_000)))) == 2
    message = refusal(write(with_pickle(all_of_them, 10_000)))
    assert message.startswith("found tensors of 2000000 bytes in a file of")


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"\x80\2" + b"]" * 100_000 + b".", "piles up more than 65536 values"),
        (b"\x80\2" + b"(" * 100_000 + b".", "piles up more than 65536 values"),
        (b"\x80\2N" + b"h\0" * 3 + b".", "recalls what it never remembered"),
        (b"\x80\2q\0.", "remembers what is not there"),
        (b"\x80\2(q\0.", "remembers what is not there"),
        (b"\x80\2.", "takes what is not there"),
        (b"\x80\2(.", "takes what is not there"),
        (b"\x80\2t.", "takes what is not there"),
        (b"\x80\2R.", "takes what is not there"),
        (b"\x80\2)NR.", "a call of something that is no name"),
        (b"\x80\2N)R.", "a call of something that is no name"),
        (b"\x80\2ccollections\nOrderedDict\n(K\1tR.", "an OrderedDict with arguments"),
        (b"\x80\2ccollections\nOrderedDict\n)R)Rs.", "a call of something that is no name"),
        (b"\x80\2}))s.", "a key that is neither text nor a number"),
        (b"\x80\2}(K\1u.", "a key without a value"),
        (b"\x80\2K\1(K\1e.", "adds to something that is no list"),
        (b"\x80\2NQ.", "a reference that is not to a storage"),
        (b"\x80\2N}b.", "adds to something that is no dict"),
        (b"\x80\1N.", "a pickle of protocol 1"),
        (b"\x80\6N.", "a pickle of protocol 6"),
        (b"\x80\2\x8a\xff" + bytes(255) + b".", "more than 64 bits"),
        (b"\x80\2X\xff\xff\xff\xff.", "ends too early"),
        (b"\x80\2X\1\0\0\0\xff.", "text that is not UTF-8"),
        (b"\x80\2cos\nsystem\n.", "found the name 'os.system', which no tensor needs"),
        (b"\x80\2cos\n" + b"a" * 300 + b"\n.", "a name without an end"),
        (b"\x80\2ccollections\nOrderedDict\n(X\1\0\0\0atb.", "to something that is no dict"),
        (b"\x80\2(ios\nsystem\n.", "the pickle opcode b'i'"),
        (b"\x80\2cos\nsystem\n)\x81.", "found the name 'os.system'"),
        (b"\x80\2)\x81.", "the pickle opcode b'\\x81', which torch.save does not write"),
        (b"\x80\2P1\n.", "the pickle opcode b'P'"),
        (b"\x80\2\x82\1.", "the pickle opcode b'\\x82'"),
        (b"\x80\2ctorch\nFloatStorage\n)R.", "a call of something that is no name"),
        (b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor described by 0 values"),
        (b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR.", "a tensor without a storage"),
        (b"\x80\2ctorch._utils\n_rebuild_parameter\n(N\x89NtR.", "a parameter without a tensor"),
        (b"\x80\2N" + b"K\1" * 9, "ends too early"),
    ],
)
def test_a_pickle_that_torch_does_not_write_is_refused(write, pickled, message):
    assert message in refusal(write(with_pickle(pickled)))


def test_a_memo_bomb_is_harmless(write):
    """Each line holds the line before twice: 2**1000 elements, should anybody count them."""
    bomb = b"\x80\2)" + b"".join(
        b"r%sh%s\x86" % (struct.pack("<I", i), bytes([i])) for i in range(200)
    )
    assert "found something that is no dict" in refusal(write(with_pickle(bomb + b".")))
    as_key = b"\x80\2}" + bomb[2:] + b"Ns."
    assert "a key that is neither text nor a number" in refusal(write(with_pickle(as_key)))
    as_value = b"\x80\2}X\1\0\0\0x" + bomb[2:] + b"s."
    assert "tensor 'x': found something that is no tensor" in refusal(write(with_pickle(as_value)))


def test_a_deep_pickle_is_harmless(write):
    deep = b"\x80\2)" + b"\x85" * 1_000_000 + b"."
    assert "found something that is no dict" in refusal(write(with_pickle(deep)))
