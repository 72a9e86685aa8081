"""Tasks dealt to groups of ranks one by one, whose results all come to rank 0."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from simdformer.models.communicator import Communicator
from simdformer.parallel.mpi import MPICommunicator

__all__ = ["Dealer"]

NAP = 1e-3
NO_MORE = None


class Dealer:
    """`count` tasks by number, for `group`, to which this rank belongs, and others of its size.

    Every group is given up to `ahead` tasks at a time, and another for each that it has done. Rank
    0 deals and is given results: write(number, result), in the order in which they come. It does so
    whenever it asks for tasks of its own, so groups have more than they work on.
    """

    def __init__(
        self,
        ranks: Communicator,
        group: Communicator,
        count: int,
        *,
        ahead: int,
        write: Callable[[int, Any], object],
    ) -> None:
        self._ranks, self._group, self._write = ranks, group, write
        self._ended = False
        self._tasks: deque[int] = deque()  # of this group, not taken yet
        if ranks.rank > 0:
            return
        self._undealt, self._unwritten = deque(range(count)), count
        leaders = range(0, ranks.size, group.size)
        for _ in range(min(ahead, count)):
            for leader in leaders:
                self._deal(leader)

    def take(self, *, idle: bool) -> list[int] | None:
        """New tasks for this group, on all of its ranks; None when there will be none. A group that
        is idle waits for some; that of rank 0 until all results have come."""
        return self._group.broadcast(lambda: self._taken(idle))

    def done(self, number: int, result: Any) -> None:
        """Hands in a result; called on every rank of the group."""
        if self._ranks.rank == 0:
            self._received(0, number, result)
        elif self._group.rank == 0:
            self._over_ranks.send(0, (number, result))

    @property
    def _over_ranks(self) -> MPICommunicator:
        assert isinstance(self._ranks, MPICommunicator)
        return self._ranks

    def _taken(self, idle: bool) -> list[int] | None:
        while True:
            if self._ranks.size > 1:
                self._listen()
            ended = self._unwritten == 0 if self._ranks.rank == 0 else self._ended
            if self._tasks or ended or not idle:
                break
            time.sleep(NAP)
        if ended and idle and not self._tasks:
            return None
        taken = list(self._tasks)
        self._tasks.clear()
        return taken

    def _listen(self) -> None:
        """Takes what other ranks have sent."""
        for sender, message in self._over_ranks.received():
            if self._ranks.rank == 0:
                self._received(sender, *message)
            elif message is NO_MORE:
                self._ended = True
            else:
                self._tasks.append(message)

    def _received(self, leader: int, number: int, result: Any) -> None:
        self._write(number, result)
        self._unwritten -= 1
        self._deal(leader)

    def _deal(self, leader: int) -> None:
        task = self._undealt.popleft() if self._undealt else NO_MORE
        if leader > 0:
            self._over_ranks.send(leader, task)
        elif task is not NO_MORE:
            self._tasks.append(task)
