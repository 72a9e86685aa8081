"""Splitting a vector into heads, and merging them again, in steps; and what goes wrong there.

x (...,L,H·D) <-> (...,H,L,D)
"""

import numpy as np

from simdformer.learn.catalogue import Mistakes, instead
from simdformer.learn.program import Program, State

HEADS = "01 §6"

split_heads = Program("split_heads")

merge_heads = Program("merge_heads")


@split_heads.step
def split(s: State) -> None:
    s.out = s.x.reshape(*s.x.shape[:-1], s.num_heads, -1).swapaxes(-3, -2)


@merge_heads.step
def merge(s: State) -> None:
    x = s.x.swapaxes(-3, -2)
    s.out = x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


# ---- mistakes ------------------------------------------------------------------------------------

Mistakes("split_heads.split", see=HEADS, fix="Reshape to (..., L, H, D) first, then swap L and H.")(
    """
    without_transpose: the heads are split without a transpose
        reshape(H, L, D) gives the right shape but never moves a number: head 0 gets the first
        tokens instead of the first elements of every token.
    as_d_h: the heads are split as (D, H) instead of (H, D)
        The elements of a head lie side by side; with (D, H) each head gets every H-th element.
    """,
    without_transpose=instead(
        out=lambda s: s.x.reshape(*s.x.shape[:-2], s.num_heads, s.x.shape[-2], -1)
    ),
    as_d_h=instead(
        out=lambda s: np.moveaxis(s.x.reshape(*s.x.shape[:-1], -1, s.num_heads), -1, -3)
    ),
)

Mistakes(
    "merge_heads.merge",
    see=HEADS,
    fix="Swap the axes H and L first, then reshape to (..., L, H * D).",
)(
    """
    no_transpose: the heads are merged without a transpose
        reshape(L, H * D) on (H, L, D) never moves a number: the first tokens of the result are all
        made of head 0.
    interleaved: the heads are merged as (D, H) instead of (H, D)
        The heads are interleaved where they should lie one after the other.
    """,
    no_transpose=instead(out=lambda s: s.x.reshape(*s.x.shape[:-3], s.x.shape[-2], -1)),
    interleaved=instead(
        out=lambda s: np.moveaxis(s.x, -3, -1).reshape(*s.x.shape[:-3], s.x.shape[-2], -1)
    ),
)
