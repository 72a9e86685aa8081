"""`simdformer generate`: continue every prompt of a file."""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values

if TYPE_CHECKING:
    from simdformer.text import LanguageModel
    from simdformer.text.prompt_file import AnswerFile, FilePrompt

__all__ = ["add"]

DEFAULT_NEW_TOKENS = 256


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "generate",
        run,
        arguments="MODEL PROMPTS --out ANSWERS",
        help="continue every prompt of a file, many at a time",
        description='PROMPTS has a prompt a line, as JSON: "a text", {"prompt": "a text"} or '
        '{"messages": [{"role": "user", "content": "..."}]}, with an "id" or without (then it is '
        'the number of the line). ANSWERS gets {"id", "text", "new_tokens"} a line, each as soon '
        "as it is whole. A run that was ended goes on where it stopped: no answer is lost, none "
        "is written twice. What a prompt gets does not depend on the others.",
        epilog="example: simdformer generate demo prompts.jsonl --out answers.jsonl",
    )
    shared.add_model(parser)
    parser.add_argument("prompts", metavar="PROMPTS", type=values.existing, help="JSON lines")
    parser.add_argument(
        "--out",
        metavar="ANSWERS",
        type=Path,
        required=True,
        help="where answers go, behind what is there",
    )
    shared.add_new_tokens(
        parser, "an answer", f"{DEFAULT_NEW_TOKENS}, or what the model has room for"
    )
    parser.add_argument(
        "--max-batch",
        type=values.whole(),
        default=64,
        metavar="N",
        help="so many prompts at a time (default: 64)",
    )
    parser.add_argument(
        "--cache-memory",
        type=values.number("a number > 0", lambda x: x > 0),
        metavar="GB",
        help="what the KV cache may take (default: what it needs)",
    )
    shared.add_model_options(parser)
    shared.add_sampling(parser)


def run(options: argparse.Namespace) -> int:
    from simdformer.text.prompt_file import AnswerFile, read_prompt_file

    prompts = read_prompt_file(options.prompts)
    with AnswerFile(options.out) as answers:
        left = [prompt for prompt in prompts if prompt.id not in answers]
        if had := len(prompts) - len(left):
            print(f"{had:,} of {len(prompts):,} answers are there already", file=sys.stderr)
        if left:
            answer(options, left, answers)
    return 0


def answer(options: argparse.Namespace, prompts: "list[FilePrompt]", answers: "AnswerFile") -> None:
    """Continues prompts, and writes what has ended."""
    from simdformer.models.progress import Progress

    model = shared.load(options)
    shared.tokenizer_of(model, options)
    waiting = [
        (prompt, *ids_of(options, model, prompt)) for prompt in prompts
    ]  # all are read before the work begins: a bad one ends it here
    memory = None if options.cache_memory is None else int(options.cache_memory * 1e9)
    batch = model.batch(max_batch=options.max_batch, cache_memory=memory)
    running: dict[int, tuple[FilePrompt, list[str]]] = {}
    started, total = time.perf_counter(), 0
    waiting.reverse()
    with Progress("prompts", len(prompts), "") as progress:
        while waiting or batch.unfinished:
            while waiting and batch.unfinished < 2 * options.max_batch:
                prompt, ids, new = waiting.pop()
                number = batch.add(ids, new, **shared.sampling_of(options))
                running[number] = prompt, []
            for update in batch.step():
                prompt, said = running[update.id]
                said.append(update.new)
                if update.ended:
                    del running[update.id]
                    answers.write(prompt.id, "".join(said), len(said))
                    total += len(said)
                    progress.advance(1)
    seconds = time.perf_counter() - started
    print(f"{output.count(len(prompts), 'prompt')}, {output.rate(total, seconds)}", file=sys.stderr)


def ids_of(
    options: argparse.Namespace, model: "LanguageModel", prompt: "FilePrompt"
) -> tuple[Any, int]:
    """What the model reads, and how many ids may follow. ValueError names the line."""
    from simdformer.text.prompts import IdsOfText

    try:
        text = prompt.prompt
        ids = IdsOfText(model.encode(text)) if isinstance(text, str) else model.chat_ids(text)
        if not ids:
            raise ValueError("the prompt is empty, and no token begins a text of this model")
        room = model.check_room(len(ids), None)
        wanted = options.max_new_tokens
        return ids, model.check_room(
            len(ids), min(room, DEFAULT_NEW_TOKENS) if wanted is None else wanted
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{options.prompts}, line {prompt.line}: {error}") from None
