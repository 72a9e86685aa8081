"""`simdformer run`: continue a text with a model."""

import argparse
import sys

import simdformer as sf
from simdformer.cli import _shared as shared
from simdformer.text import LanguageModel, Report, from_pretrained

__all__ = ["add"]

DEFAULT_NEW_TOKENS = 256


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "run",
        run,
        help="continue a text with a model",
        description="Writes PROMPT and its continuation to stdout as it comes, then speed and a "
        "hash of the last logits to stderr.",
        epilog='example: simdformer run stories260K.bin "Once upon a time" --max-new-tokens 100',
    )
    shared.add_model(parser)
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="?", default="", help="text to continue (default: none)"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="how long the continuation may get (default: "
        f"{DEFAULT_NEW_TOKENS}, or what the model has room for)",
    )
    shared.add_model_options(parser)
    shared.add_sampling(parser)


def run(options: argparse.Namespace) -> int:
    model = from_pretrained(
        options.model,
        dtype=options.dtype,
        max_seq_len=options.max_seq_len,
        tokenizer=options.tokenizer,
    )
    report = Report()
    shared.write(options.prompt)
    model.generate(
        options.prompt,
        max_new_tokens=new_tokens(model, options),
        streamer=shared.write,
        report=report,
        **shared.sampling_of(options),
    )
    shared.write("\n")
    print(
        f"prefill {shared.rate(report.prompt_ids, report.prefill_seconds)}, "
        f"decode {shared.rate(report.decode_ids, report.decode_seconds)}, "
        f"last logits {shared.hash_of(report.logits)}, {sf.isa()}, "
        f"{shared.count(sf.get_num_threads(), 'thread')}",
        file=sys.stderr,
    )
    return 0


def new_tokens(model: LanguageModel, options: argparse.Namespace) -> int | None:
    """As many as asked for, else as usual or as the model has room for; None leaves the complaint
    to `generate`."""
    if options.max_new_tokens is not None or model.tokenizer is None:
        wanted: int | None = options.max_new_tokens
        return wanted
    room = model.config.max_seq_len - len(model.tokenizer.encode(options.prompt))
    return min(room, DEFAULT_NEW_TOKENS) if room > 0 else None
