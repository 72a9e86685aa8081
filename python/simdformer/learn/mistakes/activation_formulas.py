"""What goes wrong inside of gelu and SwiGLU."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer.learn.mistakes.activations import GELU, MLP, normal, silu
from simdformer.learn.program import State, mistake
from simdformer.reference import erfc

# ---- mistakes: gelu ------------------------------------------------------------------------------


@mistake(
    "gelu.normal",
    title="the other form of gelu: exact and tanh are swapped",
    cause='gelu has an exact form with erf and an older approximation with tanh ("gelu_new", '
    '"gelu_pytorch_tanh"); they differ in the fourth digit.',
    fix='Use the form that the model was trained with: approximate is "none" or "tanh".',
    step=GELU,
)
def other_form(s: State) -> None:
    s.approximate = "none" if s.approximate == "tanh" else "tanh"
    normal(s)


@mistake(
    "gelu.product",
    title="the x in front is missing: this is Phi(x)",
    cause="gelu(x) is x * Phi(x).",
    fix="Multiply by x.",
    step=GELU,
)
def phi_alone(s: State) -> None:
    s.out = s.share


@mistake(
    "gelu.product",
    title="twice as large: the factor 0.5 is missing",
    cause="Phi(x) is (1 + erf(x / sqrt(2))) / 2.",
    fix="Write 0.5 * x * (1 + erf(x / sqrt(2))), or with tanh in place of erf in the other form.",
    step=GELU,
)
def half_missing(s: State) -> None:
    s.out = 2 * s.h * s.share


def tanh_form(bend: Callable[[Any], Any]) -> Callable[[State], None]:
    def other(s: State) -> None:
        if s.approximate == "tanh":
            s.share = s.run.array((1 + np.tanh(bend(s.h))) / 2)
        else:
            normal(s)

    return other


def exact_form(stretch: float) -> Callable[[State], None]:
    def other(s: State) -> None:
        if s.approximate == "tanh":
            normal(s)
        else:
            s.share = s.run.array(erfc(-s.h * stretch)) / 2

    return other


ROOT = math.sqrt(2 / math.pi)
for name, title, wrong in (
    ("sqrt2_missing", "erf(x) instead of erf(x / sqrt(2))", exact_form(1.0)),
    ("divided_by_two", "erf(x / 2) instead of erf(x / sqrt(2))", exact_form(0.5)),
    ("times_sqrt2", "erf(x * sqrt(2)) instead of erf(x / sqrt(2))", exact_form(math.sqrt(2))),
    ("cube_missing", "the term 0.044715 x³ is missing", tanh_form(lambda x: ROOT * x)),
    (
        "square_for_cube",
        "0.044715 x² instead of 0.044715 x³",
        tanh_form(lambda x: ROOT * (x + 0.044715 * x**2)),
    ),
    (
        "digit_lost",
        "0.44715 instead of 0.044715: a zero is lost",
        tanh_form(lambda x: ROOT * (x + 0.44715 * x**3)),
    ),
    (
        "root_missing",
        "the factor sqrt(2 / pi) is missing",
        tanh_form(lambda x: x + 0.044715 * x**3),
    ),
    (
        "two_over_pi",
        "2 / pi without the square root",
        tanh_form(lambda x: 2 / math.pi * (x + 0.044715 * x**3)),
    ),
    (
        "pi_over_two",
        "sqrt(pi / 2) instead of sqrt(2 / pi)",
        tanh_form(lambda x: (x + 0.044715 * x**3) / ROOT),
    ),
    (
        "root_on_x_only",
        "sqrt(2 / pi) multiplies x only, not the cube",
        tanh_form(lambda x: ROOT * x + 0.044715 * x**3),
    ),
):
    mistake(
        "gelu.normal",
        name=name,
        title=title,
        cause="The formula has several constants, and a small slip in one of them hardly shows.",
        fix="Exact: 0.5 x (1 + erf(x / sqrt(2))). "
        "tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))).",
        step=GELU,
    )(wrong)


# ---- mistakes: swiglu ----------------------------------------------------------------------------


@mistake(
    "swiglu.gated",
    title="silu is on the wrong side: gate * silu(up)",
    cause="gate and up have the same shape and are easily swapped: w1 is the gate, w3 is up.",
    fix="Write silu(gate) * up: silu(x @ w1.T) * (x @ w3.T).",
    step=MLP,
)
def gate_and_up_swapped(s: State) -> None:
    s.out = s.g * s.run(silu, x=s.u).out


@mistake(
    "swiglu.gated",
    title="silu comes after the product: silu(gate * up)",
    cause="silu belongs to the gate alone.",
    fix="Write silu(gate) * up.",
    step=MLP,
)
def silu_after_product(s: State) -> None:
    s.out = s.run(silu, x=s.g * s.u).out


@mistake(
    "swiglu.gated",
    title="silu is on both sides: silu(gate) * silu(up)",
    cause="Only the gate goes through silu; up stays linear.",
    fix="Write silu(gate) * up.",
    step=MLP,
)
def silu_on_both(s: State) -> None:
    s.out = s.act * s.run(silu, x=s.u).out


@mistake(
    "swiglu.gated",
    title="up is left out: silu(gate) alone",
    cause="An MLP without a gate has two matrices; that of Llama has three.",
    fix="Multiply silu(gate) by up.",
    step=MLP,
)
def up_left_out(s: State) -> None:
    s.out = s.act


@mistake(
    "swiglu.gated",
    title="gate is left out: silu(up) alone",
    cause="The same matrix is used for both sides, or one of the two is not used.",
    fix="Multiply silu(gate) by up.",
    step=MLP,
)
def gate_left_out(s: State) -> None:
    s.out = s.run(silu, x=s.u).out


@mistake(
    "swiglu.gated",
    title="gate is used for up as well: silu(gate) * gate",
    cause="The same matrix (w1) is used on both sides.",
    fix="Write silu(x @ w1.T) * (x @ w3.T).",
    step=MLP,
)
def gate_on_both(s: State) -> None:
    s.out = s.act * s.g


@mistake(
    "swiglu.gated",
    title="up is used for the gate as well: silu(up) * up",
    cause="The same matrix (w3) is used on both sides.",
    fix="Write silu(x @ w1.T) * (x @ w3.T).",
    step=MLP,
)
def up_on_both(s: State) -> None:
    s.out = s.run(silu, x=s.u).out * s.u


@mistake(
    "swiglu.gated",
    title="added instead of multiplied: silu(gate) + up",
    cause="The gate decides how much of up gets through: it is a factor.",
    fix="Write silu(gate) * up.",
    step=MLP,
)
def added(s: State) -> None:
    s.out = s.act + s.u
