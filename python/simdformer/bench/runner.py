"""Runs cases: makes inputs and contestants, compares each with float64, lets them race."""

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np

import simdformer as sf
from simdformer.bench.batches import batch_cases
from simdformer.bench.checkpoints import Loading, run_loading
from simdformer.bench.contestants import Contestant, Missing, Way, torch_threads
from simdformer.bench.gradients import gradient_cases
from simdformer.bench.machine import (
    ITERATIONS,
    LARGEST_READ,
    Limits,
    fma_chains,
    measure_limits,
    read_memory,
    this_machine,
)
from simdformer.bench.models import forget_models, model_cases, quantised_model_cases
from simdformer.bench.operations import operation_cases, smallest_cases
from simdformer.bench.plugins import plugin_cases
from simdformer.bench.results import Measurement, Result, Results
from simdformer.bench.stopwatch import Stopwatch
from simdformer.bench.work import SEED, Case, another_result, relative_error

__all__ = ["BUDGET", "all_cases", "run", "run_case", "select"]

BUDGET = 2.0  # seconds a case
READING, MULTIPLYING = "reading", "multiplying"


# ---- the cases -----------------------------------------------------------------------------------


def all_cases(*, models: bool = False, transformers: bool = False) -> list[Case]:
    """Every case; those of whole models, and of plug-ins in transformers', only when asked for."""
    cases = [*operation_cases(), *gradient_cases(), *smallest_cases()]
    if models:
        cases += [*model_cases(), *batch_cases(), *quantised_model_cases()]
    if transformers:
        cases += plugin_cases()
    return cases


def select(cases: Iterable[Case], patterns: Iterable[str]) -> list[Case]:
    """Those whose name one of the patterns matches; a pattern may name a group, as `linear`.

    Without patterns all. ValueError for a pattern that matches nothing.

    >>> from simdformer.bench import all_cases, select
    >>> [case.name for case in select(all_cases(), ["softmax", "rms_norm/1x*"])]
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
            hint = (
                f"near is {', '.join(near)}"
                if near
                else "see --list, with --models and --transformers too"
            )
            raise ValueError(f"bench: no case is called {pattern!r}; {hint}")
        chosen |= found
    return [case for case in cases if case.name in chosen]


# ---- a run ---------------------------------------------------------------------------------------


def run(
    cases: Sequence[Case],
    *,
    budget: float = BUDGET,
    progress: Callable[[Results], None] = lambda results: None,
    stopwatch: Stopwatch | None = None,
) -> Results:
    """Measures the limits of the machine and then each case, about `budget` seconds each.

    With the instruction set and the threads that `simdformer` is set to; PyTorch and onnxruntime
    get as many threads. `progress` sees the results when the limits are known, and after each case.

    Ctrl-C ends the run: what was measured comes back, marked as interrupted.

    ValueError: a budget that is not > 0.
    """
    if not budget > 0:
        raise ValueError(f"bench: budget is {budget:g}, needs seconds > 0")
    stopwatch = stopwatch or Stopwatch()
    machine = this_machine()
    results = Results(machine, measure_limits(machine, 2 * budget, stopwatch))
    progress(results)
    try:
        for case in cases:
            results.results.append(run_case(case, results.limits, budget, stopwatch))
            progress(results)
    except KeyboardInterrupt:
        results.interrupted = True
    finally:
        forget_models()
    return results


def run_case(case: Case, limits: Limits, budget: float, stopwatch: Stopwatch) -> Result:
    """One case. A library whose result differs from float64 does not race, and is listed as
    missing."""
    work = case.work
    if isinstance(work, Loading):
        return run_loading(case, work, limits, budget)
    with torch_threads(sf.get_num_threads()):
        inputs = work.inputs(np.random.default_rng(SEED))
        expected = work.expected(inputs)
        missing: dict[str, str] = {}
        errors: dict[str, float] = {}
        racing = []
        for one in work.contestants(inputs):
            if isinstance(one, Missing):
                missing[one.name] = one.why
                continue
            error = max(relative_error(work.sample(way.result()), expected) for way in one.ways)
            if error <= work.tolerance:
                errors[one.name] = error
                racing.append(one)
            else:  # or NaN
                missing[one.name] = another_result(error)
        if limits.level(work.nbytes).capacity is None:
            memory = np.ones(min(work.nbytes, LARGEST_READ) // 4, np.float32)
            racing.append(limit(READING, lambda: read_memory(memory)))
        if limits.bound_by_arithmetic(work):
            racing.append(limit(MULTIPLYING, lambda: fma_chains(ITERATIONS)))
        times = stopwatch.race(racing, budget)
    if read := times.pop(READING, None):
        limits = limits.with_memory(memory.nbytes / read.best / 1e9)
    if multiplied := times.pop(MULTIPLYING, None):
        limits = replace(limits, gflops=fma_chains(ITERATIONS) / multiplied.best / 1e9)
    measured = {
        name: Measurement.of(one.way.name, one.samples, errors[name], one.calls)
        for name, one in times.items()
    }
    del racing, inputs, times
    gc.collect()  # a weight of the next case may be as large
    return Result(case, limits, measured, missing)


def limit(name: str, call: Callable[[], float]) -> Contestant:
    """Nothing but reading, or multiply-adds, by turns with the others: what memory gives changes
    within minutes where other machines share it, and a virtual machine may be given two threads of
    one core for a while, and two cores before and after.
    """
    return Contestant(name, (Way(name, call, np.asarray),), peer=False)
