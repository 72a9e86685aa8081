"""Pictures of RoPE: pairs of numbers as arrows that turn, each pair at its own speed."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.learn.plots.look import (
    COLOURS,
    INK,
    PALE,
    USUAL_TEXT,
    WIDEST,
    axes_grid,
    dress,
    needs,
    one_axes,
    read_floats,
)
from simdformer.types import Array, ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["rope_bands", "rope_circle", "rope_turns"]

# Labels around a circle, in points.
LABEL_DISTANCE, LABEL_HEIGHT, CHARACTER_WIDTH = 9, 9.5, 4.5
RADIUS_LARGE, RADIUS_SMALL = 88, 46


def rope_circle(row: ArrayLike, *, title: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """One row of `freqs_cis`, the complex numbers (D/2,) that turn the pairs of one token: an arrow
    a pair, numbered around the unit circle. Dark pairs are fast, light ones slow; pairs that lie
    together share a label.

    >>> import numpy as np, simdformer as sf
    >>> row = np.exp(3j * sf.rope_frequencies(16, theta=500000.0).inv_freq)
    >>> ax = sf.plots.rope_circle(row, title="token 3")
    >>> len(ax.collections[0].get_offsets()), ax.get_xlabel()
    (8, 'real part')
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    try:
        numbers = np.asarray(row, np.complex128)
    except (TypeError, ValueError):
        raise needs("rope_circle", "row", row, "one row of freqs_cis") from None
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(
            f"plots.rope_circle: row has shape {numbers.shape}, needs (D/2,): one row of freqs_cis"
        )
    with one_axes(ax, (4.3, 4.3)) as axes:
        colours = shades(len(numbers))
        unit_circle(axes)
        # The slow pairs first, so that the fast ones lie on top.
        for index in reversed(range(len(numbers))):
            tip = numbers[index]
            axes.plot([0, tip.real], [0, tip.imag], color=colours[index], linewidth=1.2, zorder=2)
        axes.scatter(numbers.real, numbers.imag, c=colours, s=16, zorder=3)
        around_the_circle(axes, np.angle(numbers), RADIUS_LARGE)
        axes.set_title("one row of freqs_cis" if title is None else title)
        axes.set_xlabel("real part")
        axes.set_ylabel("imaginary part")
    return axes


def rope_turns(
    inv_freq: ArrayLike,
    positions: int = 17,
    *,
    pairs: Sequence[int] | None = None,
    ax: Any = None,
) -> Array:
    """Where the pairs point at the positions 0, 1, 2, ...: a circle a pair, an array of Axes.

    `inv_freq` (D/2,) are the angles a position, as `sf.rope_frequencies` gives them; `pairs` says
    which to show (None: four of the faster half). `ax`: as many Axes.

    >>> import simdformer as sf
    >>> axes = sf.plots.rope_turns(sf.rope_frequencies(16, theta=1e4).inv_freq, pairs=[0, 3])
    >>> axes[0].collections[0].get_offsets().shape # the arrow tips of 17 positions
    (17, 2)
    >>> import matplotlib.pyplot as plt; plt.close(axes[0].figure)
    """
    speeds = frequencies(inv_freq, "rope_turns")
    if positions < 1:
        raise ValueError(f"plots.rope_turns: positions is {positions}, needs a number > 0")
    if pairs is None:
        pairs = sorted({round(part * (len(speeds) - 1)) for part in (0, 1 / 8, 1 / 4, 1 / 2)})
    if not pairs or not all(0 <= pair < len(speeds) for pair in pairs):
        raise ValueError(
            f"plots.rope_turns: pairs is {list(pairs)}, needs some of 0 to {len(speeds) - 1}"
        )
    columns = min(4, len(pairs))
    side = min(2.6, WIDEST / columns)
    size = (side * columns, (side + 0.35) * -(-len(pairs) // columns))
    with axes_grid(ax, len(pairs), columns, size) as grid:
        for axes, pair in zip(grid, pairs, strict=True):
            angles = np.arange(positions) * speeds[pair]
            unit_circle(axes)
            axes.scatter(np.cos(angles), np.sin(angles), c=shades(positions), s=22, zorder=3)
            around_the_circle(axes, angles, RADIUS_SMALL)
            axes.set_title(
                f"pair {pair}: {speeds[pair]:.3g} rad a token,\none turn in {turn(speeds[pair])}",
                fontsize=USUAL_TEXT,
            )
            axes.set_xticks([])
            axes.set_yticks([])
    array = np.empty(len(grid), dtype=object)
    array[:] = grid
    return array


def rope_bands(
    inv_freq: ArrayLike,
    *,
    context: int | None = None,
    scaled: ArrayLike | None = None,
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """How many tokens each pair takes for one turn, on a logarithmic axis.

    With a `context` length the pairs that finish a turn within it (their angle tells near positions
    apart) and those that do not (they tell far ones apart) differ in colour. `scaled`: the
    frequencies after a method that stretches them (llama3, YaRN), to compare.

    >>> import simdformer as sf
    >>> ax = sf.plots.rope_bands(sf.rope_frequencies(128, theta=500000.0).inv_freq, context=8192)
    >>> ax.get_yscale()
    'log'
    >>> import matplotlib.pyplot as plt; plt.close(ax.figure)
    """
    lengths = 2 * np.pi / frequencies(inv_freq, "rope_bands")
    stretched = None if scaled is None else 2 * np.pi / frequencies(scaled, "rope_bands")
    if stretched is not None and stretched.shape != lengths.shape:
        raise ValueError(
            f"plots.rope_bands: scaled has {stretched.size} frequencies, inv_freq {lengths.size}; "
            "needs as many"
        )
    pairs = np.arange(lengths.size)
    with one_axes(ax, (6.4, 3.2)) as axes:
        axes.set_yscale("log")
        inside = lengths <= (np.inf if context is None else context)
        for chosen, colour, marker, text in (
            (inside, "blue", "o", "turns at least once" if context else "one turn"),
            (~inside, "orange", "s", "less than one turn"),
        ):
            if chosen.any():
                axes.scatter(
                    pairs[chosen],
                    lengths[chosen],
                    color=COLOURS[colour],
                    marker=marker,
                    s=16,
                    label=text,
                    zorder=3,
                )
        if stretched is not None:
            axes.scatter(
                pairs,
                stretched,
                color=COLOURS["purple"],
                marker="x",
                s=18,
                label="scaled",
                zorder=3,
            )
        if context is not None:
            axes.axhline(context, color=INK, linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                f"context of {context:,} tokens",
                (0, context),
                xytext=(0, 3),
                textcoords="offset points",
                fontsize=USUAL_TEXT,
                color=INK,
            )
        dress(axes)
        axes.grid(True, axis="y", color="#E8E8E8", linewidth=0.7)
        axes.minorticks_off()
        axes.set_xlabel("pair")
        axes.set_ylabel("tokens for one turn")
        axes.set_title("RoPE: fast pairs and slow pairs" if title is None else title)
        if context is not None or stretched is not None:
            axes.legend(loc="lower right")
    return axes


# ---- what they share -----------------------------------------------------------------------------


def frequencies(inv_freq: ArrayLike, function: str) -> Array:
    speeds = read_floats(function, "inv_freq", inv_freq)
    if speeds.ndim != 1 or not speeds.size or not (speeds > 0).all():
        raise ValueError(
            f"plots.{function}: inv_freq has shape {speeds.shape}, needs (D/2,), all above 0; "
            "rope_frequencies(head_dim, theta=...).inv_freq gives them"
        )
    return speeds


def shades(count: int) -> Array:
    """Colours from dark to light, none too light to be seen on white."""
    import matplotlib

    return np.asarray(matplotlib.colormaps["viridis"](np.linspace(0, 0.85, count)))


def unit_circle(axes: "Axes") -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle((0, 0), 1, fill=False, color=PALE, linewidth=0.8, zorder=1))
    axes.axhline(0, color="#E8E8E8", linewidth=0.8, zorder=0)
    axes.axvline(0, color="#E8E8E8", linewidth=0.8, zorder=0)
    axes.set_xlim(-1.35, 1.35)
    axes.set_ylim(-1.35, 1.35)
    axes.set_aspect("equal")
    dress(axes, frame=False)
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])


def around_the_circle(axes: "Axes", angles: Array, radius: float) -> None:
    """Numbers outside of the unit circle, which is `radius` points large; neighbours share a label
    where theirs would touch."""
    order = np.argsort(np.mod(angles, 2 * np.pi), kind="stable")
    labels = [Label([int(index)], angles, radius) for index in order]
    count = 0
    while count != len(labels):
        count = len(labels)
        merged = labels[:1]
        for label in labels[1:]:
            if merged[-1].touches(label):
                merged[-1] = Label(merged[-1].members + label.members, angles, radius)
            else:
                merged.append(label)
        if len(merged) > 1 and merged[-1].touches(merged[0]):
            merged[0] = Label(merged.pop().members + merged[0].members, angles, radius)
        labels = merged
    for label in labels:
        axes.annotate(
            label.text,
            (np.cos(label.angle), np.sin(label.angle)),
            xytext=(LABEL_DISTANCE * np.cos(label.angle), LABEL_DISTANCE * np.sin(label.angle)),
            textcoords="offset points",
            ha=label.alignment,
            va="center",
            fontsize=USUAL_TEXT - 1,
            color=INK,
        )


class Label:
    """The numbers of some arrows: where it stands, and the room that it takes in points."""

    def __init__(self, members: list[int], angles: Array, radius: float) -> None:
        self.members = members
        self.text = together(sorted(members))
        self.angle = float(np.angle(np.exp(1j * angles[members]).mean()))
        x, y = math.cos(self.angle), math.sin(self.angle)
        self.width = width = CHARACTER_WIDTH * len(self.text)
        self.alignment = "center" if abs(x) < 0.5 else "left" if x > 0 else "right"
        shift = {"center": 0, "left": width / 2, "right": -width / 2}[self.alignment]
        self.x, self.y = (radius + LABEL_DISTANCE) * x + shift, (radius + LABEL_DISTANCE) * y

    def touches(self, other: "Label") -> bool:
        across = abs(self.x - other.x) < (self.width + other.width) / 2 + CHARACTER_WIDTH / 2
        return across and abs(self.y - other.y) < LABEL_HEIGHT


def together(members: list[int]) -> str:
    """3; 3, 9; 20–63; and where more than three do not follow one another, 3 … 41."""
    if len(members) > 2 and members == list(range(members[0], members[-1] + 1)):
        return f"{members[0]}–{members[-1]}"
    return ", ".join(map(str, members)) if len(members) <= 3 else f"{members[0]} … {members[-1]}"


def turn(speed: float) -> str:
    """The tokens for one turn in words."""
    tokens = 2 * np.pi / speed
    return f"{tokens:.1f} tokens" if tokens < 100 else f"{tokens:,.0f} tokens"
