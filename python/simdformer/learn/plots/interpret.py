"""Still pictures of what `simdformer.interpret` finds: all heads, who writes an answer, what
patching restores, how well each token was predicted, where two runs part."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.learn.plots.attention import draw_shares, share_bar
from simdformer.learn.plots.look import (
    COLOURS,
    HIDDEN,
    INK,
    SMALLEST_TEXT,
    USUAL_TEXT,
    WIDEST,
    axes_grid,
    check_trace,
    colour_bar,
    dress,
    one_axes,
    settle,
    token_ticks,
)
from simdformer.types import Array, ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simdformer.interpret import Attribution

__all__ = ["all_heads", "attribution", "patching", "token_losses", "trace_errors"]

SIGNED = "RdBu"  # red takes away, blue restores
ERRORS = "YlOrRd"
LEAST_ERROR = 1e-8  # smaller ones look like none


def all_heads(trace: Mapping[str, Array], *, title: str | None = None, ax: Any = None) -> Array:
    """The patterns of every head: layers down, heads across, queries down and keys across in each.
    An array (layers, H) of Axes.

    `trace` has layers.*.attn.pattern of one text. `ax`: as many Axes as there are heads. ValueError
    for a trace without patterns, or of several texts.

    >>> import numpy as np, simdformer as sf
    >>> trace = {f"layers.{layer}.attn.pattern": np.full((2, 3, 3), 1 / 3) for layer in range(3)}
    >>> axes = sf.plots.all_heads(trace)
    >>> axes.shape, axes[2, 1].get_title(loc="left")
    ((3, 2), '2.1')
    >>> import matplotlib.pyplot as plt; plt.close(axes[0, 0].figure)
    """
    check_trace("all_heads", trace)
    patterns: list[Array] = []
    while (name := f"layers.{len(patterns)}.attn.pattern") in trace:
        patterns.append(np.asarray(trace[name], np.float64))
    if not patterns or any(one.ndim != 3 or not one.size for one in patterns):
        found = np.shape(patterns[0]) if patterns else "no layers.0.attn.pattern"
        raise ValueError(
            f"plots.all_heads: the trace has {found}, needs every layer's attn.pattern "
            "(H,L,S), of one text"
        )
    layers, heads = len(patterns), len(patterns[0])
    side = min(1.2, (WIDEST - 0.8) / heads)
    size = (side * heads + 0.8, (side + 0.17) * layers + 0.35)
    with axes_grid(ax, layers * heads, heads, size) as grid:
        for index, axes in enumerate(grid):
            layer, head = divmod(index, heads)
            shown = draw_shares(axes, patterns[layer][head], (None, None))
            axes.set_title(
                f"{layer}.{head}", fontsize=USUAL_TEXT if side > 0.6 else SMALLEST_TEXT, pad=2
            )
            axes.set_xticks([])
            axes.set_yticks([])
        if ax is None:
            grid[0].figure.suptitle(
                "layer.head: queries down, keys across" if title is None else title,
                x=0.01,
                ha="left",
            )
        share_bar(grid, shown)
    table = np.empty(len(grid), dtype=object)
    table[:] = grid
    return table.reshape(layers, heads)


def attribution(
    found: "Attribution", *, title: str | None = None, ax: "Axes | None" = None
) -> "Axes":
    """What each part of the model writes into a logit, as `sf.attribute` tells it: every head and,
    in the last column, the MLP of its layer; blue for it, red against it.

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> ax = sf.plots.attribution(sf.attribute(model, "Mia has a red kite. It is", " red"))
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['0', '1', '2', '3', 'MLP']
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    table = np.concatenate([found.heads, found.mlps[:, None]], axis=1)
    columns = [*map(str, range(found.heads.shape[1])), "MLP"]
    with one_axes(ax, (min(WIDEST, 0.55 * len(columns) + 1.9), map_height(len(table)))) as axes:
        signed(axes, table, columns, "written into the logit")
        axes.set_xlabel("head")
        axes.axvline(len(columns) - 1.5, color="white", linewidth=3)
        axes.set_title(f"{found.label}: {found.difference:+.2f}" if title is None else title)
    return axes


def patching(
    restored: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """What `sf.patch` or `sf.ablate` gives, (layers, positions) or (layers, heads): blue above 0,
    red below, white at 0.

    `tokens` label positions; without them columns are heads. ValueError for other shapes.

    >>> import numpy as np, simdformer as sf
    >>> ax = sf.plots.patching(np.array([[0.1, 1.0], [-0.2, 0.0]]))
    >>> ax.images[0].get_clim()
    (-1.0, 1.0)
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    table = np.asarray(restored, np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(
            f"plots.patching: restored has shape {table.shape}, needs (layers, positions) or "
            "(layers, heads), not empty"
        )
    if tokens is not None and len(tokens) != table.shape[1]:
        raise ValueError(
            f"plots.patching: tokens are {len(tokens)}, needs {table.shape[1]}, one for each column"
        )
    columns = [*map(str, range(table.shape[1]))] if tokens is None else list(tokens)
    width = min(WIDEST, (0.55 if tokens is None else 0.3) * len(columns) + 1.9)
    with one_axes(ax, (width, map_height(len(table)))) as axes:
        signed(axes, table, columns, "restored or lost")
        axes.set_xlabel("head" if tokens is None else "position")
        axes.set_title("activation patching" if title is None else title)
    return axes


def token_losses(
    losses: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """How badly each token was predicted, in nats, as `model.loss` tells it: (L-1,). Orange are
    those that had less than an even chance.

    `tokens` are those of the whole text, L of them (`model.tokenizer.to_str_tokens(text)`).

    >>> import simdformer as sf
    >>> ax = sf.plots.token_losses([0.1, 2.0], ["a", " red", " kite"])
    >>> [float(bar.get_height()) for bar in ax.patches]
    [0.1, 2.0]
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    heights = np.asarray(losses, np.float64)
    if heights.ndim != 1 or not heights.size:
        raise ValueError(
            f"plots.token_losses: losses have shape {heights.shape}, needs (L-1,), not empty"
        )
    if tokens is not None and len(tokens) != len(heights) + 1:
        raise ValueError(
            f"plots.token_losses: tokens are {len(tokens)}, needs {len(heights) + 1}: those "
            "of the whole text, of which the first has no loss"
        )
    labels = None if tokens is None else list(tokens)[1:]
    colours = [COLOURS["orange" if loss > np.log(2) else "blue"] for loss in heights]
    with one_axes(ax, (min(WIDEST, 0.2 * len(heights) + 1.5), 2.8)) as axes:
        axes.bar(np.arange(len(heights)), heights, color=colours, width=0.8)
        dress(axes)
        axes.set_xlim(-0.6, len(heights) - 0.4)
        axes.grid(True, axis="y", color=HIDDEN, linewidth=0.7)
        axes.set_ylabel("loss in nats")
        axes.set_xlabel("orange: less than an even chance")
        mean = f"mean loss {heights.mean():.2f}, perplexity {np.exp(heights.mean()):.3g}"
        axes.set_title(mean if title is None else title)
        token_ticks(axes, labels, len(heights), "x")
        settle([axes])
        token_ticks(axes, labels, len(heights), "x")
    return axes


def trace_errors(
    mine: Mapping[str, Array],
    right: Mapping[str, Array],
    name: str = "resid_post",
    *,
    limits: tuple[float, float] | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Where two runs on one text part, layer by layer and token by token: the length of the
    difference of an activation, as a part of its length in `right`. Colours are logarithmic.

    `mine` and `right` have layers.*.{name}, arrays whose first axis is the tokens, as in the trace
    of one text; tokens label the columns where `right` knows them. `limits` are where the colours
    begin and end, for pictures that are to be compared. ValueError for traces that lack the name,
    or of other shapes.

    >>> import numpy as np, simdformer as sf
    >>> right = {"layers.0.resid_post": np.ones((2, 4))}
    >>> ax = sf.plots.trace_errors({"layers.0.resid_post": np.full((2, 4), 1.5)}, right)
    >>> ax.images[0].get_array().tolist()
    [[0.5, 0.5]]
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullLocator

    rows: list[Array] = []
    while (full := f"layers.{len(rows)}.{name}") in right:
        if full not in mine or np.shape(mine[full]) != np.shape(right[full]):
            found = f"shape {np.shape(mine[full])}" if full in mine else "nothing"
            raise ValueError(
                f"plots.trace_errors: {full} has {found} in mine, needs {np.shape(right[full])}"
            )
        needed = np.asarray(right[full], np.float64)
        needed = needed.reshape(len(needed), -1)
        off = np.asarray(mine[full], np.float64).reshape(needed.shape) - needed
        lengths = np.maximum(np.linalg.norm(needed, axis=1), np.finfo(np.float64).tiny)
        rows.append(np.linalg.norm(off, axis=1) / lengths)
    if not rows or not rows[0].size:
        raise ValueError(
            f"plots.trace_errors: right has no layers.0.{name}, or of no tokens; "
            "model.run_with_cache(text) gives logits and a trace"
        )
    table = np.stack(rows)
    if limits is None:
        largest = max(float(table[np.isfinite(table)].max(initial=0)), 10 * LEAST_ERROR)
        above = table[np.isfinite(table) & (table > LEAST_ERROR)]
        limits = min(float(above.min(initial=largest)), largest / 10), largest
    labels = getattr(right, "tokens", None) or [str(at) for at in range(table.shape[1])]
    width = min(WIDEST, 0.3 * table.shape[1] + 1.9)
    with one_axes(ax, (width, map_height(len(table)))) as axes:
        norm = LogNorm(*limits, clip=True)
        shown = axes.imshow(table, cmap=ERRORS, norm=norm, aspect="auto", interpolation="nearest")
        dress(axes, frame=False)
        axes.grid(False)
        axes.set(xlabel="token", ylabel="layer")
        axes.set_title(f"error of {name}" if title is None else title)
        bar = colour_bar(axes, shown, "error / length")
        bar.ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
        bar.ax.yaxis.set_major_formatter("{x:g}")
        for _ in range(2):  # labels take room, and then get the size that fits
            token_ticks(axes, labels, len(labels), "x")
            token_ticks(axes, None, len(table), "y")
            settle([axes])
    return axes


# ---- what they share -----------------------------------------------------------------------------


def map_height(rows: int) -> float:
    """Inches."""
    return float(np.clip(0.26 * rows, 0.6, 6)) + 1.2


def signed(axes: "Axes", table: Array, columns: Sequence[str], meaning: str) -> None:
    """A table of layers by columns, centred at 0, with its numbers where there is room."""
    limit = float(np.abs(table[np.isfinite(table)]).max(initial=0)) or 1.0
    shown = axes.imshow(
        table, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    dress(axes, frame=False)
    axes.grid(False)
    axes.set_ylabel("layer")
    colour_bar(axes, shown, meaning)
    for _ in range(2):  # labels take room, and then get the size that fits
        token_ticks(axes, columns, len(columns), "x")
        token_ticks(axes, None, len(table), "y")
        settle([axes])
    if table.shape[1] > 12:
        return
    for (row, column), number in np.ndenumerate(table):
        axes.text(
            column,
            row,
            f"{round(number, 2) + 0:.2f}",  # no minus before 0
            ha="center",
            va="center",
            fontsize=SMALLEST_TEXT,
            color="white" if abs(number) > 0.6 * limit else INK,
            clip_on=True,
        )
