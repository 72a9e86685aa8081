"""The one look of all pictures: fonts, colours, and how tokens become labels.

matplotlib is imported by the functions that draw, never before; rcParams are changed for the time
of a drawing and put back.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from simdformer.arguments import shown
from simdformer.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "COLOURS",
    "HIDDEN",
    "INK",
    "PALE",
    "axes_grid",
    "check_texts",
    "check_trace",
    "colour_bar",
    "dress",
    "needs",
    "one_axes",
    "pyplot",
    "read_floats",
    "settle",
    "shortened",
    "style",
    "token_ticks",
    "visible_token",
]

# Okabe and Ito 2008: eight colours that people with any colour vision tell apart; here six.
COLOURS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "sky": "#56B4E9",
    "purple": "#CC79A7",
}
INK, PALE = "#333333", "#B0B0B0"
HIDDEN = "#E4E4E4"  # the ground on which cells without a value stand

WIDEST = 8.6  # inches: what a notebook shows without shrinking
SMALLEST_TEXT, USUAL_TEXT = 6.0, 8.0  # points
CHARACTER = 0.62  # how wide one is, as a part of its size
LONGEST_LABEL = 14  # characters
INVISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})

# Tried in this order for characters that DejaVu Sans, which comes with matplotlib, does not have.
FURTHER_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
    "Noto Sans",
)


# ---- arguments -----------------------------------------------------------------------------------


def needs(function: str, name: str, found: Any, needed: str) -> TypeError:
    """What to raise for an argument of another kind. Large things are told by their type."""
    plain = found is None or isinstance(found, str | int | float)
    what = shown(found) if plain else f"a {type(found).__name__}"
    return TypeError(f"plots.{function}: {name} is {what}, needs {needed}")


def read_floats(function: str, name: str, value: Any) -> Array:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        of = f"an array of numbers; give its .{name}" if hasattr(value, name) else "numbers"
        raise needs(function, name, value, of) from None


def check_texts(function: str, name: str, labels: Any) -> None:
    """Labels are texts. (Ids would be taken for them.)"""
    if isinstance(labels, str | Sequence | np.ndarray):
        wrong = next((one for one in labels if not isinstance(one, str)), "")
        if not isinstance(wrong, str):
            raise TypeError(
                f"plots.{function}: {name} holds {shown(wrong)}, needs texts, one for each token"
            )
    else:
        raise needs(function, name, labels, "a list of texts, one for each token")


def check_trace(function: str, trace: Any) -> None:
    if not isinstance(trace, Mapping):
        raise needs(function, "trace", trace, "a trace; model.run_with_cache(text) gives one")


LOOK: dict[str, Any] = {
    "font.size": USUAL_TEXT,
    "text.color": INK,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titlepad": 7.0,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "figure.titlesize": 10.5,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.08,
    "axes.facecolor": "white",
    "grid.color": HIDDEN,
    "legend.fontsize": USUAL_TEXT,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": USUAL_TEXT,
    "ytick.labelsize": USUAL_TEXT,
}


def pyplot() -> Any:
    """matplotlib.pyplot; ImportError that says how to get it."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError(
            'simdformer.plots draws with matplotlib; pip install "simdformer[notebook]"'
        ) from error
    return matplotlib.pyplot


@contextmanager
def style() -> Iterator[None]:
    """The look of these pictures, for your own: `with sf.plots.style(): ...`. Outside of the block
    matplotlib's settings are what they were.

    >>> import simdformer as sf
    >>> import matplotlib as mpl
    >>> before = mpl.rcParams["font.size"]
    >>> with sf.plots.style():
    ...     mpl.rcParams["font.size"]
    8.0
    >>> mpl.rcParams["font.size"] == before
    True
    """
    plt = pyplot()
    interactive = plt.isinteractive()
    try:
        with plt.rc_context({**LOOK, "font.family": ["DejaVu Sans", *further_fonts()]}):
            try:
                yield
            finally:
                interactive = plt.isinteractive()
    finally:
        # The first figure of a notebook loads its backend, which switches this on for good.
        plt.matplotlib.interactive(interactive)


@cache
def further_fonts() -> tuple[str, ...]:
    """Those of FURTHER_FONTS that are installed; matplotlib complains about others."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return tuple(name for name in FURTHER_FONTS if name in installed)


@contextmanager
def one_axes(ax: "Axes | None", size: tuple[float, float]) -> Iterator["Axes"]:
    """The Axes to draw on, within the look: `ax`, or those of a new figure of `size` inches."""
    with axes_grid(None if ax is None else [ax], 1, 1, size) as grid:
        yield grid[0]


@contextmanager
def axes_grid(
    ax: Any, count: int, columns: int, size: tuple[float, float]
) -> Iterator[list["Axes"]]:
    """`count` Axes to draw on: the first of `ax`, or those of a new figure of `size` inches, with
    so many columns. A drawing that fails leaves no figure behind."""
    if ax is not None:
        given = list(np.ravel(np.asarray(ax, dtype=object)))
        if len(given) < count:
            raise ValueError(
                f"plots: ax has {len(given)} Axes, needs {count}; make as many with "
                "plt.subplots, or leave ax out"
            )
        with style():
            yield given[:count]
        return
    plt = pyplot()
    with style():
        rows = -(-count // columns)
        figure, made = plt.subplots(
            rows, columns, figsize=size, squeeze=False, layout="constrained"
        )
        try:
            for unused in made.flat[count:]:
                unused.remove()
            yield list(made.flat[:count])
        except BaseException:
            plt.close(figure)
            raise


def dress(ax: "Axes", *, frame: bool = True) -> None:
    """The look on Axes that somebody else has made: `style` reaches only what is made within."""
    ax.tick_params(length=2.5, color=PALE, labelcolor=INK, labelsize=USUAL_TEXT)
    for side, spine in ax.spines.items():
        spine.set_color(PALE)
        spine.set_visible(frame and side in ("left", "bottom"))
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(INK)
        label.set_fontsize(LOOK["axes.labelsize"])


def colour_bar(ax: Any, shown: Any, label: str) -> Any:
    """A thin one beside one Axes or a list of them."""
    figure = (ax[0] if isinstance(ax, list) else ax).figure
    bar = figure.colorbar(shown, ax=ax, aspect=30, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2.5, labelsize=USUAL_TEXT - 0.5, color=PALE, labelcolor=INK)
    bar.set_label(label, color=INK, fontsize=USUAL_TEXT)
    return bar


def visible_token(text: str) -> str:
    """A token as a label: blanks can be seen, what no font can draw is spelled out, and it is not
    too long.

    >>> visible_token(" answer"), visible_token("\\n\\n"), visible_token("")
    ('␣answer', '↵↵', '∅')
    """
    if len(text) > 1 and text.startswith("<|") and text.endswith("|>"):
        text = text[2:-2]  # Llama's special tokens
    text = text.translate(INVISIBLE) or "∅"
    text = "".join(character if drawable(character) else spelled(character) for character in text)
    return shortened(text, LONGEST_LABEL)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


@cache
def drawable(character: str) -> bool:
    """Whether one of the look's fonts has it."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return character.isprintable() and any(
        get_font(findfont(FontProperties(family=[name]))).get_char_index(ord(character))
        for name in ("DejaVu Sans", *further_fonts())
    )


def spelled(character: str) -> str:
    return ascii(character)[1:-1]


def token_ticks(
    ax: "Axes", tokens: Sequence[str] | None, count: int, which: str, *, upright: bool = False
) -> None:
    """Ticks for `count` cells along "x" or "y": tokens as labels, or positions where there are
    none. Where labels would touch they get smaller, then every second or third is left out. Those
    along "x" lie flat where they are short, or are slanted where there is room, unless `upright`.
    """
    axis = ax.xaxis if which == "x" else ax.yaxis
    if tokens is None:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
        return
    box = ax.get_window_extent()
    points = 72 / ax.figure.dpi * (box.width if which == "x" else box.height) / max(count, 1)
    size = min(max(0.8 * points, SMALLEST_TEXT), USUAL_TEXT)
    every = max(1, int(np.ceil(1.15 * size / max(points, 1e-9))))
    shown = range(0, count, every)
    turned: dict[str, Any] = {}
    if which == "x":
        longest = CHARACTER * size * max(len(visible_token(tokens[index])) for index in shown)
        if not upright and longest < 0.9 * every * points:
            angle, sides = 0, ("center", "top")
        elif upright or every * points < 1.6 * size:
            angle, sides = 90, ("right", "center")
        else:
            angle, sides = 45, ("right", "top")
        turned = dict(zip(("ha", "va"), sides, strict=True), rotation=angle, rotation_mode="anchor")
    axis.set_ticks(
        list(shown),
        labels=[visible_token(tokens[index]) for index in shown],
        fontsize=size,
        parse_math=False,
        **turned,
    )


def settle(axes: Sequence["Axes"]) -> None:
    """Lays a figure out, so that the Axes have the size they will be seen in. Labels that are made
    to fit come twice: before, to take their room, and after, in the size that fits."""
    figure = axes[0].get_figure(root=True)
    if figure is not None:
        figure.draw_without_rendering()
