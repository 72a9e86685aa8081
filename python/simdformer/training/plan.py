"""What a step of training takes on several ranks: memory, seconds and bytes sent, predicted from
the shapes of a model and from what a machine was measured to do. docs/scaling.md explains it.

Nothing is run: a plan for 512 machines is made on a laptop.
"""

from dataclasses import dataclass

from simdformer.models.config import ModelConfig
from simdformer.parallel.plan import Exchange, Link, rounds_of, sums
from simdformer.training.gradient_tree import PIECE, share_of_each
from simdformer.training.options import TrainOptions
from simdformer.training.work import FLOAT, all_parameters, head_flops, work_of_step

__all__ = ["StepPrediction", "StepRates", "predict_step"]

BUFFERS = 4  # pieces of the gradients that are in memory while ranks exchange one


@dataclass(frozen=True, kw_only=True)
class StepRates:
    """What one machine does, all its cores together, a second.

    layers, head
        Floating-point operations of a micro-batch's way through layers and back, and through the
        head, with the embedding.
    added, updated
        Gradients that are added to those of another micro-batch; weights that clipping and AdamW
        change.
    joined
        Gradients that one thread puts side by side for the others, and adds to theirs.
    threads
        How many it computes with.
    """

    layers: float
    head: float
    added: float
    updated: float
    joined: float
    threads: int


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """A step on so many ranks. memory in bytes, and sent, are those of a rank; link is how many of
    the seconds ranks wait for each other's gradients."""

    ranks: int
    micro_batches: int  # of a rank
    memory: float
    seconds: float
    link: float
    sent: float


def predict_step(
    config: ModelConfig,
    rates: StepRates,
    link: Link,
    options: TrainOptions,
    ranks: int,
    *,
    per_machine: int = 1,
) -> StepPrediction:
    """Data parallelism over `ranks` ranks, of which `per_machine` share a machine.

    ValueError: the step has no rows for so many, or its micro-batches cannot be dealt to them.
    """
    if options.rows < ranks:
        raise ValueError(
            f"a step has {options.rows} rows, needs one for each of {ranks} ranks; give more "
            "--batch-tokens"
        )
    share = share_of_each(options.micro_batches, ranks)
    parameters = all_parameters(config)
    count = sum(array.size for array in parameters.values())
    work = work_of_step(
        config,
        parameters,
        rows=options.rows // ranks,
        length=options.context,
        micro_batches=share,
        checkpoint=options.checkpoint,
        precision=options.precision,
    )
    together = min(ranks, per_machine)
    tokens = options.rows // ranks * options.context
    head = tokens * head_flops(config)
    of_machine = (work.flops - head) / rates.layers + head / rates.head
    of_machine += (share - 1) * count / rates.added + count / rates.updated
    seconds = together * of_machine
    memory: float = FLOAT * count + work.moments + work.gradients + work.activations
    exchanges: list[Exchange] = []
    if ranks > 1:
        seconds += count / rates.joined * max(1.0, together / rates.threads)
        pieces = max(count / PIECE, 1.0)
        of_gradients = sums(pieces, FLOAT * count / pieces, ranks)
        exchanges = [of_gradients, Exchange(1, rounds_of(ranks), 0.0)]
        meanwhile = 2 * FLOAT * count + BUFFERS * FLOAT * count / pieces
        memory += max(0.0, meanwhile - work.gradients - work.activations)
    waits = sum(each.seconds(link) for each in exchanges)
    return StepPrediction(
        ranks=ranks,
        micro_batches=share,
        memory=memory,
        seconds=seconds + waits,
        link=waits,
        sent=sum(each.sent for each in exchanges),
    )
