"""The list of what is measured, each with its goals.

A goal is a ratio to others in the same run, or a share of what this machine can do; the only time
among them is that of a call that has nothing to compute.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from simdformer.bench import ours
from simdformer.bench.models import SHAPES, ModelRun
from simdformer.bench.operations import Attention, Linear, RMSNorm, RoPE, Softmax, SwiGLU
from simdformer.bench.work import Dtype, Work

__all__ = ["Case", "Goal", "all_cases", "select"]

PEERS = ("torch", "onnxruntime")
MODEL_PEERS = ("transformers", "llama.cpp")
NATIVE_BF16 = "avx512_bf16"  # the instruction set with dot products of bfloat16


@dataclass(frozen=True)
class Goal:
    """At least `least` ... times the speed of the best of `peers`, or that share of a limit.

    of "call": at most so many seconds.
    """

    least: float
    of: Literal["peers", "arithmetic", "read", "call"]
    peers: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.of:
            case "peers":
                return f"{self.least:g}× {self.peers[0] if len(self.peers) == 1 else 'peers'}"
            case "arithmetic":
                return f"{self.least:.0%} FMA"
            case "read":
                return f"{self.least:.0%} read"
        return f"≤ {self.least * 1e6:g} µs"

    def amount(self, found: float) -> str:
        """A ratio or a share, as the goal speaks of it.

        >>> Goal(1.5, "peers", PEERS).amount(1.234), Goal(0.9, "read").amount(0.5)
        ('1.2×', '50%')
        """
        return f"{found:.1f}×" if self.of == "peers" else f"{found:.0%}"


@dataclass(frozen=True)
class Case:
    """A piece of work with a name for `--only`, and what it should reach."""

    name: str
    work: Work
    goals: tuple[Goal, ...] = ()

    @property
    def tiny(self) -> bool:
        """Nothing but the cost of a call, so that no speed and no share is worth showing."""
        return self.name.startswith("call/")


def times(least: float, *peers: str) -> Goal:
    return Goal(least, "peers", peers or PEERS)


def all_cases(isa: str, *, best_isa: bool = True, models: bool = False) -> list[Case]:
    """Every case. The goals are for the best instruction set of a machine; a lower one, asked for
    by name, should be near its own limit and never slower than numpy.
    """
    cases = [
        *prefill(),
        *decode(),
        *linear(isa),
        *rows(),
        *calls(),
        *(model_runs() if models else ()),
    ]
    if best_isa:
        return cases
    return [Case(case.name, case.work, tuple(lower_goals(case, isa))) for case in cases]


def lower_goals(case: Case, isa: str) -> Iterator[Goal]:
    if not isinstance(case.work, ModelRun):
        yield times(1.0, "numpy")
    work = case.work
    if isa == "avx2" and isinstance(work, Linear) and work.rows >= 512 and work.packed:
        yield Goal(0.85, "arithmetic")


def prefill() -> Iterator[Case]:
    lengths = (128, 512, 1024, 2048)
    goals: dict[tuple[Dtype, int], tuple[tuple[float, ...], float | None]] = {
        ("float32", 128): ((2.5, 2.2, 1.9, 1.8), 0.80),
        ("float32", 64): ((2.5, 2.5, 2.0, 1.8), 0.72),
        ("bfloat16", 128): ((3.5, 3.5, 3.5, 3.5), None),
    }
    for (dtype, head_dim), (ratios, share) in goals.items():
        for length, ratio in zip(lengths, ratios, strict=True):
            work = Attention(
                heads=32, kv_heads=32, queries=length, keys=length, head_dim=head_dim, dtype=dtype
            )
            wanted = [times(ratio)]
            if share is not None and length >= 1024:
                wanted.append(Goal(share, "arithmetic"))
            yield Case(f"prefill/{dtype}/d{head_dim}/s{length}", work, tuple(wanted))


def decode() -> Iterator[Case]:
    for keys, ratio in ((512, 2.2), (4096, 7.0), (32768, 6.0)):
        work = Attention(heads=32, kv_heads=8, queries=1, keys=keys, head_dim=128)
        yield Case(f"decode/float32/s{keys}", work, (times(ratio, "torch"), Goal(0.9, "read")))
    for keys in (512, 4096, 32768):
        work = Attention(heads=32, kv_heads=8, queries=1, keys=keys, head_dim=128, dtype="bfloat16")
        # half the bytes, half the time
        goals = (times(25.0, "torch"), times(2.0, ours.TWIN))
        yield Case(f"decode/bfloat16/s{keys}", work, goals)


def linear(isa: str) -> Iterator[Case]:
    wanted: dict[int, tuple[Goal, ...]] = {
        1: (times(0.95), Goal(0.92, "read")),
        4: (times(1.2),),
        16: (times(1.5),),
        64: (times(1.5),),
        512: (times(1.0), Goal(0.88, "arithmetic")),
    }
    for rows, goals in wanted.items():
        yield Case(f"linear/float32/m{rows}", Linear(rows=rows), goals)
    large = 1.0 if isa == NATIVE_BF16 else 1.5
    for rows, ratio in ((1, 1.5), (4, 1.4), (16, 1.4), (64, large), (512, large)):
        work = Linear(rows=rows, dtype="bfloat16", weight_dtype="bfloat16")
        yield Case(f"linear/bfloat16/m{rows}", work, (times(ratio),))
    narrow: tuple[Dtype, ...] = ("bfloat16", "float16")  # as models keep them beside float32
    for weight_dtype in narrow:
        for rows in (1, 16, 512):
            work = Linear(rows=rows, weight_dtype=weight_dtype)
            yield Case(f"linear/{weight_dtype}-weight/m{rows}", work)
    for rows in (1, 16, 512):
        yield Case(f"linear/not-packed/m{rows}", Linear(rows=rows, packed=False))


def rows() -> Iterator[Case]:
    for count, width, ratio in ((1, 1024, 1.5), (128, 1024, 2.2), (2048, 4096, 1.0)):
        work = RMSNorm(rows=count, width=width)
        yield Case(f"rms_norm/{count}x{width}", work, (times(ratio),))
    for tokens, ratio in ((1, 2.0), (128, 2.5), (2048, 1.6)):
        turned = RoPE(heads=32, tokens=tokens, head_dim=128)
        yield Case(f"rope/t{tokens}", turned, (times(ratio),))
    for count, ratio in ((128, 1.2), (4096, 1.0)):
        softmax = Softmax(rows=count, width=4096)
        yield Case(f"softmax/{count}x4096", softmax, (times(ratio),))
    for count, ratio in ((1, 3.0), (128, 2.5), (2048, 2.0)):
        swiglu = SwiGLU(rows=count, width=11008)
        yield Case(f"swiglu/{count}x11008", swiglu, (times(ratio, "torch"),))


def calls() -> Iterator[Case]:
    """The smallest shapes: what is left is the way from Python into the kernel and back."""
    smallest: dict[str, Work] = {
        "attention": Attention(heads=1, kv_heads=1, queries=1, keys=1, head_dim=8),
        "linear": Linear(rows=1, width_in=8, width_out=8),
        "rms_norm": RMSNorm(rows=1, width=8),
        "rope": RoPE(heads=1, tokens=1, head_dim=8),
        "softmax": Softmax(rows=1, width=8),
        "swiglu": SwiGLU(rows=1, width=8),
    }
    for name, work in smallest.items():
        yield Case(f"call/{name}", work, (Goal(1.5e-6, "call"),))


def model_runs() -> Iterator[Case]:
    arithmetics: dict[Dtype, tuple[Goal, ...]] = {
        "float32": (times(0.85, "llama.cpp"),),  # whose products are of bfloat16
        "bfloat16": (times(1.2, *MODEL_PEERS),),
    }
    for shape, config in SHAPES.items():
        for dtype, goals in arithmetics.items():
            prompt = ModelRun(config=config, new=512, dtype=dtype)
            yield Case(f"{shape}/prefill/{dtype}", prompt, goals)
        step = ModelRun(config=config, new=1, in_cache=64)
        wanted = (Goal(0.85, "read"), times(2.5, "transformers"), times(1.05, "llama.cpp"))
        yield Case(f"{shape}/decode", step, wanted)


def select(cases: Iterable[Case], patterns: Iterable[str]) -> list[Case]:
    """Those whose name one of the patterns matches; a pattern may name a group, as `linear`.

    Without patterns all. ValueError for a pattern that matches nothing.

    >>> [case.name for case in select(all_cases("avx2"), ["softmax", "rms_norm/1x*"])]
    ['rms_norm/1x1024', 'softmax/128x4096', 'softmax/4096x4096']
    """
    cases, patterns = list(cases), list(patterns)
    if not patterns:
        return cases
    chosen = set()
    for pattern in patterns:
        found = {
            case.name
            for case in cases
            if fnmatchcase(case.name, pattern) or fnmatchcase(case.name, pattern + "/*")
        }
        if not found:
            names = [case.name for case in cases]
            near = get_close_matches(pattern, names, n=3, cutoff=0.4)
            hint = f"near is {', '.join(near)}" if near else "see --list, with --models too"
            raise ValueError(f"bench: no case is called {pattern!r}; {hint}")
        chosen |= found
    return [case for case in cases if case.name in chosen]
