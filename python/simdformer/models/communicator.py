"""Who computes a model together: here one process alone."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn, TypeVar

from simdformer.types import Array

__all__ = ["Communicator", "RankError"]

T = TypeVar("T")


class RankError(ValueError):
    """What failed on some ranks and not on all, raised on all of them."""


class Communicator:
    """The processes, called ranks, that compute a model together, and what they tell each other.

    This one is a process alone: what comes goes back at once.
    `simdformer.parallel` has the one that talks over MPI. Every rank calls the same methods in the
    same order.
    """

    rank, size = 0, 1

    def group(self, size: int) -> "Communicator":
        """That of `size` successive ranks, of which this is one."""
        return self

    def all_reduce(self, x: Array, *, tree: bool = False) -> Array:
        """The sum over the arrays of all ranks, which have one shape, added in the order of ranks
        in float32 at least, or in pairs and pairs of pairs: on every rank the same bits."""
        return x

    def all_gather(self, x: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        """The arrays of all ranks, whose shapes everyone knows, in their order."""
        return [x]

    def broadcast(self, make: Callable[[], T]) -> T:
        """What rank 0 makes of it; the others take that. An error is raised on all of them."""
        return make()

    def all_reduce_min(self, number: int) -> int:
        """The least of the numbers of all ranks."""
        return number

    def together(self) -> AbstractContextManager[None]:
        """What is done inside is done on all ranks, or there is an error on all of them."""
        return nullcontext()

    def all_fail(self) -> bool:
        """For a rank that fails: whether all others do, too. If not they are to be ended."""
        return True

    def complain(self, message: str) -> None:
        """Says on stderr what has failed on this rank."""

    def end(self, status: int) -> NoReturn:
        """Ends all ranks at once."""
        raise SystemExit(status)
