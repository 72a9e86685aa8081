"""Runs cases: makes inputs and contestants, compares each with float64, lets them race."""

import gc
from collections.abc import Callable, Sequence

import numpy as np

import simdformer as sf
from simdformer.bench import model_contestants, numpy_peer, onnxruntime_peer, ours, torch_peer
from simdformer.bench.cases import Case
from simdformer.bench.company import measure_company
from simdformer.bench.contestants import Contestant, Missing, Way
from simdformer.bench.limits import LARGEST_READ, Limits, measure_limits, read_memory
from simdformer.bench.machine import this_machine
from simdformer.bench.models import ModelRun, forget_weights
from simdformer.bench.results import Measurement, Result, Results
from simdformer.bench.stopwatch import Stopwatch
from simdformer.bench.work import Inputs, Work, relative_error
from simdformer.types import Array

__all__ = ["BUDGET", "contestants_of", "run", "run_case"]

BUDGET = 2.0  # seconds a case
SEED = 20240601
READING = "reading"


def run(
    cases: Sequence[Case],
    *,
    budget: float = BUDGET,
    company: bool = False,
    progress: Callable[[Results], None] = lambda results: None,
    stopwatch: Stopwatch | None = None,
) -> Results:
    """Measures the limits of the machine and then each case, about `budget` seconds each.

    With the instruction set and the threads that `simdformer` is set to; PyTorch and onnxruntime
    get as many threads. `progress` sees the results when the limits are known, and after each case.
    With `company` also a short call beside a busy process.

    Ctrl-C ends the run: what was measured comes back, marked as interrupted.

    ValueError: a budget that is not > 0.
    """
    if not budget > 0:
        raise ValueError(f"bench: budget is {budget:g}, needed are seconds > 0")
    stopwatch = stopwatch or Stopwatch()
    machine = this_machine()
    results = Results(machine, measure_limits(machine, 2 * budget, stopwatch))
    progress(results)
    try:
        for case in cases:
            results.results.append(run_case(case, results.limits, budget, stopwatch))
            progress(results)
        if company:
            results.company = measure_company(2 * budget)
    except KeyboardInterrupt:
        results.interrupted = True
    finally:
        model_contestants.forget_models()
        forget_weights()
    return results


def run_case(case: Case, limits: Limits, budget: float, stopwatch: Stopwatch) -> Result:
    """One case. Who gives another result than float64 does not race, and is listed as missing."""
    work = case.work
    with torch_peer.threads(sf.get_num_threads()):
        inputs = work.inputs(np.random.default_rng(SEED))
        expected = work.expected(inputs)
        missing: dict[str, str] = {}
        errors: dict[str, float] = {}
        racing = []
        for one in contestants_of(work, inputs):
            if isinstance(one, Missing):
                missing[one.name] = one.why
                continue
            error = max(relative_error(work.sample(way.result()), expected) for way in one.ways)
            if error <= work.tolerance:
                errors[one.name] = error
                racing.append(one)
            else:  # or NaN
                missing[one.name] = f"gives another result, {error:.1e} away from float64"
        if limits.level(work.nbytes).capacity is None:
            memory = np.ones(min(work.nbytes, LARGEST_READ) // 4, np.float32)
            racing.append(reading(memory))
        times = stopwatch.race(racing, budget)
    if read := times.pop(READING, None):
        limits = limits.from_memory(memory.nbytes / read.best / 1e9)
    measured = {
        name: Measurement(
            way=one.way.name,
            best=one.best,
            median=one.median,
            samples=len(one.samples),
            calls_a_sample=one.calls,
            error=errors[name],
        )
        for name, one in times.items()
    }
    del racing, inputs, times
    gc.collect()  # a weight of the next case may be as large
    return Result(case, limits, measured, missing)


def reading(array: Array) -> Contestant:
    """Nothing but reading, by turns with the others: what memory gives changes within minutes where
    other machines share it.
    """
    return Contestant(READING, (Way("read", lambda: read_memory(array), np.asarray),), peer=False)


def contestants_of(work: Work, inputs: Inputs) -> list[Contestant | Missing]:
    """Ours first, then the peers, all on the same inputs."""
    if isinstance(work, ModelRun):
        return model_contestants.contestants(work, inputs)
    return [
        *ours.contestants(work, inputs),
        *torch_peer.contestants(work, inputs),
        onnxruntime_peer.contestant(work, inputs, sf.get_num_threads()),
        numpy_peer.contestant(work, inputs),
    ]
