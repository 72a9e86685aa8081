"""The frequencies of RoPE in steps, and what goes wrong in them.

The meaning is that of `reference.rope_frequencies`. Frequencies are computed in float64 whatever
the arithmetic of the run is: they are a table, made once.
"""

from collections.abc import Mapping
from typing import Any

from simdformer import functional
from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program
from simdformer.reference import RopeFrequencies
from simdformer.reference.forward import (
    divided_scaling,
    linear_scaling,
    llama3_scaling,
    longrope_scaling,
    yarn_scaling,
)

RULES = {
    "linear": linear_scaling,
    "llama3": llama3_scaling,
    "yarn": yarn_scaling,
    "longrope": longrope_scaling,
    "divided": divided_scaling,
}


def rule_of(scaling: Mapping[str, Any]) -> Any:
    return RULES[scaling.get("rope_type", scaling.get("type"))]


rope_scaling = Program(
    "rope_scaling",
    """
    apply:
        factor = scaling.get("factor", 1.0)
        rule = rule_of(scaling)
        scaled, attention_factor = rule(inv_freq, theta, scaling)
    """,
    calls=(rule_of,),
    tables={"scaled"},
)
rope_frequencies = Program(
    "rope_frequencies",
    """
    exponent: exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    power: inv_freq = theta**-exponents
    scale:
        scaling = dict(scaling or {}, length=length)
        attention_factor = 1.0
        if scaling.get("rope_type", scaling.get("type", "default")) != "default":
            found = run(rope_scaling, inv_freq=inv_freq, theta=theta, scaling=scaling)
            inv_freq, attention_factor = found.scaled, found.attention_factor
    result: out = RopeFrequencies(inv_freq, attention_factor)
    """,
    calls=(RopeFrequencies, rope_scaling),
    of=functional.rope_frequencies,
    axes=("pair",),
    tables={"exponents", "inv_freq", "out"},
)

USUAL = (10_000, 500_000, 1_000_000)
# Those of Llama 2, CodeLlama, Llama 3, Qwen 2 and 3, and others.
THETAS = (10_000, 100_000, 150_000, 500_000, 1_000_000, 5_000_000, 10_000_000)

mistakes(
    """
    rope_frequencies.exponent (02 §5) > Write np.arange(0, D, 2) / D.

    exponent_i_over_d: the exponents are i/D instead of 2i/D
        np.arange(D // 2) / D counts 0, 1, 2 ... where the formula has 0, 2, 4 ...: the slow half of
        the frequencies is missing.
        | exponents = np.arange(head_dim // 2) / head_dim
    exponent_4i_over_d: the exponents are 4i/D instead of 2i/D
        The 2 of the formula is counted twice: 2 * np.arange(0, D, 2) / D, or the even numbers
        divided by D/2.
        > Write np.arange(0, D, 2) / D: its elements are 2i/D already.
        | exponents = 2 * np.arange(0, head_dim, 2) / head_dim
    exponent_from_one (rare): the exponents begin with 2/D instead of 0
        The paper counts i from 1 and writes 2(i-1)/D; here i counts from 0.
        > Write np.arange(0, D, 2) / D, so that the first frequency is 1.
        | exponents = np.arange(2, head_dim + 2, 2) / head_dim
    exponent_odd: the exponents are 1/D, 3/D, 5/D ... instead of 0, 2/D, 4/D
        np.arange(1, D + 1, 2) holds the odd numbers.
        > Write np.arange(0, D, 2) / D, so that the first frequency is 1.
        | exponents = np.arange(1, head_dim + 1, 2) / head_dim
    exponent_not_divided: the exponents are not divided by D
        theta ** -2i falls to nothing at once, so only the first pair is turned.
        > Divide by the number of elements that are turned: np.arange(0, D, 2) / D.
        | exponents = np.arange(0, head_dim, 2, dtype=np.float64)
    exponent_linspace (rare): the last exponent is 1: the frequencies go all the way down to 1/theta
        np.linspace(0, 1, D // 2) includes its end; the formula stops one step before it.
        | exponents = np.linspace(0, 1, head_dim // 2)

    rope_frequencies.power (02 §5)

    power_not_inverted: the frequencies are not inverted: theta ** (2i/D) without the minus
        These are the wavelengths (over 2 pi) instead of the frequencies: the later a pair, the
        faster it turns instead of slower.
        > Write 1 / theta ** (2i/D), or theta ** (-2i/D).
        | inv_freq = theta**exponents
    power_without_log_theta (rare): theta has no effect: the frequencies are exp(-2i/D)
        theta ** y is exp(y * log(theta)); the logarithm of theta is missing.
        > Write np.exp(-np.log(theta) * 2i/D), or simply theta ** (-2i/D).
        | inv_freq = np.exp(-exponents)
    power_reversed (rare): the frequencies are in reverse order
        The first pair should turn fastest, by 1 radian a position, and the last one slowest.
        > Leave the frequencies in the order of the exponents 0, 2/D, 4/D ...
        | inv_freq = (theta**-exponents)[::-1]

    rope_scaling.apply (03 §12) > Mix them: kept * f + (1 - kept) * f / factor, where kept runs from
        0 to 1 between the bounds.

    ignored: rope_scaling is ignored: these are the plain frequencies
        The config of the checkpoint carries a rule for long contexts which is not applied.
        > Apply the rule that `scaling` names to the frequencies after theta ** (-2i/D).
        | scaled = inv_freq; attention_factor = 1.0
    multiplied: the frequencies are scaled the wrong way: multiplied instead of divided
        A longer context needs slower turns; the factor stretches wavelengths, so it divides
        frequencies.
        > Divide the frequencies (or the positions) by the factor.
        | ...; scaled = inv_freq**2 / scaled
    linear: every frequency is divided by the factor
        That is linear scaling; llama3 and yarn leave the fast pairs as they are, divide the slow
        ones and fade between them.
        > Follow the rule that `scaling` names in rope_type.
        | ...; scaled = inv_freq / factor
    fast_and_slow_confused: fast and slow are confused: the fast frequencies are divided
        A comparison is the wrong way round, or high and low (beta_fast and beta_slow) are swapped,
        or wavelengths are taken for frequencies.
        > Keep the pairs that turn many times within the original context; divide the frequency of
          those that turn less than once.
        | unless("long_factor" in scaling); ...; scaled = inv_freq + inv_freq / factor - scaled
    without_fade: the fade is missing: frequencies between fast and slow are kept
        The frequencies between the two bounds are neither fast nor slow and need a mixture.
        | unless("long_factor" in scaling); ...
        | scaled = np.where(np.isclose(scaled, inv_freq / factor, rtol=1e-12), scaled, inv_freq)
    without_fade_divided: the fade is missing: frequencies between fast and slow are divided
        as above
        | unless("long_factor" in scaling); ...
        | scaled = np.where(np.isclose(scaled, inv_freq, rtol=1e-12), inv_freq, inv_freq / factor)
    without_two_pi: 2 pi is forgotten in the wavelengths
        A pair turns once in 2 pi / frequency positions; without the 2 pi it seems to turn more
        often than it does, and too few frequencies are divided.
        > Compare with the bounds: context * frequency / (2 pi), the number of turns.
        | unless("long_factor" in scaling); ...; context = "original_max_position_embeddings"
        | scaled = rule(inv_freq, theta, scaling | {context: scaling[context] * 2 * math.pi})[0]
    attention_factor_forgotten: the attention factor of yarn or longrope is forgotten
        Besides changing the frequencies, yarn multiplies cos and sin by 0.1 ln(factor) + 1, and
        longrope, for short texts too, by sqrt(1 + ln(factor) / ln(length in training)).
        > Return that factor too, and multiply cos and sin by it.
        | ...; attention_factor = 1.0
    factors_of_the_other_length: long_factor and short_factor are taken for each other
        Texts longer than original_max_position_embeddings have other divisors than those up to it.
        > Compare the length of the text, old tokens in the cache included, with that limit.
        | long, short = scaling["long_factor"], scaling["short_factor"]
        | scaling = scaling | {"long_factor": short, "short_factor": long}; ...
    yarn_not_truncated: the bounds of yarn's fade are not rounded to whole indices
        The formula gives a fraction of an index; unless the config says truncate: false, the lower
        bound is rounded down and the upper one up.
        > Take math.floor of the lower bound and math.ceil of the upper one.
        | ...; scaled = rule(inv_freq, theta, scaling | {"truncate": False})[0]
    """
)

for theta in THETAS:
    mistakes(
        f"""
        rope_frequencies.power (02 §5) > Hand over the theta that the checkpoint's config gives as
            rope_theta.

        theta_{theta} ({"" if theta in USUAL else "rare"}):
            theta is {theta:,} instead of the one that is asked for
            Each family of models has its own theta (Llama 2: 10,000, Llama 3: 500,000, Qwen 3 and
            MiniMind: 1,000,000), and a default or a constant is easily left in the code.
            | inv_freq = {theta:.1f}**-exponents
        """
    )
