"""Models of random weights, and steps of training, on the ranks that mpiexec has started, beside
what was planned."""

import math
import os
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import numpy as np

import simdformer as sf
from simdformer.bench.models import SHAPES, random_weights
from simdformer.bench.rates import measure_rates
from simdformer.bench.step_rates import measure_step_rates
from simdformer.bench.training import TrainingStep
from simdformer.bench.work import Case
from simdformer.models import ModelConfig, Transformer, weight_shapes
from simdformer.models.communicator import Communicator
from simdformer.parallel.link import measure_link
from simdformer.parallel.plan import FLOAT, Link, Load, Prediction, predict
from simdformer.training import TrainableModel
from simdformer.training.data import StreamRows
from simdformer.training.gradient_tree import PIECE
from simdformer.training.options import TrainOptions
from simdformer.training.plan import StepPrediction, predict_step
from simdformer.training.run import Run

__all__ = ["OverRanks", "StepOverRanks", "measure_over_ranks", "measure_step_over_ranks"]

T = TypeVar("T")

PROMPT, BEHIND = 512, 64  # ids that are read at once, and those that a token stands behind
TOKENS, PROMPTS = 20, 4  # how many; the fastest counts, and all ranks have to agree on the number


def row(name: str, tokens: int, seconds: float, planned: float, link: float) -> str:
    return (
        f"  {name:<14} {1e3 * seconds:8.1f} ms, {tokens / seconds:7.1f} tok/s; "
        f"planned {1e3 * planned:.1f} ms, of it {link / planned:.0%} link"
    )


@dataclass(frozen=True)
class OverRanks:
    """Seconds of one more token behind 64 others and of a prompt of 512 on all ranks together, and
    what was planned."""

    shape: str
    ranks: int
    token: float
    prompt: float
    planned: Prediction

    def __str__(self) -> str:
        """Three lines."""
        plan = self.planned
        return (
            f"{self.shape} in bfloat16 on {self.ranks} ranks\n"
            f"{row('one more token', 1, self.token, plan.token, plan.token_link)}\n"
            f"{row('a prompt', PROMPT, self.prompt, plan.prompt, plan.prompt_link)}"
        )


def measure_over_ranks(
    ranks: Communicator, shape: str, config: ModelConfig | None = None
) -> OverRanks:
    """On every rank: a shape of SHAPES, or another config under that name."""
    config = config or SHAPES[shape]
    beside, link = on_one_machine(ranks), measure_link(ranks)
    model = Transformer(config, random_weights(config), communicator=ranks)
    ids = np.arange(BEHIND + PROMPT) % config.vocab_size
    cache = model.new_cache(BEHIND + PROMPT, dtype="bfloat16")

    def prompt() -> None:
        cache.reset()
        model(ids[:PROMPT], cache, 1)

    def token() -> None:
        cache.truncate(BEHIND)
        model(ids[:1], cache, 1)

    read = best(prompt, PROMPTS)
    written = best(token, TOKENS)
    rates = by_the_first(ranks, lambda: measure_rates(config, "bfloat16"))
    types = dict.fromkeys(weight_shapes(config), "bfloat16")
    load = Load(context=BEHIND, prompt=PROMPT, cache_itemsize=2)
    planned = predict(config, types, rates, link, load, ranks.size, per_machine=beside)
    return OverRanks(shape, ranks.size, written, read, planned)


@dataclass(frozen=True)
class StepOverRanks:
    """Seconds of a step of training on all ranks together, and what was planned."""

    name: str
    ranks: int
    tokens: int
    seconds: float
    planned: StepPrediction

    def __str__(self) -> str:
        """Two lines."""
        plan = self.planned
        step = row("a step", self.tokens, self.seconds, plan.seconds, plan.link)
        return f"{self.name} on {self.ranks} ranks\n{step}"


def measure_step_over_ranks(ranks: Communicator, case: Case) -> StepOverRanks:
    """On every rank: some steps over random ids, for a case of `training_cases`."""
    work = case.work
    assert isinstance(work, TrainingStep)
    config, rows, length = work.config, work.rows, work.length
    beside = on_one_machine(ranks)
    link = measure_link(ranks, FLOAT * PIECE) if ranks.size > 1 else Link(math.inf, 0.0)
    options = TrainOptions(
        data=(),
        batch_tokens=rows * length,
        context=length,
        precision="bfloat16" if work.dtype == "bfloat16" else "float32",
        micro_batches=math.gcd(rows, max(TrainOptions.micro_batches, ranks.size)),
    )
    ids = np.random.default_rng(0).integers(config.vocab_size, size=rows * length + 1)
    model = TrainableModel.from_config(config)
    seconds, _ = Run(model, StreamRows(ids, length), options, Path(), ranks=ranks).probe()
    rates = by_the_first(ranks, lambda: measure_step_rates(config, options))
    planned = predict_step(config, rates, link, options, ranks.size, per_machine=beside)
    return StepOverRanks(case.name, ranks.size, rows * length, seconds, planned)


def by_the_first(ranks: Communicator, measure: Callable[[], T]) -> T:
    """What rank 0 measures with all cores of its machine, of which ranks have a share each. The
    others wait asleep: ranks that have ended would keep cores busy until all have."""

    def measured() -> T:
        with sf.num_threads(len(os.sched_getaffinity(0))):
            return measure()

    return ranks.broadcast(measured)


def on_one_machine(ranks: Communicator) -> int:
    """How many ranks run on the machine of the first."""
    name = np.array([crc32(os.uname().nodename.encode())])
    names = ranks.all_gather(name, [name.shape] * ranks.size)
    return sum(int(one[0] == names[0][0]) for one in names)


def best(call: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of so many calls, the first of which does not count."""
    return min(timeit.repeat(call, number=1, repeat=times + 1)[1:])
