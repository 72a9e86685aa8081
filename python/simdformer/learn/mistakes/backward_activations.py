"""The gradients of the activations and of RoPE in steps, and what goes wrong in them."""

import math
from typing import Any

import numpy as np

from simdformer import backward
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.activations import FUNCTIONS
from simdformer.learn.mistakes.rope import rope, some_positions
from simdformer.learn.mistakes.sampling import some_rows
from simdformer.learn.program import Program
from simdformer.reference.forward import erfc


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def slope_of_silu(h: Any) -> Any:
    return sigmoid(h) * (1 + h * (1 - sigmoid(h)))


def slope_of_gelu(h: Any) -> Any:
    return erfc(-h / math.sqrt(2)) / 2 + h * np.exp(-h * h / 2) / math.sqrt(2 * math.pi)


def slope_of_gelu_tanh(h: Any) -> Any:
    c, k = math.sqrt(2 / math.pi), 0.044715
    t = np.tanh(c * (h + k * h**3))
    return (1 + t) / 2 + h / 2 * (1 - t * t) * c * (1 + 3 * k * h * h)


def slope_of_quick_gelu(h: Any) -> Any:
    return slope_of_silu(1.702 * h)


def slope_of_relu(h: Any) -> Any:
    return np.where(h > 0, 1, 0)


def slope_of_hardswish(h: Any) -> Any:
    return np.where(np.abs(h) < 3, (2 * h + 3) / 6, slope_of_relu(h))


def slope_of_tanh(h: Any) -> Any:
    return 1 - np.tanh(h) ** 2


def slope_of_sigmoid(h: Any) -> Any:
    return sigmoid(h) * (1 - sigmoid(h))


SLOPES = {
    function.__name__.removeprefix("slope_of_"): function
    for function in (
        slope_of_silu,
        slope_of_gelu,
        slope_of_gelu_tanh,
        slope_of_quick_gelu,
        slope_of_relu,
        slope_of_hardswish,
        slope_of_sigmoid,
        slope_of_tanh,
    )
}

ROWS = ("position", "channel")
silu_backward = Program(
    "silu_backward",
    """
    inputs: dy, h = array(grad), array(x)
    sigmoid: share = sigmoid(h)
    slope: slope = share * (1 + h * (1 - share))
    chain: out = dy * slope
    """,
    calls=(sigmoid,),
    of=backward.silu,
    axes=ROWS,
    thin=some_rows,
)
gelu_backward = Program(
    "gelu_backward",
    """
    inputs: dy, h = array(grad), array(x)
    normal if approximate == "none":
        share = array(erfc(-h / real(math.sqrt(2)))) / 2
        density = np.exp(-h * h / 2) / real(math.sqrt(2 * math.pi))
        slope = share + h * density
    bend if approximate == "tanh":
        c, k = real(math.sqrt(2 / math.pi)), real(0.044715)
        t = np.tanh(c * (h + k * h**3))
    inner if approximate == "tanh": inner = c * (1 + 3 * k * h * h)
    slope if approximate == "tanh": slope = (1 + t) / 2 + h / 2 * (1 - t * t) * inner
    chain: out = dy * slope
    """,
    calls=(erfc, sigmoid),
    of=backward.gelu,
    axes=ROWS,
    thin=some_rows,
)
relu_backward = Program(
    "relu_backward",
    """
    inputs: dy, h = array(grad), array(x)
    slope: slope = (h > 0).astype(real)
    chain: out = dy * slope
    """,
    of=backward.relu,
    axes=ROWS,
    thin=some_rows,
)
swiglu_backward = Program(
    "swiglu_backward",
    """
    inputs: dy, g, u = array(grad), array(gate), array(up)
    activate:
        share = sigmoid(g)
        act = g * share
    slope: slope = share * (1 + g * (1 - share))
    of_gate: dgate = dy * u * slope
    of_up: dup = dy * act
    give: out = dgate, dup
    """,
    calls=(sigmoid,),
    of=backward.swiglu,
    axes=ROWS,
    thin=some_rows,
)
rope_backward = Program(
    "rope_backward",
    """
    inputs:
        # a sample has some of the positions only
        rows = vars(s).get("rows", slice(None))
        length = vars(s).get("length", np.shape(grad)[-2])
    place: places = np.asarray(offset + np.arange(length) if positions is None else positions)
    turn_back: places = -places
    turn:
        out = run(
            rope, x=grad, layout=layout, positions=places[..., rows], offset=0, theta=theta,
            inv_freq=inv_freq, attention_factor=attention_factor, rotary_dim=rotary_dim,
            is_placed=True,  # by the step above, which may go wrong
        ).out
    give: out = out
    """,
    calls=(rope,),
    of=backward.rope,
    axes=("head", "position", "channel"),
    thin=some_positions,
)

mistakes(
    """
    silu_backward.slope (08 §6) > The product rule: s * (1 + x * (1 - s)), s = sigmoid(x).

    of_sigmoid: the slope is the sigmoid's: s * (1 - s)
        SiLU is x times the sigmoid; the product rule has two terms.
        | slope = share * (1 - share)
    second_term_only: the slope is x * s * (1 - s): the first term is missing
        as above
        | slope = h * share * (1 - share)
    first_term_only: the slope is the sigmoid: the second term is missing
        as above
        | slope = share
    output_for_input: silu(x) stands for x in the slope
        The output was saved in place of the input.
        | slope = share * (1 + h * share * (1 - share))
    of_output: the slope is taken at silu(x) instead of x
        The output was saved in place of the input.
        | h = h * share; share = sigmoid(h); slope = share * (1 + h * (1 - share))
    x_missing: the slope is s + s * (1 - s): the factor x is missing in the second term
        The product rule: x times the sigmoid's derivative.
        | slope = share + share * (1 - share)
    second_term_subtracted (rare): the second term is subtracted: s - x * s * (1 - s)
        The sigmoid rises: its derivative s * (1 - s) has no minus.
        | slope = share - h * share * (1 - share)
    share_missing (rare): the slope is 1 + x * (1 - s): the factor s in front is missing
        The sigmoid multiplies both terms.
        | slope = 1 + h * (1 - share)
    plus_for_minus (rare): the slope is s * (1 + x * (1 + s)): a sign
        The sigmoid's derivative is s * (1 - s).
        | slope = share * (1 + h * (1 + share))
    one_missing (rare): the slope is s * (1 + x - s)
        A bracket slipped: x multiplies 1 - s.
        | slope = share * (1 + h - share)
    not_minus (rare): the slope is s * (1 + x * s)
        The sigmoid's derivative is s * (1 - s).
        | slope = share * (1 + h * share)
    forward: dy is multiplied by silu(x), not by its derivative
        The forward is used again.
        | slope = h * share

    silu_backward.chain (08 §6), gelu_backward.chain (08 §6), relu_backward.chain (08 §6) > Multiply
        dy by the slope.

    no_grad: dy is missing: this is the slope alone
        The chain rule multiplies by the gradient that comes in.
        | out = slope
    no_slope: the slope is missing: dy is passed through
        The activation has no backward, or it is not called.
        | out = dy

    gelu_backward.normal (08 §6) > The product rule: Φ(x) + x * φ(x).

    first_term_only: the slope is Φ(x): x * φ(x) is missing
        GELU is x times Φ(x); the product rule has two terms.
        | ...; slope = share
    x_missing: the slope is Φ(x) + φ(x): the factor x is missing
        as above
        | ...; slope = share + density
    density_unscaled: the density lacks 1 / sqrt(2π)
        φ(x) is exp(-x²/2) / sqrt(2π).
        | ...; slope = share + h * density * real(math.sqrt(2 * math.pi))
    of_tanh: this is the derivative of the tanh approximation
        The forward is the exact GELU, approximate="none".
        > Differentiate what the forward computes.
        | c, k = real(math.sqrt(2 / math.pi)), real(0.044715)
        | t = np.tanh(c * (h + k * h**3))
        | slope = (1 + t) / 2 + h / 2 * (1 - t * t) * c * (1 + 3 * k * h * h)

    gelu_backward.bend (08 §6) > u = sqrt(2 / π) * (x + 0.044715 * x³), in the backward as well.

    pi_over_two: sqrt(π / 2) instead of sqrt(2 / π)
        The formula has several constants, and a small slip in one of them hardly shows.
        | c, k = real(math.sqrt(math.pi / 2)), real(0.044715); t = np.tanh(c * (h + k * h**3))
    digit_lost: 0.44715 instead of 0.044715: a zero is lost
        as above
        | c, k = real(math.sqrt(2 / math.pi)), real(0.44715); t = np.tanh(c * (h + k * h**3))
    c_is_one (rare): sqrt(2 / π) is missing
        as above
        | c, k = real(1), real(0.044715); t = np.tanh(h + k * h**3)

    gelu_backward.inner (08 §6) > The inner derivative is c * (1 + 3 * 0.044715 * x²).

    inner_missing: the inner derivative is missing
        tanh(u(x)) needs u'(x) behind it.
        | inner = real(1)
    three_missing: the 3 of the inner derivative is missing
        The derivative of x³ is 3 x².
        | inner = c * (1 + k * h * h)
    x_for_square (rare): the inner derivative has x in place of x²
        The derivative of x³ is 3 x².
        | inner = c * (1 + 3 * k * h)
    cubic_missing: the inner derivative is c alone
        0.044715 * x³ has a derivative as well.
        | inner = c
    c_missing: the factor sqrt(2/π) is missing in the inner derivative
        u = c * (x + 0.044715 x³): c stays in front.
        | inner = 1 + 3 * k * h * h

    gelu_backward.slope (08 §6) > The product rule: (1 + t) / 2 + x / 2 * (1 - t²) * u'.

    tanh_first_term_only: the slope is (1 + t) / 2: the second term is missing
        GELU is x times (1 + t) / 2; the product rule has two terms.
        | slope = (1 + t) / 2
    tanh_x_missing (rare): the factor x is missing in the second term
        The product rule: x / 2 times tanh's derivative.
        | slope = (1 + t) / 2 + (1 - t * t) * inner / 2
    tanh_not_squared: 1 - t stands for 1 - t²
        tanh' is 1 - tanh².
        | slope = (1 + t) / 2 + h / 2 * (1 - t) * inner
    half_missing: the second term is not halved
        The ½ of the formula multiplies both terms.
        | slope = (1 + t) / 2 + h * (1 - t * t) * inner
    of_erf: this is the derivative of the exact GELU
        The forward is the tanh approximation: gelu_new, gelu_pytorch_tanh.
        > Differentiate what the forward computes.
        | slope = array(erfc(-h / real(math.sqrt(2)))) / 2 + h * np.exp(-h * h / 2) / real(
        |     math.sqrt(2 * math.pi))

    relu_backward.slope (08 §6) > The slope is 1 where x > 0 and 0 elsewhere.

    forward: dy is multiplied by relu(x), not by its derivative
        The forward is used again.
        | slope = np.maximum(h, 0)
    of_grad: the mask is taken from dy: dy > 0 instead of x > 0
        relu was applied to the gradient.
        | slope = (dy > 0).astype(real)
    inverted: the slope is 1 where x < 0
        The mask is inverted.
        | slope = (h < 0).astype(real)
    leaky (rare): the slope is 0.01 where x < 0: this is leaky_relu's
        relu passes nothing there.
        | slope = np.where(h > 0, real(1), real(0.01))
    one_at_zero: the slope at 0 is 1: x >= 0
        PyTorch and this package take 0 there.
        | slope = (h >= 0).astype(real)

    swiglu_backward.of_gate (08 §6) > dgate = dy * up * silu'(gate).

    up_missing: up is missing in the gate's gradient
        The product rule: the other factor stays.
        | dgate = dy * slope
    slope_missing: the slope of silu is missing in the gate's gradient
        The chain rule: silu lies between gate and product.
        | dgate = dy * u
    forward: silu(gate) stands for its slope in the gate's gradient
        The forward is used again.
        | dgate = dy * u * act

    swiglu_backward.slope (08 §6) > The product rule: s * (1 + gate * (1 - s)), s = sigmoid(gate).

    of_sigmoid: the slope is the sigmoid's: s * (1 - s)
        SiLU is x times the sigmoid; the product rule has two terms.
        | slope = share * (1 - share)
    second_term_only: the slope is gate * s * (1 - s): the first term is missing
        as above
        | slope = g * share * (1 - share)
    first_term_only: the slope is the sigmoid: the second term is missing
        as above
        | slope = share
    gate_missing: the slope is s + s * (1 - s): the factor gate is missing
        The product rule: gate times the sigmoid's derivative.
        | slope = share + share * (1 - share)
    output_for_input: silu(gate) stands for gate in the slope
        The output was saved in place of the input.
        | slope = share * (1 + act * (1 - share))
    of_output: the slope is taken at silu(gate) instead of gate
        silu was written over gate, or its output was saved in place of its input.
        | slope = slope_of_silu(act)

    of_up (rare): the slope is taken at up instead of gate
        silu belongs to gate, and so does its derivative.
        | slope = slope_of_silu(u)

    swiglu_backward.of_up (08 §6) > dup = dy * silu(gate).

    not_activated: up's gradient has gate instead of silu(gate)
        up was multiplied by the activated gate.
        | dup = dy * g
    sigmoid_only: up's gradient has sigmoid(gate) instead of silu(gate)
        SiLU is x times the sigmoid.
        | dup = dy * share
    up_activated: up's gradient has silu(up) instead of silu(gate)
        The wrong one of the two was saved, or the halves are swapped here only.
        | dup = dy * u * sigmoid(u)
    slope_for_silu: up's gradient has the slope of silu instead of silu(gate)
        The slope belongs to the gate's gradient alone.
        | dup = dy * slope
    up_itself: up's gradient is multiplied by up
        The product rule: the other factor stays, not the own one.
        | dup = dy * act * u
    gate_overwritten: up's gradient is made of dgate: gate was overwritten
        dgate was written into gate's memory before dup was computed.
        > Compute dup first, or keep gate.
        | dup = dy * dgate * sigmoid(dgate)

    swiglu_backward.activate (08 §6) > Differentiate silu(gate) * up.

    both_activated (rare): these are the gradients of silu(gate) * silu(up)
        Only the gate goes through SiLU; up stays linear.
        of_gate | dgate = dy * u * sigmoid(u) * slope
        of_up | dup = dy * act * slope_of_silu(u)
    activated_product (rare): these are the gradients of silu(gate * up)
        SiLU belongs to the gate alone.
        of_gate | dgate = dy * slope_of_silu(g * u) * u
        of_up | dup = dy * slope_of_silu(g * u) * g
    added (rare): these are the gradients of silu(gate) + up
        The gate decides how much of up gets through: it is a factor.
        of_gate | dgate = dy * slope
        of_up | dup = dy

    swiglu_backward.give (08 §6) > The gate's gradient comes first, then up's.

    swapped: the gradients of gate and up are swapped
        The halves of a fused matrix stand in another order, or the results do.
        | out = dup, dgate
    swapped_inputs: gate and up are swapped on the way in
        silu belongs to gate (w1, gate_proj), not to up (w3, up_proj).
        > Activate gate, not up.
        inputs | dy, u, g = array(grad), array(gate), array(up)
        | out = dup, dgate
    swapped_halves (unless up_activated):
        gate and up are swapped on the way in, and their gradients are not
        The halves of a fused matrix stand in another order; the results stand in that of the call.
        > Take gate (w1, gate_proj) and up (w3, up_proj) in the order of the weights.
        inputs | dy, u, g = array(grad), array(gate), array(up)

    rope_backward.turn_back (08 §7) > Turn by the opposite angle: rope(grad, positions=-positions).

    turned_forwards: the gradient is turned forwards, as x was
        The forward is used again; the transpose of a rotation turns back.
        | pass

    rope_backward.place (03 exercise 3) > Use the positions of the forward, offset included.

    positions_from_one: every position is one too high
        Positions count from 0; the forward of a new token stood at the number before it.
        | ...; places = places + 1
    positions_one_too_low: every position is one too low
        Positions count from 0, and each token has its own.
        | ...; places = places - 1
    positions_lost: the positions are counted from 0
        The offset, or the positions of the forward, were not handed on.
        | places = np.arange(length)

    rope_backward.turn (08 §7) > a * cos + b * sin and b * cos - a * sin.

    cos_and_sin_swapped (rare): cos and sin are swapped
        The result of the two in one line stands in another order.
        | ...
        rope.turn | turned_a = b * cos - a * sin; turned_b = -b * sin - a * cos

    rope_backward.turn (08 §7) > The transpose keeps the factor: multiply by it once more.

    factor_divided: it is divided by the attention factor
        The inverse is taken for the transpose.
        | attention_factor = 1 / attention_factor; ...
    factor_twice (rare): it is multiplied by the attention factor twice
        The factor is in cos and sin already.
        | attention_factor = attention_factor**2; ...

    rope_backward.give (08 §7) > Elements from rotary_dim on pass through unchanged.

    rest_zeroed: the elements after rotary_dim have no gradient
        A buffer of zeros in which only the turned part is filled.
        | unless(rotary_dim is None)
        | out = np.where(np.arange(out.shape[-1]) < rotary_dim, out, real(0))
    """,
    calls=(erfc, slope_of_silu),
)

# ---- another function is differentiated ----------------------------------------------------------

for op, step, own in (
    ("silu", "slope", ("silu", "sigmoid")),
    ("gelu", "chain", ("gelu", "gelu_tanh", "tanh")),
    ("relu", "slope", ("relu",)),
):
    for name, function in SLOPES.items():
        if name not in own:
            mistakes(
                f"""
                {op}_backward.{step} (08 §6) > Differentiate what the forward computes.

                of_{name} (rare): this is the derivative of {FUNCTIONS[name][0].rstrip(",")}
                    The forward is {op}.
                    | slope = array({function.__name__}(h)){"; ..." if step == "chain" else ""}
                """,
                calls=(function,),
            )
for name, function in SLOPES.items():
    if name != "silu":
        called, value = FUNCTIONS[name]
        mistakes(
            f"""
            swiglu_backward.activate (08 §6) > Differentiate silu(gate) * up.

            {name}_instead (rare): the gate goes through {called.rstrip(",")} instead of silu
                These are the right gradients of another gated activation.
                | ...; h = g; act = array({value})
                slope | slope = array({function.__name__}(g))
            """,
            calls=(erfc, function),
        )
