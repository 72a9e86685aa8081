"""Arrays of other libraries, through DLPack."""

import ctypes
import gc

import numpy as np
import pytest
import torch

import simdformer as sf
from conftest import bfloat16, normal, same_bits, to_torch
from operations import OPERATIONS, ROW_WISE, ROWS, WIDTH, traced_peak

# numpy 2.0 exports as before versions; since 2.1 it knows the keyword.
VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"

TORCH_DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


class Exporter:
    """Only the two methods that the standard asks for, as of its version 1."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, *, max_version=None):
        return self.array.__dlpack__(**({"max_version": max_version} if VERSIONED else {}))

    def __dlpack_device__(self):
        return self.device


class OldExporter(Exporter):
    """From before versions: no keyword, and a capsule called "dltensor"."""

    def __dlpack__(self):
        return self.array.__dlpack__()


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", OPERATIONS)
def test_anything_with_dlpack_on_the_cpu_is_taken(name, exporter, dtype, rng):
    x = normal(rng, ROWS, WIDTH, dtype=dtype)
    if name == "linear":
        weight = normal(rng, 5, WIDTH, dtype=dtype)
        assert same_bits(sf.linear(exporter(x), exporter(weight)), sf.linear(x, weight))
    else:
        assert same_bits(OPERATIONS[name](exporter(x)), OPERATIONS[name](x))


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
def test_dlpack_strides_and_offsets_are_followed(exporter, rng):
    whole = normal(rng, 4, 9, WIDTH)
    for view in (whole[1:, ::2], whole.swapaxes(0, 1), whole[::-1], whole[..., 1::3], whole[2, 3]):
        assert same_bits(sf.silu(exporter(view)), sf.silu(view.copy()))


def test_dlpack_memory_is_given_back(rng):
    released = []

    class Tracked(np.ndarray):
        def __del__(self):
            released.append(True)

    x = normal(rng, 3, 4).view(Tracked)
    exporter = Exporter(x)
    sf.silu(exporter)
    assert not released
    del x, exporter
    gc.collect()
    assert released


@pytest.mark.parametrize("torch_dtype", TORCH_DTYPES)
def test_torch_tensors_bfloat16_included_are_read_where_they_lie(torch_dtype):
    torch.manual_seed(0)
    tensor = torch.randn(4, 6, 16).to(torch_dtype)
    kind = bfloat16 if torch_dtype is torch.bfloat16 else np.dtype(str(torch_dtype)[6:])
    array = tensor.double().numpy().astype(kind)
    for name, function in ROW_WISE.items():
        got = function(tensor)
        assert isinstance(got, np.ndarray)
        assert got.dtype == kind
        assert same_bits(got, function(array)), name
    assert same_bits(sf.silu(tensor.transpose(0, 1)), sf.silu(array.swapaxes(0, 1)))
    assert same_bits(sf.silu(tensor[:, ::2, ::3]), sf.silu(array[:, ::2, ::3]))

    out = np.empty(array.shape, kind)
    assert traced_peak(lambda: sf.silu(tensor, out=out)) < array.nbytes


def test_torch_in_every_argument(rng):
    q, mask = normal(rng, 2, 4, 5, 8), rng.random((5, 5)) < 0.8
    mask[:, 0] = True
    assert same_bits(
        sf.scaled_dot_product_attention(
            to_torch(q),
            to_torch(q[:, :2]),
            to_torch(q[:, 2:]),
            torch.from_numpy(mask),
            key_lengths=torch.tensor([5, 3]),
            is_causal=True,
            causal_offset=torch.tensor([0, 1]),
            sinks=torch.zeros(4),
        ),
        sf.scaled_dot_product_attention(
            q, q[:, :2], q[:, 2:], mask, key_lengths=[5, 3], is_causal=True,
            causal_offset=[0, 1], sinks=np.zeros(4, np.float32),
        ),
    )  # fmt: skip
    x, weight, bias = normal(rng, 3, 8), normal(rng, 4, 8, dtype=bfloat16), normal(rng, 4)
    assert same_bits(
        sf.linear(to_torch(x), to_torch(weight), to_torch(bias)), sf.linear(x, weight, bias)
    )
    assert same_bits(sf.pack(to_torch(weight)).unpack(), weight)
    ids = torch.tensor([[3, 0], [1, 1]])
    assert same_bits(sf.embedding(ids, to_torch(weight)), weight[ids.numpy()])
    assert same_bits(
        sf.rope(to_torch(x), layout="half", positions=torch.tensor([4, 2, 9])),
        sf.rope(x, layout="half", positions=[4, 2, 9]),
    )
    assert same_bits(sf.repeat_kv(to_torch(q), 2), sf.repeat_kv(q, 2))


# ---- capsules made by hand -----------------------------------------------------------------------


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("rank", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

FLOAT32, BFLOAT16, INT64 = (2, 32, 1), (4, 16, 1), (0, 64, 1)


class Handmade:
    """An exporter whose tensor says whatever the test wants it to say."""

    def __init__(
        self,
        memory,
        shape,
        strides=None,
        *,
        dtype=FLOAT32,
        offset=0,
        version=None,
        name=None,
        device=(1, 0),
        null=(),
    ):
        self.memory = memory
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.strides = strides and (ctypes.c_int64 * len(strides))(*strides)
        tensor = Tensor(
            None if "data" in null else memory.ctypes.data,
            Device(*device),
            len(shape),
            DataType(*dtype),
            None if "shape" in null else self.shape,
            self.strides,
            offset,
        )
        if version is None:
            self.managed, self.name = Managed(tensor), name or b"dltensor"
        else:
            self.managed = ManagedVersioned(version, 0, tensor=tensor)
            self.name = name or b"dltensor_versioned"

    def __dlpack__(self, **_):
        return new_capsule(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("version", [None, 1])
def test_missing_strides_mean_c_order_and_the_offset_is_in_bytes(version, rng):
    memory = normal(rng, 30)
    got = sf.silu(Handmade(memory, (2, 3, 4), version=version, offset=8))
    assert same_bits(got, sf.silu(memory[2:26].reshape(2, 3, 4)))
    got = sf.silu(Handmade(memory, (), version=version, offset=4))
    assert same_bits(got, sf.silu(memory[1]))
    got = sf.silu(Handmade(memory, (3, 4), (-10, 2), version=version, offset=80))
    assert same_bits(
        got, sf.silu(np.stack([memory[start : start + 8 : 2] for start in (20, 10, 0)]))
    )
    assert sf.silu(Handmade(memory, (0, 4), version=version)).shape == (0, 4)


def test_bfloat16_by_its_code(rng):
    memory = normal(rng, 12, dtype=bfloat16)
    assert same_bits(sf.silu(Handmade(memory, (12,), dtype=BFLOAT16)), sf.silu(memory))


@pytest.mark.parametrize(
    ("changes", "error", "found"),
    [
        (
            {"shape": (2**40, 2**40)},
            ValueError,
            "has shape (1099511627776, 1099511627776), needs a size",
        ),
        ({"shape": (2, -1)}, ValueError, "has a negative extent, needs a shape"),
        ({"shape": (1,) * 65}, ValueError, "has 65 axes, needs at most 64"),
        ({"dtype": (2, 32, 4)}, TypeError, "has a vector dtype, needs float32"),
        ({"dtype": (2, 8, 1)}, TypeError, "has dtype float8, needs float32"),
        ({"dtype": (4, 32, 1)}, TypeError, "has dtype bfloat32, needs float32"),
        ({"dtype": (1, 16, 1)}, TypeError, "has dtype uint16, needs float32"),
        ({"dtype": (77, 32, 1)}, TypeError, "has DLPack type code 77, needs float32"),
        ({"version": 2}, BufferError, "speaks DLPack version 2, needs version 1 or older"),
        ({"name": b"used_dltensor"}, BufferError, "does not return a DLPack capsule, needs one"),
        ({"name": b"dltensor_versioned", "version": 9}, BufferError, "speaks DLPack version 9"),
        ({"null": ["data"]}, BufferError, "has memory that is a null pointer, needs memory"),
        ({"null": ["data"], "offset": 64}, BufferError, "has memory that is a null pointer"),
        ({"null": ["data"], "shape": ()}, BufferError, "has memory that is a null pointer"),
        ({"null": ["shape"]}, BufferError, "has a shape that is a null pointer, needs one for"),
        ({"null": ["data", "shape"]}, BufferError, "has a shape that is a null pointer"),
        ({"device": (2, 0)}, BufferError, "lies on DLPack device type 2, needs memory of the CPU"),
        ({"device": (-1, 0)}, BufferError, "lies on DLPack device type -1"),
        ({"strides": (2**62, 1)}, ValueError, "has a stride of 4611686018427387904, needs one"),
    ],
)
@pytest.mark.parametrize("version", [None, 1])
def test_what_a_tensor_may_not_say(changes, error, found, version):
    settings = {"shape": (2, 4), "version": version} | changes
    memory = np.zeros(16, np.float32)
    with pytest.raises(error) as caught:
        sf.silu(Handmade(memory, **settings))
    assert str(caught.value).startswith("silu: x ")
    assert found in str(caught.value)
    if "dtype" in changes:
        return
    with pytest.raises(error) as caught:  # integers come by the same way
        sf.embedding(Handmade(memory, **settings, dtype=INT64), np.zeros((3, 2)))
    assert str(caught.value).startswith("embedding: ids ")
    assert found in str(caught.value)


@pytest.mark.parametrize("version", [None, 1])
def test_an_empty_tensor_needs_no_memory(version):
    for shape in ((0,), (3, 0), (0, 2**50), (2**50, 0)):
        empty = Handmade(np.zeros(0), shape, version=version, null=["data"])
        assert sf.silu(empty).shape == shape
        ids = Handmade(np.zeros(0), shape, version=version, null=["data"], dtype=INT64)
        assert sf.embedding(ids, np.zeros((3, 0))).shape == (*shape, 0)
    point = Handmade(np.ones(1, np.float32), (), version=version, null=["shape"])
    assert same_bits(sf.relu(point), np.float32(1))  # no axes, no shape


@pytest.mark.parametrize("version", [None, 1])
def test_integers_of_every_width_with_strides_and_offsets(version, rng):
    weight = normal(rng, 100, 3)
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        memory = rng.integers(0, 100, 30).astype(kind)
        code, size = int(kind.startswith("u")), memory.itemsize
        options = {"dtype": (code, 8 * size, 1), "offset": 20 * size, "version": version}
        ids = Handmade(memory, (3, 4), (-10, 2), **options)
        want = np.stack([memory[start : start + 8 : 2] for start in (20, 10, 0)])
        assert same_bits(sf.embedding(ids, weight), weight[want]), kind
    ids = Handmade(np.array([2**64 - 1], np.uint64), (1,), dtype=(1, 64, 1), version=version)
    with pytest.raises(IndexError, match="holds 18446744073709551615"):
        sf.embedding(ids, weight)


@pytest.mark.parametrize(
    ("dtype", "found"),
    [
        ((0, 4, 1), "dtype int4"),
        ((0, 128, 1), "dtype int128"),
        ((0, 32, 2), "a vector dtype"),
        ((2, 64, 1), "dtype float64"),
        ((4, 16, 1), "dtype bfloat16"),
        ((6, 8, 1), "dtype bool"),
        ((77, 64, 1), "DLPack type code 77"),
    ],
)
def test_what_is_no_integer_to_a_tensor(dtype, found):
    ids = Handmade(np.zeros(8), (2,), dtype=dtype)
    with pytest.raises(TypeError) as caught:
        sf.embedding(ids, np.zeros((3, 2)))
    assert str(caught.value).startswith(f"embedding: ids has {found}, needs integers; ")


def test_the_cause_of_a_refused_export_is_kept():
    with pytest.raises(BufferError, match=r"x\.detach\(\)") as caught:
        sf.silu(torch.zeros(3, device="meta"))
    assert "Unknown device type meta" in str(caught.value.__cause__)


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_parameter_is_taken_where_no_gradient_is_recorded(without, rng):
    x, array = normal(rng, 3, 8), normal(rng, 5, 8)
    weight = torch.nn.Parameter(to_torch(array))
    with pytest.raises(BufferError, match=r"linear: weight requires a gradient, .* no gradient"):
        sf.linear(x, weight)
    with without():
        assert same_bits(sf.linear(x, weight), sf.linear(x, array))
        assert same_bits(sf.pack(weight).unpack(), array)
        assert (sf.quantize(torch.ones(2, 32, requires_grad=True), "q8_0").codes == 127).all()
        assert sf.relu(x[:, :5], out=(out := torch.nn.Parameter(torch.zeros(3, 5)))) is out
        assert same_bits(out.detach().numpy(), np.maximum(x[:, :5], 0))


def test_what_another_library_calls_requires_grad_is_none_of_ours():
    class Tracked(Exporter):
        requires_grad = True

    assert same_bits(sf.relu(Tracked(np.ones(3))), np.ones(3))


# ---- out -----------------------------------------------------------------------------------------


def test_memory_that_may_not_be_written():
    memory = np.zeros(8, np.float32)
    for flags, found in ((1, "is read-only, needs a writable tensor"), (2, "hands out a copy")):
        tensor = Handmade(memory, (8,), version=1)
        tensor.managed.flags = flags
        assert same_bits(sf.relu(tensor), memory)
        with pytest.raises(BufferError, match=f"relu: out {found}"):
            sf.relu(np.ones(8, np.float32), out=tensor)
    assert not memory.any()
    for version in (None, 1):
        tensor = Handmade(memory, (8,), version=version)
        assert sf.relu(np.full(8, 3, np.float32), out=tensor) is tensor
        assert (memory == 3).all()


def test_an_interrupt_inside_an_export_goes_through():
    class Slow(Exporter):
        def __dlpack__(self, **_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sf.silu(Slow(np.zeros(3, np.float32)))
