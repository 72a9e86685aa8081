"""How the axes of a learner's array lie: with or without a batch, heads before positions or after
them, side by side, repeated, or one head alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simdformer.learn.check.operation import as_array
from simdformer.learn.trace.places import Place, heads_of, parts_of
from simdformer.models.activation_table import Activation, activation_of
from simdformer.models.config import ModelConfig

__all__ = [
    "View",
    "array_of",
    "as_it_is",
    "axes_of",
    "needed_shape",
    "taken_apart",
    "views",
    "whole",
]

Array = np.ndarray[Any, Any]
SQUARE = ("head", "query", "key")
CALLED = {"L": "position", "H": "head", "K": "head", "X": "expert", "k": "choice"}
Move = Callable[[Any], Any]


@dataclass(frozen=True)
class View:
    """One way to understand an array.

    take : gives the part of ours that it is to be compared with, in its axes
    back : gives ours from it; None where it is a part only
    axes : what its axes are called, the last one last
    head : which one, where it is one head alone
    top_last : whether a token's experts are in the order of argsort, not in that of topk
    """

    take: Move
    back: Move | None
    axes: tuple[str, ...]
    head: int | None = None
    top_last: bool = False


def array_of(value: Any) -> Array:
    """An array, a tensor, or a list of those: one a head."""
    if isinstance(value, list | tuple):
        value = [as_array(item) for item in value]
        return np.stack(value) if value and np.ndim(value[0]) else np.asarray(value)
    return np.asarray(as_array(value))


def row_of(name: str, config: ModelConfig) -> Activation:
    row = activation_of(config, name)
    assert row is not None  # a name of this model
    return row


def is_square(name: str, config: ModelConfig) -> bool:
    """Whether an activation has queries and keys as axes."""
    return row_of(name, config).is_square


def sizes_of(name: str, config: ModelConfig) -> dict[str, int]:
    """The axes of an activation behind that of the positions, and how long they are."""
    row = row_of(name, config)
    sizes = zip(row.axes, row.shape(config, 0), strict=True)
    return {CALLED.get(axis, "channel"): size for axis, size in sizes if axis not in "LS"}


def axes_of(name: str, config: ModelConfig) -> tuple[str, ...]:
    """What the axes of an activation are called in a trace."""
    row = row_of(name, config)
    if row.is_square:
        return SQUARE
    return tuple(CALLED.get(axis, "channel") for axis in row.axes)


def needed_shape(place: Place, config: ModelConfig, ids: Array, batched: bool) -> tuple[int, ...]:
    """The shape in a trace; that of one head where one is meant."""
    batch, length = ids.shape
    sizes = dict.fromkeys(("position", "query", "key"), length) | sizes_of(place.name, config)
    axes = axes_of(place.name, config)
    kept = [axis for axis in axes if place.head is None or axis != "head"]
    return (*((batch,) if batched else ()), *(sizes[axis] for axis in kept))


def views(shape: tuple[int, ...], place: Place, config: ModelConfig, ids: Array) -> Iterator[View]:
    """All ways to understand an array of this shape."""
    if len(ids) == 1:  # without a batch axis
        for view in views_behind_batch(shape, place, config, ids.shape[1]):
            yield without_batch(view)
    if shape[:1] == (len(ids),):
        yield from views_behind_batch(shape[1:], place, config, ids.shape[1])
    if len(ids) > 1 and shape[:1] == (ids.size,):  # all positions of the batch in a row
        for view in views_behind_batch((ids.shape[1], *shape[1:]), place, config, ids.shape[1]):
            if view.axes[0] == "position":
                yield in_a_row(view, ids)


def without_batch(view: View) -> View:
    take, back = view.take, view.back
    return replace(
        view,
        take=lambda ours: take(ours)[0],
        back=None if back is None else lambda theirs: back(theirs[None]),
    )


def in_a_row(view: View, ids: Array) -> View:
    take, back = view.take, view.back

    def cut(theirs: Any) -> Any:
        return theirs.reshape(*ids.shape, *theirs.shape[1:])

    return replace(
        view,
        take=lambda ours: (found := take(ours)).reshape(ids.size, *found.shape[2:]),
        back=None if back is None else lambda theirs: back(cut(theirs)),
    )


def views_behind_batch(
    rest: tuple[int, ...], place: Place, config: ModelConfig, length: int
) -> Iterator[View]:
    """The same for the axes behind that of the batch."""
    name, heads = place.name, heads_of(place.name, config)
    axes = axes_of(name, config)
    if heads:
        if place.head is None:
            yield from views_of_heads(rest, name, config, length)
        if rest == (length, length if is_square(name, config) else config.head_dim):
            one = tuple(axis for axis in axes if axis != "head")
            for head in range(heads) if place.head is None else [place.head]:
                yield View(head_of(name, head, config), None, one, head)
        return
    sizes = tuple(sizes_of(name, config).values())
    if rest == (length, *sizes):
        yield View(as_it_is, as_it_is, axes)
        if "choice" in axes and sizes[0] > 1:
            yield View(reversed_choices, reversed_choices, axes, top_last=True)
    elif name == "logits" and rest == sizes:  # of the last token alone
        yield View(lambda ours: ours[:, -1], None, axes[-1:])
    elif name == "logits" and rest == (1, *sizes):
        yield View(lambda ours: ours[:, -1:], None, axes)
    elif rest == (length,) and sizes == (1,):
        yield View(lambda ours: ours[..., 0], lambda theirs: theirs[..., None], axes[:1])


def views_of_heads(
    rest: tuple[int, ...], name: str, config: ModelConfig, length: int
) -> Iterator[View]:
    """All heads at once."""
    heads, size, many = heads_of(name, config), config.head_dim, config.num_heads
    if is_square(name, config):
        if rest == (heads, length, length):
            yield View(as_it_is, as_it_is, ("head", "query", "key"))
        if rest == (length, heads, length):
            yield View(exchanged, exchanged, ("query", "head", "key"))
        return
    if rest == (length, heads, size):
        yield View(as_it_is, as_it_is, ("position", "head", "channel"))
    if rest == (heads, length, size):
        yield View(exchanged, exchanged, ("head", "position", "channel"))
    if rest == (length, heads * size):
        yield View(
            lambda ours: ours.reshape(*ours.shape[:2], heads * size),
            lambda theirs: theirs.reshape(*theirs.shape[:2], heads, size),
            ("position", "channel"),
        )
    if many != heads:  # keys and values after repeat_kv
        n = many // heads
        if rest == (length, many, size):
            yield View(
                lambda ours: np.repeat(ours, n, axis=2),
                lambda theirs: theirs[:, :, ::n],
                ("position", "head", "channel"),
            )
        if rest == (many, length, size):
            yield View(
                lambda ours: np.repeat(exchanged(ours), n, axis=1),
                lambda theirs: exchanged(theirs[:, ::n]),
                ("head", "position", "channel"),
            )


def head_of(name: str, head: int, config: ModelConfig) -> Move:
    if is_square(name, config):
        return lambda ours: ours[:, head]
    return lambda ours: ours[:, :, head]


def exchanged(x: Any) -> Any:
    return x.swapaxes(1, 2)


def reversed_choices(x: Any) -> Any:
    return x[:, :, ::-1]


def as_it_is(x: Any) -> Any:
    return x


def whole(place: Place, config: ModelConfig, ndim: int, ids: Array) -> View | None:
    """How an array of another number of experts a token is understood."""
    axes = axes_of(place.name, config)
    if "choice" not in axes or ndim not in (len(axes), len(axes) + 1):
        return None
    view = View(as_it_is, None, axes)
    return view if ndim > len(axes) or len(ids) > 1 else without_batch(view)


def taken_apart(array: Array, place: Place, config: ModelConfig) -> list[tuple[Place, Array]]:
    """What one matrix makes of q, k and v, or of gate and up, as several activations."""
    names = parts_of(place.name)
    if not names:
        return [(place, array)]
    ends = np.cumsum([np.prod([*sizes_of(name, config).values()]) for name in names])
    pieces = np.split(array, ends[:-1], axis=-1) if array.ndim else [array]
    return [(Place(name), piece) for name, piece in zip(names, pieces, strict=False)]
