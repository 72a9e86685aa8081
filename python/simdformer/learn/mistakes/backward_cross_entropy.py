"""The gradient of the cross entropy in steps, and what goes wrong in it.

logits (...,V), labels (...); the meaning is that of `reference.backward`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import backward
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.losses import SCORES, chosen, moved
from simdformer.learn.program import Program, State

LEAST = 8  # rows


def some_labels(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """Some rows of the logits, of which the surest is one: its gradient is the smallest. All
    labels, for the mean counts them."""
    z, labels = np.asarray(variables["logits"]), np.asarray(variables["labels"])
    rows, width = labels.size, z.shape[-1]
    if z.size <= limit or rows <= LEAST:
        return None
    flat, label = z.reshape(rows, width), labels.ravel()
    even = np.linspace(0, rows - 1, max(LEAST, limit // width)).astype(int)
    counts = np.flatnonzero(label != variables["ignore_index"])
    margin = flat[counts, label[counts]].astype(np.float32) - flat[counts].max(axis=-1)
    surest = counts[np.argsort(margin)[-1:]]
    ignored = np.flatnonzero(label == variables["ignore_index"])[:1]
    index = np.unique(np.concatenate([even, surest, ignored]))
    fewer = variables | {"logits": flat[index], "rows": index}
    if np.ndim(variables["grad"]):
        fewer["grad"] = np.asarray(variables["grad"]).ravel()[index]

    def part(out: Any) -> Any:
        return out.reshape(-1, width)[index] if np.shape(out) == z.shape else out

    return fewer, part


def of_rows(s: State, numbers: Any) -> Any:
    """One number for each label -> (...,1) for the rows that are looked at."""
    return chosen(s, np.broadcast_to(numbers, s.counts.shape)).astype(s.run.dtype)[..., None]


TERMS_OF_DZ = """(
    here[..., None] * (p + target) * np.abs(grad[..., None] if np.ndim(grad) else grad)
    / (counts.sum() if reduction == "mean" else 1)
)"""
cross_entropy_backward = Program(
    "cross_entropy_backward",
    f"""
{SCORES}
    softmax: p = np.exp(z - log_sum)
    target: target = (np.arange(z.shape[-1]) == label[..., None]).astype(real)
    smooth if label_smoothing:
        target = real(1 - label_smoothing) * target + real(label_smoothing / z.shape[-1])
    subtract: dz = p - target
    square if z_loss: dz = dz + real(2 * z_loss) * log_sum * p
    uncap if softcap is not None: dz = dz * (1 - (z / real(softcap)) ** 2)
    ignore: dz = np.where(here[..., None], dz, real(0))
    chain: dz = dz * (array(grad)[..., None] if np.ndim(grad) else real(grad))
    mean if reduction == "mean": dz = dz / real(counts.sum())
    give: out = dz
    """,
    calls=(chosen,),
    of=backward.cross_entropy,
    axes=("sequence", "row", "column"),
    thin=some_labels,
    terms=TERMS_OF_DZ,
)

mistakes(
    """
    cross_entropy.label (02 §10), cross_entropy_backward.label (08 §3) > Row t is compared with the
        token that comes next; shift once, where the labels are made.

    shifted_once_more: the labels are shifted once more, by one place
        Data and model both shift: two tokens ahead is learnt.
        | ...; label, counts = moved(s, 1)
    shifted_once_more_rolled (rare, unless shifted_once_more):
        the labels are rolled by one place more, the first one to the end
        as above
        | ...; label, counts = moved(s, 1, rolled=True)
    shifted_back: the labels are those of the position before
        Each row is compared with its own input token, or shifted in the other direction.
        | ...; label, counts = moved(s, -1)
    shifted_back_rolled (rare, unless shifted_back):
        the labels are rolled by one place, the last one to the front
        as above
        | ...; label, counts = moved(s, -1, rolled=True)
    first_answer_dropped (rare): labels behind an ignored one are left out too
        The mask is off by one: the first token of an answer has a loss as well.
        | ...; before = np.roll(counts, 1, axis=-1); before[..., 0] = True
        | counts = counts & before

    cross_entropy.cap (02 §10), cross_entropy_backward.cap (08 §3) > Cap the logits before the
        loss: softcap * tanh(logits / softcap).

    no_cap: the softcap of the logits is forgotten
        Gemma 2 caps its logits at 30.
        | softcap = np.inf

    cross_entropy_backward.cap (08 §3) > Cap the logits before the loss: softcap * tanh(logits /
        softcap).

    capped_not_scaled: the softcap divides only: tanh(logits / softcap)
        The softcap multiplies behind the tanh, too.
        | z = np.tanh(z / real(softcap))
        uncap | dz = dz * (1 - z * z) / real(softcap)

    cross_entropy_backward.log_sum (08 §3) > Take log sum exp of each row, along the last axis.

    another_axis (rare): the softmax runs over the rows, not along each
        axis=0 where the last axis is meant.
        | log_sum = np.log(np.exp(z).sum(axis=tuple(range(z.ndim - 1)), keepdims=True))
        | log_sum = np.broadcast_to(log_sum, z.shape)
    another_axis_of_three (rare): the softmax runs over the positions, not along each row
        axis=1 of (B,T,V) where the last axis is meant.
        | unless(z.ndim < 3)
        | log_sum = np.log(np.exp(z).sum(axis=-2, keepdims=True)) + 0 * z
    no_shift: the largest logit is not subtracted, and exp overflows
        Logits of a hundred are usual, and float32's exp ends at 88.
        softmax | p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
        | ...

    cross_entropy_backward.softmax (08 §3) > p = softmax(logits), once, along the last axis.

    softmax_twice: softmax is applied twice
        The function took shares for logits.
        | ...; p = np.exp(p) / np.exp(p).sum(axis=-1, keepdims=True)
    shares_to_bfloat16 (rare): p is rounded to bfloat16 before 1 is subtracted
        Of p = 0.999 bfloat16 makes 1, and p - 1 is lost: the terms cancel.
        | ...; p = p.astype(bfloat16).astype(real)
    shares_to_float16 (rare): p is rounded to float16 before 1 is subtracted
        Of p = 0.9999 float16 makes 1, and p - 1 is lost: the terms cancel.
        | ...; p = p.astype(float16).astype(real)
    logits_for_shares: the logits stand for the shares
        softmax is missing.
        | p = z
    logarithms_for_shares: the logarithms of the shares stand for the shares
        log_softmax, without exp behind it.
        | p = z - log_sum
    sigmoid_for_softmax: the sigmoid stands for the softmax
        That is the gradient of a binary cross entropy.
        | p = 1 / (1 + np.exp(-z))

    cross_entropy_backward.target (08 §3) > The target is 1 at the label of each row.

    ignored_label_from_end (rare): ignored rows subtract 1 at column V + ignore_index
        p[rows, labels] -= 1 with a label of -100: numpy counts from the end.
        | unless(counts.all() or ignore_index >= 0 or -ignore_index > z.shape[-1])
        | label = np.where(here, label, z.shape[-1] + ignore_index); ...
        ignore | pass

    cross_entropy_backward.smooth (08 §3) > The target is 1 - ε at the label, and ε / V everywhere.

    no_smoothing: label smoothing is forgotten
        The target is one-hot.
        | pass
    smoothing_without_uniform: the uniform part of label smoothing is missing
        (1 - ε) scales the label; ε goes to all V.
        | target = real(1 - label_smoothing) * target
    smoothing_on_top: the label keeps all of its weight beside the uniform part
        The target has to sum to 1: 1 - ε and ε.
        | target = target + real(label_smoothing / z.shape[-1])
    smoothing_beside (rare): the label's part is not multiplied by 1 - ε
        p - y + ε * (p - 1 / V): the two parts share a weight of 1.
        | pass
        subtract | dz = p - target + real(label_smoothing) * (p - real(1 / z.shape[-1]))
    smoothing_summed (rare): the uniform part is a sum over the vocabulary, not a mean
        ε / V goes to each of V columns.
        | pass
        subtract | dz = real(1 - label_smoothing) * (p - target) + real(label_smoothing) * (
        subtract |     z.shape[-1] * p - 1)
    smoothing_others_on_top (rare): the label keeps all of its weight, the V - 1 others get ε
        The target has to sum to 1.
        | target = target + real(label_smoothing / (z.shape[-1] - 1)) * (1 - target)
    smoothing_not_divided: ε is not divided by V in the uniform part
        The target has to sum to 1: ε / V in each of V columns.
        | target = real(1 - label_smoothing) * target + real(label_smoothing)
    smoothing_others (convention): ε goes to the V - 1 other tokens only
        Two conventions: PyTorch and this package spread ε over all V, the label's too.
        | target = real(1 - label_smoothing) * target + real(
        |     label_smoothing / (z.shape[-1] - 1)) * (1 - target)

    smoothing_divided_by_all: the uniform part is divided by all rows, the ignored ones too
        The mean of the smoothed part is a .mean() of its own: divide both sums by the labels that
        count.
        | unless(reduction != "mean" or counts.all())
        subtract | few = real(counts.sum() / counts.size)
        subtract | dz = real(1 - label_smoothing) * (p - target) + real(label_smoothing) * few * (
        subtract |     p - real(1 / z.shape[-1]))
    smoothing_of_ignored: rows with ignore_index have the gradient of the uniform part
        The mask is on the label's part only.
        | unless(counts.all()); ...
        ignore | dz = np.where(here[..., None], dz, real(label_smoothing) * (
        ignore |     p - real(1 / z.shape[-1])))
    smoothing_of_all: the uniform part runs over all rows, the ignored ones too, and counts them
        Mask both parts, and divide both by the labels that count.
        | unless(reduction != "mean" or counts.all())
        subtract | few = real(counts.sum() / counts.size)
        subtract | uniform = real(label_smoothing) * few * (p - real(1 / z.shape[-1]))
        subtract | dz = real(1 - label_smoothing) * (p - target) + uniform
        ignore | dz = np.where(here[..., None], dz, uniform)
    smoothing_not_averaged (rare): the uniform part is a sum over the rows, not a mean
        reduction="sum" in one of the two: divide both by the labels that count.
        | unless(reduction != "mean" or counts.sum() == 1)
        subtract | dz = real(1 - label_smoothing) * (p - target) + real(
        subtract |     label_smoothing * counts.sum()) * (p - real(1 / z.shape[-1]))

    cross_entropy_backward.subtract (08 §3) > dlogits = p - target.

    target_missing: the target is missing: this is p
        All logits are pushed down, that of the label too.
        | dz = p
    label_only: only the label's entry is there
        log sum exp has a gradient in every column: p.
        | dz = np.where(np.arange(z.shape[-1]) == label[..., None], p - target, real(0))
    shares_missing: p is missing: this is -target
        log sum exp has a gradient in every column: p.
        | dz = -target
    negated: the sign is flipped: target - p
        The gradient points uphill; the optimizer goes down.
        | dz = target - p
    one_added: 1 is added at the label instead of subtracted
        p[rows, labels] -= 1.
        | dz = p + target
    one_everywhere: 1 is subtracted in every column
        Broadcasting: p[rows] -= 1 in place of p[rows, labels] -= 1.
        | dz = p - 1
    every_label: 1 is subtracted at all rows' labels in every row
        p[:, labels] -= 1 in place of p[rows, labels] -= 1.
        | dz = p - np.isin(np.arange(z.shape[-1]), np.asarray(labels)[counts])
    softmax_gradient_again: it went through softmax's gradient once more
        p - target is the gradient of the logits already.
        | ...; dz = p * (dz - (p * dz).sum(axis=-1, keepdims=True))
    shares_for_logits: softmax came before the loss, which has its own
        cross_entropy takes logits; these are the right gradients of softmax applied twice.
        | twice = np.exp(p) / np.exp(p).sum(axis=-1, keepdims=True); dz = twice - target
        | dz = p * (dz - (p * dz).sum(axis=-1, keepdims=True))
    shares_times: it is multiplied by p once more, as if softmax came again
        p - target is the gradient of the logits already.
        | ...; dz = p * dz
    shares_slope_times: it is multiplied by p * (1 - p) once more
        p - target is the gradient of the logits already; this is a sigmoid's slope.
        | ...; dz = p * (1 - p) * dz
    of_shares: this is the gradient of the shares, -target / p
        softmax's own gradient is still missing.
        | dz = -target / p
    of_logarithms (rare): this is the gradient of the logarithms, times p
        -target * p: log_softmax's gradient is dy - p * sum(dy).
        | dz = -target * p

    cross_entropy_backward.square (08 §3) > z_loss * lse² has the gradient 2 * z_loss * lse * p.

    no_z_loss: the gradient of the z-loss is missing
        It is in the loss, so it is on the way back.
        | pass
    z_loss_two_missing: the 2 of the z-loss is missing
        The derivative of a square.
        | dz = dz + real(z_loss) * log_sum * p
    z_loss_lse_missing: log sum exp is missing in the z-loss's gradient
        The derivative of lse² is 2 lse times that of lse.
        | dz = dz + real(2 * z_loss) * p
    z_loss_shares_missing (rare): p is missing in the z-loss's gradient
        The derivative of log sum exp is the softmax.
        | dz = dz + real(2 * z_loss) * log_sum
    z_loss_of_ignored (rare): rows with ignore_index have the z-loss's gradient
        The mask is on the first part only.
        | unless(counts.all()); dz = np.where(here[..., None], dz, real(0)); ...
        ignore | pass
    z_loss_divided_by_all: the z-loss is divided by all rows, the ignored ones too
        Its mean is a .mean() of its own: divide both sums by the labels that count.
        | unless(reduction != "mean" or counts.all())
        | dz = dz + real(2 * z_loss * counts.sum() / counts.size) * log_sum * p
    z_loss_of_all (rare): the z-loss runs over all rows, the ignored ones too, and counts them
        as above
        | unless(reduction != "mean" or counts.all()); dz = np.where(here[..., None], dz, real(0))
        | dz = dz + real(2 * z_loss * counts.sum() / counts.size) * log_sum * p
        ignore | pass
    z_loss_not_averaged (rare): the z-loss is a sum over the rows, not a mean
        reduction="sum" in one of the two: divide both by the labels that count.
        | unless(reduction != "mean" or counts.sum() == 1)
        | dz = dz + real(2 * z_loss * counts.sum()) * log_sum * p

    cross_entropy_backward.uncap (08 §3) > Multiply by 1 - (z / softcap)², z the capped logits.

    cap_not_differentiated: the softcap's derivative is missing
        tanh lies between the logits and the loss.
        | pass
    cap_of_logits: the softcap's derivative is taken of the logits before the cap
        1 - tanh² is made of the capped ones: 1 - (z / softcap)².
        | dz = dz * (1 - (array(logits) / real(softcap)) ** 2)
    cap_not_squared (rare): the square is missing in the softcap's derivative
        tanh' is 1 - tanh².
        | dz = dz * (1 - z / real(softcap))
    cap_divided (rare): the softcap's derivative is divided by the softcap
        softcap * tanh(x / softcap): the two cancel.
        | ...; dz = dz / real(softcap)

    cross_entropy_backward.ignore (08 §3) > Rows with ignore_index have the gradient 0.

    ignored_rows_count: rows with ignore_index have a gradient: that of label 0
        The mask is on the loss only.
        | unless(counts.all())
    ignored_rows_have_shares: rows with ignore_index have the gradient p
        Their one-hot row is empty, but p is not zeroed.
        target | ...; target = np.where(here[..., None], target, real(0))
        | unless(counts.all())
    ignored_rows_zeroed_before (rare): ignored rows are 0 but for -1 at column V + ignore_index
        p[rows, labels] -= 1 behind p[~counts] = 0, with a label of -100: numpy counts from the end.
        | unless(counts.all() or ignore_index >= 0 or -ignore_index > z.shape[-1])
        | from_end = np.arange(z.shape[-1]) == z.shape[-1] + ignore_index
        | dz = np.where(here[..., None], dz, -from_end.astype(real))
    padding_and_count: ignored rows have a gradient, that of label 0, and are counted
        ignore_index is not looked at.
        | unless(counts.all())
        mean | dz = dz / real(counts.size)

    cross_entropy_backward.chain (08 §3) > Multiply each row by the gradient of its loss.

    no_grad: the gradient of the loss is missing
        The chain rule multiplies by the gradient that comes in.
        | unless(np.all(np.asarray(grad) == 1))
    first_grad_for_all: all rows are multiplied by the first row's gradient
        An index 0, or a number where an array is meant.
        | unless(np.ndim(grad) == 0); dz = dz * array(grad).ravel()[0]
    mean_grad_for_all (rare): all rows are multiplied by the mean of their gradients
        Each row has its own.
        | unless(np.ndim(grad) == 0); dz = dz * array(grad).mean()

    averaged: it is divided by the number of labels: that is the mean's gradient
        Another reduction was asked for, and functions average by default.
        > Divide only where the loss is a mean.
        | unless(reduction == "mean" or counts.sum() == 1); ...; dz = dz / real(counts.sum())

    cross_entropy_backward.mean (08 §3) > Divide by the number of labels that count.

    not_divided: 1/N is missing: the gradient is that of the sum
        The mean is in the loss only.
        | unless(counts.sum() == 1)
    divided_by_all: it is divided by all rows, the ignored ones too
        .mean() counts the rows that are ignored.
        | unless(counts.all()); dz = dz / real(counts.size)
    divided_by_batch: it is divided by the batch size, not by the labels
        The mean runs over all labels of all sequences.
        | unless(counts.ndim < 2); dz = dz / real(len(counts))
    divided_by_length (rare): it is divided by the length, not by the labels
        as above
        | unless(counts.ndim < 2); dz = dz / real(counts.shape[-1])
    divided_by_sequence: each row is divided by the number of labels of its sequence
        The mean of the sequences' means: short texts then weigh more.
        > Divide by the number of all labels, once.
        | unless(counts.ndim < 2)
        | dz = dz / of_rows(s, np.maximum(counts.sum(axis=-1, keepdims=True), 1))
    mean_of_means (unless divided_by_sequence): it is that of the mean of the sequences' means
        Short texts then weigh more: sum all losses, divide by all labels once.
        > Divide by the number of all labels, once.
        | unless(counts.ndim < 2)
        | dz = dz / of_rows(s, np.maximum(counts.sum(axis=-1, keepdims=True), 1)) / len(counts)
    divided_by_vocabulary: it is divided by the vocabulary as well
        .mean() over (rows, V).
        | ...; dz = dz / real(z.shape[-1])
    divided_by_vocabulary_alone (rare): it is divided by the vocabulary, not by the labels
        .mean(-1): the mean runs over rows.
        | dz = dz / real(z.shape[-1])
    divided_twice: it is divided by the number of labels twice
        In the loss, and in its gradient again.
        | unless(counts.sum() == 1); ...; dz = dz / real(counts.sum())
    """,
    calls=(moved, of_rows),
)
