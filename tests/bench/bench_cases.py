"""What the tests of the benchmark share: its cases, results made up, a clock that obeys."""

from dataclasses import replace

import numpy as np

from simdformer import bench
from simdformer.bench import stopwatch
from simdformer.bench.contestants import OURS, Contestant, Way
from simdformer.models.tensors import block_of

CASES = {case.name: case for case in bench.all_cases(models=True, transformers=True)}
LIMITS = bench.Limits(
    400.0,
    (
        bench.Level("L2", 2 << 20, 200.0),
        bench.Level("L3", 32 << 20, 100.0),
        bench.Level("memory", None, 40.0),
    ),
)
MACHINE = bench.Machine("a CPU", "avx2", 2, 1 << 20, 32 << 20, {"simdformer": "0"})


SMALL = {
    bench.Linear: {"rows": 40, "width_in": 72, "width_out": 88},
    bench.QuantizedLinear: {"rows": 40, "width_in": 256, "width_out": 88},
    bench.RMSNorm: {"rows": 5, "width": 72},
    bench.RoPE: {"heads": 3, "tokens": 5},
    bench.Softmax: {"rows": 5, "width": 72},
    bench.SwiGLU: {"rows": 5, "width": 72},
    bench.OptimizerStep: {"count": 100},
    bench.BatchRun: {"in_cache": 20, "texts": 3},
    bench.ModelRun: {"in_cache": 20, "new": 20},
}


def smaller_work(work):
    """The same work in a size that takes no time."""
    for kind, most in SMALL.items():
        if isinstance(work, kind):
            fewer = {name: min(getattr(work, name), size) for name, size in most.items()}
            config = {"config": two_layers(work)} if isinstance(work, bench.ModelRun) else {}
            return replace(work, **fewer, **config)
    if isinstance(work, bench.Attention):
        kv_heads, keys = min(work.kv_heads, 2), min(work.keys, 70)
        sizes = {"kv_heads": kv_heads, "heads": kv_heads * work.heads // work.kv_heads}
        return replace(work, **sizes, keys=keys, queries=keys if work.causal else 1)
    if isinstance(work, bench.Gradient):
        most = (4, 2, 24, 16) if work.of == "attention" else (8, 40, 24)
        return replace(work, sizes=tuple(map(min, work.sizes, most)))
    return replace(work, config=two_layers(work), rows=2, length=24)  # a step of training


def two_layers(work):
    """A config like that of a model's work, in the width of a block of its weights."""
    block, config = block_of(getattr(work, "type", "float32")), work.config
    return replace(
        config,
        hidden_size=max(64, block),
        num_layers=2,
        num_heads=4,
        num_kv_heads=4 if config.num_kv_heads == config.num_heads else 2,
        head_dim=16 if block == 1 else 64,
        intermediate_size=max(96, block),
        vocab_size=300,
    )


def smaller(case):
    return replace(case, work=smaller_work(case.work))


def hurry(monkeypatch):
    """Times of a real clock that nobody will look at: no waiting, and samples of a few calls."""
    for name in ("SHORTEST_SAMPLE", "WARM_UP", "PATIENCE"):
        monkeypatch.setattr(stopwatch, name, 1e-5)


class FakeTime:
    """A clock that only calls move."""

    def __init__(self):
        self.now = 100.0
        self.log = []
        self.settled = 0

    def clock(self):
        return self.now

    def settle(self):
        self.settled += 1

    def stopwatch(self):
        return bench.Stopwatch(self.clock, self.settle)

    def way(self, name, *seconds):
        """Calls of it take these times by turns."""
        turns = iter(seconds * 1_000_000)

        def call():
            self.log.append(name)
            self.now += next(turns)

        return Way(name, call, lambda result: np.zeros(1))

    def contestant(self, name, *seconds, **options):
        return Contestant(name, (self.way(name, *seconds),), **options)


def measured(best, error=1e-7):
    return bench.Measurement("way", best, 2 * best, 5, 1, error)


def a_result(goals=(), name="linear/x", work=None, **best):
    names = {"mine": OURS}
    work = work or bench.Linear(rows=8, width_in=500, width_out=250)  # 2 MFLOP, 524 kB
    case = bench.Case(name, work, tuple(goals))
    found = {names.get(name, name): measured(seconds) for name, seconds in best.items()}
    return bench.Result(case, LIMITS, found)
