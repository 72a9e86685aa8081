"""What goes wrong inside of silu, gelu and SwiGLU."""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.activations import sigmoid, silu

ROOT = "math.sqrt(2 / math.pi)"

mistakes(
    f"""
    silu.sigmoid (02 §7) > Write x / (1 + np.exp(-x)).

    sigmoid_of_minus_x: the sigmoid has the wrong sign: x / (1 + exp(x))
        sigmoid(x) is 1 / (1 + exp(-x)); without the minus large x are pushed to 0.
        | share = 1 / (1 + np.exp(h))
    sigmoid_overflows: exp overflows: NaN where x is large
        exp(x) / (1 + exp(x)) is infinity over infinity from x = 89 on in float32.
        > Write 1 / (1 + np.exp(-x)): there infinity gives 0, as it should.
        | share = np.exp(h) / (1 + np.exp(h))
    softmax_for_sigmoid (rare): softmax is used instead of the sigmoid
        The sigmoid looks at one number; softmax makes all of a row share.
        | e = np.exp(h - np.max(h, axis=-1, keepdims=True, initial=-np.inf))
        | share = e / np.sum(e, axis=-1, keepdims=True)

    silu.product (02 §7)

    silu_twice (rare): silu is applied twice
        The layer applies it, and so does the function that the layer calls.
        > Apply it once.
        | ...; out = out * sigmoid(out)

    gelu.inputs (04 §8)

    other_form: the other form of gelu: exact and tanh are swapped
        gelu has an exact form with erf and an older approximation with tanh ("gelu_new",
        "gelu_pytorch_tanh"); they differ in the fourth digit.
        > Use the form that the model was trained with: approximate is "none" or "tanh".
        | ...; approximate = "none" if approximate == "tanh" else "tanh"

    gelu.product (04 §8)

    phi_alone: the x in front is missing: this is Phi(x)
        gelu(x) is x * Phi(x).
        > Multiply by x.
        | out = share
    half_missing: twice as large: the factor 0.5 is missing
        Phi(x) is (1 + erf(x / sqrt(2))) / 2.
        > Write 0.5 * x * (1 + erf(x / sqrt(2))), or with tanh in place of erf in the other form.
        | out = 2 * h * share

    gelu.normal (04 §8) > Write 0.5 x (1 + erf(x / sqrt(2))).

    sqrt2_missing: erf(x) instead of erf(x / sqrt(2))
        The formula has several constants, and a small slip in one of them hardly shows.
        | share = array(erfc(-h)) / 2
    divided_by_two: erf(x / 2) instead of erf(x / sqrt(2))
        as above
        | share = array(erfc(-h / 2)) / 2
    times_sqrt2: erf(x * sqrt(2)) instead of erf(x / sqrt(2))
        as above
        | share = array(erfc(-h * math.sqrt(2))) / 2

    gelu.bend (04 §8) > Write 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))).

    cube_missing: the term 0.044715 x³ is missing
        The formula has several constants, and a small slip in one of them hardly shows.
        | bent = {ROOT} * h
    square_for_cube: 0.044715 x² instead of 0.044715 x³
        as above
        | bent = {ROOT} * (h + 0.044715 * h**2)
    digit_lost: 0.44715 instead of 0.044715: a zero is lost
        as above
        | bent = {ROOT} * (h + 0.44715 * h**3)
    root_missing: the factor sqrt(2 / pi) is missing
        as above
        | bent = h + 0.044715 * h**3
    two_over_pi: 2 / pi without the square root
        as above
        | bent = 2 / math.pi * (h + 0.044715 * h**3)
    pi_over_two: sqrt(pi / 2) instead of sqrt(2 / pi)
        as above
        | bent = (h + 0.044715 * h**3) / {ROOT}
    root_on_x_only: sqrt(2 / pi) multiplies x only, not the cube
        as above
        | bent = {ROOT} * h + 0.044715 * h**3

    swiglu.gated (02 §7) > Write silu(gate) * up: silu(x @ w1.T) * (x @ w3.T).

    gate_and_up_swapped: silu is on the wrong side: gate * silu(up)
        gate and up have the same shape and are easily swapped: w1 is the gate, w3 is up.
        | out = g * run(silu, x=u).out
    silu_after_product: silu comes after the product: silu(gate * up)
        silu belongs to the gate alone.
        | out = run(silu, x=g * u).out
    silu_on_both: silu is on both sides: silu(gate) * silu(up)
        Only the gate goes through silu; up stays linear.
        | out = act * run(silu, x=u).out
    up_left_out: up is left out: silu(gate) alone
        An MLP without a gate has two matrices; that of Llama has three.
        | out = act
    gate_left_out: gate is left out: silu(up) alone
        The same matrix is used for both sides, or one of the two is not used.
        | out = run(silu, x=u).out
    gate_on_both: gate is used for up as well: silu(gate) * gate
        The same matrix (w1) is used on both sides.
        | out = act * g
    up_on_both: up is used for the gate as well: silu(up) * up
        The same matrix (w3) is used on both sides.
        | out = run(silu, x=u).out * u
    added: added instead of multiplied: silu(gate) + up
        The gate decides how much of up gets through: it is a factor.
        | out = act + u
    """,
    calls=(sigmoid, silu),
)
