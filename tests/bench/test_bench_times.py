"""How the benchmark measures: turns, samples, limits of the machine, ratios and goals."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import simdformer as sf
from bench_cases import LIMITS, MACHINE, FakeTime, a_result
from simdformer import bench
from simdformer.bench import Goal, machine, report, stopwatch, work
from simdformer.bench.contestants import Contestant, Way

# ---- the stopwatch, with a clock that tells what we want -----------------------------------------


def test_contestants_take_turns():
    fake = FakeTime()
    racing = [fake.contestant("a", 0.13), fake.contestant("b", 0.15), fake.contestant("c", 0.14)]
    times = fake.stopwatch().race(racing, budget=2.0)
    order = fake.log[3:]  # after the first call of each
    assert order == ["a", "b", "c"] * (len(order) // 3)
    assert {name: round(one.best, 9) for name, one in times.items()} == {
        "a": 0.13,
        "b": 0.15,
        "c": 0.14,
    }
    assert {len(one.samples) for one in times.values()} == {len(order) // 3}
    assert 2.0 <= fake.now - 100 < 2.5
    assert fake.settled == len(fake.log)


def test_calls_of_ones_own_are_compared():
    fake = FakeTime()
    calls = {name: fake.way(name, seconds).call for name, seconds in [("a", 0.2), ("b", 0.3)]}
    found = bench.compare(calls, 2.0, fake.stopwatch())
    assert found == {"a": pytest.approx(0.2), "b": pytest.approx(0.3)}
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
    found = bench.Measurement.of("way", times.samples, 1e-7, times.calls)
    assert (found.best, found.median) == pytest.approx((0.03, np.median(times.samples)))
    assert (found.samples, found.calls_a_sample) == (len(times.samples), times.calls)


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
    assert time.wall == pytest.approx(stopwatch.NAP)
    time.spinning = time.wall + 2.5 * stopwatch.NAP
    stopwatch.settle()
    quiet = time.wall
    assert time.spinning < quiet < time.spinning + 2 * stopwatch.NAP
    time.spinning = math.inf
    stopwatch.settle()
    assert time.wall < quiet + 2 * stopwatch.PATIENCE


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
    result = a_result([goal], mine=20e-6, torch=60e-6, onnxruntime=30e-6)
    assert result.goals == [goal]
    assert result.found(goal) == pytest.approx(found)
    assert result.met(goal) is met


def test_a_goal_without_its_peer_is_unknown():
    beside, call = Goal(2.0, "peers", ("torch",)), Goal(1.0, "call")
    result = a_result([beside], mine=1.0)
    assert result.met(beside) is None
    assert result.as_json()["goals"][0]["met"] is None
    assert a_result([call], torch=1.0).met(call) is None


def test_either_of_two_goals_will_do():
    either = Goal(2.0, "peers", ("torch",)) | Goal(0.2, "arithmetic")  # a quarter is reached
    for ours, met in ((20e-6, True), (200e-6, False)):
        result = a_result([either], mine=ours, torch=30e-6)
        assert result.met(either) is met
        assert result.goal_as_json(either)["otherwise"]["found"] == pytest.approx(5e-6 / ours)
    alone = a_result([either], mine=20e-6)  # nobody to compare with
    assert (alone.met(either), alone.goal_as_json(either)["found"]) == (True, None)
    assert a_result([either], mine=200e-6).met(either) is False
    assert a_result([either], mine=200e-6, torch=1.0).met(either)
    assert list(report.goals(a_result([either], mine=1e-3))) == ["✗ 2× torch or 20% FMA"]


def test_what_is_over_soon_need_not_be_at_the_limit():
    goals = (work.NOT_BEHIND, work.AT_THE_LIMIT)
    for seconds, count in ((0.9e-3, 1), (1.1e-3, 2)):
        assert len(a_result(goals, mine=seconds, torch=1.0).goals) == count


def test_a_goal_that_the_machine_forbids_says_what_it_allows():
    wanted = [Goal(least, "peers", ("torch",)) for least in (1.4, 5.0, 7.0)]
    result = a_result(wanted, mine=20e-6, torch=30e-6)
    assert result.share == pytest.approx(0.25)  # so that four times the speed is possible
    assert [result.possible(goal) for goal in wanted] == pytest.approx([6.0, 6.0, 6.0])
    assert list(report.goals(result)) == ["✓ 1.4× torch", "✗ 5× torch", "✗ 7× torch (at most 6.0×)"]
    narrow = replace(
        result, case=replace(result.case, work=replace(result.case.work, dtype="bfloat16"))
    )
    assert all(math.isinf(narrow.possible(goal)) for goal in wanted)
    assert narrow.goal_as_json(wanted[0])["possible"] is None


def test_the_share_is_that_of_the_nearer_limit():
    linear = bench.Linear(rows=1, width_in=5000, width_out=2000)  # 20 MFLOP, 40 MB
    assert LIMITS.level(linear.nbytes).name == "memory"
    assert LIMITS.share(linear, 0.002) == pytest.approx(linear.nbytes / 0.002 / 40e9)
    many = replace(linear, rows=1000)
    assert LIMITS.share(many, 0.1) == pytest.approx(many.flops / 0.1 / 400e9)
    levels = [LIMITS.level(size).name for size in (1, 2 << 20, (2 << 20) + 1, 33 << 20)]
    assert levels == ["L2", "L2", "L3", "memory"]


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
    l2, l3, memory = machine.read_places(MACHINE, 64 << 30)
    assert (l2.name, l2.capacity, l2.nbytes, l2.each) == ("L2", 2 << 20, 1 << 19, 2)
    assert (l3.name, l3.capacity, l3.nbytes, l3.each) == ("L3", 32 << 20, 16 << 20, 1)
    assert (memory.name, memory.capacity, memory.nbytes) == ("memory", None, 512 << 20)
    assert machine.read_places(MACHINE, 1 << 30)[-1].nbytes == 256 << 20
    unknown = replace(MACHINE, l2=0, l3=0)
    assert [place.name for place in machine.read_places(unknown, 64 << 30)] == ["memory"]
    no_l3 = replace(MACHINE, l3=2 << 20)
    assert [place.name for place in machine.read_places(no_l3, 64 << 30)] == ["L2", "memory"]


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

    monkeypatch.setattr(machine, "fma_chains", fma_chains)
    monkeypatch.setattr(machine, "read_memory", read_memory)
    monkeypatch.setattr(machine, "free_memory", lambda: 64 << 20)
    with sf.num_threads(2):
        found = bench.measure_limits(MACHINE, 0.1, fake.stopwatch())
    assert found.gflops == pytest.approx(64)
    assert [level.gigabytes_per_second for level in found.levels] == pytest.approx([20, 10, 10])
    assert set(busy) == {1, 2}  # an L2 is measured by the thread that has it
    assert str(found).startswith("64 GFLOPS in float32 multiply-adds, reads 20 GB/s from L2, ")


def test_the_limit_kernels_do_what_they_say(isa):
    array = np.arange(1000, dtype=np.float32)
    assert machine.read_memory(array) == array.sum()
    once, twice = machine.fma_chains(1 << 10), machine.fma_chains(1 << 11)
    assert twice == 2 * once > 0
