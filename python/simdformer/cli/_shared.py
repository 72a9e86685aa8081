"""What the commands have in common: options, and how numbers are written for people."""

import argparse
import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.types import Array

if TYPE_CHECKING:
    from simdformer.text import LanguageModel

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = [
    "add_format",
    "add_model",
    "add_model_options",
    "add_sampling",
    "command",
    "count",
    "describe",
    "harmless",
    "hash_of",
    "load",
    "memory",
    "rate",
    "sampling_of",
    "write",
]

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def command(
    commands: "Commands",
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """A command of that name, with the options that all have. `run` gives the exit status."""
    parser = commands.add_parser(name, help=help, description=description, epilog=epilog)
    parser.set_defaults(command=run)
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--threads", type=int, metavar="N", help="how many threads compute (default: all cores)"
    )
    group.add_argument(
        "--isa", help="instruction set of the kernels: see `simdformer info` (default: the best)"
    )
    return parser


def add_model(parser: argparse.ArgumentParser, *, otherwise: str | None = None) -> None:
    """The argument MODEL; it may be left out where there is something to do `otherwise`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=Path,
        nargs="?" if otherwise else None,
        help="a checkpoint: a directory of Meta's or Hugging Face's, or a .pth or .bin file"
        + (f" (default: {otherwise})" if otherwise else ""),
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """The option --format."""
    parser.add_argument(
        "--format",
        choices=("meta", "huggingface", "minimind", "llama2.c"),
        help="of the checkpoint, where MODEL holds several",
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """How a checkpoint is loaded."""
    add_format(parser)
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="default: the one beside the model"
    )
    parser.add_argument(
        "--max-seq-len",
        type=int,
        metavar="N",
        help="longest text (default: what the model was made for)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="of the weights (default: the file's)",
    )


def load(options: argparse.Namespace) -> "LanguageModel":
    """The model that `add_model` and `add_model_options` asked for."""
    from simdformer.text import from_pretrained

    return from_pretrained(
        options.model,
        dtype=options.dtype,
        max_seq_len=options.max_seq_len,
        tokenizer=options.tokenizer,
        format=options.format,
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How the next token is chosen, and where the text ends."""
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0 (default): the likeliest token every time",
    )
    sampling.add_argument(
        "--top-k", type=int, metavar="K", help="choose among the K likeliest tokens"
    )
    sampling.add_argument(
        "--top-p", type=float, metavar="P", help="choose among the likeliest that sum up to P"
    )
    sampling.add_argument(
        "--min-p", type=float, metavar="P", help="leave out what is less than P times the likeliest"
    )
    sampling.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="X", help="> 1 avoids repetition"
    )
    sampling.add_argument(
        "--seed", type=int, metavar="N", help="makes a temperature above 0 repeatable"
    )
    sampling.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )


def sampling_of(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_sampling` asked for, as keywords of `LanguageModel.generate`."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
    return {name: getattr(options, name) for name in names}


def write(text: str) -> None:
    """To stdout at once. What a model says stays text, even on a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def harmless(text: str) -> str:
    """Control characters but the ends of lines and tabs become U+FFFD: they could move a terminal's
    cursor, change its title or its keys."""
    return CONTROLS.sub("\ufffd", text)


def rate(tokens: int, seconds: float) -> str:
    return f"{count(tokens, 'token')} at {tokens / max(seconds, 1e-9):,.0f} a second"


def memory(size: int) -> str:
    """Bytes for people: 1.5 GiB."""
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{size / 1024**power:.{1 if power else 0}f} {unit}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def describe(error: BaseException) -> str:
    """One line, whatever the message looks like."""
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, KeyError) and error.args:  # whose str() is a repr
        text = str(error.args[0])
    else:
        text = str(error)
    return harmless(" ".join(text.split())) or type(error).__name__


def hash_of(logits: Array) -> str:
    """Eight bytes that tell whether two runs computed the same to the last bit."""
    return hashlib.blake2b(np.ascontiguousarray(logits).tobytes(), digest_size=8).hexdigest()
