"""`simdformer train`: a model learns from files, and a run that was ended goes on."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simdformer.cli import _output as output
from simdformer.cli import _shared as shared
from simdformer.cli import _values as values
from simdformer.models.communicator import Communicator
from simdformer.training.options import TrainOptions

if TYPE_CHECKING:
    from simdformer.text.chat import ChatTemplate
    from simdformer.text.piece_tokenizer import PieceTokenizer
    from simdformer.training import LoRAModel, TrainableModel
    from simdformer.training.data import Rows
    from simdformer.training.run import Run
    from simdformer.training.sources import Source

__all__ = ["add"]

SMALLEST_VOCAB = 256 + 3  # bytes, and what begins and ends texts
SAMPLED = 64  # tokens of a sample, at most
SHOWN = 2  # rows of --show-mask

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
        "seed": (values.whole(0), "of new weights and of the order of the rows"),
    },
    "watching": {
        "every": (values.whole(), "steps between lines, validations and samples"),
        "save_minutes": (not_negative, "between checkpoints"),
    },
}


LR_OF_DPO = 5e-6
DEFAULTS = {"lr": f"{TrainOptions.lr}; {LR_OF_DPO} for --stage dpo"}


def add(commands: "shared.Commands") -> None:
    parser = shared.command(
        commands,
        "train",
        run,
        arguments="DATA... --out DIR (--init CONFIG | --model MODEL)",
        help="train a model on text, conversations or preferences, or adapters beside it",
        description="DATA are texts (.txt, .jsonl with text), conversations, prompts and "
        "completions, or chosen and rejected answers (.jsonl), or ids of 16 bits (.bin). DIR gets "
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
    for group, numbers in NUMBERS.items():
        for name, (read, help) in numbers.items():
            groups[group].add_argument(
                f"--{name.replace('_', '-')}",
                type=read,
                metavar="X" if read in (positive, not_negative, share) else "N",
                help=f"{help} (default: {DEFAULTS.get(name, getattr(TrainOptions, name))})",
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
    from simdformer.training.run import read_settings

    ranks: Communicator = options.ranks
    with contextlib.ExitStack() as opened:

        def open_directory() -> None:
            if options.resume:
                read_settings(options.out)
            options.out.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(options.out, os.O_RDONLY)
            opened.callback(os.close, descriptor)
            lock(descriptor, options.out)

        with ranks.together():
            sources = [told(path) for path in options.data]
            check_stage(options, sources)
        ranks.broadcast(open_directory)
        with ranks.together():
            ready = prepare(options, sources)
        if options.show_mask:
            show_mask(ready.run.rows, ready.tokenizer)
        else:
            train(options, ready)
    return 0


# ---- what a run needs ----------------------------------------------------------------------------


@dataclass
class Ready:
    """A run, and what its model is written with."""

    run: "Run"
    model: "TrainableModel"
    tokenizer: "PieceTokenizer | None"
    file: Path | None  # of the tokenizer


def told(path: Path) -> "Source":
    """What a file holds; it is said."""
    from simdformer.training.sources import read_source

    source = read_source(path)
    say(f"{path}: {source.said}")
    return source


def check_stage(options: argparse.Namespace, sources: "Sequence[Source]") -> None:
    """ValueError: DATA are not for the stage that was asked for."""
    from simdformer.training.sources import stage_of

    found = stage_of(sources)
    if options.stage not in (None, found):
        raise ValueError(
            f"--stage is {options.stage}, {sources[0].path} holds {sources[0].said}, which is "
            f"for {found}; give other DATA, or --stage {found}"
        )
    options.stage = found


def prepare(options: argparse.Namespace, sources: "list[Source]") -> Ready:
    """ValueError: something does not fit. It is told before the first step."""
    from simdformer.text import tokenizer as tokenizers
    from simdformer.training.data import hash_of_data
    from simdformer.training.export import config_json, with_halves
    from simdformer.training.files import hash_of_file
    from simdformer.training.objectives import NextToken, Objective, Preference
    from simdformer.training.run import Run

    model = model_of(options)
    room = model.config.max_seq_len
    options.context = options.context or min(TrainOptions.context, room)
    if options.context > room:
        raise ValueError(
            f"--context is {options.context}, needs at most the model's max_seq_len, {room}"
        )
    if options.lora is None:  # it can be written
        config_json(*with_halves(model.config, model.weights), model.eos_ids)

    file = tokenizer_file(options, sources)
    tokenizer = None if file is None else tokenizers.load(file)
    if tokenizer is not None:
        model.eos_ids = model.eos_ids or tokenizer.eos_ids
    check_sample(options, tokenizer, room)
    template = template_of(options, file, tokenizer)
    rows = rows_of(sources, tokenizer, template, options.context)
    say(rows.said())
    val_rows = None
    if options.val is not None:
        held_out = told(options.val)
        check_stage(options, [held_out])
        val_rows = rows_of([held_out], tokenizer, template, options.context)
    for name, some in (("DATA", rows), (f"--val {options.val}", val_rows)):
        if some is not None and some.largest >= model.config.vocab_size:
            raise ValueError(
                f"{name} has the id {some.largest}, needs ids below the model's vocab_size, "
                f"{model.config.vocab_size}; give the model's own tokenizer, or a config with a "
                "larger vocab_size"
            )

    hashes = {"content of DATA": hash_of_data(options.data)}
    if options.init is not None:
        hashes["content of --init"] = hash_of_file(options.init)
    if options.model is not None and (options.lora is not None or options.stage == "dpo"):
        hashes["content of --model"] = hash_of_data(weight_files(options.model))
    if file is not None:
        hashes["tokenizer"] = hash_of_file(file)
    chosen = options_of(options, len(rows))
    objective: Objective = NextToken()
    if options.stage == "dpo":
        size = max(chosen.rows // chosen.micro_batches, 1)
        objective = Preference(chosen.beta, size, chosen.precision)
    made = Run(model, rows, chosen, options.out, hashes, val_rows, options.ranks, say, objective)
    return Ready(made, model, tokenizer, file)


def model_of(options: argparse.Namespace) -> "TrainableModel":
    """The model whose parameters are trained: all weights, or adapters beside them."""
    from simdformer.checkpoints.huggingface import config_alone
    from simdformer.training import LoRAModel, TrainableModel

    seed = TrainOptions.seed if options.seed is None else options.seed
    if options.lora is None:
        given = [name for name in ("alpha", "targets", "merge") if getattr(options, name)]
        if given:
            raise ValueError(f"--{given[0]} is for adapters; give --lora RANK too")
        if options.model is None:
            return TrainableModel.from_config(config_alone(options.init)[0], seed=seed)
        return TrainableModel.from_pretrained(options.model)
    if options.model is None:
        raise ValueError("--lora needs a model to stand beside; give --model MODEL, not --init")
    targets = None
    if options.targets not in (None, "all"):
        targets = [name.strip() for name in options.targets.split(",")]
    return LoRAModel.from_pretrained(
        options.model, rank=options.lora, alpha=options.alpha, targets=targets, seed=seed
    )


def weight_files(model: str) -> list[Path]:
    """The files in which the weights of a model lie."""
    from simdformer.checkpoints import read_checkpoint
    from simdformer.checkpoints.locate import locate

    checkpoint = read_checkpoint(locate(model), None, None)
    found = (getattr(tensor, "path", checkpoint.path) for tensor in checkpoint.weights.values())
    return sorted({Path(path) for path in found})


def tokenizer_file(options: argparse.Namespace, sources: "Sequence[Source]") -> Path | None:
    """Where the tokenizer is; with --vocab it is trained first, unless the run has begun."""
    from simdformer.checkpoints import read_checkpoint
    from simdformer.checkpoints.locate import locate
    from simdformer.text.tokenizer import only_tokenizer
    from simdformer.training.new_tokenizer import make_tokenizer
    from simdformer.training.run import SETTINGS

    if options.vocab is not None:
        out: Path = options.out

        def make() -> None:
            if not (out / SETTINGS).exists():
                made = make_tokenizer(texts_of(sources), options.vocab, out)
                say(f"trained a tokenizer of {made.vocab_size:,} tokens")

        options.ranks.broadcast(make)
        return out / "tokenizer.json"
    if options.tokenizer is not None:
        path = locate(options.tokenizer)
        return only_tokenizer(path) if path.is_dir() else path
    if options.model is not None:
        checkpoint = read_checkpoint(locate(options.model), None, None)
        return next(iter(checkpoint.format.tokenizer_files(checkpoint)), None)
    return None


def texts_of(sources: "Sequence[Source]") -> Iterator[str]:
    """All text in them. ValueError: a file has ids."""
    for source in sources:
        if source.kind == "ids":
            raise ValueError(f"--vocab: {source.path} holds {source.said}, needs text")
        for document in source.documents:
            pair = document if source.kind == "preference" else [document]
            for one in pair:
                if isinstance(one, str):
                    yield one
                else:  # messages, or a prompt and what follows it
                    yield from (part if isinstance(part, str) else part["content"] for part in one)


def template_of(
    options: argparse.Namespace, file: Path | None, tokenizer: "PieceTokenizer | None"
) -> "ChatTemplate | None":
    """How conversations are written: as the tokenizer that was given says, else the model."""
    from simdformer.checkpoints import read_checkpoint
    from simdformer.checkpoints.huggingface_text import template_beside
    from simdformer.checkpoints.locate import locate
    from simdformer.text.chat import JinjaTemplate, find_template

    if options.tokenizer is None and options.vocab is None:
        if options.model is None:
            return None
        return find_template(read_checkpoint(locate(options.model), None, None), tokenizer)
    stored = None if file is None else template_beside(file.parent)
    return None if stored is None else JinjaTemplate(stored.text, str(stored.file), stored.tokens)


def rows_of(
    sources: "Sequence[Source]",
    tokenizer: "PieceTokenizer | None",
    template: "ChatTemplate | None",
    context: int,
) -> "Rows":
    from simdformer.models.progress import Progress
    from simdformer.training.data import make_rows

    documents = sum(len(source.documents) for source in sources)
    with Progress("reading", documents, " documents") as bar:
        return make_rows(sources, tokenizer, template, context, lambda: bar.advance(1))


def check_sample(
    options: argparse.Namespace, tokenizer: "PieceTokenizer | None", room: int
) -> None:
    """ValueError: there could be no sample."""
    if options.sample is None:
        return
    if tokenizer is None:
        raise ValueError("--sample needs a tokenizer; give --tokenizer MODEL")
    if (found := len(tokenizer.encode(shared.readable(options.sample)))) >= room:
        raise ValueError(
            f"--sample has {found} tokens, needs fewer than the model's max_seq_len, {room}"
        )


def options_of(options: argparse.Namespace, rows: int) -> TrainOptions:
    """With defaults, and epochs as steps."""
    given = {
        field.name: value
        for field in fields(TrainOptions)
        if (value := getattr(options, field.name, None)) is not None
    }
    for name in ("init", "val"):
        given[name] = given[name] and str(given[name]) if name in given else None
    if options.lr is None and options.stage == "dpo":
        given["lr"] = LR_OF_DPO
    made = TrainOptions(**given | {"data": tuple(map(str, options.data))})
    if options.epochs is None:
        return made
    steps = max(round(options.epochs * rows / made.rows), 1)
    return TrainOptions(**vars(made) | {"steps": steps})


# ---- training ------------------------------------------------------------------------------------


def train(options: argparse.Namespace, ready: Ready) -> None:
    from simdformer.models.progress import Progress

    made, ranks = ready.run, options.ranks
    made.begin(resume=options.resume)
    total = made.options.steps
    try:
        with Progress("training", total, " steps") as bar:
            bar.advance(made.step)
            for result in made.steps():
                bar.advance(1, f"loss {result.loss:.3f}, {result.tokens_per_second:,.0f} tokens/s")
                if made.is_due() and ranks.rank == 0:
                    bar.clear()
                    measured = result.val_loss
                    val = "" if measured is None else f", validation {measured:.4f}"
                    if result.accuracy is not None:
                        val += f", {result.accuracy:.0%} of pairs told apart"
                    speed = f"{result.tokens_per_second:,.0f} tokens/s"
                    output.write(
                        f"step {result.step:,} of {total:,}: loss {result.loss:.4f}{val}, {speed}\n"
                    )
                    if options.sample is not None:
                        output.write(sample(ready, options.sample) + "\n")
    except KeyboardInterrupt:
        save(options, ready)
        raise
    save(options, ready)


def sample(ready: Ready, prompt: str) -> str:
    """The prompt and what the model finds likeliest behind it."""
    model = ready.model.language_model(ready.tokenizer)
    new = min(model.check_room(len(model.encode(prompt)), None), SAMPLED)
    return prompt + model.generate(prompt, max_new_tokens=new, temperature=0.0)


def save(options: argparse.Namespace, ready: Ready) -> None:
    """The model in DIR, by rank 0; the others wait for it."""
    from simdformer.checkpoints.peft import CONFIG, WEIGHTS
    from simdformer.training.export import TOKENIZER_FILES

    file = ready.file
    whole = options.lora is None or options.merge
    if file is not None and file.name not in TOKENIZER_FILES:
        if whole:
            say(f"{file}: no tokenizer of Hugging Face's layout, give it with --tokenizer later")
        file = None

    def write() -> None:
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

    options.ranks.broadcast(write)
    what = "the model" if whole else f"adapters for {options.model} (--adapter {options.out})"
    say(f"{options.out}: {what} after step {ready.run.step:,}")


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


def say(text: str) -> None:
    print(text, file=sys.stderr)
