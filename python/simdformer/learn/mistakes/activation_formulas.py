"""What goes wrong inside of silu, gelu and SwiGLU."""

import math

import numpy as np

from simdformer.learn.catalogue import Mistakes, instead, then
from simdformer.learn.mistakes.activations import GELU, MLP, sigmoid_of, silu
from simdformer.learn.program import State
from simdformer.reference import erfc

ROOT = math.sqrt(2 / math.pi)

# ---- silu ----------------------------------------------------------------------------------------


def softmax_for_sigmoid(s: State) -> None:
    e = np.exp(s.h - np.max(s.h, axis=-1, keepdims=True, initial=-np.inf))
    s.share = e / np.sum(e, axis=-1, keepdims=True)


Mistakes("silu.sigmoid", see=MLP, fix="Write x / (1 + np.exp(-x)).")(
    """
    sigmoid_of_minus_x: the sigmoid has the wrong sign: x / (1 + exp(x))
        sigmoid(x) is 1 / (1 + exp(-x)); without the minus large x are pushed to 0.
    sigmoid_overflows: exp overflows: NaN where x is large
        exp(x) / (1 + exp(x)) is infinity over infinity from x = 89 on in float32.
        > Write 1 / (1 + np.exp(-x)): there infinity gives 0, as it should.
    softmax_for_sigmoid (rare): softmax is used instead of the sigmoid
        The sigmoid looks at one number; softmax makes all of a row share.
    """,
    sigmoid_of_minus_x=instead(share=lambda s: 1 / (1 + np.exp(s.h))),
    sigmoid_overflows=instead(share=lambda s: np.exp(s.h) / (1 + np.exp(s.h))),
    softmax_for_sigmoid=softmax_for_sigmoid,
)

Mistakes("silu.product", see=MLP)(
    """
    silu_twice (rare): silu is applied twice
        The layer applies it, and so does the function that the layer calls.
        > Apply it once.
    """,
    silu_twice=then(out=lambda s: s.out * sigmoid_of(s.out)),
)

# ---- gelu ----------------------------------------------------------------------------------------

Mistakes("gelu.inputs", see=GELU)(
    """
    other_form: the other form of gelu: exact and tanh are swapped
        gelu has an exact form with erf and an older approximation with tanh ("gelu_new",
        "gelu_pytorch_tanh"); they differ in the fourth digit.
        > Use the form that the model was trained with: approximate is "none" or "tanh".
    """,
    other_form=then(approximate=lambda s: "none" if s.approximate == "tanh" else "tanh"),
)

Mistakes("gelu.product", see=GELU)(
    """
    phi_alone: the x in front is missing: this is Phi(x)
        gelu(x) is x * Phi(x).
        > Multiply by x.
    half_missing: twice as large: the factor 0.5 is missing
        Phi(x) is (1 + erf(x / sqrt(2))) / 2.
        > Write 0.5 * x * (1 + erf(x / sqrt(2))), or with tanh in place of erf in the other form.
    """,
    phi_alone=instead(out=lambda s: s.share),
    half_missing=instead(out=lambda s: 2 * s.h * s.share),
)

Mistakes("gelu.normal", see=GELU, fix="Write 0.5 x (1 + erf(x / sqrt(2))).")(
    """
    sqrt2_missing: erf(x) instead of erf(x / sqrt(2))
        The formula has several constants, and a small slip in one of them hardly shows.
    divided_by_two: erf(x / 2) instead of erf(x / sqrt(2))
        as above
    times_sqrt2: erf(x * sqrt(2)) instead of erf(x / sqrt(2))
        as above
    """,
    sqrt2_missing=instead(share=lambda s: s.run.array(erfc(-s.h)) / 2),
    divided_by_two=instead(share=lambda s: s.run.array(erfc(-s.h / 2)) / 2),
    times_sqrt2=instead(share=lambda s: s.run.array(erfc(-s.h * math.sqrt(2))) / 2),
)

Mistakes("gelu.bend", see=GELU, fix="Write 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))).")(
    """
    cube_missing: the term 0.044715 x³ is missing
        The formula has several constants, and a small slip in one of them hardly shows.
    square_for_cube: 0.044715 x² instead of 0.044715 x³
        as above
    digit_lost: 0.44715 instead of 0.044715: a zero is lost
        as above
    root_missing: the factor sqrt(2 / pi) is missing
        as above
    two_over_pi: 2 / pi without the square root
        as above
    pi_over_two: sqrt(pi / 2) instead of sqrt(2 / pi)
        as above
    root_on_x_only: sqrt(2 / pi) multiplies x only, not the cube
        as above
    """,
    cube_missing=instead(bent=lambda s: ROOT * s.h),
    square_for_cube=instead(bent=lambda s: ROOT * (s.h + 0.044715 * s.h**2)),
    digit_lost=instead(bent=lambda s: ROOT * (s.h + 0.44715 * s.h**3)),
    root_missing=instead(bent=lambda s: s.h + 0.044715 * s.h**3),
    two_over_pi=instead(bent=lambda s: 2 / math.pi * (s.h + 0.044715 * s.h**3)),
    pi_over_two=instead(bent=lambda s: (s.h + 0.044715 * s.h**3) / ROOT),
    root_on_x_only=instead(bent=lambda s: ROOT * s.h + 0.044715 * s.h**3),
)

# ---- swiglu --------------------------------------------------------------------------------------

Mistakes("swiglu.gated", see=MLP, fix="Write silu(gate) * up: silu(x @ w1.T) * (x @ w3.T).")(
    """
    gate_and_up_swapped: silu is on the wrong side: gate * silu(up)
        gate and up have the same shape and are easily swapped: w1 is the gate, w3 is up.
    silu_after_product: silu comes after the product: silu(gate * up)
        silu belongs to the gate alone.
    silu_on_both: silu is on both sides: silu(gate) * silu(up)
        Only the gate goes through silu; up stays linear.
    up_left_out: up is left out: silu(gate) alone
        An MLP without a gate has two matrices; that of Llama has three.
    gate_left_out: gate is left out: silu(up) alone
        The same matrix is used for both sides, or one of the two is not used.
    gate_on_both: gate is used for up as well: silu(gate) * gate
        The same matrix (w1) is used on both sides.
    up_on_both: up is used for the gate as well: silu(up) * up
        The same matrix (w3) is used on both sides.
    added: added instead of multiplied: silu(gate) + up
        The gate decides how much of up gets through: it is a factor.
    """,
    gate_and_up_swapped=instead(out=lambda s: s.g * s.run(silu, x=s.u).out),
    silu_after_product=instead(out=lambda s: s.run(silu, x=s.g * s.u).out),
    silu_on_both=instead(out=lambda s: s.act * s.run(silu, x=s.u).out),
    up_left_out=instead(out=lambda s: s.act),
    gate_left_out=instead(out=lambda s: s.run(silu, x=s.u).out),
    gate_on_both=instead(out=lambda s: s.act * s.g),
    up_on_both=instead(out=lambda s: s.run(silu, x=s.u).out * s.u),
    added=instead(out=lambda s: s.act + s.u),
)
