"""Splitting a vector into heads, and merging them again, in steps; and what goes wrong there.

x (...,L,H·D) <-> (...,H,L,D)
"""

import numpy as np

from simdformer.learn.program import Program, State, mistake

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


@mistake(
    "split_heads.split",
    title="the heads are split without a transpose",
    cause="reshape(H, L, D) gives the right shape but never moves a number: head 0 gets the first "
    "tokens instead of the first elements of every token.",
    fix="Reshape to (..., L, H, D) first, then swap the axes L and H.",
    step=HEADS,
)
def without_transpose(s: State) -> None:
    s.out = s.x.reshape(*s.x.shape[:-2], s.num_heads, s.x.shape[-2], -1)


@mistake(
    "split_heads.split",
    title="the heads are split as (D, H) instead of (H, D)",
    cause="The elements of a head lie side by side; with (D, H) each head gets every H-th element.",
    fix="Reshape to (..., L, H, D): the heads first, then the elements of each.",
    step=HEADS,
)
def as_d_h(s: State) -> None:
    s.out = np.moveaxis(s.x.reshape(*s.x.shape[:-1], -1, s.num_heads), -1, -3)


@mistake(
    "merge_heads.merge",
    title="the heads are merged without a transpose",
    cause="reshape(L, H * D) on (H, L, D) never moves a number: the first tokens of the result are "
    "all made of head 0.",
    fix="Swap the axes H and L first, then reshape to (..., L, H * D).",
    step=HEADS,
)
def no_transpose(s: State) -> None:
    s.out = s.x.reshape(*s.x.shape[:-3], s.x.shape[-2], -1)


@mistake(
    "merge_heads.merge",
    title="the heads are merged as (D, H) instead of (H, D)",
    cause="The heads are interleaved where they should lie one after the other.",
    fix="Bring (..., H, L, D) to (..., L, H, D), then reshape to (..., L, H * D).",
    step=HEADS,
)
def interleaved(s: State) -> None:
    x = np.moveaxis(s.x, -3, -1)
    s.out = x.reshape(*x.shape[:-2], -1)
