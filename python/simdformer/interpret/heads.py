"""What heads do, told from their patterns: where each of them looks, one number for each habit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simdformer.arguments import as_array
from simdformer.models.progress import Progress
from simdformer.types import Array

__all__ = ["head_scores"]


def head_scores(trace: Mapping[str, Array], ids: Any = None) -> dict[str, Array]:
    """How much of each head's attention goes where, (layers, heads) each, averaged over queries.

    trace : Trace, or a mapping of layers.{i}.attn.pattern (H,L,S)
        For one text, read without a cache.
    ids : (L,) integers, optional
        What was read, where the trace does not say so.

    Returns a dict of float64 arrays, shares from 0 to 1 but for the last, over those queries that
    have such a place; NaN where none has, as in a text that repeats nothing:

    previous_token   to the token before
    first_token      to the first token of the text, where a head rests that has nothing to do
    same_token       to earlier places of the same token
    induction        to what came after earlier places of the same token (Olsson et al. 2022,
                     arXiv:2209.11895)
    entropy          of a row of the pattern, in bits: 0 looks at one token

    ValueError: no patterns, patterns that are not (H,L,L), ids of another length.

    >>> import numpy as np, simdformer as sf
    >>> looks_back = np.eye(4, k=-1)[None]                      # one head: the token before
    >>> looks_back[0, 0, 0] = 1
    >>> scores = sf.head_scores({"layers.0.attn.pattern": looks_back}, ids=[7, 8, 7, 8])
    >>> scores["previous_token"].round(2), scores["entropy"]
    (array([[1.]]), array([[0.]]))
    """
    patterns: list[Array] = []
    names = set(trace)  # a trace that is asked for a name it lacks looks for near ones
    while (name := f"layers.{len(patterns)}.attn.pattern") in names:
        patterns.append(np.asarray(trace[name]))
    if not patterns:
        raise ValueError(
            "head_scores: the trace has no layers.0.attn.pattern; run_with_cache(text, "
            "names='layers.*.attn.pattern') gives all"
        )
    shape = patterns[0].shape
    if len(shape) != 3 or shape[1] != shape[2] or any(one.shape != shape for one in patterns):
        raise ValueError(f"head_scores: patterns have shape {shape}, needs (H,L,L), of one text")
    length = shape[-1]
    tokens = as_array("head_scores", "ids", getattr(trace, "ids", None) if ids is None else ids)
    if tokens.shape != (length,):
        raise ValueError(
            f"head_scores: ids have shape {tokens.shape}, needs ({length},), a number for each "
            "position of the pattern"
        )
    query, key = np.indices((length, length))
    same = (tokens[:, None] == tokens[None, :]) & (key < query)
    after_same = np.zeros_like(same)
    after_same[:, 1:] = same[:, :-1]
    places = {
        "previous_token": key == query - 1,
        "first_token": (key == 0) & (query > 0),
        "same_token": same,
        "induction": after_same & (key <= query),
    }
    rows: dict[str, list[Array]] = {name: [] for name in (*places, "entropy")}
    with Progress("head scores", len(patterns), unit="layer") as progress:
        for pattern in patterns:
            wide = pattern.astype(np.float64)
            for name, where in places.items():
                rows[name].append(mean_share(wide, where))
            rows["entropy"].append(entropy(wide).mean(-1))
            progress.advance(1)
    return {name: np.stack(of_layers) for name, of_layers in rows.items()}


def mean_share(pattern: Array, places: Array) -> Array:
    """(H,): what goes to these places, on average over the queries that have any; NaN without."""
    queries = places.any(-1)
    if not queries.any():
        return np.full(len(pattern), np.nan)
    mean: Array = np.where(places, pattern, 0).sum(-1)[:, queries].mean(-1)
    return mean


def entropy(pattern: Array) -> Array:
    """In bits, over the last axis; a share of 0 adds nothing."""
    logs = np.log2(pattern, out=np.zeros_like(pattern), where=pattern > 0)
    bits: Array = -(pattern * logs).sum(-1)
    return bits
