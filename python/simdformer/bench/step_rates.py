"""What this machine does in a step of training, measured in a few seconds: the figures that
`simdformer.training.plan` predicts from."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from simdformer.bench.rates import narrowed
from simdformer.bench.stopwatch import compare
from simdformer.models import ModelConfig
from simdformer.models.communicator import Communicator
from simdformer.optim import AdamW, clip_grad_norm_
from simdformer.parallel.mpi import in_pairs
from simdformer.runtime import get_num_threads
from simdformer.training import TrainableModel
from simdformer.training.gradient_tree import GradientTree
from simdformer.training.options import TrainOptions
from simdformer.training.plan import StepRates
from simdformer.training.work import all_parameters, flops_of_token, head_flops
from simdformer.types import Array

__all__ = ["measure_step_rates"]

# Sizes that every memory has room for; wider models are not computed at another rate.
WIDEST, INNER, FEW_HEADS, VOCABULARY, TOKENS = 2048, 8192, 16, 32768, 1024
FEW, MORE = 1, 3  # layers, whose times tell what a layer takes and what all else
NUMBERS = 1 << 24  # that are updated: more than caches hold


def measure_step_rates(
    config: ModelConfig, options: TrainOptions, budget: float = 6.0
) -> StepRates:
    """Within about `budget` seconds, more for wide models: a micro-batch goes through few layers as
    wide as the model's, and through more, and back; as many gradients as the model has, up to
    2**24, are added, updated and joined."""
    length = min(options.context, TOKENS)
    rows = max(min(options.rows // options.micro_batches, TOKENS // length), 1)
    wide = narrowed(
        config,
        WIDEST,
        INNER,
        FEW_HEADS,
        vocab_size=min(config.vocab_size, VOCABULARY),
        tie_embeddings=config.tie_embeddings,
        max_seq_len=length,
    )
    ids = np.random.default_rng(0).integers(wide.vocab_size, size=(rows, length))
    models = [TrainableModel.from_config(replace(wide, num_layers=n)) for n in (FEW, MORE)]
    how: dict[str, Any] = {"precision": options.precision, "checkpoint": options.checkpoint}
    calls = [partial(model.loss_and_gradients, ids, **how) for model in models]
    few, more = compare({"few": calls[0], "more": calls[1]}, budget / 2).values()
    flops = [
        ids.size
        * flops_of_token(model.config, all_parameters(model.config), length, options.checkpoint)
        for model in models
    ]
    layer = max((more - few) / (MORE - FEW), few / 100)
    numbers = sum(array.size for array in all_parameters(config).values())
    updated, added, joined = passes(min(numbers, NUMBERS), budget / 2)
    return StepRates(
        layers=(flops[1] - flops[0]) / (MORE - FEW) / layer,
        head=ids.size * head_flops(wide) / max(few - FEW * layer, few / 100),
        added=added,
        updated=updated,
        joined=joined,
        threads=get_num_threads(),
    )


def passes(count: int, budget: float) -> list[float]:
    """How many numbers a second, of so many, clipping and AdamW change, are added to others, and
    are joined with those of another rank."""
    weights, gradients, others = ({"w": np.zeros(count, np.float32)} for _ in range(3))
    optimizer, tree = AdamW(weights, lr=0.0), GradientTree(weights)

    def update() -> None:
        clip_grad_norm_(gradients, 1.0, apply=False)
        optimizer.step(gradients)

    calls = {
        "updated": update,
        "added": lambda: tree.joined(gradients, others),
        "joined": lambda: tree.exchanged(gradients, Twin()),
    }
    return [count / seconds for seconds in compare(calls, budget).values()]


class Twin(Communicator):
    """One of two ranks, whose messages take no time: the other one has the same numbers."""

    size = 2

    def all_reduce(self, x: Array, *, tree: bool = False) -> Array:
        part = x.reshape(-1).view(np.uint8)
        return in_pairs([part, part], x.dtype).reshape(x.shape)
