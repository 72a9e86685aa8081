"""`simdformer look`: a page that shows a model reading a text."""

import argparse
import sys
import webbrowser
from pathlib import Path

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values

__all__ = ["add"]

PAGE = Path("look.html")
MOST_TOKENS = 200


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "look",
        run,
        arguments="MODEL [PROMPT]",
        help="write a page that shows a model reading a text",
        description="Lets a model read PROMPT and writes one HTML file that shows it: what was "
        "predicted, what each head attends to, what the model would say after each layer, which "
        "parts write the answer, and the numbers behind it. The file needs no network.",
        epilog="example: simdformer look demo 'Mia has a red kite. It is' --open",
    )
    shared.add_model(parser)
    shared.add_prompt(parser)
    parser.add_argument(
        "--out",
        type=values.new_file,
        default=PAGE,
        metavar="FILE.html",
        help=f"where it is written (default: {PAGE}); a file that is there is asked about first",
    )
    parser.add_argument(
        "--yes", action="store_true", help="write over FILE.html where it is there, without asking"
    )
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    parser.add_argument(
        "--target",
        type=values.text,
        metavar="TOKEN",
        help="whose logit is taken apart (default: of what the model says)",
    )
    parser.add_argument(
        "--against",
        type=values.text,
        metavar="TOKEN",
        help="another token: what tells the two apart",
    )
    parser.add_argument(
        "--max-tokens",
        type=values.whole(),
        default=MOST_TOKENS,
        metavar="N",
        help=f"where a longer text is cut (default: {MOST_TOKENS})",
    )
    shared.add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    from simdformer.interpret import look

    prompt = shared.prompt_of(options)
    if options.out.exists() and not (options.yes or may_replace(options.out)):
        print(f"{options.out} stays as it is; --out writes another file", file=sys.stderr)
        return 1
    model = shared.load(options)
    shared.tokenizer_of(model, options)
    page = look(
        model,
        prompt,
        target=options.target,
        against=options.against,
        max_tokens=options.max_tokens,
        cut=True,
    )
    page.save(options.out)
    size = output.memory(options.out.stat().st_size)
    print(f"{options.out}: {page.about}, {size}", file=sys.stderr)
    if options.open:
        webbrowser.open(options.out.resolve().as_uri())
    return 0


def may_replace(file: Path) -> bool:
    """What the user answers; ValueError where nobody can be asked."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ValueError(
            f"{file}: there is such a file already; --yes writes over it, --out writes another one"
        )
    print(f"{file} is there already. Write over it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
