"""Memory of large results: what was freed is used again, nobody's twice, and not for ever."""

import os
import sys
import threading

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

import simdformer as sf
from conftest import same_bits
from simdformer import _core
from simdformer.runtime import awake
from subprocesses import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is kept elsewhere")

MB = 1 << 20
DEFAULT = "default_allocator"


def floats(nbytes):
    return np.ones((nbytes // 4096, 1024), np.float32)


@pytest.mark.parametrize("nbytes", [MB // 4, MB, 4 * MB, 9 * MB, 40 * MB])
def test_a_result_takes_the_place_of_one_that_was_freed(nbytes):
    x = floats(nbytes)
    first = sf.relu(x)
    assert get_handler_name(first) == "simdformer"
    where = first.ctypes.data
    del first
    assert sf.relu(x).ctypes.data == where


def test_small_results_and_arrays_of_others_are_numpys():
    assert get_handler_name(sf.relu(floats(MB // 8))) == DEFAULT
    sf.relu(floats(MB))
    assert get_handler_name(np.empty(MB)) == DEFAULT


def test_within_a_pass_arrays_of_numpy_are_too():
    @awake
    def one_pass(depth):
        if depth:
            one_pass(depth - 1)
        return np.zeros(MB), np.ones(MB) + 1

    for _ in range(3):
        zeros, twos = one_pass(2)
        assert get_handler_name(zeros) == get_handler_name(twos) == "simdformer"
        assert not zeros.any()
        assert (twos == 2).all()
        zeros[:] = 7
    assert get_handler_name(np.ones(MB)) == DEFAULT


def test_a_pass_that_fails_ends_too():
    with pytest.raises(RuntimeError), awake:
        raise RuntimeError
    assert get_handler_name(np.ones(MB)) == DEFAULT
    _core.end_pass()  # one too many: nothing
    assert get_handler_name(np.ones(MB)) == DEFAULT


def test_results_can_be_resized():
    x = floats(MB)
    y = sf.relu(x)
    y.resize((1024, 1024), refcheck=False)
    assert (y[: len(x)] == 1).all()
    assert not y[len(x) :].any()


def test_no_two_results_share_memory():
    """Hundreds of sizes, made and freed at random, on three threads: each keeps what it got."""

    def many(seed, errors):
        rng = np.random.default_rng(seed)
        held = []
        for step in range(300):
            x = np.full((int(rng.integers(1, 700)), 1024), seed * 1000 + step, np.float32)
            held.append((sf.relu(x), x))
            if rng.random() < 0.6:
                y, wanted = held.pop(int(rng.integers(len(held))))
                errors += [] if same_bits(y, wanted) else [step]
        errors += [step for step, (y, wanted) in enumerate(held) if not same_bits(y, wanted)]

    errors = []
    threads = [threading.Thread(target=many, args=(seed, errors)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_what_is_kept_is_bounded():
    found = run_python("""
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

        x = np.ones((6144, 1024), np.float32)
        before = resident()
        held = [sf.relu(x) for _ in range(16)]
        full = resident()
        del held
        print(full - before > 350, 60 < resident() - before < 160)
    """)
    assert found == "True True"


def test_a_fork_inherits_what_is_kept():
    x = floats(4 * MB)
    sf.relu(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if (sf.relu(x) == 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (sf.relu(x) == 1).all()
