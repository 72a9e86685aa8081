"""The operations that are measured, as `Work`: sizes, inputs, work, and the right result."""

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from simdformer import reference
from simdformer.bench.work import Dtype, Inputs, Unit, Work, numpy_dtype, random_array, spread
from simdformer.types import Array

__all__ = [
    "EPS",
    "POSITION",
    "THETA",
    "Attention",
    "Linear",
    "RMSNorm",
    "RoPE",
    "Softmax",
    "SwiGLU",
]

EPS = 1e-6  # of the norms
THETA = 500000.0  # of RoPE, as Llama 3 has it
POSITION = 100  # of the first token that RoPE turns: at 0 it would not be turned at all


@dataclass(frozen=True, kw_only=True)
class Attention(Work):
    """softmax(q kᵀ / √D) v: `queries` of `heads`, `keys` of `kv_heads`, ends lined up.

    queries == keys is a prefill with a causal mask, one query is a step of decoding, which sees
    every key. Between the two nothing is measured.

    >>> decode = Attention(heads=32, kv_heads=8, queries=1, keys=4096, head_dim=128)
    >>> decode.intensity                                        # 4 heads share what is read
    1.99...
    >>> Attention(heads=32, kv_heads=32, queries=2048, keys=2048, head_dim=128).intensity
    256.1...
    """

    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.queries not in (1, self.keys):
            raise ValueError(
                f"Attention: queries is {self.queries}, needed is 1 or keys = {self.keys}"
            )

    @property
    def causal(self) -> bool:
        return self.queries > 1

    @property
    def operation(self) -> str:
        return "prefill attention" if self.causal else "decode attention"

    @property
    def flops(self) -> int:
        """q kᵀ and weights · v over the pairs that may see each other; softmax is not counted."""
        pairs = self.keys * (self.keys + 1) // 2 if self.causal else self.keys
        return 4 * self.head_dim * self.heads * pairs

    @property
    def nbytes(self) -> int:
        query_and_output = 2 * self.heads * self.queries
        keys_and_values = 2 * self.kv_heads * self.keys
        return (query_and_output + keys_and_values) * self.head_dim * self.itemsize

    @property
    def counted_in(self) -> Unit:
        return "GFLOPS" if self.causal else "GB/s"

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """q (H,L,D), k and v (K,S,D)"""
        keys = (self.kv_heads, self.keys, self.head_dim)
        return {
            "q": self.normal(rng, self.heads, self.queries, self.head_dim),
            "k": self.normal(rng, *keys),
            "v": self.normal(rng, *keys),
        }

    def sample(self, result: Array) -> Array:
        return result[spread(self.heads)[:, None], spread(self.queries)]

    def expected(self, inputs: Inputs) -> Array:
        heads, rows = spread(self.heads), spread(self.queries)
        shared_by = self.heads // self.kv_heads
        visible = np.arange(self.keys) <= rows[:, None] + self.keys - self.queries
        return np.stack(
            [
                reference.scaled_dot_product_attention(
                    inputs["q"][head, rows],
                    inputs["k"][head // shared_by],
                    inputs["v"][head // shared_by],
                    visible,
                )
                for head in heads
            ]
        )

    def smaller(self) -> Self:
        shared_by = self.heads // self.kv_heads
        kv_heads, keys = min(self.kv_heads, 2), min(self.keys, 70)
        return replace(
            self,
            heads=kv_heads * shared_by,
            kv_heads=kv_heads,
            keys=keys,
            queries=keys if self.causal else 1,
        )


@dataclass(frozen=True, kw_only=True)
class Linear(Work):
    """x (rows, width_in) times weightᵀ (width_out, width_in). `packed`: ours is packed before.

    >>> Linear(rows=1).intensity < 1, Linear(rows=512).intensity > 100
    (True, True)
    """

    rows: int
    width_in: int = 4096
    width_out: int = 14336
    weight_dtype: Dtype = "float32"
    packed: bool = True

    @property
    def operation(self) -> str:
        return "linear"

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.width_in * self.width_out

    @property
    def nbytes(self) -> int:
        weight = self.width_in * self.width_out * numpy_dtype(self.weight_dtype).itemsize
        return weight + self.rows * (self.width_in + self.width_out) * self.itemsize

    @property
    def counted_in(self) -> Unit:
        return "GB/s" if self.rows == 1 else "GFLOPS"

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """x (rows, width_in), weight (width_out, width_in)"""
        shape = (self.width_out, self.width_in)
        return {
            "x": self.normal(rng, self.rows, self.width_in),
            "weight": random_array(rng, shape, self.weight_dtype, self.width_in**-0.5),
        }

    def sample(self, result: Array) -> Array:
        return result[spread(self.rows)[:, None], spread(self.width_out)]

    def expected(self, inputs: Inputs) -> Array:
        rows, columns = spread(self.rows), spread(self.width_out)
        return reference.float64(reference.linear(inputs["x"][rows], inputs["weight"][columns]))

    def smaller(self) -> Self:
        return replace(self, rows=min(self.rows, 40), width_in=72, width_out=88)


@dataclass(frozen=True, kw_only=True)
class RowWise(Work):
    """An operation that treats each of `rows` rows of `width` numbers alike."""

    rows: int
    width: int

    @property
    def counted_in(self) -> Unit:
        return "GB/s"

    @property
    def nbytes(self) -> int:
        """One array is read, one is written."""
        return 2 * self.rows * self.width * self.itemsize

    def sample(self, result: Array) -> Array:
        return result[spread(self.rows)]

    def smaller(self) -> Self:
        return replace(self, rows=min(self.rows, 5), width=min(self.width, 72))


@dataclass(frozen=True, kw_only=True)
class RMSNorm(RowWise):
    """x / sqrt(mean(x²) + eps) · weight"""

    @property
    def operation(self) -> str:
        return "RMSNorm"

    @property
    def flops(self) -> int:
        """Square and add, then two products; a root and a division a row."""
        return self.rows * (4 * self.width + 3)

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """x (rows, width), weight (width,)"""
        return {
            "x": self.normal(rng, self.rows, self.width),
            "weight": self.normal(rng, self.width),
        }

    def expected(self, inputs: Inputs) -> Array:
        return reference.rms_norm(inputs["x"][spread(self.rows)], inputs["weight"], eps=EPS)


@dataclass(frozen=True, kw_only=True)
class Softmax(RowWise):
    """exp(x) / sum exp(x) along the rows"""

    @property
    def operation(self) -> str:
        return "softmax"

    @property
    def flops(self) -> int:
        """Maximum, difference, exp, sum, product."""
        return 5 * self.rows * self.width

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """x (rows, width)"""
        return {"x": self.normal(rng, self.rows, self.width, scale=3.0)}

    def expected(self, inputs: Inputs) -> Array:
        return reference.softmax(inputs["x"][spread(self.rows)])


@dataclass(frozen=True, kw_only=True)
class SwiGLU(RowWise):
    """silu(gate) · up"""

    @property
    def operation(self) -> str:
        return "SwiGLU"

    @property
    def flops(self) -> int:
        """exp, sum, division, two products."""
        return 5 * self.rows * self.width

    @property
    def nbytes(self) -> int:
        """Two arrays are read, one is written."""
        return 3 * self.rows * self.width * self.itemsize

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """gate and up (rows, width)"""
        return {name: self.normal(rng, self.rows, self.width) for name in ("gate", "up")}

    def expected(self, inputs: Inputs) -> Array:
        rows = spread(self.rows)
        return reference.swiglu(inputs["gate"][rows], inputs["up"][rows])


@dataclass(frozen=True, kw_only=True)
class RoPE(Work):
    """Every head of every token turned by its position; the first token stands at POSITION."""

    heads: int
    tokens: int
    head_dim: int
    layout: Literal["half", "interleaved"] = "half"

    @property
    def operation(self) -> str:
        return "RoPE"

    @property
    def flops(self) -> int:
        """Four products and two sums a pair; cos and sin, shared by the heads, are not counted."""
        return 3 * self.heads * self.tokens * self.head_dim

    @property
    def nbytes(self) -> int:
        return 2 * self.heads * self.tokens * self.head_dim * self.itemsize

    @property
    def counted_in(self) -> Unit:
        return "GB/s"

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """x (heads, tokens, head_dim)"""
        return {"x": self.normal(rng, self.heads, self.tokens, self.head_dim)}

    def sample(self, result: Array) -> Array:
        return result[spread(self.heads)[:, None], spread(self.tokens)]

    def expected(self, inputs: Inputs) -> Array:
        tokens = spread(self.tokens)
        return reference.rope(
            inputs["x"][spread(self.heads)[:, None], tokens],
            layout=self.layout,
            positions=POSITION + tokens,
            theta=THETA,
        )

    def smaller(self) -> Self:
        return replace(self, heads=min(self.heads, 3), tokens=min(self.tokens, 5))
