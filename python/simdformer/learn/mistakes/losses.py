"""The cross entropy and log_softmax in steps, and what goes wrong in them.

logits (...,V), labels (...); the meaning is that of `reference.loss`.
"""

from typing import Any

import numpy as np

from simdformer import loss
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.sampling import some_rows
from simdformer.learn.program import Program, State

__all__ = ["SCORES", "at_labels", "chosen", "moved"]


def at_labels(z: Any, label: Any) -> Any:
    """(...,V), (...) -> (...)"""
    return np.take_along_axis(z, label[..., None], axis=-1)[..., 0]


def chosen(s: State, x: Any) -> Any:
    """The rows of a sample, of labels (...) or what has their shape; else all."""
    return x if vars(s).get("rows") is None else x.ravel()[s.rows]


def moved(s: State, places: int, rolled: bool = False) -> tuple[Any, Any]:
    """Labels read so many places further on, and which of them count: none behind the end, where
    they do not begin again."""
    label, counts = (np.roll(x, -places, axis=-1) for x in (s.label, s.counts))
    if not rolled:
        counts[..., -places if places > 0 else 0 : None if places > 0 else -places] = False
    return label, counts


SCORES = """
    inputs: z, label = array(logits), np.asarray(labels)
    count: counts = label != ignore_index
    label: label = np.where(counts, label, 0)
    choose: label, here = chosen(s, label), chosen(s, counts)
    cap if softcap is not None: z = real(softcap) * np.tanh(z / real(softcap))
    log_sum:
        highest = z.max(axis=-1, keepdims=True)
        log_sum = highest + np.log(np.exp(z - highest).sum(axis=-1, keepdims=True))
"""
cross_entropy = Program(
    "cross_entropy",
    f"""
{SCORES}
    row: lse = log_sum[..., 0]
    pick: losses = lse - at_labels(z, label)
    smooth if label_smoothing:
        uniform = lse - z.mean(axis=-1)
        losses = real(1 - label_smoothing) * losses + real(label_smoothing) * uniform
    square if z_loss: losses = losses + real(z_loss) * lse**2
    ignore: losses = np.where(here, losses, real(0))
    total if reduction != "none": losses = losses.sum()
    mean if reduction == "mean": losses = losses / real(counts.sum())
    give: out = (losses, lse) if return_lse else losses
    """,
    calls=(at_labels, chosen),
    of=loss.cross_entropy,
    axes=("sequence", "row"),
)
log_softmax = Program(
    "log_softmax",
    """
    inputs: z, along = array(x), axis
    shift: z = z - z.max(axis=along, keepdims=True)
    log_sum: out = z - np.log(np.exp(z).sum(axis=along, keepdims=True))
    """,
    of=loss.log_softmax,
    axes=("row", "column"),
    thin=some_rows,
)

mistakes(
    """
    cross_entropy.cap (02 §10) > Cap the logits before the loss: softcap * tanh(logits / softcap).

    capped_not_scaled: the softcap divides only: tanh(logits / softcap)
        The softcap multiplies behind the tanh, too.
        | z = np.tanh(z / real(softcap))

    cross_entropy.log_sum (02 §10) > Take log sum exp of each row, along the last axis.

    no_shift: the largest logit is not subtracted, and exp overflows
        Logits of a hundred are usual, and float32's exp ends at 88.
        | log_sum = np.log(np.exp(z).sum(axis=-1, keepdims=True))
    log_missing: the logarithm of the sum is missing
        The loss is the negative logarithm of a share.
        | log_sum = np.exp(z).sum(axis=-1, keepdims=True)
    another_axis (rare): log sum exp runs over the rows, not along each
        axis=0 where the last axis is meant.
        | unless(z.shape[0] != z.shape[-1] or z.ndim != 2)
        | log_sum = np.log(np.exp(z).sum(axis=0))[..., None]

    cross_entropy.pick (02 §10) > The loss of a row is log sum exp minus the label's logit.

    log_of_zero: the logarithm is taken of a share that is 0
        exp(-104) is 0 in float32, and its logarithm -inf.
        | e = np.exp(z - highest)
        | losses = -np.log(at_labels(e, label) / e.sum(axis=-1))
    no_shift_in_softmax (unless log_of_zero): the softmax is not shifted: inf / inf is NaN
        exp(89) does not fit into a float32.
        | e = np.exp(z); losses = -np.log(at_labels(e, label) / e.sum(axis=-1))
    negated: the sign is flipped
        The loss is minus the logarithm of the label's share.
        | losses = at_labels(z, label) - lse
    of_logits: the label's logit is taken without the softmax
        log sum exp is missing: logits are no logarithms of shares.
        | losses = -at_labels(z, label)
    share_for_logarithm: the share of the label is taken without its logarithm
        The loss is minus the logarithm of it.
        | losses = -np.exp(at_labels(z, label) - lse)
    one_minus_share (rare): the loss of a row is 1 - p of its label
        The loss is minus the logarithm of p.
        | losses = 1 - np.exp(at_labels(z, label) - lse)
    softmax_twice: softmax is applied twice
        The loss takes logits and applies it itself; shares were handed over.
        | p = np.exp(z - lse[..., None])
        | losses = np.log(np.exp(p).sum(axis=-1)) - at_labels(p, label)
    base_2: the logarithm is that of base 2
        np.log2 measures in bits; losses are in nats.
        | ...; losses = losses / real(math.log(2))
    label_missing: the label's logit is missing: this is log sum exp
        The loss is log sum exp minus the label's logit.
        | losses = lse
    all_columns: the losses of all columns are added up, not only the label's
        The one-hot row, or the index of the label, is missing.
        | losses = (lse[..., None] - z).sum(axis=-1)
    other_columns (rare): the other columns have a loss too, -log(1 - p): binary cross entropy
        Of a softmax the label's share alone counts; the others are in its sum.
        | p = np.exp(z - lse[..., None])
        | losses = -np.log1p(-p).sum(axis=-1) + np.log1p(-at_labels(p, label)) + lse - at_labels(
        |     z, label)

    cross_entropy.smooth (02 §10) > (1 - ε) times the loss of the label, ε times the mean
        over all V.

    no_smoothing: label smoothing is forgotten
        The target is one-hot.
        | pass
    smoothing_without_uniform: the uniform part of label smoothing is missing
        (1 - ε) scales the label; ε goes to all V.
        | losses = real(1 - label_smoothing) * losses
    smoothing_on_top: the label keeps all of its weight beside the uniform part
        The target has to sum to 1: 1 - ε and ε.
        | uniform = lse - z.mean(axis=-1); losses = losses + real(label_smoothing) * uniform
    smoothing_others (convention): ε goes to the V - 1 other tokens only
        Two conventions: PyTorch and this package spread ε over all V, the label's too.
        | V, uniform = z.shape[-1], lse - z.mean(axis=-1)
        | others = (uniform * V - losses) / real(V - 1)
        | losses = real(1 - label_smoothing) * losses + real(label_smoothing) * others

    smoothing_divided_by_all: the uniform part is divided by all rows, the ignored ones too
        The mean of the smoothed part is a .mean() of its own: divide both sums by the labels that
        count.
        | unless(reduction != "mean" or counts.all()); uniform = lse - z.mean(axis=-1)
        | losses = real(1 - label_smoothing) * losses + real(
        |     label_smoothing * counts.sum() / counts.size) * uniform
    smoothing_of_ignored: rows with ignore_index have the uniform part
        The mask is on the label's part only.
        | unless(counts.all()); ...
        ignore | losses = np.where(here, losses, real(label_smoothing) * uniform)
    smoothing_of_all: the uniform part runs over all rows, the ignored ones too, and counts them
        Mask both parts, and divide both by the labels that count.
        | unless(reduction != "mean" or counts.all())
        | uniform = real(counts.sum() / counts.size) * (lse - z.mean(axis=-1))
        | losses = real(1 - label_smoothing) * losses + real(label_smoothing) * uniform
        ignore | losses = np.where(here, losses, real(label_smoothing) * uniform)

    cross_entropy.square (02 §10) > z_loss * lse² of each row.

    no_z_loss: the z-loss is forgotten
        It keeps log sum exp near 0.
        | pass
    z_loss_not_squared: the z-loss is not squared
        PaLM adds 1e-4 times the square of log sum exp.
        | losses = losses + real(z_loss) * lse
    z_loss_halved (rare): the z-loss is halved
        There is no ½ in PaLM's z_loss * lse².
        | losses = losses + real(z_loss / 2) * lse**2

    z_loss_of_ignored: rows with ignore_index have a z-loss
        The mask is on the first part only.
        | unless(counts.all()); ...
        ignore | losses = np.where(here, losses, real(z_loss) * lse**2)
    z_loss_of_all (rare): the z-loss runs over all rows, the ignored ones too, and counts them
        as above
        | unless(reduction != "mean" or counts.all())
        | square = real(z_loss * counts.sum() / counts.size) * lse**2; losses = losses + square
        ignore | losses = np.where(here, losses, square)

    cross_entropy.ignore (02 §10) > Rows with ignore_index count neither in the sum nor in the mean.

    ignored_rows_count: rows with ignore_index have a loss
        The mask is not applied: padding is learnt.
        | unless(here.all())
    ignored_rows_of_last_column (rare): rows with ignore_index have a loss, of a label from the end
        logits[rows, -100] counts from the end: numpy says nothing.
        | unless(here.all() or ignore_index >= 0 or -ignore_index > z.shape[-1])
        | losses = np.where(here, losses, lse - z[..., ignore_index])
    padding_and_count: rows with ignore_index are losses and are counted
        ignore_index is not looked at.
        | unless(here.all())
        mean | losses = losses / real(counts.size)

    cross_entropy.total (02 §10) > Give one number, as reduction says: the sum, or the mean.

    not_reduced: it is the loss of each row, as of reduction="none"
        The sum over all rows is missing.
        | reduction = "none"

    cross_entropy.total (02 §10) > Add up the losses; reduction="sum" divides by nothing.

    mean_for_sum: it is the mean, not the sum
        reduction="mean" is the default, here and in PyTorch.
        | unless(reduction != "sum" or counts.sum() == 1)
        | losses = losses.sum() / real(counts.sum())

    cross_entropy.give (02 §10) > Give the loss of each row, 0 where it is ignored.

    mean_for_none: it is the mean, not the loss of each row
        reduction="mean" is the default, here and in PyTorch.
        | unless(reduction != "none"); losses = losses.sum() / real(counts.sum()); ...
    sum_for_none: it is the sum, not the loss of each row
        reduction="sum" stands for reduction="none".
        | unless(reduction != "none" or counts.sum() == 1); losses = losses.sum(); ...

    cross_entropy.mean (02 §10) > Divide the sum by the number of labels that count.

    sum_for_mean: it is the sum, not the mean
        reduction="sum"; the learning rate then depends on the batch.
        | unless(counts.sum() == 1)
    divided_by_all: the mean divides by all rows, the ignored ones too
        .mean() counts the zeros of the rows that are ignored.
        | unless(counts.all()); losses = losses / real(counts.size)
    mean_of_means: it is the mean of the sequences' means
        Short texts then weigh more: sum all losses, divide by all labels once.
        > Divide the sum over all sequences by the number of all labels.
        total | unless(losses.ndim != 2)
        total | losses = (losses.sum(axis=-1) / counts.sum(axis=-1).astype(real)).mean()
        | pass
    divided_by_all_numbers (rare): the mean runs over the vocabulary and the ignored rows
        (onehot * logprobs).mean() counts every number.
        | unless(counts.all()); losses = losses / real(z.size)
    divided_by_batch: the sum is divided by the batch size, not by the labels
        reduction="batchmean" of another loss.
        | unless(counts.ndim < 2); losses = losses / real(len(counts))
    divided_by_length (rare): the sum is divided by the length, not by the labels
        Each position is a label: B * T of them.
        | unless(counts.ndim < 2); losses = losses / real(counts.shape[-1])
    perplexity (rare): it is the perplexity: exp of the loss
        exp(mean) is what one reports; the loss is its logarithm.
        | ...; losses = np.exp(losses)
    divided_by_vocabulary: the mean runs over the vocabulary as well
        .mean() over (rows, V): the loss of a row is one number.
        | losses = losses / real(counts.sum() * z.shape[-1])

    log_softmax.log_sum (02 §10) > Subtract the maximum, then the logarithm of the sum of exp.

    log_missing: the logarithm is missing: the sum is subtracted as it is
        log sum exp.
        | out = z - np.exp(z).sum(axis=along, keepdims=True)
    softmax: it is the softmax, without its logarithm
        The loss needs logarithms.
        | out = np.exp(z) / np.exp(z).sum(axis=along, keepdims=True)
    not_normalised: log sum exp is not subtracted
        The maximum alone makes no logarithm of a share.
        | out = z
    softmax_twice: softmax is applied twice
        Its logarithm was taken of a softmax of shares.
        | p = np.exp(z) / np.exp(z).sum(axis=along, keepdims=True)
        | out = p - np.log(np.exp(p).sum(axis=along, keepdims=True))
    mean_for_sum: the mean of exp stands for the sum
        log mean exp is smaller by log n.
        | out = z - np.log(np.exp(z).mean(axis=along, keepdims=True))
    keepdims_lost: log sum exp of another row is subtracted: keepdims is lost
        Without keepdims an axis is dropped; broadcasting lines the numbers up with another.
        | z = array(x); out = z - np.log(np.exp(z).sum(axis=along))
    keepdims_lost_of_shifted (unless keepdims_lost):
        log sum exp of another row is subtracted: keepdims is lost
        as above
        | out = z - np.log(np.exp(z).sum(axis=along))
    maximum_left (rare): the maximum is subtracted once more
        The logarithm of the sum was that of the shifted numbers: subtract it from shifted ones.
        | out = z - np.log(np.exp(z).sum(axis=along, keepdims=True)) - array(x).max(
        |     axis=along, keepdims=True)
    base_2 (rare): the logarithm is that of base 2
        np.log2 measures in bits.
        | ...; out = out / real(math.log(2))
    negated (rare): the sign is flipped
        Logarithms of shares are below 0; the loss takes them with a minus.
        | ...; out = -out

    log_softmax.shift (02 §10) > Subtract each row's own maximum; it changes nothing else.

    no_shift: the largest number is not subtracted, and exp overflows
        exp(89) does not fit into a float32.
        | pass
    no_shift_in_softmax (unless log_of_zero): the softmax is not shifted: inf / inf is NaN
        as above
        | pass
        log_sum | e = np.exp(z); out = np.log(e / e.sum(axis=along, keepdims=True))

    log_softmax.log_sum (02 §10) > Take x - log sum exp x, not the logarithm of a finished softmax.

    log_of_zero: the logarithm is taken of a share that is 0
        exp(-104) is 0 in float32, and its logarithm -inf.
        | e = np.exp(z); out = np.log(e / e.sum(axis=along, keepdims=True))

    log_softmax.inputs (02 §10) > Run along the axis that is asked for.

    another_axis: it runs over another axis
        The axis is counted from the wrong end.
        | ...; along = -2 if along in (-1, z.ndim - 1) else -1
    first_axis (unless another_axis): it runs over the first axis
        axis=0 is written where the last axis is meant.
        | unless(np.ndim(x) < 3); ...; along = 0
    sum_of_all: it runs over the whole array
        sum() without an axis works on all numbers.
        | ...; along = None
    """
)
