"""The cross entropy, its gradient and log_softmax as learners write them wrong: by PyTorch's
autograd of a wrong loss, by one-hot rows and einsum, by loops."""

from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal
from mistake_examples import Examples

example = Examples()

B, L, V = 3, 5, 9
IGNORED = -100
LABELS = np.array([[1, 7, 0, 2, 5], [IGNORED, 3, 3, 6, IGNORED], [4, IGNORED, IGNORED, 0, 6]])
COUNT = 11


def wrong(name, op, mine, *others, labels=LABELS, scale=2.0, shape=(B, L, V), **kwargs):
    """`mine` gives the result for tensors of logits and labels."""

    @example(name, *others)
    def _(rng):
        z = scale * normal(rng, *shape)
        found = mine(torch.tensor(z), torch.tensor(labels))
        return np.asarray(found, np.float32), op, (z, labels), kwargs


# ---- the loss ------------------------------------------------------------------------------------


def rows(z, y, **kwargs):
    """The loss of each row, 0 where it is ignored."""
    return F.cross_entropy(z.flatten(0, -2), y.flatten(), reduction="none", **kwargs).view(y.shape)


def mean(z, y, **kwargs):
    return rows(z, y, **kwargs).sum() / (y >= 0).sum()


def one_hot(y, of_ignored=0):
    return F.one_hot(y.masked_fill(y < 0, of_ignored), V).float()


def counted(x, y):
    return (x * (y >= 0)).sum() / (y >= 0).sum()


def loss(name, mine, *others, **kwargs):
    wrong(f"cross_entropy.{name}", sf.cross_entropy, mine, *others, **kwargs)


def after_ignored(y):
    y = y.clone()
    y[:, 1:][y[:, :-1].clone() < 0] = IGNORED
    return y


loss("shifted_once_more_rolled", lambda z, y: mean(z, y.roll(-1, 1)))
loss("shifted_back", lambda z, y: F.cross_entropy(z[:, 1:].flatten(0, 1), y[:, :-1].flatten()))
loss("shifted_back_rolled", lambda z, y: mean(z, torch.cat([y[:, -1:], y[:, :-1]], 1)))
loss("first_answer_dropped", lambda z, y: mean(z, after_ignored(y)))
loss("no_cap", mean, softcap=1.5)
loss("capped_not_scaled", lambda z, y: mean(torch.tanh(z / 1.5), y), softcap=1.5)


loss("mean_for_sum", mean, reduction="sum")
loss("not_reduced", rows)
loss("mean_for_none", mean, reduction="none")
loss("sum_for_none", lambda z, y: rows(z, y).sum(), reduction="none")
loss("log_missing", lambda z, y: counted(z.exp().sum(-1) - (z * one_hot(y)).sum(-1), y))


@example("cross_entropy.another_axis")
def _(rng):
    z, y = normal(rng, V, V), np.arange(V)[::-1] // 2
    mine = -np.mean([z[i, y[i]] - np.log(np.exp(z[:, i]).sum()) for i in range(V)])
    return mine.astype(np.float32), sf.cross_entropy, (z, y), {}


loss("one_minus_share", lambda z, y: counted(1 - (z.softmax(-1) * one_hot(y)).sum(-1), y))
loss("all_columns", lambda z, y: counted(-torch.log_softmax(z, -1).sum(-1), y))
loss(
    "other_columns",
    lambda z, y: counted(
        F.binary_cross_entropy(z.softmax(-1), one_hot(y), reduction="none").sum(-1), y
    ),
)
SMOOTH = {"label_smoothing": 0.2}


def smoothed(z, target, y):
    return counted(-(torch.log_softmax(z, -1) * target).sum(-1), y)


loss("smoothing_without_uniform", lambda z, y: smoothed(z, 0.8 * one_hot(y), y), **SMOOTH)
loss("smoothing_on_top", lambda z, y: smoothed(z, one_hot(y) + 0.2 / V, y), **SMOOTH)


def spread_over_others(y):
    """The Annotated Transformer's: a true distribution filled with ε / (V - 1)."""
    return torch.full((*y.shape, V), 0.2 / (V - 1)).scatter(-1, y.clamp(0)[..., None], 0.8)


loss("smoothing_others", lambda z, y: smoothed(z, spread_over_others(y), y), **SMOOTH)


def apart(z, y, *, masked, by):
    """The label's loss and the uniform part, each with a sum and a divisor of its own."""
    uniform = z.logsumexp(-1) - z.mean(-1)
    return 0.8 * mean(z, y) + 0.2 * (uniform * (y >= 0) if masked else uniform).sum() / by


def squares(z, y, *, masked, by):
    """The z-loss, with a sum and a divisor of its own."""
    square = z.logsumexp(-1) ** 2
    return mean(z, y) + 0.01 * (square * (y >= 0) if masked else square).sum() / by


PARTS = {
    "divided_by_all": {"masked": True, "by": B * L},
    "of_ignored": {"masked": False, "by": COUNT},
    "of_all": {"masked": False, "by": B * L},
    "not_averaged": {"masked": True, "by": 1},
}


def of_parts(kind, part):
    return lambda z, y: part(z, y, **PARTS[kind])


for kind in ("divided_by_all", "of_ignored", "of_all"):
    loss(f"smoothing_{kind}", of_parts(kind, apart), **SMOOTH)
for kind in ("of_ignored", "of_all"):
    loss(f"z_loss_{kind}", of_parts(kind, squares), z_loss=0.01)
loss("no_z_loss", mean, z_loss=0.01)
loss(
    "z_loss_not_squared",
    lambda z, y: mean(z, y) + 0.01 * counted(z.logsumexp(-1), y),
    z_loss=0.01,
)
loss(
    "z_loss_halved",
    lambda z, y: mean(z, y) + 0.005 * counted(z.logsumexp(-1) ** 2, y),
    z_loss=0.01,
)
loss("perplexity", lambda z, y: mean(z, y).exp())
loss("ignored_rows_count", lambda z, y: rows(z, y.clamp(0)).sum() / COUNT)
loss(
    "ignored_rows_of_last_column",
    lambda z, y: rows(z, y % V).sum() / COUNT,
    labels=np.where(LABELS < 0, -1, LABELS),
    ignore_index=-1,
)
loss("padding_and_count", lambda z, y: rows(z, y.clamp(0)).mean())
loss("divided_by_batch", lambda z, y: rows(z, y).sum(1).mean())
loss("divided_by_length", lambda z, y: rows(z, y).sum(0).mean())
loss("divided_by_vocabulary", lambda z, y: mean(z, y) / V)

# ---- log_softmax ---------------------------------------------------------------------------------

SHAPE = (3, 4, 6)


def log_softmax(name, mine, *others, shape=SHAPE, **kwargs):
    @example(f"log_softmax.{name}", *others)
    def _(rng):
        x = 2 * normal(rng, *shape)
        with np.errstate(all="ignore"):
            return np.asarray(mine(x), np.float32), sf.log_softmax, (x,), kwargs


def total(x, axis=-1):
    return np.exp(x).sum(axis, keepdims=True)


def shifted(x):
    return x - x.max(-1, keepdims=True)


log_softmax("log_missing", lambda x: shifted(x) - total(shifted(x)))
log_softmax("softmax", lambda x: np.exp(x) / total(x))
log_softmax("not_normalised", shifted)
log_softmax("softmax_twice", lambda x: torch.log_softmax(torch.softmax(torch.tensor(x), -1), -1))
log_softmax("mean_for_sum", lambda x: x - np.log(np.exp(x).mean(-1, keepdims=True)))
log_softmax("keepdims_lost", lambda x: x - np.logaddexp.reduce(x, -1), shape=(6, 6))
log_softmax("maximum_left", lambda x: x - x.max(-1, keepdims=True) * 2 - np.log(total(shifted(x))))
log_softmax("base_2", lambda x: np.log2(np.exp(x) / total(x)))
log_softmax("negated", lambda x: np.log(total(x)) - x)
log_softmax("another_axis", lambda x: torch.log_softmax(torch.tensor(x), 1))
log_softmax("first_axis", lambda x: torch.log_softmax(torch.tensor(x), 0))
log_softmax("sum_of_all", lambda x: x - np.log(np.exp(x).sum()))


def of_large_numbers(name, op, mine, low=0.0, high=95.0):
    """The third row is so high, or one number of it so low, that float32's exp ends."""

    @example(name)
    def _(rng):
        x = normal(rng, 4, V) + np.array([[0.0], [0.0], [high], [0.0]], np.float32)
        x[2, 0] += np.float32(low)
        y = np.array([1, 7, 0, 2])
        arguments, kwargs = (
            ((x, y), {"reduction": "none"}) if op is sf.cross_entropy else ((x,), {})
        )
        with np.errstate(all="ignore"):
            return np.asarray(mine(*arguments), np.float32), op, arguments, kwargs


def picked(logs, y):
    return -np.einsum("nv,nv->n", np.where(np.eye(V)[y], logs, 0), np.eye(V)[y])


def shares(x):
    return np.exp(shifted(x)) / total(shifted(x))


for name, mine in {
    "no_shift": lambda x, y: np.log(np.exp(x).sum(-1)) - x[np.arange(4), y],
    "no_shift_in_softmax": lambda x, y: picked(np.log(np.exp(x) / total(x)), y),
}.items():
    of_large_numbers(f"cross_entropy.{name}", sf.cross_entropy, mine)
for name, mine in {
    "no_shift": lambda x: x - np.log(total(x)),
    "no_shift_in_softmax": lambda x: np.log(np.exp(x) / total(x)),
}.items():
    of_large_numbers(f"log_softmax.{name}", sf.log_softmax, mine)
of_large_numbers(
    "cross_entropy.log_of_zero",
    sf.cross_entropy,
    lambda x, y: picked(np.log(shares(x)), y),
    -150,
    0,
)
of_large_numbers("log_softmax.log_of_zero", sf.log_softmax, lambda x: np.log(shares(x)), -150, 0)


@example("log_softmax.keepdims_lost_of_shifted")
def _(rng):
    x = normal(rng, 6, 6)
    mine = shifted(x) - np.logaddexp.reduce(shifted(x), -1)
    return mine, sf.log_softmax, (x,), {}


# ---- the gradient --------------------------------------------------------------------------------


def backward(name, mine, *others, **kwargs):
    wrong(f"cross_entropy_backward.{name}", sf.backward.cross_entropy, mine, *others, **kwargs)


def of(wrong_loss):
    """PyTorch's gradient of a wrong loss."""

    def mine(z, y):
        z = z.clone().requires_grad_(True)
        wrong_loss(z, y).backward()
        return z.grad

    return mine


def by_rows(form):
    """form(p, target) of the rows that count, divided by their number."""

    def mine(z, y):
        return form(z.softmax(-1), one_hot(y)) * (y >= 0)[..., None] / COUNT

    return mine


backward("shifted_once_more_rolled", of(lambda z, y: mean(z, y.roll(-1, 1))))
backward("shifted_back_rolled", of(lambda z, y: mean(z, y.roll(1, 1))))
backward("first_answer_dropped", of(lambda z, y: mean(z, after_ignored(y))))
backward("capped_not_scaled", of(lambda z, y: mean(torch.tanh(z / 1.5), y)), softcap=1.5)
backward("another_axis", lambda z, y: by_rows(lambda p, t: z.flatten(0, 1).softmax(0).view(
    z.shape) - t)(z, y))  # fmt: skip


@example("cross_entropy_backward.no_shift")
def _(rng):
    z = normal(rng, 4, V) + np.array([[0.0], [0.0], [95.0], [0.0]], np.float32)
    y = np.array([1, 7, 0, 2])
    with np.errstate(all="ignore"):
        dz = np.exp(z) / total(z)
    dz[np.arange(4), y] -= 1
    return dz / 4, sf.backward.cross_entropy, (z, y), {}


backward("softmax_twice", by_rows(lambda p, t: p.softmax(-1) - t))
backward("logits_for_shares", lambda z, y: by_rows(lambda p, t: z - t)(z, y))
backward("sigmoid_for_softmax", lambda z, y: by_rows(lambda p, t: z.sigmoid() - t)(z, y))


def from_the_end(z, y, zeroed=False):
    dz = z.softmax(-1).flatten(0, 1).numpy()
    if zeroed:
        dz[y.flatten().numpy() < 0] = 0
    dz[np.arange(B * L), y.flatten().numpy()] -= 1
    return dz.reshape(z.shape) / COUNT


backward("ignored_rows_zeroed_before", partial(from_the_end, zeroed=True),
         labels=np.where(LABELS < 0, -2, LABELS), ignore_index=-2)  # fmt: skip
backward("smoothing_on_top", by_rows(lambda p, t: p - t - 0.2 / V), **SMOOTH)
backward(
    "smoothing_others",
    lambda z, y: by_rows(lambda p, t: p - spread_over_others(y))(z, y),
    **SMOOTH,
)
backward(
    "smoothing_others_on_top",
    by_rows(lambda p, t: p - t - (1 - t) * 0.2 / (V - 1)),
    **SMOOTH,
)
for kind in PARTS:
    backward(f"smoothing_{kind}", of(of_parts(kind, apart)), **SMOOTH)
for kind in ("divided_by_all", "of_all", "not_averaged"):
    backward(f"z_loss_{kind}", of(of_parts(kind, squares)), z_loss=0.01)
backward("smoothing_beside", by_rows(lambda p, t: 1.2 * p - t - 0.2 / V), **SMOOTH)
backward("smoothing_summed", by_rows(lambda p, t: 0.8 * (p - t) + 0.2 * (V * p - 1)), **SMOOTH)
backward("shares_to_bfloat16", by_rows(lambda p, t: p.bfloat16().float() - t), scale=4.0)
backward("shares_to_float16", by_rows(lambda p, t: p.half().float() - t), scale=4.0)
backward("one_added", by_rows(lambda p, t: p + t))


def every_label(z, y):
    dz = z.softmax(-1).flatten(0, 1)
    keep = y.flatten() >= 0
    dz[:, y.flatten()[keep]] -= 1
    return (dz * keep[:, None]).view(z.shape) / COUNT


backward("every_label", every_label)


backward("shares_slope_times", by_rows(lambda p, t: (p - t) * p * (1 - p)))
backward("of_shares", by_rows(lambda p, t: -t / p))
backward("of_logarithms", by_rows(lambda p, t: -t * p))


def z_loss(slope):
    return lambda z, y: by_rows(lambda p, t: p - t + 0.03 * slope(z, p))(z, y)


def lse(z):
    return z.logsumexp(-1, keepdim=True)


SQUARE = {"z_loss": 0.03, "scale": 1.0}
backward("z_loss_shares_missing", z_loss(lambda z, p: 2 * lse(z)), **SQUARE)


def capped(slope):
    """With another derivative of the softcap."""

    def mine(z, y):
        c = (1.5 * torch.tanh(z / 1.5)).requires_grad_(True)
        mean(c, y).backward()
        return c.grad * slope(z, c.detach())

    return mine


backward("cap_of_logits", capped(lambda z, c: 1 - z**2 / 2.25), softcap=1.5)
backward("cap_divided", capped(lambda z, c: (1 - c**2 / 2.25) / 1.5), softcap=1.5)
backward("ignored_rows_count", of(lambda z, y: rows(z, y.clamp(0)).sum() / COUNT))


backward("divided_by_length", of(lambda z, y: rows(z, y).sum(0).mean()))
backward("divided_by_vocabulary_alone", by_rows(lambda p, t: (p - t) * COUNT / V))
backward("divided_twice", by_rows(lambda p, t: (p - t) / COUNT))


# ---- the loss of linear's result, with its gradients ---------------------------------------------


def of_part(name, count, gradients, *others):
    """`gradients` gives loss, gradient of x and of weight from x, weight, labels and logits whose
    gradient is that of the sum; the batch has `count` labels, this part fewer."""

    @example(name, *others)
    def _(rng):
        x = torch.tensor(normal(rng, B, L, 6), requires_grad=True)
        weight = torch.tensor(normal(rng, V, 6), requires_grad=True)
        labels = torch.tensor(LABELS)
        z = x @ weight.T
        z.retain_grad()
        loss = F.cross_entropy(z.flatten(0, -2), labels.flatten(), reduction="sum")
        loss.backward()
        found = gradients(loss.detach(), z.detach(), z.grad, x.detach(), weight.detach())
        given = x.detach().numpy(), weight.detach().numpy(), LABELS
        return found, sf.linear_cross_entropy, given, {"count": count}


def back(loss, dz, x, weight):
    return loss, dz @ weight, torch.einsum("btv,bte->ve", dz, x)


of_part(
    "linear_cross_entropy.count_of_this_part",
    40,
    lambda loss, z, dz, x, w: back(loss / COUNT, dz / COUNT, x, w),
)
of_part(
    "linear_cross_entropy.count_forgotten",
    40,
    lambda loss, z, dz, x, w: back(loss, dz, x, w),
)
of_part(
    "linear_cross_entropy.logits_for_gradient",
    None,
    lambda loss, z, dz, x, w: back(loss / COUNT, z, x, w),
)
