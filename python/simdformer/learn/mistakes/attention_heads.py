"""What goes wrong where query heads share key/value heads."""

import numpy as np

from simdformer.learn.catalogue import Mistakes, instead, then
from simdformer.learn.program import State, Step

in_share = Mistakes(
    "attention.share", see="03 §3", fix="Give query head h the key/value head h // (H // K)."
)

in_share(
    """
    heads_tiled: key/value heads are tiled a b a b instead of repeated a a b b
        np.tile, or torch's repeat, gives query head h the key head h % K, not h // group.
        > Use np.repeat(key, H // K, axis=-3), in torch repeat_interleave, or sf.repeat_kv.
    values_tiled: values are shared in another order than keys: tiled a b a b
        Only one of the two repeat lines is right.
        > Repeat keys and values in the same way, a a b b.
    one_kv_head: all query heads read the first key/value head
        An index 0, or broadcasting from one head: that is multi-query attention.
    """,
    heads_tiled=instead(
        k_head=lambda s: np.arange(s.num_heads) % s.num_kv_heads,
        v_head=lambda s: np.arange(s.num_heads) % s.num_kv_heads,
    ),
    values_tiled=then(v_head=lambda s: np.arange(s.num_heads) % s.num_kv_heads),
    one_kv_head=then(k_head=lambda s: 0 * s.k_head, v_head=lambda s: 0 * s.v_head),
)


def group_of(size: int) -> Step:
    def group(s: State) -> None:
        if s.num_heads <= size:
            raise ValueError("that is one head for all")
        s.k_head = s.v_head = np.arange(s.num_heads) // size

    return group


for size in (2, 4, 8):
    in_share.add(
        f"group_of_{size}",
        group_of(size),
        f"a group of {size} heads is written into the code",
        f"head // {size} is right only where H / K is {size}; here it is another number.",
        "Compute the group: head // (H // K).",
    )
