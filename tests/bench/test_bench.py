"""What the benchmark measures, and with whom: all do the same work, and it is counted right.

No test of the benchmark is about how fast anything is.
"""

import math
import re

import numpy as np
import pytest
import torch

import simdformer as sf
from bench_cases import CASES, LIMITS, MACHINE, hurry, smaller
from simdformer import bench
from simdformer.bench import (
    contestants,
    gradients,
    llama_cpp,
    models,
    operations,
    report,
    transformers,
)
from simdformer.bench.contestants import LLAMA_CPP, ONNXRUNTIME, OURS, Missing
from simdformer.bench.runner import run_case

# Each once: many of the batches have the same smaller one.
RACES = {
    name: CASES[name]
    for name in {smaller(case).work: name for name, case in CASES.items()}.values()
}
each_case = pytest.mark.parametrize("case", RACES.values(), ids=RACES)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    hurry(monkeypatch)


# ---- the work ------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@each_case
def test_all_contestants_compute_the_same(case, rng):
    work = smaller(case).work
    inputs = work.inputs(rng)
    expected = work.expected(inputs)
    assert np.isfinite(expected).all()
    assert expected.std() > 0 or expected.size == 1
    took_part = set()
    for one in work.contestants(inputs):
        if isinstance(one, Missing):
            assert one.why
            continue
        took_part.add(one.name)
        for way in one.ways:
            error = bench.relative_error(work.sample(way.result()), expected)
            assert error <= work.tolerance, (one.name, way.name, error)
            rounds_x = way.name == "linear, quantised"  # to 16 bits
            if work.dtype == "float32" and not (rounds_x or isinstance(work, bench.ModelRun)):
                assert error < 2e-6, (one.name, way.name, error)
    goal_peers = {name for goal in case.goals for name in goal.peers}
    if case.work.dtype != "float32":
        goal_peers -= {ONNXRUNTIME}
    if contestants.optional("onnx") is None or contestants.optional("onnxruntime") is None:
        goal_peers -= {ONNXRUNTIME}
    if llama_cpp.missing():
        goal_peers -= {LLAMA_CPP}
    assert took_part >= {OURS} | goal_peers


@each_case
def test_bytes_are_those_of_the_arrays(case, rng):
    work = smaller(case).work
    inputs = work.inputs(rng)
    if isinstance(work, bench.ModelRun):
        few = work.type != "bfloat16"
        matrices = [weight for weight in inputs["weights"].values() if len(weight.shape) == 2]
        arrays = [weight.blocks() if few else weight for weight in matrices]
        positions = work.in_cache + work.new
        cache = models.KVCache(
            num_layers=work.config.num_layers,
            num_kv_heads=work.config.num_kv_heads,
            head_dim=work.config.head_dim,
            max_seq_len=positions,
            page_size=positions,
            dtype="float32" if few else "bfloat16",
        )
        counted = sum(array.nbytes for array in arrays)
        counted += cache.nbytes * getattr(work, "texts", 1)
    elif isinstance(work, bench.QuantizedLinear):  # whose weight is given by its values
        blocks = sf.quantize(inputs["weight"], work.type).blocks()
        counted = inputs["x"].nbytes + blocks.nbytes + work.with_ours(**inputs).result().nbytes
    elif isinstance(work, bench.Gradient):
        sizes = {name: array.nbytes for name, array in inputs.items() if array.ndim > 1}
        made = sum(sizes.get(name, 0) for name in work.wanted)
        counted = sum(sizes.values()) + made
        if work.of in ("linear-x", "linear-weight", "rope"):  # that of x needs no x
            counted -= made
        if work.row.both_ways:  # the forward's result, which a loss has not
            counted += sizes.get("grad", 0)
    elif isinstance(work, bench.OptimizerStep):  # three are written, and one is read twice
        counted = 2 * sum(array.nbytes for array in inputs.values())
    else:
        arrays = [array for array in inputs.values() if array.ndim > 1]  # the norm's weight stays
        counted = sum(array.nbytes for array in arrays) + work.with_ours(**inputs).result().nbytes
    assert work.nbytes == counted
    assert work.intensity == work.flops / work.nbytes


def test_operations_are_counted_where_they_are_needed():
    attention = bench.Attention(heads=3, kv_heads=3, queries=5, keys=5, head_dim=8)
    assert attention.flops == 2 * 2 * 8 * 3 * np.tri(5).sum()
    decode = bench.Attention(heads=6, kv_heads=3, queries=1, keys=5, head_dim=8)
    assert decode.flops == 2 * 2 * 8 * 6 * 5
    assert bench.Linear(rows=3, width_in=5, width_out=7).flops == 2 * 3 * 5 * 7
    one = bench.Gradient(of="linear-x", sizes=(3, 7, 5))
    assert one.wanted == ("x",)  # PyTorch makes no other one
    step = CASES["Qwen3-0.6B/decode"].work
    assert 1.15e9 < step.flops < 1.25e9  # 2 for each of 0.6 billion parameters
    with pytest.raises(ValueError, match="queries is 2, needs 1 or keys = 5"):
        bench.Attention(heads=1, kv_heads=1, queries=2, keys=5, head_dim=8)


def test_speed_is_in_the_unit_that_it_says():
    linear = bench.Linear(rows=8, width_in=500, width_out=250)
    assert (linear.counted_in, linear.speed(1e-3)) == ("GFLOPS", 2.0)
    norm = bench.RMSNorm(rows=500, width=250)
    assert (norm.counted_in, norm.speed(1e-3)) == ("GB/s", 1.0)
    prompt = CASES["Qwen3-0.6B/prefill/float32"].work
    assert (prompt.counted_in, prompt.speed(2.0)) == ("tok/s", 256)


@pytest.mark.sampled(3)
@each_case
def test_inputs_are_the_same_every_time(case):
    first, second = (smaller(case).work.inputs(np.random.default_rng(5)) for _ in range(2))
    for name, array in first.items():
        if isinstance(array, np.ndarray):
            assert array.tobytes() == second[name].tobytes()


def test_relative_error_sees_what_is_not_a_number():
    assert bench.relative_error(np.array([2.0, 4.0]), np.array([1.0, 2.0])) == 1
    assert math.isnan(bench.relative_error(np.array([np.nan, 2.0]), np.array([1.0, 2.0])))


# ---- whole models --------------------------------------------------------------------------------


def test_random_weights_are_no_pattern():
    config = smaller(CASES["Qwen3-0.6B/decode"]).work.config
    weights = bench.random_weights(config)
    assert weights.keys() == sf.models.weight_shapes(config).keys()
    for name, shape in sf.models.weight_shapes(config).items():
        assert (weights[name].shape, weights[name].dtype.name) == (shape, "bfloat16")
        if len(shape) == 2:
            assert len(np.unique(weights[name].astype(np.float32), axis=0)) == shape[0]
            assert abs(weights[name].astype(np.float32).std() * shape[1] ** 0.5 - 1) < 0.1
    assert bench.random_weights(config) is weights
    models.forget_models()
    again = bench.random_weights(config)
    assert again is not weights
    assert all((again[name] == weights[name]).all() for name in weights)


def test_a_run_lets_the_models_go(monkeypatch):
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", lambda *arguments: LIMITS)
    case = smaller(CASES["Qwen3-0.6B/decode"])
    results = bench.run([case], budget=0.01)
    assert results.right
    assert not models._made
    assert models.random_weights.cache_info().currsize == 0


@pytest.mark.slow
def test_reading_is_measured_again_beside_what_comes_from_memory():
    memory = bench.Limits(400.0, (bench.Level("memory", None, 1e-9),))
    result = run_case(smaller(CASES["softmax/128x4096"]), memory, 0.01, bench.Stopwatch())
    assert result.limits.levels[0].gigabytes_per_second > 1e-3
    assert result.limits.gflops == 400.0
    assert result.share < 1e3
    assert not any("read" in name for name in result.measured)
    cached = run_case(smaller(CASES["softmax/128x4096"]), LIMITS, 0.01, bench.Stopwatch())
    assert cached.limits == LIMITS


@pytest.mark.slow
def test_multiply_adds_are_measured_again_beside_what_they_bind():
    case = smaller(CASES["prefill/float32/d64/s128"])
    slow = bench.Limits(1e-9, (bench.Level("memory", 1 << 40, 1e9),))
    result = run_case(case, slow, 0.01, bench.Stopwatch())
    assert result.limits.gflops > 1e-3
    assert result.limits.levels == slow.levels
    assert result.share < 1e3
    assert not any("multipl" in name for name in result.measured)
    read = bench.Limits(1e9, (bench.Level("memory", 1 << 40, 1e-9),))
    assert run_case(case, read, 0.01, bench.Stopwatch()).limits == read


def test_who_gives_another_result_does_not_race(monkeypatch):
    case = smaller(CASES["prefill/float32/d64/s128"])
    attention = bench.Attention.with_numpy
    monkeypatch.setattr(
        bench.Attention, "with_numpy", lambda self, q, k, v: 1.01 * attention(self, q, k, v)
    )
    result = run_case(case, LIMITS, 0.01, bench.Stopwatch())
    assert "numpy" not in result.measured
    assert re.fullmatch(r"gives another result, \S+ away from float64", result.missing["numpy"])
    assert "numpy gives another result" in "".join(report.notes(result))
    assert {OURS, "torch"} <= result.measured.keys()


# ---- peers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_peers_get_as_many_threads_as_ours(monkeypatch, threads):
    seen = {}
    way, race = contestants.Graph.way, bench.Stopwatch.race

    def onnxruntime(graph, count):
        seen["onnxruntime"] = count
        return way(graph, count)

    def racing(self, *arguments):
        seen["torch"] = torch.get_num_threads()
        return race(self, *arguments)

    monkeypatch.setattr(contestants.Graph, "way", onnxruntime)
    monkeypatch.setattr(bench.Stopwatch, "race", racing)
    before = torch.get_num_threads()
    with sf.num_threads(threads):
        run_case(smaller(CASES["call/softmax"]), LIMITS, 0.01, bench.Stopwatch())
    assert seen == {"onnxruntime": threads, "torch": threads}
    assert torch.get_num_threads() == before


def test_without_the_others_ours_runs_alone(monkeypatch, capsys):
    for module in (contestants, operations, gradients, transformers, llama_cpp):
        monkeypatch.setattr(module, "optional", lambda name: None)
    gradient, step = "backward/rms_norm/float32", "backward/adamw/float32"
    for name in ("rms_norm/1x1024", gradient, step, "Qwen3-0.6B/decode"):
        result = run_case(smaller(CASES[name]), LIMITS, 0.01, bench.Stopwatch())
        assert result.ours is not None
        assert not {"torch", "onnxruntime", "transformers", "llama.cpp"} & result.measured.keys()
    results = bench.Results(MACHINE, LIMITS, [result])
    assert "transformers: transformers or PyTorch is not installed" in report.summary(results)
    assert list(report.goals(result)) == ["? 1× peers"]


def test_peers_see_the_inputs_where_they_lie(rng):
    for dtype in ("float32", "bfloat16"):
        array = bench.Softmax(rows=2, width=3, dtype=dtype).inputs(rng)["x"]
        tensor = contestants.tensor(array)
        assert tensor.data_ptr() == array.ctypes.data
        assert (tensor.float().numpy() == array.astype(np.float32)).all()


def test_decoding_with_onnxruntime_appends_to_its_cache(rng):
    """Called again and again it gives the same, because it writes the same place."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    work = bench.Attention(heads=4, kv_heads=2, queries=1, keys=40, head_dim=16)
    (way,) = work.onnxruntime(work.inputs(rng)).ways
    first = way.result().copy()
    for _ in range(3):
        assert (way.result() == first).all()


def test_numpy_leaves_out_what_it_cannot_do_in_memory():
    large = bench.Attention(heads=32, kv_heads=32, queries=8192, keys=8192, head_dim=128)
    assert isinstance(large.numpy({}), Missing)


# ---- the list of cases ---------------------------------------------------------------------------


def test_names_are_unique_and_sizes_those_of_the_names():
    cases = bench.all_cases(models=True)
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
    with pytest.raises(ValueError, match="see --list, with --models and --transformers too"):
        bench.select(cases, ["zzzzz"])


def test_every_case_has_goals():
    goals = {name: list(map(str, case.goals)) for name, case in CASES.items()}
    usual = ["1× peers", "85% FMA or 90% read"]
    named = ("prefill/float32/d64/s128", "linear/bfloat16/m512", "linear/q4_0/m1", "rope/t2048")
    assert all(goals[name] == usual for name in (*named, "Qwen3-0.6B/decode"))
    assert goals["linear/float16-weight/m1"] == usual[1:]  # nobody else takes such weights
    assert goals["linear/q4_k/m1"] == ["1× torch", *usual[1:]]
    assert goals["call/rope"] == ["1× peers", "≤ 1.5 µs"]
    assert goals["Qwen3-0.6B/q4_k/decode"] == ["1× llama.cpp", "1.3× llama.cpp or 85% read"]
    assert all(goals.values())
