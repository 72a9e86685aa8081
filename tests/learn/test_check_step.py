"""check_step says which part of a learner's step of training differs, and why."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from mistake_examples import names
from simdformer.training import TrainableModel
from test_check_gradients import IDS, LABELS, Llama, made

LR, CLIP = 0.01, 0.5
GIVEN = {"lr": LR, "max_norm": CLIP}


@pytest.fixture
def model():
    return made("llama")[0]


def step(weights, ids, labels, *, lr=LR, clip=True, change=lambda g: g, **options):
    """One of the package's own; `change` makes other gradients of its gradients."""
    own = TrainableModel(made("llama")[0].config, weights)
    loss, gradients = own.loss_and_gradients(ids, labels)
    gradients = change(gradients)
    norm = sf.optim.clip_grad_norm_(gradients, CLIP, apply=clip)
    sf.optim.AdamW(weights, lr=lr, **options).step(gradients)
    return {"loss": loss, "gradients": gradients, "norm": norm, "parameters": weights}


def checked(mine, model, **options):
    return sf.check_step(mine, model, IDS, LABELS, **GIVEN | options)


# ---- right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [True, False])
def test_a_right_step_is_right(model, clip):
    """Gradients may be given before clipping or after."""

    def mine(weights, ids, labels):
        found = step(weights, ids, labels)
        return found if clip else found | {"gradients": model.loss_and_gradients(ids, labels)[1]}

    report = checked(mine, model)
    assert report.ok, report
    assert report.sentence.startswith("the step is right: loss, ")
    assert checked(lambda *given: step(*given)["loss"], model), "changed in place"
    after = copy.deepcopy(model.parameters())
    step(after, IDS, LABELS)
    alone = checked(after, model)
    assert alone.ok, alone
    assert "clipping hardly shows" in " ".join(repr(alone).split())
    assert checked(TrainableModel(model.config, after), model)


@pytest.mark.parametrize("clip", [True, False])
def test_rounding_of_a_whole_model_is_no_mistake(model, clip, rng):
    """A thousandth of each row: that of attention in another order is up to 7e-4."""

    def rounded(gradients):
        sizes = {name: np.sqrt(np.mean(g * g, -1, keepdims=True)) for name, g in gradients.items()}
        return {n: g + 1e-3 * sizes[n] * rng.choice([-1, 1], g.shape) for n, g in gradients.items()}

    _, gradients = model.loss_and_gradients(IDS, LABELS)
    gradients = rounded(gradients)
    if clip:
        sf.optim.clip_grad_norm_(gradients, CLIP)
    report = checked({"gradients": gradients}, model)
    assert report.ok, report
    gradients["layers.0.wq"] *= 1.02
    assert not checked({"gradients": gradients}, model)


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_of_pytorch_is_right(model, fused):
    """All in one group: norms are decayed too, which is another convention."""
    own = Llama(model.config, model.parameters())
    optimizer = torch.optim.AdamW(
        own.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=fused
    )
    logits = own(torch.from_numpy(IDS))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(LABELS).flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(own.parameters(), CLIP)
    optimizer.step()
    ours = {n: n.replace("_", ".", 2) if n.startswith("layers") else n for n, _ in
            own.named_parameters()}  # fmt: skip
    mine = {
        "loss": loss,
        "norm": norm,
        "gradients": {ours[n]: p.grad for n, p in own.named_parameters()},
        "parameters": {ours[n]: p for n, p in own.named_parameters()},
    }
    report = checked(mine, model)
    assert report.ok, report
    assert "norms and biases are decayed too" in repr(report)


# ---- wrong ---------------------------------------------------------------------------------------


def loss_of(function):
    def mine(weights, ids, labels):
        wrong = function(weights, ids, labels)
        return step(weights, ids, labels) | {"loss": wrong}

    return mine


def loss(weights, ids, labels):
    return TrainableModel(made("llama")[0].config, weights).loss(ids, labels)


def changed(change, **options):
    return lambda *given: step(*given, change=change, **options)


def one_by_one(gradients):
    for g in gradients.values():
        sf.optim.clip_grad_norm_([g], CLIP)
    return gradients


def without(name):
    """All but one of what the step gives."""

    def mine(*given):
        found = step(*given)
        del found[name]
        return found

    return mine


def no_second_term(weights, ids, labels):
    found = step(weights, ids, labels, clip=False)
    g = found["gradients"]["layers.2.wo"]
    found["gradients"]["layers.2.wo"] = g / ids.size
    return found


def clipped_too_late(weights, ids, labels):
    found = step(weights, ids, labels, clip=False)
    return found | {"norm": sum(np.linalg.norm(g) for g in found["gradients"].values())}


def by_value(gradients):
    return {name: np.clip(g, -CLIP, CLIP) for name, g in gradients.items()}


WRONG = {
    "the loss is a sum": (
        loss_of(lambda w, i, y: loss(w, i, y) * (y != -100).sum()), "loss", "gradients.of_the_sum",
    ),
    "labels not shifted": (
        loss_of(lambda w, i, y: loss(w, i, i)), "loss", "gradients.labels_not_shifted",
    ),
    "ignored rows count": (
        loss_of(lambda w, i, y: loss(w, i, y) * (y != -100).sum() / y.size), "loss",
        "gradients.ignored_counted",
    ),
    "gradient averaged": (no_second_term, "gradients", "linear_backward.weight_averaged"),
    "gradients doubled": (
        changed(lambda g: {n: 2 * x for n, x in g.items()}, clip=False), "gradients",
        "gradients.accumulated",
    ),
    "clipped one by one": (changed(one_by_one), "clipping", "clip_grad_norm"),
    "norms summed": (clipped_too_late, "clipping", "clip_grad_norm"),
    "not clipped": (
        lambda w, i, y: {"parameters": step(w, i, y, clip=False)["parameters"]}, "clipping",
        "step.not_clipped",
    ),
    "other lr": (lambda *given: step(*given, lr=LR / 2), "AdamW", "adamw"),
    "no decay": (lambda *given: step(*given, weight_decay=0.0), "AdamW", "adamw"),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRONG)
def test_the_part_that_differs_is_named(name, model):
    mine, part, mistake = WRONG[name]
    report = checked(mine, model)
    assert report.first_wrong == part, report
    assert any(one.startswith(mistake) for one in names(report)), report
    assert max(map(len, repr(report).splitlines())) <= 80
    assert report.first_wrong in report._repr_html_()


def test_weights_alone_tell_another_gradient_from_another_adamw(model):
    other = model.loss_and_gradients(IDS)[1]["layers.1.wo"]

    def turned(gradients):
        return gradients | {"layers.1.wo": other}

    report = checked(
        step(copy.deepcopy(model.parameters()), IDS, LABELS, change=turned)["parameters"], model
    )
    assert report.first_wrong == "gradients"
    assert "step.other_gradient" in names(report), report
    assert "layers.1.wo" in repr(report)


def test_what_is_left_out_is_not_looked_at(model):
    report = checked(without("loss"), model)
    assert report.ok
    assert "loss" not in dict(report.parts)


@pytest.mark.parametrize(
    ("mine", "options", "error", "said"),
    [
        (3, {}, TypeError, "check_step: mine is a int, needs a dict, a module of PyTorch or a"),
        ({"a": np.ones(2)}, {}, ValueError, "check_step: no name in mine is known: 'a'"),
        ({}, {}, ValueError, "check_step: mine is empty"),
        ({"loss": 1.0}, {"max_norm": "a"}, ValueError, "max_norm is 'a', needs a number > 0"),
        ({"loss": 1.0}, {"lr": "a"}, ValueError, "lr is 'a', needs a finite number >= 0"),
        ({"loss": 1.0}, {"betas": 1}, ValueError, "betas is 1, needs two numbers"),
        ({"embed": np.ones((2, 2))}, {"lr": -1}, ValueError, "lr is -1, needs a finite number"),
    ],
)
def test_refusals(mine, options, error, said, model):
    with pytest.raises(error, match=said):
        checked(mine, model, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("factor", [1.02, 1.5])
def test_one_wrong_gradient_is_not_taken_for_clipping(factor, clipped, model):
    def one_off(gradients):
        return gradients | {"layers.1.wq": factor * gradients["layers.1.wq"]}

    report = checked(changed(one_off, clip=clipped), model)
    assert report.first_wrong == "gradients", report
    assert "layers.1.wq is wrong" in " ".join(repr(report).split())


def test_a_loss_that_is_no_number_is_wrong(model):
    for loss in (math.inf, math.nan):
        assert checked({"loss": loss}, model).first_wrong == "loss"
