"""Pictures of curves, of a machine's limits, and of the stages of attention: they show what they
were given, and refuse what cannot be shown."""

import json

import numpy as np
import pytest

import simdformer as sf

mpl = pytest.importorskip("matplotlib")
mpl.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

WORK = {"decode": 0.5, "prefill": 200.0}
LIMITS = {"gflops": 400.0, "gigabytes_per_second": 40.0}


@pytest.fixture(autouse=True)
def clean():
    before = dict(mpl.rcParams)
    yield
    assert dict(mpl.rcParams) == before
    plt.close("all")


def dots(ax):
    """Where the numbered dots are."""
    return [line.get_xydata()[0].tolist() for line in ax.lines if line.get_marker() in ("o", "s")]


def test_activations_are_the_functions():
    ax = sf.plots.activations([sf.silu, np.tanh], low=-2, high=1)
    silu, tanh = ax.lines
    np.testing.assert_allclose(silu.get_ydata(), sf.silu(silu.get_xdata()))
    np.testing.assert_allclose(tanh.get_ydata(), np.tanh(tanh.get_xdata()))
    assert ax.get_xlim() == (-2, 1)
    with pytest.raises(ValueError, match=r"plots\.activations: functions is empty"):
        sf.plots.activations([])


def test_lines_are_the_measurements():
    ax = sf.plots.lines(
        [1, 8, 64], {"a": [3, 2, 1], "b": [1, 1, 1]}, xlabel="x", ylabel="y", level=("even", 2.5)
    )
    assert [line.get_ydata().tolist() for line in ax.lines[:2]] == [[3, 2, 1], [1, 1, 1]]
    assert ax.lines[2].get_ydata() == [2.5, 2.5]
    assert ax.get_xscale() == "log"
    assert [text.get_text() for text in ax.texts] == ["even"]
    assert sf.plots.lines([0, 1], {"a": [3, 2]}, xlabel="", ylabel="").get_xscale() == "linear"
    with pytest.raises(ValueError, match=r"plots\.lines: a has shape \(3,\), x has \(2,\)"):
        sf.plots.lines([1, 2], {"a": [1, 2, 3]}, xlabel="x", ylabel="y")


def test_a_roofline_puts_what_was_not_measured_at_the_roof():
    ax = sf.plots.roofline(WORK, **LIMITS)
    assert dots(ax) == [[0.5, 20.0], [200.0, 400.0]]
    roof = ax.lines[0].get_xydata()
    np.testing.assert_allclose(roof[:, 1], np.minimum(400, 40 * roof[:, 0]))
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["1  decode", "2  prefill"]
    assert ax.get_title(loc="left") == "at most 400 GFLOPS, 40 GB/s from memory"


def test_a_roofline_says_how_much_was_reached():
    ax = sf.plots.roofline(WORK, **LIMITS, measured={"prefill": 300.0, "decode": 10.0, "other": 1})
    assert dots(ax) == [[0.5, 10.0], [200.0, 300.0]]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["1  decode, 50%", "2  prefill, 75%"]


def test_a_roofline_has_a_roof_for_each_level_of_memory():
    ax = sf.plots.roofline(
        WORK, gflops=400.0, gigabytes_per_second={"L2": 100.0, "memory": 40.0}, measured=WORK
    )
    for line, speed in zip(ax.lines[:2], (100, 40), strict=True):
        roof = line.get_xydata()
        np.testing.assert_allclose(roof[:, 1], np.minimum(400, speed * roof[:, 0]))
    assert {"L2 100 GB/s", "memory 40 GB/s"} <= {text.get_text() for text in ax.texts}
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["1  decode", "2  prefill"]  # of which roof would it be a part?


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gflops": 0.0}, "gflops is 0.0, needs a number > 0"),
        ({"gigabytes_per_second": float("nan")}, "gigabytes_per_second is nan"),
        ({"work": {"a": -1.0}}, "a is -1.0"),
        ({"work": {}}, "work or roofs are empty"),
        ({"gigabytes_per_second": {}}, "work or roofs are empty"),
        ({"measured": {"decode": 1.0, "prefill": 0.0}}, "prefill is 0.0"),
    ],
)
def test_a_roofline_of_impossible_numbers_is_refused(changed, message):
    with pytest.raises(ValueError, match=f"plots.roofline: {message}"):
        sf.plots.roofline(**{"work": WORK, **LIMITS, **changed})
    assert plt.get_fignums() == []


@pytest.mark.parametrize("kind", ["boolean", "added"])
def test_the_stages_of_attention(kind):
    scores = np.array([[1.0, 2.0, 0.0], [0.0, -3.0, 1.0]])
    visible = np.array([[True, False, False], [True, True, False]])
    mask = visible if kind == "boolean" else np.where(visible, 0, -np.inf)
    raw, masked, pattern = sf.plots.attention_stages(
        scores, mask, ["x", "y"], key_tokens=["a", "b", "c"]
    )
    np.testing.assert_array_equal(raw.images[0].get_array(), scores)
    np.testing.assert_array_equal(masked.images[0].get_array().mask, ~visible)
    assert raw.images[0].get_clim() == masked.images[0].get_clim() == (-3, 3)
    shares = sf.softmax(np.where(visible, scores, -np.inf))
    np.testing.assert_allclose(pattern.images[0].get_array().filled(0), shares)
    assert [ax.get_xlabel() for ax in (raw, masked, pattern)] == ["key"] * 3
    assert raw.get_ylabel() == "query"
    assert [label.get_text() for label in raw.get_yticklabels()] == ["x", "y"]


def test_stages_that_cannot_be_shown_are_refused():
    with pytest.raises(ValueError, match=r"mask has shape \(2, 2\), scores have \(2, 3\)"):
        sf.plots.attention_stages(np.zeros((2, 3)), np.ones((2, 2), bool))
    with pytest.raises(ValueError, match="mask hides all keys of a query"):
        sf.plots.attention_stages(np.zeros((2, 2)), np.zeros((2, 2), bool))
    with pytest.raises(ValueError, match=r"scores has shape \(2,\)"):
        sf.plots.attention_stages(np.zeros(2), np.zeros(2))
    assert plt.get_fignums() == []


def test_a_loss_curve_is_the_log(tmp_path):
    lines = [{"step": at, "loss": 8.0 / at} for at in range(1, 401)]
    lines[99]["val_loss"] = 1.0
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ax = sf.plots.loss_curve(tmp_path)
    raw, mean, dots = ax.lines
    np.testing.assert_allclose(raw.get_ydata(), [line["loss"] for line in lines])
    assert mean.get_ydata()[0] == 8.0
    assert mean.get_ydata()[200] == pytest.approx(np.mean(raw.get_ydata()[195:206]))
    assert dots.get_xydata().tolist() == [[100, 1.0]]
    ax = sf.plots.loss_curve({"a": [3, 2], "b": lines})
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["a", "b", "b, validation"]
    with pytest.raises(ValueError, match=r"plots\.loss_curve: training has no step, needs one"):
        sf.plots.loss_curve([])
