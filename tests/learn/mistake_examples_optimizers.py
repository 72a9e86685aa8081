"""AdamW, clipping and schedules as learners write them wrong: in place, in the order of PyTorch's
own loop, by torch.optim with other options, with lists and with norms of the whole."""

import math

import numpy as np
import torch

import simdformer as sf
from conftest import normal
from mistake_examples import Examples

example = Examples()

SHAPE, LR, B1, B2, WD, EPS = (4, 6), 3e-3, 0.9, 0.98, 0.2, 1e-8
STEPS = {"lr": LR, "betas": (B1, B2), "weight_decay": WD, "eps": EPS, "step": 1}


def loop(**wrong):
    """torch.optim.adamw's loop for one tensor, with what is wrong handed over."""

    def mine(w, g, m, v, *, step, lr, betas, weight_decay, eps, scale=1.0):
        w, g, m, v = (torch.as_tensor(x).clone() for x in (w, g, m, v))
        b1, b2 = wrong.get("betas", betas)
        t = wrong.get("t", lambda step: step)(step)
        g = wrong.get("gradient", lambda g, w: g * scale)(g, w)
        w.mul_(wrong.get("decay", 1 - lr * weight_decay))
        m = wrong.get("m", lambda m, g: torch.lerp(m, g, 1 - b1))(m, g)
        v = wrong.get("v", lambda v, g, m: v.mul(b2).addcmul(g, g, value=1 - b2))(v, g, m)
        one, two = 1 - b1**t if t else 0.0, 1 - b2**t if t else 0.0
        one, two = wrong.get("corrections", lambda one, two: (one, two))(one, two)
        root = wrong.get("root", lambda v, two: v.sqrt() / two**0.5 + eps)(v, two)
        size = wrong.get("lr", lr)
        w = wrong.get("update", lambda w, m, root, g: w - size * m / root)(w, m / one, root, g)
        return wrong.get("after", lambda w: w)(w), m, v

    return mine


def adamw(name, mine, *others, steps=3, state=False, small=1.0, **kwargs):
    """`mine` makes one step, or, given as a list of gradients, all of them."""

    @example(name, *others)
    def _(rng):
        w, *gradients = (normal(rng, *SHAPE) for _ in range(1 + steps))
        gradients = [small * g for g in gradients]
        m, v = (
            (0.1 * normal(rng, *SHAPE), normal(rng, *SHAPE) ** 2)
            if state
            else np.zeros((2, *SHAPE), np.float32)
        )
        options = STEPS | kwargs
        return mine, sf.optim.adamw_, (w, gradients, m.astype(np.float32), v), options


def step(name, *others, steps=3, small=1.0, given=None, **wrong):
    adamw(f"adamw_step.{name}", loop(**wrong), *others, steps=steps, small=small, **given or {})


step("decay_twice", decay=(1 - LR * WD) ** 2)


@example("adamw_step.vector_not_decayed")
def _(rng):
    """Two groups of parameters, as nanoGPT's configure_optimizers makes them."""
    w, g = normal(rng, 24), normal(rng, 24)
    weight = torch.nn.Parameter(torch.tensor(w))
    weight.grad = torch.tensor(g)
    groups = [{"params": [weight], "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=LR, betas=(B1, B2), eps=EPS).step()
    m, v = np.zeros((2, 24), np.float32)
    return weight.detach(), sf.optim.adamw_, (w, g, m, v), STEPS


def after(w):
    return w * (1 - 0.05 * WD)


step("decay_after_update", decay=1.0, after=after, given={"lr": 0.05}, lr=0.05)
step("gradient_not_weighed", m=lambda m, g: B1 * m + g)
step(
    "moments_weighed_wrongly",
    m=lambda m, g: torch.lerp(m, g, B1),
    v=lambda v, g, m: (1 - B2) * v + B2 * g**2,
)
step("scale_in_update", gradient=lambda g, w: g, lr=0.3 * LR, given={"scale": 0.3})
step("square_not_weighed", v=lambda v, g, m: B2 * v + g.square())
step("largest_square", v=lambda v, g, m: torch.maximum(v, B2 * v + (1 - B2) * g * g))
step("no_correction_of_square", corrections=lambda one, two: (one, 1.0))
step("corrections_swapped", corrections=lambda one, two: (two, one))


def decayed_in_moment(w, g, m, v, *, step, lr, betas, weight_decay, eps):
    m = betas[0] * m + (1 - betas[0]) * (g + weight_decay * w)
    v = betas[1] * v + (1 - betas[1]) * g * g
    root = np.sqrt(v / (1 - betas[1] ** step)) + eps
    return w - lr * m / (1 - betas[0] ** step) / root, m, v


adamw("adamw_step.decay_in_moment", decayed_in_moment)


def looking_ahead(w, g, m, v, *, step, lr, betas, weight_decay, eps):
    """Dozat's Nesterov momentum, with Adam's correction."""
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
    ahead = betas[0] * m + (1 - betas[0]) * g
    root = np.sqrt(v / (1 - betas[1] ** step)) + eps
    return w * (1 - lr * weight_decay) - lr * ahead / (1 - betas[0] ** step) / root, m, v


adamw("adamw_step.nesterov", looking_ahead)


step("correction_multiplied", corrections=lambda one, two: (1 / one, 1 / two))
LARGE = {"eps": 1e-2}
step("eps_before_correction", root=lambda v, two: (v.sqrt() + 1e-2) / two**0.5, given=LARGE)
step("no_eps", root=lambda v, two: (v / two).sqrt(), given=LARGE)
step("gradient_for_moment", update=lambda w, m, root, g: w - LR * g / root)
step("no_division", update=lambda w, m, root, g: w - LR * m)
step("sign_of_moment", update=lambda w, m, root, g: w - LR * m.sign())
step("no_lr", update=lambda w, m, root, g: w - m / root)
step("second_update", update=lambda w, m, root, g: w - LR * m / root - LR * m / root)
step("no_scale", gradient=lambda g, w: g, given={"scale": 0.3})
step("weights_in_bfloat16_stall", after=lambda w: w.bfloat16().float())
step("weights_in_float16_stall", after=lambda w: w.half().float())

# ---- several steps -------------------------------------------------------------------------------


def by_pytorch(w, gradients, change=lambda gradients: gradients, reset=False):
    """torch.optim.AdamW's weights after the last step."""
    weight = torch.nn.Parameter(torch.tensor(w))

    def new():
        return torch.optim.AdamW([weight], lr=LR, betas=(B1, B2), weight_decay=WD, eps=EPS)

    optimizer = new()
    for g in change(gradients):
        optimizer = new() if reset else optimizer
        weight.grad = torch.tensor(g)
        optimizer.step()
    return weight.detach()


def steps(name, *others, **wrong):
    @example(f"adamw.{name}", *others)
    def _(rng):
        w, *gradients = (normal(rng, *SHAPE) for _ in range(4))
        m, v = np.zeros((2, *SHAPE), np.float32)
        mine = by_pytorch(w, gradients, **wrong)
        return mine, sf.optim.adamw_, (w, gradients, m, v), STEPS


steps("first_gradient_always", change=lambda g: [g[0]] * len(g))
steps("one_step_only", change=lambda g: g[:1])
steps("last_step_only", change=lambda g: g[-1:])
steps("mean_of_gradients", change=lambda g: [np.mean(g, 0)])
adamw("adamw.step_from_1", loop(t=lambda step: step - 3), step=4, state=True)


@example("adamw.state_lost")
def _(rng):
    """Saved without the optimizer; a new one begins at step 4 with moments of 0."""
    w, g, m, v = (normal(rng, *SHAPE) for _ in range(4))
    new = loop()(w, g, 0 * m, 0 * v, **STEPS | {"step": 4})
    return [np.asarray(x) for x in new], sf.optim.adamw_, (w, g, m, v * v), STEPS | {"step": 4}


# ---- clipping ------------------------------------------------------------------------------------


def clip(name, mine, *others, max_norm=1.5, size=1.0, tuples=False):
    """`mine` gives (norm, gradients), or either."""

    @example(f"clip_grad_norm.{name}", *others)
    def _(rng):
        given = {
            n: size * normal(rng, *shape)
            for n, shape in {"a": (2,), "w": (3, 4), "b": (5,)}.items()
        }
        given = tuple(given.values()) if tuples else given
        return mine(given, max_norm), sf.optim.clip_grad_norm_, (given, max_norm), {}


def by_norm(norm_of, factor=lambda norm, most: min(1.0, most / (norm + 1e-6))):
    def mine(given, most):
        norm = float(norm_of(list(given.values())))
        return norm, {n: x * np.float32(factor(norm, most)) for n, x in given.items()}

    return mine


def whole(arrays):
    return torch.cat([torch.tensor(x).flatten() for x in arrays]).norm()


def norms(arrays):
    return [np.linalg.norm(x) for x in arrays]


clip("absolute_values", by_norm(lambda arrays: math.hypot(*(np.abs(x).sum() for x in arrays))))
clip(
    "mean_of_all",
    by_norm(lambda arrays: np.sqrt(np.mean(np.concatenate([x.ravel() for x in arrays]) ** 2))),
    max_norm=0.3,
)
clip("largest_norm", by_norm(lambda arrays: max(norms(arrays))))
clip("last_only", by_norm(lambda arrays: norms(arrays)[-1]))
clip("first_only", by_norm(lambda arrays: norms(arrays)[0]))
clip("no_root", by_norm(lambda arrays: sum((x**2).sum() for x in arrays)))
clip("not_clipped", by_norm(whole, lambda norm, most: 1.0))


@example("clip_grad_norm.nothing_added")
def _(rng):
    given = [np.float64(normal(rng, 3, 4)), np.float64(normal(rng, 5))]
    factor = 1.5 / np.sqrt(sum((x**2).sum() for x in given))
    return [factor * x for x in given], sf.optim.clip_grad_norm_, (given, 1.5), {}


# ---- the schedule --------------------------------------------------------------------------------

TOP, LOW, WARM, END = 1e-3, 1e-4, 5, 20


def schedule(name, *others, **wrong):
    """Step by step, as nanoGPT's get_lr."""

    def mine(it, *, lr, warmup, total, min_lr):
        it = max(it * wrong.get("batches", 1) + wrong.get("later", 0), 0)
        if it < warmup:
            return wrong.get("rising", lambda it: lr * (it + 1) / warmup)(it)
        if it >= total and not wrong.get("on"):
            return wrong.get("end", min_lr)
        ratio = wrong.get("ratio", lambda it: (it - warmup) / (total - warmup))(it)
        coeff = wrong.get("wave", lambda x: 0.5 * (1.0 + math.cos(math.pi * x)))(ratio)
        return wrong.get("fall", lambda c: min_lr + c * (lr - min_lr))(coeff)

    @example(f"cosine_lr.{name}", *others)
    def _(rng):
        options = {"lr": TOP, "warmup": WARM, "total": END, "min_lr": LOW}
        return mine, sf.optim.cosine_lr, (np.arange(25),), options


schedule("zero_at_first", rising=lambda it: TOP * it / WARM)
schedule("warmup_plus_one", rising=lambda it: TOP * (it + 1) / (WARM + 1))
schedule(
    "cosine_from_start",
    rising=lambda it: LOW + (TOP - LOW) * (1 + math.cos(math.pi * it / END)) / 2,
    ratio=lambda it: it / END,
)
schedule("quarter_wave", wave=lambda x: math.cos(math.pi * x / 2))
schedule("one_missing", wave=lambda x: math.cos(math.pi * x))
schedule("whole_wave", wave=lambda x: 0.5 * (1 + math.cos(2 * math.pi * x)))
schedule("one_step_ahead", later=1)
schedule("min_lr_missing", fall=lambda c: c * TOP)


for k in (2, 4, 8):
    schedule(f"fast_by_{k}", batches=k)
