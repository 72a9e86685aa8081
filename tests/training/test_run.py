"""Runs that are killed, and go on with the same bits."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bigrams import Bigrams
from program import OPTIONS
from simdformer.models.communicator import Communicator
from simdformer.training.checkpoint import newest_checkpoint, saved
from simdformer.training.data import StreamRows
from simdformer.training.files import write_text, write_whole
from simdformer.training.gradient_tree import GradientTree, share_of_rank
from simdformer.training.run import Diverged, Run
from subprocesses import environment

HERE = Path(__file__).parent
HANG = 600  # seconds; a busy machine is none


def program(directory, where="never", at=0, *rest, ranks=1):
    directory.mkdir(exist_ok=True)
    start = []
    if ranks > 1:
        start = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)]
    own = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
    command = [*start, sys.executable, str(HERE / "program.py"), str(directory), where, str(at)]
    return subprocess.run(
        [*command, *rest], env=environment(SIMDFORMER_NUM_THREADS="1", **own), timeout=HANG,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def ended(directory):
    """What a run has left: weights and moments, and its log without the times."""
    checkpoint, damaged = newest_checkpoint(directory)
    assert not damaged
    assert not [path for path in directory.iterdir() if path.name.endswith(".unfinished")]
    assert len(saved(directory)) == 2
    log = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    for line in log:
        del line["tokens_per_second"]
    bits = {
        (group, name): array.tobytes()
        for group, arrays in checkpoint.arrays.items()
        for name, array in arrays.items()
    }
    return checkpoint.step, bits, log


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    directory = tmp_path_factory.mktemp("unbroken")
    found = program(directory)
    assert found.returncode == 0, found.stderr
    return ended(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "at"),
    [
        ("step", 3),  # before there is a checkpoint
        ("step", 30),
        ("arrays", 1),
        ("arrays", 6),
        ("sync", 3),
        ("sync", 20),
        ("sync", 21),
        ("sync", 22),
        ("rename", 4),
    ],
)
def test_killed_anywhere_it_goes_on_with_the_same_bits(tmp_path, unbroken, where, at):
    killed = program(tmp_path, where, at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = program(tmp_path, "never", 0, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert ended(tmp_path) == unbroken


@pytest.mark.slow
@pytest.mark.parametrize("file", ["arrays.npz", "state.json"])
@pytest.mark.parametrize("how", ["a byte", "cut", "gone"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_taken(
    tmp_path, unbroken, file, how
):
    program(tmp_path, "step", 40)
    path = saved(tmp_path)[-1] / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data if how == "a byte" else data[: len(data) // 2])
    resumed = program(tmp_path, "never", 0, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert f"{path.parent}: found a damaged checkpoint" in resumed.stdout
    assert ended(tmp_path) == unbroken


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_give_the_same_bits(tmp_path, unbroken, ranks):
    found = program(tmp_path, ranks=ranks)
    assert found.returncode == 0, found.stderr
    assert ended(tmp_path) == unbroken


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, unbroken):
    program(tmp_path, "step", 10, ranks=2)
    resumed = program(tmp_path, "never", 0, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert ended(tmp_path) == unbroken


# ---- in this process -----------------------------------------------------------------------------


def make(directory, model=None, **changed):
    ids = (np.arange(1000) * 7 % 64).astype(np.uint16)
    rows = StreamRows(ids, 16)
    return Run(
        model or Bigrams(),
        rows,
        replace(OPTIONS, **changed),
        directory,
        {"content of DATA": "same"},
    )


def test_it_learns(tmp_path):
    run = make(tmp_path, steps=60, save_minutes=9.0)
    run.begin(resume=False)
    losses = [result.loss for result in run.steps()]
    assert losses[0] == pytest.approx(np.log(64), abs=0.1)  # knows nothing yet
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": 1e-3}, "--lr is 0.001, this run began with 0.01"),
        ({"micro_batches": 2}, "--micro-batches is 2, this run began with 4"),
        ({"data": ("y",)}, "DATA is y, this run began with x"),
    ],
)
def test_a_changed_option_is_an_error_that_names_both_values(tmp_path, changed, message):
    make(tmp_path).begin(resume=False)
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **changed).begin(resume=True)
    make(tmp_path, every=7, save_minutes=1.0).begin(resume=True)  # no weight depends on these


def test_changed_data_and_a_second_run_are_refused(tmp_path):
    make(tmp_path).begin(resume=False)
    other = make(tmp_path)
    other.hashes = {"content of DATA": "changed"}
    with pytest.raises(ValueError, match=r"the content of DATA has changed since this run began"):
        other.begin(resume=True)
    with pytest.raises(ValueError, match="holds a run already; add --resume"):
        make(tmp_path).begin(resume=False)
    with pytest.raises(ValueError, match="found no run to resume"):
        make(tmp_path / "..").begin(resume=True)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"steps": ', "\0\0\0"])
def test_damaged_settings_are_named(tmp_path, content):
    make(tmp_path).begin(resume=False)
    (tmp_path / "training.json").write_text(content)
    with pytest.raises(ValueError, match=r"training\.json: found a damaged file"):
        make(tmp_path).begin(resume=True)


@pytest.mark.parametrize(
    "end", ['{"step": 3, "lo', '{"step": 3, "lo\n', "\0\0\0\n", "\xff\n", "7\n"]
)
def test_a_line_of_the_log_that_is_not_whole_is_written_again(tmp_path, end):
    run = make(tmp_path, steps=4)
    run.begin(resume=False)
    steps = run.steps()
    next(steps)
    next(steps)
    steps.close()
    log = tmp_path / "log.jsonl"
    before = log.read_text().splitlines()[0]
    log.write_text(before + "\n" + end, encoding="latin-1")
    run = make(tmp_path, steps=4)
    run.begin(resume=True)
    list(run.steps())
    lines = log.read_text().splitlines()
    assert lines[0] == before
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("scale", "found", "minutes", "left"),
    [
        (np.nan, "nan", 9.0, "there is no checkpoint yet"),
        (1e9, "times the usual", 0.0, "checkpoint-000020 is whole"),
    ],
)
def test_it_stops_before_a_step_that_ruins_the_model(tmp_path, scale, found, minutes, left):
    model = Bigrams()
    run = make(tmp_path, model, steps=40, save_minutes=minutes)
    usual, calls = model.loss_and_gradients, []

    def spoiled(*arguments, **named):
        loss, gradients = usual(*arguments, **named)
        calls.append(loss)
        if len(calls) > 80:  # step 21
            gradients["lm_head"] = gradients["lm_head"] * np.float32(scale)
        return loss, gradients

    model.loss_and_gradients = spoiled
    run.begin(resume=False)
    with pytest.raises(
        Diverged, match=f"step 21.*{found}.*at lm_head.*{left}; lower --lr, and give"
    ):
        list(run.steps())
    batch = json.loads((tmp_path / "batch-000021.json").read_text())
    assert np.shape(batch["ids"]) == (8, 16)
    assert all(np.isfinite(array).all() for array in model.weights.values())


def test_a_full_disk_leaves_the_checkpoint_before_it(tmp_path):
    resource = pytest.importorskip("resource")
    run = make(tmp_path, save_minutes=9.0)
    run.begin(resume=False)
    steps = run.steps()
    next(steps)
    run.save()
    next(steps)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, usual[1]))
        with pytest.raises(OSError, match=r"cannot be written.*checkpoint-000001 is whole"):
            run.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in saved(tmp_path)] == ["checkpoint-000001"]
    steps.close()


def test_ctrl_c_lets_the_step_end_and_saves(tmp_path):
    run = make(tmp_path, save_minutes=9.0)
    run.begin(resume=False)
    steps = run.steps()
    next(steps)
    signal.raise_signal(signal.SIGINT)
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert [path.name for path in saved(tmp_path)] == ["checkpoint-000002"]


@pytest.mark.parametrize("count", [1, 3, 4, 6, 8])
def test_the_tree_adds_every_gradient_once(count):
    tree = GradientTree({"a": np.zeros((2, 3)), "b": np.zeros(4)})
    for _ in range(2):
        for at in range(count):
            tree.add({"a": np.full((2, 3), 2.0**at, np.float32)})
        total = tree.total(Communicator())
        assert (total["a"] == 2**count - 1).all()
        assert (total["b"] == 0).all()


def test_micro_batches_that_ranks_cannot_deal_are_refused():
    ranks = Communicator()
    ranks.size = 2
    with pytest.raises(ValueError, match=r"6 micro-batches are dealt to 2 .*--micro-batches 4"):
        share_of_rank(6, ranks)


def test_a_file_that_cannot_be_written_whole_is_as_before(tmp_path):
    path = tmp_path / "file"
    write_text(path, "before")

    def half(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        write_whole(path, half)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
