"""`simdformer run`: continue a text with a model."""

import argparse
import sys

import simdformer as sf
from simdformer.cli import _shared as shared
from simdformer.models.budget import decode_bytes
from simdformer.text import LanguageModel, Report

__all__ = ["add"]

DEFAULT_NEW_TOKENS = 256
FLOAT32 = 4  # bytes of a number in the KV cache
MOST_READ = 256 << 20  # bytes: more than the caches of most machines


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "run",
        run,
        help="continue a text with a model",
        description="Writes PROMPT and its continuation to stdout as it comes. Then, to stderr: "
        "tokens a second; bytes read a second to choose tokens, beside what this machine reads; a "
        "hash of the last logits.",
        epilog='example: simdformer run Llama-3.2-1B "Once upon a time" --max-new-tokens 100',
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
    model = shared.load(options)
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
        f"decode {shared.rate(report.decode_ids, report.decode_seconds)}"
        f"{bandwidth(model, report)}, "
        f"last logits {shared.hash_of(report.logits)}, {sf.isa()}, "
        f"{shared.count(sf.get_num_threads(), 'thread')}",
        file=sys.stderr,
    )
    return 0


def bandwidth(model: LanguageModel, report: Report) -> str:
    """Bytes read a second to choose tokens, beside what this machine reads of so many at a time."""
    from simdformer.bench.machine import read_rate  # the other commands start without it

    if not report.decode_ids:
        return ""
    middle = report.prompt_ids + report.decode_ids // 2  # as good as the mean: it grows evenly
    each = decode_bytes(model.config, model.transformer.weights, middle, FLOAT32)
    found = each * report.decode_ids / report.decode_seconds
    possible = read_rate(min(each, MOST_READ))
    return f" ({found / 1e9:.1f} of {possible / 1e9:.1f} GB/s)"


def new_tokens(model: LanguageModel, options: argparse.Namespace) -> int | None:
    """As many as asked for, else as usual or as the model has room for; None leaves the complaint
    to `generate`."""
    if options.max_new_tokens is not None or model.tokenizer is None:
        wanted: int | None = options.max_new_tokens
        return wanted
    room = model.config.max_seq_len - len(model.tokenizer.encode(options.prompt))
    return min(room, DEFAULT_NEW_TOKENS) if room > 0 else None
