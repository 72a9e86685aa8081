"""`simdformer run`: continue a text with a model."""

import argparse
import sys
import time

import simdformer as sf
from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.models.budget import decode_bytes
from simdformer.text import LanguageModel, Report

__all__ = ["add"]

FORWARDED = 0.1  # seconds: mpiexec passes on what comes to stdout and stderr in any order
FLOAT32 = 4  # bytes of a number in the KV cache
MOST_READ = 256 << 20  # bytes: more than the caches of most machines


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "run",
        run,
        arguments="MODEL [PROMPT]",
        help="continue a text with a model",
        description="Writes PROMPT and its continuation to stdout as it comes. Then, to stderr: "
        "tokens a second; bytes read a second to choose tokens, beside what this machine reads; a "
        "hash of the last logits.",
        epilog='example: simdformer run demo "Once upon a time" --temperature 0.8 --seed 1; on two '
        'ranks: mpiexec -n 2 simdformer run demo "Once upon a time"',
        over_ranks=True,
    )
    shared.add_model(parser)
    shared.add_prompt(parser)
    shared.add_new_tokens(parser, "the continuation", most=shared.USUAL_NEW_TOKENS)
    shared.add_draft(parser)
    parser.add_argument(
        "--profile",
        action="store_true",
        help="then, to stderr, what each operation took, beside what this machine could do",
    )
    shared.add_model_options(parser)
    shared.add_sampling(parser)


def run(options: argparse.Namespace) -> int:
    prompt = shared.prompt_of(options)
    model = shared.load(options)
    prompt_ids = len(shared.tokenizer_of(model, options).encode(prompt))
    wanted = shared.new_tokens(model, prompt_ids, options)
    report, draft = Report(), shared.draft_of(options, model)
    choices = {
        "max_new_tokens": wanted,
        "streamer": output.write,
        "report": report,
        "draft": draft,
        **shared.sampling_of(options),
    }
    output.write(prompt)
    profile = None
    if options.profile:
        from simdformer import bench  # the other commands start without it

        profile = bench.profile(model, prompt, **choices)
    else:
        model.generate(prompt, **choices)
    output.write("\n")
    if options.ranks.size > 1:
        time.sleep(FORWARDED)
    print(
        f"prefill {output.rate(report.prompt_ids, report.prefill_seconds)}, "
        f"decode {output.rate(report.decode_ids, report.decode_seconds)}"
        f"{bandwidth(model, report)}{shared.drafted(report)}, "
        f"last logits {output.hash_of(report.logits)}, {sf.isa()}, "
        f"{over_ranks(options)}{output.count(sf.get_num_threads(), 'thread')}",
        file=sys.stderr,
    )
    if profile is not None:
        print(f"\n{profile}", file=sys.stderr)
    return 0


def over_ranks(options: argparse.Namespace) -> str:
    return f"{options.ranks.size} ranks of " if options.ranks.size > 1 else ""


def bandwidth(model: LanguageModel, report: Report) -> str:
    """Bytes read a second to choose tokens, beside what this machine reads of so many at a time."""
    from simdformer.bench.machine import read_rate  # the other commands start without it

    if not report.decode_ids or model.transformer.ranks.size > 1:
        return ""
    middle = report.prompt_ids + report.decode_ids // 2  # as good as the mean: it grows evenly
    each = decode_bytes(model.config, model.transformer.weights, middle, FLOAT32)
    steps = report.decode_ids - report.accepted  # what was drafted is read together
    found = each * steps / report.decode_seconds
    possible = read_rate(min(each, MOST_READ))
    return f" ({found / 1e9:.1f} of {possible / 1e9:.1f} GB/s)"
