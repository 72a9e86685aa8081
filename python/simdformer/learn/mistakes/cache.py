"""A layer's KV cache, and what goes wrong when new keys or values are put behind the old.

old (...,P,D), new (...,L,D) -> (...,P+L,D)
"""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program

cache = Program(
    "layer",
    """
    cache_inputs: before, after = array(old), array(new)
    cache_append: out = np.concatenate([before, after], axis=-2)
    """,
    takes=("old", "new"),
    axes=("head", "position", "channel"),
)

mistakes(
    """
    layer.cache_append (03 exercise 3) > Write np.concatenate([old, new], axis=-2) and keep the
        result.

    cache_prepended: the new tokens are put in front of the old ones
        np.concatenate([new, old]): the order of the list is the order in the cache.
        | out = np.concatenate([after, before], axis=-2)
    cache_replaced: the cache forgets: it holds the new tokens alone
        The new keys and values replace the old ones.
        | out = after
    cache_unchanged: nothing is appended: the cache is the old one
        np.concatenate gives a new array and leaves its inputs as they are.
        | out = before
    cache_overwritten: the new tokens overwrite the newest of the old ones
        They are written at the end of the old cache, not behind it.
        | kept = max(before.shape[-2] - after.shape[-2], 0)
        | out = np.concatenate([before[..., :kept, :], after], axis=-2)
    """
)
