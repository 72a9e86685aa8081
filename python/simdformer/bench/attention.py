"""The operations on heads: attention, and RoPE, which turns queries and keys before it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from simdformer import functional as sf
from simdformer import reference
from simdformer.bench.contestants import MICROSOFT, Graph, Node, Way
from simdformer.bench.work import Case, Dtype, Inputs, Operation, Unit, spread
from simdformer.types import Array

__all__ = ["POSITION", "REGROUPED", "THETA", "TWIN", "Attention", "RoPE"]

TWIN = "in float32"  # ours, on the same numbers in float32
REGROUPED = "torch, regrouped"
THETA = 500000.0  # of RoPE, as Llama 3 has it
POSITION = 100  # of the first token that RoPE turns: at 0 it would not be turned at all


@dataclass(frozen=True, kw_only=True)
class Attention(Operation):
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
            raise ValueError(f"Attention: queries is {self.queries}, needs 1 or keys = {self.keys}")

    @classmethod
    def cases(cls) -> Iterator[Case]:
        prompts: tuple[tuple[Dtype, int], ...] = (
            *(("float32", 128), ("float32", 64), ("bfloat16", 128)),
        )
        for dtype, head_dim in prompts:
            for length in (128, 512, 1024, 2048):
                prompt = cls(
                    heads=32,
                    kv_heads=32,
                    queries=length,
                    keys=length,
                    head_dim=head_dim,
                    dtype=dtype,
                )
                yield Case(f"prefill/{dtype}/d{head_dim}/s{length}", prompt)
        steps: tuple[Dtype, ...] = ("float32", "bfloat16")
        for dtype in steps:
            for keys in (512, 4096, 32768):
                step = cls(heads=32, kv_heads=8, queries=1, keys=keys, head_dim=128, dtype=dtype)
                yield Case(f"decode/{dtype}/s{keys}", step)

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
    def scratch(self) -> int:
        """The scores, or the keys repeated for each head."""
        return 4 * self.heads * self.keys * max(self.queries, self.head_dim)

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

    def with_ours(self, q: Array, k: Array, v: Array) -> Way:
        causal, out = self.causal, np.empty_like(q)
        return Way(
            "scaled_dot_product_attention",
            lambda: sf.scaled_dot_product_attention(q, k, v, is_causal=causal, out=out),
        )

    def ours_besides(self, inputs: Inputs) -> dict[str, Way]:
        """Decoding in 16 bits, also on the same numbers in float32."""
        if self.causal or self.dtype == "float32":
            return {}
        wide = {name: np.asarray(array, np.float32) for name, array in inputs.items()}
        return {TWIN: self.with_ours(**wide)}

    def with_torch(self, torch: Any, q: Any, k: Any, v: Any) -> Iterator[Way]:
        attention = torch.nn.functional.scaled_dot_product_attention
        q, k, v = q[None], k[None], v[None]
        causal, shared = self.causal, self.heads > self.kv_heads
        yield Way(
            "F.scaled_dot_product_attention",
            lambda: attention(q, k, v, is_causal=causal, enable_gqa=shared),
            lambda result: result[0],
        )

    def torch_besides(self, torch: Any, inputs: Inputs) -> dict[str, Way]:
        """The query heads of a key/value head as if they were its queries: for one token the same.

        Only beside decoding with shared heads.
        """
        if self.causal or self.heads == self.kv_heads:
            return {}
        attention = torch.nn.functional.scaled_dot_product_attention
        shape = (1, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        q, k, v = inputs["q"].reshape(shape), inputs["k"][None], inputs["v"][None]
        way = Way(
            "F.scaled_dot_product_attention, query (1, K, H/K, D)",
            lambda: attention(q, k, v),
            lambda result: result.reshape(self.heads, 1, self.head_dim),
        )
        return {REGROUPED: way}

    def with_onnxruntime(self, q: Array, k: Array, v: Array) -> Iterator[Graph]:
        yield self.grouped(q, k, v)
        if not self.causal:
            return
        attributes = {"num_heads": self.heads, "unidirectional": 1, "domain": MICROSOFT}
        yield Graph(
            nodes=[("MultiHeadAttention", ["q", "k", "v"], ["out"], attributes)],
            inputs={"q": tokens_first(q), "k": tokens_first(k), "v": tokens_first(v)},
            out=(1, self.queries, self.heads * self.head_dim),
            array=self.heads_first,
        )
        yield Graph(
            nodes=[("Attention", ["q", "k", "v"], ["out"], {"is_causal": 1})],
            inputs={"q": q[None], "k": k[None], "v": v[None]},
            out=(1, self.heads, self.queries, self.head_dim),
            array=lambda result: result[0],
        )

    def grouped(self, q: Array, k: Array, v: Array) -> Graph:
        """GroupQueryAttention. To decode, all keys but the newest lie in a cache that it shares
        with its output, so that it appends and does not copy; a prompt starts without a cache.
        """
        in_cache = 0 if self.causal else self.keys - 1
        newest = {"k": tokens_first(k[:, in_cache:]), "v": tokens_first(v[:, in_cache:])}
        lengths = {"last": self.keys - 1, "all": self.keys}
        past = {"past_k": k[None].copy(), "past_v": v[None].copy()} if in_cache else {}
        inputs = {"q": tokens_first(q), **newest, **past}
        inputs |= {name: np.array([length], np.int32) for name, length in lengths.items()}
        attributes = {
            "num_heads": self.heads,
            "kv_num_heads": self.kv_heads,
            "domain": MICROSOFT,
        }
        names = ["q", "k", "v", *(past or ("", "")), *lengths]
        node: Node = ("GroupQueryAttention", names, ["out", "present_k", "present_v"], attributes)
        return Graph(
            nodes=[node],
            inputs=inputs,
            out=(1, self.queries, self.heads * self.head_dim),
            others={
                "present_k": (k[None].shape, past.get("past_k")),
                "present_v": (v[None].shape, past.get("past_v")),
            },
            array=self.heads_first,
        )

    def heads_first(self, result: Array) -> Array:
        return result.reshape(self.queries, self.heads, self.head_dim).swapaxes(0, 1)

    def with_numpy(self, q: Array, k: Array, v: Array) -> Array:
        shared_by = len(q) // len(k)
        if shared_by > 1:
            k, v = np.repeat(k, shared_by, axis=0), np.repeat(v, shared_by, axis=0)
        scores = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
        if self.causal:
            scores = np.where(np.tri(q.shape[-2], k.shape[-2], dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        z: Array = weights / weights.sum(axis=-1, keepdims=True) @ v
        return z


def tokens_first(x: Array) -> Array:
    """(H, L, D) -> (1, L, H·D), as onnxruntime's fused attention operators want it."""
    return np.ascontiguousarray(x.swapaxes(0, 1)).reshape(1, x.shape[1], -1)


@dataclass(frozen=True, kw_only=True)
class RoPE(Operation):
    """Every head of every token turned by its position; the first token stands at POSITION."""

    counted_in: ClassVar[Unit] = "GB/s"
    operation: ClassVar[str] = "RoPE"
    heads: int
    tokens: int
    head_dim: int
    layout: Literal["half", "interleaved"] = "half"

    @classmethod
    def cases(cls) -> Iterator[Case]:
        for tokens in (1, 128, 2048):
            yield Case(f"rope/t{tokens}", cls(heads=32, tokens=tokens, head_dim=128))

    @property
    def flops(self) -> int:
        """Four products and two sums a pair; cos and sin, shared by the heads, are not counted."""
        return 3 * self.heads * self.tokens * self.head_dim

    @property
    def nbytes(self) -> int:
        return 2 * self.heads * self.tokens * self.head_dim * self.itemsize

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

    @cached_property
    def cos_and_sin(self) -> tuple[Array, Array]:
        """(tokens, head_dim/2) each, float32. They can be computed once, so they are not timed."""
        inv_freq = THETA ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angle = (POSITION + np.arange(self.tokens))[:, None] * inv_freq
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def with_ours(self, x: Array) -> Way:
        layout, out = self.layout, np.empty_like(x)
        return Way("rope", lambda: sf.rope(x, layout=layout, offset=POSITION, theta=THETA, out=out))

    def with_torch(self, torch: Any, x: Any) -> Iterator[Way]:
        """As model code writes it, and without new tensors."""
        cos, sin = map(torch.from_numpy, self.cos_and_sin)
        out = torch.empty_like(x)
        if self.layout == "interleaved":
            turns = torch.complex(cos, sin)
            pairs, turned = (torch.view_as_complex(y.unflatten(-1, (-1, 2))) for y in (x, out))

            def complex_product() -> Any:
                torch.mul(pairs, turns, out=turned)
                return out

            yield Way("complex product, out", complex_product)
            return

        twice_cos, twice_sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)

        def rotate_half() -> Any:
            a, b = x.chunk(2, -1)
            return x * twice_cos + torch.cat([-b, a], -1) * twice_sin

        (a, b), (first, second) = x.chunk(2, -1), out.chunk(2, -1)

        def in_place() -> Any:
            torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
            torch.mul(b, cos, out=second).addcmul_(a, sin)
            return out

        yield Way("x cos + rotate_half(x) sin", rotate_half)
        yield Way("halves, out", in_place)

    def with_onnxruntime(self, x: Array) -> Iterator[Graph]:
        """cos and sin of every position up to the last are constants."""
        before = np.zeros((POSITION, self.head_dim // 2), np.float32)
        cos, sin = (np.concatenate([before, table]) for table in self.cos_and_sin)
        attributes = {"interleaved": int(self.layout == "interleaved"), "domain": MICROSOFT}
        yield Graph(
            nodes=[("RotaryEmbedding", ["x", "positions", "cos", "sin"], ["out"], attributes)],
            inputs={"x": x[None], "positions": POSITION + np.arange(self.tokens)[None]},
            constants={"cos": cos, "sin": sin},
            out=(1, self.heads, self.tokens, self.head_dim),
            array=lambda result: result[0],
        )

    def with_numpy(self, x: Array) -> Array:
        cos, sin = self.cos_and_sin
        if self.layout == "half":
            a, b = np.split(x, 2, axis=-1)
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
