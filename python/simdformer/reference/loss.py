"""The cross entropy of next-token prediction in plain float64 numpy, and what it is made of.

Shapes: logits (..., V), labels (...), where `...` are any leading axes and V is the vocabulary.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from simdformer.reference.forward import Array, ArrayLike, float64, ieee

Reduction = Literal["mean", "sum", "none"]

__all__ = ["counted", "cross_entropy", "log_softmax", "logsumexp", "softcapped"]


@ieee
def logsumexp(x: ArrayLike, axis: int = -1) -> Array:
    """log sum exp x along one axis, which is kept. A row of -inf gives -inf."""
    scores = float64(x)
    highest = np.max(scores, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, 0)
    total: Array = np.log(np.exp(scores - shift).sum(axis=axis, keepdims=True)) + shift
    return total


@ieee
def log_softmax(x: ArrayLike, axis: int = -1) -> Array:
    """x - log sum exp x, the logarithm of softmax(x)."""
    return float64(x) - logsumexp(x, axis)


@ieee
def softcapped(logits: ArrayLike, softcap: float | None) -> Array:
    """softcap · tanh(logits / softcap). Gemma 2, arXiv:2408.00118."""
    z = float64(logits)
    return z if softcap is None else softcap * np.tanh(z / softcap)


def counted(labels: ArrayLike, ignore_index: int) -> npt.NDArray[np.bool_]:
    """Which labels count: all but those that are `ignore_index`."""
    which: npt.NDArray[np.bool_] = np.asarray(labels) != ignore_index
    return which


@ieee
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
    """-log softmax(z)[label] of each row that counts, z = softcap · tanh(logits / softcap).

    logits (..., V), labels (...) -> one number, or (...) without a reduction; then lse (...) on
    request. With label smoothing the target is 1 - label_smoothing at the label and
    label_smoothing / V everywhere, the label included: arXiv:1512.00567. z_loss · lse² is added to
    each row: PaLM, arXiv:2204.02311. The mean is over the rows that count; where none does, it is
    a ValueError, because 0 / 0 is no loss.
    """
    z, count = softcapped(logits, softcap), counted(labels, ignore_index)
    lse = logsumexp(z)[..., 0]
    label = np.where(count, labels, 0)
    at_label = np.take_along_axis(z, label[..., None], axis=-1)[..., 0]
    rows = lse - (1 - label_smoothing) * at_label + z_loss * lse**2
    if label_smoothing:
        rows = rows - label_smoothing * z.mean(axis=-1)
    rows = np.where(count, rows, 0)
    if reduction == "mean" and not count.any():
        raise ValueError("cross_entropy: labels has none that counts, needs at least one")
    loss = rows if reduction == "none" else rows.sum() / (count.sum() if reduction == "mean" else 1)
    return (loss, lse) if return_lse else loss
