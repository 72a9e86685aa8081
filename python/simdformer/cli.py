"""The command `simdformer`: run a model, walk through one attention step, show how the library is
set up.

What was asked for goes to stdout, everything about it to stderr. Exit status: 0, 1 when a check of
the demonstration fails, 2 for an error (one line on stderr), 130 after Ctrl-C.
"""

import argparse
import contextlib
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import simdformer as sf
from simdformer import demo
from simdformer.models import read_checkpoint
from simdformer.models.budget import cache_bytes, parameter_budget, weight_bytes
from simdformer.text import LanguageModel, Report, from_pretrained
from simdformer.text.language_model import find_tokenizer

__all__ = ["main"]

DEFAULT_NEW_TOKENS = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit status."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            AttributeError
        ):  # a replaced stream; what a terminal cannot show becomes "?"
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    options = parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except BrokenPipeError:  # `simdformer run ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except (OSError, ValueError, TypeError, MemoryError, ImportError) as error:
        print(f"simdformer: error: {describe(error)}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="simdformer",
        description="A transformer you can see through: run a model, or watch one attention step.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    machine = argparse.ArgumentParser(add_help=False)
    group = machine.add_argument_group("machine")
    group.add_argument(
        "--threads", type=int, metavar="N", help="how many threads compute (default: all cores)"
    )
    group.add_argument(
        "--isa", help="instruction set of the kernels: see `simdformer info` (default: the best)"
    )

    run = commands.add_parser(
        "run",
        parents=[machine],
        help="continue a text with a model",
        description="Writes PROMPT and its continuation to stdout as it comes, then speed and a "
        "hash of the last logits to stderr.",
        epilog='example: simdformer run stories260K.bin "Once upon a time" --max-new-tokens 100',
    )
    run.set_defaults(command=run_command)
    run.add_argument(
        "model",
        metavar="MODEL",
        type=Path,
        help="a checkpoint: a directory of Meta's or Hugging Face's, or a .pth or .bin file",
    )
    run.add_argument(
        "prompt", metavar="PROMPT", nargs="?", default="", help="text to continue (default: none)"
    )
    run.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="default: the one beside the model"
    )
    run.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="how long the continuation may get (default: "
        f"{DEFAULT_NEW_TOKENS}, or what the model has room for)",
    )
    run.add_argument(
        "--max-seq-len",
        type=int,
        metavar="N",
        help="longest text (default: what the model was made for)",
    )
    run.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="of the weights (default: the file's)",
    )
    sampling = run.add_argument_group("sampling")
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

    show = commands.add_parser(
        "demo",
        parents=[machine],
        help="one attention step checked line by line, then a story by a trained model",
        description="Walks through one attention step, numpy beside the kernels, then lets a "
        "trained model write. Exit status 1 when a check fails.",
    )
    show.set_defaults(command=demo_command)
    show.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=Path,
        help=f"the trained model (default: ${demo.VARIABLE}, else {demo.DEFAULT_MODEL})",
    )

    info = commands.add_parser(
        "info",
        parents=[machine],
        help="how the library is set up, or the config of a model",
        description="Without MODEL: version, instruction sets and threads. With MODEL: its config, "
        "how many parameters each part has, and the memory it will take.",
    )
    info.set_defaults(command=info_command)
    info.add_argument("model", metavar="MODEL", nargs="?", type=Path, help="a checkpoint")
    return top


def run_command(options: argparse.Namespace) -> int:
    use_machine(options)
    model = from_pretrained(
        options.model,
        dtype=options.dtype,
        max_seq_len=options.max_seq_len,
        tokenizer=options.tokenizer,
    )
    report = Report()
    write(options.prompt)
    model.generate(
        options.prompt,
        max_new_tokens=new_tokens(model, options),
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        stop=options.stop,
        streamer=write,
        report=report,
    )
    write("\n")
    print(
        f"prefill {rate(report.prompt_ids, report.prefill_seconds)}, "
        f"decode {rate(report.decode_ids, report.decode_seconds)}, "
        f"last logits {hash_of(report.logits)}, {sf.isa()}, "
        f"{count(sf.get_num_threads(), 'thread')}",
        file=sys.stderr,
    )
    return 0


def demo_command(options: argparse.Namespace) -> int:
    use_machine(options)
    return demo.run(options.model)


def info_command(options: argparse.Namespace) -> int:
    use_machine(options)
    if options.model is None:
        sf.show_config()
        return 0
    checkpoint = read_checkpoint(options.model)
    config = checkpoint.config
    tokenizer = find_tokenizer(checkpoint)
    dtypes = sorted({str(tensor.dtype) for tensor in checkpoint.weights.values()})
    rows = {"format": checkpoint.format} | vars(config)
    rows["dtype"] = " and ".join(dtypes)
    rows["tokenizer"] = f"{tokenizer.vocab_size} tokens" if tokenizer else "none found"
    rows["end of text"] = ", ".join(map(str, checkpoint.eos_ids)) or "as the tokenizer says"
    budget = parameter_budget(config)
    total = sum(budget.values())
    for part, parameters in budget.items():
        rows[part] = f"{parameters:,} parameters, {parameters / total:.1%}"
    rows["all"] = f"{total:,} parameters"
    rows["weights"] = memory(weight_bytes(config, checkpoint.weights, None))
    per_id, full = (cache_bytes(config, length, 4) for length in (1, config.max_seq_len))
    rows["KV cache"] = f"{memory(full)} in float32 ({memory(per_id)} an id), half of it in 16 bits"
    for name, value in rows.items():
        print(f"{name:<18} {value}")
    return 0


def use_machine(options: argparse.Namespace) -> None:
    if options.threads is not None:
        sf.set_num_threads(options.threads)
    if options.isa is not None:
        sf.set_isa(options.isa)


def new_tokens(model: LanguageModel, options: argparse.Namespace) -> int | None:
    """As many as asked for, else as usual or as the model has room for; None leaves the complaint
    to `generate`."""
    if options.max_new_tokens is not None or model.tokenizer is None:
        wanted: int | None = options.max_new_tokens
        return wanted
    room = model.config.max_seq_len - len(model.tokenizer.encode(options.prompt))
    return min(room, DEFAULT_NEW_TOKENS) if room > 0 else None


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def rate(tokens: int, seconds: float) -> str:
    return f"{count(tokens, 'token')} at {tokens / max(seconds, 1e-9):,.0f} a second"


def memory(size: int) -> str:
    """Bytes for people: 1.5 GiB."""
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{size / 1024**power:.{1 if power else 0}f} {unit}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def hash_of(logits: np.ndarray) -> str:
    """Eight bytes that tell whether two runs computed the same to the last bit."""
    return hashlib.blake2b(np.ascontiguousarray(logits).tobytes(), digest_size=8).hexdigest()


def describe(error: BaseException) -> str:
    """One line, whatever the message looks like."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
