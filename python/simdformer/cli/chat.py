"""`simdformer chat`: a conversation at the terminal."""

import argparse
import contextlib
import sys
from typing import Any

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.text import LanguageModel, Report

__all__ = ["add"]

PROMPT = "> "
HELP, RESET, EXIT = "/help", "/reset", "/exit"
COMMANDS = {
    HELP: "shows this",
    RESET: "forgets what was said",
    EXIT: "ends the conversation, and so does Ctrl-D",
}


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "chat",
        run,
        arguments="MODEL",
        help="talk with a model",
        description="A conversation: you write a line, the model answers, in the form that the "
        "checkpoint's own chat template gives it. Ctrl-C stops an answer, "
        f"{RESET} forgets what was said, {EXIT} or Ctrl-D ends.",
        epilog='example: simdformer chat Qwen/Qwen3-0.6B --system "Answer in one sentence."',
        over_ranks=True,
    )
    shared.add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told beforehand")
    shared.add_new_tokens(parser, "an answer")
    shared.add_draft(parser)
    shared.add_model_options(parser)
    shared.add_sampling(parser)


def run(options: argparse.Namespace) -> int:
    if sys.stdin is None:
        raise ValueError("standard input is closed, and a chat reads from it")
    model = shared.load(options)
    shared.tokenizer_of(model, options)
    if model.chat_template is None:
        raise ValueError(
            f"{options.model}: no chat template was found; a chat needs a model made for it, "
            "`simdformer run` continues a text with any"
        )
    if sys.stdin.isatty():
        print(f"Write a line, {options.model} answers. {HELP} tells more.", file=sys.stderr)
    converse(model, options, draft=shared.draft_of(options, model))
    return 0


def converse(
    model: LanguageModel, options: argparse.Namespace, draft: LanguageModel | str | None
) -> None:
    beginning = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(beginning)
    cache = model.new_cache()  # what was said is not read again
    how = {"cache": cache, "draft": draft, **shared.sampling_of(options)}
    while (line := options.ranks.broadcast(next_line)) is not None:
        if line.startswith("/"):
            command = line.strip()
            if command == EXIT:
                return
            if command == RESET:
                messages = list(beginning)
            else:
                print(about_commands(command), file=sys.stderr)
        elif line.strip():
            said = {"role": "user", "content": line.strip()}
            try:
                shared.readable(line)
                text = answer(model, [*messages, said], options, how)
            except ValueError as error:  # too long, or the template minds; nothing was said
                print(f"{output.describe(error)}; {RESET} begins anew", file=sys.stderr)
            else:
                messages += [said, {"role": "assistant", "content": text}]


def about_commands(command: str) -> str:
    """What /help shows, or what is said to a command that does not exist."""
    if command == HELP:
        rows = [f"{name:<8} {what}" for name, what in COMMANDS.items()]
        return "\n".join([*rows, "Ctrl-C   stops an answer"])
    return (
        f"{output.harmless(command)}: no such command, there are {', '.join(COMMANDS)}; "
        "a space in front makes it text"
    )


def next_line() -> str | None:
    """What is typed next; None at the end. Ctrl-C begins the line anew."""
    while True:
        try:
            if sys.stdin.isatty():
                with contextlib.suppress(ImportError):  # where it is, arrow keys work
                    import readline  # noqa: F401
                return input(PROMPT)
            return sys.stdin.readline() or None
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()


def answer(
    model: LanguageModel,
    messages: list[dict[str, str]],
    options: argparse.Namespace,
    how: dict[str, Any],
) -> str:
    """Writes what the model says as it comes; after Ctrl-C it is what had come. `how` are options
    of `generate`."""
    streamer, report = Kept(), Report()
    # One of several ranks cannot stop alone: there Ctrl-C ends the conversation.
    stops = (KeyboardInterrupt,) if options.ranks.size == 1 else ()
    with contextlib.suppress(*stops):
        model.chat(messages, options.max_new_tokens, streamer=streamer, report=report, **how)
    if worth := shared.drafted(report):
        print(worth.removeprefix(", "), file=sys.stderr)
    return streamer.text


class Kept:
    """Writes what comes, and keeps it."""

    def __init__(self) -> None:
        self.text = ""

    def put(self, piece: Any, /) -> None:
        self.text += piece
        output.write(piece)

    def end(self) -> None:
        output.write("\n")
