"""What `simdformer train` needs before its first step: model, tokenizer, rows, options. What does
not fit is a ValueError of one sentence, before anything is written."""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simdformer.cli import _shared as shared
from simdformer.training.options import TrainOptions, check_same

if TYPE_CHECKING:
    from simdformer.checkpoints import Checkpoint
    from simdformer.text.chat import ChatTemplate
    from simdformer.text.piece_tokenizer import PieceTokenizer
    from simdformer.training import TrainableModel
    from simdformer.training.data import Rows
    from simdformer.training.run import Run
    from simdformer.training.sources import Source

__all__ = ["LR_OF_DPO", "Ready", "check_beginning", "check_stage", "prepare", "say", "told"]

LR_OF_DPO = 5e-6
# Compared before they are used: what they name may be missing where the run began without it.
BEGINNING = ("data", "init", "model", "vocab", "lora", "alpha", "targets")
MUCH = 0.3  # of what is computed, that is filling


def say(text: str) -> None:
    print(text, file=sys.stderr)


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
    from simdformer.checkpoints import read_checkpoint
    from simdformer.checkpoints.locate import locate
    from simdformer.text import tokenizer as tokenizers
    from simdformer.training.data import hash_of_data
    from simdformer.training.export import config_json, with_halves
    from simdformer.training.files import hash_of_file
    from simdformer.training.objectives import NextToken, Objective, Preference
    from simdformer.training.run import Run

    if options.beta is not None and options.stage != "dpo":
        raise ValueError(f"--beta is for --stage dpo, DATA are for {options.stage}; leave it out")
    model = model_of(options)
    if options.balance is not None and not model.config.num_experts:
        raise ValueError("--balance is for mixtures of experts, the model has none; leave it out")
    room = model.config.max_seq_len
    options.context = options.context or min(TrainOptions.context, room)
    if options.context > room:
        raise ValueError(
            f"--context is {options.context}, needs at most the model's max_seq_len, {room}"
        )
    if options.lora is None:  # it can be written
        config_json(*with_halves(model.config, model.weights), model.eos_ids)

    checkpoint = None
    if options.model is not None:
        checkpoint = read_checkpoint(locate(options.model), None, None)
    file = tokenizer_file(options, sources, checkpoint)
    tokenizer = None if file is None else tokenizers.load(file)
    if tokenizer is not None:
        model.eos_ids = model.eos_ids or tokenizer.eos_ids
    check_sample(options, tokenizer, room)
    template = template_of(options, file, tokenizer, checkpoint)
    rows = rows_of(sources, tokenizer, template, options.context)
    say(rows.said())
    chosen = options_of(options, len(rows))
    if (filled := filling(rows, chosen)) > MUCH:
        say(f"{filled:.0%} of what is computed fills rows up; texts of like lengths take less time")
    if chosen.batch_tokens < chosen.context:
        say(
            f"a step has one row of {chosen.context:,} tokens: --batch-tokens is "
            f"{chosen.batch_tokens:,}, less than --context"
        )
    if chosen.rows > len(rows):
        say(
            f"a step has {chosen.rows:,} rows and goes through all of DATA more than once; a "
            "smaller --batch-tokens makes more steps of it"
        )
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
    if checkpoint is not None and (options.lora is not None or options.stage == "dpo"):
        hashes["content of --model"] = hash_of_data(weight_files(checkpoint))
    if file is not None:
        hashes["tokenizer"] = hash_of_file(file)
    objective: Objective = NextToken()
    if options.stage == "dpo":
        size = max(chosen.rows // chosen.micro_batches, 1)
        objective = Preference(chosen.beta, size, chosen.precision)
    made = Run(model, rows, chosen, options.out, hashes, val_rows, options.ranks, say, objective)
    return Ready(made, model, tokenizer, file)


def filling(rows: "Rows", options: TrainOptions) -> float:
    """Which share of the first rows is nothing but filling."""
    from simdformer.training.data import StreamRows

    if isinstance(rows, StreamRows):
        return 0.0
    size = max(options.rows // options.micro_batches, 1)
    ids, _ = rows.batch(range(min(size, len(rows))))
    # a row is filled with zeros behind its last label
    behind = [len(row) - int(np.flatnonzero(row)[-1]) - 1 if row.any() else 0 for row in ids]
    return sum(behind) / ids.size


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


def weight_files(checkpoint: "Checkpoint") -> list[Path]:
    """The files in which the weights of a model lie."""
    found = (getattr(tensor, "path", checkpoint.path) for tensor in checkpoint.weights.values())
    return sorted({Path(path) for path in found})


def tokenizer_file(
    options: argparse.Namespace, sources: "Sequence[Source]", checkpoint: "Checkpoint | None"
) -> Path | None:
    """Where the tokenizer is; with --vocab it is trained first, unless the run has begun."""
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
    if checkpoint is not None:
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
    options: argparse.Namespace,
    file: Path | None,
    tokenizer: "PieceTokenizer | None",
    checkpoint: "Checkpoint | None",
) -> "ChatTemplate | None":
    """How conversations are written: as the tokenizer that was given says, else the model."""
    from simdformer.checkpoints.huggingface_text import template_beside
    from simdformer.text.chat import JinjaTemplate, find_template

    if options.tokenizer is None and options.vocab is None:
        return None if checkpoint is None else find_template(checkpoint, tokenizer)
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


def check_beginning(options: argparse.Namespace) -> None:
    """ValueError: what a run is to go on with is not what it began with. Its other options are
    compared when they are known."""
    from simdformer.training.run import read_settings

    given = given_options(options).as_json()
    check_same(read_settings(options.out), {name: given[name] for name in BEGINNING}, ())


def given_options(options: argparse.Namespace) -> TrainOptions:
    """As they stand on the command line, with the defaults of TrainOptions."""
    given = {
        field.name: value
        for field in fields(TrainOptions)
        if (value := getattr(options, field.name, None)) is not None
    }
    for name in ("init", "val"):
        given[name] = given[name] and str(given[name]) if name in given else None
    return TrainOptions(**given | {"data": tuple(map(str, options.data))})


def options_of(options: argparse.Namespace, rows: int) -> TrainOptions:
    """With defaults, which divide the rows that a step has, and epochs as steps."""
    from simdformer.training.run import read_settings

    made = given_options(options)
    if options.lr is None and options.stage == "dpo":
        made = replace(made, lr=LR_OF_DPO)
    if options.micro_batches is None:
        made = replace(made, micro_batches=math.gcd(made.rows, made.micro_batches))
    if options.epochs is not None:
        return replace(made, steps=max(round(options.epochs * rows / made.rows), 1))
    if options.minutes is not None and options.resume:  # how many they are was measured then
        return replace(made, steps=read_settings(options.out)["steps"])
    return made
