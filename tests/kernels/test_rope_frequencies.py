"""rope_frequencies, which are the reference's after a check, against transformers."""

import math

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import simdformer as sf
from cases import each, llama3_scaling
from simdformer.reference import RopeFrequencies

LLAMA3 = llama3_scaling(8192)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LINEAR = {"rope_type": "linear", "factor": 4.0}

SCALINGS = {
    "linear": LINEAR,
    "linear by 1": {"rope_type": "linear", "factor": 1.0},
    "llama 3.1": LLAMA3,
    "llama 3.2": LLAMA3 | {"factor": 32.0},
    "llama3 on a short context": LLAMA3 | {"original_max_position_embeddings": 64},
    "llama3 with another fade": LLAMA3 | {"low_freq_factor": 0.5, "high_freq_factor": 40.0},
    "yarn of Qwen": YARN,
    "yarn by 1": YARN | {"factor": 1.0},
    "yarn on a short context": YARN | {"original_max_position_embeddings": 64},
    "yarn where the fade starts and ends at 0": YARN | {"original_max_position_embeddings": 3},
    "yarn with its own fade": YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
    "yarn with betas of None": YARN | {"beta_fast": None, "beta_slow": None},
    "yarn with an attention factor": YARN | {"attention_factor": 1.25},
    "yarn of DeepSeek": YARN | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn with mscale alone": YARN | {"mscale": 0.7},
    "yarn with mscale 0": YARN | {"mscale": 0.0, "mscale_all_dim": 0.7},
    "yarn with all of them": YARN
    | {"beta_fast": 16, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
    "yarn of gpt-oss": YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
}


LONGROPE = {
    "rope_type": "longrope",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0, 1.05, 1.5, 2.0],
    "long_factor": [1.1, 4.0, 30.0, 65.0],
}


@pytest.mark.parametrize("changes", [{}, {"factor": 1.0}, {"attention_factor": 1.25}])
@pytest.mark.parametrize("length", [None, 1, 4096, 4097, 100_000])
def test_longrope_has_frequencies_by_length(length, changes):
    scaling = LONGROPE | changes
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=4, rope_parameters=dict(scaling, rope_theta=1e4)
    )
    inv_freq, factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
    for found in (
        sf.rope_frequencies(8, theta=1e4, scaling=scaling, length=length),
        sf.reference.rope_frequencies(8, theta=1e4, scaling=scaling, length=length),
    ):
        np.testing.assert_allclose(found.inv_freq, inv_freq.double().numpy(), rtol=1e-6)
        assert found.attention_factor == pytest.approx(factor)


def of_transformers(head_dim, theta, scaling):
    """inv_freq in float32, attention factor."""
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=1 << 20,
        rope_parameters=dict(scaling, rope_theta=theta),
    )
    inv_freq, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    return inv_freq.double().numpy(), factor


@each("theta", [1e4, 5e5, 1e6])
@each("head_dim", [2, 8, 64, 96, 128])
@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.filterwarnings("ignore")
def test_agrees_with_transformers(name, head_dim, theta):
    scaling = SCALINGS[name]
    inv_freq, attention_factor = sf.rope_frequencies(head_dim, theta=theta, scaling=scaling)
    want, want_factor = of_transformers(head_dim, theta, scaling)
    # float32 over there: a power, then differences that cancel where the fade is steep
    np.testing.assert_allclose(inv_freq, want, rtol=5e-6, atol=0)
    assert attention_factor == pytest.approx(want_factor, rel=1e-12)


@each("head_dim", [2, 6, 64, 128])
@each("theta", [1e4, 5e5, 0.5, 1])
def test_plain_frequencies_are_powers_of_theta(head_dim, theta):
    want = [float(theta) ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    for scaling in (None, {}, {"rope_type": "default"}, {"type": "default", "rope_theta": theta}):
        result = sf.rope_frequencies(head_dim, theta=theta, scaling=scaling)
        assert isinstance(result, RopeFrequencies)
        assert isinstance(result, tuple)
        np.testing.assert_allclose(result.inv_freq, want, rtol=1e-15)
        assert result.inv_freq.dtype == np.float64
        assert result.inv_freq.shape == (head_dim // 2,)
        assert result.attention_factor == 1.0


def test_llama3_keeps_fast_waves_and_stretches_slow_ones():
    plain = sf.rope_frequencies(128, theta=5e5).inv_freq
    scaled = sf.rope_frequencies(128, theta=5e5, scaling=LLAMA3).inv_freq
    turns = 8192 * plain / (2 * math.pi)
    np.testing.assert_allclose(scaled[turns > 4], plain[turns > 4], rtol=1e-15)
    np.testing.assert_allclose(scaled[turns < 1], plain[turns < 1] / 8, rtol=1e-15)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert (scaled[between] < plain[between]).all()
    assert (scaled[between] > plain[between] / 8).all()


def test_the_old_name_of_the_type_and_numbers_of_numpy():
    old = {name: value for name, value in LLAMA3.items() if name != "rope_type"}
    want = sf.rope_frequencies(64, theta=5e5, scaling=LLAMA3).inv_freq
    for scaling in (
        old | {"type": "llama3"},
        LLAMA3 | {"type": "llama3", "rope_theta": 500000, "partial_rotary_factor": 1.0},
        {name: np.float64(v) if isinstance(v, float) else v for name, v in LLAMA3.items()},
    ):
        got = sf.rope_frequencies(np.int64(64), theta=np.float64(5e5), scaling=scaling).inv_freq
        np.testing.assert_array_equal(got, want)


def test_every_frequency_may_have_a_divisor():
    """As GGUF files hold Llama 3.1's: the same frequencies as by its rule."""
    plain = sf.rope_frequencies(64, theta=5e5).inv_freq
    want = sf.rope_frequencies(64, theta=5e5, scaling=LLAMA3).inv_freq
    scaling = {"rope_type": "divided", "divisors": (plain / want).tolist()}
    got = sf.rope_frequencies(64, theta=5e5, scaling=scaling)
    np.testing.assert_allclose(got.inv_freq, want, rtol=1e-15)
    assert got.attention_factor == 1
    for divisors, error, message in (
        ([1.0] * 31, ValueError, r"scaling\['divisors'\] are 31 numbers, needs 32, one for each"),
        ([1.0] * 31 + [0], ValueError, r"scaling\['divisors'\]\[31\] is 0, needs a finite number"),
        (
            ["a"] * 32,
            TypeError,
            r"scaling\['divisors'\]\[0\] is of type str, needs a finite number",
        ),
        (2.0, TypeError, r"scaling\['divisors'\] is of type float, needs a list of 32 numbers > 0"),
    ):
        with pytest.raises(error, match=message):
            sf.rope_frequencies(64, theta=5e5, scaling=scaling | {"divisors": divisors})


def test_the_dict_is_not_changed():
    scaling = dict(YARN)
    sf.rope_frequencies(64, theta=1e4, scaling=scaling)
    assert scaling == YARN


@pytest.mark.parametrize("scaling", [{"type": "dynamic", "factor": 2.0}, {"type": "linear"}])
def test_the_reference_by_itself_says_what_it_cannot_do(scaling):
    with pytest.raises(ValueError, match=r"dynamic|factor"):
        sf.reference.rope_frequencies(8, theta=1e4, scaling=scaling)
