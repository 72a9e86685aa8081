"""What goes wrong where query heads share key/value heads."""

import numpy as np

from simdformer.learn.program import State, mistake

GROUPS = "03 §3"

# ---- heads ---------------------------------------------------------------------------------------


@mistake(
    "attention.share",
    title="key/value heads are tiled a b a b instead of repeated a a b b",
    cause="np.tile, or torch's repeat, gives query head h the key head h % K, not h // group.",
    fix="Use np.repeat(key, H // K, axis=-3), in torch repeat_interleave, or sf.repeat_kv.",
    step=GROUPS,
)
def heads_tiled(s: State) -> None:
    order = np.arange(s.num_heads) % s.k.shape[-3]
    s.k, s.v = s.k[..., order, :, :], s.v[..., order, :, :]


@mistake(
    "attention.share",
    title="all query heads read the first key/value head",
    cause="An index 0, or broadcasting from one head: that is multi-query attention.",
    fix="Give query head h the key/value head h // (H // K).",
    step=GROUPS,
)
def one_kv_head(s: State) -> None:
    order = np.zeros(s.num_heads, int)
    s.k, s.v = s.k[..., order, :, :], s.v[..., order, :, :]


def hard_coded(size: int) -> None:
    @mistake(
        "attention.share",
        name=f"group_of_{size}",
        title=f"a group of {size} heads is written into the code",
        cause=f"head // {size} is right only where H / K is {size}; here it is another number.",
        fix="Compute the group: head // (H // K).",
        step=GROUPS,
    )
    def group(s: State) -> None:
        if s.num_heads <= size:
            raise ValueError("that is one head for all")
        order = np.arange(s.num_heads) // size
        s.k, s.v = s.k[..., order, :, :], s.v[..., order, :, :]


for size in (2, 4, 8):
    hard_coded(size)


@mistake(
    "attention.share",
    title="values are shared in another order than keys: tiled a b a b",
    cause="Only one of the two repeat lines is right.",
    fix="Repeat keys and values in the same way, a a b b.",
    step=GROUPS,
)
def values_tiled(s: State) -> None:
    order = np.arange(s.num_heads) % s.v.shape[-3]
    s.k, s.v = np.repeat(s.k, s.group, axis=-3), s.v[..., order, :, :]
