"""The frequencies of RoPE in steps, and what goes wrong in them.

The meaning is that of `reference.rope_frequencies`. Frequencies are computed in float64 whatever
the arithmetic of the run is: they are a table, made once.
"""

import math
from collections.abc import Callable

import numpy as np

from simdformer import functional
from simdformer.learn.program import Program, State, mistake
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
RULES = {"linear": linear_scaling, "llama3": llama3_scaling, "yarn": yarn_scaling}


@rope_scaling.step
def apply(s: State) -> None:
    s.factor = s.scaling.get("factor", 1.0)
    s.rule = RULES[s.scaling.get("rope_type", s.scaling.get("type"))]
    s.scaled, s.attention_factor = s.rule(s.inv_freq, s.theta, s.scaling)


# ---- mistakes: the exponents ---------------------------------------------------------------------


@mistake(
    "rope_frequencies.exponent",
    title="the exponents are i/D instead of 2i/D",
    cause="np.arange(D // 2) / D counts 0, 1, 2 ... where the formula has 0, 2, 4 ...: the slow "
    "half of the frequencies is missing.",
    fix="Write np.arange(0, D, 2) / D.",
    step=ROPE,
)
def exponent_i_over_d(s: State) -> None:
    s.exponents = np.arange(s.head_dim // 2) / s.head_dim


@mistake(
    "rope_frequencies.exponent",
    title="the exponents are 4i/D instead of 2i/D",
    cause="The 2 of the formula is counted twice: 2 * np.arange(0, D, 2) / D, or the even numbers "
    "divided by D/2.",
    fix="Write np.arange(0, D, 2) / D: its elements are 2i/D already.",
    step=ROPE,
)
def exponent_4i_over_d(s: State) -> None:
    s.exponents = 2 * np.arange(0, s.head_dim, 2) / s.head_dim


@mistake(
    "rope_frequencies.exponent",
    title="the exponents begin with 2/D instead of 0",
    cause="The paper counts i from 1 and writes 2(i-1)/D; here i counts from 0.",
    fix="Write np.arange(0, D, 2) / D, so that the first frequency is 1.",
    step=ROPE,
    rare=True,
)
def exponent_from_one(s: State) -> None:
    s.exponents = np.arange(2, s.head_dim + 2, 2) / s.head_dim


@mistake(
    "rope_frequencies.exponent",
    title="the exponents are not divided by D",
    cause="theta ** -2i falls to nothing at once, so only the first pair is turned.",
    fix="Divide by the number of elements that are turned: np.arange(0, D, 2) / D.",
    step=ROPE,
)
def exponent_not_divided(s: State) -> None:
    s.exponents = np.arange(0, s.head_dim, 2, dtype=np.float64)


@mistake(
    "rope_frequencies.exponent",
    title="the last exponent is 1: the frequencies go all the way down to 1/theta",
    cause="np.linspace(0, 1, D // 2) includes its end; the formula stops one step before it.",
    fix="Write np.arange(0, D, 2) / D.",
    step=ROPE,
    rare=True,
)
def exponent_linspace(s: State) -> None:
    s.exponents = np.linspace(0, 1, s.head_dim // 2)


@mistake(
    "rope_frequencies.power",
    title="the frequencies are not inverted: theta ** (2i/D) without the minus",
    cause="These are the wavelengths (over 2 pi) instead of the frequencies: the later a pair, the "
    "faster it turns instead of slower.",
    fix="Write 1 / theta ** (2i/D), or theta ** (-2i/D).",
    step=ROPE,
)
def power_not_inverted(s: State) -> None:
    s.inv_freq = s.theta**s.exponents


@mistake(
    "rope_frequencies.power",
    title="theta has no effect: the frequencies are exp(-2i/D)",
    cause="theta ** y is exp(y * log(theta)); the logarithm of theta is missing.",
    fix="Write np.exp(-np.log(theta) * 2i/D), or simply theta ** (-2i/D).",
    step=ROPE,
    rare=True,
)
def power_without_log_theta(s: State) -> None:
    s.inv_freq = np.exp(-s.exponents)


@mistake(
    "rope_frequencies.power",
    title="the frequencies are in reverse order",
    cause="The first pair should turn fastest, by 1 radian a position, and the last one slowest.",
    fix="Leave the frequencies in the order of the exponents 0, 2/D, 4/D ...",
    step=ROPE,
    rare=True,
)
def power_reversed(s: State) -> None:
    s.inv_freq = (s.theta**-s.exponents)[::-1]


USUAL = (10_000, 500_000, 1_000_000)
# Of Llama 2, CodeLlama, Llama 3, Qwen 2 and 3, and others.
THETAS = (10_000, 100_000, 150_000, 500_000, 1_000_000, 5_000_000, 10_000_000)


def with_theta(theta: float) -> Callable[[State], None]:
    def other(s: State) -> None:
        s.inv_freq = float(theta) ** -s.exponents

    return other


for theta in THETAS:
    mistake(
        "rope_frequencies.power",
        name=f"theta_{theta}",
        title=f"theta is {theta:,} instead of the one that is asked for",
        cause="Each family of models has its own theta (Llama 2: 10,000, Llama 3: 500,000, Qwen 3 "
        "and MiniMind: 1,000,000), and a default or a constant is easily left in the code.",
        fix="Hand over the theta that the checkpoint's config gives as rope_theta.",
        step=ROPE,
        rare=theta not in USUAL,
    )(with_theta(theta))


# ---- mistakes: the scaling for long contexts -----------------------------------------------------


@mistake(
    "rope_scaling.apply",
    title="rope_scaling is ignored: these are the plain frequencies",
    cause="The config of the checkpoint carries a rule for long contexts which is not applied.",
    fix="Apply the rule that `scaling` names to the frequencies after theta ** (-2i/D).",
    step=SCALING,
)
def ignored(s: State) -> None:
    s.scaled, s.attention_factor = s.inv_freq, 1.0


@mistake(
    "rope_scaling.apply",
    title="the frequencies are scaled the wrong way: multiplied instead of divided",
    cause="A longer context needs slower turns; the factor stretches wavelengths, so it divides "
    "frequencies.",
    fix="Divide the frequencies (or the positions) by the factor.",
    step=SCALING,
)
def multiplied(s: State) -> None:
    apply(s)
    s.scaled = s.inv_freq**2 / s.scaled


@mistake(
    "rope_scaling.apply",
    title="every frequency is divided by the factor",
    cause="That is linear scaling; llama3 and yarn leave the fast pairs as they are, divide the "
    "slow ones and fade between them.",
    fix="Follow the rule that `scaling` names in rope_type.",
    step=SCALING,
)
def linear(s: State) -> None:
    apply(s)
    s.scaled = s.inv_freq / s.factor


@mistake(
    "rope_scaling.apply",
    title="fast and slow are confused: the fast frequencies are divided, the slow ones kept",
    cause="A comparison is the wrong way round, or high and low (beta_fast and beta_slow) are "
    "swapped, or wavelengths are taken for frequencies.",
    fix="Keep the pairs that turn many times within the original context; divide the frequency of "
    "those that turn less than once.",
    step=SCALING,
)
def fast_and_slow_confused(s: State) -> None:
    apply(s)
    s.scaled = s.inv_freq + s.inv_freq / s.factor - s.scaled


@mistake(
    "rope_scaling.apply",
    title="the fade is missing: frequencies between fast and slow are kept as they are",
    cause="The frequencies between the two bounds are neither fast nor slow and need a mixture.",
    fix="Mix them: kept * f + (1 - kept) * f / factor, where kept runs from 0 to 1 between the "
    "bounds.",
    step=SCALING,
)
def without_fade(s: State) -> None:
    apply(s)
    fully = np.isclose(s.scaled, s.inv_freq / s.factor, rtol=1e-12)
    s.scaled = np.where(fully, s.scaled, s.inv_freq)


@mistake(
    "rope_scaling.apply",
    title="the fade is missing: frequencies between fast and slow are divided by the whole factor",
    cause="The frequencies between the two bounds are neither fast nor slow and need a mixture.",
    fix="Mix them: kept * f + (1 - kept) * f / factor, where kept runs from 0 to 1 between the "
    "bounds.",
    step=SCALING,
)
def without_fade_divided(s: State) -> None:
    apply(s)
    kept = np.isclose(s.scaled, s.inv_freq, rtol=1e-12)
    s.scaled = np.where(kept, s.inv_freq, s.inv_freq / s.factor)


@mistake(
    "rope_scaling.apply",
    title="2 pi is forgotten in the wavelengths",
    cause="A pair turns once in 2 pi / frequency positions; without the 2 pi it seems to turn more "
    "often than it does, and too few frequencies are divided.",
    fix="Compare with the bounds: context * frequency / (2 pi), the number of turns.",
    step=SCALING,
)
def without_two_pi(s: State) -> None:
    apply(s)
    if "original_max_position_embeddings" in s.scaling:
        context = s.scaling["original_max_position_embeddings"] * 2 * math.pi
        longer = {**s.scaling, "original_max_position_embeddings": context}
        s.scaled = s.rule(s.inv_freq, s.theta, longer).inv_freq


@mistake(
    "rope_scaling.apply",
    title="the attention factor of yarn is forgotten",
    cause="Besides changing the frequencies, yarn multiplies cos and sin by 0.1 ln(factor) + 1.",
    fix="Return that factor too, and multiply cos and sin by it.",
    step=SCALING,
)
def attention_factor_forgotten(s: State) -> None:
    apply(s)
    s.attention_factor = 1.0


@mistake(
    "rope_scaling.apply",
    title="the bounds of yarn's fade are not rounded to whole indices",
    cause="The formula gives a fraction of an index; unless the config says truncate: false, the "
    "lower bound is rounded down and the upper one up.",
    fix="Take math.floor of the lower bound and math.ceil of the upper one.",
    step=SCALING,
)
def yarn_not_truncated(s: State) -> None:
    apply(s)
    if s.rule is yarn_scaling:
        s.scaled = yarn_scaling(s.inv_freq, s.theta, {**s.scaling, "truncate": False}).inv_freq
