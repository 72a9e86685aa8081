"""The operations, beside PyTorch, onnxruntime and numpy: sizes, what is right, how each library
does it, and the cases that are measured."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

import simdformer as sf
from simdformer import reference
from simdformer.bench.contestants import (
    MICROSOFT,
    NUMPY,
    ONNXRUNTIME,
    OURS,
    TORCH,
    Contestant,
    Graph,
    Missing,
    Node,
    Way,
    optional,
    tensor,
    torch_way,
)
from simdformer.bench.work import (
    AT_THE_LIMIT,
    BOTH,
    NOT_BEHIND,
    Case,
    Dtype,
    Goal,
    Inputs,
    Unit,
    Work,
    random_array,
    some_weight,
    spread,
    times,
)
from simdformer.models.tensors import bits_of
from simdformer.runtime import get_num_threads
from simdformer.types import Array

__all__ = [
    *("Attention", "Linear", "Operation", "QuantizedLinear", "RMSNorm", "RoPE", "Softmax"),
    *("SwiGLU", "operation_cases"),
]

EPS = 1e-6  # of the norm
THETA = 500000.0  # of RoPE, as Llama 3 has it
POSITION = 100  # of the first token that RoPE turns: at 0 it would not be turned at all
OF_ONNXRUNTIME = "q4_0"  # the one quantised type that it has too
MOST_NAIVE_FLOPS = 40e9  # a second, or several where numpy was built without a good BLAS
SHORTEST_CALL = Goal(1.5e-6, "call")
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Operation(Work):
    """Work of one function of ours, which other libraries have too.

    A subclass is all there is to say about it: sizes, shapes, what is right, and how each library
    does it. The inputs come by name, as `shapes` has them.
    """

    peers: ClassVar[tuple[str, ...]] = (TORCH, ONNXRUNTIME, NUMPY)
    errors_of: ClassVar[tuple[str, ...]] = (TORCH,)
    looked_at: ClassVar[int] = 2  # leading axes of the result of which only some places are checked

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """Those of the inputs, and of the result under "out"."""

    @property
    def nbytes(self) -> int:
        """Each array is read or written once; what all rows share stays in the cache."""
        sizes = (int(np.prod(shape)) for shape in self.shapes.values() if len(shape) > 1)
        return sum(sizes) * self.itemsize

    def inputs(self, rng: np.random.Generator) -> Inputs:
        shapes = self.shapes.items()
        return {name: self.normal(rng, *shape) for name, shape in shapes if name != "out"}

    @property
    def places(self) -> list[Array]:
        """Those that are checked, by axis."""
        return [spread(size) for size in self.shapes["out"][: self.looked_at]]

    def sample(self, result: Array) -> Array:
        return result[np.ix_(*self.places)]

    @abstractmethod
    def with_ours(self, *arrays: Any, **inputs: Any) -> Way:
        """One call into an output that exists already."""

    @abstractmethod
    def with_torch(self, torch: Any, *arrays: Any, **inputs: Any) -> Iterator[Way]:
        """On tensors: fused operations, outputs in place where it can."""

    @abstractmethod
    def with_onnxruntime(self, *arrays: Any, **inputs: Any) -> Iterator[Graph]:
        """One fused operator, or two."""

    @abstractmethod
    def with_numpy(self, *arrays: Any, **inputs: Any) -> Array:
        """The obvious lines that one writes without a library for it, on float32."""

    # How each library is asked, the same for all operations.

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        ours = Contestant(OURS, (self.with_ours(**inputs),))
        return [ours, self.torch(inputs), self.onnxruntime(inputs), self.numpy(inputs)]

    def torch(self, inputs: Inputs) -> Contestant | Missing:
        torch = optional("torch")
        if torch is None:
            return Missing(TORCH, "PyTorch is not installed")
        for name, array in inputs.items():
            if array.dtype.name != self.dtype:
                return Missing(TORCH, f"takes no {array.dtype.name} {name} beside {self.dtype}")
        tensors = {name: tensor(array) for name, array in inputs.items()}
        ways = self.with_torch(torch, **tensors)
        return Contestant(TORCH, tuple(torch_way(torch, way) for way in ways))

    def onnxruntime(self, inputs: Inputs) -> Contestant | Missing:
        """Those of the operators that this onnxruntime has. Only float32: its CPU kernels for 16
        bits convert back and forth, or do not exist.
        """
        if optional("onnxruntime") is None:
            return Missing(ONNXRUNTIME, "onnxruntime is not installed")
        if optional("onnx") is None:
            return Missing(ONNXRUNTIME, "onnx (it makes the models) is not installed")
        if any(array.dtype != np.float32 for array in inputs.values()):
            return Missing(ONNXRUNTIME, "has no CPU kernels for 16 bits")
        found, refused = [], []
        for graph in self.with_onnxruntime(**inputs):
            try:
                found.append(graph.way(get_num_threads()))
            except Exception as error:  # of classes of its own, which say nothing better
                refused.append(str(error).strip().splitlines()[0])
        if not found:
            return Missing(ONNXRUNTIME, "; ".join(refused))
        return Contestant(ONNXRUNTIME, tuple(found))

    def numpy(self, inputs: Inputs) -> Contestant | Missing:
        """The naive computation, left out where it would take long.

        16-bit numbers are computed in float32 and rounded at the end, because numpy has no kernels
        for them that anybody would wait for.
        """
        if self.flops > MOST_NAIVE_FLOPS:
            return Missing(NUMPY, "too large for the naive way")
        dtype = next(iter(inputs.values())).dtype

        def call() -> Array:  # no copy of what is float32 already
            wide = {name: np.asarray(array, np.float32) for name, array in inputs.items()}
            return self.with_numpy(**wide).astype(dtype, copy=False)

        return Contestant(NUMPY, (Way("naive", call),), peer=False)


# ---- on heads ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attention(Operation):
    """softmax(q kᵀ / √D) v: `queries` of `heads`, `keys` of `kv_heads`, ends lined up.

    queries == keys is a prefill with a causal mask, one query is a step of decoding, which sees
    every key. Between the two nothing is measured.

    >>> from simdformer.bench import Attention
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

    @property
    def causal(self) -> bool:
        return self.queries > 1

    @property
    def operation(self) -> str:
        return "prefill attention" if self.causal else "decode attention"

    @property
    def counted_in(self) -> Unit:
        return "GFLOPS" if self.causal else "GB/s"

    @property
    def flops(self) -> int:
        """q kᵀ and weights · v over the pairs that may see each other; softmax is not counted."""
        pairs = self.keys * (self.keys + 1) // 2 if self.causal else self.keys
        return 4 * self.head_dim * self.heads * pairs

    @property
    def shapes(self) -> Shapes:
        queries = (self.heads, self.queries, self.head_dim)
        keys = (self.kv_heads, self.keys, self.head_dim)
        return {"q": queries, "k": keys, "v": keys, "out": queries}

    def expected(self, inputs: Inputs) -> Array:
        heads, rows = self.places
        shared = heads // (self.heads // self.kv_heads)
        visible = np.arange(self.keys) <= rows[:, None] + self.keys - self.queries
        q, k, v = inputs["q"][np.ix_(heads, rows)], inputs["k"][shared], inputs["v"][shared]
        return np.asarray(reference.scaled_dot_product_attention(q, k, v, visible))

    def with_ours(self, q: Array, k: Array, v: Array) -> Way:
        causal, out, attend = self.causal, np.empty_like(q), sf.scaled_dot_product_attention
        name = "scaled_dot_product_attention"
        return Way(name, lambda: attend(q, k, v, is_causal=causal, out=out))

    def with_torch(self, torch: Any, q: Any, k: Any, v: Any) -> Iterator[Way]:
        attention = torch.nn.functional.scaled_dot_product_attention
        q, k, v = q[None], k[None], v[None]
        causal, shared = self.causal, self.heads > self.kv_heads
        yield Way(
            "F.scaled_dot_product_attention",
            lambda: attention(q, k, v, is_causal=causal, enable_gqa=shared),
            lambda result: result[0],
        )
        if shared and not causal:  # for one token the same, with a kernel that has no enable_gqa
            grouped = q.reshape(1, self.kv_heads, -1, self.head_dim)
            yield Way(
                "F.scaled_dot_product_attention, query (1, K, H/K, D)",
                lambda: attention(grouped, k, v),
                lambda result: result.reshape(self.heads, 1, self.head_dim),
            )

    def with_onnxruntime(self, q: Array, k: Array, v: Array) -> Iterator[Graph]:
        yield self.grouped(q, k, v)
        if not self.causal:
            return
        yield Graph(  # faster up to some hundred tokens
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
        attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, "domain": MICROSOFT}
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

    operation: ClassVar[str] = "RoPE"
    counted_in: ClassVar[Unit] = "GB/s"
    heads: int
    tokens: int
    head_dim: int

    @property
    def flops(self) -> int:
        """Four products and two sums a pair; cos and sin, shared by the heads, are not counted."""
        return 3 * self.heads * self.tokens * self.head_dim

    @property
    def shapes(self) -> Shapes:
        return dict.fromkeys(("x", "out"), (self.heads, self.tokens, self.head_dim))

    def expected(self, inputs: Inputs) -> Array:
        x, positions = self.sample(inputs["x"]), POSITION + self.places[1]
        return reference.rope(x, layout="half", positions=positions, theta=THETA)

    @cached_property
    def cos_and_sin(self) -> tuple[Array, Array]:
        """(tokens, head_dim/2) each, float32. They can be computed once, so they are not timed."""
        inv_freq = THETA ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angle = (POSITION + np.arange(self.tokens))[:, None] * inv_freq
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def with_ours(self, x: Array) -> Way:
        out = np.empty_like(x)
        return Way("rope", lambda: sf.rope(x, layout="half", offset=POSITION, theta=THETA, out=out))

    def with_torch(self, torch: Any, x: Any) -> Iterator[Way]:
        """Without new tensors: x cos + rotate_half(x) sin takes about twice as long."""
        cos, sin = map(torch.from_numpy, self.cos_and_sin)
        out = torch.empty_like(x)
        (a, b), (first, second) = x.chunk(2, -1), out.chunk(2, -1)

        def in_place() -> Any:
            torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
            torch.mul(b, cos, out=second).addcmul_(a, sin)
            return out

        yield Way("halves, out", in_place)

    def with_onnxruntime(self, x: Array) -> Iterator[Graph]:
        """cos and sin of every position up to the last are constants."""
        before = np.zeros((POSITION, self.head_dim // 2), np.float32)
        cos, sin = (np.concatenate([before, table]) for table in self.cos_and_sin)
        attributes = {"interleaved": 0, "domain": MICROSOFT}
        yield Graph(
            nodes=[("RotaryEmbedding", ["x", "positions", "cos", "sin"], ["out"], attributes)],
            inputs={"x": x[None], "positions": POSITION + np.arange(self.tokens)[None]},
            constants={"cos": cos, "sin": sin},
            out=(1, *self.shapes["out"]),
            array=lambda result: result[0],
        )

    def with_numpy(self, x: Array) -> Array:
        (cos, sin), (a, b) = self.cos_and_sin, np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


# ---- the linear layer ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MatrixProduct(Operation):
    """x (rows, width_in) times weightᵀ (width_out, width_in), whatever the weight is stored as."""

    operation: ClassVar[str] = "linear"
    rows: int
    width_in: int = 4096
    width_out: int = 14336

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.width_in * self.width_out

    @property
    def counted_in(self) -> Unit:
        return "GB/s" if self.rows == 1 else "GFLOPS"

    @property
    def shapes(self) -> Shapes:
        x, weight = (self.rows, self.width_in), (self.width_out, self.width_in)
        return {"x": x, "weight": weight, "out": (self.rows, self.width_out)}

    @property
    @abstractmethod
    def bits(self) -> float:
        """Those of a number of the weight."""

    @property
    def nbytes(self) -> int:
        weight = int(self.width_in * self.width_out * self.bits) // 8
        return weight + self.rows * (self.width_in + self.width_out) * self.itemsize

    def expected(self, inputs: Inputs) -> Array:
        rows, columns = self.places
        exact = reference.linear(inputs["x"][rows], inputs["weight"][columns])
        return reference.forward.float64(exact)

    def with_numpy(self, x: Array, weight: Array) -> Array:
        return x @ weight.T


@dataclass(frozen=True, kw_only=True)
class Linear(MatrixProduct):
    """x (rows, width_in) times weightᵀ (width_out, width_in). `packed`: ours is packed before.

    >>> from simdformer.bench import Linear
    >>> Linear(rows=1).intensity < 1, Linear(rows=512).intensity > 100
    (True, True)
    """

    weight_dtype: Dtype = "float32"
    packed: bool = True

    @property
    def bits(self) -> float:
        return 8 * np.dtype(self.weight_dtype).itemsize

    def inputs(self, rng: np.random.Generator) -> Inputs:
        x, shape = self.normal(rng, *self.shapes["x"]), self.shapes["weight"]
        return {"x": x, "weight": random_array(rng, shape, self.weight_dtype, self.width_in**-0.5)}

    def with_ours(self, x: Array, weight: Array) -> Way:
        out = np.empty(self.shapes["out"], self.dtype)
        if self.packed:
            packed = sf.pack(weight)
            return Way("linear, packed", lambda: sf.linear(x, packed, out=out))
        return Way("linear", lambda: sf.linear(x, weight, out=out))

    def with_torch(self, torch: Any, x: Any, weight: Any) -> Iterator[Way]:
        linear, transposed = torch.nn.functional.linear, weight.t()
        out = torch.empty(self.rows, self.width_out, dtype=x.dtype)
        yield Way("F.linear", lambda: linear(x, weight))
        yield Way("torch.mm, out", lambda: torch.mm(x, transposed, out=out))

    def with_onnxruntime(self, x: Array, weight: Array) -> Iterator[Graph]:
        """A constant weight is packed when the session is made."""
        yield Graph(
            nodes=[("MatMul", ["x", "weight"], ["out"], {})],
            inputs={"x": x},
            constants={"weight": np.ascontiguousarray(weight.T)},
            out=self.shapes["out"],
        )


@dataclass(frozen=True, kw_only=True)
class QuantizedLinear(MatrixProduct):
    """x (rows, width_in) times the values of a weight (width_out, width_in) of a quantised type:
    beside the same values in float32, and onnxruntime's MatMulNBits.

    >>> from simdformer.bench import QuantizedLinear
    >>> QuantizedLinear(rows=1).nbytes / (4096 * 14336)  # 4.5 bits a weight, and a little
    0.5637555803571429
    """

    type: str = "q4_0"

    @property
    def bits(self) -> float:
        return bits_of(self.type)

    def weight(self) -> sf.QuantizedWeight:
        """The same in every call."""
        return some_weight(self.type, self.width_out, self.width_in)

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """weight: the values of a quantised one"""
        return {"x": self.normal(rng, *self.shapes["x"]), "weight": self.weight().dequantize()}

    def with_ours(self, x: Array, weight: Array) -> Way:
        quantised, out = self.weight(), np.empty(self.shapes["out"], self.dtype)
        return Way("linear, quantised", lambda: sf.linear(x, quantised, out=out))

    def with_torch(self, torch: Any, x: Any, weight: Any) -> Iterator[Way]:
        """It knows none of these types: the same product in float32."""
        linear = torch.nn.functional.linear
        yield Way("F.linear, float32", lambda: linear(x, weight))

    def onnxruntime(self, inputs: Inputs) -> Contestant | Missing:
        if self.type != OF_ONNXRUNTIME:
            return Missing(ONNXRUNTIME, f"has no {self.type}")
        return super().onnxruntime(inputs)

    def with_onnxruntime(self, x: Array, weight: Array) -> Iterator[Graph]:
        """Four bits with a scale for 32 are q4_0; it takes x as float32, as ours with exact x."""
        quantised = self.weight()
        codes = (quantised.codes.view(np.uint8) + np.uint8(8)).reshape(self.width_out, -1, 32)
        scales = quantised.scales.reshape(-1)
        sizes = {"K": self.width_in, "N": self.width_out, "bits": 4, "block_size": 32}
        attributes = sizes | {"accuracy_level": 1, "domain": MICROSOFT}
        yield Graph(
            nodes=[("MatMulNBits", ["x", "codes", "scales"], ["out"], attributes)],
            inputs={"x": x},
            constants={"codes": codes[..., 0::2] | codes[..., 1::2] << 4, "scales": scales},
            out=self.shapes["out"],
        )


# ---- on rows -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RowWise(Operation):
    """An operation that treats each of `rows` rows of `width` numbers alike."""

    counted_in: ClassVar[Unit] = "GB/s"
    looked_at: ClassVar[int] = 1
    flops_each: ClassVar[int]  # of a number
    takes: ClassVar[tuple[str, ...]] = ("x",)
    exact: ClassVar[Callable[..., Any]]  # the result in float64
    rows: int
    width: int

    @property
    def flops(self) -> int:
        return self.flops_each * self.rows * self.width

    @property
    def shapes(self) -> Shapes:
        return dict.fromkeys((*self.takes, "out"), (self.rows, self.width))

    def expected(self, inputs: Inputs) -> Array:
        rows = {name: self.sample(x) if x.ndim > 1 else x for name, x in inputs.items()}
        return np.asarray(self.exact(**rows))


@dataclass(frozen=True, kw_only=True)
class RMSNorm(RowWise):
    """x / sqrt(mean(x²) + eps) · weight"""

    operation: ClassVar[str] = "RMSNorm"
    exact = staticmethod(partial(reference.rms_norm, eps=EPS))

    @property
    def flops(self) -> int:
        """Square and add, then two products; a root and a division a row."""
        return self.rows * (4 * self.width + 3)

    @property
    def shapes(self) -> Shapes:
        return super().shapes | {"weight": (self.width,)}

    def with_ours(self, x: Array, weight: Array) -> Way:
        out = np.empty_like(x)
        return Way("rms_norm", lambda: sf.rms_norm(x, weight, eps=EPS, out=out))

    def with_torch(self, torch: Any, x: Any, weight: Any) -> Iterator[Way]:
        rms_norm, shape = torch.nn.functional.rms_norm, (self.width,)
        yield Way("F.rms_norm", lambda: rms_norm(x, shape, weight, EPS))

    def with_onnxruntime(self, x: Array, weight: Array) -> Iterator[Graph]:
        attributes = {"axis": -1, "epsilon": EPS}
        for operator in ("SimplifiedLayerNormalization", "RMSNormalization"):
            nodes: list[Node] = [(operator, ["x", "weight"], ["out"], attributes)]
            yield Graph(nodes=nodes, inputs={"x": x, "weight": weight}, out=x.shape)

    def with_numpy(self, x: Array, weight: Array) -> Array:
        y: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPS)) * weight
        return y


@dataclass(frozen=True, kw_only=True)
class Softmax(RowWise):
    """exp(x) / sum exp(x) along the rows"""

    operation: ClassVar[str] = "softmax"
    flops_each: ClassVar[int] = 5  # maximum, difference, exp, sum, product
    exact = staticmethod(reference.softmax)

    def inputs(self, rng: np.random.Generator) -> Inputs:
        return {"x": self.normal(rng, self.rows, self.width, scale=3.0)}

    def with_ours(self, x: Array) -> Way:
        out = np.empty_like(x)
        return Way("softmax", lambda: sf.softmax(x, out=out))

    def with_torch(self, torch: Any, x: Any) -> Iterator[Way]:
        out = torch.empty_like(x)
        yield Way("torch.softmax, out", lambda: torch.softmax(x, -1, out=out))

    def with_onnxruntime(self, x: Array) -> Iterator[Graph]:
        yield Graph(nodes=[("Softmax", ["x"], ["out"], {"axis": -1})], inputs={"x": x}, out=x.shape)

    def with_numpy(self, x: Array) -> Array:
        e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
        weights: Array = e / e.sum(axis=-1, keepdims=True)
        return weights


@dataclass(frozen=True, kw_only=True)
class SwiGLU(RowWise):
    """silu(gate) · up"""

    operation: ClassVar[str] = "SwiGLU"
    flops_each: ClassVar[int] = 5  # exp, sum, division, two products
    takes: ClassVar[tuple[str, ...]] = ("gate", "up")
    exact = staticmethod(reference.swiglu)

    def with_ours(self, gate: Array, up: Array) -> Way:
        out = np.empty_like(up)
        return Way("swiglu", lambda: sf.swiglu(gate, up, out=out))

    def with_torch(self, torch: Any, gate: Any, up: Any) -> Iterator[Way]:
        silu, silu_out = torch.nn.functional.silu, torch.ops.aten.silu.out
        act = torch.empty_like(gate)
        yield Way("F.silu(gate) * up", lambda: silu(gate) * up)
        yield Way("silu and mul, out", lambda: silu_out(gate, out=act).mul_(up))

    def with_onnxruntime(self, gate: Array, up: Array) -> Iterator[Graph]:
        silu = {"alpha": 1.0, "domain": MICROSOFT}
        yield Graph(
            nodes=[("QuickGelu", ["gate"], ["silu"], silu), ("Mul", ["silu", "up"], ["out"], {})],
            inputs={"gate": gate, "up": up},
            out=gate.shape,
        )

    def with_numpy(self, gate: Array, up: Array) -> Array:
        act: Array = gate / (1 + np.exp(-gate)) * up
        return act


# ---- the cases -----------------------------------------------------------------------------------

NARROW: tuple[Dtype, ...] = ("bfloat16", "float16")  # as models keep weights beside float32
PROMPTS: tuple[tuple[Dtype, int], ...] = (("float32", 128), ("float32", 64), ("bfloat16", 128))
# They compute next to nothing: what is left is the way from Python into the kernel and back.
SMALLEST: dict[str, Operation] = {
    "attention": Attention(heads=1, kv_heads=1, queries=1, keys=1, head_dim=8),
    "linear": Linear(rows=1, width_in=8, width_out=8),
    "linear-quantized": QuantizedLinear(rows=1, width_in=32, width_out=8),
    "rms_norm": RMSNorm(rows=1, width=8),
    "rope": RoPE(heads=1, tokens=1, head_dim=8),
    "softmax": Softmax(rows=1, width=8),
    "swiglu": SwiGLU(rows=1, width=8),
}


def operation_cases() -> Iterator[Case]:
    """Every operation in the sizes of models with seven billion parameters."""
    for dtype, d in PROMPTS:
        for n in (128, 512, 1024, 2048):
            heads = {"heads": 32, "kv_heads": 32, "head_dim": d}
            prompt = Attention(queries=n, keys=n, dtype=dtype, **heads)
            yield Case(f"prefill/{dtype}/d{d}/s{n}", prompt)
    for dtype in BOTH:
        for n in (512, 4096, 32768):
            step = Attention(heads=32, kv_heads=8, queries=1, keys=n, head_dim=128, dtype=dtype)
            yield Case(f"decode/{dtype}/s{n}", step)
    for dtype in BOTH:
        for rows in (1, 4, 16, 64, 512):
            work = Linear(rows=rows, dtype=dtype, weight_dtype=dtype)
            yield Case(f"linear/{dtype}/m{rows}", work)
    for dtype in NARROW:
        for rows in (1, 16, 512):
            work = Linear(rows=rows, weight_dtype=dtype)
            yield Case(f"linear/{dtype}-weight/m{rows}", work, (AT_THE_LIMIT,))
    for rows in (1, 16, 512):
        yield Case(f"linear/not-packed/m{rows}", Linear(rows=rows, packed=False))
    for type in ("q8_0", "q6_k", "q4_k", "q4_0"):
        peers = (TORCH, ONNXRUNTIME) if type == OF_ONNXRUNTIME else (TORCH,)
        for rows in (1, 4, 16, 512):
            goals = (times(1.0, *peers), AT_THE_LIMIT)
            yield Case(f"linear/{type}/m{rows}", QuantizedLinear(rows=rows, type=type), goals)
    for rows, width in ((1, 1024), (128, 1024), (2048, 4096)):
        yield Case(f"rms_norm/{rows}x{width}", RMSNorm(rows=rows, width=width))
    for tokens in (1, 128, 2048):
        yield Case(f"rope/t{tokens}", RoPE(heads=32, tokens=tokens, head_dim=128))
    for rows in (128, 4096):
        yield Case(f"softmax/{rows}x4096", Softmax(rows=rows, width=4096))
    for rows in (1, 128, 2048):
        yield Case(f"swiglu/{rows}x11008", SwiGLU(rows=rows, width=11008))


def smallest_cases() -> Iterator[Case]:
    """What a call costs that has nothing to compute."""
    for name, work in SMALLEST.items():
        yield Case(f"call/{name}", work, (NOT_BEHIND, SHORTEST_CALL))
