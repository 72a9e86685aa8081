"""A layer's KV cache, and what goes wrong when new keys or values are put behind the old.

old (...,P,D), new (...,L,D) -> (...,P+L,D)
"""

from typing import Any

import numpy as np

from simdformer.learn.program import Program, State, mistake

CACHE = "03 exercise 3"


def appended(old: Any, new: Any) -> Any:
    """What a cache holds after a step: (...,P+L,D)"""
    return np.concatenate([old, new], axis=-2)


cache = Program("layer", of=appended, axes=("head", "position", "channel"))


@cache.step
def cache_inputs(s: State) -> None:
    s.before, s.after = s.run.array(s.old), s.run.array(s.new)


@cache.step
def cache_append(s: State) -> None:
    s.out = np.concatenate([s.before, s.after], axis=-2)


@mistake(
    "layer.cache_append",
    title="the new tokens are put in front of the old ones",
    cause="np.concatenate([new, old]): the order of the list is the order in the cache.",
    fix="Write np.concatenate([old, new], axis=-2): the position of a token is its place in the "
    "cache.",
    step=CACHE,
)
def cache_prepended(s: State) -> None:
    s.out = np.concatenate([s.after, s.before], axis=-2)


@mistake(
    "layer.cache_append",
    title="the cache forgets: it holds the new tokens alone",
    cause="The new keys and values replace the old ones.",
    fix="Write np.concatenate([old, new], axis=-2) and keep the result.",
    step=CACHE,
)
def cache_replaced(s: State) -> None:
    s.out = s.after


@mistake(
    "layer.cache_append",
    title="nothing is appended: the cache is the old one",
    cause="np.concatenate gives a new array and leaves its inputs as they are.",
    fix="Keep and return what np.concatenate gives.",
    step=CACHE,
)
def cache_unchanged(s: State) -> None:
    s.out = s.before


@mistake(
    "layer.cache_append",
    title="the new tokens overwrite the newest of the old ones",
    cause="They are written at the end of the old cache, not behind it.",
    fix="Write np.concatenate([old, new], axis=-2): the cache grows with every step.",
    step=CACHE,
)
def cache_overwritten(s: State) -> None:
    kept = max(s.before.shape[-2] - s.after.shape[-2], 0)
    s.out = np.concatenate([s.before[..., :kept, :], s.after], axis=-2)
