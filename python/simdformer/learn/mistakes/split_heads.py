"""Splitting a vector into heads, and merging them again, in steps; and what goes wrong there.

x (...,L,H·D) <-> (...,H,L,D)
"""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program

split_heads = Program(
    "split_heads",
    """
    split: out = x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-3, -2)
    """,
    takes=("x", "num_heads"),
)

merge_heads = Program(
    "merge_heads",
    """
    merge:
        x = x.swapaxes(-3, -2)
        out = x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
    """,
    takes=("x",),
)

mistakes(
    """
    split_heads.split (01 §6) > Reshape to (..., L, H, D) first, then swap L and H.

    without_transpose: the heads are split without a transpose
        reshape(H, L, D) gives the right shape but never moves a number: head 0 gets the first
        tokens instead of the first elements of every token.
        | out = x.reshape(*x.shape[:-2], num_heads, x.shape[-2], -1)
    as_d_h: the heads are split as (D, H) instead of (H, D)
        The elements of a head lie side by side; with (D, H) each head gets every H-th element.
        | out = np.moveaxis(x.reshape(*x.shape[:-1], -1, num_heads), -1, -3)

    merge_heads.merge (01 §6) > Swap the axes H and L first, then reshape to (..., L, H * D).

    no_transpose: the heads are merged without a transpose
        reshape(L, H * D) on (H, L, D) never moves a number: the first tokens of the result are all
        made of head 0.
        | out = x.reshape(*x.shape[:-3], x.shape[-2], -1)
    interleaved: the heads are merged as (D, H) instead of (H, D)
        The heads are interleaved where they should lie one after the other.
        | out = np.moveaxis(x, -3, -1).reshape(*x.shape[:-3], x.shape[-2], -1)
    """
)
