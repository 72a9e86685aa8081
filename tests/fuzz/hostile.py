"""Arguments that nobody should pass and somebody will: numbers and arrays, for hypothesis."""

import decimal
import fractions

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import simdformer as sf

FLOATS = [np.dtype(kind) for kind in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
OTHER_DTYPES = [
    *map(np.dtype, ("i1", "u1", "i4", "i8", "u8", "?", "F", "D", "g", "O", "U3", "S3", "V5")),
    *map(np.dtype, (">f4", ">f8", ">f2", ">i8", "M8[D]", [("a", "f4")], [("a", "f4", (2,))])),
    *map(np.dtype, (ml_dtypes.float8_e4m3fn, ml_dtypes.int4)),
]  # fmt: skip


# An argument that raises while somebody looks at it: that goes through as it is.
OWN_ERROR = "an error of the argument's own"


class Liar:
    """Says that it is an array, and hands out something else."""

    def __init__(self, what):
        self.what = what

    def __array__(self, dtype=None, copy=None):
        if isinstance(self.what, Exception):
            raise self.what
        return self.what

    def __repr__(self):
        return f"Liar({self.what!r})"


class LyingInterface:
    def __init__(self, **changes):
        self.memory = np.zeros(4, np.float32)
        self.__array_interface__ = dict(self.memory.__array_interface__) | changes

    def __repr__(self):
        return f"LyingInterface({self.__array_interface__})"


class Subclass(np.ndarray):
    pass


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

    def __repr__(self):
        return f"Index({self.value!r})"


class Exports:
    """Says that it speaks DLPack, and then does as it is told."""

    def __init__(self, device=(1, 0), capsule=None):
        self.device, self.capsule = device, capsule

    def __dlpack__(self, **options):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule

    def __dlpack_device__(self):
        return self.device

    def __repr__(self):
        return f"Exports({self.device!r}, {self.capsule!r})"


class Emptied(list):
    """Loses its items as soon as one of them is looked at."""

    def __init__(self, array):
        super().__init__([Looked(self, array), np.zeros(2), np.zeros((2, 2))])


class Looked:
    def __init__(self, items, array):
        self.items, self.array = items, array

    def __array__(self, dtype=None, copy=None):
        self.items.clear()
        return self.array


class Lengthless(list):
    """Its length and its items have nothing to do with each other."""

    def __len__(self):
        return 2**40


class Raises:
    def __index__(self):
        raise RuntimeError(OWN_ERROR)

    __float__ = __bool__ = __len__ = __index__


NUMBERS = [
    0, 1, 2, 3, -1, -2, 7, 63, 64, 65, 255, 2**15, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32,
    2**53, 2**62, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, -(2**64), 10**30,
    10**400, 10**5000, 0.0, -0.0, 0.5, 1.5, -1.0, 1e-45, 5e-324, 1e38, 1e39, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
ODD_VALUES = [
    None, True, False, "", "1", "x", "half", "none", "tanh", "causal", "f4,(2", ",", b"1",
    bytearray(8), 1j, (), [], {}, {1}, [None], [[1.0], [2.0, 3.0]], ["a"], [1, 2], [0.5, 1.0],
    [[0.0, 1.0], [1.0, 0.0]], object, Ellipsis, NotImplemented, slice(3), range(3), len,
    decimal.Decimal("0.5"), fractions.Fraction(1, 2), Index(2), Index(2**70), Raises(),
    Liar("text"), Liar(None), Liar(np.zeros(4, np.float32)), Liar(ValueError("no array")),
    Liar(RuntimeError(OWN_ERROR)), LyingInterface(strides=(2**40,), shape=(1,)),
    LyingInterface(typestr="<f3"), LyingInterface(shape=(-4,)), LyingInterface(shape="4"),
    LyingInterface(data=None), memoryview(np.zeros((2, 4), np.float32)), np.float32(0.5),
    np.float16("nan"), np.int64(3), np.int8(-1), np.uint64(2**64 - 1), np.bool_(True),
    np.str_("half"), np.datetime64("NaT"), np.float32, np.dtype("f4"), np.array(2), np.array(0.5),
    np.array([3]), np.array([0.5], object), np.array(None), np.void(b"12345678"),
]  # fmt: skip

# Weights that were made, and the like without contents.
WEIGHTS = [
    sf.pack(np.ones((2, 4), np.float32)), sf.pack(np.ones((0, 3), np.float16)),
    sf.quantize(np.ones((2, 32), np.float32), "q4_0"),
    sf.QuantizedWeight.from_groups(np.ones((2, 64), np.uint8), np.ones((2, 1), np.float32)),
    sf.PackedWeight.__new__(sf.PackedWeight), sf.QuantizedWeight.__new__(sf.QuantizedWeight),
]  # fmt: skip
STRANGERS = [
    Exports(), Exports((2, 0)), Exports(()), Exports("12"), Exports(capsule=RuntimeError("no")),
    Exports(capsule=np.zeros(2)), Emptied(np.zeros(2)), Emptied(None), Lengthless([1.0]),
    Lengthless(), *WEIGHTS,
]  # fmt: skip
ODD_VALUES += STRANGERS

numbers = st.sampled_from(NUMBERS) | st.integers() | st.floats()
scalars = numbers | st.integers(0, len(ODD_VALUES) - 1).map(ODD_VALUES.__getitem__)
shapes = st.one_of(
    st.lists(st.integers(0, 5), max_size=5),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(lambda axes: [1] * 60 + axes),
    st.lists(st.sampled_from([0, 1, 2]), min_size=60, max_size=64).map(
        lambda axes: [axis if axes[: at + 1].count(2) < 8 else 1 for at, axis in enumerate(axes)]
    ),
).map(tuple)


@st.composite
def filled(draw, shape, dtype):
    """Small numbers, sometimes with a few that are not."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return np.array(random.standard_normal(shape), np.float64).astype(dtype)


@st.composite
def laid_out(draw, array):
    """The same numbers in another memory layout."""
    kind = draw(
        st.sampled_from(["plain", "gaps", "backwards", "fortran", "unaligned", "read-only"])
    )
    if kind == "gaps":
        odd = [1, 2][:: draw(st.sampled_from([1, -1]))] if array.ndim < 10 else [1, 1]
        wide = np.zeros([odd[axis % 2] * n for axis, n in enumerate(array.shape)], array.dtype)
        view = wide[(*(slice(0, None, odd[axis % 2]) for axis in range(array.ndim)), ...)]
        view[...] = array
        return view
    if kind == "backwards" and array.ndim:
        turn = (slice(None, None, -1),) * array.ndim
        return array[turn].copy()[turn]
    if kind == "fortran":
        return np.asfortranarray(array)
    if kind == "unaligned" and array.dtype != object:
        memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
        view = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view
    if kind == "read-only":
        array = array.copy()
        array.flags.writeable = False
    return array


@st.composite
def good_array(draw, shape, dtype):
    return draw(laid_out(draw(filled(shape, dtype))))


@st.composite
def hostile_array(draw):
    """Any shape, dtype, layout, subclass; sometimes far larger than memory, by strides of zero."""
    shape = draw(shapes)
    dtype = draw(st.sampled_from(FLOATS) | st.sampled_from(OTHER_DTYPES))
    kind = draw(st.sampled_from(["laid out", "virtual", "broadcast", "special", "subclass"]))
    if kind == "virtual":  # no process can address as many bytes as any result of it would have
        rows = draw(st.sampled_from([2**47, 2**60, 2**62]))
        width = draw(st.sampled_from([1, 2, 4]))
        rows = min(rows, (2**63 - 1) // (width * dtype.itemsize))
        return as_strided(np.zeros(width, dtype), (rows, width), (0, dtype.itemsize))
    array = np.zeros(shape, dtype)
    if kind == "broadcast":
        return np.broadcast_to(np.zeros(array.shape[-1:], dtype), array.shape)
    if kind == "special" and dtype in FLOATS and array.size:
        special = [np.nan, np.inf, -np.inf, 1e30, -0.0, 1e-41]
        with np.errstate(over="ignore", under="ignore"):
            array[...] = np.resize(np.array(special), array.shape).astype(dtype)
    if kind == "subclass":
        views = [lambda a: a.view(Subclass), lambda a: np.ma.array(a)]
        return draw(st.sampled_from(views))(array)
    return draw(laid_out(array))


hostile = st.one_of(scalars, hostile_array(), hostile_array())
