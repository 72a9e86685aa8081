"""What the commands have in common: the parser, and the arguments that several of them take."""

import argparse
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from simdformer import _core
from simdformer.checkpoints import FORMATS
from simdformer.cli import _values as values
from simdformer.cli._output import count, describe
from simdformer.models.communicator import Communicator
from simdformer.text.sampling import OPTIONS

if TYPE_CHECKING:
    from simdformer.text import Batch, LanguageModel, Report
    from simdformer.text.tokenizer import Tokenizer

    Commands = argparse._SubParsersAction["Parser"]

__all__ = [
    "DTYPES",
    "USUAL_NEW_TOKENS",
    "Parser",
    "add_draft",
    "add_format",
    "add_machine",
    "add_model",
    "add_model_options",
    "add_new_tokens",
    "add_prompt",
    "add_sampling",
    "command",
    "draft_of",
    "drafted",
    "load",
    "new_tokens",
    "prompt_of",
    "readable",
    "sampling_of",
    "tokenizer_of",
]

DTYPES = ("float32", "float16", "bfloat16")  # of weights
USUAL_NEW_TOKENS = 256  # where there is room
OPTION = re.compile(r"-[^ ]+$")  # not -, nor a text that begins with it


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and in a second one how the command is written."""

    def error(self, message: str) -> NoReturn:
        wrong = describe(ValueError(message.removeprefix("argument ")))
        self.exit(2, f"{self.prog}: error: {wrong}\n{self.format_usage()}")

    def behind_options(self, options: argparse.Namespace, unknown: list[str]) -> list[str]:
        """What is still unknown when an argument that may be left out takes what stands behind
        options. There argparse has taken it for left out (before Python 3.13)."""
        for action in self._get_positional_actions():
            rest = unknown[1:] if unknown[:1] == ["--"] else unknown
            missing = action.nargs == "?" and getattr(options, action.dest) is None
            if rest and missing and (rest is not unknown or not OPTION.match(rest[0])):
                setattr(options, action.dest, rest[0])
                unknown = rest[1:]
        return unknown


def command(
    commands: "Commands",
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    arguments: str = "",
    epilog: str | None = None,
    over_ranks: bool = False,
) -> Parser:
    """A command of that name. `run` gives the exit status; `arguments` are those without dashes,
    as the first line of the help shows them; `over_ranks` says whether mpiexec may start it on
    several, which then are in `options.ranks`."""
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=epilog,
        usage=f"simdformer {name} {arguments} [options]".replace("  ", " "),
    )
    parser.set_defaults(command=run, parser=parser, name=name, over_ranks=over_ranks)
    return parser


def add_machine(parser: argparse.ArgumentParser) -> None:
    """What every command takes: threads and instruction set."""
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--threads",
        type=values.whole(1, _core.MAX_THREADS),
        metavar="N",
        help="how many threads compute (default: all cores)",
    )
    group.add_argument(
        "--isa",
        type=values.isa,
        help="instruction set of the kernels: see `simdformer info` (default: the best)",
    )


def add_model(parser: argparse.ArgumentParser, *, otherwise: str | None = None) -> None:
    """The argument MODEL; it may be left out where there is something to do `otherwise`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if otherwise else None,
        help="a checkpoint: a directory of Meta's or Hugging Face's, or a .gguf, .pth or .bin "
        "file; or Owner/Name of a model that `hf download` has fetched; or demo, the small model "
        "that comes with the package" + (f" (default: {otherwise})" if otherwise else ""),
    )


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """The argument PROMPT."""
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        help="the text that the model reads; - or none: standard input, without "
        "newlines at its end",
    )


def prompt_of(options: argparse.Namespace) -> str:
    """The PROMPT, or what standard input holds."""
    text: str = options.ranks.broadcast(lambda: read_prompt(options))
    return text


def read_prompt(options: argparse.Namespace) -> str:
    if options.prompt not in (None, "-"):
        return readable(options.prompt)
    if sys.stdin is None or (options.prompt is None and sys.stdin.isatty()):
        raise ValueError(
            'PROMPT is missing; write it behind MODEL ("Once upon a time"; "" for a text from '
            "nothing), or send it through a pipe"
        )
    return readable(sys.stdin.read().rstrip("\n"))  # as $(...) of a shell does


def readable(text: str) -> str:
    """ValueError for what was no text in the terminal's encoding: Python escapes such bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start + 1} of what was given"
        raise ValueError(f"{where} cannot be read; it should be UTF-8") from None
    return text


def add_new_tokens(parser: argparse.ArgumentParser, what: str, *, most: int | None = None) -> None:
    """The option --max-new-tokens; without it there are as many as fit, or `most`."""
    usual = "" if most is None else f"{most}, or "
    parser.add_argument(
        "--max-new-tokens",
        type=values.whole(),
        metavar="N",
        help=f"how long {what} may get (default: {usual}what the model has room for)",
    )


def new_tokens(model: "LanguageModel", prompt_ids: int, options: argparse.Namespace) -> int:
    """As many as --max-new-tokens says, else as usual or as there is room for behind a prompt.
    ValueError: the prompt is empty, or they do not fit."""
    wanted, limit = options.max_new_tokens, model.config.max_seq_len
    if prompt_ids == 0:
        raise ValueError("the prompt is empty, and no token begins a text of this model")
    if limit - prompt_ids < (wanted or 1):
        asked = f"--max-new-tokens is {wanted}, but " if wanted else ""
        raise ValueError(
            f"{asked}the prompt has {count(prompt_ids, 'token')} and the model is made for "
            f"{limit}; shorten it, or give a greater --max-seq-len"
        )
    return wanted or min(limit - prompt_ids, USUAL_NEW_TOKENS)


def add_format(parser: argparse._ActionsContainer) -> None:
    """The option --format."""
    parser.add_argument(
        "--format",
        choices=[format.name for format in FORMATS],
        help="of the checkpoint, where MODEL holds several",
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """How a checkpoint is loaded."""
    group = parser.add_argument_group("model")
    add_format(group)
    group.add_argument(
        "--tokenizer",
        type=values.existing,
        metavar="FILE",
        help="a tokenizer (default: the one beside the model)",
    )
    group.add_argument(
        "--max-seq-len",
        type=values.whole(),
        metavar="N",
        help="longest text in tokens (default: what the model was made for)",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of the weights (default: the file's)",
    )
    group.add_argument(
        "--adapter",
        type=values.text,
        metavar="DIR",
        help="an adapter of `simdformer train --lora`, or of peft, beside the model",
    )


def load(options: argparse.Namespace, ranks: Communicator | None = None) -> "LanguageModel":
    """The model that `add_model` and `add_model_options` asked for, held by all ranks together, or
    by these."""
    from simdformer.text import from_pretrained

    return from_pretrained(
        options.model,
        dtype=options.dtype,
        max_seq_len=options.max_seq_len,
        tokenizer=options.tokenizer,
        format=options.format,
        adapter=options.adapter,
        comm=ranks or options.ranks,
    )


def tokenizer_of(model: "LanguageModel", options: argparse.Namespace) -> "Tokenizer":
    """The model's; ValueError when it has none."""
    if model.tokenizer is None:
        raise ValueError(
            f"{options.model}: no tokenizer was found beside it; give one with --tokenizer FILE"
        )
    return model.tokenizer


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How the next token is chosen, and where the text ends."""
    group = parser.add_argument_group("sampling")
    for option in OPTIONS:
        group.add_argument(
            f"--{option.name.replace('_', '-')}",
            type=values.number(f"a number {option.needed}", option.allowed)
            if option.least is None
            else values.whole(option.least),
            default=option.default,
            metavar=option.metavar,
            help=option.help,
        )
    group.add_argument(
        "--stop",
        type=values.text,
        action="append",
        metavar="TEXT",
        help="end before this text; may be repeated",
    )


def add_draft(parser: argparse.ArgumentParser) -> None:
    """The option --draft."""
    parser.add_argument(
        "--draft",
        type=values.text,
        metavar="prompt|MODEL",
        help="who guesses the next tokens, which are then read together: what followed the same "
        "tokens before (prompt), or a smaller model of the same vocabulary; the text is the same, "
        "one that repeats itself comes faster",
    )


def draft_of(options: argparse.Namespace, model: "LanguageModel") -> "LanguageModel | str | None":
    """What `add_draft` asked for. ValueError: the model has another vocabulary."""
    name: str | None = options.draft
    if name is None or name == "prompt":
        return name
    from simdformer.text import from_pretrained

    draft = from_pretrained(name)
    found, needed = draft.config.vocab_size, model.config.vocab_size
    if found != needed:
        raise ValueError(
            f"--draft: {name} has a vocabulary of {found}, needs that of {options.model}, {needed}"
        )
    return draft


def drafted(counts: "Report | Batch") -> str:
    """What drafts were worth, for a line of statistics; "" where nothing was drafted."""
    if not counts.drafted:
        return ""
    return f", {counts.accepted:,} of {counts.drafted:,} drafted tokens accepted"


def sampling_of(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_sampling` asked for, as keywords of `LanguageModel.generate`."""
    names = (*(option.name for option in OPTIONS), "stop")
    return {name: getattr(options, name) for name in names}
