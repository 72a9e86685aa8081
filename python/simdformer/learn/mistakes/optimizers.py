"""AdamW, clipping and the cosine schedule in steps, and what goes wrong in them.

The functions here change no argument: `check` asks them in place of those of `simdformer.optim`
that do. Several results are a dict by name.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simdformer import optim
from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program

__all__ = ["PURE", "adamw", "arrays_of", "clip_grad_norm", "cosine_lr", "steps_of"]


def steps_of(gradient: Any) -> list[Any]:
    """The gradients of several steps, which are a list or one array."""
    return list(gradient) if isinstance(gradient, list | tuple) else [gradient]


def arrays_of(gradients: Any) -> list[Any]:
    """Those of a dict or of a list."""
    return list(gradients.values() if isinstance(gradients, Mapping) else gradients)


def adamw(
    weight: Any,
    gradient: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    scale: float = 1.0,
) -> dict[str, Any]:
    """What `optim.adamw_` makes of these in the steps of all gradients, in float64: how far the
    weight moves, and the moments."""
    w, m, v = (np.array(x, np.float64) for x in (weight, exp_avg, exp_avg_sq))
    for number, one in enumerate(steps_of(gradient)):
        optim.adamw_(
            w, np.asarray(one, np.float64), m, v, step=step + number, lr=lr, betas=betas, eps=eps,
            weight_decay=weight_decay, scale=scale,
        )  # fmt: skip
    return {"weight": w - np.asarray(weight, np.float64), "exp_avg": m, "exp_avg_sq": v}


def clip_grad_norm(gradients: Any, max_norm: float, *, apply: bool = True) -> dict[str, Any]:
    """The norm of all gradients and what they are clipped to, as new arrays in float64."""
    copies = [np.array(x, np.float64) for x in arrays_of(gradients)]
    norm = optim.clip_grad_norm_(copies, max_norm)
    names = gradients if isinstance(gradients, Mapping) else range(len(copies))
    clipped = zip((f"gradients[{name!r}]" for name in names), copies, strict=True)
    return {"norm": np.float64(norm)} | (dict(clipped) if apply else {})


def cosine_lr(step: Any, *, lr: float, warmup: int = 0, total: int, min_lr: float = 0.0) -> Any:
    """The learning rate of a step, or of each of several."""
    each = [
        optim.cosine_lr(int(one), lr=lr, warmup=warmup, total=total, min_lr=min_lr)
        for one in np.ravel(step)
    ]
    return np.reshape(np.array(each, np.float64), np.shape(step))


PURE = {
    optim.adamw_: adamw,
    optim.clip_grad_norm_: clip_grad_norm,
    optim.cosine_lr: cosine_lr,
}


def some_numbers(variables: dict[str, Any], limit: int) -> Any:
    """Some numbers, evenly spaced, of the weight and of all that stands beside it."""
    size = np.size(variables["weight"])
    step = -(-size // limit) | 1
    if step == 1:
        return None

    def take(x: Any) -> Any:
        return np.ravel(x)[::step].reshape((1,) * (np.ndim(x) - 1) + (-1,))

    fewer = {name: take(variables[name]) for name in ("weight", "exp_avg", "exp_avg_sq")}
    fewer["gradient"] = [take(x) for x in steps_of(variables["gradient"])]
    return variables | fewer, take


one_step = Program(
    "adamw_step",
    """
    inputs: w, g, m, v = array(weight), array(gradient) * real(scale), exp_avg, exp_avg_sq
    decay: w = w * real(1 - lr * weight_decay)
    momentum: m = real(beta1) * m + real(1 - beta1) * g
    square: v = real(beta2) * v + real(1 - beta2) * g * g
    correct:
        m_hat = m / real(1 - beta1**t)
        v_hat = v / real(1 - beta2**t)
    root: root = np.sqrt(v_hat)
    add_eps: root = root + real(eps)
    update: w = w - real(lr) * m_hat / root
    give: out = w, m, v
    """,
)
adamw_program = Program(
    "adamw",
    """
    inputs: w, m, v = array(weight), array(exp_avg), array(exp_avg_sq)
    steps:
        for number, g in enumerate(steps_of(gradient)):
            w, m, v = run(
                adamw_step, weight=w, gradient=g, exp_avg=m, exp_avg_sq=v, t=step + number, lr=lr,
                beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay, scale=scale,
            ).out
    give: out = w - array(weight), m, v
    """,
    calls=(steps_of, one_step),
    of=adamw,
    thin=some_numbers,
)
clip_program = Program(
    "clip_grad_norm",
    """
    inputs: arrays = [array(one) for one in arrays_of(gradients)]
    square: squares = [(one * one).sum() for one in arrays]
    add_up: total = sum(squares)
    root: norm = np.sqrt(total)
    factor: factor = np.minimum(real(1), real(max_norm) / (norm + real(1e-6)))
    multiply: clipped = [one * factor for one in arrays]
    give: out = [norm, *(clipped if apply else [])]
    """,
    calls=(arrays_of,),
    of=clip_grad_norm,
)
cosine_program = Program(
    "cosine_lr",
    """
    inputs: t, W, N = np.asarray(step, real), real(warmup), real(total)
    warm_up: rising = real(lr) * (t + 1) / np.maximum(W, 1)
    progress: progress = np.clip((t - W) / np.maximum(N - W, 1), 0, 1)
    half: wave = (1 + np.cos(real(np.pi) * progress)) / 2
    fall: falling = real(min_lr) + real(lr - min_lr) * wave
    choose:
        at = np.asarray(step)
        out = np.where(at < warmup, rising, np.where(at >= total, real(min_lr), falling))
    """,
    of=cosine_lr,
    axes=("step",),
)

FASTER = "".join(
    f"""
    fast_by_{k} (rare): the schedule runs {k} times as fast
        It counts micro-batches, of which {k} make a step.
        | step = {k} * np.asarray(step); ...
    """
    for k in (2, 4, 8)
)
mistakes(
    f"""
    cosine_lr.inputs (-) > Count the optimizer's steps.
{FASTER}
    """
)
mistakes(
    """
    adamw_step.decay (-) > Decay the weight itself: w *= 1 - lr * weight_decay.

    decay_in_gradient: the weight decay is added to the gradient: this is Adam with L2
        g += weight_decay * w goes through the moments and is divided by sqrt(v); that is SGD's way.
        | g = g + real(weight_decay) * w
    decay_without_lr: the weight decay is not multiplied by the learning rate
        w *= 1 - weight_decay takes a tenth away at each step.
        | w = w * real(1 - weight_decay)
    decay_in_moment (rare): the weight decay is added to the gradient in m alone
        It is then divided by sqrt(v); decay the weight itself.
        | pass
        momentum | m = real(beta1) * m + real(1 - beta1) * (g + real(weight_decay) * w)
    no_decay: the weight decay is missing
        Nothing pulls the weights towards 0.
        | unless(w.ndim < 2)
    vector_not_decayed (convention): the weight decay leaves out a vector: a norm or a bias
        Most recipes decay matrices only; llm.c and MiniMind decay all.
        | unless(w.ndim >= 2)
    decay_added (rare): the weight decay has the wrong sign
        1 + lr * weight_decay lets the weights grow.
        | w = w * real(1 + lr * weight_decay)
    decay_twice (rare): the weight decays twice
        In the weight, and in the optimizer again.
        | ...; w = w * real(1 - lr * weight_decay)
    decay_after_update (convention): the weight decay comes after the update
        Another order: PyTorch decays first. The two are 1e-3 of an update apart.
        | pass
        update | ...; w = w * real(1 - lr * weight_decay)

    adamw_step.momentum (-) > m = beta1 * m + (1 - beta1) * g.

    scale_in_update (rare): the update is scaled instead of the gradient
        AdamW divides by the size of the gradient: a factor in front of it is lost there.
        inputs | w, g, m, v = array(weight), array(gradient), exp_avg, exp_avg_sq
        update | w = w - real(lr) * real(scale) * m_hat / root
    gradient_not_weighed: 1 - beta1 is missing: m = beta1 * m + g
        SGD with momentum adds the gradient as it is.
        | m = real(beta1) * m + g
    betas_swapped: beta1 and beta2 are swapped
        beta1 (0.9) belongs to the gradient, beta2 (0.95, 0.999) to its square.
        inputs | beta1, beta2 = beta2, beta1; ...
    moments_weighed_wrongly (rare): beta and 1 - beta are swapped: m = (1 - beta1) * m + beta1 * g
        The old moment keeps most of its weight.
        | m = real(1 - beta1) * m + real(beta1) * g
        square | v = real(1 - beta2) * v + real(beta2) * g * g
    ascent: the update climbs: + in place of -
        The gradient points uphill.
        update | w = w + real(lr) * m_hat / root

    adamw_step.square (-) > v = beta2 * v + (1 - beta2) * g².

    square_missing: v is made of g, not of its square
        v is the mean of the squares.
        | v = real(beta2) * v + real(1 - beta2) * np.abs(g)
    square_not_weighed: 1 - beta2 is missing: v = beta2 * v + g²
        Adagrad adds the squares as they are.
        | v = real(beta2) * v + g * g
    largest_square (rare): v never falls: max(v, ...)
        That is AMSGrad, whose v has another line beside it.
        | v = np.maximum(v, real(beta2) * v + real(1 - beta2) * g * g)
    square_of_moment (rare): v is made of m², not of g²
        m was computed a line before; v takes the gradient.
        | v = real(beta2) * v + real(1 - beta2) * m * m

    adamw_step.correct (-) > Divide m by 1 - beta1**t and v by 1 - beta2**t, t from 1.

    no_correction: the bias correction is missing
        m and v begin at 0; some libraries leave it out by default.
        | m_hat, v_hat = m, v
    no_correction_of_square: the bias correction of v is missing
        Both begin at 0.
        | ...; v_hat = v
    no_correction_of_moment: the bias correction of m is missing
        Both begin at 0.
        | ...; m_hat = m
    steps_from_0: t counts from 0
        1 - beta**0 is 0; enumerate begins at 0, the first step is 1.
        | t = t - 1; ...
    steps_from_2 (rare): t is one step ahead
        It was counted up before and after.
        | t = t + 1; ...
    beta1_in_both (rare): v is corrected by 1 - beta1**t as well
        Each moment has its own beta.
        | ...; v_hat = v / real(1 - beta1**t)
    corrections_swapped (rare): m is corrected by 1 - beta2**t, v by 1 - beta1**t
        Each moment has its own beta.
        | m_hat, v_hat = m / real(1 - beta2**t), v / real(1 - beta1**t)
    square_of_before (rare): the update is made with the v of the step before
        v was renewed behind the update.
        | ...; v_hat = (v - real(1 - beta2) * g * g) / real(beta2) / real(1 - beta2**t)
    nesterov (rare): the update looks one step ahead, as Nesterov's: this is NAdam
        beta1 * m + (1 - beta1) * g stands for m.
        | ...; m_hat = (real(beta1) * m + real(1 - beta1) * g) / real(1 - beta1**t)
    correction_multiplied (rare): the bias correction multiplies instead of dividing
        m is too small at first; it has to grow.
        | m_hat, v_hat = m * real(1 - beta1**t), v * real(1 - beta2**t)

    adamw_step.root (-) > Divide by sqrt(v_hat) + eps.

    no_root: the root of v is missing
        m / v has the inverse units.
        | root = v_hat
    eps_inside_root: eps is added inside the root
        sqrt(v) + eps; for small gradients the two are far apart.
        | root = np.sqrt(v_hat + real(eps))
        add_eps | pass
    eps_before_correction (convention): eps is added before the bias correction
        Kingma's short form has it so; it shows where eps does.
        | root = (np.sqrt(v) + real(eps)) / np.sqrt(real(1 - beta2**t))
        add_eps | pass

    adamw_step.add_eps (-) > Divide by sqrt(v_hat) + eps.

    no_eps (unless eps_inside_root): eps is missing
        Where a gradient is 0 all the time, 0/0 is NaN.
        | pass

    adamw_step.update (-) > w -= lr * m_hat / (sqrt(v_hat) + eps).

    gradient_for_moment: the gradient stands for m: this is RMSProp
        The update takes the mean of the gradients.
        | w = w - real(lr) * g / root
    sign_of_moment (rare): the update is the sign of m
        That is signSGD or Lion: each number moves by lr.
        | w = w - real(lr) * np.sign(m)
    no_division (rare): the update is not divided by the root
        This is SGD with momentum.
        | w = w - real(lr) * m_hat
    no_lr (rare): the learning rate is missing in the update
        w -= lr * ...
        | w = w - m_hat / root
    second_update: the update is made twice
        A parameter that is listed twice, such as a tied embedding, or two calls of step().
        | w = w - real(2 * lr) * m_hat / root

    adamw_step.inputs (-) > Multiply the gradient by the scale, once.

    no_scale: the scale of the gradient is left out
        It is what clipping multiplies by.
        | w, g, m, v = array(weight), array(gradient), exp_avg, exp_avg_sq

    adamw_step.give (-) > Keep the weights in float32; compute in 16 bits on a copy.

    weights_in_bfloat16_stall: the weights are rounded to bfloat16: small updates are lost
        w + lr * u is w where lr * u is less than 2**-9 of w.
        | out = w.astype(bfloat16).astype(real), m, v
    weights_in_float16_stall (rare): the weights are rounded to float16: small updates are lost
        w + lr * u is w where lr * u is less than 2**-12 of w.
        | out = w.astype(float16).astype(real), m, v

    adamw.steps (-) > Keep m and v from step to step, and hand in the gradient of each step.

    moments_forgotten: m and v begin at 0 at each step
        The state is local, or it was not saved: every update has the size of lr.
        | unless(len(steps_of(gradient)) < 2)
        | for number, g in enumerate(steps_of(gradient)):
        |     w, m, v = run(adamw_step, weight=w, gradient=g, exp_avg=0 * array(exp_avg),
        |         exp_avg_sq=0 * array(exp_avg_sq), t=step + number, lr=lr, beta1=betas[0],
        |         beta2=betas[1], eps=eps, weight_decay=weight_decay, scale=scale).out
    gradients_not_zeroed: the gradients add up from step to step: they are not zeroed
        zero_grad is missing: each backward adds to the last one's.
        | unless(len(steps_of(gradient)) < 2)
        | gradient = list(np.cumsum([array(g) for g in steps_of(gradient)], axis=0)); ...
    gradients_zeroed_before: the gradients are 0: they are zeroed before the step, not behind it
        zero_grad belongs between the step and the next backward: m and v only fade, and no weight
        learns.
        | gradient = [0 * array(g) for g in steps_of(gradient)]; ...
    step_not_counted: t stays at that of the first step
        The counter is not counted up, or not handed on.
        | unless(len(steps_of(gradient)) < 2)
        | for g in steps_of(gradient):
        |     w, m, v = run(adamw_step, weight=w, gradient=g, exp_avg=m, exp_avg_sq=v, t=step,
        |         lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay,
        |         scale=scale).out
    step_from_1: t counts from 1 again
        The counter is not handed on, or begins anew after a resume.
        | unless(step == 1); step = 1; ...
    state_lost: m and v begin at 0: those that were handed over are not used
        The state was not saved, or not loaded after a resume.
        | unless(np.all(array(exp_avg) == 0)); m, v = 0 * m, 0 * v; ...
    one_step_only (rare): only the first step is made
        A return inside of the loop.
        | unless(len(steps_of(gradient)) < 2); gradient = steps_of(gradient)[:1]; ...
    last_step_only (rare): only the last step is made
        Each step began at the same weights.
        | unless(len(steps_of(gradient)) < 2); gradient = steps_of(gradient)[-1:]; ...
    mean_of_gradients (rare): the gradients are averaged, and one step is made
        That is a step with four micro-batches; these are steps of their own.
        | unless(len(steps_of(gradient)) < 2)
        | gradient = [np.mean([array(g) for g in steps_of(gradient)], axis=0)]; ...
    first_gradient_always: every step uses the first gradient
        The gradients are not computed anew.
        | unless(len(steps_of(gradient)) < 2)
        | gradient = [steps_of(gradient)[0]] * len(steps_of(gradient)); ...

    clip_grad_norm.square (-) > The norm is the root of the sum of all squares.

    absolute_values: the absolute values are added up instead of the squares
        The norm of clipping is the Euclidean one.
        | squares = [np.abs(one).sum() ** 2 for one in arrays]
    mean_for_sum: the squares are averaged instead of added up
        A root mean square is smaller by sqrt(n).
        | squares = [(one * one).mean() for one in arrays]
    mean_of_all (rare, unless mean_for_sum): the norm is the root mean square of all numbers
        as above
        add_up | total = sum(squares) / real(sum(one.size for one in arrays))

    clip_grad_norm.root (-) > The norm is the root of the sum of all squares.

    sum_of_absolute_values (rare): the norm is the sum of the absolute values
        The norm of clipping is the Euclidean one.
        | norm = sum(np.abs(one).sum() for one in arrays)

    clip_grad_norm.add_up (-) > One norm of all gradients together, one factor for all.

    sum_of_norms: the norms of the arrays are added up
        The squares are what adds up: sqrt(a² + b²).
        | unless(len(arrays) < 2); total = sum(np.sqrt(one) for one in squares) ** 2
    largest_norm: the largest norm of an array stands for all
        The squares of all add up.
        | unless(len(arrays) < 2); total = max(squares)
    mean_of_norms (rare): the norms of the arrays are averaged
        as above
        | unless(len(arrays) < 2)
        | total = (sum(np.sqrt(one) for one in squares) / len(arrays)) ** 2
    first_only (rare): only the first array counts
        A return inside of the loop.
        | unless(len(arrays) < 2); total = squares[0]
    last_only: only the last array counts
        A loop that assigns with = where += is meant.
        | unless(len(arrays) < 2); total = squares[-1]

    clip_grad_norm.root (-) > The norm is the root of the sum of all squares.

    no_root: the square root is missing
        The sum of the squares is the norm's square.
        | norm = total

    clip_grad_norm.factor (-) > Multiply all by min(1, max_norm / (norm + 1e-6)).

    always_scaled: gradients below max_norm are scaled up to it
        min(1, ...) is missing: clipping only makes smaller.
        | factor = real(max_norm) / (norm + real(1e-6))
    nothing_added (convention): max_norm is divided by the norm alone
        PyTorch and this package add 1e-6 to it.
        | factor = np.minimum(real(1), real(max_norm) / norm)
    not_clipped: the gradients are not clipped
        The factor is computed and not used, or the copies are thrown away.
        | factor = real(1)
    factor_inverted (rare): the factor is inverted
        norm / max_norm makes large gradients larger.
        | factor = np.maximum(real(1), norm / real(max_norm))
    scaled_to_one: the gradients are scaled to a norm of 1, whatever max_norm is
        max_norm / norm.
        | factor = np.minimum(real(1), 1 / (norm + real(1e-6)))

    clip_grad_norm.multiply (-) > One factor for all arrays.

    by_array: each array is clipped by its own norm
        A loop over groups: that changes the direction of the whole.
        | unless(len(arrays) < 2)
        | clipped = [one * np.minimum(real(1), real(max_norm) / (np.sqrt(square) + real(1e-6)))
        |     for one, square in zip(arrays, squares)]
    by_value (unless not_clipped): the numbers are clipped one by one
        clip_grad_value_ cuts each number; the direction changes.
        | clipped = [np.clip(one, -real(max_norm), real(max_norm)) for one in arrays]

    clip_grad_norm.give (-) > Give the norm before the clipping: it tells how often
        clipping is needed.

    norm_after: it is the norm after the clipping
        It is computed again, or of the clipped gradients.
        | norm = norm * factor; ...

    cosine_lr.warm_up (-) > lr * (t + 1) / warmup: the first step does something.

    zero_at_first (convention): the first step has a learning rate of 0: t / warmup
        nanoGPT and others count so, and waste a step.
        | rising = real(lr) * t / np.maximum(W, 1)
    warmup_plus_one (convention): the warm-up is divided by warmup + 1
        nanoGPT's later form: (t + 1) / (warmup + 1) reaches lr one step later.
        | rising = real(lr) * (t + 1) / (W + 1)
    no_warm_up: the warm-up is missing
        The first steps have the full learning rate.
        | rising = real(lr) + 0 * t
    cosine_from_start (rare): the warm-up is missing: the cosine falls from step 0 on
        Half a wave over all steps; the first of them have the full learning rate.
        progress | progress = np.clip(t / N, 0, 1)
        choose | out = np.where(np.asarray(step) >= total, real(min_lr), falling)

    warm_up_from_min_lr (rare): the warm-up begins at min_lr
        It rises from 0 to lr; min_lr is where the cosine ends.
        | rising = real(min_lr) + real(lr - min_lr) * (t + 1) / np.maximum(W, 1)

    cosine_lr.inputs (-) > Steps count from 0.

    one_step_ahead (rare): it is one step ahead
        Steps that count from 1, as AdamW's do.
        | step = np.asarray(step) + 1; ...
    one_step_behind (rare): it is one step behind
        The schedule is asked before the counter is raised, or behind the step.
        | step = np.maximum(np.asarray(step) - 1, 0); ...

    cosine_lr.progress (-) > progress = (t - warmup) / (total - warmup).

    exponential (rare): it falls exponentially, from lr to min_lr
        A constant factor each step; half a cosine is flat at both ends.
        fall | falling = real(lr) * real(min_lr / lr) ** progress
        | unless(min_lr <= 0); ...
    over_total: the progress is divided by total, not by total - warmup
        The cosine then ends before it reaches min_lr.
        | progress = np.clip((t - W) / N, 0, 1)
    from_zero: the progress counts the warm-up too: t / total
        The learning rate falls by a jump behind the warm-up.
        | progress = np.clip(t / N, 0, 1)
    linear: it falls linearly
        The cosine is missing.
        half | wave = 1 - progress
        | ...

    cosine_lr.half (-) > (1 + cos(π * progress)) / 2.

    half_missing: the cosine is not halved
        1 + cos reaches from 2 to 0.
        | wave = 1 + np.cos(real(np.pi) * progress)
    pi_missing: π is missing in the cosine
        cos(1) is 0.54: half a wave needs π.
        | wave = (1 + np.cos(progress)) / 2
    quarter_wave (rare): it is a quarter of a wave: cos(π/2 * progress)
        (1 + cos(π * progress)) / 2 is half a wave, flat at both ends.
        | wave = np.cos(real(np.pi / 2) * progress)
    one_missing (rare): the 1 + is missing
        cos alone reaches from 1 to -1.
        | wave = np.cos(real(np.pi) * progress)
    degrees (rare): the cosine is taken of degrees
        math.cos and np.cos take radians: π is half a turn.
        | wave = (1 + np.cos(real(180) * progress)) / 2
    sine (rare): it is a sine: sin(π * progress)
        cos begins at the top, sin in the middle.
        | wave = (1 + np.sin(real(np.pi) * progress)) / 2
    whole_wave (rare): it is a whole wave: cos(2π * progress)
        The learning rate comes back to the top.
        | wave = (1 + np.cos(real(2 * np.pi) * progress)) / 2

    cosine_lr.fall (-) > min_lr + (lr - min_lr) * wave.

    min_lr_missing: min_lr is left out: it falls to 0
        The wave lies between min_lr and lr.
        | falling = real(lr) * wave
    min_lr_missing_at_the_end (unless min_lr_missing):
        min_lr is left out of the wave and of the end
        The wave lies between min_lr and lr, and ends at min_lr.
        | falling = real(lr) * wave; min_lr = 0
    min_lr_added: min_lr is added on top: lr * wave + min_lr
        The wave's height is lr - min_lr.
        | falling = real(min_lr) + real(lr) * wave
    min_lr_as_bound: min_lr is a lower bound, not the end of the wave
        max(min_lr, ...) cuts the wave off.
        | falling = np.maximum(real(min_lr), real(lr) * wave)

    cosine_lr.choose (-) > Behind total it stays at min_lr.

    no_end (habit): the end is no case of its own: progress stays at 1
        Both are the same.
        | out = np.where(np.asarray(step) < warmup, rising, falling)

    warm_up_times_wave (rare): the warm-up multiplies a cosine over all steps
        Two factors of one schedule; here the cosine begins behind the warm-up.
        progress | progress = np.clip(t / N, 0, 1)
        | out = np.where(np.asarray(step) < warmup, rising / real(lr), real(1)) * falling
    rises_again: behind the end it rises again
        The cosine is periodic: stop at total.
        progress | progress = (t - W) / np.maximum(N - W, 1)
        | out = np.where(np.asarray(step) < warmup, rising, falling)
    """
)
