"""RoPE's frequencies for long contexts, as learners compute them wrong."""

import numpy as np

import simdformer as sf
from cases import llama3_scaling
from mistake_examples import Examples
from mistake_examples_rope import frequencies

example = Examples()

LLAMA3 = llama3_scaling(8192)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = frequencies(500_000.0, 128)


def scaled(name, wrong, scaling, factor=1.0):
    """`wrong` gives the frequencies for head_dim 128 and theta 500,000."""

    @example(name)
    def _(rng):
        mine = (np.array(wrong()), factor)
        return mine, sf.rope_frequencies, (128,), {"theta": 500_000.0, "scaling": scaling}


def llama3(f, fade=True, high=4.0, low=1.0, two_pi=2 * np.pi, reverse=False):
    """Meta's loop over the frequencies, one by one."""
    wavelength = two_pi / f
    if wavelength < 8192 / high:
        return f / 8 if reverse else f
    if wavelength > 8192 / low:
        return f if reverse else f / 8
    if fade is not True:
        return f if fade == "kept" else f / 8
    smooth = (8192 / wavelength - low) / (high - low)
    smooth = 1 - smooth if reverse else smooth
    return (1 - smooth) * f / 8 + smooth * f


yarn_factor = 0.1 * np.log(4) + 1
scaled("rope_scaling.ignored", lambda: LONG, LLAMA3)
scaled("rope_scaling.multiplied", lambda: LONG * 4, {"type": "linear", "factor": 4.0})
scaled("rope_scaling.linear", lambda: LONG / 8, LLAMA3)
scaled("rope_scaling.without_fade", lambda: [llama3(f, "kept") for f in LONG], LLAMA3)
scaled("rope_scaling.without_fade_divided", lambda: [llama3(f, "divided") for f in LONG], LLAMA3)
scaled("rope_scaling.without_two_pi", lambda: [llama3(f, two_pi=1.0) for f in LONG], LLAMA3)
scaled(
    "rope_scaling.fast_and_slow_confused", lambda: [llama3(f, reverse=True) for f in LONG], LLAMA3
)


def yarn(truncate=True):
    """As DeepSeek writes it: find the bounds, then a ramp between them."""

    def bound(turns):
        return 128 * np.log(32768 / (turns * 2 * np.pi)) / (2 * np.log(500_000))

    low, high = bound(32), bound(1)
    if truncate:
        low, high = np.floor(low), np.ceil(high)
    ramp = np.clip((np.arange(64) - low) / (high - low), 0, 1)
    return LONG / 4 * ramp + LONG * (1 - ramp)


scaled("rope_scaling.attention_factor_forgotten", yarn, YARN)
scaled("rope_scaling.yarn_not_truncated", lambda: yarn(False), YARN, yarn_factor)


LONGROPE = {
    "rope_type": "longrope",
    "factor": 32.0,
    "short_factor": np.linspace(1, 3, 64).tolist(),
    "long_factor": np.linspace(1, 60, 64).tolist(),
    "original_max_position_embeddings": 4096,
}
longrope_factor = np.sqrt(1 + np.log(32) / np.log(4096))
FACTORS = {4096: LONGROPE["short_factor"], 4097: LONGROPE["long_factor"]}


@example("rope_scaling.factors_of_the_other_length")
def _(rng):
    mine = LONG / np.array(FACTORS[4096]), longrope_factor
    given = {"theta": 500_000.0, "scaling": LONGROPE, "length": 4097}
    return mine, sf.rope_frequencies, (128,), given
