"""sf.testing: the measure of check for other people's tests."""

import os
import subprocess
import sys

import numpy as np
import numpy.testing as npt
import pytest
import torch

import simdformer as sf
from conftest import DTYPES, bfloat16, epsilon, normal
from simdformer.learn.check.compare import TOLERANCE

# ---- assert_close --------------------------------------------------------------------------------


def test_the_same_is_close(rng, dtype):
    x = normal(rng, 3, 5, dtype=dtype)
    sf.testing.assert_close(x, x)
    sf.testing.assert_close(x, x.tolist() if dtype == np.float64 else x.copy())
    assert sf.testing.assert_close(x, x) is None


def test_a_rounding_is_close_and_a_mistake_is_not(rng, dtype):
    x = normal(rng, 4, 64)
    sf.testing.assert_close(x.astype(dtype), x * (1 + epsilon(dtype)))
    off = x.astype(dtype)
    row = np.sqrt(np.mean(np.float64(x[2]) ** 2))
    off[2, 7] += np.asarray(4 * TOLERANCE[np.dtype(dtype)] * row, dtype)
    with pytest.raises(sf.CheckError, match=r"at \[2, 7\]"):
        sf.testing.assert_close(off, x.astype(dtype))


@pytest.mark.parametrize("one", DTYPES, ids=str)
@pytest.mark.parametrize("other", DTYPES, ids=str)
def test_the_coarser_dtype_decides(rng, one, other):
    x = normal(rng, 3, 40)
    rounded = x.astype(one).astype(other)
    sf.testing.assert_close(x.astype(one), rounded)
    coarse = max(TOLERANCE[np.dtype(one)], TOLERANCE[np.dtype(other)])
    with pytest.raises(AssertionError, match=f"more than {coarse:g}"):
        sf.testing.assert_close(x.astype(one), (np.float64(x) * (1 + 8 * coarse)).astype(other))


def test_a_row_is_measured_by_its_size():
    """Which is not what numpy does: a number near zero beside large ones is not exact."""
    x = np.array([[1000.0, 0.001]], np.float32)
    sf.testing.assert_close(x + np.float32(1e-3), x)
    with pytest.raises(AssertionError):
        npt.assert_allclose(x + np.float32(1e-3), x, rtol=1e-4)
    with pytest.raises(AssertionError):  # but another row does not help a small one
        sf.testing.assert_close(x.T + np.float32(1e-3), x.T)


def test_rtol_overrides(rng):
    x = normal(rng, 3, 5)
    sf.testing.assert_close(x * 1.01, x, rtol=0.05)
    with pytest.raises(AssertionError, match=r"more than 1e-07 of the size"):
        sf.testing.assert_close(x * np.float32(1.00001), x, rtol=1e-7)
    sf.testing.assert_close(x, x, rtol=0)
    for rtol in (-1, "a", np.nan, np.inf):
        with pytest.raises(ValueError, match=r"assert_close: rtol is .*, needs a finite number >="):
            sf.testing.assert_close(x, x, rtol=rtol)


def test_nan_and_infinities_belong_where_they_are(rng):
    x = np.array([1, np.nan, np.inf, -np.inf, 2], np.float32)
    sf.testing.assert_close(x, x.copy())
    for index in (1, 2, 3):
        other = x.copy()
        other[index] = 0
        with pytest.raises(AssertionError):
            sf.testing.assert_close(x, other)
        with pytest.raises(AssertionError):
            sf.testing.assert_close(other, x)
    with pytest.raises(AssertionError, match=r"mine is NaN from \[1\] on"):
        sf.testing.assert_close(x, np.array([1, 0, np.inf, -np.inf, 2], np.float32))
    with pytest.raises(AssertionError):
        sf.testing.assert_close(-x, x)


def test_integers_and_booleans_are_equal_or_not():
    sf.testing.assert_close(np.arange(4), np.arange(4))
    sf.testing.assert_close(sf.causal_mask(3, 3), np.tri(3, dtype=bool))
    with pytest.raises(AssertionError, match="1 of 4 numbers is off by more than 0"):
        sf.testing.assert_close(np.array([0, 1, 2, 4]), np.arange(4))


def test_shapes_are_not_broadcast():
    with pytest.raises(sf.CheckError, match=r"mine has shape \(1, 3\), right \(3,\)"):
        sf.testing.assert_close(np.ones((1, 3)), np.ones(3))
    sf.testing.assert_close(np.ones((0, 3)), np.ones((0, 3)))
    sf.testing.assert_close(2.0, 2.0)
    with pytest.raises(AssertionError, match="the number is off by more than 1e-09 of its size"):
        sf.testing.assert_close(2.0, 2.5)


def test_tensors_are_taken(rng):
    x = normal(rng, 3, 5)
    sf.testing.assert_close(torch.tensor(x), x)
    sf.testing.assert_close(x.astype(bfloat16), torch.tensor(x).bfloat16())
    sf.testing.assert_close(torch.tensor(x, requires_grad=True), x)
    with pytest.raises(TypeError, match=r"assert_close: slow is of dtype .*, needs an array of"):
        sf.testing.assert_close(x, np.array(["text"]), names=("fast", "slow"))
    with pytest.raises(TypeError, match=r"assert_close: names is .*, needs two texts"):
        sf.testing.assert_close(x, x, names=("fast",))


def test_the_message_says_where_and_what(rng):
    x = normal(rng, 4, 8)
    mine = x.copy()
    mine[1] += 1
    mine[3, 2] = 99
    with pytest.raises(AssertionError) as caught:
        sf.testing.assert_close(mine, x, names=("fast", "slow"))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(
        "fast is not close to slow: 9 of 32 numbers are off by more than 0.0"
    )
    assert lines[1] == "  fast: (4, 8) float32, slow: (4, 8) float32"
    assert lines[2].startswith("  at [3, 2]: fast 99, slow ")
    assert lines[-1] == "  ... and 4 more; these are the worst"
    assert len(lines) == 8


# ---- assert_right --------------------------------------------------------------------------------


def test_assert_right_is_silent_or_names_the_mistake(rng):
    x = normal(rng, 5, 8)
    assert sf.testing.assert_right(sf.softmax, sf.softmax(x), x) is None
    sf.testing.assert_right("silu", sf.silu(x), x)
    q, k, v = (normal(rng, 2, 4, 8) for _ in range(3))
    e = np.exp(q @ k.swapaxes(-1, -2))
    mine = e / e.sum(-1, keepdims=True) @ v
    with pytest.raises(sf.CheckError, match="not scaled"):
        sf.testing.assert_right(sf.scaled_dot_product_attention, mine, q, k, v)


def test_assert_right_takes_a_tolerance_and_layers(rng):
    x = normal(rng, 5, 8)
    sf.testing.assert_right(sf.silu, sf.silu(x) * 1.01, x, rtol=0.1)
    with pytest.raises(AssertionError):
        sf.testing.assert_right(sf.silu, sf.silu(x) * np.float32(1.01), x)
    norm = sf.nn.RMSNorm(np.linspace(0.5, 1.5, 8, dtype=np.float32), 1e-5)
    sf.testing.assert_right(norm, norm(x), x)
    with pytest.raises(AssertionError, match="weight"):
        sf.testing.assert_right(norm, sf.rms_norm(x, eps=1e-5), x)


def test_a_failing_test_shows_its_own_line(tmp_path):
    """pytest leaves the insides of the assertions out."""
    file = tmp_path / "test_mine.py"
    file.write_text(
        "import numpy as np\n"
        "import simdformer as sf\n"
        "def test_mine():\n"
        "    x = np.ones((2, 3), np.float32)\n"
        "    sf.testing.assert_close(x, 2 * x)\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    plain = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # a third of the time
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=plain, check=False
    )
    assert ran.returncode == 1
    assert ">       sf.testing.assert_close(x, 2 * x)" in ran.stdout.replace(
        ">    sf", ">       sf"
    )
    assert "mine is not close to right: 6 of 6 numbers" in ran.stdout
    assert "raise CheckError(" not in ran.stdout
