"""Ranks that talk over MPI, by mpi4py: sums in the order of ranks, and one end for all of them."""

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from simdformer.models.communicator import Communicator, RankError
from simdformer.mpiexec import EACH_RANK, FAILED, INTERRUPTED, end_all
from simdformer.runtime import (
    get_num_threads,
    isa,
    isas,
    set_isa,
    set_num_threads,
    threads_are_told,
)
from simdformer.types import Array

__all__ = ["MPICommunicator", "communicator_of"]

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]

SMALL = 1 << 16  # bytes that a rank may send beyond what is needed, where it saves an exchange
LETTER = 1024  # bytes that are sent without asking how many there are
SPIN = 2e-3  # seconds that a rank with a core of its own waits without sleeping
NAP = 2e-5
# Behind so many seconds naps are a hundredth of the wait, for others have the core: 5 ms at most.
SHORT, LONGEST_NAP = 0.1, 5e-3
# Seconds that a rank which fails waits for all others to fail too, because then it is one error for
# all; the longer, the higher its number, so that of several only one speaks.
GRACE, MOST = 1.0, 3.0


def communicator_of(comm: Any) -> Communicator:
    """Ours, for one of mpi4py. TypeError for something else; None and one rank are a process
    alone."""
    if comm is None or isinstance(comm, Communicator):
        return comm or Communicator()
    if not all(hasattr(comm, name) for name in ("Dup", "Iallgatherv", "rank", "size")):
        raise TypeError(
            f"comm is of type {type(comm).__name__}, needs a communicator of mpi4py, "
            "MPI.COMM_WORLD for instance"
        )
    return MPICommunicator(comm) if comm.size > 1 else Communicator()


class MPICommunicator(Communicator):
    """The ranks of an mpi4py communicator, `MPI.COMM_WORLD` for instance; two or more.

    All of them make one, and call the same of its methods in the same order. The ranks of a machine
    divide its cores among their threads, unless somebody has said how many, and all of them take
    the best instruction set that all have: what each computes for itself must be the same to the
    last bit. An uncaught exception on one of them ends all.
    """

    def __init__(self, comm: Any, *, crowded: bool | None = None) -> None:
        from mpi4py import MPI

        self._status = MPI.Status
        self._sent: list[Any] = []
        self._comm, self._alarm = comm.Dup(), comm.Dup()
        self.rank, self.size = comm.rank, comm.size
        self._crowded = share_machine(comm) if crowded is None else crowded
        end_all_on_errors(self)

    def group(self, size: int) -> Communicator:
        comm = self._comm.Split(self.rank // size, self.rank)
        return MPICommunicator(comm, crowded=self._crowded) if comm.size > 1 else Communicator()

    # ---- what models ask -------------------------------------------------------------------------

    def all_reduce(self, x: Array, *, tree: bool = False) -> Array:
        add = in_pairs if tree else in_order
        flat = np.ascontiguousarray(x).reshape(-1)
        if in_one_exchange(flat.nbytes, self.size):
            parts = self._gathered(flat, [flat.nbytes] * self.size)
            return add(parts, x.dtype).reshape(x.shape)
        # Every rank adds up one piece of all of them, and gives it to the others.
        cuts = [len(flat) * rank // self.size * x.itemsize for rank in range(self.size + 1)]
        lengths = [stop - start for start, stop in pairwise(cuts)]
        own = lengths[self.rank]
        received = np.empty((self.size, own), np.uint8)
        places = [own] * self.size, [own * rank for rank in range(self.size)]
        sent = [flat.view(np.uint8), (lengths, cuts[:-1])]
        self._wait(self._comm.Ialltoallv(sent, [received, places]))
        pieces = self._gathered(add(list(received), x.dtype), lengths)
        return np.concatenate(pieces).view(x.dtype).reshape(x.shape)

    def all_gather(self, x: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        sizes = [int(np.prod(shape)) * x.itemsize for shape in shapes]
        parts = zip(self._gathered(np.ascontiguousarray(x).reshape(-1), sizes), shapes, strict=True)
        return [part.view(x.dtype).reshape(shape) for part, shape in parts]

    def broadcast(self, make: Callable[[], T]) -> T:
        error: Exception | None = None
        made: Any = None
        if self.rank == 0:
            try:
                made = make()
            except Exception as failure:
                error = failure
        right, told = self._from_first((error is None, made if error is None else safe(error)))
        if error is not None:
            raise error
        if not right:
            raise told
        chosen: T = made if self.rank == 0 else told
        return chosen

    def all_reduce_min(self, number: int) -> int:
        every = self._gathered(np.array([number], np.int64), [8] * self.size)
        return min(int(one.view(np.int64)[0]) for one in every)

    @contextmanager
    def together(self) -> Iterator[None]:
        error: Exception | None = None
        try:
            yield
        except Exception as failure:
            error = failure
        failed = self._failed(error)
        if failed is None:
            self.complain(str(error))
            self.end(FAILED)
        if not any(failed):
            return
        told = self._alarm.allgather(None if error is None else safe(error))
        if error is not None and all(str(one) == str(error) for one in told):
            raise error
        rank = failed.index(True)
        raise RankError(f"rank {rank} of {self.size}: {told[rank]}") from error

    # ---- from one to another ---------------------------------------------------------------------

    def send(self, rank: int, message: Any) -> None:
        """Does not wait until it has come."""
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._comm.isend(message, rank))

    def received(self) -> Iterator[tuple[int, Any]]:
        """What has come by now, and from whom."""
        self._sent = [request for request in self._sent if not request.Test()]
        status = self._status()
        while self._comm.iprobe(status=status):
            sender = status.Get_source()
            yield sender, self._comm.recv(source=sender)

    # ---- when something goes wrong ---------------------------------------------------------------

    def all_fail(self) -> bool:
        failed = self._failed(KeyboardInterrupt())
        return failed is not None and all(failed)

    def end(self, status: int) -> NoReturn:
        end_all(self._comm, status)

    def complain(self, message: str) -> None:
        # Also where a rank is silent.
        print(f"rank {self.rank} of {self.size}: {message}", file=sys.__stderr__)

    def _failed(self, error: BaseException | None) -> list[bool] | None:
        """Which ranks have failed, once all are here; None where they are not within the time that
        a rank with an error has."""
        flags = np.zeros(self.size, np.uint8)
        own = np.array([error is not None], np.uint8)
        patience = None if error is None else min(GRACE + EACH_RANK * self.rank, MOST)
        if not self._wait(self._alarm.Iallgather(own, flags), patience):
            return None
        return [bool(flag) for flag in flags]

    # ---- messages --------------------------------------------------------------------------------

    def _gathered(self, own: Array, sizes: Sequence[int]) -> list[Bytes]:
        """The bytes of all ranks, so many of each."""
        ends = np.cumsum(sizes).tolist()
        received = np.empty(ends[-1], np.uint8)
        places = list(sizes), [0, *ends[:-1]]
        self._wait(self._comm.Iallgatherv(own.view(np.uint8), [received, places]))
        return np.split(received, ends[:-1])

    def _from_first(self, message: Any) -> Any:
        """What rank 0 says."""
        letter = np.zeros(LETTER, np.uint8)
        data = pickle.dumps(message) if self.rank == 0 else b""
        if self.rank == 0:
            head = len(data).to_bytes(8, "little") + data[: LETTER - 8]
            letter[: len(head)] = np.frombuffer(head, np.uint8)
        self._wait(self._comm.Ibcast(letter))
        size = int.from_bytes(letter[:8].tobytes(), "little")
        more = np.empty(max(size - (LETTER - 8), 0), np.uint8)
        if more.size:
            if self.rank == 0:
                more[:] = np.frombuffer(data[LETTER - 8 :], np.uint8)
            self._wait(self._comm.Ibcast(more))
        whole = letter[8:].tobytes()[:size] + more.tobytes()
        return pickle.loads(whole)

    def _wait(self, request: Any, patience: float | None = None) -> bool:
        """Until it is done; whether it was within so many seconds. (MPI itself would keep the core
        busy, and not notice Ctrl-C.)"""
        started = time.perf_counter()
        while not request.Test():
            waited = time.perf_counter() - started
            if patience is not None and waited > patience:
                return False
            if self._crowded or waited > SPIN:
                time.sleep(NAP if waited < SHORT else min(waited / 100, LONGEST_NAP))
            else:
                os.sched_yield()
        return True


def in_one_exchange(nbytes: float, ranks: int) -> bool:
    """Whether a sum of so many bytes is made by sending all parts to all ranks, each of which adds
    them up, and not by adding up a piece each."""
    return (ranks - 2) * nbytes <= SMALL


def in_order(parts: Sequence[Bytes], dtype: np.dtype[Any]) -> Array:
    """The sum of numbers of a dtype, from the first part to the last, in float32 at least."""
    total = parts[0].view(dtype).astype(np.promote_types(dtype, np.float32))
    for part in parts[1:]:
        total += part.view(dtype)
    return total.astype(dtype, copy=False)


def in_pairs(parts: Sequence[Bytes], dtype: np.dtype[Any]) -> Array:
    """The sum as a binary tree: neighbours first, then the sums of neighbours."""
    sums = [part.view(dtype).astype(np.promote_types(dtype, np.float32)) for part in parts]
    while len(sums) > 1:
        for left, right in zip(sums[::2], sums[1::2], strict=False):
            left += right
        sums = sums[::2]
    return sums[0].astype(dtype, copy=False)


def safe(error: Exception) -> Exception:
    """The error, or one that says the same where it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RankError(f"{type(error).__name__}: {error}")
    return error


def share_machine(comm: Any) -> bool:
    """Divides the cores of each machine among its ranks, and finds an instruction set for all;
    whether there are more ranks than cores."""
    every = comm.allgather((isa(), isas()))
    if len({used for used, _ in every}) > 1:
        set_isa([name for name in isas() if all(name in there for _, there in every)][-1])
    cores = os.sched_getaffinity(0)
    beside = comm.allgather((os.uname().nodename, cores))
    sharing = sum(name == os.uname().nodename and bool(cores & own) for name, own in beside)
    available = get_num_threads()
    if not threads_are_told():
        set_num_threads(max(available // sharing, 1))
    return bool(sharing > len(cores))


def end_all_on_errors(communicator: MPICommunicator) -> None:
    """Has an uncaught exception end all ranks: the others would wait for this one for ever."""
    if getattr(sys.excepthook, "ends_all_ranks", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace)).rstrip()
        if not communicator.all_fail():
            communicator.complain(text)
            communicator.end(INTERRUPTED if issubclass(kind, KeyboardInterrupt) else FAILED)
        if communicator.rank == 0:
            print(text, file=sys.stderr)

    hook.ends_all_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = hook
