"""What a run makes smaller: the loss of the next token, or that of direct preference optimization.

    margin = beta ((log π(chosen) - log π₀(chosen)) - (log π(rejected) - log π₀(rejected)))
    loss   = -log sigmoid(margin)                       the mean over pairs

π is the model, π₀ what it was before the run. Rafailov et al. 2023, arXiv:2305.18290. Rows of such
a batch are n chosen answers, and behind them the n rejected ones.
"""

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from simdformer.models.communicator import Communicator
from simdformer.models.progress import Progress
from simdformer.training.data import IGNORED, Rows
from simdformer.training.files import write_whole
from simdformer.types import Array

__all__ = ["Batch", "NextToken", "Objective", "Preference", "Trainable", "margins", "preference"]

REFERENCE = "reference.npz"


class Trainable(Protocol):
    """What a run needs of a model: see `TrainableModel`."""

    def parameters(self) -> Mapping[str, Array]: ...

    def loss(
        self,
        ids: Array,
        labels: Array | None = None,
        *,
        count: int | None = None,
        precision: Any = "float32",
    ) -> float: ...

    def losses(
        self, ids: Array, labels: Array | None = None, *, precision: Any = "float32"
    ) -> Array: ...

    def loss_and_gradients(
        self,
        ids: Array,
        labels: Array | None = None,
        *,
        count: int | None = None,
        precision: Any = "float32",
        checkpoint: Any = "none",
        objective: Any = None,
        balance: float = 0.0,
    ) -> tuple[float, Mapping[str, Array]]: ...


class Batch(NamedTuple):
    """Rows by their numbers: of the validation data, or of those that are learned."""

    numbers: Sequence[int]
    ids: Array
    labels: Array
    of: str = "train"

    @classmethod
    def take(cls, rows: Rows, numbers: Sequence[int], of: str = "train") -> "Batch":
        return cls(numbers, *rows.batch(numbers), of)

    @property
    def label_count(self) -> int:
        return int((self.labels != IGNORED).sum())


class Measured(NamedTuple):
    """The loss of a batch, its gradients, and which share of all pairs is told apart rightly."""

    loss: float
    gradients: Mapping[str, Array]
    accuracy: float | None = None


class Objective(Protocol):
    def prepare(
        self, model: Trainable, rows: Mapping[str, Rows], directory: Path, ranks: Communicator
    ) -> None:
        """Before the first step, with the model as it was at the beginning."""

    def pretend(self, rows: Rows) -> None:
        """For a probe before that, whose results nobody looks at."""

    def count(self, batch: Batch) -> int:
        """How many losses of a batch are averaged over."""

    def loss(self, model: Trainable, batch: Batch, precision: str) -> float:
        """The sum of those losses."""

    def measure(
        self, model: Trainable, batch: Batch, count: int, options: Mapping[str, Any]
    ) -> Measured:
        """What a batch has to do with the mean over `count`; options of `loss_and_gradients`."""


class NextToken:
    """The mean loss of the labels."""

    def prepare(
        self, model: Trainable, rows: Mapping[str, Rows], directory: Path, ranks: Communicator
    ) -> None:
        pass

    def pretend(self, rows: Rows) -> None:
        pass

    def count(self, batch: Batch) -> int:
        return batch.label_count

    def loss(self, model: Trainable, batch: Batch, precision: str) -> float:
        return model.loss(batch.ids, batch.labels, count=1, precision=precision)

    def measure(
        self, model: Trainable, batch: Batch, count: int, options: Mapping[str, Any]
    ) -> Measured:
        if batch.label_count == 0:
            return Measured(0.0, {})
        loss, gradients = model.loss_and_gradients(batch.ids, batch.labels, count=count, **options)
        return Measured(loss, gradients)


@dataclass
class Preference:
    """DPO, beside the losses (2n,) of the answers before the run, which are computed once and lie
    in the run's directory."""

    beta: float
    size: int  # pairs that are computed at a time
    precision: str = "float32"
    reference: dict[str, Array] = field(default_factory=dict)

    def prepare(
        self, model: Trainable, rows: Mapping[str, Rows], directory: Path, ranks: Communicator
    ) -> None:
        place = directory / REFERENCE
        there = ranks.broadcast(lambda: read_reference(place))
        known = dict(there)
        for name, some in rows.items():
            key = hash_of_rows(some)
            if key not in known:
                known[key] = self.before(model, some, ranks)
            self.reference[name] = known[key]
        if ranks.rank == 0 and known.keys() != there.keys():
            write_whole(place, lambda file: np.savez(file, allow_pickle=False, **known))

    def pretend(self, rows: Rows) -> None:
        self.reference["train"] = np.zeros((2, len(rows)))

    def before(self, model: Trainable, rows: Rows, ranks: Communicator) -> Array:
        """The losses of all chosen answers, and of all rejected ones: (2, pairs)"""
        found = np.zeros((2, len(rows)))
        batches = range(0, len(rows), self.size)
        with Progress("measuring the model as it is", len(rows), " pairs") as bar:
            for begin in batches[ranks.rank :: ranks.size]:
                numbers = range(begin, min(begin + self.size, len(rows)))
                losses = model.losses(*rows.batch(numbers), precision=self.precision)
                both = losses.sum(axis=1, dtype=np.float64)
                found[:, begin : numbers.stop] = both.reshape(2, -1)
                bar.advance(len(numbers) * ranks.size)
        return ranks.all_reduce(found, tree=True)

    def count(self, batch: Batch) -> int:
        return len(batch.numbers)

    def of(self, batch: Batch) -> Array:
        return self.reference[batch.of][:, list(batch.numbers)].reshape(-1)

    def loss(self, model: Trainable, batch: Batch, precision: str) -> float:
        losses = model.losses(batch.ids, batch.labels, precision=precision)
        return preference(losses, self.of(batch), beta=self.beta, count=1)[0]

    def measure(
        self, model: Trainable, batch: Batch, count: int, options: Mapping[str, Any]
    ) -> Measured:
        reference, right = self.of(batch), 0

        def objective(losses: Array) -> tuple[float, Array]:
            nonlocal right
            right = int((margins(losses, reference, self.beta) > 0).sum())
            return preference(losses, reference, beta=self.beta, count=count)

        loss, gradients = model.loss_and_gradients(
            batch.ids, batch.labels, objective=objective, **options
        )
        return Measured(loss, gradients, right / count)


def hash_of_rows(rows: Rows) -> str:
    """That of all their ids and labels."""
    digest = hashlib.blake2b(digest_size=16)
    for number in range(len(rows)):
        for array in rows.batch([number]):
            digest.update(array.tobytes())
    return digest.hexdigest()


def read_reference(place: Path) -> dict[str, Array]:
    """What was computed before the run was ended; nothing where it is damaged."""
    try:
        with np.load(place, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return {}


def margins(losses: Array, reference: Array, beta: float) -> Array:
    """losses (2n,L) of the tokens, reference (2n,) those of the answers before -> margins (n,)"""
    chosen, rejected = np.split(reference - losses.sum(axis=1, dtype=np.float64), 2)
    return np.asarray(beta * (chosen - rejected))


def preference(
    losses: Array, reference: Array, *, beta: float, count: int | None = None
) -> tuple[float, Array]:
    """The loss of DPO and its gradient by the tokens' losses. count : what the mean divides by,
    where these are a part of a batch: all its pairs.

    >>> losses = np.array([[1.0, 2.0], [2.0, 0.0]])       # one pair, two tokens each
    >>> loss, gradient = preference(losses, np.array([3.0, 2.0]), beta=0.1)
    >>> round(loss, 4), gradient.tolist()                 # ln 2: nothing is learnt yet
    (0.6931, [[0.05, 0.05], [-0.05, -0.05]])
    """
    margin = margins(losses, reference, beta)
    count = len(margin) if count is None else count
    slope = beta / (1 + np.exp(margin)) / count
    gradient = np.concatenate([slope, -slope])[:, None]
    loss = float(np.logaddexp(0, -margin).sum()) / count
    return loss, np.broadcast_to(gradient, losses.shape)
