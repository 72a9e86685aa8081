"""What a run of `simdformer train` takes: predicted from shapes, and measured by a few steps that
change nothing."""

import sys
from typing import TYPE_CHECKING

from simdformer.cli import _output as output
from simdformer.models.communicator import Communicator
from simdformer.training.work import flops_of_token, work_of_step

if TYPE_CHECKING:
    from simdformer.cli._train_setup import Ready

__all__ = ["Limit", "plan", "steps_within"]

MEASURED = 0.1  # seconds of multiply-adds
LEFT_OVER = 0.97  # of the time: the rest is for checkpoints and what is printed


class Limit:
    """How much of the most that the CPUs of all ranks can compute a run does."""

    def __init__(self, ready: "Ready", ranks: Communicator) -> None:
        from simdformer.bench.machine import multiply_adds
        from simdformer.bench.stopwatch import Stopwatch

        run = ready.run
        self.most = 1e9 * multiply_adds(MEASURED, Stopwatch()) * ranks.size
        self.of_token = flops_of_token(
            ready.model.config, run.parameters, run.options.context, run.options.checkpoint
        )

    def share(self, tokens_per_second: float) -> float:
        return tokens_per_second * self.of_token / self.most


def steps_within(ready: "Ready", minutes: float) -> int:
    """How many steps take so long, by a probe."""
    seconds, _ = ready.run.probe()
    return max(int(60 * LEFT_OVER * minutes / seconds), 1)


def plan(ready: "Ready", ranks: Communicator) -> None:
    """Prints it, by rank 0."""
    run, model = ready.run, ready.model
    options, config = run.options, model.config
    seconds, tokens = run.probe()
    limit = Limit(ready, ranks)
    work = work_of_step(
        config,
        run.parameters,
        rows=options.rows // ranks.size,
        length=options.context,
        micro_batches=len(run.share),
        checkpoint=options.checkpoint,
        precision=options.precision,
    )
    if ranks.rank > 0:
        return
    weights = sum(weight.nbytes for weight in model.weights.values())
    trained = sum(array.size for array in run.parameters.values())
    parts = {
        "weights": weights,
        "gradients": work.gradients,
        "moments": work.moments,
        "activations": work.activations,
    }
    each = ", ".join(f"{name} {output.memory(size)}" for name, size in parts.items())
    of_rank = " of each rank" if ranks.size > 1 else ""
    passes = options.steps * options.rows / len(run.rows)
    speed = tokens / seconds
    output.write(
        f"model      {config.summary}, {trained / 1e6:,.2f} million numbers that are trained\n"
        f"data       {run.rows.said()}; {options.steps:,} steps go through it {passes:.3g} times\n"
        f"a step     {options.rows:,} rows, {tokens:,.0f} tokens, "
        f"{tokens * limit.of_token / 1e9:,.1f} GFLOP\n"
        f"memory     {output.memory(sum(parts.values()))}{of_rank}: {each}\n"
        f"           {output.memory(peak())} at most while it was measured; a checkpoint takes "
        f"{output.memory(12 * trained)} of the disk\n"
        f"measured   {seconds:.3g} s a step, {speed:,.0f} tokens/s, "
        f"{speed * limit.of_token / 1e9:,.0f} GFLOPS, {limit.share(speed):.0%} of "
        f"{limit.most / 1e9:,.0f}\n"
        f"the run    {output.duration(options.steps * seconds)}\n"
    )


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
