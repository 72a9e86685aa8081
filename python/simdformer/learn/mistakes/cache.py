"""A layer's KV cache, and what goes wrong when new keys or values are put behind the old.

old (...,P,D), new (...,L,D) -> (...,P+L,D)
"""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistakes, instead
from simdformer.learn.program import Program, State


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


def cache_overwritten(s: State) -> None:
    kept = max(s.before.shape[-2] - s.after.shape[-2], 0)
    s.out = np.concatenate([s.before[..., :kept, :], s.after], axis=-2)


Mistakes(
    "layer.cache_append",
    see="03 exercise 3",
    fix="Write np.concatenate([old, new], axis=-2) and keep the result.",
)(
    """
    cache_prepended: the new tokens are put in front of the old ones
        np.concatenate([new, old]): the order of the list is the order in the cache.
    cache_replaced: the cache forgets: it holds the new tokens alone
        The new keys and values replace the old ones.
    cache_unchanged: nothing is appended: the cache is the old one
        np.concatenate gives a new array and leaves its inputs as they are.
    cache_overwritten: the new tokens overwrite the newest of the old ones
        They are written at the end of the old cache, not behind it.
    """,
    cache_prepended=instead(out=lambda s: np.concatenate([s.after, s.before], axis=-2)),
    cache_replaced=instead(out=lambda s: s.after),
    cache_unchanged=instead(out=lambda s: s.before),
    cache_overwritten=cache_overwritten,
)
