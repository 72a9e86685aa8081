"""Gradients, losses and optimizers as learners write them by hand, right ones and wrong ones.

Each text beside this file has blocks: `wrong` or `right`, the operation, the dtype and switches of
the call, what it is, for a wrong one the mistakes that `check` names (none where it only says which
numbers are off), and below it the learner's lines.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import simdformer as sf

HERE = Path(__file__).parent
BLOCK = re.compile(
    r"^(wrong|right) (\w+) ([\w ]+) \| (.+?)(?: -> (.+))?\n((?:(?!wrong |right |#).*\n)*)", re.M
)
RESULTS = {
    "linear": {"dx": "x", "dw": "weight", "db": "bias"},
    "rms_norm": {"dx": "x", "dw": "weight"},
    "layer_norm": {"dx": "x", "dw": "weight", "db": "bias"},
    "swiglu": {"dgate": "gate", "dup": "up"},
    "attention": {
        "dq": "query",
        "dk": "key",
        "dv": "value",
        "dbias": "attn_mask",
        "dsinks": "sinks",
    },
}
ALONE = ("dE", "dx", "dz", "loss")  # the names of a result that is the only one


@dataclass(frozen=True)
class Example:
    """A learner's lines.

    switches : of the call
    mistakes : that are named
    """

    right: bool
    op: str
    dtype: str
    switches: frozenset[str]
    title: str
    mistakes: frozenset[str]
    code: str

    @property
    def name(self) -> str:
        return f"{' '.join([self.op, *sorted(self.switches)])}: {self.title}"

    def check(self, dtype: str = "", few: Any = None) -> Any:
        """The report of what the lines give. few: 16 bits, to which what comes in and what comes
        out is rounded; the lines compute in `dtype`."""
        draw = Draw(np.random.default_rng(0), dtype or self.dtype, few)
        op, space, args, kwargs = CALLS[self.op](self.switches, draw)
        lines = space | {"np": np, "torch": torch, "math": math, "args": args, "kwargs": kwargs}
        with np.errstate(all="ignore"):
            exec(self.code, lines)
            mine = lines.get("mine")
            if mine is None and self.op in RESULTS:
                mine = {to: lines[of] for of, to in RESULTS[self.op].items() if of in lines}
            if mine is None:
                mine = next(lines[name] for name in ALONE if name in lines)
            mine, args = (mine, lines["args"]) if few is None else in_few(few, [mine, args])
            return sf.check(op, mine, *args, **kwargs)


def in_few(few: Any, x: Any) -> Any:
    """Every array in it in 16 bits."""
    if isinstance(x, dict):
        return {name: in_few(few, one) for name, one in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(in_few(few, one) for one in x)
    x = x.detach().numpy() if isinstance(x, torch.Tensor) else x
    return x.astype(few) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


class Draw:
    """Random arrays of one dtype, whose numbers may be those of another one."""

    def __init__(self, rng: np.random.Generator, dtype: str, few: Any = None) -> None:
        self.rng, self.dtype, self.few = rng, dtype, few

    def __call__(self, *shape: int, scale: float = 1.0, around: float = 0.0) -> Any:
        return self.cast(around + scale * self.rng.standard_normal(shape))

    def cast(self, x: Any) -> Any:
        if self.dtype == "bfloat16":  # the learner has tensors
            return torch.tensor(x, dtype=torch.bfloat16)
        return np.asarray(x if self.few is None else x.astype(self.few), self.dtype)


def examples() -> Iterator[Example]:
    for path in sorted(HERE.glob("*.txt")):
        text = path.read_text(encoding="utf-8") + "\n"
        for kind, op, switches, title, named, code in BLOCK.findall(text):
            dtype, *others = switches.split()
            mistakes = frozenset(named.split(", ")) - {""}
            yield Example(kind == "right", op, dtype, frozenset(others), title, mistakes, code)


# ---- the calls -----------------------------------------------------------------------------------


def linear(switches, draw):
    outputs = 10 if "square" in switches else 6
    x, w, b, dy = draw(3, 7, 10), draw(outputs, 10), draw(outputs), draw(3, 7, outputs)
    return sf.backward.linear, {"x": x, "w": w, "b": b, "dy": dy}, (dy, x, w), {}


def embedding(switches, draw):
    ids, dy = draw.rng.integers(0, 13, (4, 9)), draw(4, 9, 5)
    return sf.backward.embedding, {"ids": ids, "dy": dy}, (dy, ids, 13), {}


def rms_norm(switches, draw):
    x, w, dy = draw(2, 6, 14, scale=1.7), draw(14, around=1.0, scale=0.5), draw(2, 6, 14)
    space = {"x": x, "w": w, "dy": dy, "eps": 1e-5}
    return sf.backward.rms_norm, space, (dy, x, w), {"eps": 1e-5}


def layer_norm(switches, draw):
    x, w, dy = (
        draw(2, 6, 14, scale=1.7, around=0.6),
        draw(14, around=1.0, scale=0.5),
        draw(2, 6, 14),
    )
    bias = draw(14)
    space = {"x": x, "w": w, "bias": bias, "dy": dy, "eps": 1e-5}
    return sf.backward.layer_norm, space, (dy, x, w, bias), {"eps": 1e-5}


def softmax(switches, draw):
    z, dy = 1.5 * draw.rng.standard_normal((2, 5, 11)), draw(2, 5, 11)
    t, axis = 1.7 if "tempered" in switches else 1.0, 1 if "axis" in switches else -1
    p = np.exp(z / t) / np.exp(z / t).sum(axis, keepdims=True)
    p, options = draw.cast(p), {}
    if "tempered" in switches:
        options["temperature"] = t
    if "axis" in switches:
        options["axis"] = axis
    return sf.backward.softmax, {"p": p, "dy": dy, "T": t}, (dy, p), options


def log_softmax(switches, draw):
    z, dy = draw.cast(1.5 * draw.rng.standard_normal((2, 5, 11))), draw(2, 5, 11)
    y = np.log(np.exp(np.float64(z)) / np.exp(np.float64(z)).sum(-1, keepdims=True))
    y = draw.cast(y)
    return sf.backward.log_softmax, {"z": z, "y": y, "p": np.exp(y), "dy": dy}, (dy, y), {}


def activation(op, **options):
    def call(switches, draw):
        x, dy = draw(4, 23, scale=2.5), draw(4, 23)
        kwargs = {k: "none" if "erf" in switches else v for k, v in options.items()}
        return op, {"x": x, "dy": dy}, (dy, x), kwargs

    return call


def swiglu(switches, draw):
    gate, up, dy = draw(3, 4, 8, scale=2.0), draw(3, 4, 8), draw(3, 4, 8)
    return sf.backward.swiglu, {"gate": gate, "up": up, "dy": dy}, (dy, gate, up), {}


def rope(switches, draw):
    width = 8 if "partial" in switches else 12
    angles = (3 + np.arange(5))[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    options = {"layout": "interleaved" if "interleaved" in switches else "half", "offset": 3}
    if "factor" in switches:
        options["attention_factor"] = 1.3
    if "partial" in switches:
        options["rotary_dim"] = 8
    dy = draw(2, 5, 12)
    return sf.backward.rope, {"dy": dy, "angles": angles.astype(dy.dtype)}, (dy,), options


def repeat_kv(switches, draw):
    dy = draw(2, 6, 5, 7)
    return sf.backward.repeat_kv, {"dy": dy}, (dy, 3), {}


def attention(switches, draw):
    grouped, causal = "gqa" in switches, bool(switches & {"causal", "gqa", "softcap", "sinks"})
    heads, kv, queries, keys = (
        6 if grouped else 3,
        2 if grouped else 3,
        7 if causal else 6,
        7 if causal else 9,
    )
    q, k, v = draw(2, heads, queries, 8), draw(2, kv, keys, 8), draw(2, kv, keys, 5)
    dy, dlse = draw(2, heads, queries, 5), draw(2, heads, queries)
    options, bias, sinks = {}, None, None
    if causal:
        options["is_causal"] = True
    if grouped:
        options["enable_gqa"] = True
    if "softcap" in switches:
        options["softcap"] = 2.5
    if "scale" in switches:
        options["scale"] = 0.2
    if "sinks" in switches:
        options["sinks"] = sinks = draw(3)
    if "bias" in switches:
        bias = draw(3, 1, 9)

    def forward(dy, q, k, v):
        out, lse = sf.scaled_dot_product_attention(q, k, v, bias, **options, return_lse=True)
        return (dy, q, k, v, out, lse) if bias is None else (dy, q, k, v, out, lse, bias)

    args = forward(dy, q, k, v)
    space = {"q": q, "k": k, "v": v, "dy": dy, "out": args[4], "lse": args[5], "dlse": dlse}
    space |= {"bias": bias, "sinks": sinks, "cap": 2.5, "forward": forward}
    needs = ("query", "key", "value", *(["attn_mask"] if "bias" in switches else ()))
    asked = options | {"needs": (*needs, *(["sinks"] if "sinks" in switches else ()))}
    return sf.backward.scaled_dot_product_attention, space, args, asked


def labels_of(switches, draw):
    vocabulary = 117 if "wide" in switches else 17
    z, y = draw(3, 6, vocabulary, scale=1.5), draw.rng.integers(0, 17, (3, 6))
    first = draw.rng.integers(0, 17, (3, 1))
    if "whole" not in switches:
        y[0, 4:], y[1, 0], y[2, 3] = -100, -100, -100
    options = {}
    for name, option, value in (
        ("smooth", "label_smoothing", 0.1),
        ("zloss", "z_loss", 0.02),
        ("softcap", "softcap", 4.0),
        ("sum", "reduction", "sum"),
        ("none", "reduction", "none"),
    ):
        if name in switches:
            options[option] = value
    return z, y, first, options


def cross_entropy(switches, draw):
    z, y, first, options = labels_of(switches, draw)
    return sf.cross_entropy, {"z": z, "y": y, "first": first}, (z, y), options


def cross_entropy_backward(switches, draw):
    z, y, first, options = labels_of(switches, draw)
    dl = draw(3, 6)
    if "none" in switches:
        options["grad"] = dl
    return sf.backward.cross_entropy, {"z": z, "y": y, "first": first, "dl": dl}, (z, y), options


def adamw(switches, draw):
    w, m, v = draw(7, 5), draw.cast(np.zeros((7, 5))), draw.cast(np.zeros((7, 5)))
    gradients = [draw(7, 5) for _ in range(4)]
    eps = 1e-2 if "eps" in switches else 1e-6
    options = {"step": 1, "lr": 3e-3, "betas": (0.9, 0.97), "eps": eps, "weight_decay": 0.05}
    return sf.optim.adamw_, {"w": w, "gradients": gradients}, (w, gradients, m, v), options


def clip(switches, draw):
    scale = 0.05 if "small" in switches else 1.0
    shapes = {"a": (4, 6), "b": (9,), "c": (2, 3, 5)}
    gradients = {name: draw(*shape, scale=scale) for name, shape in shapes.items()}
    return sf.optim.clip_grad_norm_, {"gradients": gradients}, (gradients, 1.5), {}


def cosine(switches, draw):
    steps, options = np.arange(30), {"lr": 0.02, "warmup": 6, "total": 25, "min_lr": 0.002}
    return sf.optim.cosine_lr, {"steps": steps}, (steps,), options


CALLS = {
    "linear": linear,
    "embedding": embedding,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "silu": activation(sf.backward.silu),
    "gelu": activation(sf.backward.gelu, approximate="tanh"),
    "relu": activation(sf.backward.relu),
    "swiglu": swiglu,
    "rope": rope,
    "repeat_kv": repeat_kv,
    "attention": attention,
    "cross_entropy": cross_entropy,
    "cross_entropy_backward": cross_entropy_backward,
    "adamw": adamw,
    "clip": clip,
    "cosine": cosine,
}

EXAMPLES = {one.name: one for one in examples()}
