"""Tensors become the matrices that kernels multiply with: read, converted and packed a few rows at
a time on all threads, so that what is loaded lies in memory once, and files are read as fast as
they come."""

import _thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from simdformer.functional import PackedWeight, QuantizedWeight
from simdformer.models.progress import Progress
from simdformer.models.tensors import AnyTensor, LazyTensor, QuantizedTensor
from simdformer.quantization.types import quantization_types
from simdformer.runtime import get_num_threads
from simdformer.types import Array

__all__ = ["Matrix", "Packing"]

Matrix = PackedWeight | QuantizedWeight
PANEL = 16  # rows that are packed together
PIECE_BYTES = 2 << 20  # stays in cache from the file to the panels


class Packing:
    """A model's tensors on their way into memory.

    `array` gives one as it is, `matrix` a weight whose rows `finish` fills in. `dtype` is what the
    numbers become, quantised ones too; None: they stay what they are.
    """

    def __init__(self, dtype: np.dtype[Any] | None, progress: Progress) -> None:
        self.dtype, self.progress = dtype, progress
        self.jobs: list[tuple[int, Callable[[], None]]] = []  # bytes, and what reads them

    def array(self, tensor: AnyTensor, dtype: np.dtype[Any] | None = None) -> Array:
        """A tensor as an array of its own, of `dtype` where one is given."""
        self.progress.advance(tensor.nbytes)
        values = tensor.dequantize() if isinstance(tensor, QuantizedWeight) else tensor
        return np.array(values, dtype or self.dtype or tensor.dtype, order="C")

    def matrix(self, tensor: AnyTensor) -> Matrix:
        """A tensor (O, I) as a packed or a quantised weight."""
        if isinstance(tensor, QuantizedWeight):
            if self.dtype is None:
                self.progress.advance(tensor.nbytes)
                return tensor
            tensor = tensor.dequantize(self.dtype)
        outputs, inputs = tensor.shape
        if isinstance(tensor, QuantizedTensor) and self.dtype is None:
            if tensor.type not in quantization_types():
                self.progress.advance(tensor.nbytes)
                return tensor.quantized()
            few = QuantizedWeight._empty(tensor.type, outputs, inputs)
            self.fill(tensor, lambda first, rows: few._fill(first, rows.blocks()))
            return few
        packed = PackedWeight._empty(outputs, inputs, self.dtype or tensor.dtype)
        self.fill(tensor, lambda first, rows: packed._fill(first, np.asarray(rows)))
        return packed

    def fill(self, tensor: Any, put: Callable[[int, Any], None]) -> None:
        """Notes that put(first, some rows from there on) is to be called until all are there."""
        count, _ = tensor.shape
        row_bytes = max(tensor.nbytes // max(count, 1), 1)
        in_file = isinstance(tensor, LazyTensor)
        step = max(count, 1)
        if not in_file or tensor.by_rows:
            step = max(PIECE_BYTES // row_bytes // PANEL, 1) * PANEL
        for first in range(0, count, step):
            last = min(first + step, count)

            def piece(first: int = first, last: int = last) -> None:
                put(first, tensor.rows(first, last) if in_file else tensor[first:last])

            self.jobs.append(((last - first) * row_bytes, piece))

    def finish(self) -> None:
        """Fills in all matrices: as many pieces at a time as there are threads."""
        left = deque(self.jobs)
        failed: list[BaseException] = []

        def work(advance: Callable[[int], None]) -> None:
            while left and not failed:
                try:
                    nbytes, job = left.popleft()
                except IndexError:  # another thread has taken the last
                    return
                job()
                advance(nbytes)

        done: deque[int] = deque()  # bytes that the others have worked on

        def told(nbytes: int) -> None:
            while done:
                self.progress.advance(done.popleft())
            self.progress.advance(nbytes)

        busy = [_thread.allocate_lock() for _ in range(get_num_threads() - 1)]
        try:
            for lock in busy:
                beside(work, done.append, failed, lock)
            work(told)
            wait_for(busy)
        finally:  # whatever a Ctrl-C has left out of that: no thread reads on
            left.clear()
            wait_for(busy)
        told(0)
        if failed:
            raise failed[0]


def beside(
    work: Callable[[Callable[[int], None]], None],
    advance: Callable[[int], None],
    failed: list[BaseException],
    busy: _thread.LockType,
) -> None:
    """Does `work(advance)` on a thread of its own, which holds `busy` while it does.

    Not `threading` nor its executors: a Ctrl-C inside of their conditions can leave a lock behind
    that the thread then waits for without end.
    """

    def run() -> None:
        with busy:
            try:
                work(advance)
            except BaseException as error:
                failed.append(error)

    with suppress(RuntimeError):  # no more threads, or the program is ending: the others do it all
        _thread.start_new_thread(run, ())


def wait_for(busy: list[_thread.LockType]) -> None:
    """Waits for the threads that have begun; those that begin later find nothing to do."""
    for lock in busy:
        with lock:
            pass
