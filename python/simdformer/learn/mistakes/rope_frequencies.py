"""The frequencies of RoPE in steps, and what goes wrong in them.

The meaning is that of `reference.rope_frequencies`. Frequencies are computed in float64 whatever
the arithmetic of the run is: they are a table, made once.
"""

import math

import numpy as np

from simdformer import functional
from simdformer.learn.catalogue import Change, Mistakes, instead, then
from simdformer.learn.program import Program, State
from simdformer.reference import (
    RopeFrequencies,
    linear_scaling,
    llama3_scaling,
    yarn_scaling,
)

ROPE, SCALING = "02 §5", "03 §12"
LAYOUT, CACHE = "03 §10", "03 exercise 3"

rope_frequencies = Program(
    "rope_frequencies",
    of=functional.rope_frequencies,
    axes=("pair",),
    tables={"exponents", "inv_freq", "out"},
)


@rope_frequencies.step
def exponent(s: State) -> None:
    s.exponents = np.arange(0, s.head_dim, 2, dtype=np.float64) / s.head_dim


@rope_frequencies.step
def power(s: State) -> None:
    s.inv_freq = s.theta**-s.exponents


@rope_frequencies.step
def scale(s: State) -> None:
    scaling = dict(s.scaling or {})
    s.attention_factor = 1.0
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        found = s.run(rope_scaling, inv_freq=s.inv_freq, theta=s.theta, scaling=scaling)
        s.inv_freq, s.attention_factor = found.scaled, found.attention_factor


@rope_frequencies.step
def result(s: State) -> None:
    s.out = RopeFrequencies(s.inv_freq, s.attention_factor)


rope_scaling = Program("rope_scaling", tables={"scaled"})
CONTEXT, TURN = "original_max_position_embeddings", 2 * math.pi
RULES = {"linear": linear_scaling, "llama3": llama3_scaling, "yarn": yarn_scaling}


@rope_scaling.step
def apply(s: State) -> None:
    s.factor = s.scaling.get("factor", 1.0)
    s.rule = RULES[s.scaling.get("rope_type", s.scaling.get("type"))]
    s.scaled, s.attention_factor = s.rule(s.inv_freq, s.theta, s.scaling)


# ---- mistakes: the exponents ---------------------------------------------------------------------

Mistakes("rope_frequencies.exponent", see=ROPE, fix="Write np.arange(0, D, 2) / D.")(
    """
    exponent_i_over_d: the exponents are i/D instead of 2i/D
        np.arange(D // 2) / D counts 0, 1, 2 ... where the formula has 0, 2, 4 ...: the slow half of
        the frequencies is missing.
    exponent_4i_over_d: the exponents are 4i/D instead of 2i/D
        The 2 of the formula is counted twice: 2 * np.arange(0, D, 2) / D, or the even numbers
        divided by D/2.
        > Write np.arange(0, D, 2) / D: its elements are 2i/D already.
    exponent_from_one (rare): the exponents begin with 2/D instead of 0
        The paper counts i from 1 and writes 2(i-1)/D; here i counts from 0.
        > Write np.arange(0, D, 2) / D, so that the first frequency is 1.
    exponent_not_divided: the exponents are not divided by D
        theta ** -2i falls to nothing at once, so only the first pair is turned.
        > Divide by the number of elements that are turned: np.arange(0, D, 2) / D.
    exponent_linspace (rare): the last exponent is 1: the frequencies go all the way down to 1/theta
        np.linspace(0, 1, D // 2) includes its end; the formula stops one step before it.
    """,
    exponent_i_over_d=instead(exponents=lambda s: np.arange(s.head_dim // 2) / s.head_dim),
    exponent_4i_over_d=instead(exponents=lambda s: 2 * np.arange(0, s.head_dim, 2) / s.head_dim),
    exponent_from_one=instead(exponents=lambda s: np.arange(2, s.head_dim + 2, 2) / s.head_dim),
    exponent_not_divided=instead(exponents=lambda s: np.arange(0, s.head_dim, 2, dtype=np.float64)),
    exponent_linspace=instead(exponents=lambda s: np.linspace(0, 1, s.head_dim // 2)),
)

in_power = Mistakes("rope_frequencies.power", see=ROPE)


in_power(
    """
    power_not_inverted: the frequencies are not inverted: theta ** (2i/D) without the minus
        These are the wavelengths (over 2 pi) instead of the frequencies: the later a pair, the
        faster it turns instead of slower.
        > Write 1 / theta ** (2i/D), or theta ** (-2i/D).
    power_without_log_theta (rare): theta has no effect: the frequencies are exp(-2i/D)
        theta ** y is exp(y * log(theta)); the logarithm of theta is missing.
        > Write np.exp(-np.log(theta) * 2i/D), or simply theta ** (-2i/D).
    power_reversed (rare): the frequencies are in reverse order
        The first pair should turn fastest, by 1 radian a position, and the last one slowest.
        > Leave the frequencies in the order of the exponents 0, 2/D, 4/D ...
    """,
    power_not_inverted=instead(inv_freq=lambda s: s.theta**s.exponents),
    power_without_log_theta=instead(inv_freq=lambda s: np.exp(-s.exponents)),
    power_reversed=instead(inv_freq=lambda s: (s.theta**-s.exponents)[::-1]),
)

USUAL = (10_000, 500_000, 1_000_000)
# Of Llama 2, CodeLlama, Llama 3, Qwen 2 and 3, and others.
THETAS = (10_000, 100_000, 150_000, 500_000, 1_000_000, 5_000_000, 10_000_000)


def with_theta(theta: float) -> Change:
    return instead(inv_freq=lambda s: theta**-s.exponents)


for theta in THETAS:
    in_power.add(
        f"theta_{theta}",
        with_theta(float(theta)),
        f"theta is {theta:,} instead of the one that is asked for",
        "Each family of models has its own theta (Llama 2: 10,000, Llama 3: 500,000, Qwen 3 "
        "and MiniMind: 1,000,000), and a default or a constant is easily left in the code.",
        "Hand over the theta that the checkpoint's config gives as rope_theta.",
        rare=theta not in USUAL,
    )

# ---- mistakes: the scaling for long contexts -----------------------------------------------------

Mistakes(
    "rope_scaling.apply",
    see=SCALING,
    fix="Mix them: kept * f + (1 - kept) * f / factor, where kept runs from 0 to 1 between the "
    "bounds.",
)(
    """
    ignored: rope_scaling is ignored: these are the plain frequencies
        The config of the checkpoint carries a rule for long contexts which is not applied.
        > Apply the rule that `scaling` names to the frequencies after theta ** (-2i/D).
    multiplied: the frequencies are scaled the wrong way: multiplied instead of divided
        A longer context needs slower turns; the factor stretches wavelengths, so it divides
        frequencies.
        > Divide the frequencies (or the positions) by the factor.
    linear: every frequency is divided by the factor
        That is linear scaling; llama3 and yarn leave the fast pairs as they are, divide the slow
        ones and fade between them.
        > Follow the rule that `scaling` names in rope_type.
    fast_and_slow_confused: fast and slow are confused: the fast frequencies are divided
        A comparison is the wrong way round, or high and low (beta_fast and beta_slow) are swapped,
        or wavelengths are taken for frequencies.
        > Keep the pairs that turn many times within the original context; divide the frequency of
          those that turn less than once.
    without_fade: the fade is missing: frequencies between fast and slow are kept
        The frequencies between the two bounds are neither fast nor slow and need a mixture.
    without_fade_divided: the fade is missing: frequencies between fast and slow are divided
        as above
    without_two_pi: 2 pi is forgotten in the wavelengths
        A pair turns once in 2 pi / frequency positions; without the 2 pi it seems to turn more
        often than it does, and too few frequencies are divided.
        > Compare with the bounds: context * frequency / (2 pi), the number of turns.
    attention_factor_forgotten: the attention factor of yarn is forgotten
        Besides changing the frequencies, yarn multiplies cos and sin by 0.1 ln(factor) + 1.
        > Return that factor too, and multiply cos and sin by it.
    yarn_not_truncated: the bounds of yarn's fade are not rounded to whole indices
        The formula gives a fraction of an index; unless the config says truncate: false, the lower
        bound is rounded down and the upper one up.
        > Take math.floor of the lower bound and math.ceil of the upper one.
    """,
    ignored=instead(scaled=lambda s: s.inv_freq, attention_factor=lambda s: 1.0),
    multiplied=then(scaled=lambda s: s.inv_freq**2 / s.scaled),
    linear=then(scaled=lambda s: s.inv_freq / s.factor),
    fast_and_slow_confused=then(scaled=lambda s: s.inv_freq + s.inv_freq / s.factor - s.scaled),
    without_fade=then(
        scaled=lambda s: np.where(
            np.isclose(s.scaled, s.inv_freq / s.factor, rtol=1e-12), s.scaled, s.inv_freq
        )
    ),
    without_fade_divided=then(
        scaled=lambda s: np.where(
            np.isclose(s.scaled, s.inv_freq, rtol=1e-12), s.inv_freq, s.inv_freq / s.factor
        )
    ),
    without_two_pi=then(
        scaled=lambda s: s.rule(
            s.inv_freq, s.theta, s.scaling | {CONTEXT: s.scaling[CONTEXT] * TURN}
        )[0]
    ),
    attention_factor_forgotten=then(attention_factor=lambda s: 1.0),
    yarn_not_truncated=then(
        scaled=lambda s: s.rule(s.inv_freq, s.theta, s.scaling | {"truncate": False})[0]
    ),
)
