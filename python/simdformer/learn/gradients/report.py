"""What a check of a model's gradients found."""

from dataclasses import dataclass
from typing import ClassVar

from simdformer.learn.trace.report import TraceReport, listed

__all__ = ["GradientsReport"]


@dataclass(frozen=True, repr=False)
class GradientsReport(TraceReport):
    """The answer of `simdformer.check_gradients`; it is true when nothing is wrong. Its attributes
    are those of `TraceReport`, of gradients on the way back:

    way : what runs between those that are right and the first that is wrong
    loss : the right loss
    """

    way: tuple[str, ...] = ()
    loss: float = float("nan")
    noun: ClassVar[str] = "gradient"

    def _before(self) -> list[str]:
        way = [f"· on the way to it: {', '.join(self.way)}"] if self.way else []
        return [*super()._before(), *way]

    def _missing(self) -> str:
        return f"· not among yours: {listed(self.missing)}"
