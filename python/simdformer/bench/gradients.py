"""Gradients, beside PyTorch's autograd: a row of the table says everything about one of them.

PyTorch keeps the graph of its forward and walks it backwards in every call; where the forward is
counted too, both do it in every call. What is compared with float64 is one gradient of several.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

import simdformer as sf
from simdformer import optim, reference
from simdformer.bench.contestants import OURS, TORCH, Contestant, Missing, Way, optional, tensor
from simdformer.bench.operations import EPS, Shapes
from simdformer.bench.work import BOTH, Case, Goal, Inputs, Unit, Work, spread, times
from simdformer.types import Array

__all__ = ["Gradient", "OptimizerStep", "gradient_cases"]

NORM = 1.0  # that gradients are clipped to
ADAMW: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


class Row(NamedTuple):
    """The shapes of what the forward takes (the result's under "grad"), by sizes; the gradient that
    is compared, by the functions of `simdformer` or, in float64, of `reference`; PyTorch's forward;
    what is counted."""

    shapes: Callable[..., Shapes]
    gradient: Callable[[Any, Inputs], Any]
    torch: Callable[..., Any]
    flops: Callable[..., int]
    numbers: Callable[..., int]  # that are read or written
    counted_in: Unit
    saved: Callable[[Any, Inputs], Inputs] = lambda f, i: {}  # what it takes of the forward
    both_ways: bool = False
    only: tuple[str, ...] = ()  # the gradients that are made, where they are not all


def linear_row(of: str) -> Row:
    return Row(
        lambda m, o, n: {"x": (m, n), "weight": (o, n), "grad": (m, o)},
        lambda f, i: getattr(f.backward.linear(i["grad"], i["x"], i["weight"], needs=(of,)), of),
        lambda torch, x, weight: torch.nn.functional.linear(x, weight),
        lambda m, o, n: 2 * m * o * n,
        lambda m, o, n: m * o + m * n + o * n,
        "GFLOPS",
        only=(of,),
    )


def attention_gradient(f: Any, i: Inputs) -> Any:
    q, k, v = (i[name] for name in ("query", "key", "value"))
    out, lse = f.scaled_dot_product_attention(q, k, v, is_causal=True, return_lse=True)
    way_back = f.backward.scaled_dot_product_attention
    return way_back(i["grad"], q, k, v, out, lse, is_causal=True).query


def torch_attention(torch: Any, query: Any, key: Any, value: Any) -> Any:
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, is_causal=True, enable_gqa=True)


def row_wise(*names: str) -> Callable[[int, int], Shapes]:
    return lambda m, n: dict.fromkeys((*names, "grad"), (m, n))


def torch_rope(torch: Any, x: Any) -> Any:
    """As transformers has it."""
    length, width = x.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = (torch.arange(length)[:, None] * frequencies).repeat(1, 2)
    lower, upper = x[..., : width // 2], x[..., width // 2 :]
    turned = torch.cat((-upper, lower), dim=-1)
    return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)


def head_gradient(f: Any, i: Inputs) -> Any:
    loss_and_gradients = (f.backward if f is reference else f).linear_cross_entropy
    return loss_and_gradients(i["x"], i["weight"], labels_of(i["x"], i["weight"])).x


def loss_saved(f: Any, i: Inputs) -> Inputs:
    if f is reference:
        return {}
    return {"lse": f.cross_entropy(i["logits"], labels_of(i["logits"]), return_lse=True)[1]}


def torch_head(torch: Any, x: Any, weight: Any) -> Any:
    logits = torch.nn.functional.linear(x, weight)
    return torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels_of(x, weight)))


ROWS: dict[str, Row] = {
    "linear-x": linear_row("x"),
    "linear-weight": linear_row("weight"),
    "attention": Row(
        lambda h, k, n, d: {
            "query": (1, h, n, d), "key": (1, k, n, d), "value": (1, k, n, d), "grad": (1, h, n, d)
        },
        attention_gradient,
        torch_attention,
        lambda h, k, n, d: 7 * h * n * n * d,  # seven products, of which half is seen
        lambda h, k, n, d: 4 * (h + k) * n * d,
        "GFLOPS",
        both_ways=True,
    ),
    "rms_norm": Row(
        lambda m, n: {"x": (m, n), "weight": (n,), "grad": (m, n)},
        lambda f, i: f.backward.rms_norm(i["grad"], i["x"], i["weight"], eps=EPS).x,
        lambda torch, x, weight: torch.nn.functional.rms_norm(x, weight.shape, weight, EPS),
        lambda m, n: 10 * m * n,
        lambda m, n: 3 * m * n,
        "GB/s",
    ),
    "layer_norm": Row(
        lambda m, n: {"x": (m, n), "weight": (n,), "bias": (n,), "grad": (m, n)},
        lambda f, i: f.backward.layer_norm(i["grad"], i["x"], i["weight"], i["bias"], eps=EPS).x,
        lambda torch, x, weight, bias: torch.nn.functional.layer_norm(
            x, weight.shape, weight, bias, EPS
        ),
        lambda m, n: 14 * m * n,
        lambda m, n: 3 * m * n,
        "GB/s",
    ),
    "rope": Row(
        lambda h, n, d: {"x": (1, h, n, d), "grad": (1, h, n, d)},
        lambda f, i: f.backward.rope(i["grad"], layout="half"),
        torch_rope,
        lambda h, n, d: 3 * h * n * d,
        lambda h, n, d: 2 * h * n * d,
        "GB/s",
    ),
    "softmax": Row(
        row_wise("x"),
        lambda f, i: f.backward.softmax(i["grad"], i["output"]),
        lambda torch, x: x.softmax(-1),
        lambda m, n: 4 * m * n,
        lambda m, n: 3 * m * n,
        "GB/s",
        saved=lambda f, i: {"output": f.softmax(i["x"])},
    ),
    "swiglu": Row(
        row_wise("gate", "up"),
        lambda f, i: f.backward.swiglu(i["grad"], i["gate"], i["up"]).gate,
        lambda torch, gate, up: torch.nn.functional.silu(gate) * up,
        lambda m, n: 12 * m * n,
        lambda m, n: 5 * m * n,
        "GB/s",
    ),
    "cross_entropy": Row(
        lambda m, n: {"logits": (m, n), "grad": ()},
        lambda f, i: f.backward.cross_entropy(
            i["logits"], labels_of(i["logits"]), lse=i.get("lse")
        ),
        lambda torch, logits: torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(labels_of(logits))
        ),
        lambda m, n: 4 * m * n,
        lambda m, n: 2 * m * n,
        "GB/s",
        saved=loss_saved,
    ),
    "linear_cross_entropy": Row(
        lambda m, n, vocabulary: {"x": (m, n), "weight": (vocabulary, n), "grad": ()},
        head_gradient,
        torch_head,
        lambda m, n, vocabulary: 6 * m * n * vocabulary,
        lambda m, n, vocabulary: 2 * (m + vocabulary) * n,
        "GFLOPS",
        both_ways=True,
    ),
}  # fmt: skip


def labels_of(rows: Any, weight: Any = None) -> Array:
    """Labels (m,) of logits (m, n), or of the logits of x (m, e) and a weight (n, e)."""
    columns = rows.shape[1] if weight is None else weight.shape[0]
    labels: Array = np.arange(rows.shape[0]) * 7 % columns
    return labels


def scale_of(name: str, shape: tuple[int, ...]) -> float:
    """That of random numbers: a weight (outputs, inputs) leaves the size of x as it is."""
    return float(shape[-1] ** -0.5) if name == "weight" and len(shape) == 2 else 1.0


@dataclass(frozen=True, kw_only=True)
class Gradient(Work):
    """The gradients of one operation, a row of the table, in some sizes.

    >>> from simdformer.bench.gradients import Gradient
    >>> Gradient(of="linear-x", sizes=(512, 768, 3072)).flops
    2415919104
    """

    peers: ClassVar[tuple[str, ...]] = (TORCH,)
    of: str
    sizes: tuple[int, ...]

    @property
    def row(self) -> Row:
        return ROWS[self.of]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The gradients that are made, the compared one first."""
        shapes = self.row.shapes(*self.sizes)
        return self.row.only or tuple(name for name in shapes if name != "grad")

    @property
    def operation(self) -> str:
        return f"backward.{self.of}"

    @property
    def flops(self) -> int:
        return self.row.flops(*self.sizes)

    @property
    def nbytes(self) -> int:
        return self.row.numbers(*self.sizes) * self.itemsize

    @property
    def counted_in(self) -> Unit:
        return self.row.counted_in

    def inputs(self, rng: np.random.Generator) -> Inputs:
        shapes = self.row.shapes(*self.sizes)
        return {
            name: self.normal(rng, *shape, scale=scale_of(name, shape))
            for name, shape in shapes.items()
            if shape != ()
        }

    def sample(self, result: Array) -> Array:
        flat = result.reshape(-1, result.shape[-1])
        return flat[spread(len(flat))]

    def expected(self, inputs: Inputs) -> Array:
        row = self.row
        return self.sample(row.gradient(reference, {**inputs, **row.saved(reference, inputs)}))

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        row = self.row
        given = {**inputs, **row.saved(sf, inputs)}
        ours = Contestant(OURS, (Way(self.operation, lambda: row.gradient(sf, given)),))
        torch = optional("torch")
        if torch is None:
            return [ours, Missing(TORCH, "PyTorch is not installed")]
        tensors = {name: tensor(x) for name, x in inputs.items()}
        grad = tensors.pop("grad", None)
        wanted = [tensors[name].requires_grad_() for name in self.wanted]

        def forward() -> Any:
            return row.torch(torch, **tensors)

        kept = None if row.both_ways else forward()

        def call() -> Any:
            out = forward() if kept is None else kept
            return torch.autograd.grad(out, wanted, grad, retain_graph=kept is not None)[0]

        return [ours, Contestant(TORCH, (Way("autograd", call, lambda t: t.float().numpy()),))]


@dataclass(frozen=True, kw_only=True)
class OptimizerStep(Work):
    """A parameter's gradient is clipped by its norm, and AdamW takes a step; PyTorch's is fused.

    >>> from simdformer.bench.gradients import OptimizerStep
    >>> OptimizerStep(count=1000).nbytes
    32000
    """

    operation: ClassVar[str] = "clip_grad_norm_ and adamw_"
    counted_in: ClassVar[Unit] = "GB/s"
    peers: ClassVar[tuple[str, ...]] = (TORCH,)
    count: int

    @property
    def flops(self) -> int:
        return 17 * self.count

    @property
    def nbytes(self) -> int:
        """Three arrays are read and written, and the gradient is read twice."""
        return 8 * self.count * self.itemsize

    def inputs(self, rng: np.random.Generator) -> Inputs:
        weight, gradient = (self.normal(rng, self.count) for _ in range(2))
        return {
            "weight": weight,
            "gradient": gradient,
            "exp_avg": np.zeros_like(weight),
            "exp_avg_sq": np.zeros_like(weight),
        }

    def sample(self, result: Array) -> Array:
        return result[:: max(self.count // 1024, 1)]

    def expected(self, inputs: Inputs) -> Array:
        """The first step: its corrected moments are g and g²."""
        weight, gradient = (inputs[name].astype(np.float64) for name in ("weight", "gradient"))
        gradient *= min(1.0, NORM / (np.linalg.norm(gradient) + 1e-6))
        moved = gradient / (np.abs(gradient) + ADAMW["eps"])
        return self.sample(weight - ADAMW["lr"] * (moved + ADAMW["weight_decay"] * weight))

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        weight, gradient, *moments = (array.copy() for array in inputs.values())

        def step() -> Any:
            norm = optim.clip_grad_norm_([gradient], NORM, apply=False)
            scale = min(1.0, NORM / (norm + 1e-6))
            optim.adamw_(weight, gradient, *moments, step=1, scale=scale, **ADAMW)
            return weight

        ours = Contestant(OURS, (Way("clip_grad_norm_, adamw_", step),))
        torch = optional("torch")
        if torch is None:
            return [ours, Missing(TORCH, "PyTorch is not installed")]
        parameter = torch.nn.Parameter(tensor(inputs["weight"].copy()))
        parameter.grad = tensor(inputs["gradient"].copy())
        optimizer = torch.optim.AdamW([parameter], fused=True, **ADAMW)

        def torch_step() -> Any:
            torch.nn.utils.clip_grad_norm_([parameter], NORM)
            optimizer.step()
            return parameter

        way = Way("clip_grad_norm_, fused AdamW", torch_step, lambda p: p.detach().numpy())
        return [ours, Contestant(TORCH, (way,))]


def gradient_cases() -> Iterator[Case]:
    """Layers of GPT-2's and of MiniMind's size, by 512 tokens; attention from 64 to 2048; heads of
    6,400 and 151,936 tokens with their loss; a step of AdamW."""
    lengths = ((64, 2.0), (128, 2.0), (256, 2.0), (512, 2.0), (1024, 1.5), (2048, 1.5))
    row_wise_sizes = {
        "rms_norm": (2048, 768),
        "layer_norm": (2048, 768),
        "rope": (8, 2048, 64),
        "softmax": (2048, 1024),
        "swiglu": (2048, 1408),
        "cross_entropy": (1024, 6400),
    }
    for dtype in BOTH:
        works: list[tuple[str, str, tuple[int, ...], float]] = [
            *(
                (f"/{of}/{dtype}/{'x'.join(map(str, product))}", of, product, 1.0)
                for of in ("linear-x", "linear-weight")
                for product in ((512, 3072, 768), (512, 512, 1408))
            ),
            *((f"/attention/{dtype}/{n}", "attention", (8, 4, n, 64), goal) for n, goal in lengths),
            *((f"/{of}/{dtype}", of, sizes, 2.0) for of, sizes in row_wise_sizes.items()),
        ]
        for name, of, sizes, goal in works:
            work = Gradient(of=of, sizes=sizes, dtype=dtype)
            yield Case(f"backward{name}", work, (times(goal, TORCH),))
    for sizes in ((2048, 512, 6400), (256, 256, 151936)):
        head = Gradient(of="linear_cross_entropy", sizes=sizes)
        name = f"backward/linear_cross_entropy/float32/{'x'.join(map(str, sizes))}"
        yield Case(name, head, (times(1.0, TORCH),))
    yield Case(
        "backward/adamw/float32",
        OptimizerStep(count=1 << 24),
        (times(1.0, TORCH), Goal(0.85, "read")),
    )
