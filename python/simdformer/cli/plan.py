"""`simdformer plan`: what a model would take on several ranks, without running it."""

import argparse
import os
import re
from collections.abc import Callable, Mapping
from textwrap import fill
from typing import TYPE_CHECKING

import simdformer as sf
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.gguf_mixtures import MIXTURES
from simdformer.checkpoints.huggingface import config_alone
from simdformer.checkpoints.locate import locate
from simdformer.checkpoints.planned import planned_types
from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values
from simdformer.cli._plan_training import TRAINING_ALONE, add_training, training_table
from simdformer.models import ModelConfig
from simdformer.models.tensors import kind_of
from simdformer.training.options import TrainOptions

if TYPE_CHECKING:
    from simdformer.parallel.plan import Link, Prediction

__all__ = ["add"]

AMOUNT = re.compile(r"([0-9.]+)\s*([A-Za-z/]+)")
BYTES_A_SECOND = {
    f"{prefix}{unit}/s": 10**power / bits
    for prefix, power in (("M", 6), ("G", 9))
    for unit, bits in (("b", 8), ("bit", 8), ("B", 1))
}
CONTEXT, PROMPT = 4096, 512
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "plan",
        run,
        over_ranks=True,
        arguments="MODEL",
        help="memory and tokens a second of a model on several machines, or of its training, "
        "before there are any",
        description="Measures this machine for some seconds and predicts from the shapes of MODEL "
        "what it takes on 1, 2, 4 ... ranks: memory of each, time of a token and of a prompt, and "
        "how much of it is waiting for the link; with --training, of a step of training. Nothing "
        "of the weights is read, and MODEL may be a config.json without any.",
        epilog="example: simdformer plan config.json --type q4_k_m --ranks 8 --link 10Gb/s "
        "--latency 20us",
    )
    shared.add_model(parser)
    shared.add_format(parser)
    parser.add_argument(
        "--ranks",
        dest="most",
        type=values.whole(1, 4096),
        default=8,
        metavar="N",
        help="up to N (default: 8)",
    )
    parser.add_argument(
        "--ranks-per-machine",
        type=values.whole(1, 4096),
        default=1,
        metavar="N",
        help="how many of them share a machine like this one (default: 1)",
    )
    parser.add_argument(
        "--link",
        type=amount(BYTES_A_SECOND, "a rate such as 10Gb/s or 1.2GB/s"),
        metavar="RATE",
        help="between two ranks (default: 10Gb/s; under mpiexec what its ranks measure)",
    )
    parser.add_argument(
        "--latency",
        type=amount(SECONDS, "a time such as 20us or 0.1ms"),
        metavar="TIME",
        help="of the shortest message (default: 20us; under mpiexec what its ranks measure)",
    )
    parser.add_argument(
        "--type",
        choices=(*shared.DTYPES, *(name for name in MIXTURES if name not in ("f16", "bf16"))),
        help="of the weights (default: as MODEL has them)",
    )
    parser.add_argument(
        "--context",
        type=values.whole(),
        metavar="N",
        help=f"positions of the KV cache, all of them filled (default: {CONTEXT}); with "
        f"--training tokens of a row (default: {TrainOptions.context}, or as many as fit)",
    )
    parser.add_argument(
        "--prompt", type=values.whole(), metavar="N", help=f"ids (default: {PROMPT})"
    )
    add_training(parser)


def amount(units: Mapping[str, float], needed: str) -> Callable[[str], float]:
    """A number > 0 and one of the units, as a multiple of what the table has as 1."""

    def read(text: str) -> float:
        found = AMOUNT.fullmatch(text.strip())
        if found is None or found[2] not in units:
            raise values.refused(text, needed)
        return values.number(needed, lambda x: x > 0)(found[1]) * units[found[2]]

    return read


def run(options: argparse.Namespace) -> int:
    from simdformer.parallel.link import LONG, measure_link
    from simdformer.parallel.plan import FLOAT, Link
    from simdformer.training.gradient_tree import PIECE

    check_meant(options)
    nbytes = FLOAT * PIECE if options.training else LONG
    alone = options.ranks.size == 1
    usual = Link(10e9 / 8, 20e-6) if alone else measure_link(options.ranks, nbytes)
    link = Link(options.link or usual.bandwidth, options.latency or usual.latency)
    # rank 0 speaks for all of a machine, whose cores its ranks divide; the others wait asleep
    options.ranks.broadcast(lambda: tell(options, link))
    return 0


def tell(options: argparse.Namespace, link: "Link") -> None:
    """Measures this machine and prints the plan."""
    config, types = model_of(options)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    alone = options.ranks.size == 1
    with sf.num_threads(sf.get_num_threads() if alone else len(os.sched_getaffinity(0))):
        if options.training:
            above, row = training_table(options, config, link, memory)
        else:
            above, row = serving_table(options, config, types, link, memory)
    print(above)
    rows = []
    for ranks in numbers_of_ranks(options.most):
        try:
            rows.append(row(ranks))
        except ValueError as error:
            why = output.describe(error)
            print(fill(why, 79, initial_indent=f"{ranks:>5}  ", subsequent_indent=" " * 7))
            break
        print(rows[-1])
    if any("*" in one for one in rows):
        print("* more memory than this machine has")


def numbers_of_ranks(most: int) -> list[int]:
    """1, 2, 4 ... and the most."""
    return [*(2**power for power in range((most - 1).bit_length())), most]


def check_meant(options: argparse.Namespace) -> None:
    """ValueError: an option of the other kind of plan."""
    others = ("type", "prompt") if options.training else TRAINING_ALONE
    for name in others:
        if getattr(options, name) is not None:
            option = "--" + name.replace("_", "-")
            raise ValueError(
                f"{option} is not for --training; leave one of them out"
                if options.training
                else f"{option} is for --training; give that too"
            )


def serving_table(
    options: argparse.Namespace,
    config: ModelConfig,
    types: Mapping[str, str],
    link: "Link",
    memory: int,
) -> tuple[str, Callable[[int], str]]:
    """What stands above the table, and a line of it for a number of ranks. This machine is measured
    for that."""
    from simdformer.bench.rates import measure_rates
    from simdformer.parallel.plan import Load, predict, sizes_of

    sizes = sizes_of(config, types)
    by_type: dict[str, float] = {}
    for name, size in sizes.items():
        by_type[types[name]] = by_type.get(types[name], 0.0) + size
    most = max(by_type, key=by_type.__getitem__)
    rates = measure_rates(config, most)
    load = Load(context=options.context or CONTEXT, prompt=options.prompt or PROMPT)
    above = (
        f"{config.summary}, {output.memory(int(sum(sizes.values())))} of weights, most of them "
        f"{most}\n"
        f"a machine like this one: {output.memory(memory)}, {rates.threads} threads, "
        f"{rates.read / 1e9:.1f} GB/s of {most},\n"
        f"  {rates.operations / 1e9:.0f} GFLOPS with a prompt, {rates.layer * 1e6:.0f} us more a "
        "layer\n"
        f"{output.link_line(link)}; KV cache: {load.context} positions; prompt: {load.prompt} ids"
        "\n\n"
    )

    def row(ranks: int) -> str:
        found = predict(
            config, types, rates, link, load, ranks, per_machine=options.ranks_per_machine
        )
        on_one = min(ranks, options.ranks_per_machine)
        return line(found, load.prompt, fits=on_one * found.memory < memory)

    return above + HEAD, row


ABOVE = ("", "a rank has", "one more token", "a prompt", "each sends")
BELOW = ("ranks", "memory", *("tok/s", "time", "link") * 2, "a token")
HEAD = "{:>5}  {:>11}   {:^21}   {:^21}   {:>11}\n".format(
    *ABOVE
) + "{:>5}  {:>11}   {:>8} {:>7} {:>4}   {:>8} {:>7} {:>4}   {:>11}".format(*BELOW)


def line(found: "Prediction", prompt: int, fits: bool) -> str:
    """A row of the table."""
    memory = output.memory(int(found.memory)) + (" " if fits else "*")
    token, link = found.token, found.token_link / found.token
    return (
        f"{found.ranks:>5}  {memory:>11}   "
        f"{output.figure(1 / token):>8} {output.duration(token):>7} {link:>4.0%}   "
        f"{output.figure(prompt / found.prompt):>8} {output.duration(found.prompt):>7} "
        f"{found.prompt_link / found.prompt:>4.0%}   {output.memory(int(found.token_sent)):>11}"
    )


def model_of(options: argparse.Namespace) -> tuple[ModelConfig, dict[str, str]]:
    """The config of MODEL, and what each of its tensors is held in, or would be."""
    path = locate(options.model)
    if path.suffix == ".json":
        config, dtype = config_alone(path)
        return config, planned_types(config, options.type or dtype or "bfloat16")
    checkpoint = read_checkpoint(path, options.format)
    config = checkpoint.config
    if options.type:
        return config, planned_types(config, options.type)
    return config, {name: kind_of(tensor) for name, tensor in checkpoint.weights.items()}
