"""Whole steps of training beside PyTorch: loss, gradients, clipping and AdamW, on the same weights.

PyTorch trains transformers' class of the architecture with scaled_dot_product_attention and its
fused AdamW, eager and, where that is asked for, compiled; in bfloat16 under autocast. The learning
rate is 0, so that the weights stay, and what is compared with float64 are the losses of a few
labels.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from simdformer.bench import transformers
from simdformer.bench.contestants import OURS, TORCH, Contestant, Missing, Way, optional
from simdformer.bench.exact import Exact
from simdformer.bench.work import Case, Dtype, Inputs, Unit, Work, times
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.locate import locate
from simdformer.models import ModelConfig, Transformer
from simdformer.optim import AdamW, clip_grad_norm_
from simdformer.reference.loss import cross_entropy
from simdformer.training import TrainableModel
from simdformer.training.work import all_parameters, flops_of_token
from simdformer.types import Array

__all__ = ["TrainingStep", "training_cases"]

CLIP = 1.0
COMPILED = "torch.compile"
CHECKED = 16  # labels; float64 is slow
OPTIMIZER_BYTES = 28  # AdamW reads weight, gradient, two moments, and writes all but the gradient
SHORT = 8  # as many rows as a step has, by this
MINIMIND = ModelConfig(
    hidden_size=512,
    num_layers=8,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=1408,
    vocab_size=6400,
    max_seq_len=512,
    norm_eps=1e-5,
    rope_theta=1e6,
    rope_layout="half",
    tie_embeddings=True,
)
GPT2 = replace(
    MINIMIND,
    hidden_size=768,
    num_layers=12,
    num_heads=12,
    num_kv_heads=12,
    intermediate_size=3072,
    vocab_size=50257,
    max_seq_len=1024,
    rope_theta=10000.0,
    positions="learned",
    norm="layer_norm",
    activation="gelu_tanh",
    gated_mlp=False,
    qkv_bias=True,
    wo_bias=True,
    mlp_bias=True,
)
LARGER = {"minimind-26m": (MINIMIND, 32, 512), "gpt2-124m": (GPT2, 4, 64)}
GOALS: dict[Dtype, float] = {"float32": 1.3, "bfloat16": 1.0}


def training_cases(*, short: bool = False, compiled: bool = False) -> Iterator[Case]:
    """A step of each model in both precisions; `short`: an eighth of the rows, one at least;
    `compiled`: also beside what torch.compile makes of it."""
    demo = replace(read_checkpoint(locate("demo"), None).config, rope_layout="half")
    for name, (config, rows, length) in {"demo": (demo, 8, 256), **LARGER}.items():
        rows = max(rows // SHORT, 1) if short else rows
        for dtype, goal in GOALS.items():
            work = TrainingStep(
                config=config, rows=rows, length=length, dtype=dtype, compiled=compiled
            )
            goals = [times(goal, library) for library in work.peers]
            yield Case(f"training/{name}/{rows}x{length}/{dtype}", work, tuple(goals))


@dataclass(frozen=True, kw_only=True)
class TrainingStep(Work):
    """A step over `rows` of `length` ids. `dtype` is that of products; weights are float32.
    `compiled`: PyTorch takes part compiled too, which takes minutes."""

    operation: ClassVar[str] = "a step of training"
    counted_in: ClassVar[Unit] = "tok/s"
    config: ModelConfig
    rows: int
    length: int
    compiled: bool = False

    @property
    def peers(self) -> tuple[str, ...]:
        return (TORCH, COMPILED) if self.compiled else (TORCH,)

    @property
    def flops(self) -> int:
        of_token = flops_of_token(self.config, all_parameters(self.config), self.length)
        return int(self.token_count * of_token)

    @property
    def nbytes(self) -> int:
        return OPTIMIZER_BYTES * sum(array.size for array in all_parameters(self.config).values())

    @property
    def token_count(self) -> int:
        return self.rows * self.length

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """model, ids and labels (rows, length)"""
        stream = rng.integers(self.config.vocab_size, size=(self.rows, self.length + 1))
        model = TrainableModel.from_config(self.config)
        return {"model": model, "ids": stream[:, :-1], "labels": stream[:, 1:]}

    def checked(self, inputs: Inputs) -> tuple[Array, Array]:
        """The first few ids and labels, (1, CHECKED) each."""
        return inputs["ids"][:1, :CHECKED], inputs["labels"][:1, :CHECKED]

    def sample(self, result: Array) -> Array:
        """How much larger each loss is than that of guessing, which all losses are near."""
        return result - np.float32(math.log(self.config.vocab_size))

    def expected(self, inputs: Inputs) -> Array:
        """Those of the labels that are checked."""
        (ids,), (labels,) = self.checked(inputs)
        model = Exact(Transformer(self.config, inputs["model"].parameters()))
        return self.sample(cross_entropy(model(ids), labels, reduction="none"))

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        return [self.ours(inputs), *self.theirs(inputs)]

    def ours(self, inputs: Inputs) -> Contestant:
        model, ids, labels = inputs["model"], inputs["ids"], inputs["labels"]
        optimizer = AdamW(model.parameters(), lr=0.0)

        def step() -> None:
            _, gradients = model.loss_and_gradients(ids, labels, precision=self.dtype)
            norm = clip_grad_norm_(gradients, CLIP, apply=False)
            optimizer.step(gradients, scale=min(1.0, CLIP / (norm + 1e-6)))

        def checked(_: None) -> Array:
            found: Array = model.losses(*self.checked(inputs), precision=self.dtype)[0]
            return found

        return Contestant(OURS, (Way(f"precision {self.dtype}", step, checked),))

    def theirs(self, inputs: Inputs) -> list[Contestant | Missing]:
        if missing := transformers.missing():
            return [replace(missing, name=TORCH)]
        torch: Any = optional("torch")
        model = transformers.model_of(self.config, inputs["model"].parameters(), "float32")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
        every = [torch.from_numpy(inputs[name].copy()) for name in ("ids", "labels")]
        few = [torch.from_numpy(array.copy()) for array in self.checked(inputs)]

        def eager(ids: Any, labels: Any) -> Any:
            """The loss of each label."""
            with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bfloat16"):
                logits = model(ids, use_cache=False).logits.flatten(0, 1)
            loss = torch.nn.functional.cross_entropy
            return loss(logits.float(), labels.flatten(), reduction="none")

        def way(how: str, losses: Callable[[Any, Any], Any], checked: list[Any]) -> Way:
            def step() -> None:
                optimizer.zero_grad(set_to_none=True)
                losses(*every).mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()

            def first(_: None) -> Array:
                found: Array = losses(*checked).detach().numpy()[:CHECKED]
                return found

            return Way(f"{how}, SDPA, fused AdamW", step, first)

        found: list[Contestant | Missing] = [Contestant(TORCH, (way("eager", eager, few),))]
        if self.compiled:
            compiled = way("compiled", torch.compile(eager), every)  # for these shapes alone
            try:
                compiled.call()
                found.append(Contestant(COMPILED, (compiled,)))
            except Exception as error:
                why = next(iter(str(error).splitlines()), type(error).__name__)
                found.append(Missing(COMPILED, f"could not compile: {why}"))
        return found
