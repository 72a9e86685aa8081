"""What tests share: instruction sets, dtypes, arrays, oracles and the one tolerance table."""

import os
import textwrap
import zlib
from pathlib import Path
from unittest import mock

# Before torch makes its own pool: two threads, which sleep while they wait. Processes side by side
# share the cores, and a thread that spins takes the one that it waits for.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import as_strided

import simdformer as sf
from cases import SEED
from checkpoints import llama2c_bytes, random_weights, tiny_config, tiny_tokenizer, tokenizer_bytes
from operations import OPERATIONS, ROW_WISE
from simdformer import cli, reference
from simdformer.reference.forward import float64

torch.set_num_threads(2)
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("tests")

# ---- what tests are parametrised over ------------------------------------------------------------

bfloat16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), bfloat16]
SIXTEEN_BITS = DTYPES[2:]

# Around every vector width, 2 (SSE, float64) to 16 (AVX-512), and four of them: a fold has 4 sums.
LENGTHS = [*range(10), 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 131]


# What an instruction set is another one with: products of bytes, for quantised weights alone.
BYTE_PRODUCTS = {"avx2_vnni": "avx2", "avx512_vnni": "avx512", "neon_dotprod": "neon"}


@pytest.fixture(params=[isa for isa in sf.isas() if isa not in BYTE_PRODUCTS])
def isa(request):
    """Every instruction set that runs here, one after the other. Those of BYTE_PRODUCTS give the
    bits of the one without (test_isa.py), and have their turn where weights are quantised."""
    with sf.use_isa(request.param):
        yield request.param


@pytest.fixture(params=sf.isas())
def every_isa(request):
    """Really every one, where weights are quantised."""
    with sf.use_isa(request.param):
        yield request.param


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(items):
    """The instruction sets of a case come one after the other: they ask its oracle the same. Of a
    test that is sampled(n) all cases but one in n, chosen by its name, are unsampled; which ones
    changes with the number SIMDFORMER_SAMPLE."""
    cases, sampled = {}, {}
    sample = int(os.environ.get("SIMDFORMER_SAMPLE", "0"))
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        others = [repr(value) for name, value in given.items() if name != "isa"]
        test = item.nodeid.partition("[")[0]
        cases.setdefault((test, *others), []).append(item)
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            sampled.setdefault(test, []).append(item)
    items[:] = [item for case in cases.values() for item in case]
    for of_a_test in sampled.values():
        [share] = of_a_test[0].get_closest_marker("sampled").args
        of_a_test.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        few = -(-len(of_a_test) // share)
        first = sample * few % len(of_a_test)
        for item in (of_a_test[first:] + of_a_test[:first])[few:]:
            item.add_marker("unsampled")


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=["reference", "torch"])
def oracle(request):
    """oracle("silu", x): what the operation gives, as float64. See Oracle."""
    return Oracle(request.param)


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


@pytest.fixture(scope="session")
def shared():
    """The folder with real tokenizers and a real trained model, which lies beside the project."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("needs the data folder ../shared, which lies beside the project's own folder")
    return folder


@pytest.fixture(scope="session")
def demo():
    """The model that is shipped."""
    return sf.from_pretrained(sf.demo_path())


@pytest.fixture
def restored():
    """The number of threads and the instruction set are put back behind the test."""
    with sf.num_threads(sf.get_num_threads()), sf.use_isa(sf.isa()):
        yield


# ---- the command line ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The directory of a model of random weights, with its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny_config()
    (folder / "model.bin").write_bytes(
        llama2c_bytes(config, random_weights(np.random.default_rng(8), config), 0)
    )
    (folder / "tok300.bin").write_bytes(tokenizer_bytes(*tiny_tokenizer(300)))
    return folder


@pytest.fixture
def write(tmp_path):
    """write(data) puts bytes, or text without its indent, into a file and gives its path."""

    def write(data, name):
        file = tmp_path / name
        file.write_bytes(textwrap.dedent(data).encode() if isinstance(data, str) else data)
        return file

    return write


@pytest.fixture(params=OPERATIONS)
def operation(request):
    return OPERATIONS[request.param]


@pytest.fixture(params=ROW_WISE)
def row_wise(request):
    return ROW_WISE[request.param]


@pytest.fixture
def command(capsys):
    """command("run", model, ...) gives exit status, stdout and stderr, and leaves the settings as
    they were."""
    isa, threads = sf.isa(), sf.get_num_threads()

    def run(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:  # argparse
            status = exit.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield run
    sf.set_isa(isa)
    sf.set_num_threads(threads)


# ---- arrays --------------------------------------------------------------------------------------


def normal(rng, *shape, dtype=np.float32, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(dtype)


def grid(rng, *shape, dtype=np.float32):
    """Numbers of few bits, -4 to 4 in steps of 1/8: sums of some are exact, in 16 bits too."""
    return (rng.integers(-32, 33, shape) / 8).astype(dtype)


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_same_bits(got, want):
    """Of two arrays, or of tuples and lists of them; None is None."""
    if isinstance(want, tuple | list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_same_bits(one, other)
    else:
        assert got is want is None or same_bits(got, want)


def assert_threads_change_no_bit(call, threads=(2, 3, 4)):
    with sf.num_threads(1):
        want = call()
    for count in threads:
        with sf.num_threads(count):
            assert_same_bits(call(), want)


def relaid(rng, x, layout):
    """The same values in another memory layout; the last axis keeps its unit stride."""
    if layout == "contiguous":
        return np.ascontiguousarray(x)
    if layout == "unaligned":
        return np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    if (
        layout == "transposed"
    ):  # the heads of a (L, H·D) projection: leading axes in the opposite order
        order = [*range(x.ndim - 2, -1, -1), x.ndim - 1]
        return np.ascontiguousarray(x.transpose(order)).transpose(order)
    if layout == "gaps":  # every row followed by garbage
        wide = np.full((*x.shape[:-1], x.shape[-1] + 3), np.nan).astype(x.dtype)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    if layout == "backwards":
        return np.ascontiguousarray(x[::-1])[::-1]
    if layout == "readonly":
        x = x.copy()
        x.flags.writeable = False
        return x
    raise ValueError(layout)


LAYOUTS = ["contiguous", "unaligned", "transposed", "gaps", "backwards", "readonly"]


def repeated(row, count):
    """`count` rows that are one row in memory: a leading stride of zero."""
    return as_strided(row, (count, *row.shape), (0, *row.strides), writeable=False)


# ---- oracles -------------------------------------------------------------------------------------


def to_torch(x):
    """A tensor with the values and the dtype of an array; numpy itself has no bfloat16."""
    if not isinstance(x, np.ndarray):
        return x
    x = np.array(x)
    return (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        if x.dtype == bfloat16
        else torch.from_numpy(x)
    )


def from_torch(x):
    return x.to(torch.float64).numpy()


def torch_rope(x, *, layout, positions=None, offset=0, theta=10000.0, rotary_dim=None):
    """As models written in PyTorch do it: angles, cos and sin in float32, the rest in x's dtype."""
    rotary_dim = rotary_dim or x.shape[-1]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if positions is None:
        positions = torch.arange(offset, offset + x.shape[-2])
    angle = positions[..., None].to(wide) * theta ** (
        -torch.arange(0, rotary_dim, 2).to(wide) / rotary_dim
    )
    if angle.ndim == 3:
        angle = angle.reshape(angle.shape[0], *(1,) * (x.ndim - 3), *angle.shape[1:])
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if layout == "half":
        a, b = turned.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
    a, b = turned[..., 0::2], turned[..., 1::2]
    return torch.cat(
        [torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2), rest], -1
    )


TORCH = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "softmax": lambda x, axis=-1, temperature=1.0: F.softmax(x / temperature, axis),
    "linear": F.linear,
    "rms_norm": lambda x, weight=None, *, eps: F.rms_norm(x, x.shape[-1:], weight, eps),
    "layer_norm": lambda x, weight=None, bias=None, *, eps: F.layer_norm(
        x, x.shape[-1:], weight, bias, eps
    ),
    "rope": torch_rope,
    "scaled_dot_product_attention": lambda q, k, v, mask=None, **kwargs: (
        F.scaled_dot_product_attention(
            q, k, v, mask, enable_gqa=q.shape[:-2] != k.shape[:-2], **kwargs
        )
    ),
}

_answers = {}


def remembered(function, *args, **kwargs):
    """function(...), computed once: every instruction set asks the slow oracles the same."""
    arrays = [
        (x.tobytes(), x.shape, str(x.dtype)) if isinstance(x, np.ndarray) else repr(x)
        for x in (*args, *kwargs.values())
    ]
    key = (function, *kwargs, *arrays)
    if key not in _answers:
        if len(_answers) > 500:
            _answers.clear()
        _answers[key] = function(*args, **kwargs)
    return _answers[key]


class Oracle:
    """oracle(name of an operation, ...): the reference in float64, or PyTorch in its dtype."""

    def __init__(self, name):
        self.name = name
        # PyTorch rounds too, in 16 bits more often than we: attention's weights, rope's products.
        self.slack = 1 if name == "reference" else 4

    def __call__(self, op, *args, **kwargs):
        ask = ask_reference if self.name == "reference" else ask_torch
        return remembered(ask, op, *args, **kwargs)


def ask_reference(op, *args, **kwargs):
    return getattr(reference, op)(*args, **kwargs)


def ask_torch(op, *args, **kwargs):
    kwargs = {name: to_torch(value) for name, value in kwargs.items()}
    return from_torch(TORCH[op](*map(to_torch, args), **kwargs))


# ---- tolerances ----------------------------------------------------------------------------------

# How far a result may lie from float64: a multiple of the machine epsilon of the arithmetic, which
# is float64 for float64 and float32 for the rest, times a scale, which is the expected value itself
# unless the test gives the magnitude of what was added up. A 16-bit result may lie another half
# unit away, because it is rounded once more, at the store.
TOLERANCE = {
    "silu": 4,  # exp (1 ulp), an addition, a division, a product
    "gelu": 8,  # scale |x|: erf and tanh are good to an ulp of 1, not to one of their small values
    "relu": 0,  # picks one of two numbers
    "swiglu": 5,  # silu and one product
    "softmax": 16,  # exp(x - max) carries the rounding of x - max, up to 10 here, and of the sum
    "rms_norm": 4,  # the errors of the squares average out; a root, a division, two products
    "layer_norm": 6,  # scale |x - mean| + |mean|: the subtraction of the mean adds to rms_norm's
    "linear": 4,  # scale |x|·|w|: a chain of K additions in blocks of 256
    "rope": 4,  # scale |a| + |b|: cos and sin come from float64; two products and a sum
    "scaled_dot_product_attention": 16,  # scale weights·|v|: exp carries the scores' rounding
    "scores": 8,  # scale |q|·|k|: one dot product and the scale
    "exact": 0,  # moves numbers, computes none
}


def epsilon(dtype):
    return float(ml_dtypes.finfo(dtype).eps)


def arithmetic(dtype):
    return np.float64 if dtype == np.float64 else np.float32


def tolerance(op, dtype):
    rounding = epsilon(dtype) / 2 if dtype in SIXTEEN_BITS and TOLERANCE[op] else 0
    return TOLERANCE[op] * epsilon(arithmetic(dtype)) + rounding


def assert_close(got, want, op, *, scale=None, slack=1):
    """NaN where NaN is wanted, infinities equal, the rest within slack times the tolerance."""
    want = float64(want)
    assert got.shape == want.shape, f"shape {got.shape}, wanted {want.shape}"
    info = ml_dtypes.finfo(got.dtype)
    exact = float64(got)
    scale = np.abs(want) if scale is None else np.broadcast_to(scale, want.shape)
    # Around zero numbers stop getting finer, exp(x) too, which silu multiplies by x, up to 745.
    floor = float(info.smallest_subnormal)
    if op in ("silu", "swiglu"):
        floor += 1000 * float(np.finfo(arithmetic(got.dtype)).smallest_subnormal)
    with np.errstate(invalid="ignore", divide="ignore"):
        allowed = slack * (tolerance(op, got.dtype) * scale + floor)
        overflow = np.abs(want) > float(info.max) * (1 + float(info.eps) / 4)  # half a unit beyond
        want = np.where(overflow, np.copysign(np.inf, want), want)
        error = np.abs(exact - want)
        right = (error <= allowed) | (exact == want) | (np.isnan(exact) & np.isnan(want))
        excess = np.nan_to_num(np.where(right, 0, error / allowed), nan=np.inf)
    if right.all():
        return
    at = np.unravel_index(np.argmax(excess), excess.shape)
    raise AssertionError(
        f"{op} {got.dtype} {got.shape}: {(~right).sum()} wrong; the worst, at "
        f"{tuple(map(int, at))}, is {exact[at]!r}, wanted {want[at]!r}: "
        f"{excess[at]:.3g} times the tolerance away"
    )


def sharper(op, *args, **kwargs):
    """The reference in extended precision: float64 is no judge of float64."""
    if np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps:
        pytest.skip("this machine has no floating-point format wider than float64")

    def erfc(x):
        value = mpmath.erfc(mpmath.mpf(float(x)) + mpmath.mpf(float(x - np.float64(x))))
        return np.longdouble(float(value)) + np.longdouble(float(value - float(value)))

    with (
        mock.patch.object(reference.forward, "float64", lambda x: np.asarray(x, np.longdouble)),
        mock.patch.object(reference.forward, "erfc", np.vectorize(erfc, otypes=[np.longdouble])),
    ):
        return getattr(reference, op)(*args, **kwargs)


def rms_error(got, exact):
    return np.sqrt(np.mean((float64(got) - exact) ** 2))


def assert_as_accurate_as_torch(op, ours, problems):
    """The contract: against float64, RMS error over random problems at most 1.5 times PyTorch's.

    `problems` holds (args, kwargs) of calls in one dtype; `ours` is the operation as we have it.
    """
    error, yardstick = [], []
    for args, kwargs in problems:
        judge = sharper if args[0].dtype == np.float64 else ask_reference
        exact = remembered(judge, op, *args, **kwargs)
        error.append(rms_error(ours(*args, **kwargs), exact))
        yardstick.append(rms_error(Oracle("torch")(op, *args, **kwargs), exact))
    mine, torchs = np.sqrt(np.mean(np.square(error))), np.sqrt(np.mean(np.square(yardstick)))
    assert mine <= 1.5 * torchs, (
        f"{op}: RMS error {mine:.3g}, PyTorch's {torchs:.3g}: {mine / torchs:.2f} times"
    )
