"""How fast the kernels are: beside PyTorch, onnxruntime and numpy, and beside what the machine can.

    simdformer bench                                 every operation
    simdformer bench --only decode --budget 5        one group, measured longer
    simdformer bench --list                          what there is

From Python:

    from simdformer import bench
    results = bench.run(bench.select(bench.all_cases(sf.isa()), ["rms_norm"]), budget=1.0)
    results.results[0].ratio("torch")                how many times torch's speed ours is
    bench.compare({"one": f, "other": g})            seconds of calls of your own, by turns

How it is measured. All contestants get the same numbers, the same threads and the same dtype, and
appear at their best: outputs in place where they can, `torch.inference_mode`, IO binding, packed
weights; of several ways to do the work the fastest counts. They take turns, and the best of many
samples is compared. What each gives is compared with float64 before; who computes something else
does not race. The limits of the machine are measured too, with kernels that do nothing else.

PyTorch, onnxruntime (with onnx, which makes its models), transformers, llama-cpp-python and
matplotlib are used when they are installed; nothing here needs them.
"""

import warnings
from functools import partial
from typing import Any

from simdformer.bench.batches import BatchRun
from simdformer.bench.checkpoints import CheckpointRun, Loading, checkpoint_cases
from simdformer.bench.gradients import Gradient, OptimizerStep
from simdformer.bench.machine import Level, Limits, Machine, measure_limits, this_machine
from simdformer.bench.models import SHAPES, ModelRun, random_weights
from simdformer.bench.operations import (
    Attention,
    Linear,
    Operation,
    QuantizedLinear,
    RMSNorm,
    RoPE,
    Softmax,
    SwiGLU,
)
from simdformer.bench.plots import plot_roofline, plot_throughput, save_plot
from simdformer.bench.plugins import PluginRun
from simdformer.bench.profile import Phase, Profile, Spent, profile
from simdformer.bench.ranks import (
    OverRanks,
    StepOverRanks,
    measure_over_ranks,
    measure_step_over_ranks,
)
from simdformer.bench.results import Loaded, Measurement, Result, Results
from simdformer.bench.runner import all_cases, run, run_case, select
from simdformer.bench.stopwatch import Stopwatch, compare
from simdformer.bench.training import TrainingStep, training_cases
from simdformer.bench.work import Case, Goal, Work, relative_error

__all__ = [
    "SHAPES",
    "Attention",
    "BatchRun",
    "Case",
    "CheckpointRun",
    "Goal",
    "Gradient",
    "Level",
    "Limits",
    "Linear",
    "Loaded",
    "Loading",
    "Machine",
    "Measurement",
    "ModelRun",
    "Operation",
    "OptimizerStep",
    "OverRanks",
    "Phase",
    "PluginRun",
    "Profile",
    "QuantizedLinear",
    "RMSNorm",
    "Result",
    "Results",
    "RoPE",
    "Softmax",
    "Spent",
    "StepOverRanks",
    "Stopwatch",
    "SwiGLU",
    "TrainingStep",
    "Work",
    "all_cases",
    "checkpoint_cases",
    "compare",
    "measure_limits",
    "measure_over_ranks",
    "measure_step_over_ranks",
    "plot_roofline",
    "plot_throughput",
    "profile",
    "random_weights",
    "relative_error",
    "run",
    "run_case",
    "save_plot",
    "select",
    "this_machine",
    "training_cases",
]
__dir__ = __all__.copy  # what dir() and completion show


def __getattr__(name: str) -> Any:
    if name == "QuantizedModelRun":
        text = "bench.QuantizedModelRun is bench.ModelRun now, with a type= of few bits"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return partial(ModelRun, type="q8_0")
    raise AttributeError(f"module 'simdformer.bench' has no attribute {name!r}")
