"""`simdformer bench`: its table, its files, its complaints."""

import json
import math
import re
from functools import partial

import numpy as np
import pytest

import simdformer as sf
from bench_cases import CASES, LIMITS, MACHINE, a_result, hurry, measured, smaller
from simdformer import bench
from simdformer.bench import Goal, operations, report
from simdformer.bench.contestants import OURS
from simdformer.bench.runner import run_case


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    hurry(monkeypatch)


# ---- tables, files, the command ------------------------------------------------------------------


@pytest.fixture
def run(command, monkeypatch):
    """run("--only", ...) gives exit status, stdout and stderr. The limits of the machine are made
    up."""
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", lambda *arguments: LIMITS)
    return partial(command, "bench")


QUICK = ("--only", "call/rms_norm", "--only", "rms_norm/1x1024", "--budget", 0.01)


def test_a_line():
    goals = [Goal(2.0, "peers", ("torch",)), Goal(0.9, "read"), Goal(2.0, "peers", ("x",))]
    result = a_result(goals, mine=20e-6, torch=60e-6, numpy=400e-6)
    titles, line = report.line(bench.Results(MACHINE, LIMITS, [result])).split("\n")
    assert line.split() == [
        *("linear/x", "20.0", "µs", "100", "GFLOPS", "25%", "3.00×", "20.0×"),
        *("1.0e-07", "1.0e-07", "✓", "2×", "torch,"),
        *("✗", "90%", "read", "(at", "most", "52%),", "?", "2×"),
        "x",
    ]
    end = line.index("3.00×") + len("3.00×")
    assert titles[:end].endswith("× torch")


def test_titles_stand_where_columns_change():
    step = a_result(name="Qwen3-0.6B/decode", work=CASES["Qwen3-0.6B/decode"].work, mine=1.0)
    results, seen = bench.Results(MACHINE, LIMITS), []
    for result in (a_result(mine=1.0), a_result(mine=1.0), step, step, a_result(mine=1.0)):
        results.results.append(result)
        seen.append(report.line(results).count("\n"))
    assert seen == [1, 0, 1, 0, 1]


def test_markdown_has_a_row_a_case():
    results = bench.Results(MACHINE, LIMITS, [a_result(mine=1.0, torch=2.0), a_result(torch=1.0)])
    lines = report.markdown(results).splitlines()
    assert lines[0] == str(MACHINE)
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert {line.count("|") for line in table} == {len(report.titles(results.results[0])) + 1}
    assert "2.00×" in table[2]
    assert "WRONG" in table[3]


@pytest.mark.parametrize("name", ["Qwen3-0.6B/decode", "Qwen3-0.6B/transformers/decode"])
def test_models_have_a_table_with_their_own_peers(name):
    work = CASES[name].work
    step = a_result(name=name, work=work, mine=1.0, **dict.fromkeys(work.peers, 3.0))
    results = bench.Results(MACHINE, LIMITS, [a_result(mine=1.0, torch=2.0), step])
    first, second = report.markdown(results).split("\n\n")[2:]
    assert "× onnxruntime" in first
    assert first.count("\n") == second.strip().count("\n") == 2
    titles, _, row = ([cell.strip() for cell in line.split("|")] for line in second.split("\n")[:3])
    cells = dict(zip(titles, row, strict=True))
    assert cells["speed"] == "1.00 tok/s"
    for peer in work.peers:
        assert (cells[f"× {peer}"], cells[f"{peer}'s"]) == ("3.00×", "1.0e-07")


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
    assert re.search(r"^\d of 3 goals are met$", out, re.M)

    found = json.loads(file.read_text())
    assert found["schema"] == 2
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
        assert {goal["met"] for goal in case["goals"]} <= {True, False}


def test_every_result_is_json():
    for case in CASES.values():
        found = bench.Result(case, LIMITS, {OURS: measured(1e-3)}, {"torch": "is away"})
        assert json.loads(json.dumps(found.as_json(), allow_nan=False))["name"] == case.name


@pytest.mark.slow
def test_the_command_writes_markdown(run):
    status, out, _ = run(*QUICK, "--markdown", "--isa", sf.isas()[0])
    assert status == 0
    assert f", {sf.isas()[0]}, " in out.splitlines()[0]
    assert re.search(r"^\| rms_norm/1x1024 \|.*\|$", out, re.M)


def test_the_list_names_cases_and_goals(run):
    status, out, _ = run("--list")
    assert status == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert names == [case.name for case in bench.all_cases()]
    assert "Llama" not in out
    assert "Llama-3.2-1B/decode" in run("--list", "--models")[1]
    assert "Llama-3.2-1B/transformers/decode" in run("--list", "--transformers")[1]
    assert run("--list", "--only", "decode/*/s512")[1].count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sofmax"], "bench: no case is called 'sofmax'; near is "),
        (["--only", "call", "--budget", 0], "bench: budget is 0, needs seconds > 0"),
        (["--only", "call", "--json", "/nowhere/x.json"], "/nowhere/x.json: No such file"),
    ],
)
def test_complaints_come_before_the_measuring(run, monkeypatch, arguments, message):
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", None)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"simdformer: error: {message}")


@pytest.mark.slow
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
    assert {name: len(points) for name, points in dots.items()} == {OURS: 2, "torch": 1}
    assert list(dots["torch"][0]) == pytest.approx([2e6 / 524_000, 100])
    roofs = [line.get_ydata().max() for line in ax.lines if len(line.get_xdata()) > 1]
    assert roofs == [pytest.approx(400)] * 3
    assert [text.get_text() for text in ax.get_legend().get_texts()][-1] == "1  linear"


def test_dots_above_the_roof_are_in_the_picture():
    """Products of 16 bits do several times what float32 can."""
    pytest.importorskip("matplotlib")
    ax = bench.plot_roofline(bench.Results(MACHINE, LIMITS, [a_result(mine=1e-6)]))
    [(_, gflops)] = ax.collections[0].get_offsets()
    assert gflops == pytest.approx(2000)
    assert gflops < ax.get_ylim()[1]


def test_without_matplotlib_the_plot_is_refused_before_the_measuring(run, monkeypatch, tmp_path):
    monkeypatch.setattr("simdformer.bench.plots.optional", lambda name: None)
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


def test_a_wrong_result_of_ours_has_no_speed(monkeypatch, run):
    softmax = operations.sf.softmax
    monkeypatch.setattr(operations.sf, "softmax", lambda x, out: softmax(x + 0 * x, -1) * 1.01)
    status, out, _ = run("--only", "call/softmax", "--budget", 0.01)
    assert status == 1
    assert re.search(r"call/softmax +WRONG", out)
    monkeypatch.setattr(operations.sf, "softmax", lambda x, out: np.full_like(x, np.nan))
    result = run_case(smaller(CASES["call/softmax"]), LIMITS, 0.01, bench.Stopwatch())
    assert result.ours is None
    assert math.isnan(result.share)
    assert result.as_json()["ratios"] == {}
