"""One step of training in steps: gradients, clipping, the schedule, AdamW; and what goes wrong when
they are put together.

loss_and_gradients is a function of (weights, ids, labels); weights, m and v are dicts of arrays.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simdformer import optim
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.optimizers import one_step
from simdformer.learn.program import Program, State

__all__ = ["step"]

Arrays = Mapping[str, Any]


def in_order(found: Arrays, s: State) -> list[Any]:
    """The gradients in the order of the weights."""
    return [s.run.array(found[name]) for name in s.weights]


def times(arrays: Any, number: Any) -> list[Any]:
    return [one * number for one in arrays]


def norm_of(arrays: Any) -> Any:
    """That of all arrays together."""
    return np.sqrt(sum((one * one).sum() for one in arrays))


def factor(norm: Any, s: State) -> Any:
    """What a gradient of that norm is multiplied by."""
    return np.minimum(1, s.options["max_norm"] / (norm + 1e-6))


def rate(at: Any, s: State) -> float:
    """The learning rate of a step, counted from 0."""
    schedule = {name: s.options[name] for name in ("lr", "warmup", "total", "min_lr")}
    return optim.cosine_lr(at, **schedule)


def stepped(s: State) -> list[Any]:
    """The new weight, m and v of each weight."""
    own = {name: s.options[name] for name in ("beta1", "beta2", "eps")}
    rows = zip(s.old, s.clipped, s.exp_avg, s.exp_avg_sq, s.decays, strict=True)
    return [
        s.run(one_step, weight=w, gradient=g, exp_avg=a, exp_avg_sq=b, t=s.t, lr=s.lr, scale=1.0,
              weight_decay=d, **own).out
        for w, g, a, b, d in rows
    ]  # fmt: skip


step = Program(
    "step",
    """
    inputs: old, exp_avg, exp_avg_sq = ([array(x) for x in d.values()] for d in (weights, m, v))
    gradients:
        loss, found = loss_and_gradients(weights, ids, labels)
        gradients = in_order(found, s)
    clip: clipped = times(gradients, factor(norm_of(gradients), s))
    schedule: t, lr = step, rate(step - 1, s)
    decay: decays = [options["weight_decay"] if w.ndim > 1 else 0.0 for w in old]
    update: new = stepped(s)
    give: out = [np.float64(loss), *(one for part in zip(*new) for one in part)]
    """,
    calls=(in_order, times, norm_of, factor, rate, stepped),
    takes=("loss_and_gradients", "weights", "m", "v", "ids", "labels", "step", "options"),
)

mistakes(
    """
    step.gradients (08 §11) > loss, gradients = loss_and_gradients(weights, ids, labels), once.

    gradients_of_ids: the ids are taken for the labels
        The labels stand one place further to the left, and leave out what is not learned.
        | loss, found = loss_and_gradients(weights, ids, ids)
        | gradients = in_order(found, s)
    loss_after_the_step (rare): the loss is that of the weights after the step
        It is computed again at the end, which takes another forward pass.
        give | loss, _ = loss_and_gradients(dict(zip(weights, next(zip(*new)))), ids, labels); ...
    gradient_turned (rare): the gradients have the wrong sign
        AdamW subtracts already.
        | ...; gradients = times(gradients, -1)

    step.clip (08 §11) > One norm for all arrays together: g * min(1, max_norm / norm).

    not_clipped_here: the gradients are not clipped
        clip_gradients gives new arrays, and the old ones were used; or it was not called.
        | clipped = gradients
    each_clipped_alone: each gradient is clipped by its own norm
        The call stands inside the loop over the weights.
        | clipped = [g * factor(norm_of([g]), s) for g in gradients]
    clipped_by_number (rare): each number is clipped, not the norm
        clip_grad_value_ in place of clip_grad_norm_.
        | clipped = [g.clip(-options["max_norm"], options["max_norm"]) for g in gradients]
    always_scaled: gradients that are small enough are made larger
        min(1, ...) is missing: every step has the norm max_norm.
        | clipped = times(gradients, options["max_norm"] / (norm_of(gradients) + 1e-6))
    matrices_clipped_alone (rare): only the matrices are clipped
        The norms' gradients belong to the norm of all, too.
        | clipped = [
        |     g * factor(norm_of(x for x in gradients if x.ndim > 1), s) if g.ndim > 1 else g
        |     for g in gradients
        | ]

    step.schedule (08 §11) > cosine_lr counts from 0, and the step of AdamW from 1: step - 1.

    schedule_one_ahead: the schedule is one step ahead: cosine_lr of step, not of step - 1
        The schedule counts from 0, the steps of AdamW count from 1.
        | t, lr = step, rate(step, s)
    no_schedule: there is no schedule: the learning rate is always the highest
        options["lr"] is where the warm-up ends and the cosine begins.
        | t, lr = step, options["lr"]
    adamw_from_1_again: AdamW's step is always 1
        The bias correction is that of the first step.
        | unless(step == 1); t, lr = 1, rate(step - 1, s)

    step.decay (08 §11) > weight_decay for arrays of two axes, 0 for the weights of norms.

    vectors_decayed: the weights of norms are decayed, too
        Only matrices are: a norm's weight has no reason to go to 0.
        | decays = [options["weight_decay"] for w in old]
    nothing_decayed: nothing is decayed
        The weight decay is missing, or was handed on as 0.
        | decays = [0.0 for w in old]

    step.update (08 §11) > Give adamw_step the m and v of each weight, and keep those that it gives.

    moments_not_kept: m and v are those from before the step
        adamw_step gives new ones, and the old ones were returned.
        | new = [(w, a, b) for (w, _, _), a, b in zip(stepped(s), exp_avg, exp_avg_sq)]
    moments_from_0: m and v begin at 0 in each step
        zeros are made inside of the step: every update has the size of lr.
        inputs | ...; exp_avg, exp_avg_sq = times(exp_avg, 0), times(exp_avg_sq, 0)
    weights_not_kept: the weights are those from before the step
        adamw_step gives a new weight, and the old one was returned.
        | new = [(w, a, b) for w, (_, a, b) in zip(old, stepped(s))]
    moments_exchanged (rare): m and v are exchanged
        adamw_step gives the weight, then m, then v.
        | new = [(w, b, a) for w, a, b in stepped(s)]
    """
)
