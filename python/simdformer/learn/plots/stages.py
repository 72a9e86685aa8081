"""One head's attention in three pictures: scores, what the mask leaves of them, their softmax."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simdformer.functional import softmax
from simdformer.learn.plots.attention import (
    SIGNED,
    both_labels,
    draw,
    draw_shares,
    label_tokens,
    matrix,
    share_bar,
)
from simdformer.learn.plots.look import WIDEST, axes_grid, colour_bar
from simdformer.types import Array, ArrayLike

__all__ = ["attention_stages"]

TITLES = ("scores", "scores with the mask", "pattern = softmax")


def attention_stages(
    scores: ArrayLike,
    mask: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    ax: Any = None,
) -> Array:
    """How one head's scores (L,S) become a pattern: the scores, what `mask` leaves of them, and the
    shares after softmax. The first two have the same colours; grey is hidden.

    `mask` (L,S) is boolean (True may be seen) or is added; labels as in `attention_map`. `ax`:
    three Axes. Gives an array of them. ValueError for other shapes, and for a row that sees
    nothing.

    >>> import numpy as np, simdformer as sf
    >>> axes = sf.plots.attention_stages(np.eye(3), sf.causal_mask(3, 3))
    >>> axes[2].images[0].get_array()[0].tolist()
    [1.0, None, None]
    >>> import matplotlib.pyplot as plt; plt.close(axes[0].figure)
    """
    raw = matrix(scores, "attention_stages", "scores")
    hidden = np.asarray(mask)
    if hidden.shape != raw.shape:
        raise ValueError(
            f"plots.attention_stages: mask has shape {hidden.shape}, scores have {raw.shape}; "
            "needs two of one shape"
        )
    masked = np.where(hidden, raw, -np.inf) if hidden.dtype == bool else raw + hidden
    if np.isneginf(masked).all(-1).any():
        raise ValueError("plots.attention_stages: mask hides all keys of a query")
    labels = both_labels("attention_stages", raw.shape, tokens, key_tokens)
    limit = float(np.abs(raw[np.isfinite(raw)]).max(initial=0)) or 1.0
    with axes_grid(ax, 3, 3, (WIDEST, 3.2)) as grid:
        for axes, cells in zip(grid, (raw, masked), strict=False):
            image = np.where(np.isfinite(cells), cells, np.nan)
            shown = draw(axes, image, labels, cmap=SIGNED, vmin=-limit, vmax=limit)
        colour_bar(grid[:2], shown, "score")
        share_bar(grid[2], draw_shares(grid[2], softmax(masked), labels))
        for axes, title in zip(grid, TITLES, strict=True):
            axes.set_title(title)
            axes.set_xlabel("key")
        grid[0].set_ylabel("query")
        label_tokens(grid, raw.shape, labels)
    array = np.empty(3, dtype=object)
    array[:] = grid
    return array
