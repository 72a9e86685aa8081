"""A run: steps of training that go on where they were ended, whatever ended them.

    directory/training.json          options, versions, hashes of what the run began with
    directory/log.jsonl              a line a step
    directory/checkpoint-000123/     what the run needs to go on after step 123
    directory/config.json, ...       the model, once the run has ended or was interrupted

Every number that a step needs follows from options and the number of the step, or is in the
checkpoint: resumed runs compute what runs that were not ended compute, bit for bit.
"""

import json
import math
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from simdformer.models.communicator import Communicator
from simdformer.optim import AdamW, clip_grad_norm_, cosine_lr
from simdformer.runtime import isa
from simdformer.training.checkpoint import (
    Checkpoint,
    newest_checkpoint,
    save_checkpoint,
    unwritten,
    whole_one,
)
from simdformer.training.data import Rows, rows_of_step
from simdformer.training.files import write_text
from simdformer.training.gradient_tree import GradientTree, share_of_rank
from simdformer.training.log import LOG, whole_lines
from simdformer.training.objectives import Batch, NextToken, Objective, Trainable
from simdformer.training.options import TrainOptions, check_same
from simdformer.types import Array

__all__ = ["SETTINGS", "Diverged", "Interrupted", "Run", "StepResult", "read_settings"]

SPIKE = 100  # times the median of the norms before it: a norm that no clipping makes good
REMEMBERED = 100  # norms whose median counts
ENOUGH = 10  # norms before a median says anything
SETTINGS = "training.json"
PROBED = 5  # steps
VAL_ROWS = 64  # of the validation data, at most: the same ones each time


class Diverged(ValueError):
    """Loss or gradients from which no training comes back."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or SIGTERM, behind a whole step, of which there is a checkpoint."""


@dataclass(frozen=True)
class StepResult:
    """A line of the log. `step` counts from 1; norm is that of the gradients before clipping,
    accuracy the share of pairs of answers that are told apart, where there are such."""

    step: int
    loss: float
    lr: float
    norm: float
    tokens_per_second: float
    accuracy: float | None = None
    val_loss: float | None = None

    def as_json(self) -> str:
        return json.dumps({name: v for name, v in vars(self).items() if v is not None})


@dataclass
class Run:
    """`for result in Run(...).steps()`: trains a model in place, one step a turn.

    hashes : of what the run depends on beside its options, by names that no option has
    say : is given a sentence now and then
    """

    model: Trainable
    rows: Rows
    options: TrainOptions
    directory: Path
    hashes: Mapping[str, str] = field(default_factory=dict)
    val_rows: Rows | None = None
    ranks: Communicator = field(default_factory=Communicator)
    say: Callable[[str], None] = print
    objective: Objective = field(default_factory=NextToken)

    def __post_init__(self) -> None:
        options = self.options
        if options.rows % options.micro_batches:
            raise ValueError(
                f"train: a step has {options.rows} rows, needs a multiple of "
                f"{options.micro_batches} micro-batches; give another --batch-tokens, --context or "
                "--micro-batches"
            )
        self.of_step: dict[str, Any] = {
            "precision": options.precision,
            "checkpoint": options.checkpoint,
            "balance": options.balance,
        }
        self.share = share_of_rank(options.micro_batches, self.ranks)
        self.parameters = dict(self.model.parameters())
        self.optimizer = self.new_optimizer()
        self.gradients = GradientTree(self.parameters)
        self.step = 0
        self.norms: list[float] = []
        self.saved_at = time.monotonic()

    def new_optimizer(self) -> AdamW:
        options = self.options
        return AdamW(self.parameters, lr=options.lr, weight_decay=options.weight_decay)

    # ---- beginning, going on, saving -------------------------------------------------------------

    def begin(self, *, resume: bool) -> None:
        """Writes what the run is made with, or with `resume` goes on after its last whole
        checkpoint. ValueError: the directory holds a run and this is not its continuation."""
        with self.ranks.together():
            checkpoint = self.ranks.broadcast(lambda: self.prepare(resume))
            rows = {"train": self.rows}
            if self.val_rows is not None:
                rows["val"] = self.val_rows
            self.objective.prepare(self.model, rows, self.directory, self.ranks)
            if checkpoint is not None:
                self.restore(checkpoint)

    def prepare(self, resume: bool) -> Checkpoint | None:
        settings = self.directory / SETTINGS
        given = {**self.options.as_json(), **self.hashes}
        if not resume:
            if settings.exists():
                raise ValueError(
                    f"{self.directory} holds a run already; add --resume to go on with it, or give "
                    "another --out"
                )
            write_text(settings, json.dumps({**given, "isa": isa()}, indent=1) + "\n")
            return None
        saved = read_settings(self.directory)
        check_same(saved, given, list(self.hashes))
        if saved["isa"] != isa():
            self.say(
                f"this run began with the instruction set {saved['isa']}, and {isa()} rounds "
                f"differently; --isa {saved['isa']} gives the same bits"
            )
        checkpoint, damaged = newest_checkpoint(self.directory)
        for sentence in damaged:
            self.say(f"{sentence}; the one before it is taken")
        step = 0 if checkpoint is None else checkpoint.step
        keep_log(self.directory / LOG, step)
        self.say(f"goes on after step {step:,} of {self.options.steps:,}")
        return checkpoint

    def restore(self, checkpoint: Checkpoint) -> None:
        weights = checkpoint.arrays["weights"]
        shapes = {name: array.shape for name, array in self.parameters.items()}
        if shapes != {name: array.shape for name, array in weights.items()}:
            raise ValueError(
                f"{self.directory}: its checkpoints hold another model; give the --init or --model "
                "that the run began with"
            )
        for name, array in self.parameters.items():
            array[...] = weights[name]
        self.optimizer.load_state_dict({"steps": checkpoint.step, **checkpoint.arrays})
        self.step = checkpoint.step
        self.norms = list(checkpoint.state["norms"])

    def save(self) -> None:
        """A checkpoint of now; rank 0 writes it."""
        if self.ranks.rank == 0:
            arrays = {
                "weights": self.parameters,
                "exp_avg": self.optimizer.exp_avg,
                "exp_avg_sq": self.optimizer.exp_avg_sq,
            }
            state = {"norms": self.norms, "options": self.options.as_json(), **self.hashes}
            save_checkpoint(self.directory, Checkpoint(self.step, state, arrays))
        self.saved_at = time.monotonic()

    # ---- steps -----------------------------------------------------------------------------------

    def steps(self) -> Iterator[StepResult]:
        """The steps that are left. Ctrl-C, or SIGTERM, lets the step end, saves, and raises
        Interrupted; a second Ctrl-C is a KeyboardInterrupt in the middle of whatever is done."""
        with signals_wait() as told:
            while self.step < self.options.steps:
                result = self.one(told)
                if self.ranks.rank == 0:
                    self.note(result)
                yield result
                last = self.step == self.options.steps
                if last or self.interrupted or self.is_time():
                    self.save()
                if self.interrupted:
                    raise Interrupted

    def note(self, result: StepResult) -> None:
        """A line of the log."""
        path = self.directory / LOG
        try:
            with path.open("a", encoding="utf-8") as log:
                log.write(result.as_json() + "\n")
        except OSError as error:
            raise unwritten(self.directory, path, error) from error

    def is_time(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return time.monotonic() - self.saved_at >= 60 * self.options.save_minutes

    def one(self, told: Mapping[str, bool]) -> StepResult:
        """One step: gradients of this rank's micro-batches, their sum over all, clipping, AdamW."""
        started, options = time.perf_counter(), self.options
        measured, tokens, numbers, total = self.gradients_of_step(stop=told["stop"])
        loss, accuracy, stop = measured.tolist()
        self.interrupted = stop > 0
        norm = clip_grad_norm_(total, options.clip, apply=False)
        self.guard(loss, norm, total, numbers)
        lr = cosine_lr(
            self.step,
            lr=options.lr,
            warmup=min(options.warmup, options.steps),
            total=options.steps,
            min_lr=options.min_lr * options.lr,
        )
        self.optimizer.step(total, lr=lr, scale=min(1.0, options.clip / (norm + 1e-6)))
        self.step += 1
        self.norms = [*self.norms, norm][-REMEMBERED:]
        seconds = time.perf_counter() - started
        val_loss = None
        if self.val_rows is not None and self.is_due():
            val_loss = self.val_loss(self.val_rows)
        return StepResult(
            self.step,
            loss,
            lr,
            norm,
            round(tokens / seconds, 1),
            accuracy if options.stage == "dpo" else None,
            val_loss,
        )

    def gradients_of_step(
        self, *, stop: bool = False
    ) -> tuple[Array, int, list[int], dict[str, Array]]:
        """[loss, accuracy, on how many ranks to stop], tokens, numbers of the rows, and the
        gradients: of the whole step, over all ranks."""
        options = self.options
        numbers = rows_of_step(self.step, options.rows, len(self.rows), options.seed)
        size = len(numbers) // options.micro_batches
        batches = [
            Batch.take(self.rows, numbers[begin : begin + size])
            for begin in range(0, len(numbers), size)
        ]
        count = sum(map(self.objective.count, batches))
        measured = []
        for number in self.share:
            loss, gradients, right = self.objective.measure(
                self.model, batches[number], count, self.of_step
            )
            measured.append(np.array([loss, right or 0.0]))
            self.gradients.add(gradients)
        summed = self.ranks.all_reduce(np.array([*in_tree(measured), stop]), tree=True)
        tokens = sum(batch.ids.size for batch in batches)
        return summed, tokens, numbers, self.gradients.total(self.ranks)

    def probe(self, steps: int = PROBED) -> tuple[float, float]:
        """The seconds of a step, and its tokens, of some that change nothing: the longest over all
        ranks, and the median over all but the first, which makes memory."""
        self.objective.pretend(self.rows)
        seconds, sizes = [], []
        for _ in range(steps):
            started = time.perf_counter()
            _, tokens, _, total = self.gradients_of_step()
            clip_grad_norm_(total, self.options.clip, apply=False)
            self.optimizer.step(total, lr=0.0)
            seconds.append(time.perf_counter() - started)
            sizes.append(tokens)
        self.optimizer = self.new_optimizer()
        longest = -self.ranks.all_reduce_min(-int(1e9 * statistics.median(seconds[1:])))
        return longest / 1e9, statistics.mean(sizes)

    def is_due(self) -> bool:
        """Whether this step is one after which the model is looked at."""
        return self.step % self.options.every == 0 or self.step == self.options.steps

    def val_loss(self, rows: Rows) -> float:
        """The mean over the labels of the first rows. Every rank measures all of it."""
        size = max(self.options.rows // self.options.micro_batches, 1)
        total, count = 0.0, 0
        most = min(len(rows), VAL_ROWS)
        for begin in range(0, most, size):
            batch = Batch.take(rows, range(begin, min(begin + size, most)), "val")
            total += self.objective.loss(self.model, batch, self.options.precision)
            count += self.objective.count(batch)
        return total / count

    def guard(
        self, loss: float, norm: float, gradients: Mapping[str, Array], numbers: list[int]
    ) -> None:
        """Diverged, before the step has changed a weight: it says where, and keeps the batch."""
        usual = statistics.median(self.norms) if len(self.norms) >= ENOUGH else math.inf
        if math.isfinite(loss) and norm <= SPIKE * usual and math.isfinite(norm):
            return
        place = self.directory / f"batch-{self.step + 1:06d}.json"
        if self.ranks.rank == 0:
            ids, labels = self.rows.batch(numbers)
            batch = {"rows": numbers, "ids": ids.tolist(), "labels": labels.tolist()}
            write_text(place, json.dumps(batch))
        beside = f", {norm / usual:,.0f} times the usual {usual:.3g}" if usual < math.inf else ""
        raise Diverged(
            f"train: step {self.step + 1}: the loss is {loss:.4g} and the norm of the gradients "
            f"{norm:.4g}{beside}, most of it at {worst(gradients)}; its batch is in {place}; "
            f"{whole_one(self.directory)}; lower --lr, and give another --out"
        )


def worst(gradients: Mapping[str, Array]) -> str:
    """The name of the first gradient that is not finite, else of the largest."""
    sizes = {name: float(np.abs(array).max(initial=0)) for name, array in gradients.items()}
    broken = (name for name, size in sizes.items() if not math.isfinite(size))
    return next(broken, max(sizes, key=sizes.__getitem__))


def in_tree(parts: list[Array]) -> Array:
    """The sum in the order of GradientTree."""
    while len(parts) > 1:
        parts = [np.sum(parts[at : at + 2], axis=0) for at in range(0, len(parts), 2)]
    return parts[0]


def read_settings(directory: Path) -> dict[str, Any]:
    """What a run was begun with. ValueError: there is none, or its file is damaged."""
    path = directory / SETTINGS
    try:
        settings = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(
            f"{directory}: found no run to resume, needs one that has begun; leave out --resume"
        ) from None
    except (ValueError, RecursionError):
        settings = None
    if not (isinstance(settings, dict) and {"isa", "steps"} <= settings.keys()):
        raise ValueError(
            f"{path}: found a damaged file, needs the options that the run began with; put the old "
            "file back, or give another --out"
        )
    return settings


def keep_log(path: Path, steps: int) -> None:
    """Takes away the lines of later steps, which are computed again, and those that are not
    whole."""
    if path.exists():
        kept = [line for line in whole_lines(path) if line["step"] <= steps]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))


@contextmanager
def signals_wait() -> Iterator[dict[str, bool]]:
    """Ctrl-C and SIGTERM set "stop", once; a second one ends the program as usual."""
    told = {"stop": False}

    def note(number: int, frame: FrameType | None) -> None:
        told["stop"] = True
        for which, before in usual.items():
            signal.signal(which, before)

    usual: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        usual = {which: signal.signal(which, note) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for which, before in usual.items():
            signal.signal(which, before)
