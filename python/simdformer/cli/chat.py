"""`simdformer chat`: a conversation at the terminal."""

import argparse
import contextlib
import sys
from typing import Any

from simdformer.cli import _shared as shared
from simdformer.text import LanguageModel

__all__ = ["add"]

RESET = "/reset"
PROMPT = "> "


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "chat",
        run,
        help="talk with a model",
        description="A conversation: you write a line, the model answers, in the form that the "
        "checkpoint's own chat template gives it. Ctrl-C stops an answer, "
        f"{RESET} forgets what was said, Ctrl-D ends.",
    )
    shared.add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told beforehand")
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="how long an answer may get (default: what the model has room for)",
    )
    shared.add_model_options(parser)
    shared.add_sampling(parser)


def run(options: argparse.Namespace) -> int:
    model = shared.load(options)
    if model.tokenizer is None or model.chat_template is None:
        what = "tokenizer" if model.tokenizer is None else "chat template"
        raise ValueError(f"{options.model}: no {what} was found; a chat needs a model made for it")
    beginning = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(beginning)
    while (line := next_line()) is not None:
        if line == RESET:
            messages = list(beginning)
        elif line:
            said = {"role": "user", "content": line}
            try:
                text = answer(model, [*messages, said], options)
            except ValueError as error:  # too long, or the template minds; nothing was said
                print(f"{shared.describe(error)}; {RESET} begins anew", file=sys.stderr)
            else:
                messages += [said, {"role": "assistant", "content": text}]
    return 0


def next_line() -> str | None:
    """What is typed next; None at the end. Ctrl-C begins the line anew."""
    while True:
        try:
            if sys.stdin.isatty():
                return input(PROMPT).strip()
            line = sys.stdin.readline()
            return line.strip() if line else None
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()


def answer(
    model: LanguageModel, messages: list[dict[str, str]], options: argparse.Namespace
) -> str:
    """Writes what the model says as it comes; after Ctrl-C it is what had come."""
    streamer = Kept()
    with contextlib.suppress(KeyboardInterrupt):
        model.chat(
            messages, options.max_new_tokens, streamer=streamer, **shared.sampling_of(options)
        )
    return streamer.text


class Kept:
    """Writes what comes, and keeps it."""

    def __init__(self) -> None:
        self.text = ""

    def put(self, piece: Any, /) -> None:
        self.text += piece
        shared.write(piece)

    def end(self) -> None:
        shared.write("\n")
