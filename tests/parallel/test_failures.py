"""What happens to all ranks when one fails, in whatever way: one message, and an end."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

import ranks
from ranks import HERE

pytestmark = pytest.mark.xdist_group("ranks")
SECONDS = 10  # from a rank's end to that of all; it takes one or two on an idle machine
RUN = ["run", "demo", "Once upon a time", "--max-new-tokens", "20"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("rank", "where", "error", "status", "message"),
    [
        (1, "reading", "damaged", 2, "simdformer: error: rank 1 of 2: model-2.safetensors: found"),
        (0, "reading", "memory", 2, "simdformer: error: rank 0 of 2: no memory for 5 GB"),
        ("all", "reading", "damaged", 2, "simdformer: error: model-2.safetensors: found damage"),
        (1, "mlp", "memory", 2, "rank 1 of 2: simdformer: error: no memory for 5 GB"),
        (0, "mlp", "memory", 2, "rank 0 of 2: simdformer: error: no memory for 5 GB"),
        ("all", "mlp", "memory", 2, "simdformer: error: no memory for 5 GB"),
        (1, "mlp", "interrupted", 130, "rank 1 of 2: interrupted"),
    ],
)
def test_a_rank_that_fails_ends_all_with_one_message(rank, where, error, status, message):
    found, _, err = ranks.run(2, HERE / "fails.py", rank, where, error, *RUN)
    assert found == status
    (line,) = err.splitlines()
    assert line.startswith(message)


def test_a_bug_on_one_rank_is_shown_and_ends_all():
    status, _, err = ranks.run(2, HERE / "fails.py", 1, "mlp", "bug", *RUN)
    assert status == 1
    assert err.startswith("rank 1 of 2: Traceback (most recent call last):\n")
    assert err.endswith("ZeroDivisionError: a bug\n")
    assert err.count("Traceback") == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rank", [0, 1, "all"])
@pytest.mark.parametrize(
    ("how", "message"),
    [("program", "ZeroDivisionError: a bug"), ("arguments", "ValueError: from_pretrained: max_")],
)
def test_a_rank_that_fails_before_it_meets_the_others_ends_all(rank, how, message):
    """Where all fail the first one speaks, or on a busy machine more than one."""
    status, _, err = ranks.run(2, HERE / "fails_before.py", rank, how)
    assert status == 1
    names = "[01]" if rank == "all" else rank
    assert re.match(rf"rank {names} of 2: Traceback \(most recent call last\):\n", err)
    assert err.splitlines()[-1].startswith(message)
    assert err.count("Traceback") == 1 or rank == "all"


@pytest.mark.parametrize(
    "arguments", [["run", "demo", "x", "--top-k", "0"], ["run", "nosuch", "x"]]
)
def test_what_all_ranks_refuse_is_said_once(arguments):
    status, out, err = ranks.cli(2, *arguments)
    assert (status, out) == (2, "")
    assert err.count("error: ") == 1


def test_a_command_that_works_alone_says_so():
    status, out, err = ranks.cli(2, "info", "demo")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert "simdformer info works alone, found 2 ranks of mpiexec" in line


@pytest.mark.parametrize("arguments", [RUN, ["generate", "demo", __file__, "--out", "x"]])
def test_without_mpi4py_it_says_what_to_install(arguments, tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')")
    paths = os.pathsep.join([str(tmp_path), ranks.PATHS])
    status, out, err = ranks.cli(2, *arguments, PYTHONPATH=paths)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert "mpiexec started 2 processes, and mpi4py" in line
    assert line.endswith('pip install ".[mpi]"')


def test_ranks_of_another_mpi_are_told():
    """As where mpiexec belongs to another MPI than mpi4py, and each rank believes it is alone."""
    status, out, err = ranks.alone("-m", "simdformer", *RUN, OMPI_COMM_WORLD_SIZE="4")
    assert (status, out) == (2, "")
    assert "mpiexec started 4 processes, and mpi4py sees 1: they belong to different MPIs" in err


def test_tensor_parallel_needs_ranks(command, tmp_path):
    arguments = ["generate", "demo", __file__, "--out", tmp_path / "x", "--tensor-parallel", "2"]
    status, _, err = command(*arguments)
    assert status == 2
    assert "--tensor-parallel is 2, needs a divisor of the 1 ranks" in err
    assert 'mpiexec -n 2 simdformer generate ...; pip install ".[mpi]" brings it' in err


# ---- signals -------------------------------------------------------------------------------------


def below(pid):
    """The processes that a process has started, and theirs."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    own = [int(one) for one in children.read_text().split()] if children.exists() else []
    return [one for child in own for one in (child, *below(child))]


def ranks_of(process):
    """The ranks of an mpiexec, once they are there."""
    while True:
        every = below(process.pid)
        found = [pid for pid in every if b"simdformer" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if len(found) > 1 or process.poll() is not None:
            return found
        time.sleep(0.05)


def is_running(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


WAITS = """
import sys, time
from simdformer.mpiexec import RANKS, told
from simdformer.parallel.world import world

if told(RANKS, 0) == 1:
    try:
        time.sleep(3600)
    except KeyboardInterrupt:
        sys.exit(1)
print("waits", flush=True)
world()
"""


def test_ctrl_c_ends_a_rank_that_waits_for_one_which_has_gone():
    """An import may make an ImportError of it, with which a rank ends before MPI begins."""
    process = ranks.start(2, "-c", WAITS)
    assert process.stdout.readline() == "waits\n"
    time.sleep(1)  # until MPI waits
    process.send_signal(signal.SIGINT)
    status, _, _ = ranks.finish(process)
    assert status != 0


@pytest.mark.slow
@pytest.mark.parametrize("signals", ["rank", "mpiexec"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_a_random_moment_nothing_hangs(tmp_path, signals, seed):
    """A rank is killed, or mpiexec is told of a Ctrl-C: all ranks end, and what was begun goes on
    with no line lost or doubled."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(f'{{"id": "p{at}", "prompt": "Tom {at}"}}\n' for at in range(60)))
    arguments = ["generate", "demo", prompts, "--out", out, "--max-new-tokens", 40]
    arguments += ["--max-batch", 4]
    process = ranks.start(2, "-m", "simdformer", *arguments)
    every = ranks_of(process)
    dice = random.Random(f"{signals} {seed}")
    time.sleep(dice.uniform(0, 4))
    started = time.monotonic()
    if signals == "rank" and process.poll() is None:
        os.kill(dice.choice(every), signal.SIGKILL)
    else:
        process.send_signal(signal.SIGINT)
    ranks.finish(process)
    assert time.monotonic() - started < SECONDS
    assert not [pid for pid in every if is_running(pid)]
    status, _, err = ranks.cli(2, *arguments)
    assert status == 0, err
    found = re.findall(r'^\{"id": "p(\d+)".*\}$', out.read_text(), re.MULTILINE)
    assert sorted(map(int, found)) == list(range(60))
    assert len(out.read_text().splitlines()) == 60
