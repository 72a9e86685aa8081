"""Loading in the benchmark: what is written is the model, and what is told about it is what was
measured. Nothing here is about how long it takes."""

import json
import math
import re
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

import simdformer as sf
from bench_cases import CASES, LIMITS, MACHINE, a_result, measured, smaller
from simdformer import bench
from simdformer.bench import loading, models, report
from simdformer.bench.contestants import OURS
from simdformer.bench.runner import run_case
from simdformer.checkpoints import read_checkpoint
from simdformer.models.tensors import kind_of
from simdformer.text.quantizing import quantize_checkpoint

NAMES = [f"{shape}/load" for shape in bench.SHAPES]
IN_FEW_BITS = [f"Qwen3-0.6B/{mixture}/load" for mixture in ("q8_0", "q4_k_m")]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """The folder for temporary files; one process a case."""
    monkeypatch.setattr(loading, "FEWEST_LOADS", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    models.forget_models()


def run(name="Qwen3-0.6B/load"):
    return run_case(smaller(CASES[name]), LIMITS, 0.001, bench.Stopwatch())


@pytest.mark.parametrize("name", NAMES)
def test_the_checkpoint_is_the_model(name, tmp_path):
    """Config and bits, as our own reader finds them."""
    work = smaller(CASES[name]).work
    weights = bench.random_weights(work.config)
    loading.export(tmp_path, work.config, weights, None, ())
    found = read_checkpoint(tmp_path)
    assert found.config == work.config
    assert found.weights.keys() == weights.keys()
    assert sum(tensor.nbytes for tensor in found.weights.values()) == work.nbytes
    for key, array in weights.items():
        assert found.weights[key].dtype == array.dtype
        assert (found.weights[key].__array__() == array).all()


@pytest.mark.parametrize("name", IN_FEW_BITS)
def test_a_file_in_few_bits_has_the_mixture_of_the_command(name, tmp_path):
    """The types and the bytes of what `simdformer quantize` makes of the same checkpoint."""
    work = smaller(CASES[name]).work
    weights = bench.random_weights(work.config)
    found = read_checkpoint(work.write(tmp_path, weights))
    original = tmp_path / "original"
    original.mkdir()
    loading.export(original, work.config, weights, None, ())
    quantize_checkpoint(original, tmp_path / "made.gguf", name.split("/")[1])
    made = read_checkpoint(tmp_path / "made.gguf")
    assert found.config == made.config
    assert sum(tensor.span for tensor in found.weights.values()) == work.nbytes
    for key, tensor in made.weights.items():
        assert kind_of(found.weights[key]) == kind_of(tensor)
        assert (np.asarray(found.weights[key]) == np.asarray(tensor)).all()
    assert {"q8_0"} <= set(map(kind_of, found.weights.values())) <= {"q8_0", "q5_0", "float32"}


@pytest.mark.parametrize("name", NAMES + IN_FEW_BITS)
def test_a_process_loads_it_and_says_the_right_logits(name, folder):
    result = run(name)
    assert list(folder.iterdir()) == []
    assert result.ours.error < (1e-5 if name in NAMES else 3e-4)
    assert result.ours.way == "from_pretrained"
    loaded = result.loaded
    assert loaded.reading > 0
    assert result.ours.best < loaded.first_token
    assert loaded.weights == result.case.work.nbytes
    if math.isnan(loaded.resident):
        assert [str(goal.goal) for goal in result.goals if goal.known] == ["≤ 1.5× reading"]
    else:
        assert loaded.resident > 10e6  # Python and numpy at least
        assert all(goal.known for goal in result.goals)
    first, second = report.line(result).split("\n")
    assert re.search(r"/load +\S+ \S*s +\S+ GB/s +\d\.\de-0\d +[✓✗] ≤ 1.5× reading, ", first)
    assert re.fullmatch(
        r" {4}\S+× as long as reading the file \(\S+ \S+\), first token after \S+ \S+, "
        r"\S+ MB resident beside 0 MB of weights",
        second,
    )
    assert json.loads(json.dumps(result.as_json(), allow_nan=False))["loaded"]["weights"] > 0


def test_processes_get_our_threads_and_instruction_set(monkeypatch):
    seen = []
    monkeypatch.setattr(loading, "loads", lambda wanted, budget: seen.append(wanted) or iter([]))
    isa = sf.isa()
    sf.set_isa(sf.isas()[0])
    try:
        with sf.num_threads(1), pytest.raises(ValueError, match="empty"):
            run()
    finally:
        sf.set_isa(isa)
    assert (seen[0]["isa"], seen[0]["threads"]) == (sf.isas()[0], 1)


def test_each_time_is_the_best_and_memory_the_most(monkeypatch):
    right = {}
    loads = loading.loads

    def made_up(wanted, budget):
        right.update(next(loads(wanted, budget)))
        for reading, seconds, resident in [(0.5, 3.0, 70e6), (0.25, 4.0, 90e6), (1.0, 2.5, 80e6)]:
            times = {"reading": reading, "loading": seconds, "first_token": seconds + 1}
            yield {**right, **times, "resident": resident}

    monkeypatch.setattr(loading, "loads", made_up)
    result = run()
    assert (result.ours.best, result.ours.median, result.ours.samples) == (2.5, 3.0, 3)
    assert (result.loaded.reading, result.loaded.first_token) == (0.25, 3.5)
    assert result.loaded.resident == 90e6


# ---- goals ---------------------------------------------------------------------------------------


def a_load(seconds=1.0, resident=2_200e6, **options):
    loaded = bench.Loaded(reading=1.0, first_token=3.0, resident=resident, weights=2_000_000_000)
    case = CASES["Qwen3-0.6B/load"]
    return bench.Result(case, LIMITS, {OURS: measured(seconds)}, loaded=loaded, **options)


def test_goals_are_of_the_file_and_of_the_weights():
    def signs(**found):
        return list(report.goals(a_load(**found)))

    time, memory = "≤ 1.5× reading", "≤ 1.05× weights + 100 MB"
    assert signs(seconds=1.49, resident=2_199e6) == [f"✓ {time}", f"✓ {memory}"]
    assert signs(seconds=1.51, resident=2_201e6) == [f"✗ {time}", f"✗ {memory}"]
    assert signs(resident=math.nan) == [f"✓ {time}", f"? {memory}"]
    assert a_load(resident=math.nan).as_json()["loaded"]["resident"] is None


def test_markdown_tells_it_below_the_table():
    blocks = report.markdown(bench.Results(MACHINE, LIMITS, [a_load(seconds=1.25)])).split("\n\n")
    assert "✓ ≤ 1.5× reading" in blocks[2]
    assert blocks[3].strip() == (
        "* Qwen3-0.6B/load: 1.25× as long as reading the file (1.00 s), first token after 3.00 s, "
        "2,200 MB resident beside 2,000 MB of weights"
    )


def test_it_has_no_dot_on_the_roofline():
    pytest.importorskip("matplotlib")
    ax = bench.plot_roofline(bench.Results(MACHINE, LIMITS, [a_load(), a_result(mine=1e-5)]))
    assert [len(dots.get_offsets()) for dots in ax.collections] == [1]
    assert not bench.plot_roofline(bench.Results(MACHINE, LIMITS, [a_load()])).collections


# ---- what goes wrong -----------------------------------------------------------------------------


def test_without_room_it_is_skipped(monkeypatch, folder):
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr(loading.shutil, "disk_usage", lambda path: usage)
    result = run()
    first, second = report.line(result).split("\n")
    assert first.split() == ["Qwen3-0.6B/load", "skipped"]
    assert "no checkpoint could be written: [Errno 28] 0.0 GB are needed, 0.0 GB are free" in second
    assert str(folder) in second
    assert list(folder.iterdir()) == []
    assert bench.Results(MACHINE, LIMITS, [result]).right
    assert json.loads(json.dumps(result.as_json(), allow_nan=False))["skipped"] in second


def test_a_model_that_does_not_load_is_wrong(monkeypatch, folder):
    monkeypatch.setattr(loading, "LOAD", "raise ValueError('no such luck')")
    result = run()
    assert report.line(result).split("\n")[1].strip() == (
        "simdformer does not load: ValueError: no such luck"
    )
    assert not bench.Results(MACHINE, LIMITS, [result]).right
    monkeypatch.setattr(loading, "LOAD", "import os; os._exit(9)")
    assert "does not load: exit status 9" in report.line(run())
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", ["0.0", "float('nan')"])
def test_other_logits_have_no_time(monkeypatch, number):
    changed = f'"logits": [{number}] * len(wanted["rows"])'
    monkeypatch.setattr(
        loading, "LOAD", loading.LOAD.replace('"logits": logits[wanted["rows"]].tolist()', changed)
    )
    result = run()
    assert result.ours is None
    assert "gives another result" in report.line(result)
