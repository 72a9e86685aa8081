"""The benchmark works and is honest. No test here is about how fast anything is."""

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import simdformer as sf
from simdformer import bench, cli
from simdformer.bench import (
    company,
    contestants,
    limits,
    machine,
    model_contestants,
    models,
    numpy_peer,
    onnxruntime_peer,
    ours,
    report,
    stopwatch,
    torch_peer,
)
from simdformer.bench.cases import Goal
from simdformer.bench.contestants import Contestant, Missing, Way
from simdformer.bench.runner import contestants_of, run_case

CASES = {case.name: case for case in bench.all_cases("avx512_bf16", models=True)}
LIMITS = bench.Limits(
    400.0,
    (
        bench.Level("L2", 2 << 20, 200.0),
        bench.Level("L3", 32 << 20, 100.0),
        bench.Level("memory", None, 40.0),
    ),
)
MACHINE = bench.Machine("a CPU", "avx2", 2, 1 << 20, 32 << 20, {"simdformer": "0"})
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def smaller(case):
    return replace(case, work=case.work.smaller())


# ---- the work ------------------------------------------------------------------------------------


@each_case
def test_all_contestants_compute_the_same(case, rng):
    work = case.work.smaller()
    inputs = work.inputs(rng)
    expected = work.expected(inputs)
    assert np.isfinite(expected).all()
    assert expected.std() > 0 or expected.size == 1
    took_part = set()
    for one in contestants_of(work, inputs):
        if isinstance(one, Missing):
            assert one.why
            continue
        took_part.add(one.name)
        for way in one.ways:
            error = bench.relative_error(work.sample(way.result()), expected)
            assert error <= work.tolerance, (one.name, way.name, error)
            if work.dtype == "float32" and not isinstance(work, bench.ModelRun):
                assert error < 2e-6, (one.name, way.name, error)
    goal_peers = {name for goal in case.goals for name in goal.peers}
    if case.work.dtype != "float32":
        goal_peers -= {onnxruntime_peer.NAME}
    if contestants.optional("onnx") is None or contestants.optional("onnxruntime") is None:
        goal_peers -= {onnxruntime_peer.NAME}
    assert took_part >= {ours.NAME} | goal_peers


@each_case
def test_bytes_are_those_of_the_arrays(case, rng):
    work = case.work.smaller()
    inputs = work.inputs(rng)
    if isinstance(work, bench.ModelRun):
        arrays = [array for array in inputs["weights"].values() if array.ndim == 2]
        positions = work.in_cache + work.new
        cache = model_contestants.KVCache(
            num_layers=work.config.num_layers,
            num_kv_heads=work.config.num_kv_heads,
            head_dim=work.config.head_dim,
            max_seq_len=positions,
            dtype="bfloat16",
        )
        counted = sum(array.nbytes for array in arrays) + cache.nbytes
    else:
        arrays = [array for array in inputs.values() if array.ndim > 1]  # the norm's weight stays
        counted = sum(array.nbytes for array in arrays) + ours.way(work, inputs).result().nbytes
    assert work.nbytes == counted
    assert work.intensity == work.flops / work.nbytes


def test_operations_are_counted_where_they_are_needed():
    attention = bench.Attention(heads=3, kv_heads=3, queries=5, keys=5, head_dim=8)
    assert attention.flops == 2 * 2 * 8 * 3 * np.tri(5).sum()
    decode = bench.Attention(heads=6, kv_heads=3, queries=1, keys=5, head_dim=8)
    assert decode.flops == 2 * 2 * 8 * 6 * 5
    assert bench.Linear(rows=3, width_in=5, width_out=7).flops == 2 * 3 * 5 * 7
    step = CASES["Qwen3-0.6B/decode"].work
    assert 1.15e9 < step.flops < 1.25e9  # 2 for each of 0.6 billion parameters
    with pytest.raises(ValueError, match="queries is 2, needed is 1 or keys = 5"):
        bench.Attention(heads=1, kv_heads=1, queries=2, keys=5, head_dim=8)


def test_speed_is_in_the_unit_that_it_says():
    linear = bench.Linear(rows=8, width_in=500, width_out=250)
    assert (linear.counted_in, linear.speed(1e-3)) == ("GFLOPS", 2.0)
    norm = bench.RMSNorm(rows=500, width=250)
    assert (norm.counted_in, norm.speed(1e-3)) == ("GB/s", 1.0)
    prompt = CASES["Qwen3-0.6B/prefill/float32"].work
    assert (prompt.counted_in, prompt.speed(2.0)) == ("tok/s", 256)


@each_case
def test_inputs_are_the_same_every_time(case):
    first, second = (case.work.smaller().inputs(np.random.default_rng(5)) for _ in range(2))
    for name, array in first.items():
        if isinstance(array, np.ndarray):
            assert array.tobytes() == second[name].tobytes()


def test_relative_error_sees_what_is_not_a_number():
    assert bench.relative_error(np.array([2.0, 4.0]), np.array([1.0, 2.0])) == 1
    assert math.isnan(bench.relative_error(np.array([np.nan, 2.0]), np.array([1.0, 2.0])))


# ---- whole models --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", bench.SHAPES)
def test_the_reference_of_a_model_is_the_model_in_float64(shape, rng):
    config = CASES[f"{shape}/decode"].work.smaller().config
    weights = bench.random_weights(config)
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    ids = rng.integers(config.vocab_size, size=9)
    model = sf.models.Transformer(config, wide, activations="float64")
    rows = np.array([0, 7, config.vocab_size - 1])
    np.testing.assert_allclose(
        models.reference_logits(config, weights, ids, rows), model(ids)[-1, rows], rtol=1e-5
    )


def test_random_weights_are_no_pattern():
    config = CASES["Qwen3-0.6B/decode"].work.smaller().config
    weights = bench.random_weights(config)
    assert weights.keys() == sf.models.weight_shapes(config).keys()
    for name, shape in sf.models.weight_shapes(config).items():
        assert (weights[name].shape, weights[name].dtype.name) == (shape, "bfloat16")
        if len(shape) == 2:
            assert len(np.unique(weights[name].astype(np.float32), axis=0)) == shape[0]
            assert abs(weights[name].astype(np.float32).std() * shape[1] ** 0.5 - 1) < 0.1
    assert bench.random_weights(config) is weights
    models.forget_weights()
    again = bench.random_weights(config)
    assert again is not weights
    assert all((again[name] == weights[name]).all() for name in weights)


def test_a_run_lets_the_models_go(monkeypatch):
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", lambda *arguments: LIMITS)
    case = smaller(CASES["Qwen3-0.6B/decode"])
    results = bench.run([case], budget=0.01)
    assert results.right
    assert not model_contestants._made
    assert models.random_weights.cache_info().currsize == 0


# ---- the stopwatch, with a clock that tells what we want -----------------------------------------


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


def test_contestants_take_turns():
    fake = FakeTime()
    racing = [fake.contestant("a", 0.03), fake.contestant("b", 0.05), fake.contestant("c", 0.04)]
    times = fake.stopwatch().race(racing, budget=2.0)
    order = fake.log[3:]  # after the first call of each
    assert order == ["a", "b", "c"] * (len(order) // 3)
    assert {name: round(one.best, 9) for name, one in times.items()} == {
        "a": 0.03,
        "b": 0.05,
        "c": 0.04,
    }
    assert {len(one.samples) for one in times.values()} == {len(order) // 3}
    assert 2.0 <= fake.now - 100 < 2.2
    assert fake.settled == len(fake.log)


def test_calls_of_ones_own_are_compared():
    fake = FakeTime()
    calls = {name: fake.way(name, seconds).call for name, seconds in [("a", 0.1), ("b", 0.3)]}
    found = bench.compare(calls, 2.0, fake.stopwatch())
    assert found == {"a": pytest.approx(0.1), "b": pytest.approx(0.3)}
    assert "".join(fake.log[2:]) == "ab" * (len(fake.log) // 2 - 1)


def test_three_rounds_whatever_the_budget():
    fake = FakeTime()
    times = fake.stopwatch().race([fake.contestant("a", 10.0)], budget=0.001)
    assert times["a"].samples == [10.0] * 3


def test_short_calls_are_repeated_until_the_clock_can_tell():
    fake = FakeTime()
    times = fake.stopwatch().race([fake.contestant("a", 1e-6)], budget=0.05)["a"]
    assert times.calls * 1e-6 >= stopwatch.SHORTEST_SAMPLE
    assert times.calls * 1e-6 < 3 * stopwatch.SHORTEST_SAMPLE
    assert times.samples == pytest.approx([1e-6] * len(times.samples), rel=1e-6)


def test_the_first_call_of_a_sample_does_not_count():
    fake = FakeTime()
    way = fake.way("a", 0.01, 0.001, 0.001)  # cold, then warm
    assert fake.stopwatch().sample(way, 2) == pytest.approx(0.001)
    slow = fake.way("b", 0.5, 0.4)  # of what takes long the first one does
    assert fake.stopwatch().sample(slow, 1) == pytest.approx(0.5)


def test_best_and_median():
    fake = FakeTime()
    times = fake.stopwatch().race([fake.contestant("a", 0.04, 0.03, 0.09, 0.05)], 0.4)["a"]
    assert times.best == pytest.approx(0.03)
    assert times.median == pytest.approx(np.median(times.samples))


def test_of_several_ways_the_fastest_counts():
    fake = FakeTime()
    ways = tuple(fake.way(name, seconds) for name, seconds in [("x", 0.3), ("y", 0.1), ("z", 0.2)])
    times = fake.stopwatch().race([Contestant("a", ways)], budget=1.0)["a"]
    assert times.way.name == "y"
    assert times.samples == pytest.approx([0.1] * len(times.samples))


def test_who_is_no_peer_may_sit_out():
    fake = FakeTime()
    racing = [
        fake.contestant("a", 0.03),
        fake.contestant("b", 0.03),
        fake.contestant("slow", 1.0, peer=False),
    ]
    times = fake.stopwatch().race(racing, budget=20.0)
    assert len(times["a"].samples) == len(times["b"].samples) > 3 * len(times["slow"].samples)
    assert len(times["slow"].samples) >= 3


def test_settling_ends_when_the_threads_do(monkeypatch):
    class Time:
        wall, cpu, spinning = 0.0, 0.0, 0.0

        def perf_counter(self):
            return self.wall

        def process_time(self):
            return self.cpu

        def sleep(self, seconds):
            self.wall += seconds
            self.cpu += seconds if self.wall <= self.spinning else 0

    time = Time()
    monkeypatch.setattr(stopwatch, "time", time)
    stopwatch.settle()
    assert time.wall == pytest.approx(0.001)
    time.spinning = time.wall + 0.02
    stopwatch.settle()
    assert 0.02 < time.wall < 0.024
    time.spinning = math.inf
    stopwatch.settle()
    assert time.wall < 0.024 + 2 * stopwatch.PATIENCE


def test_contexts_are_entered_around_a_sample_and_garbage_is_collected_after(monkeypatch):
    import gc

    seen = []
    way = Way(
        "a",
        lambda: seen.append((torch.is_inference_mode_enabled(), gc.isenabled())),
        np.asarray,
        torch.inference_mode,
    )
    bench.Stopwatch().race([Contestant("a", (way,))], budget=0.01)
    assert set(seen) == {(True, False)}
    assert gc.isenabled()
    assert not torch.is_inference_mode_enabled()


# ---- results -------------------------------------------------------------------------------------


def measured(best, error=1e-7):
    return bench.Measurement("way", best, 2 * best, 5, 1, error)


def a_result(goals=(), name="linear/x", work=None, **best):
    names = {"mine": ours.NAME}
    work = work or bench.Linear(rows=8, width_in=500, width_out=250)  # 2 MFLOP, 524 kB
    case = bench.Case(name, work, tuple(goals))
    found = {names.get(name, name): measured(seconds) for name, seconds in best.items()}
    return bench.Result(case, LIMITS, found)


def test_ratios_are_how_many_times_faster_ours_is():
    result = a_result(mine=0.002, torch=0.006, onnxruntime=0.001)
    assert result.ratio("torch") == pytest.approx(3)
    assert result.ratio("onnxruntime") == pytest.approx(0.5)
    assert math.isnan(result.ratio("numpy"))
    assert math.isnan(a_result(torch=1.0).ratio("torch"))


@pytest.mark.parametrize(
    ("goal", "found", "met"),
    [
        (Goal(2.0, "peers", ("torch", "onnxruntime")), 1.5, False),
        (Goal(2.0, "peers", ("torch",)), 3.0, True),
        (Goal(3.0, "peers", ("torch", "missing")), 3.0, True),
        (Goal(0.5, "arithmetic"), 2e6 / 20e-6 / 400e9, False),
        (Goal(0.2, "arithmetic"), 0.25, True),
        (Goal(0.1, "read"), 524_000 / 20e-6 / 200e9, True),
        (Goal(20e-6, "call"), 20e-6, True),
        (Goal(19e-6, "call"), 20e-6, False),
    ],
)
def test_goals(goal, found, met):
    (reached,) = a_result([goal], mine=20e-6, torch=60e-6, onnxruntime=30e-6).goals
    assert reached.known
    assert reached.found == pytest.approx(found)
    assert reached.met is met


def test_a_goal_without_its_peer_is_unknown():
    (reached,) = a_result([Goal(2.0, "peers", ("torch",))], mine=1.0).goals
    assert not reached.known
    assert reached.as_json()["met"] is None
    assert all(not goal.known for goal in a_result([Goal(1.0, "call")], torch=1.0).goals)


def test_the_share_is_that_of_the_nearer_limit():
    linear = bench.Linear(rows=1, width_in=5000, width_out=2000)  # 20 MFLOP, 40 MB
    assert LIMITS.level(linear.nbytes).name == "memory"
    assert LIMITS.share(linear, 0.002) == pytest.approx(linear.nbytes / 0.002 / 40e9)
    many = replace(linear, rows=1000)
    assert LIMITS.share(many, 0.1) == pytest.approx(many.flops / 0.1 / 400e9)
    levels = [LIMITS.level(size).name for size in (1, 2 << 20, (2 << 20) + 1, 33 << 20)]
    assert levels == ["L2", "L2", "L3", "memory"]


def test_who_gives_another_result_does_not_race(monkeypatch):
    case = smaller(CASES["prefill/float32/d64/s128"])
    attention = numpy_peer.attention
    monkeypatch.setattr(
        numpy_peer, "attention", lambda q, k, v, causal: attention(q, k, v, causal=False)
    )
    result = run_case(case, LIMITS, 0.01, bench.Stopwatch())
    assert "numpy" not in result.measured
    assert re.fullmatch(r"gives another result, \S+ away from float64", result.missing["numpy"])
    assert "numpy gives another result" in report.line(result)
    assert {ours.NAME, "torch"} <= result.measured.keys()


def test_a_wrong_result_of_ours_has_no_speed(monkeypatch, run):
    softmax = ours.sf.softmax
    monkeypatch.setattr(ours.sf, "softmax", lambda x, out: softmax(x + 0 * x, -1) * 1.01)
    status, out, _ = run("--only", "call/softmax", "--budget", 0.01)
    assert status == 1
    assert re.search(r"call/softmax +WRONG", out)
    monkeypatch.setattr(ours.sf, "softmax", lambda x, out: np.full_like(x, np.nan))
    result = run_case(smaller(CASES["call/softmax"]), LIMITS, 0.01, bench.Stopwatch())
    assert result.ours is None
    assert math.isnan(result.share)
    assert result.as_json()["ratios"] == {}


# ---- peers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_peers_get_as_many_threads_as_ours(monkeypatch, threads):
    seen = {}
    make, race = onnxruntime_peer.contestant, bench.Stopwatch.race

    def onnxruntime(work, inputs, count):
        seen["onnxruntime"] = count
        return make(work, inputs, count)

    def racing(self, *arguments):
        seen["torch"] = torch.get_num_threads()
        return race(self, *arguments)

    monkeypatch.setattr(onnxruntime_peer, "contestant", onnxruntime)
    monkeypatch.setattr(bench.Stopwatch, "race", racing)
    before = torch.get_num_threads()
    with sf.num_threads(threads):
        run_case(smaller(CASES["call/softmax"]), LIMITS, 0.01, bench.Stopwatch())
    assert seen == {"onnxruntime": threads, "torch": threads}
    assert torch.get_num_threads() == before


def test_without_the_others_ours_runs_alone(monkeypatch, capsys):
    for module in (torch_peer, onnxruntime_peer, model_contestants):
        monkeypatch.setattr(module, "optional", lambda name: None)
    for name in ("rms_norm/1x1024", "Qwen3-0.6B/decode"):
        result = run_case(smaller(CASES[name]), LIMITS, 0.01, bench.Stopwatch())
        assert result.ours is not None
        assert not {"torch", "onnxruntime", "transformers"} & result.measured.keys()
    results = bench.Results(MACHINE, LIMITS, [result])
    assert "transformers: transformers or PyTorch is not installed" in report.summary(results)
    assert "\n? 2.5× transformers" in report.line(result).replace(", ", "\n")


def test_peers_see_the_inputs_where_they_lie(rng):
    for dtype in ("float32", "bfloat16"):
        array = bench.Softmax(rows=2, width=3, dtype=dtype).inputs(rng)["x"]
        tensor = torch_peer.tensor(array)
        assert tensor.data_ptr() == array.ctypes.data
        assert (tensor.float().numpy() == array.astype(np.float32)).all()


def test_decoding_with_onnxruntime_appends_to_its_cache(rng):
    """Called again and again it gives the same, because it writes the same place."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    work = bench.Attention(heads=4, kv_heads=2, queries=1, keys=40, head_dim=16)
    (way,) = onnxruntime_peer.contestant(work, work.inputs(rng), 1).ways
    first = way.result().copy()
    for _ in range(3):
        assert (way.result() == first).all()


def test_numpy_leaves_out_what_it_cannot_do_in_memory():
    large = bench.Attention(heads=32, kv_heads=32, queries=8192, keys=8192, head_dim=128)
    assert isinstance(numpy_peer.contestant(large, {}), Missing)


# ---- the machine and its limits ------------------------------------------------------------------


def test_caches_are_those_of_our_cpus_and_shared_ones_count_once(tmp_path, monkeypatch):
    def cache(cpu, index, level, kind, size, shared):
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        facts = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
        for name, text in facts.items():
            (folder / name).write_text(f"{text}\n")

    for cpu in range(3):
        cache(cpu, 0, 1, "Data", "48K", cpu)
        cache(cpu, 1, 2, "Instruction", "2048K", cpu)
        cache(cpu, 2, 2, "Unified", "1024K", cpu)
        cache(cpu, 3, 3, "Unified", "32M", "0-2")
    (tmp_path / "cpu0" / "cache" / "index9").mkdir()  # says nothing
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1})
    assert machine.caches(1, tmp_path) == [48 << 10] * 2
    assert machine.caches(2, tmp_path) == [1 << 20] * 2
    assert machine.caches(3, tmp_path) == [32 << 20]
    assert machine.caches(4, tmp_path) == []


def test_the_machine_is_the_one_in_use():
    with sf.num_threads(1), sf.use_isa(sf.isas()[0]):
        found = bench.this_machine()
    assert (found.threads, found.isa) == (1, sf.isas()[0])
    assert found.cpu
    assert found.versions["torch"] == torch.__version__
    assert "1 thread;" in str(found)
    assert "2 threads;" in str(MACHINE)
    assert machine.free_memory() > 1 << 20


def test_places_to_read_from():
    l2, l3, memory = limits.read_places(MACHINE, 64 << 30)
    assert (l2.name, l2.capacity, l2.nbytes, l2.each) == ("L2", 2 << 20, 1 << 19, 2)
    assert (l3.name, l3.capacity, l3.nbytes, l3.each) == ("L3", 32 << 20, 16 << 20, 1)
    assert (memory.name, memory.capacity, memory.nbytes) == ("memory", None, 512 << 20)
    assert limits.read_places(MACHINE, 1 << 30)[-1].nbytes == 256 << 20
    unknown = replace(MACHINE, l2=0, l3=0)
    assert [place.name for place in limits.read_places(unknown, 64 << 30)] == ["memory"]
    no_l3 = replace(MACHINE, l3=2 << 20)
    assert [place.name for place in limits.read_places(no_l3, 64 << 30)] == ["L2", "memory"]


def test_limits_follow_from_work_and_time(monkeypatch):
    fake = FakeTime()
    busy = []

    def fma_chains(iterations):
        fake.now += iterations / 1e9
        return 64.0 * iterations

    def read_memory(array):
        busy.append(sf.get_num_threads())
        fake.now += array.nbytes / 10e9
        return 0.0

    monkeypatch.setattr(limits, "fma_chains", fma_chains)
    monkeypatch.setattr(limits, "read_memory", read_memory)
    monkeypatch.setattr(limits, "free_memory", lambda: 64 << 20)
    with sf.num_threads(2):
        found = bench.measure_limits(MACHINE, 0.1, fake.stopwatch())
    assert found.gflops == pytest.approx(64)
    assert [level.gigabytes_per_second for level in found.levels] == pytest.approx([20, 10, 10])
    assert set(busy) == {1, 2}  # an L2 is measured by the thread that has it
    assert str(found).startswith("64 GFLOPS in float32 multiply-adds, reads 20 GB/s from L2, ")


def test_the_limit_kernels_do_what_they_say(isa):
    array = np.arange(1000, dtype=np.float32)
    assert limits.read_memory(array) == array.sum()
    once, twice = limits.fma_chains(1 << 10), limits.fma_chains(1 << 11)
    assert twice == 2 * once > 0


# ---- in company ----------------------------------------------------------------------------------


def test_company_is_judged_by_mean_and_p99():
    alone = np.full(200, 1e-4)
    beside = np.r_[np.full(198, 2e-4), [9e-3, 9e-3]]
    found = bench.Company("ours", alone, beside)
    assert found.mean_ratio == pytest.approx(beside.mean() / 1e-4)
    assert found.p99 == pytest.approx(np.quantile(beside, 0.99))
    assert not found.met  # 2.9 times the mean, though 99 of 100 are quick
    assert bench.Company("ours", alone, np.full(200, 2e-4)).met
    assert not bench.Company("ours", alone, np.r_[np.full(195, 1e-4), np.full(5, 2e-3)]).met


def test_calls_are_timed_one_by_one():
    fake = FakeTime()
    assert company.calls(fake.way("a", 0.5, 0.25).call, 1.5, fake.clock) == pytest.approx(
        [0.5, 0.25, 0.5, 0.25]
    )
    assert len(company.calls(fake.way("a", 9.0).call, 1.5, fake.clock)) == 1


def test_the_busy_process_runs_and_ends():
    def ticks(process):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11])  # of CPU time

    with company.busy_process(60) as process:
        for _ in range(3000):  # half a minute, should the machine be busy already
            if ticks(process) >= 10:
                break
            time.sleep(0.01)
        else:
            pytest.fail("it hardly ran")
    assert not Path(f"/proc/{process}").exists()


def test_the_command_measures_company(run, tmp_path):
    file = tmp_path / "times.json"
    status, out, _ = run("--only", "call/softmax", "--budget", 0.05, "--company", "--json", file)
    assert status == 0
    assert re.search(r"^ +simdformer +mean .* 99 of 100 calls within .* 2.5×, 1.00 ms$", out, re.M)
    found = json.loads(file.read_text())["company"]
    assert [one["name"] for one in found] == ["simdformer", "torch"]
    assert all(one["calls"][0] >= 3 and one["mean_alone"] > 0 for one in found)


# ---- the list of cases ---------------------------------------------------------------------------


def test_names_are_unique_and_sizes_those_of_the_names():
    cases = bench.all_cases("avx2", models=True)
    assert len({case.name for case in cases}) == len(cases)
    work = CASES["decode/bfloat16/s4096"].work
    assert (work.heads, work.kv_heads, work.queries, work.keys) == (32, 8, 1, 4096)
    assert work.dtype == "bfloat16"
    linear = CASES["linear/float16-weight/m16"].work
    assert (linear.rows, linear.dtype, linear.weight_dtype) == (16, "float32", "float16")


def test_patterns():
    cases = list(CASES.values())
    assert bench.select(cases, []) == cases
    names = [case.name for case in bench.select(cases, ["rope", "linear/*/m1", "rope/t1"])]
    assert names[-3:] == ["rope/t1", "rope/t128", "rope/t2048"]
    assert "linear/float32/m1" in names
    assert "linear/float32/m16" not in names
    with pytest.raises(ValueError, match="no case is called 'rms_norm/1x1025'; near is rms_norm/1"):
        bench.select(cases, ["rms_norm/1x1025"])
    with pytest.raises(ValueError, match="see --list, with --models too"):
        bench.select(cases, ["zzzzz"])


def test_goals_depend_on_the_instruction_set():
    def goals(name, *arguments, **options):
        (case,) = bench.select(bench.all_cases(*arguments, **options), [name])
        return list(map(str, case.goals))

    assert goals("linear/bfloat16/m512", "avx512_bf16") == ["1× peers"]
    assert goals("linear/bfloat16/m512", "avx2") == ["1.5× peers"]
    assert goals("linear/float32/m512", "avx2", best_isa=False) == [
        "1× numpy",
        "85% FMA",
    ]
    assert goals("softmax/128x4096", "baseline", best_isa=False) == ["1× numpy"]
    assert goals("call/rope", "avx2") == ["≤ 1.5 µs"]


# ---- tables, files, the command ------------------------------------------------------------------


@pytest.fixture
def run(capsys, monkeypatch):
    """run("--only", ...) gives exit status, stdout and stderr, and leaves the settings alone.

    The limits of the machine are taken from above.
    """
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", lambda *arguments: LIMITS)
    isa, threads = sf.isa(), sf.get_num_threads()

    def run(*arguments):
        status = cli.main(["bench", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield run
    sf.set_isa(isa)
    sf.set_num_threads(threads)


QUICK = ("--only", "call/rms_norm", "--only", "rms_norm/1x1024", "--budget", 0.01)


def test_a_line():
    goals = [Goal(2.0, "peers", ("torch",)), Goal(0.9, "read"), Goal(2.0, "peers", ("x",))]
    result = a_result(goals, mine=20e-6, torch=60e-6, numpy=400e-6, other=30e-6)
    first, second = report.line(result).split("\n")
    assert first.split() == [
        *("linear/x", "20.0", "µs", "100", "GFLOPS", "25%", "3.00×", "20.0×"),
        *("1.0e-07", "1.0e-07", "✓", "2×", "torch,", "✗", "90%", "read,", "?", "2×"),
        "x",
    ]
    assert second.split() == ["1.50×", "other", "(66.7", "GFLOPS)"]
    titles = report.row(report.TITLES)
    end = first.index("3.00×") + len("3.00×")
    assert titles[:end].endswith("torch")


def test_markdown_has_a_row_a_case():
    results = bench.Results(MACHINE, LIMITS, [a_result(mine=1.0, torch=2.0), a_result(torch=1.0)])
    lines = report.markdown(results).splitlines()
    assert lines[0] == str(MACHINE)
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert {line.count("|") for line in table} == {len(report.TITLES) + 1}
    assert "2.00×" in table[2]
    assert "WRONG" in table[3]


def test_numbers_for_people():
    seconds = (0.9999e-6, 1e-9, 12.345e-6, 0.99996, 61.0)
    assert [report.duration(x) for x in seconds] == [
        "1.00 µs",
        "1.00 ns",
        "12.3 µs",
        "1.00 s",
        "61.0 s",
    ]


def test_the_command_prints_a_table_and_writes_json(run, monkeypatch, tmp_path):
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", bench.measure_limits)
    file = tmp_path / "times.json"
    status, out, err = run(*QUICK, "--json", file, "--threads", 1)
    assert (status, err) == (0, "")
    assert out.startswith(str(bench.this_machine()))
    assert "GFLOPS in float32 multiply-adds" in out
    assert re.search(r"^rms_norm/1x1024 .* GB/s +\d+% .*× +.*e-0", out, re.M)
    assert re.search(r"^call/rms_norm +\S+ [nµm]s .*≤ 1.5 µs$", out, re.M)
    assert re.search(r"^\d of 2 goals are met$", out, re.M)

    found = json.loads(file.read_text())
    assert found["schema"] == 1
    assert found["machine"]["threads"] == 1
    assert found["limits"]["gflops"] > 0
    assert found["limits"]["read"][-1]["name"] == "memory"
    assert found["interrupted"] is False
    assert [case["name"] for case in found["cases"]] == ["rms_norm/1x1024", "call/rms_norm"]
    for case in found["cases"]:
        work = CASES[case["name"]].work
        assert (case["flops"], case["bytes"]) == (work.flops, work.nbytes)
        assert case["sizes"]["width"] == work.width
        mine, theirs = case["contestants"]["simdformer"], case["contestants"]["torch"]
        assert case["ratios"]["torch"] == pytest.approx(theirs["best"] / mine["best"])
        assert mine["speed"] == pytest.approx(work.nbytes / mine["best"] / 1e9)
        assert 0 < mine["best"] <= mine["median"]
        assert mine["samples"] >= 3
        assert mine["error"] < 1e-6
        (goal,) = case["goals"]
        assert goal["met"] in (True, False)


def test_every_result_is_json():
    for case in CASES.values():
        found = bench.Result(case, LIMITS, {ours.NAME: measured(1e-3)}, {"torch": "is away"})
        assert json.loads(json.dumps(found.as_json(), allow_nan=False))["name"] == case.name


def test_the_command_writes_markdown(run):
    status, out, _ = run(*QUICK, "--markdown", "--isa", sf.isas()[0])
    assert status == 0
    assert f", {sf.isas()[0]}, " in out.splitlines()[0]
    assert re.search(r"^\| rms_norm/1x1024 \|.*\|$", out, re.M)


def test_the_list_names_cases_and_goals(run):
    status, out, _ = run("--list")
    assert status == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert names == [case.name for case in bench.all_cases(sf.isa())]
    assert "Llama" not in out
    assert "Llama-3.2-1B/decode" in run("--list", "--models")[1]
    assert run("--list", "--only", "decode/*/s512")[1].count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sofmax"], "bench: no case is called 'sofmax'; near is "),
        (["--only", "call", "--budget", 0], "bench: budget is 0, needed are seconds > 0"),
        (["--only", "call", "--json", "/nowhere/x.json"], "/nowhere/x.json: No such file"),
        (["--only", "call", "--isa", "mmx"], "set_isa: name is 'mmx'"),
    ],
)
def test_complaints_come_before_the_measuring(run, monkeypatch, arguments, message):
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", None)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"simdformer: error: {message}")


def test_the_plot_has_a_dot_for_each_case_and_contestant(run, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "roofline.png"
    assert run(*QUICK, "--plot", file)[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    results = bench.Results(
        MACHINE,
        LIMITS,
        [a_result(mine=1e-5, torch=2e-5), a_result(mine=1e-4), a_result(name="call/x", mine=1.0)],
    )
    ax = bench.plot_roofline(results)
    dots = {one.get_label(): one.get_offsets() for one in ax.collections}
    assert {name: len(points) for name, points in dots.items()} == {ours.NAME: 2, "torch": 1}
    assert list(dots["torch"][0]) == pytest.approx([2e6 / 524_000, 100])
    roofs = [line.get_ydata().max() for line in ax.lines]
    assert len(roofs) == 3
    assert max(roofs) == pytest.approx(400)


def test_without_matplotlib_the_plot_is_refused_before_the_measuring(run, monkeypatch, tmp_path):
    monkeypatch.setattr("simdformer.bench.roofline.optional", lambda name: None)
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", None)
    status, _, err = run(*QUICK, "--plot", tmp_path / "x.png")
    assert status == 2
    assert "matplotlib is not installed" in err


def test_ctrl_c_ends_with_what_was_measured(run, monkeypatch, tmp_path):
    race, raced = bench.Stopwatch.race, []

    def interrupted(self, contestants, budget):
        raced.append(contestants)
        if len(raced) > 3:
            raise KeyboardInterrupt
        return race(self, contestants, budget)

    monkeypatch.setattr(bench.Stopwatch, "race", interrupted)
    file = tmp_path / "times.json"
    status, out, _ = run("--only", "call", "--budget", 0.01, "--json", file)
    assert status == 130
    found = json.loads(file.read_text())
    assert found["interrupted"] is True
    assert len(found["cases"]) == 3
    assert "interrupted after 3 cases" in out
