"""The layer `nn.Embedding`: the program of embedding, and positions where there should be none."""

import numpy as np

from simdformer import nn
from simdformer.learn.mistakes.gather import embedding
from simdformer.learn.program import OPERATIONS, State, mistake

EMBEDDING = "02 §3"

OPERATIONS[nn.Embedding] = embedding


@mistake(
    "embedding.pick",
    title="the row of the position is taken instead of the row of the id",
    cause="weight[:T], or a loop over enumerate that uses the counter.",
    fix="Take weight[ids].",
    step=EMBEDDING,
)
def rows_of_positions(s: State) -> None:
    s.out = np.broadcast_to(s.table[: s.rows.shape[-1]], (*s.rows.shape, s.table.shape[-1]))


@mistake(
    "embedding.pick",
    title="sines and cosines of the position are added",
    cause="The first transformer does that; Llama and its kind turn queries and keys instead "
    "(RoPE).",
    fix="Take the rows as they are.",
    step=EMBEDDING,
)
def sines_added(s: State) -> None:
    width = s.table.shape[-1]
    angles = np.arange(s.rows.shape[-1])[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    sines = np.empty((len(angles), width), s.run.dtype)
    sines[:, 0::2], sines[:, 1::2] = np.sin(angles), np.cos(angles[:, : width // 2])
    s.out = s.table[s.rows] + sines
