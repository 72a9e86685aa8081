"""`check` of AdamW over several steps, of clipping and of the schedule: in place or not, arrays or
functions, numpy or PyTorch, what is right is right."""

import math

import numpy as np
import pytest
import torch

import simdformer as sf
from conftest import normal
from mistake_examples_optimizers import B1, B2, EPS, LOW, LR, SHAPE, STEPS, TOP, WARM, WD, loop

LENGTHS = [1, 4]
CPU_OPTIONS = {"lr": LR, "betas": (B1, B2), "weight_decay": WD, "eps": EPS}


def given(rng, steps, dtype=np.float32, scale=1.0):
    w = (scale * normal(rng, *SHAPE)).astype(dtype)
    return w, [normal(rng, *SHAPE).astype(dtype) for _ in range(steps)]


def zeros(dtype=np.float32):
    return np.zeros(SHAPE, dtype), np.zeros(SHAPE, dtype)


def in_place(w, g, m, v, *, step, lr, betas, weight_decay, eps):
    """PyTorch's way with an underscore: nothing is returned."""
    b1, b2 = betas
    w *= 1 - lr * weight_decay
    m[...] = b1 * m + (1 - b1) * g
    v[...] = b2 * v + (1 - b2) * g**2
    w -= lr * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + eps)


def weight_alone(w, g, m, v, **kwargs):
    """The moments are changed, the weight is returned."""
    w = w.copy()
    in_place(w, g, m, v, **kwargs)
    return w


def as_dict(w, g, m, v, **kwargs):
    w, m, v = loop()(w, g, m, v, **kwargs)
    return {"w": w, "m": m, "v": v}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("mine", [in_place, weight_alone, as_dict, loop()])
def test_a_right_step_is_right(mine, steps, dtype, rng):
    w, gradients = given(rng, steps, dtype)
    report = sf.check(sf.optim.adamw_, mine, w, gradients, *zeros(dtype), **STEPS)
    assert report.ok, report
    assert [name for name, _ in report.parts] == ["weight", "exp_avg", "exp_avg_sq"]
    one = sf.check("optim.adamw_", mine, w, gradients[0], *zeros(dtype), **STEPS)
    assert one.ok, one
    assert not one.remarks


@pytest.mark.parametrize("scale", [1.0, 30.0])  # of the weights: an update is a few units of them
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_pytorchs_optimizer_is_right(options, scale, rng):
    w, gradients = given(rng, 5, scale=scale)
    weight = torch.nn.Parameter(torch.tensor(w))
    optimizer = torch.optim.AdamW([weight], **CPU_OPTIONS, **options)
    for g in gradients:
        weight.grad = torch.tensor(g)
        optimizer.step()
    tensors = torch.tensor(w), [torch.tensor(g) for g in gradients], *map(torch.tensor, zeros())
    state = optimizer.state[weight]
    for mine in (weight, weight.detach().numpy(), (weight, state["exp_avg"], state["exp_avg_sq"])):
        assert sf.check(sf.optim.adamw_, mine, *tensors, **STEPS).ok
        assert sf.check(sf.optim.adamw_, mine, w, gradients, *zeros(), **STEPS).ok


def test_the_arguments_stay_as_they_are(rng):
    w, gradients = given(rng, 2)
    before = w.copy()
    m, v = zeros()
    assert sf.check(sf.optim.adamw_, in_place, w, gradients, m, v, **STEPS).ok
    assert (w == before).all()
    assert not m.any()


def test_other_conventions_are_remarks(rng):
    w, gradients = given(rng, 3)
    options = STEPS | {"eps": 1e-2}
    report = sf.check(
        sf.optim.adamw_,
        loop(root=lambda v, two: (v.sqrt() + 1e-2) / two**0.5),
        w,
        gradients,
        *zeros(),
        **options,
    )
    assert report.ok
    assert "right by another convention: eps is added before the bias correction" in " ".join(
        repr(report).split()
    )


# ---- clipping and the schedule -------------------------------------------------------------------


def clipped_in_place(gradients, max_norm):
    norm = math.sqrt(sum(float((x**2).sum()) for x in gradients.values()))
    for x in gradients.values():
        x *= min(1, max_norm / (norm + 1e-6))
    return norm


def clipped_anew(gradients, max_norm):
    norm = math.sqrt(sum(float((x**2).sum()) for x in gradients.values()))
    return {n: x * np.float32(min(1, max_norm / norm)) for n, x in gradients.items()}


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
@pytest.mark.parametrize("names", [("w", "b"), ("gradients", "norm")])
def test_right_clipping_is_right(names, max_norm, rng):
    gradients = dict(zip(names, (normal(rng, 3, 4), normal(rng, 5)), strict=True))
    op = sf.optim.clip_grad_norm_
    for mine in (clipped_in_place, clipped_anew, clipped_anew(gradients, max_norm)):
        report = sf.check(op, mine, gradients, max_norm)
        assert report.ok, report
    tensors = [torch.nn.Parameter(torch.zeros(x.shape)) for x in gradients.values()]
    for one, x in zip(tensors, gradients.values(), strict=True):
        one.grad = torch.tensor(x)
    norm = torch.nn.utils.clip_grad_norm_(tensors, max_norm)
    after = [one.grad for one in tensors]
    arrays = list(gradients.values())
    for mine in (norm, after, (norm, after), {"norm": norm, "gradients": after}):
        report = sf.check(op, mine, arrays, max_norm)
        assert report.ok, report


def pytorchs_schedule(steps):
    """LambdaLR and CosineAnnealingLR in sequence, as recipes have it."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=TOP)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / WARM)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20 - WARM, eta_min=LOW)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], milestones=[WARM])
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        both.step()
    return rates


def test_a_right_schedule_is_right():
    options = {"lr": TOP, "warmup": WARM, "total": 20, "min_lr": LOW}
    steps = np.arange(20)
    assert sf.check(sf.optim.cosine_lr, pytorchs_schedule(20), steps, **options).ok
    assert sf.check(sf.optim.cosine_lr, sf.optim.cosine_lr, steps, **options).ok
    assert sf.check(sf.optim.cosine_lr, 4e-4, 1, **options).ok
    wasted = sf.check(sf.optim.cosine_lr, 0.0, 0, **options)
    assert wasted.ok
    assert "the first step has a learning rate of 0" in repr(wasted)


def test_what_cannot_be_a_result_is_refused(rng):
    w, gradients = given(rng, 2)
    with pytest.raises(TypeError, match="mine has 'u', needs one of weight, exp_avg, exp_avg_sq"):
        sf.check(sf.optim.adamw_, {"u": w}, w, gradients, *zeros(), **STEPS)
    with pytest.raises(ValueError, match="step is 0, needs a whole number >= 1"):
        sf.check(sf.optim.adamw_, w, w, gradients, *zeros(), **STEPS | {"step": 0})


def test_the_change_of_the_weight_is_what_is_shown(rng):
    w, gradients = given(rng, 2)
    report = sf.check(sf.optim.adamw_, w + 1, w, gradients, *zeros(), **STEPS)
    assert repr(report).startswith("✗ optim.adamw_: weight wrong\n  change of weight (")


def test_a_step_that_changes_nothing(rng):
    w, gradients = given(rng, 2)

    def in_no_place(w, g, m, v, *, lr, **kwargs):
        w = w - lr * g

    def moments_alone(w, g, m, v, **kwargs):
        in_place(w.copy(), g, m, v, **kwargs)

    for mine, title, wrong in (
        (w, "the weight is that of before the step", 1),
        (in_no_place, "your function changes nothing", 3),
        (moments_alone, "your function does not change the weight", 1),
    ):
        report = sf.check(sf.optim.adamw_, mine, w, gradients, *zeros(), **STEPS)
        assert [one.title for one in report.diagnosis] == [title]
        assert sum(not one.ok for _, one in report.parts) == wrong
    assert sf.check(sf.optim.adamw_, w, w, gradients, *zeros(), **STEPS | {"lr": 0.0}).ok
