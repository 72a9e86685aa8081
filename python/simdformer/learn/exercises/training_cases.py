"""Gradients and the steps of an optimizer: what each exercise is called with, and the right call.

Lengths differ, as they do in `cases`; labels repeat, and some of them are ignored.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import simdformer as sf
from simdformer import backward, optim
from simdformer.learn.exercises.calls import as_array
from simdformer.learn.exercises.cases import NORMED
from simdformer.learn.exercises.exercise import Case, Draw, Question, exercise, same
from simdformer.learn.gradients.step import check_step
from simdformer.learn.mistakes import lora, text_batch
from simdformer.learn.mistakes.training_step import step as one_step
from simdformer.models.config import ModelConfig
from simdformer.models.weights import weight_shapes
from simdformer.training.model import TrainableModel
from simdformer.types import Array

__all__ = ["Trainable"]

BACKWARDS, TRAINING = "7. Backwards", "8. Training"


def of_parts(op: Any, names: tuple[str, ...], args: tuple[Any, ...], **kwargs: Any) -> Any:
    """A question for each of several results."""
    return tuple(Question(op, args, kwargs, name, i) for i, name in enumerate(names))


@exercise(BACKWARDS)
def softmax_backward(draw: Draw) -> Iterator[Case]:
    for shape in ((5,), (3, 4), (2, 3, 4)):
        yield same(backward.softmax, draw(*shape), sf.softmax(draw(*shape)))


@exercise(BACKWARDS)
def cross_entropy_backward(draw: Draw) -> Iterator[Case]:
    for labels, size, special in (
        ([2, 0, 2, 5], 1.0, ""),
        ([2, -100, 0, 5, -100], 1.0, "two rows are ignored"),
        ([1, 6], 100.0, "logits of about 100"),
    ):
        yield same(
            backward.cross_entropy,
            draw(len(labels), 7, scale=size),
            np.array(labels),
            special=special,
        )


@exercise(BACKWARDS)
def linear_backward(draw: Draw) -> Iterator[Case]:
    for batch, outputs in (((4,), 3), ((2, 3), 3), ((3, 4), 5)):
        args = draw(*batch, outputs), draw(*batch, 5), draw.matrix(outputs, 5)
        yield Case(args, of_parts(backward.linear, ("x", "weight", "bias"), args))


@exercise(BACKWARDS)
def rms_norm_backward(draw: Draw) -> Iterator[Case]:
    for batch, size, eps in NORMED:
        x, weight = draw(*batch, 6, scale=size), draw(6, scale=0.5, around=1.0)
        args = draw(*batch, 6), x, weight
        yield Case((*args, eps), of_parts(backward.rms_norm, ("x", "weight"), args, eps=eps))


@exercise(BACKWARDS)
def rope_backward(draw: Draw) -> Iterator[Case]:
    for batch, positions, theta in (
        ((), np.arange(5), 10000.0),
        ((2, 3), np.arange(5), 500000.0),
        ((2,), np.array([3, 1, 4, 1, 5]), 10000.0),
    ):
        grad = draw(*batch, len(positions), 8)
        options = {"layout": "half", "positions": positions, "theta": theta}
        yield Case((grad, positions, theta), (Question(backward.rope, (grad,), options),))


@exercise(BACKWARDS)
def swiglu_backward(draw: Draw) -> Iterator[Case]:
    for shape in ((6,), (3, 4), (2, 3, 4)):
        args = draw(*shape), draw(*shape), draw(*shape)
        yield Case(args, of_parts(backward.swiglu, ("gate", "up"), args))


@exercise(BACKWARDS)
def attention_backward(draw: Draw) -> Iterator[Case]:
    for batch, L, size, special in (
        ((3,), 4, 1.0, ""),
        ((2, 3), 5, 1.0, ""),
        ((2,), 4, 10.0, "large scores"),
    ):
        q, k = (draw(*batch, L, 6, scale=size) for _ in range(2))
        v, grad = draw(*batch, L, 7), draw(*batch, L, 7)
        out, lse = sf.scaled_dot_product_attention(q, k, v, is_causal=True, return_lse=True)
        args = grad, q, k, v, out, lse
        asked = of_parts(
            backward.scaled_dot_product_attention, ("query", "key", "value"), args, is_causal=True
        )
        yield Case((grad, q, k, v), asked, special)


@exercise(TRAINING)
def batch_and_labels(draw: Draw) -> Iterator[Case]:
    for roles, special in (
        (("qqaaqaa", "qqqaaaqaaq", "qqqqa"), ""),
        (("qaeqqaae", "qqqaaaeq", "qaaa"), "answers end with pad_id"),
        (("aaaaa", "aaaaaaa", "aa", "aaaa"), "plain texts, all of which count"),
    ):
        pad_id = int(draw.rng.integers(5, 10))
        texts = [
            [pad_id if who == "e" else int(draw.rng.integers(10, 50)) for who in row]
            for row in roles
        ]
        args = texts, [[who != "q" for who in row] for row in roles], pad_id
        yield Case(args, of_parts(text_batch.batch, ("ids", "labels"), args), special)


@exercise(TRAINING)
def clip_gradients(draw: Draw) -> Iterator[Case]:
    for size, special in ((1.0, ""), (0.01, "small gradients"), (100.0, "")):
        given = [draw(3, 4, scale=size), draw(6 if special else 5, scale=size)]
        names = "gradients[0]", "gradients[1]"
        yield Case((given, 1.5), of_parts(optim.clip_grad_norm_, names, (given, 1.5)), special)


@exercise(TRAINING)
def cosine_lr(draw: Draw) -> Iterator[Case]:
    del draw  # nothing is random
    options = {"lr": 1e-3, "warmup": 5, "total": 20, "min_lr": 1e-4}
    for step in (1, 4, 5, 9, 19, 20, 30):
        yield Case((step, *options.values()), (Question(optim.cosine_lr, (step,), options),))


@exercise(TRAINING)
def adamw_step(draw: Draw) -> Iterator[Case]:
    names = "weight", "exp_avg", "exp_avg_sq"
    for shape, step, eps in (((4, 6), 1, 1e-8), ((4, 6), 3, 1e-2), ((2, 3, 4), 10, 1e-8)):
        weight, gradient = draw(*shape), draw(*shape)
        moments = [0 * weight, 0 * weight] if step == 1 else [draw(*shape), draw(*shape) ** 2]
        args = weight, gradient, *moments
        given = {"step": step, "lr": 0.01, "betas": (0.9, 0.98), "eps": eps, "weight_decay": 0.2}
        numbers = step, 0.01, 0.9, 0.98, eps, 0.2
        yield Case((*args, *numbers), of_parts(optim.adamw_, names, args, **given))


@exercise(TRAINING)
def training_step(draw: Draw) -> Iterator[Case]:
    config = ModelConfig(
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=12,
        vocab_size=11,
        max_seq_len=8,
        norm_eps=1e-5,
        rope_theta=10000.0,
        rope_layout="half",
        tie_embeddings=False,
    )
    options = {"lr": 0.1, "warmup": 4, "total": 12, "min_lr": 0.01, "beta1": 0.9, "beta2": 0.98}
    options |= {"eps": 1e-8, "weight_decay": 0.2}
    weights = {
        name: draw(*shape, scale=0.5, around=float(len(shape) == 1))
        for name, shape in weight_shapes(config).items()
    }
    names = tuple(weights)
    for rows, step, max_norm, special in (
        (2, 1, 0.5, "the first step"),
        (3, 3, 0.5, "in the warm-up"),
        (2, 9, 100.0, "small gradients"),
    ):
        ids = draw.rng.integers(0, config.vocab_size, (rows, 5))
        labels = np.append(ids[:, 1:], np.full((rows, 1), -100), axis=1)
        labels[0, :2] = -100
        m, v = (
            {name: 0 * w if step == 1 else draw(*w.shape, scale=0.1) for name, w in weights.items()}
            for _ in range(2)
        )
        v = {name: x * x for name, x in v.items()}
        given = options | {"max_norm": max_norm}
        args = Trainable(partial(small_llama, config)), weights, m, v, ids, labels, step, given
        parts = "loss", *(f"{part}[{name!r}]" for part in ("weights", "m", "v") for name in names)
        asked = of_parts(one_step, parts, args)
        whole = partial(first_step, config, *args) if step == 1 else None
        yield Case(args, asked, special, ((), names, names, names), whole)


LORA = (((4,), 2, 8.0), ((2, 3), 3, 1.5), ((3, 4), 2, 5.0))  # leading axes, rank, alpha


def with_adapter(draw: Draw, batch: tuple[int, ...], rank: int) -> tuple[Array, ...]:
    """x, weight, a, b"""
    return draw(*batch, 7), draw.matrix(5, 7), draw.matrix(rank, 7), draw.matrix(5, rank)


@exercise(TRAINING)
def lora_linear(draw: Draw) -> Iterator[Case]:
    for batch, rank, alpha in LORA:
        yield same(lora.lora, *with_adapter(draw, batch, rank), alpha)


@exercise(TRAINING)
def lora_backward(draw: Draw) -> Iterator[Case]:
    for batch, rank, alpha in LORA:
        args = draw(*batch, 5), *with_adapter(draw, batch, rank), alpha
        yield Case(args, of_parts(lora.lora_backward, ("x", "a", "b"), args))


def small_llama(config: ModelConfig, weights: Any, ids: Array, labels: Array) -> tuple[float, Any]:
    return TrainableModel(config, weights).loss_and_gradients(ids, labels)


@dataclass(frozen=True)
class Trainable:
    """The loss and the gradients of a small Llama, as a function of its weights; `of` takes and
    gives numpy arrays."""

    of: Callable[[Any, Array, Array], tuple[float, Any]] = field(compare=False)
    tensors: bool = False

    def __repr__(self) -> str:
        return "a small Llama"

    def __call__(self, weights: Any, ids: Any, labels: Any) -> tuple[Any, Any]:
        arrays = {name: as_array(weight) for name, weight in weights.items()}
        loss, gradients = self.of(arrays, as_array(ids), as_array(labels))
        if self.tensors:
            torch = sys.modules["torch"]
            return torch.tensor(loss), {n: torch.from_numpy(g) for n, g in gradients.items()}
        return loss, gradients

    def fresh(self, kind: str) -> "Trainable":
        return Trainable(self.of, kind == "torch")


def first_step(
    config: ModelConfig,
    function: Trainable,
    weights: Any,
    m: Any,
    v: Any,
    ids: Array,
    labels: Array,
    step: int,
    options: Any,
    results: tuple[Array, ...],
) -> Any:
    """What `simdformer.check_step` says of it. The m of a first step are the gradients after
    clipping, times 1 - beta1."""
    del function, v, step
    loss, count = results[0], len(weights)
    moved, moments = (dict(zip(m, results[i : i + count], strict=True)) for i in (1, 1 + count))
    gradients = {name: one / (1 - options["beta1"]) for name, one in moments.items()}
    return check_step(
        {"loss": loss, "gradients": gradients, "parameters": moved},
        TrainableModel(config, weights),
        ids,
        labels,
        lr=optim.cosine_lr(0, **{k: options[k] for k in ("lr", "warmup", "total", "min_lr")}),
        betas=(options["beta1"], options["beta2"]),
        eps=options["eps"],
        weight_decay=options["weight_decay"],
        max_norm=options["max_norm"],
    )
