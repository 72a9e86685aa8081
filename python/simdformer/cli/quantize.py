"""`simdformer quantize`: a model as a GGUF file in few bits."""

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from simdformer.checkpoints.gguf_mixtures import MIXTURES
from simdformer.cli import _output as output
from simdformer.cli import _shared as shared

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "quantize",
        run,
        arguments="MODEL OUT.gguf",
        help="write a model in 4 to 8 bits a weight, as a file of llama.cpp",
        description="Writes the weights of MODEL in few bits, with its config, tokenizer and chat "
        "template, into a GGUF file that this package and llama.cpp read, and tells the error "
        "that each kind of tensor has got.",
        epilog="example: simdformer quantize Qwen/Qwen3-0.6B qwen3.gguf --type q4_k_m",
    )
    shared.add_model(parser)
    parser.add_argument("out", metavar="OUT.gguf", type=Path, help="the file to be written")
    parser.add_argument(
        "--type",
        choices=MIXTURES,
        default="q4_k_m",
        help="how many bits (default: q4_k_m, which is 4.8 a weight in most models)",
    )
    parser.add_argument("--no-tokenizer", action="store_true", help="leave the tokenizer out")
    parser.add_argument("--force", action="store_true", help="replace OUT.gguf where it exists")
    shared.add_format(parser)


def run(options: argparse.Namespace) -> int:
    from simdformer.text.quantizing import quantize_checkpoint

    if options.out.exists() and not options.force:
        raise FileExistsError(f"{options.out} exists; --force replaces it")
    with ended_by_signals():
        made = quantize_checkpoint(
            options.model,
            options.out,
            options.type,
            tokenizer=not options.no_tokenizer,
            format=options.format,
        )
    print(f"{'tensors':<14} {'types':<14} error")
    for kind, (types, error) in made.losses.items():
        print(f"{kind:<14} {', '.join(types):<14} {error:.2%}")
    size = output.memory(made.nbytes)
    print(f"{made.path}: {size}, {made.bits_per_parameter:.3g} bits a parameter")
    return 0


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """What asks a process to end does it as Ctrl-C does: no part of a file is left behind."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the tidying up
        raise SystemExit(128 + number)

    asked = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL  # nohup's stays as it is
    ]
    for number in asked:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in asked:
            signal.signal(number, signal.SIG_DFL)
