"""Pictures: what they show is what they were given, on the Axes they were given, and nothing else
of matplotlib's is touched. How they look is for eyes."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

import simdformer as sf
from checkpoints import tiny_config
from simdformer.models import Transformer, weight_shapes

mpl = pytest.importorskip("matplotlib")
mpl.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

TOKENS = ["<|begin_of_text|>", "the", " cat", "$x$", "\n"]
CONFIG = tiny_config(
    hidden_size=16,
    head_dim=4,
    intermediate_size=24,
    vocab_size=32,
    rope_layout="half",
    tie_embeddings=False,
)


@pytest.fixture(autouse=True)
def clean():
    """Every test leaves rcParams as they were; figures are closed between tests."""
    plt.close("all")
    before = dict(mpl.rcParams)
    yield
    assert dict(mpl.rcParams) == before
    plt.close("all")


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(5)
    weights = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in weight_shapes(CONFIG).items()
    }
    return Transformer(CONFIG, weights)


@pytest.fixture(scope="module")
def run(model):
    return model.run_with_cache([3, 1, 4, 1, 5])


def pattern(heads=3):
    scores = np.random.default_rng(1).normal(size=(heads, 5, 5)) + sf.causal_mask(
        5, 5, dtype=np.float64
    )
    return sf.softmax(scores)


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


# Each plot once, with the number of Axes that it draws on.
PLOTS = {
    "attention_map": (1, lambda run, model, **ax: sf.plots.attention_map(pattern()[0], **ax)),
    "score_map": (1, lambda run, model, **ax: sf.plots.score_map(pattern()[0], TOKENS, **ax)),
    "attention_heads": (3, lambda run, model, **ax: sf.plots.attention_heads(pattern(), **ax)),
    "rope_circle": (1, lambda run, model, **ax: sf.plots.rope_circle([1, 1j, -1], **ax)),
    "rope_turns": (4, lambda run, model, **ax: sf.plots.rope_turns(1 / np.arange(1, 9), 9, **ax)),
    "rope_bands": (1, lambda run, model, **ax: sf.plots.rope_bands([1, 0.1, 1e-3], **ax)),
    "residual_norms": (1, lambda run, model, **ax: sf.plots.residual_norms(run[1], **ax)),
    "logit_lens": (1, lambda run, model, **ax: sf.plots.logit_lens(model, run[1], **ax)),
    "parameter_budget": (1, lambda run, model, **ax: sf.plots.parameter_budget(CONFIG, **ax)),
    "error_map": (1, lambda run, model, **ax: sf.plots.error_map(pattern(), pattern(), **ax)),
    "attention_stages": (
        3,
        lambda run, model, **ax: sf.plots.attention_stages(np.eye(4), sf.causal_mask(4, 4), **ax),
    ),
    "activations": (1, lambda run, model, **ax: sf.plots.activations([sf.silu, sf.relu], **ax)),
    "lines": (
        1,
        lambda run, model, **ax: sf.plots.lines(
            [1, 2], {"a": [1, 2]}, xlabel="x", ylabel="y", **ax
        ),
    ),
    "roofline": (
        1,
        lambda run, model, **ax: sf.plots.roofline(
            {"a": 1.0}, gflops=9.0, gigabytes_per_second=3.0, **ax
        ),
    ),
    "all_heads": (12, lambda run, model, **ax: sf.plots.all_heads(run[1], **ax)),
    "attribution": (
        1,
        lambda run, model, **ax: sf.plots.attribution(sf.attribute(model, [3, 1], 7), **ax),
    ),
    "patching": (1, lambda run, model, **ax: sf.plots.patching(pattern()[0] - 0.3, TOKENS, **ax)),
    "token_losses": (1, lambda run, model, **ax: sf.plots.token_losses([1, 2, 0, 1], TOKENS, **ax)),
    "loss_curve": (1, lambda run, model, **ax: sf.plots.loss_curve([3.0, 2.0, 1.5], **ax)),
    "trace_errors": (1, lambda run, model, **ax: sf.plots.trace_errors(run[1], run[1], **ax)),
}
each_plot = pytest.mark.parametrize(("count", "draw"), PLOTS.values(), ids=PLOTS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", ["sf.plots.rope_circle([1, 1j])", "failing_plot()"])
def test_figures_appear_in_a_notebook_without_show(first):
    """In a kernel of its own, whose first figure is one of ours: that one, and the user's own."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    failing = (
        "import simdformer as sf, matplotlib.pyplot as plt\n"
        "def failing_plot():\n"
        "    try:\n"
        "        with sf.plots.style():\n"
        "            plt.plot([3, 4]), 1 / 0\n"
        "    except ZeroDivisionError:\n"
        "        pass"
    )
    cells = [
        failing,
        f"_ = {first}",
        "_ = sf.plots.rope_bands([1, 0.1])",
        "_ = plt.plot([1, 2])",
    ]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    kinds = [[key for output in cell.outputs for key in output.get("data", ())]
             for cell in notebook.cells]  # fmt: skip
    assert [shown.count("image/png") for shown in kinds] == [0, 1, 1, 1]


def test_every_plot_is_tested_here():
    functions = {name for name in sf.plots.__all__ if callable(getattr(sf.plots, name))}
    assert functions - {"style"} == set(PLOTS)


@pytest.mark.sampled(2)
@each_plot
def test_a_new_figure_is_made_drawn_and_returned(count, draw, run, model):
    axes = np.ravel(np.asarray(draw(run, model), dtype=object))
    assert len(axes) == count
    assert plt.get_fignums() == [axes[0].figure.number]
    assert all(isinstance(ax, mpl.axes.Axes) for ax in axes)
    assert all(ax.get_title(loc="left") + ax.get_title() for ax in axes)
    axes[0].figure.canvas.draw()
    assert axes[0].figure.get_size_inches()[0] <= 9


@pytest.mark.sampled(2)
@each_plot
def test_the_axes_given_are_drawn_on_and_no_figure_is_made(count, draw, run, model):
    figure, given = plt.subplots(1, count, squeeze=False, figsize=(4 * count, 4))
    given = given[0]
    drawn = draw(run, model, ax=given[0] if count == 1 else given)
    drawn = np.ravel(np.asarray(drawn, dtype=object))
    assert [ax is mine for ax, mine in zip(drawn, given, strict=True)] == [True] * count
    assert plt.get_fignums() == [figure.number]
    figure.canvas.draw()


REFUSED = {
    "another trace": lambda: sf.plots.trace_errors({}, {"layers.0.resid_post": np.ones((2, 3))}),
    "no trace to compare with": lambda: sf.plots.trace_errors({}, {"embed": np.ones((2, 3))}),
    "three axes": lambda: sf.plots.attention_map(pattern()),
    "few tokens": lambda: sf.plots.attention_map(pattern()[0], ["too", "few"]),
    "few key tokens": lambda: sf.plots.attention_map(pattern()[0], key_tokens=TOKENS[1:]),
    "empty": lambda: sf.plots.score_map(np.zeros((0, 3))),
    "one head": lambda: sf.plots.attention_heads(pattern()[0]),
    "head 3 of 3": lambda: sf.plots.attention_heads(pattern(), heads=[3]),
    "no heads": lambda: sf.plots.attention_heads(pattern(), heads=[]),
    "two axes": lambda: sf.plots.rope_circle([[1, 1j]]),
    "no position": lambda: sf.plots.rope_turns([1, 0.1], 0),
    "pair 2 of 2": lambda: sf.plots.rope_turns([1, 0.1], pairs=[2]),
    "negative": lambda: sf.plots.rope_bands([1, -1]),
    "scaled differs": lambda: sf.plots.rope_bands([1, 0.1], scaled=[1]),
    "no trace": lambda: sf.plots.residual_norms({}),
    "half a trace": lambda: sf.plots.residual_norms({"layers.0.resid_post": np.ones((2, 4))}),
    "no config": lambda: sf.plots.parameter_budget({}),
    "other shape": lambda: sf.plots.error_map(np.zeros(3), np.zeros(4)),
    "no patterns": lambda: sf.plots.all_heads({}),
    "a batch": lambda: sf.plots.all_heads({"layers.0.attn.pattern": np.ones((2, 3, 4, 4))}),
    "one layer": lambda: sf.plots.patching(np.ones(3)),
    "few columns": lambda: sf.plots.patching(np.ones((2, 3)), ["a"]),
    "losses of two": lambda: sf.plots.token_losses(np.ones((2, 3))),
    "a token too few": lambda: sf.plots.token_losses(np.ones(3), list("abc")),
}


@pytest.mark.parametrize("draw", REFUSED.values(), ids=REFUSED)
def test_a_refusal_says_whose_it_is_and_leaves_no_figure(draw):
    with pytest.raises(ValueError, match=r"^plots\.\w+: .*(need|trace)"):
        draw()
    assert plt.get_fignums() == []


OF_ANOTHER_KIND = {
    "ids for tokens": lambda m, t: sf.plots.attention_map(pattern()[0], [1, 2, 3, 4, 5]),
    "a number for tokens": lambda m, t: sf.plots.attention_map(pattern()[0], 5),
    "a head": lambda m, t: sf.plots.attention_heads(pattern(), heads=1),
    "one function": lambda m, t: sf.plots.activations(sf.silu),
    "names of functions": lambda m, t: sf.plots.activations(["silu"]),
    "a model for its config": lambda m, t: sf.plots.parameter_budget(m),
    "trace and model swapped": lambda m, t: sf.plots.logit_lens(t, m),
    "ids for a trace": lambda m, t: sf.plots.logit_lens(m, [1, 2]),
    "ids for tokens of a lens": lambda m, t: sf.plots.logit_lens(m, t, [1, 2, 3, 4, 5]),
    "a model for a trace": lambda m, t: sf.plots.residual_norms(m),
    "frequencies with a factor": lambda m, t: sf.plots.rope_bands(
        sf.rope_frequencies(8, theta=1e4)
    ),
    "frequencies for a row": lambda m, t: sf.plots.rope_circle(sf.rope_frequencies(8, theta=1e4)),
}


@pytest.mark.parametrize("draw", OF_ANOTHER_KIND.values(), ids=OF_ANOTHER_KIND)
def test_an_argument_of_another_kind_is_named(draw, model, run):
    with pytest.raises(TypeError, match=r"^plots\.\w+: \w+ (is|holds) .*, needs "):
        draw(model, run[1])
    assert plt.get_fignums() == []


def test_too_few_axes_are_refused():
    figure, one = plt.subplots()
    with pytest.raises(ValueError, match="ax has 1 Axes, needs 3"):
        sf.plots.attention_heads(pattern(), ax=[one])
    assert plt.get_fignums() == [figure.number]


@pytest.mark.parametrize("other", ["demo", None])
def test_what_is_no_model_is_refused(run, other):
    with pytest.raises(TypeError, match=rf"^plots.logit_lens: model is {other!r}, needs a model"):
        sf.plots.logit_lens(other, run[1])
    with pytest.raises(TypeError, match=rf"^plots.parameter_budget: config is {other!r}, needs a"):
        sf.plots.parameter_budget(other)


def test_a_lens_needs_the_trace_of_one_sequence_and_all_its_layers(model, run):
    _, trace = run
    few = {k: v for k, v in trace.items() if k != "layers.0.resid_pre"}
    with pytest.raises(ValueError, match=r"no layers\.0\.resid_pre"):
        sf.plots.logit_lens(model, few)
    with pytest.raises(ValueError, match="resid_pre \\(1, 5, 16\\)"):
        sf.plots.logit_lens(model, {name: array[None] for name, array in trace.items()})
    with pytest.raises(ValueError, match="tokens are 2, needs 5"):
        sf.plots.logit_lens(model, trace, ["a", "b"])
    with pytest.raises(IndexError):
        sf.plots.logit_lens(model, trace, positions=[9])
    assert plt.get_fignums() == []


def test_a_drawing_that_fails_leaves_no_figure():
    class Unprintable(str):
        def translate(self, table):
            raise RuntimeError("no label")

    with pytest.raises(RuntimeError, match="no label"):
        sf.plots.attention_map(pattern()[0], [Unprintable("x")] * 5)
    assert plt.get_fignums() == []


# ---- what is shown -------------------------------------------------------------------------------


def test_an_attention_map_shows_the_shares_and_hides_zeros():
    shares = pattern()[0]
    ax = sf.plots.attention_map(shares, TOKENS, title="mine")
    shown = ax.images[0].get_array()
    assert np.array_equal(shown.mask, shares == 0)
    assert np.array_equal(shown.filled(0), shares)
    assert ax.images[0].get_clim() == (0, 1)
    assert ax.get_title(loc="left") == "mine"
    assert labels(ax.yaxis) == labels(ax.xaxis) == ["begin_of_text", "the", "␣cat", "$x$", "↵"]


def test_rows_and_columns_may_have_labels_of_their_own():
    ax = sf.plots.attention_map(pattern()[0][-1:], ["query"], key_tokens=list("abcde"))
    assert labels(ax.yaxis) == ["query"]
    assert labels(ax.xaxis) == list("abcde")
    unlabelled = sf.plots.attention_map(pattern()[0][:2], ["a", "b"])  # keys are not the queries
    assert set(labels(unlabelled.xaxis)).isdisjoint({"a", "b"})


def test_labels_that_would_touch_are_thinned_out():
    tokens = [f"w{index}" for index in range(300)]
    ax = sf.plots.attention_map(np.tri(300) / 300, tokens)
    shown = ax.get_yticks()
    assert 10 < len(shown) < 100
    assert labels(ax.yaxis) == [tokens[int(tick)] for tick in shown]
    ax.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))


def test_labels_inside_a_grid_of_others_do_not_touch():
    _, grid = plt.subplots(2, 4, figsize=(8, 4), layout="constrained")
    ax = sf.plots.attention_map(np.tri(17) / 17, ["word"] * 17, ax=grid[0, 0])
    ax.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert len(boxes) > 3
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))


def test_a_score_map_is_symmetric_around_zero_and_hides_infinities():
    scores = np.array([[2.0, -np.inf], [-3.0, 1.0]])
    ax = sf.plots.score_map(scores)
    shown = ax.images[0].get_array()
    assert shown.mask.tolist() == [[False, True], [False, False]]
    assert shown.compressed().tolist() == [2.0, -3.0, 1.0]
    assert ax.images[0].get_clim() == (-3, 3)
    assert sf.plots.score_map(np.zeros((2, 2))).images[0].get_clim() == (-1, 1)


def test_heads_are_those_asked_for_and_only_the_rim_is_labelled():
    shares = pattern(6)
    axes = sf.plots.attention_heads(shares, TOKENS, heads=[4, 1, 0, 5], columns=2, title="layer 0")
    assert [ax.get_title(loc="left") for ax in axes] == ["head 4", "head 1", "head 0", "head 5"]
    for ax, head in zip(axes, [4, 1, 0, 5], strict=True):
        assert np.array_equal(ax.images[0].get_array().filled(0), shares[head])
    with_rows = [bool(ax.yaxis.get_tick_params()["labelleft"]) for ax in axes]
    with_columns = [bool(ax.xaxis.get_tick_params()["labelbottom"]) for ax in axes]
    assert with_rows == [True, False, True, False]
    assert with_columns == [False, False, True, True]
    assert [ax.get_ylabel() for ax in axes] == ["query", "", "query", ""]
    assert [ax.get_xlabel() for ax in axes] == ["", "", "key", "key"]
    assert axes[0].figure.get_suptitle() == "layer 0"


def test_errors_of_traces_are_lengths_of_differences(model):
    ids = [3, 1, 4, 1, 5]
    _, right = model.run_with_cache(ids)
    spoilt = {"layers.1.attn.z": lambda z: z * 1.01}
    _, mine = model.run_with_cache(ids, edit=spoilt)
    for name in ("resid_post", "attn.z"):
        layers = range(right.num_layers)
        expected = [
            [
                np.linalg.norm(mine[name, layer][at] - right[name, layer][at])
                / np.linalg.norm(right[name, layer][at])
                for at in range(len(ids))
            ]
            for layer in layers
        ]
        ax = sf.plots.trace_errors(mine, right, name)
        np.testing.assert_allclose(ax.images[0].get_array(), expected, rtol=1e-5, atol=1e-12)
        assert not ax.images[0].get_array()[0].any()
        assert labels(ax.xaxis) == ["0", "1", "2", "3", "4"]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("token", "layer")
        again = sf.plots.trace_errors(mine, right, name, limits=(1e-3, 0.5))
        assert again.images[0].get_clim() == (1e-3, 0.5)


def test_short_labels_lie_flat_and_long_ones_do_not():
    flat = sf.plots.patching(np.eye(4))
    assert {label.get_rotation() for label in flat.get_xticklabels()} == {0}
    slanted = sf.plots.patching(np.eye(4), ["<|begin_of_text|>", "Mia", " has", " a"])
    assert {label.get_rotation() for label in slanted.get_xticklabels()} == {45}


def test_arrows_of_a_rope_circle_end_at_the_numbers():
    inv_freq = sf.rope_frequencies(128, theta=500000.0).inv_freq
    row = np.exp(3j * inv_freq)
    ax = sf.plots.rope_circle(row)
    tips = {
        complex(line.get_xdata()[-1], line.get_ydata()[-1])
        for line in ax.lines
        if line.get_xdata()[0] == 0 and line.get_ydata()[0] == 0 and len(line.get_xdata()) == 2
    }
    assert set(row) <= tips
    assert ax.collections[0].get_offsets().tolist() == [[z.real, z.imag] for z in row]
    texts = [text.get_text() for text in ax.texts]
    assert {"0", "1", "2"} <= set(texts)
    assert len(texts) < 30  # 64 would lie on one another


@pytest.mark.parametrize("pairs", [1, 8, 16, 64, 200])
def test_labels_around_a_circle_do_not_touch(pairs):
    ax = sf.plots.rope_circle(np.exp(2j * np.pi * np.arange(pairs) / pairs))
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    for index, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[:index])
    texts = {text.get_text() for text in ax.texts}
    if pairs <= 16:
        assert texts == {str(pair) for pair in range(pairs)}
    else:
        assert any("–" in text for text in texts)


def test_turns_are_positions_times_frequency():
    inv_freq = np.array([1.0, 0.3, 0.01])
    axes = sf.plots.rope_turns(inv_freq, 7, pairs=[1, 2])
    for ax, pair in zip(axes, [1, 2], strict=True):
        angles = np.arange(7) * inv_freq[pair]
        expected = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        assert np.allclose(ax.collections[0].get_offsets(), expected)
        assert f"pair {pair}:" in ax.get_title(loc="left")


def test_bands_are_wavelengths_and_the_context_divides_them():
    inv_freq = sf.rope_frequencies(64, theta=10000.0).inv_freq
    ax = sf.plots.rope_bands(inv_freq, context=1000, scaled=inv_freq / 4)
    turning, not_turning, scaled = (points.get_offsets() for points in ax.collections)
    wavelengths = 2 * np.pi / inv_freq
    assert np.allclose(turning[:, 1], wavelengths[wavelengths <= 1000])
    assert np.allclose(not_turning[:, 1], wavelengths[wavelengths > 1000])
    assert np.allclose(scaled[:, 1], 4 * wavelengths)
    assert [text.get_text() for text in ax.texts] == ["context of 1,000 tokens"]


def test_residual_norms_are_means_over_positions(run):
    _, trace = run
    ax = sf.plots.residual_norms(trace)
    stream, attention, mlp = (line.get_ydata() for line in ax.lines)

    def norm(name):
        return np.linalg.norm(trace[name], axis=-1).mean()

    assert np.allclose(stream, [norm("embed")] + [norm(f"layers.{i}.resid_post") for i in range(3)])
    assert np.allclose(attention, [norm(f"layers.{i}.attn.out") for i in range(3)])
    assert np.allclose(mlp, [norm(f"layers.{i}.mlp.out") for i in range(3)])
    assert labels(ax.xaxis) == ["embed", "0", "1", "2"]


def test_residual_norms_take_a_batch(model):
    _, trace = model.run_with_cache([[3, 1, 4], [1, 5, 9]])
    ax = sf.plots.residual_norms(trace)
    assert np.isclose(ax.lines[0].get_ydata()[0], np.linalg.norm(trace["embed"], axis=-1).mean())


def test_the_highest_row_of_a_lens_is_what_the_model_says(model, run):
    logits, trace = run
    ax = sf.plots.logit_lens(model, trace, list("abcde"))
    said = np.reshape([int(text.get_text()) for text in ax.texts], (4, 5))
    assert said[-1].tolist() == logits.argmax(-1).tolist()
    probabilities = ax.images[0].get_array()
    assert np.allclose(probabilities[-1], sf.softmax(logits).max(-1), atol=1e-5)
    first = sf.linear(
        sf.rms_norm(trace["embed"], model.weights.final_norm, eps=CONFIG.norm_eps),
        model.weights.lm_head,
    )
    assert said[0].tolist() == first.argmax(-1).tolist()
    assert labels(ax.yaxis) == ["embed", "layer 2", "layer 1", "layer 0"]
    assert labels(ax.xaxis) == list("abcde")


def test_a_lens_shows_the_last_positions_or_those_asked_for(model):
    logits, trace = model.run_with_cache(list(range(30)))
    texts = [int(text.get_text()) for text in sf.plots.logit_lens(model, trace).texts]
    assert texts[-20:] == logits[-20:].argmax(-1).tolist()
    chosen = sf.plots.logit_lens(model, trace, [str(i) for i in range(30)], positions=[0, -1])
    assert labels(chosen.xaxis) == ["0", "29"]
    assert [int(text.get_text()) for text in chosen.texts][-2:] == [
        logits[0].argmax(),
        logits[29].argmax(),
    ]


def test_a_lens_is_labelled_with_the_positions_that_it_shows(model):
    _, trace = model.run_with_cache(list(range(30)))
    assert labels(sf.plots.logit_lens(model, trace).xaxis) == [str(at) for at in range(10, 30)]
    some = sf.plots.logit_lens(model, trace, positions=[3, 17])
    assert labels(some.xaxis) == ["3", "17"]
    trace.tokens = [f"t{at}" for at in range(30)]
    assert labels(sf.plots.logit_lens(model, trace, positions=[3, -1]).xaxis) == ["t3", "t29"]


@pytest.mark.parametrize("layers", [16, 17, 33, 80])
def test_layers_of_deep_models_are_told_apart(layers):
    names = ("attn.out", "mlp.out", "resid_post")
    trace = {"layers.0.resid_pre": np.ones((3, 4))}
    trace |= {f"layers.{i}.{name}": np.ones((3, 4)) for i in range(layers) for name in names}
    ax = sf.plots.residual_norms(trace)
    ax.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert len(boxes) > 8
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


# ---- what was found inside -----------------------------------------------------------------------


def test_all_heads_are_named_by_layer_and_head():
    trace = {f"layers.{layer}.attn.pattern": pattern(4) for layer in range(3)}
    axes = sf.plots.all_heads(trace, title="mine")
    assert axes.shape == (3, 4)
    for (layer, head), ax in np.ndenumerate(axes):
        assert ax.get_title(loc="left") == f"{layer}.{head}"
        shown = ax.images[0].get_array().filled(0)
        assert np.array_equal(shown, trace[f"layers.{layer}.attn.pattern"][head])
    assert axes[0, 0].figure.get_suptitle() == "mine"


def test_an_attribution_shows_every_head_and_every_mlp(model):
    found = sf.attribute(model, [3, 1, 4, 1, 5], 7, 2)
    ax = sf.plots.attribution(found)
    shown = ax.images[0].get_array()
    assert np.array_equal(shown[:, :4], found.heads)
    assert np.array_equal(shown[:, 4], found.mlps)
    assert labels(ax.xaxis) == ["0", "1", "2", "3", "MLP"]
    limit = np.abs(shown).max()
    assert ax.images[0].get_clim() == (-limit, limit)
    assert len(ax.texts) == 15


def test_patching_is_centred_at_nothing(model):
    restored = sf.patch(model, [3, 1, 4, 1, 5], [3, 1, 9, 1, 5], 7)
    ax = sf.plots.patching(restored, list("abcde"), title="mine")
    assert np.array_equal(ax.images[0].get_array(), restored)
    low, high = ax.images[0].get_clim()
    assert low == -high
    assert labels(ax.xaxis) == list("abcde")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("position", "layer")
    heads = sf.plots.patching(np.zeros((2, 3)))
    assert labels(heads.xaxis) == ["0", "1", "2"]
    assert {text.get_text() for text in heads.texts} == {"0.00"}


def test_losses_are_bars_of_the_tokens_that_have_one():
    ax = sf.plots.token_losses([0.1, 2.0, 0.7], ["<s>", "a", "b", "c"])
    assert [bar.get_height() for bar in ax.patches] == [0.1, 2.0, 0.7]
    assert labels(ax.xaxis) == ["a", "b", "c"]
    assert len({bar.get_facecolor() for bar in ax.patches}) == 2
    assert ax.get_title(loc="left") == f"mean loss 0.93, perplexity {np.exp(2.8 / 3):.3g}"


def test_parameter_budget_adds_up():
    ax = sf.plots.parameter_budget({"one": CONFIG, "two": CONFIG})
    widths = np.array([[bar.get_width() for bar in part] for part in ax.containers])
    assert np.allclose(widths.sum(axis=0), 100)
    total = sum(np.prod(shape) for shape in weight_shapes(CONFIG).values())
    assert f"{total:,}" in {text.get_text() for text in ax.texts}
    assert labels(ax.yaxis) == ["one", "two"]
    parts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert parts == ["embedding", "attention", "mlp", "norms", "lm_head"]
    mlp = 3 * 3 * 16 * 24 / total * 100
    assert np.allclose(widths[parts.index("mlp")], mlp)


def test_an_error_map_is_relative_to_the_rows_and_marks_what_is_not_finite():
    right = np.array([[3.0, 4.0], [0.0, 0.0], [-np.inf, 1.0]])
    mine = np.array([[3.0, 4.5], [0.1, 0.0], [-np.inf, np.nan]])
    shown = sf.plots.error_map(mine, right).images[0].get_array()
    assert shown.mask.tolist() == [[False, False], [False, False], [False, True]]
    expected = [[-6, np.log10(0.5 / np.sqrt(12.5))], [-1, -6], [-6, 0]]
    assert np.allclose(shown.filled(0), expected)


def test_an_error_map_tells_decades_apart_and_names_its_axes():
    right = np.ones((2, 3, 4))
    mine = right + np.reshape([0.02, 2, 500, 0] * 6, right.shape)
    ax = sf.plots.error_map(mine, right, axes=("head", "query", "key"))
    shown = ax.images[0]
    colours = [shown.cmap(shown.norm(value)) for value in shown.get_array()[0]]
    assert np.abs(np.subtract(colours[0], colours[1])).sum() > 0.3
    assert ax.get_xlabel() == "key"
    assert ax.get_ylabel() == "head, query"
    assert sf.plots.error_map(mine, right, axes=("key",)).get_ylabel() == "axis 0, axis 1"
    assert ax.get_legend() is None
    mine[0, 0, 0] = np.nan
    legend = sf.plots.error_map(mine, right).get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["NaN or infinite"]


def test_an_error_map_stacks_leading_axes():
    right = np.ones((2, 3, 4, 5), np.float32)
    mine = right.copy()
    mine[1, 2, 3, 4] = 2
    ax = sf.plots.error_map(mine, right)
    shown = ax.images[0].get_array()
    assert shown.shape == (24, 5)
    assert np.argwhere(shown > -6).tolist() == [[23, 4]]
    assert labels(ax.yaxis) == ["0, 0", "0, 1", "0, 2", "1, 0", "1, 1", "1, 2"]


@pytest.mark.parametrize("wrong", [0.5, np.nan])
def test_one_wrong_element_of_a_large_array_is_seen(wrong):
    right = np.ones((1100, 700))
    mine = right.copy()
    mine[1099, 612] = wrong
    shown = sf.plots.error_map(mine, right).images[0].get_array()
    assert max(shown.shape) <= 256
    seen = np.ma.getmaskarray(shown) | (shown.filled(0) > -6)
    assert seen.sum() == 1


def test_an_error_map_takes_a_number_a_vector_and_complex_numbers():
    for shape in ((), (7,)):
        sf.plots.error_map(np.ones(shape), np.zeros(shape))
    turned = np.exp(1j * np.arange(6.0)).reshape(2, 3)
    shown = sf.plots.error_map(turned, turned.conj()).images[0].get_array()
    assert np.allclose(10**shown, np.abs(2 * turned.imag), atol=1e-5)


# ---- labels, look, matplotlib --------------------------------------------------------------------


def test_tokens_become_labels():
    from simdformer.learn.plots.look import visible_token

    assert visible_token(" the") == "␣the"
    assert visible_token("\t\r\n") == "⇥\\r↵"
    assert visible_token("<|eot_id|>") == "eot_id"
    assert visible_token("<|") == "<|"
    assert visible_token("\x05") == "\\x05"
    assert visible_token("\U0010ffff") == "\\U0010ffff"
    assert visible_token("a" * 40) == "a" * 13 + "…"


def test_style_changes_settings_inside_only():
    with sf.plots.style():
        assert mpl.rcParams["legend.frameon"] is False
        ax = plt.subplots()[1]
    assert not ax.spines["top"].get_visible()


def test_the_look_does_not_depend_on_the_users_settings():
    with mpl.rc_context({"font.size": 30, "axes.titlesize": 40, "figure.facecolor": "black"}):
        ax = sf.plots.attention_map(pattern()[0], TOKENS)
    assert ax.get_yticklabels()[0].get_fontsize() <= 8
    assert ax.title.get_fontsize() < 12
    assert mpl.colors.to_hex(ax.figure.get_facecolor()) == "#ffffff"


def test_matplotlib_is_imported_when_something_is_drawn():
    code = "import sys, simdformer as sf; sf.plots; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_matplotlib_is_an_import_error_that_says_what_to_do():
    code = (
        "import sys; sys.modules['matplotlib'] = None; import simdformer as sf\n"
        "try: sf.plots.rope_circle([1, 1j])\n"
        "except ImportError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 'pip install "simdformer[notebook]"' in run.stdout
