"""The finale backwards: the demonstration model's little sister learns from stories, for a minute,
by a learner's own functions.

She is a Llama, too, and reads with the same tokenizer; she has a sixth of the numbers. The package
only calls the functions one after the other, on the way there and on the way back, and adds where
ways meet: `training_step` makes the steps, `batch_and_labels` the batches. The package makes the
first steps as well, beside them, to compare the losses.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from simdformer import optim
from simdformer.data import demo_path
from simdformer.data.corpus import documents
from simdformer.learn.check.blas import one_thread
from simdformer.learn.exercises.calls import Keys
from simdformer.learn.exercises.story import PROMPT, Use, quoted
from simdformer.learn.exercises.training_cases import Trainable
from simdformer.models.config import ModelConfig
from simdformer.models.progress import Progress
from simdformer.training.model import TrainableModel
from simdformer.types import Array

__all__ = ["TRAINED_BY", "Training", "trained_by"]

TRAINED_BY = (
    *("softmax", "causal_mask", "scaled_dot_product_attention", "linear", "split_heads"),
    *("merge_heads", "repeat_kv", "rope_half", "embedding", "rms_norm", "silu"),
    *("cross_entropy_backward", "linear_backward", "rms_norm_backward", "rope_backward"),
    *("swiglu_backward", "attention_backward", "batch_and_labels", "training_step"),
)
ROWS, LENGTH = 16, 40  # of a batch
WARMUP, COMPARED, WRITTEN = 10, 5, 24  # steps, steps, tokens
ALIKE = 1e-3  # two losses, of each other
OPTIONS = {
    "lr": 1e-2,
    "warmup": WARMUP,
    "min_lr": 1e-3,
    "max_norm": 1.0,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
}
LINES, COLUMNS = 10, 64  # of the curve
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Training:
    """What a learner's functions have taught a small model.

    losses : one a step, in nats a token
    same : how many of the first steps have the loss that the package finds, up to the first that
        differs, and of how many
    seconds, tokens : how long it took, and how many were read
    prompt, before, after : where a text begins, and how the model goes on before and after
    """

    losses: list[float]
    same: tuple[int, int]
    seconds: float
    tokens: int
    prompt: str
    before: str
    after: str

    @property
    def ok(self) -> bool:
        return self.same[0] == self.same[1]

    def __repr__(self) -> str:
        right, compared = self.same
        told = f"The losses of the first {compared} steps are those that simdformer finds."
        if not self.ok:
            told = f"The loss of step {right + 1} is not the one that simdformer finds."
        made = f"{len(self.losses)} steps, {self.tokens:,} tokens"
        return "\n".join(
            [
                f"Your functions train a model: {made}, {self.seconds:.0f} seconds.",
                "",
                *drawn(self.losses),
                "",
                f"Loss {self.losses[0]:.2f} at first, {self.losses[-1]:.2f} at last.",
                told,
                "",
                "It writes, before:",
                "",
                *quoted(self.prompt + self.before),
                "",
                "and after:",
                "",
                *quoted(self.prompt + self.after),
            ]
        )


def drawn(losses: list[float]) -> Iterator[str]:
    """The curve in letters: the loss upwards, the steps to the right."""
    columns = min(COLUMNS, len(losses))
    means = [part.mean() for part in np.array_split(np.array(losses), columns)]
    top, bottom = max(means), min(means)
    heights = [round((LINES - 1) * (one - bottom) / ((top - bottom) or 1)) for one in means]
    for line in reversed(range(LINES)):
        scale = {LINES - 1: top, 0: bottom}.get(line)
        label = "" if scale is None else f"{scale:.2f}"
        dots = "".join("●" if height == line else " " for height in heights)
        yield f"  {label:>5} │{dots}".rstrip()
    yield f"        └{'─' * columns}"
    yield f"         step 1{f'{len(losses)}':>{max(columns - 6, 1)}}"


def trained_by(
    functions: Mapping[str, Callable[..., Any]],
    names: dict[str, Any],
    seconds: float = 60.0,
    steps: int | None = None,
) -> Training:
    """`functions` by the name of the exercise, all right and all of `TRAINED_BY`; `names` are those
    of the file or notebook that they come from. As many steps as fit into `seconds`, or `steps`."""
    from simdformer.text import from_pretrained

    demo = from_pretrained(demo_path())
    tokenizer: Any = demo.tokenizer
    config = sister_of(demo.config)
    model = TrainableModel.from_config(config)
    names_of_weights = tuple(model.parameters())
    returned: dict[str, Keys] = {"training_step": ((), *(names_of_weights,) * 3)}
    mine = Sister(Use(functions, names, "exercises.train", returned), config)
    for weight in model.parameters().values():
        weight *= 2 if weight.ndim > 1 else 1  # narrow: 0.04, as the demonstration model's
    weights = {name: weight.copy() for name, weight in model.parameters().items()}
    optimizer = optim.AdamW(
        model.parameters(), lr=OPTIONS["lr"], betas=(OPTIONS["beta1"], OPTIONS["beta2"]),
        eps=OPTIONS["eps"], weight_decay=OPTIONS["weight_decay"],
    )  # fmt: skip
    m, v = ({name: 0 * w for name, w in weights.items()} for _ in range(2))
    start = tokenizer.encode(PROMPT, bos=True)
    before = tokenizer.decode(mine.written(weights, start), skip_special=True)
    losses: list[float] = []
    right: list[bool] = []
    batches, begin, tokens, total = texts(tokenizer), time.monotonic(), 0, steps or sys.maxsize
    with (
        one_thread(),  # the products are too small to share
        Progress("training", steps or int(seconds), unit="step" if steps else "s") as progress,
    ):
        while len(losses) < total:
            rows = list(islice(batches, ROWS))
            answers = [[True] * len(row) for row in rows]
            pad = tokenizer.eos_ids[0]
            ids, labels = (
                one.astype(np.int64) for one in mine.use("batch_and_labels", rows, answers, pad)
            )
            step = len(losses) + 1
            options = OPTIONS | {"total": max(total, WARMUP + 1)}
            given = Trainable(mine.loss_and_gradients), weights, m, v, ids, labels, step, options
            loss, *new = mine.use("training_step", *given)
            kept = iter(new)
            weights, m, v = ({name: next(kept) for name in weights} for _ in range(3))
            losses.append(float(loss))
            if step <= COMPARED:
                own = own_loss(model, optimizer, ids, labels, options, step)
                right.append(abs(losses[-1] - own) < ALIKE * own)
            progress.advance(1 if steps else spent(progress, begin), f"loss {loss:.2f}")
            tokens += ids.size
            if steps is None and len(losses) == WARMUP:
                each = (time.monotonic() - begin) / WARMUP
                total = max(WARMUP + 1, int(seconds / each))
    taken = time.monotonic() - begin
    after = tokenizer.decode(mine.written(weights, start), skip_special=True)
    same = (right.index(False) if False in right else len(right)), len(right)
    return Training(losses, same, taken, tokens, PROMPT, before, after)


def spent(progress: Progress, begin: float) -> int:
    """How many seconds the bar is behind."""
    return min(int(time.monotonic() - begin), progress.total) - progress.done


def sister_of(config: ModelConfig) -> ModelConfig:
    """Half as wide, a third as deep."""
    return replace(
        config,
        hidden_size=config.hidden_size // 2,
        head_dim=config.head_dim // 2,
        intermediate_size=config.intermediate_size // 2,
        num_layers=2,
        rope_layout="half",
    )


def texts(tokenizer: Any) -> Iterator[list[int]]:
    """The beginnings of stories."""
    for text in documents(0):
        if text.startswith("Once upon"):
            yield tokenizer.encode(text, bos=True)[:LENGTH]


def own_loss(
    model: TrainableModel,
    optimizer: optim.AdamW,
    ids: Array,
    labels: Array,
    options: Mapping[str, Any],
    step: int,
) -> float:
    """The same step, made by the package."""
    loss, gradients = model.loss_and_gradients(ids, labels)
    norm = optim.clip_grad_norm_(gradients, options["max_norm"], apply=False)
    schedule = {name: options[name] for name in ("lr", "warmup", "total", "min_lr")}
    scale = min(1.0, options["max_norm"] / (norm + 1e-6))
    optimizer.step(gradients, lr=optim.cosine_lr(step - 1, **schedule), scale=scale)
    return loss


@dataclass(frozen=True)
class Sister:
    """The model on a learner's functions, there and back."""

    use: Use
    config: ModelConfig

    def loss_and_gradients(
        self, weights: Arrays, ids: Array, labels: Array
    ) -> tuple[float, Arrays]:
        """ids, labels (B,L)"""
        kept, logits, normed = self.forward(weights, ids)
        p = self.use("softmax", logits)[0]
        counts = labels != -100
        loss = -np.log(p[counts, labels[counts]]).mean()
        (dz,) = self.use("cross_entropy_backward", rows(logits), labels.ravel())
        g: Arrays = {}
        of_head = self.use("linear_backward", dz.reshape(logits.shape), normed, weights["lm_head"])
        dx, g["lm_head"] = of_head[:2]
        eps = self.config.norm_eps
        norm = kept[-1][-1], weights["final_norm"], eps
        dx, g["final_norm"] = self.use("rms_norm_backward", dx, *norm)
        for layer in reversed(range(self.config.num_layers)):
            dx = self.block_backward(weights, f"layers.{layer}.", dx, kept[layer], g)
        g["embed"] = np.zeros_like(weights["embed"])
        np.add.at(g["embed"], ids, dx)
        return float(loss), {name: g[name] for name in weights}

    def forward(self, weights: Arrays, ids: Array) -> tuple[list[tuple[Array, ...]], Array, Array]:
        """What each layer keeps, the logits (B,L,V), and what they are made of."""
        one = partial(self.one, weights)
        (x,) = self.use("embedding", ids, weights["embed"])
        kept = []
        for layer in range(self.config.num_layers):
            kept.append(self.block(weights, f"layers.{layer}.", x))
            x = kept[-1][-1]
        normed = one("rms_norm", x, "final_norm", self.config.norm_eps)
        return kept, one("linear", normed, "lm_head"), normed

    def block(self, weights: Arrays, at: str, x: Array) -> tuple[Array, ...]:
        """x (B,L,E): what its way back needs, and at last what comes out."""
        config, use, one = self.config, self.use, partial(self.one, weights)
        positions = np.arange(x.shape[-2])
        normed = one("rms_norm", x, at + "attn_norm", config.norm_eps)
        heads = {"wq": config.num_heads, "wk": config.num_kv_heads, "wv": config.num_kv_heads}
        q, k, v = (
            use("split_heads", one("linear", normed, at + name), count)[0]
            for name, count in heads.items()
        )
        q, k = (use("rope_half", y, positions, config.rope_theta)[0] for y in (q, k))
        k, v = (use("repeat_kv", y, self.group)[0] for y in (k, v))
        (mask,) = use("causal_mask", len(positions), len(positions))
        (z,) = use("merge_heads", *use("scaled_dot_product_attention", q, k, v, mask))
        mid = x + one("linear", z, at + "wo")
        normed2 = one("rms_norm", mid, at + "mlp_norm", config.norm_eps)
        gate, up = (one("linear", normed2, at + name) for name in ("gate", "up"))
        act = use("silu", gate)[0] * up
        out = mid + one("linear", act, at + "down")
        return x, normed, q, k, v, z, mid, normed2, gate, up, act, out

    def block_backward(
        self, weights: Arrays, at: str, dy: Array, kept: tuple[Array, ...], g: Arrays
    ) -> Array:
        """dy (B,L,E) -> dx; the gradients of the weights go into g."""
        config, use = self.config, self.use
        x, normed, q, k, v, z, mid, normed2, gate, up, act, _ = kept

        def linear(grad: Array, x: Array, name: str) -> Array:
            dx, g[at + name], _ = use("linear_backward", grad, x, weights[at + name])
            return dx

        def norm(grad: Array, x: Array, name: str) -> Array:
            given = x, weights[at + name], config.norm_eps
            dx, g[at + name] = use("rms_norm_backward", grad, *given)
            return dx

        dgate, dup = use("swiglu_backward", linear(dy, act, "down"), gate, up)
        dnormed = linear(dgate, normed2, "gate") + linear(dup, normed2, "up")
        dy = dy + norm(dnormed, mid, "mlp_norm")
        (dz,) = use("split_heads", linear(dy, z, "wo"), config.num_heads)
        dq, dk, dv = use("attention_backward", dz, q, k, v)
        dk, dv = (y.reshape(len(y), -1, self.group, *y.shape[-2:]).sum(2) for y in (dk, dv))
        positions = np.arange(x.shape[-2])
        dq, dk = (use("rope_backward", y, positions, config.rope_theta)[0] for y in (dq, dk))
        dnormed = 0 * x
        for name, d in (("wq", dq), ("wk", dk), ("wv", dv)):
            dnormed = dnormed + linear(use("merge_heads", d)[0], normed, name)
        return dy + norm(dnormed, x, "attn_norm")

    def written(self, weights: Arrays, start: list[int]) -> list[int]:
        """How a text goes on: always the likeliest token."""
        ids = list(start)
        while len(ids) < len(start) + WRITTEN:
            logits = self.forward(weights, np.array([ids]))[1]
            ids.append(int(logits[0, -1].argmax()))
        return ids[len(start) :]

    @property
    def group(self) -> int:
        return self.config.num_heads // self.config.num_kv_heads

    def one(self, weights: Arrays, name: str, x: Array, weight: str, *arguments: Any) -> Array:
        """The one result of a function of x and a weight."""
        return self.use(name, x, weights[weight], *arguments)[0]


def rows(x: Array) -> Array:
    """(..., n) -> (rows, n)"""
    return x.reshape(-1, x.shape[-1])
