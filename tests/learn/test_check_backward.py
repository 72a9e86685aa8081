"""`check` of gradients: what is right is right, in whatever way it is written."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal, to_torch
from right_answers import Numpy

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


def by_autograd(forward, grad, *inputs):
    """The gradient of the last of the inputs, by PyTorch."""
    *others, x = map(to_torch, inputs)
    x.requires_grad_(True)
    forward(*others, x).backward(to_torch(grad))
    return x.grad


def softmax_by_jacobian(g, p):
    jacobian = np.einsum("...i,ij->...ij", p, np.eye(p.shape[-1])) - p[..., None] * p[..., None, :]
    return np.einsum("...ij,...j->...i", jacobian, g)


def softmax_in_place(g, p):
    """Karpathy's: the gradient of the scores in the memory of a copy of the shares'."""
    dx = g * p
    dx -= p * dx.sum(-1, keepdims=True)
    return dx


def log_softmax_by_jacobian(g, y):
    return np.einsum("...ij,...i->...j", np.eye(y.shape[-1]) - np.exp(y)[..., None, :], g)


def silu_by_two_terms(g, x):
    s = 1 / (1 + np.exp(-x))
    return g * s + g * x * s * (1 - s)


def silu_of_output(g, x):
    """As Triton kernels write it: y + s (1 - y)."""
    s = 1 / (1 + np.exp(-x))
    y = x * s
    return g * (y + s * (1 - y))


def relu_masked(g, x):
    dx = g.copy()
    dx[x <= 0] = 0
    return dx


def rope_by_conjugate(g):
    angles = np.outer(np.arange(g.shape[-2]), 1 / 100.0 ** (np.arange(0, 16, 2) / 16))
    z = (g[..., :8] + 1j * g[..., 8:]) * np.exp(1j * angles).conj()
    return np.concatenate([z.real, z.imag], -1)


def rope_by_rotate_half(g):
    """PyTorch's: the transpose of rotate_half has the minus in the other half."""
    angles = np.outer(np.arange(g.shape[-2]), 1 / 100.0 ** (np.arange(0, 16, 2) / 16))
    cos, sin = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)
    a, b = np.split(g * sin, 2, -1)
    return g * cos + np.concatenate([b, -a], -1)


def embedding_by_one_hot(g, ids, rows):
    return np.einsum("btv,bte->ve", np.eye(rows)[ids], g)


def embedding_by_loop(g, ids, rows):
    table = np.zeros((rows, g.shape[-1]), g.dtype)
    for at, row in zip(ids.ravel()[::-1], g.reshape(-1, g.shape[-1])[::-1], strict=True):
        table[at] += row
    return table


def softmax(rng):
    return sf.backward.softmax, (normal(rng, 3, 5, 7), Numpy().softmax(normal(rng, 3, 5, 7))), {}


def log_softmax(rng):
    y = np.log(Numpy().softmax(normal(rng, 3, 5, 7)))
    return sf.backward.log_softmax, (normal(rng, 3, 5, 7), y), {}


def elementwise(name, **kwargs):
    def made(rng):
        return getattr(sf.backward, name), (normal(rng, 3, 40), normal(rng, 3, 40)), kwargs

    return made


def rope(rng):
    return sf.backward.rope, (normal(rng, 2, 9, 16),), {"layout": "half", "theta": 100.0}


def embedding(rng):
    ids = rng.integers(0, 6, (3, 8))
    return sf.backward.embedding, (normal(rng, 3, 8, 5), ids, 11), {}


def repeat_kv(rng):
    return sf.backward.repeat_kv, (normal(rng, 2, 6, 4, 5), 3), {}


tanh = {"approximate": "tanh"}
RIGHT = [
    (softmax, softmax_by_jacobian),
    (softmax, softmax_in_place),
    (softmax, lambda g, p: by_autograd(lambda x: torch.softmax(x, -1), g, np.log(p))),
    (log_softmax, log_softmax_by_jacobian),
    (log_softmax, lambda g, y: g - np.exp(y) * g.sum(-1, keepdims=True)),
    (log_softmax, lambda g, y: by_autograd(lambda x: F.log_softmax(x, -1), g, y)),
    (elementwise("silu"), silu_by_two_terms),
    (elementwise("silu"), silu_of_output),
    (elementwise("silu"), lambda g, x: by_autograd(F.silu, g, x)),
    (elementwise("gelu"), lambda g, x: by_autograd(F.gelu, g, x)),
    (elementwise("gelu", **tanh), lambda g, x: by_autograd(lambda y: F.gelu(y, **tanh), g, x)),
    (elementwise("relu"), relu_masked),
    (elementwise("relu"), lambda g, x: by_autograd(F.relu, g, x)),
    (rope, rope_by_conjugate),
    (rope, rope_by_rotate_half),
    (embedding, embedding_by_one_hot),
    (embedding, embedding_by_loop),
    (repeat_kv, lambda g, n: g.reshape(2, 2, n, 4, 5).sum(2)),
    (repeat_kv, lambda g, n: g[:, 0::n] + g[:, 1::n] + g[:, 2::n]),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("case", range(len(RIGHT)))
def test_right_gradients_are_right(case, dtype, rng):
    """Computed in the dtype itself where that is wide, in float32 and rounded where it is not."""
    made, mine = RIGHT[case]
    op, args, kwargs = made(rng)
    given = [x.astype(dtype) if getattr(x, "dtype", None) == np.float32 else x for x in args]
    wide = np.result_type(np.float32, dtype) if np.dtype(dtype).itemsize > 2 else np.float32
    used = [x.astype(wide) if getattr(x, "dtype", None) == dtype else x for x in given]
    found = np.asarray(mine(*used)).astype(dtype)
    report = sf.check(op, found, *given, **kwargs)
    assert report.ok, report
    assert sf.check(f"backward.{op.__name__}", found, *given, **kwargs).ok


def test_a_function_is_called(rng):
    op, args, _ = softmax(rng)
    assert sf.check(op, softmax_in_place, *args)
    report = sf.check(op, lambda g, p: p * g, *args)
    assert [one.name for one in report.diagnosis] == ["softmax_backward.row_sum_missing"]
    assert repr(report).startswith("✗ backward.softmax (3, 5, 7) float32: wrong")


def test_two_mistakes_at_once(rng):
    """The sum along another axis, and the temperature forgotten."""
    op, (g, p), _ = softmax(rng)
    mine = p * (g - (g * p).sum(1, keepdims=True))
    report = sf.check(op, mine, g, p, temperature=0.5)
    assert {one.name for one in report.diagnosis} == {
        "softmax_backward.another_axis",
        "softmax_backward.no_temperature",
    }


def test_what_is_summed_into_an_array_is_not_judged(rng):
    op, args, _ = embedding(rng)
    with pytest.raises(TypeError, match=r"check: accumulate is given, needs a call that adds noth"):
        sf.check(op, np.zeros((11, 5)), *args, accumulate=np.zeros((11, 5), np.float32))
