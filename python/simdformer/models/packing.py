"""Tensors become the matrices that kernels multiply with: read, converted and packed a few rows at
a time on all threads, so that what is loaded lies in memory once, and files are read as fast as
they come."""

import _thread
import re
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from simdformer.functional import PackedWeight, QuantizedWeight
from simdformer.models.progress import Progress
from simdformer.quantization.types import quantization_types
from simdformer.runtime import get_num_threads
from simdformer.types import Array

__all__ = ["AnyTensor", "Matrix", "Packing", "Quantized", "Tensor", "block_of", "cut", "kind_of"]

Matrix = PackedWeight | QuantizedWeight
PANEL = 16  # rows that are packed together
PIECE_BYTES = 2 << 20  # stays in cache from the file to the panels


@runtime_checkable
class Tensor(Protocol):
    """An ndarray, or what becomes one when `np.asarray` asks (a tensor in a file)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def nbytes(self) -> int: ...
    def __array__(self) -> Array: ...


@runtime_checkable
class FileTensor(Tensor, Protocol):
    """A tensor in a file, of which rows or columns alone can be read; rows one behind the other
    where they lie so (`by_rows`)."""

    @property
    def by_rows(self) -> bool: ...
    def rows(self, start: int, stop: int, /) -> Tensor: ...
    def columns(self, start: int, stop: int, /) -> Tensor: ...


@runtime_checkable
class BlockTensor(Tensor, Protocol):
    """One that is quantised, in the blocks of a `type`; np.asarray gives its values."""

    @property
    def type(self) -> str: ...
    @property
    def packed_nbytes(self) -> int: ...  # of the weight that it becomes
    def rows(self, start: int, stop: int, /) -> "BlockTensor": ...
    def blocks(self) -> Array: ...


@runtime_checkable
class GroupTensor(Tensor, Protocol):
    """One that is quantised in another way; np.asarray gives its values."""

    @property
    def type(self) -> str: ...
    @property
    def packed_nbytes(self) -> int: ...
    def quantized(self) -> QuantizedWeight: ...


Quantized = QuantizedWeight | BlockTensor | GroupTensor
AnyTensor = Tensor | QuantizedWeight


GROUPS = re.compile(r"int(\d)_g(\d+)")  # a kind of quantised weights that is no type of GGUF's


def kind_of(tensor: AnyTensor) -> str:
    """What its numbers are: "float32", or "q4_k" where they are quantised."""
    return tensor.type if isinstance(tensor, Quantized) else str(tensor.dtype)


def block_of(kind: str) -> int:
    """How many inputs of a matrix of this kind stay together when it is cut: of a quantised one a
    block."""
    if known := quantization_types().get(kind):
        return known.block
    groups = GROUPS.fullmatch(kind)
    return int(groups[2]) if groups else 1


def bits_of(kind: str) -> float:
    """Of a number of this kind; groups have scales and minimums, as those of AWQ and GPTQ."""
    if known := quantization_types().get(kind):
        return known.bits_per_weight
    if groups := GROUPS.fullmatch(kind):
        return int(groups[1]) + 64 / int(groups[2])
    return 8.0 * np.dtype(kind).itemsize


def cut(tensor: Any, axis: int, part: range) -> Any:
    """The part of a tensor along its first or second axis; nothing is read yet."""
    if len(part) == tensor.shape[axis]:
        return tensor
    if not part:
        return np.empty([0 if at == axis else n for at, n in enumerate(tensor.shape)], tensor.dtype)
    if isinstance(tensor, QuantizedWeight):
        return cut_weight(tensor, axis, part)
    if isinstance(tensor, FileTensor):
        return (tensor.columns if axis else tensor.rows)(part.start, part.stop)
    return tensor[:, part.start : part.stop] if axis else tensor[part.start : part.stop]


def cut_weight(weight: QuantizedWeight, axis: int, part: range) -> QuantizedWeight:
    """Whole rows, or whole blocks of each row."""

    def piece(x: Array) -> Array:
        """Of (O, n), whose columns stand for the inputs in equal shares."""
        if axis == 0:
            return x[part.start : part.stop]
        share = part.start * x.shape[1], part.stop * x.shape[1]
        return x[:, share[0] // weight.shape[1] : share[1] // weight.shape[1]]

    if (kind := quantization_types().get(weight.type)) is None:
        minimums = weight.minimums
        return QuantizedWeight.from_groups(
            piece(weight.codes),
            piece(weight.scales),
            minimums=None if minimums is None else piece(minimums),
        )
    blocks = piece(weight.blocks())
    return QuantizedWeight.from_blocks(
        blocks, kind.name, (len(blocks), len(part) if axis else weight.shape[1])
    )


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
        if isinstance(tensor, QuantizedWeight | GroupTensor) and self.dtype is None:
            self.progress.advance(tensor.nbytes)
            return tensor if isinstance(tensor, QuantizedWeight) else tensor.quantized()
        if isinstance(tensor, QuantizedWeight):
            tensor = tensor.dequantize(self.dtype or np.float32)
        outputs, inputs = tensor.shape
        if isinstance(tensor, BlockTensor) and self.dtype is None:
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
        in_file = isinstance(tensor, FileTensor)
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

        others = [beside(work, done.append, failed) for _ in range(get_num_threads() - 1)]
        try:
            work(told)
        finally:
            left.clear()
            for ended in others:
                ended.acquire()
        told(0)
        if failed:
            raise failed[0]


def beside(
    work: Callable[[Callable[[int], None]], None],
    advance: Callable[[int], None],
    failed: list[BaseException],
) -> _thread.LockType:
    """Does `work(advance)` on a thread of its own; a lock that is free when it has ended.

    Not `threading` nor its executors: a Ctrl-C inside of their conditions can leave a lock behind
    that the thread then waits for without end.
    """
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            work(advance)
        except BaseException as error:
            failed.append(error)
        finally:
            ended.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # as many as there may be, or the program is ending: the others do it all
        ended.release()
    return ended
