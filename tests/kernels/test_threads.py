"""The thread pool: the same bits from any number of threads, its size, its threads."""

import os
import sys
import threading
import time

import numpy as np
import pytest
import threadpoolctl

import simdformer as sf
from conftest import assert_threads_change_no_bit, normal, same_bits
from operations import GRADIENTS
from simdformer import _core
from simdformer.experts import expert_linear
from subprocesses import import_error, run_python

# One after the other: they count threads and time.
pytestmark = [pytest.mark.xdist_group("threads"), pytest.mark.usefixtures("restored")]

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


# ---- the same bits -------------------------------------------------------------------------------

EPS = {"eps": 1e-5}

CALLS = {
    "silu": lambda x: sf.silu(x),
    "gelu": lambda x: sf.gelu(x),
    "gelu, tanh": lambda x: sf.gelu(x, approximate="tanh"),
    "relu": lambda x: sf.relu(x),
    "swiglu": lambda x: sf.swiglu(x, x[::-1]),
    "softmax": lambda x: sf.softmax(x),
    "softmax, first axis": lambda x: sf.softmax(x, 0),
    "rms_norm": lambda x: sf.rms_norm(x, x[0], **EPS),
    "layer_norm": lambda x: sf.layer_norm(x, x[0], x[1], **EPS),
    "rope, half": lambda x: sf.rope(x, layout="half"),
    "rope, interleaved": lambda x: sf.rope(x.reshape(-1, 30, 50), layout="interleaved", offset=7),
    "linear": lambda x: sf.linear(x, x[:301]),
    "linear, one row": lambda x: sf.linear(x[0], x),
    "linear, few rows": lambda x: sf.linear(x[:4], x, x[0, :1].repeat(len(x))),
    "linear, list": lambda x: sf.linear(x[:77], [x[:50], x[100:451]]),
    "linear, packed": lambda x: sf.linear(x, sf.pack(x[:301])),
    "linear, packed, one row": lambda x: sf.linear(x[5], sf.pack(x)),
    "linear, packed, three rows": lambda x: sf.linear(x[:3], sf.pack(x)),
    "linear, 20 rows": lambda x: sf.linear(x[:20], x),
    "linear, packed, 20 rows": lambda x: sf.linear(x[:20], sf.pack(x)),
    "pack": lambda x: sf.pack(x).unpack(),
    "attention": lambda x: sf.scaled_dot_product_attention(*attention_inputs(x)),
    "attention, causal": lambda x: sf.scaled_dot_product_attention(
        *attention_inputs(x), is_causal=True
    ),
    "attention, everything": lambda x: sf.scaled_dot_product_attention(
        *attention_inputs(x), return_weights=True, return_scores=True, return_lse=True
    ),
    "attention, one query": lambda x: sf.scaled_dot_product_attention(
        x[:8, None, :50], *[np.ascontiguousarray(x.reshape(2, -1, 50)[:, ::3])] * 2
    ),
    "embedding": lambda x: sf.embedding(np.arange(len(x))[::-1].repeat(3), x),
    "embedding, wider": lambda x: sf.embedding(
        np.arange(len(x)), x, dtype=np.float64 if x.dtype == np.float64 else np.float32
    ),
    "repeat_kv": lambda x: sf.repeat_kv(x.reshape(2, 3, -1, 50), 3),
    "log_softmax": lambda x: sf.log_softmax(x),
    "cross_entropy": lambda x: sf.cross_entropy(x, LABELS),
    "linear_cross_entropy": lambda x: sf.linear_cross_entropy(x[:, :40], x[:300, 40:80], LABELS),
    **{f"backward, {name}": call for name, call in GRADIENTS.items()},
    "backward, gelu, tanh": lambda x: sf.backward.gelu(x, x[::-1], approximate="tanh"),
    "backward, swiglu, both": lambda x: sf.backward.swiglu(x, x[::-1], x),
    "backward, softmax, temperature": lambda x: sf.backward.softmax(x, x[::-1], temperature=0.5),
    "backward, rms_norm": lambda x: sf.backward.rms_norm(x, x[::-1], x[0], **EPS),
    "backward, layer_norm": lambda x: sf.backward.layer_norm(x, x[::-1], x[0], x[1], **EPS),
    "backward, linear": lambda x: sf.backward.linear(x[:, :301], x[:, 400:500], x[:301, :100]),
    "backward, embedding": lambda x: sf.backward.embedding(x, LABELS, 300),
    "backward, cross_entropy": lambda x: sf.backward.cross_entropy(x, LABELS),
}
LABELS = np.random.default_rng(2).integers(0, 300, 450)


def attention_inputs(x):
    heads = x.reshape(6, -1, 50)[:, :211]
    return heads, heads[:2] / 2, heads[2:4]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_result_does_not_depend_on_the_number_of_threads(isa, dtype, call, rng):
    x = normal(rng, 450, 1500, dtype=dtype)
    assert_threads_change_no_bit(lambda: call(x))


def test_the_number_of_threads_may_change_while_others_compute(rng):
    x = normal(rng, 450, 1500)
    expected = CALLS["softmax"](x)
    done = threading.Event()

    def change():
        for threads in np.random.default_rng(1).integers(1, 9, 200):
            sf.set_num_threads(threads)
            time.sleep(0.001)
        done.set()

    other = threading.Thread(target=change)
    other.start()
    while not done.is_set():
        assert same_bits(CALLS["softmax"](x), expected)
    other.join()


# ---- the setting ---------------------------------------------------------------------------------


def test_num_threads_is_a_setting_of_the_process_and_comes_back():
    sf.set_num_threads(3)
    seen = []
    with sf.num_threads(2):
        thread = threading.Thread(target=lambda: seen.append(sf.get_num_threads()))
        thread.start()
        thread.join()
        with sf.num_threads(5):
            assert sf.get_num_threads() == 5
        assert sf.get_num_threads() == 2
    assert seen == [2]
    with pytest.raises(KeyError), sf.num_threads(1):
        raise KeyError
    assert sf.get_num_threads() == 3


@pytest.mark.parametrize("n", [1, 1024, np.int64(7), np.uint8(2)])
def test_any_integer_in_range_is_a_number_of_threads(n):
    sf.set_num_threads(n)
    assert sf.get_num_threads() == n
    assert type(sf.get_num_threads()) is int


@pytest.mark.parametrize("function", [sf.set_num_threads, sf.num_threads])
@pytest.mark.parametrize(
    ("n", "error", "found"),
    [
        (0, ValueError, "is 0"),
        (-1, ValueError, "is -1"),
        (1025, ValueError, "is 1025"),
        (10**30, ValueError, f"is {10**30}"),
        (2.0, TypeError, "is of type float"),
        ("2", TypeError, "is of type str"),
        (None, TypeError, "is of type NoneType"),
        (True, TypeError, "is of type bool"),
        (np.array([2]), TypeError, "is of type ndarray"),
    ],
)
def test_a_bad_number_of_threads_is_refused(function, n, error, found):
    before = sf.get_num_threads()
    with pytest.raises(error) as caught:
        function(n)
    needed = "needs an integer from 1 to 1024"
    assert str(caught.value) == f"{function.__name__}: n {found}, {needed}"
    assert sf.get_num_threads() == before


# ---- where the default comes from ----------------------------------------------------------------

REPORT = "print(sf.get_num_threads(), sf.show_config(mode='dicts')['threads']['set by'], sep=', ')"
CPUS = "the CPUs that the process may use"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SIMDFORMER_NUM_THREADS": "3"}, "3, SIMDFORMER_NUM_THREADS"),
        ({"SIMDFORMER_NUM_THREADS": " 05 "}, "5, SIMDFORMER_NUM_THREADS"),
        ({"SIMDFORMER_NUM_THREADS": "3", "OMP_NUM_THREADS": "7"}, "3, SIMDFORMER_NUM_THREADS"),
        ({"SIMDFORMER_NUM_THREADS": "", "OMP_NUM_THREADS": "7"}, "7, OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4,2"}, "4, OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": " 4 , 2"}, "4, OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "99999999999999999999"}, "1024, OMP_NUM_THREADS"),
    ],
)
def test_the_environment_sets_the_number_of_threads(variables, expected):
    assert run_python(REPORT, **variables) == expected


@pytest.mark.slow
def test_omp_num_threads_is_read_leniently():
    unset = run_python(REPORT)
    for text in ("", "garbage", "0", "-3", "2.5", ",4", "0x4", "\N{SUPERSCRIPT TWO}"):
        assert run_python(REPORT, OMP_NUM_THREADS=text) == unset, text


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "text", ["0", "-1", "1025", "2.0", "4,2", "two", "0x4", "+3", "9" * 5000, "\N{SUPERSCRIPT TWO}"]
)
def test_a_bad_simdformer_num_threads_is_an_error_at_import(text):
    assert import_error(SIMDFORMER_NUM_THREADS=text, OMP_NUM_THREADS="2") == (
        "ValueError: simdformer: the environment variable SIMDFORMER_NUM_THREADS is "
        f"{text!r}, needs an integer from 1 to 1024"
    )


@linux
def test_the_default_is_the_affinity_mask():
    def under(mask):
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, mask)  # this thread's, which the child inherits
        try:
            return run_python("call(); print(sf.get_num_threads(), workers())")
        finally:
            os.sched_setaffinity(0, before)

    cpus = sorted(os.sched_getaffinity(0))
    assert under(cpus[:1]) == "1 0"
    if len(cpus) > 1 and not 0 < _core.cgroup_cpus("") < 2:
        assert under(cpus[:2]) == "2 1"


def test_the_default_asks_for_no_more_than_the_cgroups_grant():
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    granted = _core.cgroup_cpus("") or cpus
    assert _core.default_num_threads() == max(1, min(cpus, granted, 1024))


V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
V1 = (
    "30 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
)
V1_PATHS = "5:memory:/elsewhere\n4:cpu,cpuacct:/a/b\n1:name=systemd:/\n"


def v1(folder, quota, period=100000):
    where = f"sys/fs/cgroup/cpu,cpuacct{folder}"
    return {f"{where}/cpu.cfs_quota_us": f"{quota}\n", f"{where}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "cpus"),
    [
        pytest.param("", "", {}, 0, id="no cgroups"),
        pytest.param(V2, "0::/a/b\n", {}, 0, id="v2 without a cpu controller"),
        pytest.param(V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000"}, 0, id="v2, no limit"),
        pytest.param(V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000"}, 2, id="v2, two"),
        pytest.param(
            V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "150000 100000"}, 2, id="v2, rounded up"
        ),
        pytest.param(
            V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "1000 100000"}, 1, id="v2, at least 1"
        ),
        pytest.param(
            V2,
            "0::/a/b\n",
            {
                "sys/fs/cgroup/cpu.max": "900000 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "sys/fs/cgroup/a/c/cpu.max": "100000 100000",
            },
            3,
            id="v2, the least of those above",
        ),
        pytest.param(
            V2, "0::/../x\n", {"sys/fs/cgroup/cpu.max": "500000 100000"}, 5, id="v2, out of sight"
        ),
        pytest.param(
            V2.replace(" / ", " /pod/me "),
            "0::/pod/me/sub\n",
            {"sys/fs/cgroup/sub/cpu.max": "400000 100000"},
            4,
            id="v2, only a part mounted",
        ),
        pytest.param(V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "nonsense"}, 0, id="v2, unreadable"),
        pytest.param(V1, V1_PATHS, v1("/a/b", -1), 0, id="v1, no limit"),
        pytest.param(V1, V1_PATHS, v1("/a/b", 250000), 3, id="v1, rounded up"),
        pytest.param(V1, V1_PATHS, v1("/a/b", -1) | v1("", 50000, 10000), 5, id="v1, from above"),
        pytest.param(V1, V1_PATHS, v1("/elsewhere", 100000), 0, id="v1, another group's"),
        pytest.param(
            V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
            V1_PATHS + "0::/\n",
            v1("/a/b", 600000) | {"sys/fs/cgroup/unified/cpu.max": "200000 100000"},
            2,
            id="both",
        ),
    ],
)
def test_cgroup_quotas_of_both_versions_are_understood(tmp_path, mounts, groups, files, cpus):
    files = files | {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _core.cgroup_cpus(str(tmp_path)) == cpus


# ---- the pool ------------------------------------------------------------------------------------


@linux
def test_workers_are_made_at_the_first_need_and_small_work_stays_on_the_caller():
    code = """
    counts = [workers()]
    sf.softmax(small); counts.append(workers())
    sf.set_num_threads(4); counts.append(workers())
    sf.softmax(small); counts.append(workers())
    call(); counts.append(workers())
    call(); counts.append(workers())
    sf.set_num_threads(6); call(); counts.append(workers())
    sf.set_num_threads(2); call(); counts.append(workers())
    print(*counts)
    """
    assert run_python(code) == "0 0 0 0 3 3 5 5"


@linux
def test_one_thread_is_the_caller():
    assert run_python("call(); print(workers())", SIMDFORMER_NUM_THREADS="1") == "0"


@linux
def test_an_idle_pool_takes_no_cpu_time():
    code = """
    call()
    sf.set_num_threads(2)  # six of the workers are spare from now on
    for _ in range(100):
        sf.silu(x[:64])
    before = time.process_time()
    time.sleep(2)
    print(workers(), time.process_time() - before < 0.2)
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS="8") == "7 True"


@linux
def test_workers_that_are_kept_awake_wait_for_a_moment_only():
    code = """
    from simdformer import _core
    from simdformer.runtime import awake
    _core.end_pass()  # without a begin_pass(): nothing
    with awake:
        call()
        before = time.process_time()
        time.sleep(0.5)
        spent = time.process_time() - before
    call()
    print(workers(), spent < 0.1)
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS="4") == "3 True"


@linux
def test_workers_leave_signals_to_pythons_threads():
    code = """
    call()
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGALRM
    for task in os.listdir("/proc/self/task"):
        status = open(f"/proc/self/task/{task}/status").read()
        if "Name:\\tsimdformer" in status:
            blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            print(all(blocked >> number - 1 & 1 for number in signals))
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS="3").split() == ["True", "True"]


@linux
def test_a_thread_that_cannot_be_made_means_fewer_threads():
    code = """
    import resource
    expected, out = call(), np.empty_like(x)
    sf.softmax(x, out=out)
    sf.set_num_threads(4)
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.RLIM_INFINITY))
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), hard))  # no room for a stack
    for _ in range(3):
        sf.softmax(x, out=out)
    print(workers(), np.array_equal(out, expected))
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    sf.set_num_threads(3)
    sf.softmax(x, out=out)
    print(workers(), np.array_equal(out, expected))
    """
    assert run_python(code, SIMDFORMER_NUM_THREADS="1").split() == ["0", "True", "2", "True"]


# ---- threadpoolctl -------------------------------------------------------------------------------


def test_threadpoolctl_sees_and_limits_the_threads():
    sf.set_num_threads(3)
    (mine,) = [
        entry for entry in threadpoolctl.threadpool_info() if entry["user_api"] == "simdformer"
    ]
    assert mine["num_threads"] == 3
    assert mine["version"] == sf.__version__
    assert os.path.samefile(mine["filepath"], _core.__file__)
    with threadpoolctl.threadpool_limits(1):
        assert sf.get_num_threads() == 1
    with threadpoolctl.threadpool_limits({"simdformer": 2}):
        assert sf.get_num_threads() == 2
    assert sf.get_num_threads() == 3


def test_the_symbols_of_the_library_are_the_setting():
    import ctypes

    library = ctypes.CDLL(_core.__file__)
    sf.set_num_threads(3)
    assert library.simdformer_get_num_threads() == 3
    library.simdformer_set_num_threads(2)
    assert sf.get_num_threads() == 2
    library.simdformer_set_num_threads(0)
    assert sf.get_num_threads() == 1
    library.simdformer_set_num_threads(10**6)
    assert sf.get_num_threads() == 1024


@pytest.mark.parametrize("instead", ["None", "__import__('types').ModuleType('threadpoolctl')"])
def test_threadpoolctl_is_not_needed(instead):
    code = f"""
    import subprocess
    program = "import sys; sys.modules['threadpoolctl'] = {instead}; import simdformer as sf; "
    program += "print(sf.get_num_threads())"
    print(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True))
    """
    assert "returncode=0, stdout='3\\n', stderr=''" in run_python(code, SIMDFORMER_NUM_THREADS="3")


# ---- the GIL -------------------------------------------------------------------------------------

SIDE = 2048
ONE = np.ones((1, SIDE), np.float32)


def filled_in(array):
    packed = sf.PackedWeight._empty(*array.shape, np.float16)
    packed._fill(0, array)
    return packed.unpack()


COPIES = {  # of an array (SIDE, SIDE) whose rows do not lie side by side
    "linear, x": lambda a: sf.linear(a, ONE),
    "linear, weight": lambda a: sf.linear(ONE, a),
    "linear, a list": lambda a: sf.linear(ONE, [a])[0],
    "expert_linear": lambda a: expert_linear(ONE, [0], [[a]])[0],
    "pack": lambda a: sf.pack(a).unpack(),
    "_fill, another dtype": filled_in,
    "quantize, float64": lambda a: sf.quantize(a.astype(np.float64, order="K"), "q8_0").codes,
    "silu": lambda a: sf.silu(a),
    "attention": lambda a: sf.scaled_dot_product_attention(ONE[:, :8], ONE[:1, :8] + a[:, :8], a),
    "embedding, weight": lambda a: sf.embedding(np.arange(SIDE), a),
    "embedding, ids": lambda a: sf.embedding(a.T.view(np.int32), np.arange(2.0)[:, None]),
}


@pytest.mark.parametrize("name", COPIES)
def test_other_threads_run_while_an_input_is_copied(name):
    """One writes to the input meanwhile, and the result knows of it. With the GIL held it could
    not before the copy is complete, and the kernel reads nothing else."""
    numbers = np.zeros((SIDE, SIDE), np.int32 if "ids" in name else np.float32)
    gate = threading.Lock()

    def write():
        with gate:
            numbers[...] = 1

    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is asked for the GIL: it is let go of, or kept
    try:
        for _ in range(200):
            numbers[...] = 0
            gate.acquire()
            writer = threading.Thread(target=write)
            writer.start()
            gate.release()  # it waits for the GIL alone
            result = COPIES[name](numbers.T)
            writer.join()
            if np.any(result):
                return
    finally:
        sys.setswitchinterval(before)
    pytest.fail("no other thread ran while the input was copied")
