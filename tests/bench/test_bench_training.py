"""`simdformer bench --training`: whole steps beside PyTorch."""

from dataclasses import replace

import numpy as np
import pytest

from bench_cases import LIMITS, hurry, smaller
from simdformer import bench, cli
from simdformer.bench.contestants import OURS, TORCH, Contestant, Missing
from simdformer.bench.runner import run_case
from simdformer.bench.training import COMPILED
from simdformer.training.work import all_parameters

pytest.importorskip("transformers")
SMALLER = {smaller(case).work: case.name for case in bench.training_cases()}


@pytest.fixture(params=SMALLER, ids=SMALLER.values())
def work(request):
    return request.param


def test_all_give_the_losses_of_float64_and_step(work, rng):
    inputs = work.inputs(rng)
    before = {name: array.copy() for name, array in inputs["model"].parameters().items()}
    right = work.expected(inputs)
    contestants = work.contestants(inputs)
    assert [one.name for one in contestants] == [OURS, TORCH]
    for one in contestants:
        assert isinstance(one, Contestant), one
        for _ in range(2):  # steps change nothing
            (way,) = one.ways
            assert bench.relative_error(work.sample(way.result()), right) < work.tolerance
    after = inputs["model"].parameters()
    assert all(np.array_equal(after[name], array) for name, array in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_pytorch_takes_part(rng, dtype):
    [work] = [one for one, name in SMALLER.items() if name == f"training/demo/8x256/{dtype}"]
    work = replace(work, compiled=True)
    inputs = work.inputs(rng)
    compiled = work.contestants(inputs)[-1]
    assert (compiled.name, type(compiled)) == (COMPILED, Contestant)
    found = work.sample(compiled.ways[0].result())
    assert bench.relative_error(found, work.expected(inputs)) < work.tolerance


def test_what_is_not_compiled_is_missing_for_a_reason(monkeypatch, rng):
    def refuse(*_):
        raise RuntimeError("no compiler found\nand much more")

    monkeypatch.setattr("torch.compile", lambda call: refuse)
    work = replace(next(iter(SMALLER)), compiled=True)
    missing = work.contestants(work.inputs(rng))[-1]
    assert missing == Missing(COMPILED, "could not compile: no compiler found")


def test_who_computes_another_loss_does_not_race(monkeypatch):
    hurry(monkeypatch)
    work = next(iter(SMALLER))
    other = replace(work.config, norm_eps=1.0)
    right = bench.TrainingStep.expected
    monkeypatch.setattr(
        bench.TrainingStep, "expected", lambda self, i: right(replace(self, config=other), i)
    )
    result = run_case(bench.Case("x", work), LIMITS, 0.01, bench.Stopwatch())
    assert result.ours is None


def test_sizes_are_those_of_the_models():
    works = {case.name: case.work for case in bench.training_cases()}
    for name, millions, teraflops in (
        ("minimind-26m/32x512", 25.8, 2.78),
        ("gpt2-124m/4x64", 124.4, 0.19),
        ("demo/8x256", 1.44, 0.0189),
    ):
        work = works[f"training/{name}/float32"]
        numbers = sum(array.size for array in all_parameters(work.config).values())
        assert numbers / 1e6 == pytest.approx(millions, rel=0.01)
        assert work.flops / 1e12 == pytest.approx(teraflops, rel=0.05)
        assert work.speed(2.0) == work.rows * work.length / 2


def test_the_command_names_and_chooses(capsys):
    assert cli.main(["bench", "--training", "--list"]) == 0
    assert "training/minimind-26m/32x512/float32" in capsys.readouterr().out
    assert cli.main(["bench", "--training", "short", "--list", "--only", "*26m*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["training/minimind-26m/4x512/float32", "1.3×", "torch"],
        ["training/minimind-26m/4x512/bfloat16", "1×", "torch"],
    ]
    assert cli.main(["bench", "--training", "--compile", "--list", "--only", "*demo*32"]) == 0
    assert "1.3× torch, 1.3× torch.compile" in capsys.readouterr().out
    assert cli.main(["bench", "--compile", "--list"]) == 2
    assert "--compile is for --training" in capsys.readouterr().err
