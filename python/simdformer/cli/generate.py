"""`simdformer generate`: continue every prompt of a file."""

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values
from simdformer.models.communicator import Communicator
from simdformer.parallel.dealing import Dealer
from simdformer.parallel.world import EXTRA

if TYPE_CHECKING:
    from simdformer.text import LanguageModel
    from simdformer.text.prompt_file import AnswerFile, FilePrompt

__all__ = ["add"]

SECONDS_BETWEEN_LINES = 10


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
        "is written twice. What a prompt gets does not depend on the others. Under mpiexec every "
        "rank has the model and takes prompts.",
        epilog="examples: simdformer generate demo prompts.jsonl --out answers.jsonl; mpiexec -n 4 "
        "simdformer generate demo prompts.jsonl --out answers.jsonl --tensor-parallel 2",
        over_ranks=True,
    )
    shared.add_model(parser)
    parser.add_argument("prompts", metavar="PROMPTS", type=values.existing, help="JSON lines")
    parser.add_argument(
        "--out",
        metavar="ANSWERS",
        type=Path,
        required=True,
        help="the file that answers are appended to",
    )
    shared.add_new_tokens(parser, "an answer", most=shared.USUAL_NEW_TOKENS)
    parser.add_argument(
        "--max-batch",
        type=values.whole(),
        default=64,
        metavar="N",
        help="how many prompts at a time (default: 64)",
    )
    parser.add_argument(
        "--cache-memory",
        type=values.number("a number > 0", lambda x: x > 0),
        metavar="GB",
        help="what the KV cache may take (default: what it needs)",
    )
    parser.add_argument(
        "--tensor-parallel",
        type=values.whole(),
        default=1,
        metavar="N",
        help="how many ranks of mpiexec hold a model together (default: 1)",
    )
    shared.add_draft(parser)
    shared.add_model_options(parser)
    shared.add_sampling(parser)


def run(options: argparse.Namespace) -> int:
    from simdformer.text.prompt_file import AnswerFile, read_prompt_file

    group = group_of(options)
    with contextlib.ExitStack() as opened:
        answers = AnswerFile(options.out)

        def unanswered() -> "tuple[int, list[FilePrompt]]":
            prompts = read_prompt_file(options.prompts)
            opened.enter_context(answers)
            return len(prompts), [prompt for prompt in prompts if prompt.id not in answers]

        count, left = options.ranks.broadcast(unanswered)
        if had := count - len(left):
            print(f"{had:,} of {count:,} answers are there already", file=sys.stderr)
        if left:
            answer(options, group, left, answers)
    return 0


def group_of(options: argparse.Namespace) -> Communicator:
    """The ranks that hold a model together, of which this is one."""
    size, ranks = options.tensor_parallel, options.ranks
    if ranks.size % size:
        start = f"mpiexec -n {size} simdformer generate ..."
        raise ValueError(
            f"--tensor-parallel is {size}, needs a divisor of the {ranks.size} ranks that "
            f"mpiexec has started ({start}; {EXTRA} brings it)"
        )
    group: Communicator = ranks.group(size)
    return group


def answer(
    options: argparse.Namespace,
    group: Communicator,
    prompts: "list[FilePrompt]",
    answers: "AnswerFile",
) -> None:
    """Continues prompts, and writes what has ended."""
    model = shared.load(options, group)
    shared.tokenizer_of(model, options)
    how = {"draft": shared.draft_of(options, model), **shared.sampling_of(options)}
    with options.ranks.together():  # all are read before the work begins: a bad one ends it here
        waiting = [(prompt, *ids_of(options, model, prompt)) for prompt in prompts]
    memory = None if options.cache_memory is None else int(options.cache_memory * 1e9)
    batch = model.batch(max_batch=options.max_batch, cache_memory=memory)
    running: dict[int, tuple[int, list[str]]] = {}
    with Tally(len(prompts), options.ranks.size > 1) as tally:

        def write(number: int, said: tuple[str, int]) -> None:
            text, tokens = said
            answers.write(waiting[number][0].id, text, tokens)
            tally.add(tokens)

        dealer = Dealer(
            options.ranks, group, len(waiting), ahead=2 * options.max_batch, write=write
        )
        while (numbers := dealer.take(idle=not batch.unfinished)) is not None:
            for number in numbers:
                _, ids, new = waiting[number]
                running[batch.add(ids, new, **how)] = number, []
            for update in batch.step():
                number, said = running[update.id]
                said.append(update.new)
                if update.ended:
                    del running[update.id]
                    dealer.done(number, ("".join(said), update.chosen))
    options.ranks.broadcast(lambda: None)  # all stay until the last answer is written
    worth = shared.drafted(batch) if options.ranks.size == 1 else ""  # others know of theirs
    print(f"{output.count(len(prompts), 'prompt')}, {tally.rate}{worth}", file=sys.stderr)


class Tally:
    """How many prompts have their answers, and how many tokens a second all ranks give: as a
    progress bar, or, where mpiexec stands between us and the terminal, a line now and then."""

    def __init__(self, total: int, in_lines: bool) -> None:
        from simdformer.models.progress import Progress

        self.total, self.in_lines = total, in_lines
        self.done = self.tokens = 0
        self.started = self.told = time.perf_counter()
        self.bar = Progress("prompts", total, "")

    def add(self, tokens: int) -> None:
        """One more, with so many tokens."""
        self.done, self.tokens = self.done + 1, self.tokens + tokens
        self.bar.advance(1, self.rate)
        if self.in_lines and time.perf_counter() - self.told > SECONDS_BETWEEN_LINES:
            self.told = time.perf_counter()
            print(f"{self.done:,} of {self.total:,} prompts, {self.rate}", file=sys.stderr)

    @property
    def rate(self) -> str:
        return output.rate(self.tokens, time.perf_counter() - self.started)

    def __enter__(self) -> "Tally":
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()


def ids_of(
    options: argparse.Namespace, model: "LanguageModel", prompt: "FilePrompt"
) -> tuple[Any, int]:
    """What the model reads, and how many ids may follow. ValueError names the line."""
    from simdformer.text.prompts import IdsOfText

    try:
        text = prompt.prompt
        ids = IdsOfText(model.encode(text)) if isinstance(text, str) else model.chat_ids(text)
        return ids, shared.new_tokens(model, len(ids), options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{options.prompts}, line {prompt.line}: {error}") from None
