"""What is enough and what is needed: activations of one text put into another, or taken away."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from simdformer.arguments import shown
from simdformer.interpret.effects import Effects
from simdformer.interpret.metric import Metric, MetricLike, read_metric
from simdformer.interpret.subject import Subject, counting_layers, read_subject
from simdformer.models.activation_table import (
    Activation,
    activation_of,
    layer_and_short_name,
    trace_names,
)
from simdformer.models.config import ModelConfig
from simdformer.models.observer import meant_names
from simdformer.models.progress import Progress
from simdformer.types import Array

__all__ = ["ablate", "patch"]

By = Literal["position", "head", "layer"]
SIZES = ("position", "head", "layer")
MOST_ROWS, MOST_LOGITS = 32, 1 << 26  # texts that are read side by side, and what they may give


def patch(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: MetricLike,
    names: str | None = None,
    *,
    by: By = "position",
) -> Effects:
    """Activation patching: `corrupted` is read again and again, each time with one activation of
    `clean` in it, and what that restores of the metric is told. Meng et al. 2022, arXiv:2202.05262.

    Parameters
    ----------
    model : LanguageModel or Transformer
    clean, corrupted : str, or ids (L,)
        Two texts of the same number of tokens.
    metric : function of logits (L,V), token, or pair of tokens
        A token stands for its logit at the last position, a pair for the difference of theirs.
    names : str, optional
        Which activation of each layer, a name or a glob; by default "layers.*.resid_pre" by
        position or layer, "layers.*.attn.z" by head.
    by : {"position", "head", "layer"}
        How much of it at a time.

    Returns
    -------
    float64 ndarray (layers, positions), (layers, heads), or (layers,)
        (metric patched - metric corrupted) / (metric clean - metric corrupted): 0 nothing, 1 all of
        the metric is restored. `layers` are those that `names` fits, in order. The array knows its
        labels (`names`, `places`), and is a table in a notebook.

    Raises
    ------
    ValueError
        Texts of unequal length; a metric that is the same for both; `by` with a name that has none.
    KeyError
        No activation is called so; near names are listed.

    It takes a forward pass for each number; a progress bar of layers is shown after a second.
    """
    subject = read_subject("patch", model, clean)
    other = read_subject("patch", model, corrupted)
    if len(subject.ids) != len(other.ids):
        raise ValueError(
            f"patch: clean has {len(subject.ids)} tokens, corrupted {len(other.ids)}, needs "
            f"as many, so that positions mean the same: {subject.tokens} and {other.tokens}"
        )
    number = read_metric(subject, metric)
    chosen = read_names(subject, names, by)
    right_logits, trace = subject.run(chosen)
    right, wrong = number(right_logits), number(other.run(())[0])
    if right == wrong:
        raise ValueError(
            f"patch: the metric is {right:g} for both texts, needs one that tells them apart"
        )

    def put_in(name: str, value: Array, at: Any) -> None:
        value[at] = trace[name][at]

    patched = run_through(other, chosen, by, number, put_in)
    share = (patched - wrong) / (right - wrong)
    places = labels(subject, by, chosen[0])
    return Effects.of(share, "share of the metric that is restored", chosen, places)


def ablate(
    model: Any,
    text: Any,
    metric: MetricLike,
    names: str | None = None,
    *,
    by: By = "head",
    value: Literal["zero", "mean"] = "zero",
) -> Effects:
    """What is lost when one activation at a time is taken away: metric in full - metric without it.

    Parameters
    ----------
    model, metric, names
        As in `patch`; names by default "layers.*.attn.z" by head, else "layers.*.mlp.out".
    text : str, or ids (L,)
    by : {"head", "position", "layer"}
        How much of it at a time.
    value : {"zero", "mean"}
        What stands in its place: nothing, or its mean over the positions of this text.

    Returns
    -------
    float64 ndarray (layers, heads), (layers, positions), or (layers,)
        Positive where the metric needs what was taken away. Labels as those of `patch`.

    Raises
    ------
    ValueError, KeyError
        As `patch`.

    As many forward passes, behind the same progress bar.
    """
    subject = read_subject("ablate", model, text)
    if value not in ("zero", "mean"):
        raise ValueError(f"ablate: value is {shown(value)}, needs 'zero' or 'mean'")
    number = read_metric(subject, metric)
    chosen = read_names(subject, names, by, otherwise="layers.*.mlp.out")
    whole = number(subject.run(())[0])

    def take_away(name: str, own: Array, at: Any) -> None:
        positions = row_of(subject.transformer.config, name).axes.index("L")
        instead = np.zeros_like(own) if value == "zero" else own.mean(positions, keepdims=True)
        own[at] = np.broadcast_to(instead, own.shape)[at]

    lost = whole - run_through(subject, chosen, by, number, take_away)
    return Effects.of(lost, "what the metric loses", chosen, labels(subject, by, chosen[0]))


# ---- what both do --------------------------------------------------------------------------------


def read_names(
    subject: Subject, names: str | None, by: str, *, otherwise: str = "layers.*.resid_pre"
) -> list[str]:
    """The activations, one a layer."""
    if by not in SIZES:
        raise ValueError(f"{subject.function}: by is {shown(by)}, needs one of {', '.join(SIZES)}")
    glob = names if names is not None else "layers.*.attn.z" if by == "head" else otherwise
    if not isinstance(glob, str):
        raise TypeError(f"{subject.function}: names is {shown(names)}, needs a name or a glob")
    config = subject.transformer.config
    found = meant_names(config, glob, subject.function)
    kinds = {layer_and_short_name(name)[1] for name in found}
    if len(kinds) > 1:
        raise ValueError(
            f"{subject.function}: names {glob!r} fits {', '.join(sorted(kinds)[:4])}, needs "
            "one activation of each layer"
        )
    (kind,) = kinds
    row = row_of(config, found[0])
    if by == "head" and row.head_axis is None:
        having = [name for name in trace_names(config, on_request=True) if has_heads(config, name)]
        known = dict.fromkeys(layer_and_short_name(name)[1] for name in having)
        raise ValueError(
            f"{subject.function}: {kind} has no heads; by='head' needs one of {', '.join(known)}"
        )
    if by == "position" and row.is_square:
        raise ValueError(
            f"{subject.function}: {kind} belongs to two positions at a time, needs "
            "by='head' or by='layer'"
        )
    return found


def labels(subject: Subject, by: By, name: str) -> list[str]:
    """What the columns of a table are."""
    if by == "position":
        return [f"{at} {token}" for at, token in enumerate(subject.tokens)]
    heads = row_of(subject.transformer.config, name).heads(subject.transformer.config)
    return [f"head {head}" for head in range(heads)] if by == "head" else []


def run_through(
    subject: Subject,
    names: list[str],
    by: By,
    metric: Metric,
    change: Callable[[str, Array, Any], None],
) -> Array:
    """The metric after `change(name, value, place)` of one place at a time: (names, places)."""
    model, length = subject.transformer, len(subject.ids)
    side_by_side = int(np.clip(MOST_LOGITS // (length * model.config.vocab_size), 1, MOST_ROWS))
    places = {name: list(places_of(name, by, model.config, length)) for name in names}
    results = {name: np.empty(len(places[name])) for name in names}
    layers = sum(map(len, places.values())) * model.config.num_layers
    with Progress(subject.function, layers, unit="layer") as progress:
        for name in names:
            for begin in range(0, len(places[name]), side_by_side):
                some = places[name][begin : begin + side_by_side]

                def edit(values: Array, name: str = name, some: list[Any] = some) -> None:
                    for row, at in enumerate(some):
                        change(name, values[row], at)

                ids = np.broadcast_to(subject.ids, (len(some), length))
                logits = model(ids, edit=counting_layers(progress, len(some)) | {name: edit})
                results[name][begin : begin + len(some)] = [metric(one) for one in logits]
    table = np.stack([results[name] for name in names])
    return table[:, 0] if by == "layer" else table


def places_of(name: str, by: By, config: ModelConfig, length: int) -> Iterator[Any]:
    """Indices into one text's activation, each of which is changed by itself."""
    if by == "layer":
        yield ...
    elif by == "position":
        yield from range(length)
    else:
        row = row_of(config, name)
        before = (slice(None),) * (row.head_axis or 0)
        yield from ((*before, head) for head in range(row.heads(config)))


def row_of(config: ModelConfig, name: str) -> Activation:
    row = activation_of(config, name)
    assert row is not None  # a name of this model
    return row


def has_heads(config: ModelConfig, name: str) -> bool:
    return row_of(config, name).head_axis is not None
