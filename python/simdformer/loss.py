"""What a language model is trained by: log_softmax and the cross entropy of the next token."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from simdformer import _core
from simdformer.arguments import as_array, as_floats, converted, read_names, read_whole, shown
from simdformer.functional import linear, pack
from simdformer.reference.backward import LossAndGradients
from simdformer.reference.loss import Reduction, softcapped
from simdformer.types import Array, ArrayLike, Out

__all__ = ["LossAndGradients", "cross_entropy", "linear_cross_entropy", "log_softmax"]
__dir__ = __all__.copy  # what dir() and completion show

BLOCK_BYTES = 16 << 20  # of logits at a time
PART_BYTES = 8 << 20  # of weights at a time, which are packed
# Each piece of rows packs the weight, each block of the vocabulary the rows: fewer rows at a time
# than these are not worth it, and neither are more.
FEWEST_ROWS, MOST_ROWS = 512, 4096


def log_softmax(x: ArrayLike, axis: int = -1, *, out: Out | None = None) -> Array:
    """x - log sum exp x along one axis, the logarithm of softmax(x), as in torch.

    x (...) -> (...). It neither overflows nor loses the logarithm of a small probability.

    TypeError: x is not of a float dtype. ValueError: no such axis.

    >>> import simdformer as sf
    >>> sf.log_softmax([0.0, 1000.0])
    array([-1000.,     0.])
    """
    return _core.log_softmax(x, axis, out)


def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    return_lse: bool = False,
) -> Any:
    """-log softmax(logits)[label] of each row, as torch.nn.functional.cross_entropy.

    Parameters
    ----------
    logits : (..., V)
    labels : (...) integers
        The id of the right token of each row, or `ignore_index`: such a row does not count.
    reduction : "mean", "sum" or "none"
        The mean is over the rows that count.
    label_smoothing : float
        The target is 1 - label_smoothing at the label, and label_smoothing / V everywhere.
    z_loss : float
        Adds z_loss · lse² to each row: it keeps logits small. PaLM, arXiv:2204.02311.
    softcap : float, optional
        Logits are softcap · tanh(logits / softcap), as in Gemma 2.
    return_lse : bool
        Also gives log sum exp of each row (...), which the backward can use.

    Returns
    -------
    number, or (...) without a reduction; float32, or float64 for float64 logits. With return_lse a
    pair.

    TypeError: dtypes. ValueError: shapes; no label counts and the mean is asked for. IndexError: a
    label that is neither in 0..V - 1 nor ignore_index.

    >>> import simdformer as sf
    >>> round(float(sf.cross_entropy([[0.0, 0.0], [9.0, 0.0]], [1, -100])), 4)
    0.6931
    """
    function = "cross_entropy"
    check_reduction(function, reduction)
    rows, lse, total, count = _core.cross_entropy(
        function, logits, labels, ignore_index, label_smoothing, z_loss, softcap
    )
    if reduction == "mean":
        require(function, count)
        total /= count
    loss = rows if reduction == "none" else rows.dtype.type(total)
    return (loss, lse) if return_lse else loss


def linear_cross_entropy(
    x: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    *,
    count: int | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    needs: Sequence[str] = ("x", "weight"),
) -> LossAndGradients:
    """cross_entropy(linear(x, weight), labels) and its gradients, without the logits in memory.

    At most 16 MB of the logits (N, V) exist at a time: those of some rows, each computed once, or,
    where they would be fewer than 512 rows, of a block of the vocabulary for up to 4096 rows. Then
    what is more than 16 MB is computed twice, first for log sum exp, then for the gradients.

    Parameters
    ----------
    x : (..., E)
    weight : (V, E)
        In x's dtype, or float32 beside 16 bits, or 16 bits beside float32. Where both are bfloat16,
        so are the gradients of the logits; the logits are float32 always.
    labels : (...) integers
    count : int, optional
        What the mean divides by, where that is not the number of labels that count here: the
        labels of a whole batch, of which this is a part.
    reduction, ignore_index, label_smoothing, z_loss, softcap
        As in `cross_entropy`; reduction="none" has no gradients in one piece.
    needs : names out of "x", "weight"
        The gradients to compute; the rest is None. (): the loss alone.

    Returns
    -------
    LossAndGradients(loss, count, x, weight)
        loss float64, count the labels that count here, x (..., E) in x's dtype, weight (V, E) in
        float32 (float64 for float64).

    TypeError: dtypes; a packed or quantised weight. ValueError: shapes; no label counts and the
    mean is asked for. IndexError: a label that is neither in 0..V - 1 nor ignore_index.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> result = sf.linear_cross_entropy(np.zeros((3, 4)), np.ones((8, 4)), [1, 0, 7])
    >>> round(float(result.loss), 4), result.count, result.weight.shape
    (2.0794, 3, (8, 4))
    """
    return linear_cross_entropy_in_parts(
        x, weight, labels, count, reduction, (ignore_index, label_smoothing, z_loss, softcap), needs
    )


Options = tuple[int, float, float, float | None]  # from ignore_index to softcap


def linear_cross_entropy_in_parts(
    x: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    count: int | None,
    reduction: Literal["mean", "sum"],
    options: Options,
    needs: Sequence[str] = ("x", "weight"),
    most_bytes: int | None = None,
) -> LossAndGradients:
    """linear_cross_entropy, with as many bytes of logits at a time; None: BLOCK_BYTES"""
    function = "linear_cross_entropy"
    check_reduction(function, reduction, ("mean", "sum"))
    wanted = read_names(function, "needs", needs, ("x", "weight"))
    if isinstance(weight, _core.PackedWeight | _core.QuantizedPanels):
        raise TypeError(f"{function}: weight is packed, needs a plain array to have a gradient")
    given, table = as_floats(function, "x", x), as_floats(function, "weight", weight)
    ids = as_array(function, "labels", labels)
    # options are checked as the kernel does
    _core.cross_entropy(function, np.zeros((0, 1)), ids.reshape(-1)[:0], *options)
    if count is not None:
        read_whole(function, "count", count)
    if table.ndim != 2 or given.ndim < 1 or table.shape[1] != given.shape[-1]:
        raise ValueError(
            f"{function}: weight has shape {table.shape}, needs (V, E) "
            f"beside x of shape {given.shape}, (..., E)"
        )
    if ids.shape != given.shape[:-1]:
        raise ValueError(
            f"{function}: labels has shape {ids.shape}, needs {given.shape[:-1]}, one for each row "
            "of x"
        )
    mixes = {given.dtype.itemsize, table.dtype.itemsize} == {2, 4}
    if table.dtype != given.dtype and not mixes:
        raise TypeError(f"{function}: weight has dtype {table.dtype}, needs {given.dtype} as x has")
    wide = np.dtype(np.float64 if given.dtype == np.float64 else np.float32)
    dtype = given.dtype if given.dtype == table.dtype == ml_dtypes.bfloat16 else wide
    rows = converted(given.reshape(-1, given.shape[-1]), dtype)
    flat = ids.reshape(-1).astype(np.int64, copy=False)
    ignore_index = options[0]
    check_labels(function, ids, len(table), ignore_index)
    counts = flat != ignore_index
    found = int(counts.sum())
    if reduction == "mean" and count is None:
        require(function, found)
    divisor = 1 if reduction == "sum" else found if count is None else count

    most_logits = (BLOCK_BYTES if most_bytes is None else most_bytes) // wide.itemsize
    head = Head(function, table, options, divisor, dtype, wide, wanted, most_logits)
    way, step = rows_at_a_time(len(rows), len(table), most_logits)
    total, of_x = 0.0, np.empty(rows.shape, wide) if "x" in wanted else None
    of_weight: Array | None = None
    for first in range(0, max(len(rows), 1), step):
        own = slice(first, first + step)
        loss, dx, dw = way(head, rows[own], flat[own])
        total += loss
        if of_x is not None:
            of_x[own] = dx
        of_weight = dw if of_weight is None else _core.add_to(of_weight, dw)
    if of_x is not None:
        of_x = converted(of_x, given.dtype).reshape(given.shape)
    return LossAndGradients(np.float64(total / divisor), found, of_x, of_weight)


class Head(NamedTuple):
    """What all rows of a call have in common."""

    function: str
    weight: Array  # (V, E)
    options: Options
    divisor: float
    dtype: np.dtype[Any]  # of the products
    wide: np.dtype[Any]  # of the sums
    wanted: Sequence[str]
    most_logits: int  # that exist at a time

    def gradients(
        self, rows: Array, weight: Array, of_logits: Array, of_weight: Array | None = None
    ) -> tuple[Any, Any]:
        """of_logits (N, V) -> x (N, E), weight (V, E) where they are wanted; `of_weight` becomes
        the latter"""
        wants = ("x" in self.wanted, "weight" in self.wanted)
        dx, dw, _ = _core.linear_backward(
            (converted(of_logits, self.dtype),), rows, (weight,), False, *wants, False, True,
            None if of_weight is None else (of_weight,),
        )  # fmt: skip
        return dx, dw[0] if wants[1] else None


# The sum of the losses, and the gradients that are wanted
Part = tuple[float, Array | None, Array | None]


def rows_at_a_time(
    count: int, vocabulary: int, most_logits: int
) -> tuple[Callable[[Head, Array, Array], Part], int]:
    """All logits of some rows where they fit; else, of more rows, a block of the vocabulary."""
    together = most_logits // max(vocabulary, 1)
    fits = together >= min(count, FEWEST_ROWS)
    pieces = max(-(-count // max(together if fits else MOST_ROWS, 1)), 1)
    return by_rows if fits else by_vocabulary, max(-(-count // pieces), 1)


def by_rows(head: Head, rows: Array, labels: Array) -> Part:
    """Each logit is computed once, and its gradient takes its place."""
    logits = logits_of(rows, head.weight)
    _, lse, loss, _ = _core.cross_entropy(head.function, logits, labels, *head.options)
    if not head.wanted:
        return loss, None, None
    of_logits = _core.cross_entropy_backward(
        head.function, logits, labels, *head.options, 1 / head.divisor, None, lse, logits, 0, 0
    )
    return loss, *head.gradients(rows, head.weight, of_logits)


def by_vocabulary(head: Head, rows: Array, labels: Array) -> Part:
    """First log sum exp, then the gradients: logits that are not kept are computed twice."""
    table, wide = head.weight, head.wide
    ignore_index, label_smoothing, z_loss, softcap = head.options
    counts = labels != ignore_index
    most = max(256, head.most_logits // len(rows) // 64 * 64)  # columns
    step = min(most, max(256, PART_BYTES // max(table[:1].nbytes, 1) // 64 * 64))
    lse: Array = np.full(len(rows), -np.inf)
    at_label, total = np.zeros(len(rows)), np.zeros(len(rows))
    nothing = np.full(len(rows), ignore_index)
    kept: dict[int, Array] = {}  # the last logits, by their first column
    for first in range(0, len(table), step):
        if (len(kept) + 1) * step > most:
            del kept[min(kept)]
        logits = kept[first] = logits_of(rows, table[first : first + step])
        block = _core.cross_entropy(
            head.function, logits, nothing, ignore_index, 0.0, 0.0, softcap
        )[1]
        lse = np.logaddexp(lse, block.astype(np.float64))
        inside = np.flatnonzero(counts & (labels >= first) & (labels < first + step))
        at_label[inside] = softcapped(logits[inside, labels[inside] - first], softcap)
        if label_smoothing:
            total += softcapped(logits, softcap).sum(axis=-1)
    losses = lse - (1 - label_smoothing) * at_label + z_loss * lse**2
    losses -= label_smoothing * total / len(table)

    of_x: Array | None = np.zeros(rows.shape, wide) if "x" in head.wanted else None
    of_weight = np.empty(table.shape, wide) if "weight" in head.wanted else None
    for first in reversed(range(0, len(table) if head.wanted else 0, step)):
        part = table[first : first + step]
        logits = kept.pop(first) if first in kept else logits_of(rows, part)
        of_logits = _core.cross_entropy_backward(
            head.function, logits, labels, *head.options, 1 / head.divisor,
            None, lse, logits, first, len(table),
        )  # fmt: skip
        own = None if of_weight is None else of_weight[first : first + step]
        dx, _ = head.gradients(rows, part, of_logits, own)
        if of_x is not None:
            of_x = _core.add_to(of_x, dx)
    return math.fsum(losses[counts]), of_x, of_weight


def logits_of(rows: Array, weight: Any) -> Array:
    """rows (N, E), weight (V, E), packed or quantised too -> (N, V), in float32 at least: products
    of bfloat16 the CPU may have an instruction for where the weight is packed"""
    if isinstance(weight, np.ndarray) and rows.dtype == ml_dtypes.bfloat16:
        weight = pack(weight)
    dtype = np.promote_types(rows.dtype, np.float32)
    out: Array = np.empty((len(rows), weight.shape[0]), dtype)
    return linear(rows, weight, arithmetic="float32", out=out)


def check_labels(function: str, labels: Array, vocabulary: int, ignore_index: int) -> None:
    wrong = np.argwhere((labels != ignore_index) & ((labels < 0) | (labels >= vocabulary)))
    if len(wrong):
        at = tuple(map(int, wrong[0]))
        place = f" at {list(at)}" if at else ""
        raise IndexError(
            f"{function}: labels holds {labels[at]}{place}, needs labels from 0 to "
            f"{vocabulary - 1}, or ignore_index ({ignore_index})"
        )


def check_reduction(
    function: str, reduction: Any, known: Sequence[str] = ("mean", "sum", "none")
) -> None:
    if not isinstance(reduction, str) or reduction not in known:
        raise ValueError(
            f"{function}: reduction is {shown(reduction)}, needs one of {', '.join(known)}"
        )


def require(function: str, count: int) -> None:
    if count == 0:
        raise ValueError(
            f"{function}: labels has none that counts, needs at least one for a mean; "
            'leave this batch out, or pass reduction="sum"'
        )


def counted(function: str, labels: ArrayLike, ignore_index: int) -> int:
    """How many labels count. ValueError if none does."""
    count = int((np.asarray(labels) != ignore_index).sum())
    require(function, count)
    return count
