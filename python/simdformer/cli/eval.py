"""`simdformer eval`: the perplexity of a text file."""

import argparse
from pathlib import Path

from simdformer.cli import _shared as shared
from simdformer.cli import _values as values

__all__ = ["add"]


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "eval",
        run,
        arguments="MODEL FILE",
        help="measure how well a model predicts a text: its perplexity",
        description="Reads FILE in windows that overlap, and prints the perplexity (exp of the "
        "mean loss in nats) with its standard error. Every token is counted once.",
        epilog="example: simdformer eval demo story.txt --stride 64",
        over_ranks=True,
    )
    shared.add_model(parser)
    parser.add_argument("file", metavar="FILE", type=values.existing, help="text in UTF-8")
    parser.add_argument(
        "--window",
        type=values.whole(2),
        metavar="N",
        help="tokens read at a time (default: max_seq_len)",
    )
    parser.add_argument(
        "--stride",
        type=values.whole(),
        metavar="N",
        help="by how much windows differ (default: half of one)",
    )
    shared.add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    from simdformer.text.loss import perplexity

    text = options.ranks.broadcast(lambda: read(options.file))
    model = shared.load(options)
    tokenizer = shared.tokenizer_of(model, options)
    ids = tokenizer.encode(text)
    bos_id = tokenizer.bos_id
    if len(ids) < 2:
        raise ValueError(f"{options.file}: the text has fewer than two tokens, needs at least two")
    found = perplexity(
        model.transformer,
        ids,
        window=options.window,
        stride=options.stride,
        bos_id=bos_id if ids[:1] == [bos_id] else None,
    )
    print(f"perplexity {found.value:.4f} ± {found.error:.4f} over {found.count:,} tokens")
    return 0


def read(file: Path) -> str:
    """The text in a file. ValueError: it is none."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: found bytes that are not UTF-8 ({error})") from None
