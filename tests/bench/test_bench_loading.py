"""Loading in the benchmark: what is told is what was measured. Nothing here is about how long it
takes."""

import json
import math
import re

import pytest

import simdformer as sf
import tiny_models
from bench_cases import LIMITS, MACHINE, a_result, measured
from simdformer import bench
from simdformer.bench import checkpoints, report
from simdformer.bench.checkpoints import FIRST_TOKEN, PLAIN_READING, files_of
from simdformer.bench.contestants import OURS
from simdformer.bench.runner import run_case
from simdformer.text.quantizing import quantize_checkpoint

KINDS = {"file": 3e-4, "directory": 1e-5, "mixture": 1e-5}  # how far off logits may be


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.setattr(checkpoints, "FEWEST_LOADS", 1)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A file of blocks, and directories of Hugging Face's."""
    folder = tmp_path_factory.mktemp("loading")
    quantize_checkpoint(sf.demo_path(), folder / "demo.gguf", "q8_0")
    for kind, name in (("directory", "qwen3"), ("mixture", "qwen3-moe")):
        tiny_models.make(name).save_pretrained(folder / kind)
    return {
        "file": folder / "demo.gguf",
        **{kind: folder / kind for kind in ("directory", "mixture")},
    }


def case_of(path):
    case, *_ = bench.checkpoint_cases(path)
    return case


@pytest.fixture
def run(paths):
    return lambda: run_case(case_of(paths["directory"]), LIMITS, 0.001, bench.Stopwatch())


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_loads_it_and_says_the_right_logits(kind, paths):
    """What is read are the files that hold its weights."""
    path = paths[kind]
    file = path if kind == "file" else path / "model.safetensors"
    result = run_case(case_of(path), LIMITS, 0.001, bench.Stopwatch())
    assert result.case.name == f"{path.name}/load"
    assert result.ours.error < KINDS[kind]
    assert result.ours.way == "from_pretrained"
    assert result.loaded.weights == result.case.work.nbytes == file.stat().st_size
    assert files_of(path) == [file]
    assert 0 < result.ours.best < result.measured[FIRST_TOKEN].best
    assert result.measured[PLAIN_READING].best > 0
    if not math.isnan(result.loaded.resident):
        assert result.loaded.resident > 10e6  # Python and numpy at least
    _, first, second = report.line(bench.Results(MACHINE, LIMITS, [result])).split("\n")
    assert re.search(r"/load +\S+ \S*s +\S+ GB/s +\S+× +\d\.\de-\d\d +[✓✗] 0.67× plain rea", first)
    assert re.fullmatch(
        r" {4}first token after \S+ \S+, \S+ MB resident beside \d MB of weights", second
    )
    assert json.loads(json.dumps(result.as_json(), allow_nan=False))["loaded"]["weights"] > 0


def test_all_parts_of_a_model_are_read(paths, tmp_path):
    tiny_models.make("qwen3").save_pretrained(tmp_path, max_shard_size="40KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert sorted(files_of(tmp_path)) == files
    assert case_of(tmp_path).work.nbytes == sum(file.stat().st_size for file in files)


def test_processes_get_our_threads_and_instruction_set(monkeypatch, run):
    names = "SIMDFORMER_ISA", "SIMDFORMER_NUM_THREADS"
    monkeypatch.setattr(checkpoints, "LOAD", f"import os; exit(' '.join(map(os.getenv, {names})))")
    with sf.use_isa(sf.isas()[0]), sf.num_threads(1):
        assert run().missing[OURS] == f"does not load: {sf.isas()[0]} 1"


def test_each_time_is_the_best_and_memory_the_most(monkeypatch, run):
    loads = checkpoints.loads

    def made_up(*arguments):
        *_, logits = next(loads(*arguments))
        for reading, seconds, resident in [(0.5, 3.0, 70e6), (0.25, 4.0, 90e6), (1.0, 2.5, 80e6)]:
            yield seconds, seconds + 1, reading, resident, logits

    monkeypatch.setattr(checkpoints, "loads", made_up)
    result = run()
    assert (result.ours.best, result.ours.median, result.ours.samples) == (2.5, 3.0, 3)
    assert result.measured[PLAIN_READING].best == 0.25
    assert result.measured[FIRST_TOKEN].best == 3.5
    assert result.loaded.resident == 90e6


# ---- goals ---------------------------------------------------------------------------------------


@pytest.fixture
def a_load(paths):
    def make(seconds=1.0, resident=2_200e6):
        best = {OURS: seconds, FIRST_TOKEN: 3.0, PLAIN_READING: 1.0}
        found = {name: measured(time) for name, time in best.items()}
        loaded = bench.Loaded(resident=resident, weights=2_000_000_000)
        return bench.Result(case_of(paths["directory"]), LIMITS, found, loaded=loaded)

    return make


def test_goals_are_of_the_file_and_of_the_weights(a_load):
    def signs(**found):
        return list(report.goals(a_load(**found)))

    time, memory = "0.67× plain reading", "≤ 1.05× weights + 100 MB"
    assert signs(seconds=1.49, resident=2_199e6) == [f"✓ {time}", f"✓ {memory}"]
    assert signs(seconds=1.51, resident=2_201e6) == [f"✗ {time}", f"✗ {memory}"]
    assert signs(resident=math.nan) == [f"✓ {time}", f"? {memory}"]
    assert a_load(resident=math.nan).as_json()["loaded"]["resident"] is None


def test_markdown_tells_it_below_the_table(a_load):
    blocks = report.markdown(bench.Results(MACHINE, LIMITS, [a_load(seconds=1.25)])).split("\n\n")
    assert "| 0.80× |" in blocks[2]
    assert blocks[3].strip() == (
        "* directory/load: first token after 3.00 s, 2,200 MB resident beside 2,000 MB of weights"
    )


def test_it_has_no_dot_on_the_roofline(a_load):
    pytest.importorskip("matplotlib")
    ax = bench.plot_roofline(bench.Results(MACHINE, LIMITS, [a_load(), a_result(mine=1e-5)]))
    assert [len(dots.get_offsets()) for dots in ax.collections] == [1]
    assert not bench.plot_roofline(bench.Results(MACHINE, LIMITS, [a_load()])).collections


# ---- what goes wrong -----------------------------------------------------------------------------


def test_a_model_that_does_not_load_is_wrong(monkeypatch, run):
    monkeypatch.setattr(checkpoints, "LOAD", "raise ValueError('no such luck')")
    result = run()
    assert list(report.notes(result)) == ["simdformer does not load: ValueError: no such luck"]
    assert not bench.Results(MACHINE, LIMITS, [result]).right
    monkeypatch.setattr(checkpoints, "LOAD", "import os; os._exit(9)")
    assert list(report.notes(run())) == ["simdformer does not load: exit status 9"]


@pytest.mark.parametrize("number", ["0.0", "float('nan')"])
def test_other_logits_have_no_time(monkeypatch, run, number):
    right = "logits[rows].tolist()"
    assert right in checkpoints.LOAD
    monkeypatch.setattr(
        checkpoints, "LOAD", checkpoints.LOAD.replace(right, f"[{number}] * len(rows)")
    )
    result = run()
    assert result.ours is None
    assert "gives another result" in "".join(report.notes(result))
