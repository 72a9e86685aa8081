"""`simdformer.torch`: functions of tensors give what those of arrays give, on the same memory."""

import inspect
import pydoc
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import simdformer as sf
import simdformer.torch as sft
from conftest import same_bits
from simdformer.tensors.memory import array_of, tensor_of
from simdformer.tensors.wrapping import on_tensors

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FUNCTIONS = [name for name in sft.__all__ if inspect.isfunction(getattr(sft, name))]

IDS = torch.tensor([[2, 0], [1, 1]])
LABELS = torch.tensor([3, 0, -100, 7, 2, 2])


def heads(x):
    """(2,6,8) -> (2,2,6,4)"""
    return x.reshape(2, 6, 2, 4).transpose(1, 2)


@pytest.fixture
def operands():
    torch.manual_seed(2)
    return torch.randn(2, 6, 8), torch.randn(8, 8)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.int64, torch.uint8], ids=str)
def test_nothing_is_copied_on_the_way_in_or_out(dtype):
    seen = []

    def looked_at(x):
        seen.append(x)
        return x

    whole = torch.arange(60).reshape(3, 4, 5).to(dtype)
    for tensor in (whole, whole.transpose(0, 2), whole[1:, ::2, 1:], whole[0, 0, 0], whole[:, :0]):
        got = on_tensors(looked_at)(tensor)
        assert isinstance(seen[-1], np.ndarray)
        assert got.dtype is dtype
        assert torch.equal(got, tensor)
        assert got.stride() == tensor.stride() or not tensor.numel()
        assert got.data_ptr() == tensor.data_ptr() or not tensor.numel()
        if dtype.is_floating_point and tensor.numel():
            assert seen[-1].ctypes.data == tensor.data_ptr()


def test_results_outlive_what_they_were_made_of(operands):
    got = sft.relu(operands[0].clone())
    keep = sft.rms_norm(got, eps=1e-5)
    want = keep.clone()
    del got
    torch.randn(10_000)
    assert torch.equal(keep, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_layout_are_read_where_they_lie(dtype, operands):
    x = torch.randn(4, 12, 16).to(dtype)
    for part in (x.transpose(0, 1), x[::2, 1:], x[..., ::2], x[:1].expand(3, 12, 16), x[0, 0]):
        assert torch.equal(sft.silu(part), sft.silu(part.clone()))
    imaginary = torch.complex(x[..., :8].float(), x[..., 8:].float()).conj().imag
    assert imaginary.is_neg()  # its memory has the other sign
    assert torch.equal(sft.relu(imaginary), sft.relu(imaginary.clone()))


# ---- out -----------------------------------------------------------------------------------------


def test_out_comes_back(operands):
    x, w = operands
    out = torch.empty(2, 8, 6).transpose(1, 2)
    assert sft.linear(x, w, out=out) is out
    assert torch.equal(out, sft.linear(x, w))
    assert sft.silu(out, out=out) is out
    for brings in ("return_weights", "return_lse"):
        out = torch.empty(2, 2, 6, 4)
        got = sft.scaled_dot_product_attention(*[heads(x)] * 3, out=out, **{brings: True})
        assert type(got) is tuple
        assert got[0] is out
        assert isinstance(got[1], torch.Tensor)
    outs = [torch.empty(2, 6, 8), None]
    got = sft.linear(x, [w, w[:3]], out=outs)
    assert got[0] is outs[0]
    assert torch.equal(got[1], sft.linear(x, w[:3]))
    array = np.empty((2, 6, 8), np.float32)
    assert sft.relu(x, out=array) is array
    with pytest.raises(ValueError, match="softmax: out shares memory with x"):
        sft.softmax(x[0], out=torch.as_strided(x, (6, 8), (8, 1), 1))
    with pytest.raises(TypeError, match="relu: out has dtype bfloat16, needs float32"):
        sft.relu(x, out=torch.empty(2, 6, 8, dtype=torch.bfloat16))


# ---- gradients -----------------------------------------------------------------------------------


def test_a_parameter_anywhere_gets_its_gradient(operands):
    x, w = operands
    for call, theirs in (
        (lambda p: sft.linear(x, p), lambda p: F.linear(x, p)),
        (lambda p: sft.linear(x, [w, p])[1], lambda p: F.linear(x, p)),
        (lambda p: sft.linear(x, w, bias=p[0]), lambda p: F.linear(x, w, p[0])),
        (
            lambda p: sum(sft.linear(x, [w, p], [None, p[0]])),
            lambda p: F.linear(x, w) + F.linear(x, p, p[0]),
        ),
        (lambda p: sft.embedding(IDS.tolist(), p), lambda p: F.embedding(IDS, p)),
        (
            lambda p: sft.rms_norm(x.numpy(), p[0], eps=1e-5),
            lambda p: F.rms_norm(x, (8,), p[0], 1e-5),
        ),
    ):
        parameter = torch.nn.Parameter(w)
        got, want = (
            torch.autograd.grad(way(parameter).square().sum(), parameter)[0]
            for way in (call, theirs)
        )
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


def test_what_has_no_gradient_says_so(operands):
    x, parameter = operands[0], torch.nn.Parameter(operands[1])
    with pytest.raises(RuntimeError, match="relu: no gradient: what is written into out"):
        sft.relu(parameter, out=torch.empty(8, 8))
    for make in (sft.pack, lambda one: sft.quantize(one, "q8_0")):
        with pytest.raises(BufferError, match=r"weight requires a gradient, .*weight\.detach\(\)"):
            make(torch.nn.Parameter(torch.ones(4, 32)))
    loss, lse = sft.cross_entropy(x[0].clone().requires_grad_(), LABELS, return_lse=True)
    with pytest.raises(RuntimeError, match="cross_entropy: no gradient: the loss alone has one"):
        (loss + lse.sum()).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_and_quantised_weights_hand_gradients_on(dtype):
    """To x, to a bias, and to a weight beside them that is a tensor; a quantised one counts as the
    numbers that it holds."""
    torch.manual_seed(2)
    x, bias, plain = torch.randn(3, 64), torch.randn(5), torch.randn(4, 64)
    wanting = [one.to(dtype).requires_grad_() for one in (x, bias, plain)]
    weight = torch.randn(5, 64).to(dtype)
    packed, few = sft.pack(weight), sft.quantize(weight, "q8_0")
    same = torch.from_numpy(few.dequantize()).to(dtype)

    def of(function, one, two):
        x, bias, plain = wanting
        alone = function(x, two, bias)
        each = function(x, [one, plain, two], [bias, None, None])
        return sum(one.float().square().sum() for one in [alone, *each])

    def in_pytorch(x, weight, bias):
        if not isinstance(weight, list):
            return F.linear(x, weight, bias)
        return [F.linear(x, *pair) for pair in zip(weight, bias, strict=True)]

    got = torch.autograd.grad(of(sft.linear, packed, few), wanting)
    want = torch.autograd.grad(of(in_pytorch, weight, same), wanting)
    for one, other in zip(got, want, strict=True):
        assert one.dtype is dtype
        close = 1e-3 if dtype is torch.float32 else 3e-2  # x is rounded to 16-bit integers
        torch.testing.assert_close(one, other, rtol=close, atol=close * float(other.abs().max()))
    with pytest.raises(RuntimeError, match=r"^backward\.linear: no gradient: there is no second"):
        torch.autograd.grad(sft.linear(wanting[0], few).sum(), wanting[0], create_graph=True)
    with pytest.raises(RuntimeError, match="linear: no gradient: what is written into out"):
        sft.linear(wanting[0], few, out=torch.empty(3, 5, dtype=dtype))
    compiled = torch.compile(lambda x: sft.linear(x * 2, few).sum(), backend="eager")
    (twice,) = torch.autograd.grad(compiled(wanting[0]), wanting[0])
    assert torch.equal(
        twice, 2 * torch.autograd.grad(sft.linear(wanting[0], few).sum(), wanting[0])[0]
    )


def test_the_loss_of_a_head_needs_no_gradients_where_none_are_wanted(operands, monkeypatch):
    x, weight = operands[0], torch.nn.Parameter(operands[1])
    needs, made = [], sf.loss.linear_cross_entropy
    monkeypatch.setattr(
        sf.loss,
        "linear_cross_entropy",
        lambda *args, **given: needs.append(given["needs"]) or made(*args, **given),
    )
    loss = sft.linear_cross_entropy(x[0], weight, LABELS)
    assert loss.requires_grad
    with torch.no_grad():
        assert torch.equal(sft.linear_cross_entropy(x[0], weight, LABELS), loss)
    sft.linear_cross_entropy(x[0].clone().requires_grad_(), weight.detach(), LABELS, count=9)
    assert needs == [["weight"], [], ["x"]]
    with pytest.raises(TypeError, match="linear_cross_entropy: weight is packed"):
        sft.linear_cross_entropy(x[0], sft.pack(operands[1]), LABELS)
    with pytest.raises(ValueError, match="linear_cross_entropy: labels has none that counts"):
        sft.linear_cross_entropy(x[0], weight, LABELS * 0 - 100)


def test_inference_tensors_are_tensors(operands):
    with torch.inference_mode():
        x = operands[0].clone()
        y = sft.relu(x)
    assert torch.equal(sft.relu(x), y)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.zeros(3, device="meta"), BufferError, "rms_norm: x does not hand out its memory"),
        (torch.eye(3).to_sparse(), BufferError, "rms_norm: x does not hand out its memory"),
        (torch.zeros(3, dtype=torch.int32), TypeError, "rms_norm: x has dtype int32, needs"),
        (torch.zeros(3, dtype=torch.float8_e5m2), TypeError, "rms_norm: x has DLPack type code"),
        (torch.zeros(3, dtype=torch.complex64), TypeError, "rms_norm: x has dtype complex64"),
    ],
    ids=["meta", "sparse", "int", "float8", "complex"],
)
def test_what_no_kernel_takes_is_refused_by_name(tensor, error, message):
    with pytest.raises(error, match=re.escape(message)):
        sft.rms_norm(tensor, eps=1e-5)
    with pytest.raises(error, match=r"linear: weight\[1\] "):
        sft.linear(torch.zeros(3), [torch.zeros(2, 3), tensor])


def test_wrong_calls_are_refused_as_those_of_arrays():
    x = torch.zeros(2, 4)
    for call, error in (
        (lambda f: f.rms_norm(x), TypeError),
        (lambda f: f.relu(x, x, x), TypeError),
        (lambda f: f.relu(x, colour="red"), TypeError),
        (lambda f: f.rope(x, layout="both"), ValueError),
        (lambda f: f.linear(x, x[:, :3]), ValueError),
        (lambda f: f.embedding(torch.tensor([7]), x), IndexError),
        (lambda f: f.causal_mask(2, 3), ValueError),
        (lambda f: f.embedding([1], x, dtype=torch.int8), TypeError),
    ):
        with pytest.raises(error) as ours:
            call(sft)
        if "int8" not in str(ours.value):
            with pytest.raises(error) as theirs:
                call(sf)
            assert str(ours.value) == str(theirs.value)


# ---- what is no tensor ---------------------------------------------------------------------------


def test_dtypes_of_pytorch(operands):
    weight = operands[1].to(torch.bfloat16)
    assert sft.embedding(IDS, weight, dtype=torch.float16).dtype is torch.float16
    assert sft.embedding(IDS, weight, dtype="float32").dtype is torch.float32
    mask = sft.causal_mask(2, 4, offset=2, dtype=torch.bfloat16)
    assert mask.dtype is torch.bfloat16
    assert torch.equal(mask == 0, torch.ones(2, 4).tril(2).bool())
    assert sft.causal_mask(3, 3).dtype is torch.bool


def test_frequencies_are_tensors(operands):
    table = sft.rope_frequencies(8, theta=1e4)
    assert isinstance(table, sft.RopeFrequencies)
    assert isinstance(table.inv_freq, torch.Tensor)
    got = sft.rope(operands[0], layout="half", inv_freq=table.inv_freq)
    assert torch.equal(got, sft.rope(operands[0], layout="half"))


def test_packed_and_quantised_weights(operands):
    x = torch.randn(3, 32)
    weight = torch.randn(5, 32)
    packed, few = sft.pack(weight), sft.quantize(weight, "q8_0")
    assert same_bits(sft.linear(x, packed).numpy(), sf.linear(x, packed))
    for one, two in zip(sft.linear(x, [packed, few]), (packed, few), strict=True):
        assert torch.equal(one, sft.linear(x, two))
    assert torch.equal(sft.embedding(IDS, few), tensor_of(few.dequantize())[IDS])


def test_lists_and_arrays_are_taken(operands):
    assert torch.equal(sft.relu([-1.0, 2.0]), torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert torch.equal(sft.relu(operands[0].numpy()), sft.relu(operands[0]))


# ---- threads, help, imports ----------------------------------------------------------------------


def test_threads_at_once_give_the_same():
    torch.manual_seed(3)
    x, w = torch.randn(64, 256), torch.randn(256, 256)
    want = sft.linear(x, w)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: sft.linear(x, w), range(40)):
            assert torch.equal(got, want)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if hasattr(sf, name)])
def test_signatures_are_those_of_arrays_with_tensors_in_them(name):
    ours = inspect.signature(getattr(sft, name))
    theirs = inspect.signature(getattr(sf, name))
    without = ["needs"] if name == "linear_cross_entropy" else []  # which autograd knows
    wanted = [one for one in theirs.parameters.values() if one.name not in without]
    assert list(ours.parameters) == [one.name for one in wanted]
    for one, other in zip(ours.parameters.values(), wanted, strict=True):
        assert (one.kind, one.default) == (other.kind, other.default)
    if name not in ("pack", "quantize", "quantization_types"):  # which give what they gave
        assert "Array" not in str(ours)


def test_help_reads_well():
    text = pydoc.render_doc(sft.rms_norm, renderer=pydoc.plaintext)
    assert (
        "rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float, "
        "out: Tensor | None = None) -> Tensor" in text
    )
    assert "`simdformer.rms_norm` on tensors" in text
    assert "eps has no default" in text
    assert ">>>" not in text
    assert "Examples" not in sft.scaled_dot_product_attention.__doc__
    assert dir(sft) == sorted(sft.__all__)
    for name in FUNCTIONS:
        assert getattr(sft, name).__module__.startswith("simdformer")


def test_pickles_are_by_name():
    import pickle

    assert pickle.loads(pickle.dumps(sft.rms_norm)) is sft.rms_norm


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_nobody_needs_torch_who_does_not_ask_for_it():
    done = run(
        "import sys; sys.modules['torch'] = None\n"
        "import simdformer, simdformer.nn, simdformer.models\n"
        "import simdformer.torch"
    )
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: simdformer.torch: the package torch is missing; pip install torch"
    )


@pytest.mark.slow
def test_torch_compile_is_not_loaded_for_who_does_not_compile():
    """It takes seconds."""
    done = run(
        "import sys, torch\nimport simdformer.torch as sft\nsft.relu(torch.zeros(3))\n"
        "assert 'torch._dynamo' not in sys.modules, 'loaded'"
    )
    assert done.returncode == 0, done.stderr


def test_memory_of_a_tensor_and_of_an_array(operands):
    for dtype in DTYPES:
        tensor = operands[0].to(dtype)
        again = tensor_of(array_of(tensor))
        assert again.data_ptr() == tensor.data_ptr()
        assert again.dtype is dtype
