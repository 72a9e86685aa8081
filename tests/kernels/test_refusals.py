"""Every refusal of every function, with its whole message: the table is refusals.txt.

A message is what a newcomer reads most, so a change of one is a change of the table.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import simdformer as sf
from simdformer import _core, nn  # noqa: F401 - the table calls them
from simdformer.experts import combine_experts, expert_linear, top_k  # noqa: F401
from simdformer.models import KVCache  # noqa: F401
from simdformer.text import Sampler  # noqa: F401

f16, f32, f64, bf16 = np.float16, np.float32, np.float64, ml_dtypes.bfloat16


def zeros(*shape, dtype=f32):
    return np.zeros(shape, dtype)


def read_only(*shape):
    x = zeros(*shape)
    x.flags.writeable = False
    return x


x, w = zeros(2, 4), zeros(4)
matrix = zeros(3, 4)
q, kv, long = zeros(2, 4, 5, 8), zeros(2, 2, 5, 8), zeros(2, 2, 7, 8)
head = zeros(5, 8)
buffer = zeros(40)
few_bits = sf.quantize(zeros(3, 64), "q4_0")
grouped = sf.QuantizedWeight.from_groups(zeros(3, 64, dtype=np.uint8), zeros(3, 2))


def sdpa(query=q, key=kv, value=kv, *args, **kwargs):
    return sf.scaled_dot_product_attention(query, key, value, *args, **kwargs)


def sdpa_backward(**changes):
    out, lse = sdpa(return_lse=True)
    given = {"grad": out, "query": q, "key": kv, "value": kv, "out": out, "lse": lse}
    return sf.backward.scaled_dot_product_attention(**given | changes)


def paged(**changes):
    """Two queries of two sequences, each with three of nine pages of 16 positions."""
    given = {"query": zeros(2, 4, 2, 16), "key": zeros(9, 2, 16, 16), "value": zeros(9, 2, 16, 8)}
    table = np.array([[5, 0, 2], [1, 8, 3]])
    return sf.scaled_dot_product_attention(**given | {"block_table": table} | changes)


def mixture(**changes):
    gate = zeros(5, 64, 32)
    given = {"router": zeros(5, 32), "gate": gate, "up": gate, "down": zeros(5, 32, 64)}
    return nn.MixtureOfExperts(**given | {"num_experts_per_tok": 2} | changes)


class Tensor:
    """Says that it speaks DLPack, and then does as it is told."""

    def __init__(self, device=(1, 0), capsule=None, error=None):
        self.device, self.capsule, self.error = device, capsule, error

    def __dlpack__(self, **_):
        if self.error is not None:
            raise self.error
        return self.capsule

    def __dlpack_device__(self):
        return self.device


class Unreadable:
    """An array whose reading fails with a message of its own."""

    def __init__(self, message):
        self.message = message

    def __array__(self, dtype=None, copy=None):
        raise ValueError(self.message)


square, head6 = zeros(6, 6), zeros(2, 6)
yarn = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
llama3 = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read_table():
    """(section, call, message) of each entry: a line that begins with >>>, and the next one."""
    section, entries = "", []
    lines = iter(Path(__file__).with_name("refusals.txt").read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("# ----"):
            section = line.strip("#- ")
        elif line.startswith(">>> "):
            entries.append((section, line[4:], next(lines)))
        else:
            assert not line or line.startswith("#"), f"refusals.txt: {line!r} belongs to no call"
    return entries


REFUSALS = read_table()


@pytest.mark.parametrize(
    ("call", "message"),
    [entry[1:] for entry in REFUSALS],
    ids=[f"{section}: {call}" for section, call, _ in REFUSALS],
)
def test_refusal(call, message):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the message names the kind
        eval(call, globals())
    assert f"{type(caught.value).__name__}: {caught.value}" == message


# Each argument that is an array of floats, with the rest of its call.
ARGUMENTS = {
    "silu: x": lambda a: sf.silu(a),
    "gelu: x": lambda a: sf.gelu(a),
    "relu: x": lambda a: sf.relu(a),
    "swiglu: gate": lambda a: sf.swiglu(a, x),
    "swiglu: up": lambda a: sf.swiglu(x, a),
    "softmax: x": lambda a: sf.softmax(a),
    "rms_norm: x": lambda a: sf.rms_norm(a, eps=0.0),
    "rms_norm: weight": lambda a: sf.rms_norm(x, a, eps=0.0),
    "layer_norm: x": lambda a: sf.layer_norm(a, eps=0.0),
    "layer_norm: weight": lambda a: sf.layer_norm(x, a, eps=0.0),
    "layer_norm: bias": lambda a: sf.layer_norm(x, None, a, eps=0.0),
    "rope: x": lambda a: sf.rope(a, layout="half"),
    "rope: inv_freq": lambda a: sf.rope(x, layout="half", inv_freq=a),
    "linear: x": lambda a: sf.linear(a, matrix),
    "linear: weight": lambda a: sf.linear(x, a),
    "linear: weight[1]": lambda a: sf.linear(x, [matrix, a]),
    "linear: bias": lambda a: sf.linear(x, matrix, a),
    "linear: bias[0]": lambda a: sf.linear(x, [matrix], [a]),
    "pack: weight": lambda a: sf.pack(a),
    "embedding: weight": lambda a: sf.embedding([0], a),
    "repeat_kv: x": lambda a: sf.repeat_kv(a, 2),
    "log_softmax: x": lambda a: sf.log_softmax(a),
    "cross_entropy: logits": lambda a: sf.cross_entropy(a, [0]),
    "backward.silu: grad": lambda a: sf.backward.silu(a, x),
    "backward.silu: x": lambda a: sf.backward.silu(x, a),
    "backward.swiglu: grad": lambda a: sf.backward.swiglu(a, x, x),
    "backward.swiglu: gate": lambda a: sf.backward.swiglu(x, a, x),
    "backward.swiglu: up": lambda a: sf.backward.swiglu(x, x, a),
    "backward.softmax: grad": lambda a: sf.backward.softmax(a, x),
    "backward.softmax: output": lambda a: sf.backward.softmax(x, a),
    "backward.rms_norm: grad": lambda a: sf.backward.rms_norm(a, x, eps=0.0),
    "backward.rms_norm: weight": lambda a: sf.backward.rms_norm(x, x, a, eps=0.0),
    "backward.layer_norm: bias": lambda a: sf.backward.layer_norm(x, x, None, a, eps=0.0),
    "backward.rope: grad": lambda a: sf.backward.rope(a, layout="half"),
    "backward.linear: grad": lambda a: sf.backward.linear(a, x, matrix),
    "backward.linear: x": lambda a: sf.backward.linear(zeros(2, 3), a, matrix),
    "backward.linear: weight": lambda a: sf.backward.linear(zeros(2, 3), x, a),
    "backward.cross_entropy: logits": lambda a: sf.backward.cross_entropy(a, [0]),
    "scaled_dot_product_attention: query": lambda a: sdpa(a),
    "scaled_dot_product_attention: key": lambda a: sdpa(q, a),
    "scaled_dot_product_attention: value": lambda a: sdpa(q, kv, a),
    "scaled_dot_product_attention: attn_mask": lambda a: sdpa(q, kv, kv, a),
    "scaled_dot_product_attention: sinks": lambda a: sdpa(sinks=a),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize(
    ("array", "error", "found"),
    [
        (np.arange(4), TypeError, "has dtype int64"),
        (zeros(4, dtype=">f4"), TypeError, "is byte-swapped (dtype >f4)"),
        (np.ma.zeros(4, f32), TypeError, "is a masked array"),
        (zeros(4, dtype=object), TypeError, "has dtype object"),
        (zeros(4, dtype=[("a", "f4")]), TypeError, "has dtype [('a', '<f4')]"),
        (torch.zeros(4, dtype=torch.int32), TypeError, "has dtype int32"),
        (torch.zeros(4, requires_grad=True), BufferError, "requires a gradient"),
        (Tensor(device=(2, 0)), BufferError, "lies on DLPack device type 2"),
    ],
    ids=[
        "int64",
        "swapped",
        "masked",
        "object",
        "structured",
        "torch int",
        "requires_grad",
        "cuda",
    ],
)
def test_every_argument_is_read_alike(argument, array, error, found):
    with pytest.raises(error) as caught:
        ARGUMENTS[argument](array)
    assert str(caught.value).startswith(f"{argument} {found}")
    assert ", needs " in str(caught.value)


@pytest.mark.parametrize("ragged", [[[1.0], [2.0, 3.0]], [[1.0, [2.0]]]])
def test_lists_of_unequal_length(ragged):
    """With numpy's own explanation inside, which is not ours to pin."""
    with pytest.raises(
        ValueError, match=r"^silu: x cannot be read as an array \(.*\), needs an array$"
    ):
        sf.silu(ragged)
    with pytest.raises(ValueError, match=r"^embedding: ids cannot be read .*, needs integers$"):
        sf.embedding(ragged, matrix)


@pytest.mark.parametrize(
    "call", ["sf.silu()", "sf.rms_norm(x)", "sf.rope(x)", "sf.silu(x, zeros(2, 4))"]
)
def test_python_itself_refuses_what_the_signature_does_not_have(call):
    with pytest.raises(TypeError, match=r"(silu|rms_norm|rope)\(\) (missing|takes)"):
        eval(call, globals())


def test_after_a_refusal_nothing_was_written():
    out = np.full((2, 4), 7.0, f32)
    for call in (
        lambda: sf.rms_norm(x, zeros(3), eps=0.0, out=out),
        lambda: sf.rope(x, layout="half", positions=[0], out=out),
        lambda: sf.linear(x, [zeros(4, 4), zeros(3, 5)], out=[out, None]),
        lambda: sf.embedding([0, 9], matrix, out=out),
        lambda: sdpa(zeros(2, 4), zeros(2, 4), zeros(2, 4), key_lengths=3, out=out),
    ):
        with pytest.raises((ValueError, IndexError)):
            call()
        assert (out == 7).all()
