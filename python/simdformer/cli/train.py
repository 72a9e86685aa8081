"""`simdformer train`: a model learns from files, and a run that was ended goes on."""

import argparse
import contextlib
import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values
from simdformer.cli._train_preview import Limit, plan, steps_within
from simdformer.cli._train_setup import (
    LR_OF_DPO,
    Ready,
    check_beginning,
    check_stage,
    prepare,
    say,
    told,
)
from simdformer.models.communicator import Communicator
from simdformer.training.model import PRECISIONS
from simdformer.training.options import TrainOptions
from simdformer.training.step import CHECKPOINTS

if TYPE_CHECKING:
    from simdformer.text.piece_tokenizer import PieceTokenizer
    from simdformer.training import LoRAModel
    from simdformer.training.data import Rows
    from simdformer.training.run import StepResult

__all__ = ["add"]

SMALLEST_VOCAB = 256 + 3  # bytes, and what begins and ends texts
SAMPLED = 64  # tokens of a sample, at most
SHOWN = 2  # rows of --show-mask
RECENT = 20  # losses whose mean is compared with the validation's
FAR_APART = 0.5  # nats
OF_A_MODEL = ("config.json", "params.json", "adapter_config.json", "*.safetensors")

positive = values.number("a number > 0", lambda x: x > 0)
not_negative = values.number("a number >= 0", lambda x: x >= 0)
share = values.number("a number from 0 to 1", lambda x: 0 <= x <= 1)
NUMBERS: dict[str, dict[str, tuple[Callable[[str], Any], str]]] = {
    "steps": {
        "batch_tokens": (values.whole(), "tokens of a step"),
        "context": (values.whole(), "tokens of a row, at most what the model has room for"),
        "micro_batches": (
            values.whole(),
            "parts of a step that are computed one after the other, or by ranks side by side",
        ),
        "lr": (positive, "highest learning rate"),
        "warmup": (values.whole(0), "steps until it is reached"),
        "min_lr": (share, "where its cosine ends, as a share of it"),
        "weight_decay": (not_negative, "of matrices, by AdamW"),
        "clip": (positive, "longest gradient: a longer one is shortened"),
        "beta": (positive, "of --stage dpo: how far the model may go from what it was"),
        "balance": (
            not_negative,
            "of mixtures: how much it counts that experts have as many tokens",
        ),
        "seed": (values.whole(0), "of new weights and of the order of the rows"),
    },
    "watching": {
        "every": (values.whole(), "steps between lines, validations and samples"),
        "save_minutes": (not_negative, "between checkpoints"),
    },
}


DEFAULTS = {
    "lr": f"{TrainOptions.lr}; {LR_OF_DPO} for --stage dpo",
    "micro_batches": f"{TrainOptions.micro_batches}, or 2 or 1 that divide the rows of a step",
}


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "train",
        run,
        arguments="DATA... --out DIR (--init CONFIG | --model MODEL)",
        help="train a model on text, conversations or preferences, or adapters beside it",
        description="DATA are texts (.txt, .jsonl with text), conversations, prompts and "
        "completions, or chosen and rejected answers (.jsonl), or ids (.bin). DIR gets "
        "checkpoints, a line of log.jsonl a step, and at the end the model as Hugging Face lays it "
        "out, or adapters as peft does. A run that was ended goes on with --resume behind the same "
        "command, and computes the same bits. Under mpiexec the ranks deal the micro-batches, all "
        "of them reading the same files.",
        epilog="example: simdformer train story.txt --out tom --model demo --steps 20 "
        '--batch-tokens 1024 --sample "Tom"',
        over_ranks=True,
    )
    parser.add_argument(
        "data", metavar="DATA", nargs="+", type=values.existing, help="files to learn from"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="where all goes")
    begin = parser.add_mutually_exclusive_group(required=True)
    begin.add_argument(
        "--init", metavar="CONFIG", type=values.existing, help="new weights for this config.json"
    )
    begin.add_argument("--model", metavar="MODEL", type=values.text, help="go on from a checkpoint")
    words = parser.add_mutually_exclusive_group()
    words.add_argument(
        "--tokenizer",
        type=values.text,
        metavar="MODEL",
        help="a tokenizer, or a model's (default: that of --model)",
    )
    words.add_argument(
        "--vocab",
        type=values.whole(SMALLEST_VOCAB),
        metavar="N",
        help="train a tokenizer of up to N tokens on DATA",
    )
    parser.add_argument(
        "--stage",
        choices=("pretrain", "sft", "dpo"),
        help="what DATA must be for: text, conversations, or chosen and rejected answers "
        "(default: what they hold)",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="say what the run would take, by a probe of five steps, and end; nothing is written",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in DIR")
    parser.add_argument(
        "--show-mask",
        action="store_true",
        help="print rows with what is learned of them between [[ and ]], and end",
    )
    lora = parser.add_argument_group("adapters")
    lora.add_argument(
        "--lora",
        type=values.whole(),
        metavar="RANK",
        help="leave the weights of --model as they are, quantised ones too, and train adapters of "
        "this rank; DIR gets them as the package peft has them",
    )
    lora.add_argument(
        "--alpha",
        type=positive,
        metavar="X",
        help="what an adapter gives is multiplied by X / RANK (default: 2 RANK)",
    )
    lora.add_argument(
        "--targets",
        type=values.text,
        metavar="NAMES",
        help="which matrices have one: some of wq,wk,wv,wo,gate,up,down (default: all)",
    )
    lora.add_argument(
        "--merge",
        action="store_true",
        help="write the whole model with the adapters in its matrices instead of them alone",
    )
    groups = {name: parser.add_argument_group(name) for name in NUMBERS}
    length = groups["steps"].add_mutually_exclusive_group()
    length.add_argument(
        "--steps",
        type=values.whole(),
        metavar="N",
        help=f"how many in all (default: {TrainOptions.steps})",
    )
    length.add_argument(
        "--epochs", type=positive, metavar="X", help="or how often DATA are gone through"
    )
    length.add_argument(
        "--minutes",
        type=positive,
        metavar="X",
        help="or as many as take so long, by a probe of five before the first",
    )
    for group, numbers in NUMBERS.items():
        for name, (read, help) in numbers.items():
            groups[group].add_argument(
                f"--{name.replace('_', '-')}",
                type=read,
                metavar="X" if read in (positive, not_negative, share) else "N",
                help=f"{help} (default: {DEFAULTS.get(name, getattr(TrainOptions, name))})",
            )
    groups["steps"].add_argument(
        "--checkpoint",
        choices=CHECKPOINTS,
        help="what is computed again on the way back instead of kept, which takes less memory and "
        "more time and gives the same bits: nothing, what goes into the MLPs' activations, or all "
        "of each layer (default: none)",
    )
    groups["steps"].add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of what is multiplied; weights and sums are float32 (default: float32)",
    )
    watching = groups["watching"]
    watching.add_argument(
        "--val", metavar="DATA", type=values.existing, help="a file whose loss is measured"
    )
    watching.add_argument(
        "--sample", metavar="TEXT", type=values.text, help="a text that the model continues"
    )


def run(options: argparse.Namespace) -> int:
    from simdformer.text.prompt_file import lock

    ranks: Communicator = options.ranks
    with contextlib.ExitStack() as opened:

        def open_directory() -> None:
            if options.plan or options.show_mask:  # a tokenizer may be trained, and nothing stays
                options.out = Path(tempfile.mkdtemp(prefix="simdformer-train-"))
                opened.callback(shutil.rmtree, options.out, ignore_errors=True)
                return
            if options.resume:
                check_beginning(options)
            if options.out.exists() and not options.out.is_dir():
                raise ValueError(f"--out is {options.out}, a file; give a directory")
            options.out.mkdir(parents=True, exist_ok=True)
            check_out(options.out)
            descriptor = os.open(options.out, os.O_RDONLY)
            opened.callback(os.close, descriptor)
            lock(descriptor, options.out)

        with ranks.together():
            sources = [told(path) for path in options.data]
            check_stage(options, sources)
        options.resume = options.resume and not options.plan
        ranks.broadcast(open_directory)
        options.out = ranks.broadcast(lambda: options.out)
        with ranks.together():
            ready = prepare(options, sources)
        if options.show_mask:
            show_mask(ready.run.rows, ready.tokenizer)
        elif options.plan:
            fit_minutes(options, ready)
            plan(ready, ranks)
        else:
            train(options, ready)
    return 0


def check_out(directory: Path) -> None:
    """ValueError: a model lies there that is not what an earlier part of the run has written."""
    from simdformer.training.run import SETTINGS

    there = sorted(file.name for pattern in OF_A_MODEL for file in directory.glob(pattern))
    if there and not (directory / SETTINGS).exists():
        raise ValueError(
            f"--out is {directory}, where a model lies already ({there[0]}), which the run would "
            "replace; give another --out"
        )


# ---- training ------------------------------------------------------------------------------------


def train(options: argparse.Namespace, ready: Ready) -> None:
    from simdformer.training.checkpoint import whole_one
    from simdformer.training.run import Interrupted

    fit_minutes(options, ready)
    ready.run.begin(resume=options.resume)
    limit = Limit(ready, options.ranks)
    interrupted = None
    try:
        try:
            steps(options, ready, limit)
        except Interrupted as error:
            interrupted = error
        save(options, ready)
    except KeyboardInterrupt:  # a second one: half of the weights may be those of the next step
        say(
            f"{options.out}: interrupted a second time, no model is written; "
            f"{whole_one(options.out)}; --resume goes on"
        )
        raise
    if interrupted is not None:
        raise interrupted


def fit_minutes(options: argparse.Namespace, ready: Ready) -> None:
    """As many steps as --minutes allow, unless they are known from when the run began."""
    if options.minutes is not None and not options.resume:
        count = steps_within(ready, options.minutes)
        ready.run.options = replace(ready.run.options, steps=count)
        say(f"{options.minutes:g} minutes are enough for {count:,} steps")


def steps(options: argparse.Namespace, ready: Ready, limit: Limit) -> None:
    """All steps that are left, with a bar, lines, samples and warnings."""
    from simdformer.models.progress import Progress

    made, losses, warned = ready.run, list[float](), False
    total = made.options.steps
    with Progress("training", total, " steps") as bar:
        bar.advance(made.step)
        for result in made.steps():
            if options.ranks.rank > 0:
                continue
            speed = result.tokens_per_second
            share = f"{limit.share(speed):.0%} of the limit"
            bar.advance(1, f"loss {result.loss:.3f}, {speed:,.0f} tokens/s, {share}")
            losses = [*losses, result.loss][-RECENT:]
            if result.step == 1 and options.init is not None:
                begin_is_as_guessed(result.loss, ready.model.config.vocab_size)
            if not made.is_due():
                continue
            bar.clear()
            output.write(f"{line(result, total)}, {speed:,.0f} tokens/s, {share}\n")
            if options.sample is not None:
                output.write(sample(ready, options.sample) + "\n")
            apart = (result.val_loss or 0.0) - statistics.mean(losses)
            if apart > FAR_APART and not warned:
                warned = True
                say(
                    f"step {result.step:,}: the validation loss is {apart:.2f} above that of the "
                    "data: it is learnt by heart; fewer steps or more data are better"
                )


def line(result: "StepResult", total: int) -> str:
    """What a step has come to."""
    text = f"step {result.step:,} of {total:,}: loss {result.loss:.4f}"
    if result.val_loss is not None:
        text += f", validation {result.val_loss:.4f}"
    if result.accuracy is not None:
        text += f", {result.accuracy:.0%} of pairs told apart"
    return text


def begin_is_as_guessed(loss: float, vocab_size: int) -> None:
    """New weights know nothing: the loss is that of guessing."""
    guessing = math.log(vocab_size)
    if abs(loss - guessing) > FAR_APART:
        say(
            f"the first loss is {loss:.2f}, that of guessing among {vocab_size:,} is "
            f"{guessing:.2f}: the data or the config are not what they should be"
        )


def save_curve(directory: Path) -> None:
    """DIR/loss.png, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    from simdformer.learn.plots import loss_curve
    from simdformer.training.files import write_whole
    from simdformer.training.log import LOG

    if not (directory / LOG).exists() or not (directory / LOG).stat().st_size:
        return
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    loss_curve(directory, title=str(directory), ax=figure.subplots())
    write_whole(directory / "loss.png", lambda file: figure.savefig(file, dpi=150))


def sample(ready: Ready, prompt: str) -> str:
    """The prompt and what the model finds likeliest behind it."""
    model = ready.model.language_model(ready.tokenizer)
    new = min(model.check_room(len(model.encode(prompt)), None), SAMPLED)
    return prompt + model.generate(prompt, max_new_tokens=new, temperature=0.0)


def save(options: argparse.Namespace, ready: Ready) -> None:
    """The model in DIR, by rank 0; the others wait for it."""
    from simdformer.checkpoints.peft import CONFIG, WEIGHTS
    from simdformer.training.checkpoint import unwritten
    from simdformer.training.export import TOKENIZER_FILES

    file = ready.file
    whole = options.lora is None or options.merge
    if file is not None and file.name not in TOKENIZER_FILES:
        if whole:
            say(f"{file}: no tokenizer of Hugging Face's layout, give it with --tokenizer later")
        file = None

    def write_model() -> None:
        if options.lora is None:
            ready.model.save(options.out, tokenizer=file)
            return
        model = cast("LoRAModel", ready.model)
        if options.merge:
            model.merged().save(options.out, tokenizer=file)
            for name in (CONFIG, WEIGHTS):
                (options.out / name).unlink(missing_ok=True)
        else:
            model.save(options.out, tokenizer=file)

    def write() -> None:
        try:
            write_model()
        except OSError as error:
            place = Path(error.filename or options.out / "model")
            raise unwritten(options.out, place, error) from error

    options.ranks.broadcast(write)
    what = "the model" if whole else f"adapters for {options.model} (--adapter {options.out})"
    say(f"{options.out}: {what} after step {ready.run.step:,}")
    if options.ranks.rank == 0:
        save_curve(options.out)


def show_mask(rows: "Rows", tokenizer: "PieceTokenizer | None") -> None:
    """The first rows as text, or as ids."""
    from simdformer.training.data import IGNORED

    ids, labels = rows.batch(range(min(SHOWN, len(rows))))
    for row, learned in zip(ids.tolist(), labels.tolist(), strict=True):
        while len(row) > 1 and learned[-1] == IGNORED:  # what fills rows up, and last questions
            row.pop(), learned.pop()
        following = [
            label if label != IGNORED else id
            for label, id in zip(learned, [*row[1:], 0], strict=True)
        ]
        marks = [False, *(label != IGNORED for label in learned)]
        for mark, some in groupby(zip([row[0], *following], marks, strict=True), lambda at: at[1]):
            part = [id for id, _ in some]
            text = " ".join(map(str, part)) if tokenizer is None else tokenizer.decode(part)
            output.write(f"[[{text}]]" if mark else text)
        output.write("\n")
