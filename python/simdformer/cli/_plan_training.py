"""`simdformer plan --training`: what a step of training would take on several ranks."""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace

from simdformer.cli import _output as output
from simdformer.cli import _values as values
from simdformer.models import ModelConfig
from simdformer.parallel.plan import Link
from simdformer.training.model import PRECISIONS
from simdformer.training.options import TrainOptions
from simdformer.training.plan import predict_step
from simdformer.training.step import CHECKPOINTS
from simdformer.training.work import all_parameters, flops_of_token

__all__ = ["TRAINING_ALONE", "add_training", "training_table"]

TRAINING_ALONE = ("batch_tokens", "micro_batches", "precision", "checkpoint")
HEAD = (
    f"{'':>5}  {'a rank has':^20}   {'a step':^31}   {'each sends':>11}\n"
    f"{'ranks':>5}  {'memory':>11} {'batches':>8}   {'tok/s':>9} {'time':>8} {'link':>4} "
    f"{'times':>7}   {'a step':>11}"
)


def add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--training",
        action="store_true",
        help="plan steps of `simdformer train` in place of tokens and prompts",
    )
    for name, help in (
        ("batch_tokens", f"tokens of a step (default: {TrainOptions.batch_tokens})"),
        ("micro_batches", "parts of a step (default: one for each rank where its rows allow that)"),
    ):
        group.add_argument(
            f"--{name.replace('_', '-')}", type=values.whole(), metavar="N", help=help
        )
    group.add_argument("--precision", choices=PRECISIONS, help="of products (default: float32)")
    group.add_argument(
        "--checkpoint", choices=CHECKPOINTS, help="what is computed again (default: none)"
    )


def step_of(options: argparse.Namespace, config: ModelConfig) -> TrainOptions:
    """The options of the step that is planned. ValueError: they do not fit each other."""
    room = config.max_seq_len
    if (options.context or 1) > room:
        raise ValueError(f"--context is {options.context}, needs at most max_seq_len, {room}")
    known = ("batch_tokens", "context", "precision", "checkpoint")
    given = {name: value for name in known if (value := getattr(options, name)) is not None}
    step = replace(TrainOptions(data=(), context=min(TrainOptions.context, room)), **given)
    parts = options.micro_batches
    if parts is None:  # the same for all numbers of ranks, which give the same bits then
        parts = math.gcd(step.rows, max(TrainOptions.micro_batches, options.most))
    if step.rows % parts:
        raise ValueError(
            f"a step has {step.rows} rows, needs a multiple of {parts} micro-batches; give another "
            "--batch-tokens, --context or --micro-batches"
        )
    return replace(step, micro_batches=parts)


def training_table(
    options: argparse.Namespace, config: ModelConfig, link: Link, memory: int
) -> tuple[str, Callable[[int], str]]:
    """What stands above the table, and a line of it for a number of ranks. This machine is measured
    for that."""
    from simdformer.bench.step_rates import measure_step_rates

    step = step_of(options, config)
    rates = measure_step_rates(config, step)
    parameters = all_parameters(config)
    count = sum(array.size for array in parameters.values())
    tokens = step.rows * step.context
    flops = tokens * flops_of_token(config, parameters, step.context, step.checkpoint)
    above = (
        f"{config.summary}, {count / 1e6:,.2f} million numbers; a step has {step.rows:,} rows of "
        f"{step.context:,} tokens\n"
        f"  in {step.micro_batches:,} micro-batches, {flops / 1e9:,.1f} GFLOP in {step.precision}\n"
        f"a machine like this one: {output.memory(memory)}, {rates.threads} threads,\n"
        f"  {rates.layers / 1e9:.0f} GFLOPS in layers, {rates.head / 1e9:.0f} in the head; "
        f"{rates.updated / 1e6:.0f} million weights/s by AdamW\n"
    )
    alone = 0.0

    def row(ranks: int) -> str:
        nonlocal alone
        found = predict_step(
            config, rates, link, step, ranks, per_machine=options.ranks_per_machine
        )
        alone = alone or found.seconds
        full = min(ranks, options.ranks_per_machine) * found.memory >= memory
        has = output.memory(int(found.memory)) + ("*" if full else " ")
        return (
            f"{ranks:>5}  {has:>12} {found.micro_batches:>7}   "
            f"{output.figure(tokens / found.seconds):>9} {output.duration(found.seconds):>8} "
            f"{found.link / found.seconds:>4.0%} {alone / found.seconds:>6.3g}×   "
            f"{output.memory(int(found.sent)):>11}"
        )

    return f"{above}{output.link_line(link)}\n\n{HEAD}", row
