"""A good guest in processes that do much at once: other threads, forks, exits."""

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import simdformer as sf
from conftest import assert_same_bits, normal, same_bits
from operations import softmax_and_text
from subprocesses import HANG, run_python
from test_threads import CALLS

pytestmark = [pytest.mark.xdist_group("threads"), pytest.mark.usefixtures("restored")]

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, affinity, /proc")


def at_once(*tasks):
    """Runs each in a thread of its own, all from one moment on; raises what one of them raised."""
    start, failed = threading.Barrier(len(tasks)), []

    def run(task):
        start.wait(timeout=HANG)
        try:
            task()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=HANG)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failed:
        raise failed[0]


# ---- threads of Python's and of others -----------------------------------------------------------


def test_eight_threads_may_call_everything_at_once(demo, rng):
    """Operations, models and settings; each result is the one that it gives alone."""
    x = normal(rng, 450, 1500)
    wanted = {name: call(x) for name, call in CALLS.items()}
    ids = rng.integers(0, 1000, 30)
    logits, text = demo(ids), demo.generate("Once upon a time", max_new_tokens=12)
    frequencies = sf.rope_frequencies(64, theta=1e4).inv_freq

    def calls(seed):
        order = np.random.default_rng(seed).permutation(list(CALLS))

        def run():
            for name in order:
                assert_same_bits(CALLS[name](x), wanted[name])
                if seed == 0:
                    sf.set_num_threads(1 + len(name) % 5)
            assert same_bits(demo(ids), logits)
            assert same_bits(sf.rope_frequencies(64, theta=1e4).inv_freq, frequencies)
            mine = sf.from_pretrained(sf.demo_path()) if seed % 2 else demo
            assert mine.generate("Once upon a time", max_new_tokens=12) == text

        return run

    at_once(*map(calls, range(8)))


def test_the_threads_of_torch_work_at_the_same_time(rng):
    x, weight = normal(rng, 300, 512), normal(rng, 256, 512)
    a, b = torch.from_numpy(x), torch.from_numpy(weight)
    ours = sf.linear(x, weight), sf.softmax(x)
    theirs = (a @ b.T).numpy()

    def we():
        for _ in range(40):
            assert same_bits(sf.linear(x, weight), ours[0])
            assert same_bits(sf.softmax(a), ours[1])

    def they():
        for _ in range(40):
            np.testing.assert_allclose((a @ b.T).numpy(), theirs, rtol=1e-4, atol=1e-4)

    sf.set_num_threads(4)
    at_once(we, they, we, they)


def test_threads_come_and_go(rng):
    """Hundreds of short-lived threads, each with scratch memory of its own."""
    x = normal(rng, 60, 150)
    wanted = {name: CALLS[name](x) for name in ("softmax", "linear", "rms_norm")}

    def calls():
        for name, want in wanted.items():
            assert_same_bits(CALLS[name](x), want)

    for _ in range(20):
        at_once(*[calls] * 20)


@linux
def test_many_threads_on_one_core_come_to_their_end():
    """A worker that has no core cannot answer: nobody may wait for it without letting go."""
    code = """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    expected = call()
    for n in (8, 64, 3):
        sf.set_num_threads(n)
        for _ in range(20):
            assert np.array_equal(call(), expected)
    print("done")
    """
    assert run_python(code) == "done"


# ---- fork ----------------------------------------------------------------------------------------

FORK = """
def child_is_right():
    "Forks; does the child compute what the parent does, in threads of its own, and end?"
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)
            right = np.array_equal(call(), expected)
            status = 0 if right and workers() == sf.get_num_threads() - 1 == 3 else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

expected = call()
"""


@linux
def test_the_child_of_a_fork_starts_afresh():
    code = FORK + "print(*[child_is_right() for _ in range(5)], np.array_equal(call(), expected))"
    assert run_python(code, SIMDFORMER_NUM_THREADS="4") == "0 0 0 0 0 True"


@linux
def test_a_fork_in_the_middle_of_another_threads_call_is_survived():
    code = (
        FORK
        + """
done = False
def work():
    while not done:
        call()
others = [threading.Thread(target=work) for _ in range(2)]
for other in others: other.start()
statuses = {child_is_right() for _ in range(30)}
done = True
for other in others: other.join()
print(statuses, np.array_equal(call(), expected))
"""
    )
    assert run_python(code, SIMDFORMER_NUM_THREADS="4") == "{0} True"


@linux
def test_a_fork_by_a_signal_handler_leaves_the_child_without_a_result():
    code = """
    class Enough(Exception): pass
    statuses = []
    def handler(*_):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            return  # to the call that was interrupted
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        raise Enough
    expected = call()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        eternity()
    except RuntimeError as error:  # the child
        ok = "forked the process" in str(error) and np.array_equal(call(), expected)
        os._exit(33 if ok else 1)
    except Enough:
        print(statuses, np.array_equal(call(), expected))
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS="3") == "[33] True"


def _in_a_child(seed):
    x = np.random.default_rng(seed).standard_normal((512, 1024), dtype=np.float32)
    return sf.softmax(x)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_multiprocessing_by_fork_works():
    with sf.num_threads(4):
        expected = [_in_a_child(seed) for seed in range(6)]
        with multiprocessing.get_context("fork").Pool(3) as pool:
            results = pool.map_async(_in_a_child, range(6)).get(timeout=120)
    assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))


EVERYTHING = """
ids = list(range(2, 40))
model = sf.from_pretrained(sf.demo_path())
packed = sf.pack(x[:200])

def everything():
    q = x[:1000, :1000].reshape(5, 200, 1000)
    yield sf.softmax(x)
    yield sf.linear(x, x[:300])
    yield sf.linear(x, packed)
    yield sf.scaled_dot_product_attention(q, q, q, is_causal=True)
    yield sf.rope(x, layout="half")
    yield sf.rms_norm(x, eps=1e-6)
    yield sf.embedding(np.arange(1000), x)
    yield model(ids)

wanted = [result.copy() for result in everything()]

def right():
    return all(map(np.array_equal, everything(), wanted))
"""


@pytest.mark.slow
@linux
def test_a_child_of_a_fork_in_the_middle_of_calls_can_do_everything():
    """And so can its own child; the parent goes on meanwhile."""
    code = (
        EVERYTHING
        + """
done = False
def work():
    while not done:
        assert right()
others = [threading.Thread(target=work) for _ in range(3)]
for other in others: other.start()

def child(depth):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(300)
            status = 0 if right() and (depth == 1 or child(1) == 0) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

statuses = {child(0) for _ in range(8)}
done = True
for other in others: other.join()
print(statuses, right())
"""
    )
    assert run_python(code, SIMDFORMER_NUM_THREADS="3") == "{0} True"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_by_other_means_than_fork(method):
    wanted = [softmax_and_text(seed) for seed in range(3)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.map_async(softmax_and_text, range(3)).get(timeout=HANG)
    for (array, text), (want, want_text) in zip(results, wanted, strict=True):
        assert same_bits(array, want)
        assert text == want_text


# ---- exit ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_exit_is_quiet_while_daemon_threads_are_inside_calls():
    code = """
    class Late:  # lives in builtins, so it goes when the interpreter has begun to shut down
        def __init__(self): self.sleep = time.sleep
        def __del__(self): self.sleep(0.5)  # lets go of the GIL: daemon threads come back now
    def forever():
        while True:
            call()
    for target in (forever, forever, eternity):
        threading.Thread(target=target, daemon=True).start()
    call()
    time.sleep(0.3)
    import builtins
    builtins.late = Late()
    print("end of the program")
    """
    for _ in range(3):
        assert run_python(code, SIMDFORMER_NUM_THREADS="3") == "end of the program"


def test_a_call_from_atexit_and_from_a_late_finalizer_works():
    code = """
    import atexit, builtins
    class Late:  # goes when the interpreter has begun to shut down
        def __init__(self):
            self.softmax, self.x, self.write = sf.softmax, x, os.write
            self.expected = call().tobytes()
        def __del__(self):
            self.write(1, str(self.softmax(self.x).tobytes() == self.expected).encode())
    builtins.late = Late()
    atexit.register(lambda: print(call().shape, flush=True))
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS="3").splitlines() == ["(1024, 1024)", "True"]


def test_exit_is_quiet_while_daemon_threads_are_in_calls_of_every_kind():
    code = (
        EVERYTHING
        + """
def forever():
    while True:
        list(everything())

def texts():
    while True:
        model.generate("Once upon a time", max_new_tokens=50)

def loads():
    while True:
        sf.from_pretrained(sf.demo_path())

for target in (forever, forever, texts, loads, eternity):
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.3)
print("end of the program")
"""
    )
    for _ in range(3):
        assert run_python(code, SIMDFORMER_NUM_THREADS="3") == "end of the program"


def test_an_uncaught_error_ends_a_process_with_busy_threads():
    code = """
    threading.Thread(target=eternity, daemon=True).start()
    time.sleep(0.2)
    try:
        sf.softmax("no array")
    except TypeError:
        os.write(1, b"refused")
        sys.exit()
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS="3") == "refused"


SUBINTERPRETER = """
import importlib, sys
for name in ("_xxsubinterpreters", "_interpreters"):  # of Python 3.11 and 3.12, of later ones
    try:
        subinterpreters = importlib.import_module(name)
        break
    except ImportError:
        pass
else:
    sys.exit("no subinterpreters")
try:
    failure = subinterpreters.run_string(subinterpreters.create(), "import simdformer")
except Exception as error:
    failure = error
print("refused" if "subinterpreter" in str(failure) else failure)
"""
USE = "import numpy as np, simdformer as sf\nprint(sf.softmax(np.zeros(2)))\n"


@pytest.mark.parametrize("before", ["", USE], ids=["not imported yet", "in use already"])
def test_a_subinterpreter_is_refused_in_words_and_does_no_harm(before):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", before + SUBINTERPRETER + USE],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    if "no subinterpreters" in done.stderr:
        pytest.skip("this Python has no module of subinterpreters")
    wanted = ["[0.5 0.5]"] * bool(before) + ["refused", "[0.5 0.5]"]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, wanted, "")
