"""Pictures of a whole model: what grows from layer to layer, what each layer would say, what weighs
how much."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.functional import softmax
from simdformer.interpret.subject import read_model
from simdformer.learn.plots.look import (
    CHARACTER,
    COLOURS,
    SMALLEST_TEXT,
    USUAL_TEXT,
    WIDEST,
    check_texts,
    check_trace,
    colour_bar,
    dress,
    needs,
    one_axes,
    settle,
    shortened,
    token_ticks,
    visible_token,
)
from simdformer.models.budget import parameter_budget as count_parameters
from simdformer.models.config import ModelConfig
from simdformer.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simdformer.models.transformer import Transformer
    from simdformer.text import LanguageModel

__all__ = ["logit_lens", "parameter_budget", "residual_norms"]

MOST_POSITIONS = 20  # of a logit lens that is not told which
CELL_CHARACTERS = 7
PART_COLOURS = {
    "embedding": COLOURS["sky"],
    "attention": COLOURS["blue"],
    "mlp": COLOURS["orange"],
    "norms": COLOURS["purple"],
    "lm_head": COLOURS["green"],
}


def residual_norms(
    trace: Mapping[str, Array], *, title: str | None = None, ax: "Axes | None" = None
) -> "Axes":
    """The length (Euclidean norm) of a token's vector in the residual stream behind every layer,
    and of what attention and MLP of that layer add to it; the mean over all positions, with a band
    from the shortest to the longest.

    `trace` as `model.run_with_cache` gives it, with layers.*.resid_post, attn.out, mlp.out and
    layers.0.resid_pre. The axis is logarithmic where lengths differ by more than thirty times.

    >>> import numpy as np, simdformer as sf
    >>> one = np.ones((5, 4))
    >>> ax = sf.plots.residual_norms({"layers.0.resid_pre": one, "layers.0.attn.out": one,
    ...                               "layers.0.mlp.out": one, "layers.0.resid_post": 3 * one})
    >>> ax.lines[0].get_ydata().tolist()
    [2.0, 6.0]
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    layers = layer_count(trace, "residual_norms")
    begin = "layers.0.resid_pre"
    needed = [begin] + [
        f"layers.{layer}.{part}"
        for layer in range(layers)
        for part in ("attn.out", "mlp.out", "resid_post")
    ]
    missing = [name for name in needed if name not in trace]
    if missing:
        raise ValueError(
            f"plots.residual_norms: the trace has no {', '.join(missing[:3])}; run_with_cache(ids) "
            "without names= gives all"
        )
    stream = lengths(trace, [begin, *(f"layers.{layer}.resid_post" for layer in range(layers))])
    attention = lengths(trace, [f"layers.{layer}.attn.out" for layer in range(layers)])
    mlp = lengths(trace, [f"layers.{layer}.mlp.out" for layer in range(layers)])
    stations = np.arange(layers + 1)
    with one_axes(ax, (6.4, 3.3)) as axes:
        for values, at, name, colour, marker in (
            (stream, stations, "residual stream", "blue", "o"),
            (attention, stations[1:], "added by attention", "orange", "s"),
            (mlp, stations[1:], "added by the MLP", "green", "^"),
        ):
            axes.plot(
                at, values.mean(axis=1), color=COLOURS[colour], marker=marker, label=name, zorder=3
            )
            axes.fill_between(
                at,
                values.min(axis=1),
                values.max(axis=1),
                color=COLOURS[colour],
                alpha=0.12,
                linewidth=0,
            )
        everything = np.concatenate([stream.ravel(), attention.ravel(), mlp.ravel()])
        if everything.min() > 0 and everything.max() > 30 * everything.min():
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        dress(axes)
        axes.grid(True, axis="y", color="#E8E8E8", linewidth=0.7)
        every = -(-layers // 16)
        shown = [0, *range(every, layers + 1, every)]
        axes.set_xticks(shown, labels=["embed", *(str(index - 1) for index in shown[1:])])
        axes.set_xlabel("after layer")
        axes.set_ylabel("length of a token's vector")
        axes.set_title("residual stream" if title is None else title)
        axes.legend(loc="upper left")
    return axes


def logit_lens(
    model: "LanguageModel | Transformer",
    trace: Mapping[str, Array],
    tokens: Sequence[str] | None = None,
    *,
    positions: Sequence[int] | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """What the model would say if it ended after each layer: the residual stream through the final
    norm and the last matrix, the likeliest token in every cell and its probability as colour.

    After nostalgebraist 2020, "interpreting GPT: the logit lens". `trace` has embed and
    layers.*.resid_post of one sequence (`model.run_with_cache(text)`); `tokens` label the positions
    (None: those of the trace, or numbers), `positions` says which to show (None: the last 20). The
    highest row is what the model does say.
    A Transformer without a tokenizer shows ids.

    >>> import simdformer as sf
    >>> model = sf.from_pretrained("Meta-Llama-3-8B") # doctest: +SKIP
    >>> logits, trace = model.run_with_cache("1 + 1 =") # doctest: +SKIP
    >>> ax = sf.plots.logit_lens(model, trace) # doctest: +SKIP
    """
    transformer = read_model("plots.logit_lens", model)
    tokenizer = getattr(model, "tokenizer", None)
    layers = layer_count(trace, "logit_lens")
    names = ["layers.0.resid_pre", *(f"layers.{layer}.resid_post" for layer in range(layers))]
    missing = [name for name in names if name not in trace]
    if missing or np.ndim(trace[names[0]]) != 2:
        found = f"no {missing[0]}" if missing else f"layers.0.resid_pre {np.shape(trace[names[0]])}"
        raise ValueError(
            f"plots.logit_lens: the trace has {found}, needs layers.0.resid_pre and every "
            "layer's resid_post, each (L,E): the trace of one sequence"
        )
    length = len(trace[names[0]])
    tokens = getattr(trace, "tokens", None) if tokens is None else list(tokens)
    if tokens is not None:
        check_texts("logit_lens", "tokens", tokens)
    if tokens is not None and len(tokens) != length:
        raise ValueError(f"plots.logit_lens: tokens are {len(tokens)}, needs {length}")
    chosen = np.arange(length)[-MOST_POSITIONS:] if positions is None else np.asarray(positions)
    chosen = np.arange(length)[chosen]  # negative ones count from the end; IndexError past it

    best = np.empty((len(names), len(chosen)), np.int64)
    probability = np.empty(best.shape)
    for row, name in enumerate(names):  # one layer at a time: the vocabulary may be large
        shares = softmax(transformer.unembed(trace[name][chosen]))
        best[row] = shares.argmax(axis=-1)
        probability[row] = shares.max(axis=-1)

    width = min(WIDEST, max(3.0, 0.46 * len(chosen) + 1.7))
    with one_axes(ax, (width, 0.24 * len(names) + 1.25)) as axes:
        shown = axes.imshow(
            probability,
            cmap="Blues",
            vmin=0,
            vmax=1,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
        )
        dress(axes, frame=False)
        axes.grid(False)
        axes.set_xticks(np.arange(1, len(chosen)) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, len(names)) - 0.5, minor=True)
        axes.grid(True, which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
        for (row, column), token in np.ndenumerate(best):
            text = (
                str(token) if tokenizer is None else visible_token(tokenizer.decode([int(token)]))
            )
            axes.text(
                column,
                row,
                shortened(text, CELL_CHARACTERS),
                ha="center",
                va="center",
                color="white" if probability[row, column] > 0.55 else "#202020",
                parse_math=False,
                clip_on=True,
            )
        labels = [str(index) if tokens is None else tokens[index] for index in chosen]
        token_ticks(axes, labels, len(chosen), "x")
        every = -(-layers // 16)
        rows = [0, *range(layers, every - 1, -every)]
        axes.set_yticks(rows, labels=["embed", *(f"layer {index - 1}" for index in rows[1:])])
        axes.set_xlabel("behind the token")
        axes.set_title(
            "logit lens: the next token, as far as each layer knows" if title is None else title
        )
        colour_bar(axes, shown, "probability")
        settle([axes])
        token_ticks(axes, labels, len(chosen), "x")
        size = text_size(axes, len(chosen), len(names))
        for cell in axes.texts:
            cell.set_fontsize(size)
    return axes


def parameter_budget(
    config: ModelConfig | Mapping[str, ModelConfig],
    *,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Where the parameters of a model are, as one bar; or of several, {name: config}, one bar each.
    Every bar is 100 %, the number of parameters stands beside it.

    >>> import simdformer as sf
    >>> from simdformer.models import ModelConfig
    >>> llama = ModelConfig(
    ...     hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
    ...     intermediate_size=14336, vocab_size=128256, max_seq_len=8192, norm_eps=1e-5,
    ...     rope_theta=5e5, rope_layout="interleaved", tie_embeddings=False)
    >>> ax = sf.plots.parameter_budget({"Llama 3 8B": llama})
    >>> [round(float(bar.patches[0].get_width()), 1) for bar in ax.containers]
    [6.5, 16.7, 70.2, 0.0, 6.5]
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    named: dict[str, Any] = dict(config) if isinstance(config, Mapping) else {"": config}
    for one in named.values():
        if not isinstance(one, ModelConfig):
            own = "; give its .config" if hasattr(one, "config") else ""
            raise needs("parameter_budget", "config", one, f"a ModelConfig, or a dict of them{own}")
    if not named:
        raise ValueError("plots.parameter_budget: no config is given, needs at least one")
    budgets = {name: count_parameters(one) for name, one in named.items()}
    totals = np.array([sum(budget.values()) for budget in budgets.values()])
    rows = np.arange(len(named))
    with one_axes(ax, (7.2, 0.55 * len(named) + 1.05)) as axes:
        left = np.zeros(len(named))
        for part, colour in PART_COLOURS.items():
            counts = np.array([budget[part] for budget in budgets.values()])
            percent = 100 * counts / totals
            bars = axes.barh(
                rows, percent, left=left, height=0.62, color=colour, edgecolor="white", label=part
            )
            texts = [
                f"{in_words(count)}\n{share:.0f} %" if share >= 6 else ""
                for count, share in zip(counts, percent, strict=True)
            ]
            axes.bar_label(
                bars,
                texts,
                label_type="center",
                fontsize=USUAL_TEXT - 1,
                color="white" if part in ("attention", "lm_head") else "black",
            )
            left = left + percent
        for row, total in enumerate(totals):
            axes.text(101, row, f"{total:,}", va="center", fontsize=USUAL_TEXT)
        dress(axes, frame=False)
        axes.grid(False)
        axes.set_xlim(0, 100)
        axes.set_xticks([])
        axes.set_ylim(len(named) - 0.5, -0.5)
        axes.set_yticks(rows, labels=list(named))
        axes.tick_params(length=0)
        axes.set_title("parameters" if title is None else title)
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, 0), ncols=5, handlelength=1, columnspacing=1.4
        )
    return axes


# ---- what they share -----------------------------------------------------------------------------


def layer_count(trace: Mapping[str, Array], function: str) -> int:
    check_trace(function, trace)
    found = [re.fullmatch(r"layers\.(\d+)\.resid_post", name) for name in trace]
    layers = 1 + max((int(match[1]) for match in found if match), default=-1)
    if layers == 0:
        raise ValueError(
            f"plots.{function}: the trace has no layers.*.resid_post; model.run_with_cache(ids) "
            "gives logits and a trace"
        )
    return layers


def lengths(trace: Mapping[str, Array], names: Sequence[str]) -> Array:
    """The norm of every vector: (names, positions)."""
    return np.stack([np.linalg.norm(np.asarray(trace[name]), axis=-1).ravel() for name in names])


def text_size(axes: "Axes", columns: int, rows: int) -> float:
    """Points, so that the longest text fits into a cell."""
    box = axes.get_window_extent()
    scale = 72 / axes.figure.dpi
    wide = scale * box.width / columns / (CHARACTER * CELL_CHARACTERS)
    high = 0.7 * scale * box.height / rows
    return float(np.clip(min(wide, high), SMALLEST_TEXT - 1, USUAL_TEXT))


def in_words(count: int) -> str:
    for size, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return str(count)
