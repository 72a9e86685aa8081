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
from simdformer.models import ModelConfig
from simdformer.models.tensors import kind_of

if TYPE_CHECKING:
    from simdformer.parallel.plan import Prediction

__all__ = ["add"]

AMOUNT = re.compile(r"([0-9.]+)\s*([A-Za-z/]+)")
BYTES_A_SECOND = {
    f"{prefix}{unit}/s": 10**power / bits
    for prefix, power in (("M", 6), ("G", 9))
    for unit, bits in (("b", 8), ("bit", 8), ("B", 1))
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "plan",
        run,
        over_ranks=True,
        arguments="MODEL",
        help="memory and tokens a second of a model on several machines, before there are any",
        description="Measures this machine for some seconds and predicts from the shapes of MODEL "
        "what it takes on 1, 2, 4 ... ranks: memory of each, time of a token and of a prompt, and "
        "how much of it is waiting for the link. Nothing of the weights is read, and MODEL may be "
        "a config.json without any.",
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
        default=4096,
        metavar="N",
        help="positions of the KV cache, all of them filled (default: 4096)",
    )
    parser.add_argument(
        "--prompt", type=values.whole(), default=512, metavar="N", help="ids (default: 512)"
    )


def amount(units: Mapping[str, float], needed: str) -> Callable[[str], float]:
    """A number > 0 and one of the units, as a multiple of what the table has as 1."""

    def read(text: str) -> float:
        found = AMOUNT.fullmatch(text.strip())
        if found is None or found[2] not in units:
            raise values.refused(text, needed)
        return values.number(needed, lambda x: x > 0)(found[1]) * units[found[2]]

    return read


def run(options: argparse.Namespace) -> int:
    from simdformer.bench.rates import measure_rates
    from simdformer.parallel.link import measure_link
    from simdformer.parallel.plan import Link, Load, predict, sizes_of

    usual = Link(10e9 / 8, 20e-6) if options.ranks.size == 1 else measure_link(options.ranks)
    link = Link(options.link or usual.bandwidth, options.latency or usual.latency)
    if options.ranks.rank > 0:
        return 0  # the others have told what the link does
    config, types = model_of(options)
    sizes = sizes_of(config, types)
    by_type: dict[str, float] = {}
    for name, size in sizes.items():
        by_type[types[name]] = by_type.get(types[name], 0.0) + size
    most = max(by_type, key=by_type.__getitem__)
    # the ranks of a machine divide its cores; here one speaks for all of it
    alone = options.ranks.size == 1
    with sf.num_threads(sf.get_num_threads() if alone else len(os.sched_getaffinity(0))):
        rates = measure_rates(config, most)
    load = Load(context=options.context, prompt=options.prompt)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    print(
        f"{config.summary}, {output.memory(int(sum(sizes.values())))} of weights, most of them "
        f"{most}\n"
        f"a machine like this one: {output.memory(memory)}, {rates.threads} threads, "
        f"{rates.read / 1e9:.1f} GB/s of {most},\n"
        f"  {rates.operations / 1e9:.0f} GFLOPS with a prompt, {rates.layer * 1e6:.0f} us more a "
        "layer\n"
        f"link: {link.bandwidth * 8e-9:.3g} Gb/s, {link.latency * 1e6:.3g} us; KV cache: "
        f"{load.context} positions; prompt: {load.prompt} ids\n"
    )
    print(HEAD)
    ranks, told = 1, 0.0
    while True:
        try:
            found = predict(
                config, types, rates, link, load, ranks, per_machine=options.ranks_per_machine
            )
        except ValueError as error:
            why = output.describe(error)
            print(fill(why, 79, initial_indent=f"{ranks:>5}  ", subsequent_indent=" " * 7))
            break
        on_one = min(ranks, options.ranks_per_machine)
        print(line(found, load.prompt, fits=on_one * found.memory < memory))
        told = max(told, found.memory if on_one * found.memory >= memory else 0.0)
        if ranks == options.most:
            break
        ranks = min(2 * ranks, options.most)
    if told:
        print("* more memory than this machine has")
    return 0


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
        f"{rate(1 / token):>8} {output.duration(token):>7} {link:>4.0%}   "
        f"{rate(prompt / found.prompt):>8} {output.duration(found.prompt):>7} "
        f"{found.prompt_link / found.prompt:>4.0%}   {output.memory(int(found.token_sent)):>11}"
    )


def rate(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


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
