"""Ctrl-C in the middle of every operation that can be long, of loading and of generating."""

import _thread
import signal
import sys
import time

import pytest

from simdformer.models.packing import Packing
from simdformer.models.progress import Progress
from subprocesses import finish, run_python, start_python

pytestmark = [
    pytest.mark.xdist_group("threads"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="lays memory out as Linux does"
    ),
]

# A call that would take long needs an output that is large. This one has 64 GiB of addresses in
# 64 MiB of memory; its first and its last GiB are memory of their own, and tell whether a call
# came to its end, wherever it began.
ENDLESS = """
import ctypes, mmap
GIB = 1 << 30
ROWS, WIDTH = 4 << 20, 4096

def endless():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    file, piece = os.memfd_create("piece"), 64 << 20
    os.ftruncate(file, piece)
    both, noreserve, fixed = mmap.PROT_READ | mmap.PROT_WRITE, 0x4000, 0x10
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | noreserve
    base = libc.mmap(None, 64 * GIB, both, private, -1, 0)
    assert base != 2**64 - 1, "no addresses"
    for at in range(base + GIB, base + 63 * GIB, piece):
        assert libc.mmap(at, piece, both, mmap.MAP_SHARED | fixed, file, 0) == at
    memory = (ctypes.c_char * (64 * GIB)).from_address(base)
    return np.frombuffer(memory, np.float32).reshape(ROWS, WIDTH)

expected = call()
out = endless()
row = np.linspace(-1, 1, WIDTH, dtype=np.float32)
rows = np.broadcast_to(row, (ROWS, WIDTH))
weight = np.ones((WIDTH, 8), np.float32)
attention = sf.scaled_dot_product_attention
"""
INTERRUPTED = """
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
"""

LONG = {
    "silu": "sf.silu(rows, out=out)",
    "gelu": "sf.gelu(rows, out=out)",
    "relu": "sf.relu(rows, out=out)",
    "swiglu": "sf.swiglu(rows, rows, out=out)",
    "softmax": "sf.softmax(rows, out=out)",
    "rms_norm": "sf.rms_norm(rows, row, eps=1e-6, out=out)",
    "layer_norm": "sf.layer_norm(rows, row, row, eps=1e-6, out=out)",
    "rope": 'sf.rope(rows[:, None], layout="half", out=out[:, None])',
    "embedding": "sf.embedding(np.zeros(ROWS, np.uint8), row[None], out=out)",
    "linear": "sf.linear(rows[:, :8], weight, out=out)",
    "linear, packed": "sf.linear(rows[:, :8], sf.pack(weight), out=out)",
    "linear, list": "sf.linear(rows[:, :8], [weight[:9], weight[9:]], "
    "out=[out[:, :9], out[:, 9:]])",
    "attention, many queries": "attention(rows[None, :, :8], row[None, None, :8], row[None, None], "
    "out=out[None])",
    "attention, many sequences": "attention(rows[:, None, :8], rows[:, None, :8], rows[:, None], "
    "out=out[:, None])",
    "attention, one query": "keys = np.broadcast_to(row[:8], (1, 10**10, 8)); "
    "attention(row[None, None, :8], keys, keys)",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_is_answered_in_the_middle(name):
    code = f"""
try:
    {LONG[name]}
    print("came to its end")
except KeyboardInterrupt:
    print(bool(out[0].any() and out[-1].any()), np.array_equal(call(), expected))
"""
    assert run_python(ENDLESS + INTERRUPTED + code, SIMDFORMER_NUM_THREADS="2") == "False True"


def test_a_call_without_memory_is_an_error_with_words():
    code = """
try:  # angles of four million positions
    sf.rope(rows, layout="half", out=out)
except MemoryError as error:
    print(error, np.array_equal(call(), expected))
"""
    words = "simdformer: there is not enough memory for the intermediate results of this call"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (72 << 30, 72 << 30))\n"
    assert run_python(ENDLESS + limit + code) == f"{words} True"


# Interrupts it again and again, at other moments each time.
AGAIN = """
signal.signal(signal.SIGALRM, signal.default_int_handler)
moments = np.random.default_rng(0).uniform(0.0005, longest, 40)
answered = 0
def again(action):
    global answered
    for moment in moments:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, moment)
                while True:
                    action()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            answered += 1
"""


@pytest.mark.slow
def test_generating_can_be_interrupted_anywhere():
    code = f"""
longest = 0.1
{AGAIN}
model = sf.from_pretrained(sf.demo_path())
expected = model.generate("Once upon a time", max_new_tokens=30)
again(lambda: model.generate("Once upon a time", max_new_tokens=200))
again(lambda: model.generate([[5] * 180, [7] * 20], max_new_tokens=50))
print(answered, model.generate("Once upon a time", max_new_tokens=30) == expected)
"""
    assert run_python(code, SIMDFORMER_NUM_THREADS="2") == "80 True"


def test_loading_can_be_interrupted_anywhere_and_leaves_no_file_open():
    code = f"""
longest = 0.05
{AGAIN}
import gc
path = sf.demo_path()
expected = sf.from_pretrained(path)([1, 2, 3])
files = len(os.listdir("/proc/self/fd"))
again(lambda: sf.from_pretrained(path))
gc.collect()
print(answered, len(os.listdir("/proc/self/fd")) - files)
print(np.array_equal(sf.from_pretrained(path)([1, 2, 3]), expected))
"""
    assert run_python(code, SIMDFORMER_NUM_THREADS="2") == "40 0\nTrue"


@pytest.mark.parametrize("moment", ["a thread has just begun", "it is waited for"])
def test_ctrl_c_leaves_no_thread_behind_that_reads(moment, monkeypatch):
    began, read = [], []

    def job():
        began.append(True)
        time.sleep(0.3)
        read.append(True)

    def start(run, arguments):
        start_new_thread(run, arguments)
        while not began:
            time.sleep(0.001)
        if moment == "a thread has just begun":
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    packing = Packing(None, Progress("loading", 1))
    packing.jobs = [(1, job)]
    start_new_thread = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", start)
    monkeypatch.setattr("simdformer.models.packing.get_num_threads", lambda: 2)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            packing.finish()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert read


# ---- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", ["1", "2", "4"])
def test_ctrl_c_is_answered_in_the_middle_of_a_call_and_the_library_usable_after_it(threads):
    process = start_python(
        """
        expected = call()
        print("ready", flush=True)
        try:
            eternity()
        except KeyboardInterrupt:
            print("interrupted", np.array_equal(call(), expected), sf.get_num_threads())
        """,
        SIMDFORMER_NUM_THREADS=threads,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert (status, out, err) == (0, f"interrupted True {threads}\n", "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("weight", ["weight", "sf.pack(weight)"], ids=["plain", "packed"])
def test_ctrl_c_is_answered_in_the_middle_of_a_matrix_product(weight, threads):
    # a million rows, all the same one in memory: 67 TFLOP
    code = f"""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    weight = np.ones((512, 65536), np.float32)
    weight = {weight}
    rows = np.broadcast_to(np.ones(65536, np.float32), (1_000_000, 65536))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        sf.linear(rows, weight)
        print("came to its end")
    except KeyboardInterrupt:
        print("interrupted")
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS=threads) == "interrupted"


def test_a_signal_handler_may_compute_and_the_call_goes_on():
    """A call made by the handler is nested in the call that was interrupted."""
    code = """
    class Enough(Exception): pass
    expected, seen = call(), []
    def handler(*_):
        seen.append(np.array_equal(call(), expected))
        if len(seen) == 3:
            raise Enough
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        eternity()
    except Enough:
        print(seen, np.array_equal(call(), expected))
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS="4") == "[True, True, True] True"
