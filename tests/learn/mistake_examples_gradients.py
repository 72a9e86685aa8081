"""Gradients of several arguments as learners write them wrong: linear, norms, SwiGLU."""

import numpy as np
import torch
from torch.nn import functional as F

import simdformer as sf
from conftest import normal
from mistake_examples import Examples
from mistake_examples_backward import FUNCTIONS, sigmoid, silu, slope_of_silu

example = Examples()


def wrong(name, op, which, mine, *shapes, scale=1.0, **kwargs):
    """`mine` gives the gradient of argument `which` for the arguments; the others are right."""

    @example(*name.split())
    def _(rng):
        args = tuple(scale * normal(rng, *shape) for shape in shapes)
        with np.errstate(all="ignore"):
            gradient = np.asarray(mine(*args), np.float32)
        return op(*args, **kwargs)._replace(**{which: gradient}), op, args, kwargs


def rows(x):
    return x.reshape(-1, x.shape[-1])


def mean(x):
    return x.mean(-1, keepdims=True)


# ---- linear --------------------------------------------------------------------------------------

LINEAR = (3, 4, 6), (3, 4, 5), (6, 5)
SQUARE = (3, 4, 6), (3, 4, 6), (6, 6)


def wrong_linear(name, which, mine, shapes=LINEAR):
    wrong(f"linear_backward.{name}", sf.backward.linear, which, mine, *shapes)


for name, mine in {
    "output_itself": lambda g, x, w: np.einsum("bto,io->bti", x, w),
}.items():
    wrong_linear(name, "x", mine, SQUARE)
wrong_linear("input_for_gradient", "weight", lambda g, x, w: np.einsum("bti,btj->ij", x, x), SQUARE)
for name, mine in {
    "last_row_only": lambda g, x, w: np.outer(g[-1, -1], x[-1, -1]),
    "first_sequence_only": lambda g, x, w: g[0].T @ x[0],
    "weight_averaged_over_batch": lambda g, x, w: np.einsum("bto,bti->boi", g, x).mean(0),
}.items():
    wrong_linear(name, "weight", mine)
wrong_linear("output_for_input", "weight", lambda g, x, w: rows(g).T @ rows(x @ w.T), SQUARE)
for name, mine in {
    "bias_of_last_sequence": lambda g, x, w: g[-1].sum(0),
    "bias_not_summed": lambda g, x, w: g,
    "bias_sum_along_rows": lambda g, x, w: np.einsum("bto->bt", g),
    "bias_of_last_row": lambda g, x, w: g[-1, -1],
}.items():
    wrong_linear(name, "bias", mine)

# ---- norms ---------------------------------------------------------------------------------------

EPS, N = 0.05, 8


def root(x):
    return 1 / np.sqrt(mean(x * x) + EPS)


def right_root_of(x, eps=0.0, outside=0.0, n=N):
    return 1 / (np.sqrt((x * x).sum(-1, keepdims=True) / n + eps) + outside)


def bracket(g, h, **_):
    return g - h * mean(g * h)


def gradient_of(d, x, w, centre, root=root, weigh=lambda d, w: d * w, inside=bracket, **others):
    """That of x, step by step; LayerNorm centres x and subtracts mean(g)."""
    c = x - mean(x) if centre else x
    r = root(c)
    g, h = weigh(d, w), c * r
    found = inside(g=g, h=h, x=x, r=r, d=d, w=w)
    average = others.get("average", lambda g, d: mean(g))
    found = found - average(g, d) if centre else found
    return others.get("end", lambda found, g, h, r: r * found)(found, g, h, r)


X_WRONG = {
    "no_eps": {"root": lambda x: right_root_of(x)},
    "eps_outside_root": {"root": lambda x: right_root_of(x, outside=EPS)},
    "n_minus_one": {"root": lambda x: right_root_of(x, eps=EPS, n=N - 1)},
    "offset_missing": {"weigh": lambda d, w: d * w - d},
    "offset_added": {"weigh": lambda d, w: d * w + d},
    "mean_over_rows": {"inside": lambda g, h, **_: g - h * (g * h).mean((0, 1))},
    "mean_over_first_axis": {"inside": lambda g, h, **_: g - h * (g * h).mean(0)},
    "mean_over_positions": {"inside": lambda g, h, **_: g - h * (g * h).mean(1, keepdims=True)},
    "mean_over_all": {"inside": lambda g, h, **_: g - h * (g * h).mean()},
    "weight_missing_in_mean": {"inside": lambda g, h, d, **_: g - h * mean(d * h)},
    "h_missing_in_mean": {"inside": lambda g, h, **_: g - h * mean(g)},
    "share_doubled": {"inside": lambda g, h, **_: g - 2 * h * mean(g * h)},
    "first_term_missing": {"inside": lambda g, h, **_: -h * mean(g * h)},
    "second_term_added": {"inside": lambda g, h, **_: g + h * mean(g * h)},
    "weight_twice": {"inside": lambda g, h, w, **_: g - w * h * mean(g * h)},
    "weight_pulled_out": {"inside": lambda h, d, w, **_: w * (d - h * mean(d * h))},
    "r_twice": {"inside": lambda g, h, r, **_: g - r * h * mean(g * h)},
    "h_missing": {"inside": lambda g, h, **_: g - mean(g * h)},
    "divided_by_r": {"end": lambda found, g, h, r: found / r},
}
LAYER_X_WRONG = {
    "x_for_h_in_mean": {"inside": lambda g, h, x, **_: g - h * mean(g * x)},
    "r_on_first_term": {"end": lambda found, g, h, r: r * g - h * mean(g * h)},
    "mean_of_dy": {"average": lambda g, d: mean(d)},
    "sum_of_g": {"average": lambda g, d: g.sum(-1, keepdims=True)},
    "mean_over_rows_of_g": {"average": lambda g, d: g.mean((0, 1))},
}
WEIGHT_WRONG = {
    "h_missing_in_weight": lambda d, x, h, w: d.sum((0, 1)),
    "x_for_h_in_weight": lambda d, x, h, w: np.einsum("btn,btn->n", d, x),
    "weight_not_summed": lambda d, x, h, w: d * h,
    "weight_sum_of_one_axis": lambda d, x, h, w: (d * h).sum(0),
    "weight_sum_over_positions": lambda d, x, h, w: np.einsum("btn,btn->bn", d, h),
    "weight_of_last_sequence": lambda d, x, h, w: np.einsum("tn,tn->n", d[-1], h[-1]),
    "weight_of_first_sequence": lambda d, x, h, w: np.einsum("tn,tn->n", d[0], h[0]),
    "weight_of_last_row": lambda d, x, h, w: d[-1, -1] * h[-1, -1],
    "weight_averaged": lambda d, x, h, w: (d * h).mean((0, 1)),
    "weight_largest": lambda d, x, h, w: rows(d * h).max(0),
    "weight_zero": lambda d, x, h, w: np.zeros_like(w),
}
BIAS_WRONG = {
    "bias_sum_of_one_axis": lambda d: d.sum(0),
    "bias_sum_over_positions": lambda d: np.einsum("btn->bn", d),
    "bias_averaged": lambda d: d.mean((0, 1)),
    "bias_largest": lambda d: rows(d).max(0),
    "bias_not_summed": lambda d: d,
}
for norm, op, centre, own in (
    ("rms_norm", sf.backward.rms_norm, False, {}),
    ("layer_norm", sf.backward.layer_norm, True, LAYER_X_WRONG),
):
    shapes = [(2, 7, N), (2, 7, N), (N,), (N,)][: 3 + centre]
    for name, steps in (X_WRONG | own).items():

        def of_x(d, x, w, *_, centre=centre, steps=steps):
            return gradient_of(d, x, w, centre, **steps)

        wrong(f"{norm}_backward.{name}", op, "x", of_x, *shapes, eps=EPS)
    for name, form in WEIGHT_WRONG.items():

        def of_weight(d, x, w, *_, centre=centre, form=form):
            c = x - mean(x) if centre else x
            return form(d, x, c * root(c), w)

        wrong(f"{norm}_backward.{name}", op, "weight", of_weight, *shapes, eps=EPS)

    def lost(d, x, w, *_, centre=centre):
        return gradient_of(d, x, w, centre, inside=lambda g, h, **_: g - h * (g * h).mean(-1))

    squares = [(N, N), (N, N), (N,), (N,)][: 3 + centre]
    wrong(f"{norm}_backward.keepdims_lost", op, "x", lost, *squares, eps=EPS)
for name, form in BIAS_WRONG.items():
    wrong(
        f"layer_norm_backward.{name}",
        sf.backward.layer_norm,
        "bias",
        lambda d, x, w, b, form=form: form(d),
        *shapes,
        eps=EPS,
    )


# ---- SwiGLU --------------------------------------------------------------------------------------

for which, forms in {
    "gate": {
        "slope_missing": lambda d, g, u: d * u,
        "forward": lambda d, g, u: d * u * silu(g),
        "of_sigmoid": lambda d, g, u: d * u * sigmoid(g) * sigmoid(-g),
        "second_term_only": lambda d, g, u: d * u * g * sigmoid(g) * sigmoid(-g),
        "gate_missing": lambda d, g, u: d * u * sigmoid(g) * (2 - sigmoid(g)),
        "of_output": lambda d, g, u: d * u * slope_of_silu(silu(g)),
        "output_for_input": lambda d, g, u: d * u * sigmoid(g) * (1 + silu(g) * sigmoid(-g)),
    },
    "up": {
        "up_activated": lambda d, g, u: d * silu(u),
        "slope_for_silu": lambda d, g, u: d * slope_of_silu(g),
    },
}.items():
    for name, mine in forms.items():
        wrong(f"swiglu_backward.{name}", sf.backward.swiglu, which, mine, *[(4, 9)] * 3)


def gated(name, function):
    """The gradients of another product, by torch."""

    @example(f"swiglu_backward.{name}")
    def _(rng):
        d, g, u = (normal(rng, 4, 11, scale=scale) for scale in (1, 2, 1))
        leaves = [torch.tensor(x, requires_grad=True) for x in (g, u)]
        function(*leaves).backward(torch.tensor(d))
        return tuple(x.grad for x in leaves), sf.backward.swiglu, (d, g, u), {}


for name, function in FUNCTIONS.items():
    if name != "silu":
        gated(f"{name}_instead", lambda g, u, function=function: function(g) * u)
gated("activated_product", lambda g, u: F.silu(g * u))
gated("added", lambda g, u: F.silu(g) + u)

# ---- another function in place of the one that is meant ------------------------------------------


def another_norm(name, op, of_x, *shapes):
    wrong(name, op, "x", of_x, (3, 5, N), (3, 5, N), (N,), *shapes, eps=EPS)


def by_torch(norm):
    def of_x(d, x, w, *_):
        leaf = torch.tensor(x, requires_grad=True)
        norm(leaf, torch.tensor(w)).backward(torch.tensor(d))
        return leaf.grad

    return of_x


another_norm(
    "rms_norm_backward.layer_norm_instead",
    sf.backward.rms_norm,
    by_torch(lambda x, w: F.layer_norm(x, (N,), w, eps=EPS)),
)
another_norm(
    "layer_norm_backward.residual_added",
    sf.backward.layer_norm,
    by_torch(lambda x, w: x + F.layer_norm(x, (N,), w, eps=EPS)),
    (N,),
)
