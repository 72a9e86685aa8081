"""What a run is made with. The same options, data and instruction set give the same bits."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["FREE", "TrainOptions", "check_same"]

# What a run may be resumed with another value of: no weight depends on it.
FREE = ("val", "every", "sample", "save_minutes", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `simdformer train` under their names.

    steps : how many in all; the learning rate's curve ends there
    batch_tokens, context, micro_batches : a step has batch_tokens // context rows of `context`
        tokens, dealt to micro_batches whose gradients are added up
    min_lr : as a share of lr
    minutes : what `steps` were chosen to take, where that was asked for
    lora, alpha, targets : the rank of adapters, None: the weights themselves are trained
    beta : of the stage dpo
    balance : how much the balance loss of experts counts
    """

    data: tuple[str, ...]
    init: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    vocab: int | None = None
    lora: int | None = None
    alpha: float | None = None
    targets: str = "all"
    stage: Literal["pretrain", "sft", "dpo"] = "pretrain"
    beta: float = 0.1
    balance: float = 0.001
    steps: int = 1000
    minutes: float | None = None
    batch_tokens: int = 16384
    context: int = 512
    micro_batches: int = 4
    lr: float = 5e-4
    warmup: int = 100
    min_lr: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    checkpoint: Literal["none", "mlp", "layer"] = "none"
    seed: int = 0
    val: str | None = None
    every: int = 100
    sample: str | None = None
    save_minutes: float = 5.0

    @property
    def rows(self) -> int:
        """How many a step has."""
        return max(self.batch_tokens // self.context, 1)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "data": list(self.data)}


def check_same(saved: Mapping[str, Any], given: Mapping[str, Any], hashes: Sequence[str]) -> None:
    """ValueError for the first option, or hash of a file, in which a run and what is to go on with
    it differ. `hashes` are the names that are no options."""
    for name in given:
        before, now = saved.get(name), given[name]
        if name in FREE or before == now:
            continue
        if name in hashes:
            raise ValueError(
                f"train: the {name} has changed since this run began (hash {before}, now {now}); "
                "put the old files back, or give another --out"
            )
        option = "DATA" if name == "data" else f"--{name.replace('_', '-')}"
        raise ValueError(
            f"train: {option} is {told(now)}, this run began with {told(before)}; give that, or "
            "another --out"
        )


def told(value: Any) -> str:
    """A value as it is written on a command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
