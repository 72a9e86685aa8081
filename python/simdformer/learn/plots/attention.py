"""Pictures of matrices of an attention layer: what attends to what; and of errors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.arguments import is_whole
from simdformer.learn.plots.look import (
    COLOURS,
    HIDDEN,
    WIDEST,
    axes_grid,
    check_texts,
    colour_bar,
    dress,
    needs,
    one_axes,
    read_floats,
    settle,
    token_ticks,
)
from simdformer.types import Array, ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["attention_heads", "attention_map", "error_map", "score_map"]

SHARES, SIGNED, ERRORS = "Blues", "PuOr", "YlOrRd"  # lightness alone tells their values apart
MOST_CELLS = 256  # of an error map, along each axis
LEAST_DECADE, MOST_DECADE = -6, 2  # relative errors below 1e-6 look like none


def attention_map(
    pattern: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """One head's pattern (L,S): row i shows what token i attends to. Darker is more; grey is
    exactly 0, as for a key that is hidden.

    `tokens` label the queries, `key_tokens` the keys (None: the same, when there are as many).
    Draws on `ax`, or on a new figure, and returns the Axes. ValueError for other shapes.

    >>> import numpy as np, simdformer as sf
    >>> pattern = sf.softmax(sf.causal_mask(3, 3, dtype=np.float32))
    >>> ax = sf.plots.attention_map(pattern, ["the", " cat", " sat"])
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['the', '␣cat', '␣sat']
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    cells = matrix(pattern, "attention_map", "pattern")
    labels = both_labels("attention_map", cells.shape, tokens, key_tokens)
    with one_axes(ax, map_size(cells.shape, labels)) as axes:
        shown = draw_shares(axes, cells, labels)
        axes.set_title("attention pattern" if title is None else title)
        axes.set(xlabel="key", ylabel="query")
        share_bar(axes, shown)
        label_tokens([axes], cells.shape, labels)
    return axes


def score_map(
    scores: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """One head's scores (L,S) before softmax: orange below 0, purple above, grey where -inf hides
    a key. The colours end at the largest finite score in either direction.

    Labels, `ax` and result as in `attention_map`.

    >>> import numpy as np, simdformer as sf
    >>> ax = sf.plots.score_map(np.array([[2.0, -np.inf], [1.0, -1.0]]), title="scores")
    >>> ax.images[0].get_clim()
    (-2.0, 2.0)
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    cells = matrix(scores, "score_map", "scores")
    labels = both_labels("score_map", cells.shape, tokens, key_tokens)
    finite = np.abs(cells[np.isfinite(cells)])
    limit = float(finite.max(initial=0)) or 1.0
    with one_axes(ax, map_size(cells.shape, labels)) as axes:
        image = np.where(np.isfinite(cells), cells, np.nan)
        shown = draw(axes, image, labels, cmap=SIGNED, vmin=-limit, vmax=limit)
        axes.set_title("attention scores" if title is None else title)
        axes.set(xlabel="key", ylabel="query")
        colour_bar(axes, shown, "score")
        label_tokens([axes], cells.shape, labels)
    return axes


def attention_heads(
    pattern: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    columns: int = 4,
    title: str | None = None,
    ax: Any = None,
) -> Array:
    """Patterns (H,L,S) of many heads side by side, `heads` picks some: an array of Axes, one a
    head. `ax`: as many Axes as there are heads to show.

    >>> import numpy as np, simdformer as sf
    >>> pattern = np.full((6, 3, 3), 1 / 3)
    >>> axes = sf.plots.attention_heads(pattern, heads=[0, 5])
    >>> [ax.get_title(loc="left") for ax in axes]
    ['head 0', 'head 5']
    >>> import matplotlib.pyplot as plt; plt.close(axes[0].figure)
    """
    cells = read_floats("attention_heads", "pattern", pattern)
    if cells.ndim != 3 or not cells.size:
        raise ValueError(
            f"plots.attention_heads: pattern has shape {cells.shape}, needs (H,L,S), not empty"
        )
    if heads is not None and np.ndim(heads) != 1:
        needed = f"a list of numbers from 0 to {len(cells) - 1}"
        raise needs("attention_heads", "heads", heads, needed)
    wanted = list(range(len(cells)) if heads is None else heads)
    if not wanted or not all(is_whole(head, 0) and head < len(cells) for head in wanted):
        raise ValueError(
            f"plots.attention_heads: heads is {wanted}, needs some of 0 to {len(cells) - 1}"
        )
    labels = both_labels("attention_heads", cells.shape[1:], tokens, key_tokens)
    columns = max(1, min(columns, len(wanted)))
    rows = -(-len(wanted) // columns)
    margin = 0.2 if labels == (None, None) else 0.95  # inches that the labels take
    side = min(2.6, (WIDEST - margin - 0.6) / columns)
    size = (side * columns + margin + 0.6, (side + 0.25) * rows + margin + 0.1)
    with axes_grid(ax, len(wanted), columns, size) as grid:
        for index, (axes, head) in enumerate(zip(grid, wanted, strict=True)):
            shown = draw_shares(axes, cells[head], labels)
            axes.set_title(f"head {head}")
            if ax is not None or index + columns >= len(wanted):
                axes.set_xlabel("key")
            else:
                axes.tick_params(labelbottom=False)
            if ax is not None or index % columns == 0:
                axes.set_ylabel("query")
            else:
                axes.tick_params(labelleft=False)
        share_bar(grid, shown)
        if ax is None and title is not None:
            grid[0].figure.suptitle(title, x=0.01, ha="left")
        label_tokens(grid, cells.shape[1:], labels)
    array = np.empty(len(grid), dtype=object)
    array[:] = grid
    return array


def error_map(
    mine: ArrayLike, right: ArrayLike, *, axes: Sequence[str] = (), ax: "Axes | None" = None
) -> "Axes":
    """Where an array is wrong: |mine - right| of every element, as a part of the root mean square
    of its row (the last axis) in `right`, over the decades from a millionth to a hundredfold. Blue
    is a NaN or infinity that should not be there.

    Both have the same shape; leading axes stand below one another, with a line between. `axes` are
    the names of the last axes, as far as they have one: ("head", "query", "key"). A cell of a large
    array is the worst of several elements, so that none is lost. ValueError for shapes that differ.

    >>> import numpy as np, simdformer as sf
    >>> right = np.ones((4, 6))
    >>> mine = right.copy(); mine[2, 3] = 1.5
    >>> ax = sf.plots.error_map(mine, right)
    >>> np.round(ax.images[0].get_array()[2, 2:5], 3).tolist()
    [-6.0, -0.301, -6.0]
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    from matplotlib.patches import Patch

    mine, right = np.asarray(mine), np.asarray(right)
    if mine.shape != right.shape or not mine.size:
        raise ValueError(
            f"plots.error_map: mine has shape {mine.shape}, right has {right.shape}, needs "
            "two of one shape, not empty"
        )
    leading = mine.shape[:-2]
    errors = relative_errors(mine, right).reshape(-1, mine.shape[-1] if mine.ndim else 1)
    per_block = mine.shape[-2] if mine.ndim > 1 else 1
    cells, row_step, column_step = worst_of_blocks(errors)
    with np.errstate(divide="ignore"):
        decades = np.clip(np.log10(cells), LEAST_DECADE, MOST_DECADE)
    decades = np.where(np.isfinite(cells), decades, np.nan)
    height = float(np.clip(0.16 * len(cells) + 0.9, 2.0, 4.2))
    named = [*axes[-mine.ndim :]] if axes else []
    named = [f"axis {i}" for i in range(mine.ndim - len(named))] + named
    with one_axes(ax, (min(WIDEST, 6.4), height)) as drawn:
        shown = drawn.imshow(
            decades,
            cmap=colour_map(ERRORS).with_extremes(bad=COLOURS["blue"]),
            vmin=LEAST_DECADE,
            vmax=MOST_DECADE,
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, column_step * cells.shape[1] - 0.5, row_step * len(cells) - 0.5, -0.5),
        )
        dress(drawn, frame=False)
        drawn.set_xlim(-0.5, errors.shape[1] - 0.5)
        drawn.set_ylim(len(errors) - 0.5, -0.5)
        token_ticks(drawn, None, errors.shape[1], "x")
        token_ticks(drawn, None, len(errors), "y")
        blocks = list(np.ndindex(leading))
        if 1 < len(blocks) <= 64:
            edges = per_block * np.arange(1, len(blocks)) - 0.5
            drawn.hlines(edges, -0.5, errors.shape[1] - 0.5, colors="#707070", linewidth=0.6)
            names = [", ".join(map(str, block)) for block in blocks]
            every = -(-len(blocks) // 16)
            middles = per_block * (np.arange(len(blocks)) + 0.5) - 0.5
            drawn.set_yticks(middles[::every], labels=names[::every])
        drawn.set_xlabel(named[-1] if named else "")
        drawn.set_ylabel(", ".join(named[:-1]))
        drawn.set_title("error")
        bar = colour_bar(drawn, shown, "error / RMS of the row")
        ticks = range(LEAST_DECADE, MOST_DECADE + 1)
        bar.set_ticks(list(ticks), labels=[f"{10.0**decade:g}" for decade in ticks])
        if np.isnan(decades).any():
            broken = Patch(color=COLOURS["blue"], label="NaN or infinite")
            drawn.legend(handles=[broken], loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
    return drawn


# ---- what they share -----------------------------------------------------------------------------

Labels = tuple[Sequence[str] | None, Sequence[str] | None]


def matrix(array: ArrayLike, function: str, name: str) -> Array:
    cells = read_floats(function, name, array)
    if cells.ndim != 2 or not cells.size:
        raise ValueError(
            f"plots.{function}: {name} has shape {cells.shape}, needs (L,S), not empty; of "
            "several heads pick one, or see attention_heads"
        )
    return cells


def both_labels(
    function: str,
    shape: tuple[int, ...],
    tokens: Sequence[str] | None,
    key_tokens: Sequence[str] | None,
) -> Labels:
    """Labels of the rows and of the columns."""
    if key_tokens is None and tokens is not None and shape[0] == shape[1]:
        key_tokens = tokens
    for name, labels, needed in (
        ("tokens", tokens, shape[0]),
        ("key_tokens", key_tokens, shape[1]),
    ):
        if labels is None:
            continue
        check_texts(function, name, labels)
        if len(labels) != needed:
            raise ValueError(
                f"plots.{function}: {name} are {len(labels)}, needs {needed}, one for each"
            )
    return tokens, key_tokens


def map_size(shape: tuple[int, ...], labels: Labels) -> tuple[float, float]:
    """Inches of a figure for cells of that shape, and for labels beside them."""
    margin = 0.4 if labels == (None, None) else 1.1
    cell = float(np.clip(4.6 / max(shape), 0.02, 0.45))
    width, height = (max(cell * count, 0.5) + margin for count in (shape[1], shape[0]))
    return width + 0.8, height + 0.3


def draw_shares(axes: "Axes", pattern: Array, labels: Labels) -> Any:
    """Colours follow the square root of a share: among many tokens a tenth is a lot."""
    from matplotlib.colors import PowerNorm

    image = np.where(pattern == 0, np.nan, pattern)
    return draw(axes, image, labels, cmap=SHARES, norm=PowerNorm(0.5, 0, 1))


def share_bar(axes: Any, shown: Any) -> None:
    bar = colour_bar(axes, shown, "share")
    bar.set_ticks([0, 0.02, 0.1, 0.25, 0.5, 1], labels=["0", "0.02", "0.1", "0.25", "0.5", "1"])


def draw(axes: "Axes", image: Array, labels: Labels, **colours: Any) -> Any:
    rows, columns = image.shape
    stretched = max(rows, columns) > 4 * min(rows, columns)
    aspect: Any = "auto" if stretched else "equal"
    shown = axes.imshow(image, aspect=aspect, interpolation="nearest", **colours)
    axes.set_facecolor(HIDDEN)
    axes.grid(False)
    dress(axes, frame=False)
    token_ticks(axes, labels[0], rows, "y")
    token_ticks(axes, labels[1], columns, "x")
    return shown


def label_tokens(grid: Sequence["Axes"], shape: tuple[int, ...], labels: Labels) -> None:
    """Once more, in the size that fits. Slanted labels would push neighbours apart."""
    if labels == (None, None):
        return
    for axes in grid:
        token_ticks(axes, labels[1], shape[1], "x", upright=len(grid) > 1)
    settle(grid)
    for axes in grid:
        token_ticks(axes, labels[0], shape[0], "y")
        token_ticks(axes, labels[1], shape[1], "x", upright=len(grid) > 1)


def colour_map(name: str) -> Any:
    import matplotlib

    return matplotlib.colormaps[name]


def relative_errors(mine: Array, right: Array) -> Array:
    """|mine - right| / RMS of the row of `right`; 0 for equal infinities, NaN where only one of
    the two is finite. A row of zeros counts as of RMS 1."""
    wide = np.complex128 if np.iscomplexobj(mine) or np.iscomplexobj(right) else np.float64
    mine, right = np.atleast_1d(mine).astype(wide), np.atleast_1d(right).astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (mine == right) | (np.isnan(mine) & np.isnan(right))
        errors = np.where(same, 0, np.abs(mine - right))
    size = np.where(np.isfinite(right), np.abs(right), 0)
    rms = np.sqrt(np.mean(size**2, axis=-1, keepdims=True))
    relative: Array = errors / np.where(rms == 0, 1, rms)
    return np.where(np.isfinite(relative), relative, np.nan)


def worst_of_blocks(errors: Array) -> tuple[Array, int, int]:
    """At most MOST_CELLS along each axis: the largest of every block (NaN is larger than all), and
    how many rows and columns a block has."""
    steps = [-(-count // MOST_CELLS) for count in errors.shape]
    for axis, step in enumerate(steps):
        errors = np.maximum.reduceat(errors, np.arange(0, errors.shape[axis], step), axis=axis)
    return errors, steps[0], steps[1]
