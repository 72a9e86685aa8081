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
        help=f"where it is written (default: {PAGE})",
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
